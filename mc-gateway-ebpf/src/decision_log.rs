//! One log record for each verdict, in the object of `cargo xtask build-ebpf --log` only.
//!
//! The agent reads the records with `--program-log` and replaces the numbers by names: a table of strings in an eBPF
//! object would need relocations in `.rodata`, which loaders do not apply.

use aya_ebpf::helpers::bpf_skb_load_bytes;
use aya_log_ebpf::info;
use mc_gateway_common::{packet::eth, verdict::Verdict};

use crate::context::__sk_buff;

/// Offset of the destination address in an IPv4 header, and in an IPv6 header.
const DST_V4: u32 = 16;
const DST_V6: u32 = 24;

/// Logs the verdict of `program` on the packet as it is after all rewriting.
#[inline(always)]
pub(crate) fn log(skb: *mut __sk_buff, program: u32, verdict: &Verdict) {
    let (kind, number) = match *verdict {
        Verdict::Pass => (0, 0),
        Verdict::Drop(reason) => (1, reason as u32),
        Verdict::Send { outcome, .. } => (2, outcome as u32),
        Verdict::Deliver { outcome, .. } => (3, outcome as u32),
        Verdict::Consume { outcome } => (4, outcome as u32),
        Verdict::KernelDecap { outcome } => (5, outcome as u32),
    };
    mc_log_verdict(skb, program, kind, number);
}

/// A global function: the verifier checks it once, apart from the packet pipeline.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_log_verdict(skb: *mut __sk_buff, program: u32, kind: u32, number: u32) -> i32 {
    let destination = destination(skb);
    info!(
        skb,
        "program={} verdict={} number={} destination={:i}", program, kind, number, destination
    );
    0
}

/// Destination of the outermost IP header, an IPv4 address in its IPv6-mapped form; unspecified without an IP header.
#[inline(always)]
fn destination(skb: *mut __sk_buff) -> [u8; 16] {
    let mut ethertype = [0; 2];
    let mut addr = [0; 16];
    // SAFETY: the context pointer is valid while the program runs, and each buffer has the length passed with it.
    unsafe {
        let at = eth::END - 2;
        if bpf_skb_load_bytes(skb.cast(), at, ethertype.as_mut_ptr().cast(), 2) != 0 {
            return addr;
        }
        match u16::from_be_bytes(ethertype) {
            eth::IPV4 => {
                let mut v4 = [0_u8; 4];
                if bpf_skb_load_bytes(skb.cast(), eth::END + DST_V4, v4.as_mut_ptr().cast(), 4) == 0 {
                    addr = [
                        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4[0], v4[1], v4[2], v4[3],
                    ];
                }
            }
            eth::IPV6 => {
                if bpf_skb_load_bytes(skb.cast(), eth::END + DST_V6, addr.as_mut_ptr().cast(), 16) != 0 {
                    addr = [0; 16];
                }
            }
            _ => {}
        }
    }
    addr
}
