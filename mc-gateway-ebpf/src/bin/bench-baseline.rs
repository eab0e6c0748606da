//! Baseline programs of the benchmark: a packet source in the kernel, and classifiers without work.
//!
//! A separate object (`bench-baseline.o`) that no agent loads.
#![no_std]
#![no_main]

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action},
    btf_maps::{Array, PerCpuArray},
    helpers::bpf_redirect,
    macros::{btf_map, classifier, xdp},
    programs::{TcContext, XdpContext},
};

/// The first 96 bytes of a frame, up to the inner addresses of a Geneve packet over IPv4.
type Head = [u64; 12];

/// First bytes of the frames to send, in turn.
#[btf_map(name = "heads")]
static HEADS: Array<Head, 131_072> = Array::new();
/// Number of used [`HEADS`], a power of two.
#[btf_map(name = "used")]
static USED: Array<u32, 1> = Array::new();
/// Frames sent so far.
#[btf_map(name = "sent")]
static SENT: PerCpuArray<u32, 1> = PerCpuArray::new();

/// Source of live frames (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18) on a device. The kernel reuses a frame as modified
/// by its last receiver, so the first bytes are rewritten each time.
#[xdp]
fn source(ctx: XdpContext) -> u32 {
    match send(&ctx) {
        Some(()) => xdp_action::XDP_PASS,
        None => xdp_action::XDP_ABORTED,
    }
}

/// Source of live frames that arrive at the other end of a veth pair.
#[xdp]
fn sender(ctx: XdpContext) -> u32 {
    match send(&ctx) {
        Some(()) => xdp_action::XDP_TX,
        None => xdp_action::XDP_ABORTED,
    }
}

/// Drops every frame in the driver.
#[xdp]
fn discard(_: XdpContext) -> u32 {
    xdp_action::XDP_DROP
}

#[inline(always)]
fn send(ctx: &XdpContext) -> Option<()> {
    let sent = SENT.get_ptr_mut(0)?;
    let used = *USED.get(0)?;
    // SAFETY: this CPU's own value; no other program of the CPU uses it.
    let number = unsafe {
        *sent = (*sent).wrapping_add(1);
        *sent
    };
    let head = HEADS.get(number & used.wrapping_sub(1))?;
    let data = ctx.data();
    if data.wrapping_add(size_of::<Head>()) > ctx.data_end() {
        return None;
    }
    // SAFETY: the frame is long enough, as just checked, and alignment does not matter.
    unsafe { (data as *mut Head).write_unaligned(*head) };
    Some(())
}

/// Output device of [`wire`].
#[btf_map(name = "target")]
static TARGET: Array<u32, 1> = Array::new();

/// Redirects every packet unchanged to another device: the minimum cost of a hop.
#[classifier]
fn wire(_: TcContext) -> i32 {
    match TARGET.get(0) {
        // SAFETY: plain values only.
        Some(ifindex) => unsafe { bpf_redirect(*ifindex, 0) as i32 },
        None => TC_ACT_SHOT as i32,
    }
}

/// Passes every packet: the cost of a program call.
#[classifier]
fn empty(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// Drops every packet.
#[classifier]
fn sink(_: TcContext) -> i32 {
    TC_ACT_SHOT as i32
}

/// Never reached: a panic path would not pass the verifier.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
