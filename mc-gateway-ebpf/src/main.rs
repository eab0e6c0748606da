//! The TC classifiers: each calls its decision in `mc-gateway-common`, counts it and carries it out.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

#[cfg(feature = "log")]
mod decision_log;
mod maps;
mod skb;
mod subprograms;
mod words;

use aya_ebpf::{bindings::TC_ACT_UNSPEC, macros::classifier, programs::TcContext};
use mc_gateway_common::{
    abi::sample::{FROM_UNDERLAY, TO_REMOTE},
    packet::{Packet as _, eth},
    pipeline,
};

use crate::{
    maps::KernelMaps,
    skb::{HEAD_V4, HEAD_V6, Skb},
};

/// The context as global functions take it: the verifier knows it by this name in BTF, and the kernel refuses
/// the BTF of the whole generated struct.
#[repr(C)]
pub(crate) struct __sk_buff {
    len: u32,
}

/// Egress of `mc0`: encapsulates what is for another cluster.
#[classifier]
fn to_remote(ctx: TcContext) -> i32 {
    let mut packet = Skb::plain(ctx.skb.skb);
    let received = packet.rx_info();
    let verdict = pipeline::to_remote(&mut packet, &KernelMaps);
    skb::apply_verdict(&packet, verdict, received, TO_REMOTE)
}

/// Ingress of every underlay device: passes on, delivers or leaves alone.
#[classifier]
fn from_underlay(ctx: TcContext) -> i32 {
    match Skb::from_raw(ctx.skb.skb).ethertype() {
        eth::IPV4 => mc_from_underlay_v4(ctx.skb.skb.cast()),
        eth::IPV6 => mc_from_underlay_v6(ctx.skb.skb.cast()),
        _ => TC_ACT_UNSPEC,
    }
}

/// A global function: the verifier looks at each outer IP version by itself.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_from_underlay_v4(skb: *mut __sk_buff) -> i32 {
    let mut packet = Skb::new(skb.cast(), HEAD_V4);
    let received = packet.rx_info();
    let verdict = pipeline::from_underlay_v4(&mut packet, &KernelMaps);
    skb::apply_verdict(&packet, verdict, received, FROM_UNDERLAY)
}

/// As [`mc_from_underlay_v4`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_from_underlay_v6(skb: *mut __sk_buff) -> i32 {
    let mut packet = Skb::new(skb.cast(), HEAD_V6);
    let received = packet.rx_info();
    let verdict = pipeline::from_underlay_v6(&mut packet, &KernelMaps);
    skb::apply_verdict(&packet, verdict, received, FROM_UNDERLAY)
}

/// A global function, likewise: what a drop costs besides its counter is no business of the others.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_sample_drop(skb: *mut __sk_buff, reason: u32, program: u32) -> i32 {
    maps::sample_drop(skb.cast(), reason, program);
    0
}

/// Never reached: a panic path would not pass the verifier.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Version of the map layouts this object was built with, for whoever loads it.
#[unsafe(link_section = "mc_abi")]
#[unsafe(no_mangle)]
static MC_ABI: u32 = mc_gateway_common::abi::ABI_VERSION;

/// The kernel offers some of the helpers used here only to programs under the GPL, which is why this
/// crate and `mc-gateway-common` may be used under either licence their manifests name.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
