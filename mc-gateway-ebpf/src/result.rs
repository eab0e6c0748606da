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
