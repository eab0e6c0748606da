//! Subprograms that parse or change the transport header of a packet.

use mc_gateway_common::{
    packet::l4::{self, PackedL4Location},
    pipeline::{self, mss, service},
};

use crate::{context::__sk_buff, maps::KernelMaps, result::encode_option, skb::Skb};

/// [`l4::locate_l4`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_locate_l4(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    PackedL4Location::new(l4::locate_l4(&Skb::from_raw(ctx.cast()), v6 != 0, at)).to_bits()
}

/// [`pipeline::track_flow`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_track_flow(ctx: *mut __sk_buff) -> u32 {
    pipeline::track_flow(&Skb::from_raw(ctx.cast()), &KernelMaps);
    0
}

/// [`service::parse_l4`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_parse_l4(ctx: *mut __sk_buff, v6: u32, at: u32) -> u64 {
    service::parse_l4(&Skb::from_raw(ctx.cast()), v6 != 0, at).to_bits()
}

/// [`mss::clamp_mss`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_clamp_mss(ctx: *mut __sk_buff, at: u32, mtu: u32) -> u32 {
    encode_option(mss::clamp_mss(&mut Skb::from_raw(ctx.cast()), at, mtu))
}
