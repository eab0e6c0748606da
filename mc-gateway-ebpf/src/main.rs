//! The TC classifiers: each runs its pipeline of `mc-gateway-common`, counts the verdict and applies it.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod context;
#[cfg(feature = "log")]
mod decision_log;
mod first_rule;
mod maps;
mod result;
mod sample_drop;
mod second_choice;
mod skb;
mod subprograms;
mod transit;
mod transport;
mod verdict;
mod words;
mod xdp_frame;

use aya_ebpf::{
    bindings::TC_ACT_UNSPEC,
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use mc_gateway_common::{
    abi::sample::{FROM_POD, FROM_REMOTE, FROM_TUNNEL, FROM_UNDERLAY, TO_POD, TO_REMOTE},
    packet::{Frame as _, eth},
    pipeline,
    verdict::Verdict,
};

use crate::{
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
    let skb = ctx.skb.skb;
    // One branch for each outer IP version, because every offset of a header is a constant.
    match Skb::from_raw(skb).ethertype() {
        eth::IPV4 => from_underlay_with(Skb::new(skb, HEAD_V4), pipeline::from_underlay_v4),
        eth::IPV6 => from_underlay_with(Skb::new(skb, HEAD_V6), pipeline::from_underlay_v6),
        _ => TC_ACT_UNSPEC,
    }
}

/// Runs the pipeline of one outer IP version. It is inlined, because a return costs as much as a look-up where the CPU
/// needs return thunks (x86 `spec_rstack_overflow`, `retbleed`).
#[inline(always)]
fn from_underlay_with(mut packet: Skb, pipeline: impl Fn(&mut Skb, &KernelMaps) -> Verdict) -> i32 {
    let received = packet.rx_info();
    let verdict = pipeline(&mut packet, &KernelMaps);
    apply_verdict(&packet, verdict, received, FROM_UNDERLAY)
}

/// Ingress of the agent's tunnel devices: delivers packets that `from_underlay` has admitted.
#[classifier]
fn from_tunnel(ctx: TcContext) -> i32 {
    let mut packet = Skb::from_raw(ctx.skb.skb);
    let received = packet.rx_info();
    let verdict = pipeline::from_tunnel(&mut packet, &KernelMaps);
    apply_verdict(&packet, verdict, received, FROM_TUNNEL)
}

/// Ingress of `mc0`: network policies on packets that the other programs have delivered.
#[classifier]
fn from_remote(ctx: TcContext) -> i32 {
    let mut packet = Skb::from_raw(ctx.skb.skb);
    let received = packet.rx_info();
    let verdict = pipeline::from_remote(&mut packet, &KernelMaps);
    apply_verdict(&packet, verdict, received, FROM_REMOTE)
}

/// Egress of the Pods' devices: network policies on packets of the own cluster.
#[classifier]
fn to_pod(ctx: TcContext) -> i32 {
    let mut packet = Skb::from_raw(ctx.skb.skb);
    let received = packet.rx_info();
    let verdict = pipeline::to_pod(&mut packet, &KernelMaps);
    apply_verdict(&packet, verdict, received, TO_POD)
}

/// Ingress of the Pods' devices: network policies on the packets of Pods.
#[classifier]
fn from_pod(ctx: TcContext) -> i32 {
    let mut packet = Skb::from_raw(ctx.skb.skb);
    let received = packet.rx_info();
    let verdict = pipeline::from_pod(&mut packet, &KernelMaps);
    apply_verdict(&packet, verdict, received, FROM_POD)
}

/// Ingress of an underlay device of a gateway before socket buffers: forwards packets whose look-ups are cached.
#[xdp]
fn transit(ctx: XdpContext) -> u32 {
    transit::forward(ctx.ctx)
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
