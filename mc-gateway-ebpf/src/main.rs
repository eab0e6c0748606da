//! The TC classifiers: each calls its decision in `mc-gateway-common`, counts it and carries it out.
#![no_std]
#![no_main]

mod maps;
mod skb;

use aya_ebpf::{macros::classifier, programs::TcContext};
use mc_gateway_common::path;

use crate::{maps::Maps, skb::Skb};

/// Egress of `mc0`: encapsulates what is for another cluster.
#[classifier]
fn to_remote(ctx: TcContext) -> i32 {
    let mut packet = Skb::new(&ctx);
    let received = packet.received();
    let verdict = path::to_remote(&mut packet, &Maps);
    skb::carry_out(verdict, received)
}

/// Ingress of every underlay device: passes on, delivers or leaves alone.
#[classifier]
fn from_underlay(ctx: TcContext) -> i32 {
    let mut packet = Skb::new(&ctx);
    let received = packet.received();
    let verdict = path::from_underlay(&mut packet, &Maps);
    skb::carry_out(verdict, received)
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
