//! Results of subprograms as numbers: a global function returns nothing else.

use mc_gateway_common::verdict::DropReason;

/// 0, or the number of a drop reason.
#[inline(always)]
pub(crate) fn encode_result(result: Result<(), DropReason>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(reason) => reason as u32,
    }
}

/// The result of [`encode_result`]'s number.
#[inline(always)]
pub(crate) fn decode_result(value: u32) -> Result<(), DropReason> {
    match value {
        0 => Ok(()),
        number => Err(DropReason::from_number(number as u8)),
    }
}

/// Return value for `None`.
pub(crate) const NONE: u32 = 1 << 31;

#[inline(always)]
pub(crate) fn encode_option<T: Into<u32>>(value: Option<T>) -> u32 {
    value.map_or(NONE, Into::into)
}

#[inline(always)]
pub(crate) fn decode_option(value: u32) -> Option<u32> {
    (value != NONE).then_some(value)
}
