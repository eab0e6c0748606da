//! The steps for flows that another gateway has opened as global functions, as in [`crate::subprograms`].

use mc_gateway_common::{abi::service::FlowKey, pipeline::service};

use crate::{context::__sk_buff, maps::KernelMaps, result::encode_result, skb::Skb};

/// [`service::next_choice`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_next_choice(key: *const FlowKey, ports: u32, table: u32) -> u64 {
    if key.is_null() {
        return 0;
    }
    // SAFETY: not null, and the verifier checks that the caller passes a whole key.
    service::next_choice::<Skb, _>(&KernelMaps, unsafe { &*key }, ports, table).word()
}

/// [`service::choice`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_choice(key: *const FlowKey, ports: u32, table: u32) -> u64 {
    if key.is_null() {
        return 0;
    }
    // SAFETY: not null, and the verifier checks that the caller passes a whole key.
    service::choice(&KernelMaps, unsafe { &*key }, ports, table as u8).word()
}

/// [`service::select_again`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_select_again(ctx: *mut __sk_buff, v6: u32, backend: u64, group: u32) -> u64 {
    let mut packet = Skb::from_raw(ctx.cast());
    service::select_again(&mut packet, &KernelMaps, v6 != 0, backend, group).to_bits()
}

/// [`service::return_to_gateway`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_return_to_gateway(ctx: *mut __sk_buff, v6: u32) -> u32 {
    let mut packet = Skb::from_raw(ctx.cast());
    encode_result(service::return_to_gateway(&mut packet, &KernelMaps, v6 != 0))
}
