//! The TC classifiers: each runs its pipeline of `mc-gateway-common`, counts the verdict and applies it.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod context;
#[cfg(feature = "log")]
mod decision_log;
mod maps;
mod sample_drop;
mod second_choice;
mod skb;
mod subprograms;
mod verdict;
mod words;

use aya_ebpf::{bindings::TC_ACT_UNSPEC, macros::classifier, programs::TcContext};
use mc_gateway_common::{
    abi::sample::{FROM_UNDERLAY, TO_REMOTE},
    packet::{Packet as _, eth},
    pipeline,
};

use crate::{
    context::__sk_buff,
    maps::KernelMaps,
    skb::{HEAD_V4, HEAD_V6, Skb},
    verdict::apply_verdict,
};

/// Egress of `mc0`: encapsulates packets to other clusters.
#[classifier]
fn to_remote(ctx: TcContext) -> i32 {
    let mut packet = Skb::plain(ctx.skb.skb);
    let received = packet.rx_info();
    let verdict = pipeline::to_remote(&mut packet, &KernelMaps);
    apply_verdict(&packet, verdict, received, TO_REMOTE)
}

/// Ingress of every underlay device: forwards, delivers or passes packets.
#[classifier]
fn from_underlay(ctx: TcContext) -> i32 {
    match Skb::from_raw(ctx.skb.skb).ethertype() {
        eth::IPV4 => mc_from_underlay_v4(ctx.skb.skb.cast()),
        eth::IPV6 => mc_from_underlay_v6(ctx.skb.skb.cast()),
        _ => TC_ACT_UNSPEC,
    }
}

/// A global function: the verifier checks each outer IP version separately.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_from_underlay_v4(skb: *mut __sk_buff) -> i32 {
    let mut packet = Skb::new(skb.cast(), HEAD_V4);
    let received = packet.rx_info();
    let verdict = pipeline::from_underlay_v4(&mut packet, &KernelMaps);
    apply_verdict(&packet, verdict, received, FROM_UNDERLAY)
}

/// As [`mc_from_underlay_v4`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_from_underlay_v6(skb: *mut __sk_buff) -> i32 {
    let mut packet = Skb::new(skb.cast(), HEAD_V6);
    let received = packet.rx_info();
    let verdict = pipeline::from_underlay_v6(&mut packet, &KernelMaps);
    apply_verdict(&packet, verdict, received, FROM_UNDERLAY)
}

/// Never reached: a panic path would not pass the verifier.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Version of the map layouts of this object, for the loader.
#[unsafe(link_section = "mc_abi")]
#[unsafe(no_mangle)]
static MC_ABI: u32 = mc_gateway_common::abi::ABI_VERSION;

/// Some of the helpers require a GPL program, so this crate and `mc-gateway-common` are dual-licensed in their
/// manifests.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
