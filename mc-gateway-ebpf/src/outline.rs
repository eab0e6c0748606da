//! Rare and long parts of the decisions as functions of their own.
//!
//! Exported, so that their BTF says "global": the verifier then checks each once, for any arguments, and not
//! again for every way through a program that leads to a call (Linux 5.6). They take at most five
//! arguments, return a number, and live on what their callers leave of the stack.

use mc_gateway_common::{
    flow,
    packet::{icmp, transport, transport::Transport},
    path::{self, mss, service, too_big},
    tables::{Admission, Way},
    verdict::DropReason,
};

use crate::{__sk_buff, maps::Maps, skb::Skb};

/// What functions return that have no other number to spare.
pub(crate) const FAILED: u32 = 1 << 31;

#[inline(always)]
fn number<T: Into<u32>>(result: Option<T>) -> u32 {
    result.map_or(FAILED, Into::into)
}

/// What functions return that can refuse a packet: 0, or the number of a drop reason.
#[inline(always)]
fn refusal(outcome: Result<(), DropReason>) -> u32 {
    match outcome {
        Ok(()) => 0,
        Err(reason) => reason as u32,
    }
}

/// The reverse of [`refusal`].
#[inline(always)]
pub(crate) fn outcome(refusal: u32) -> Result<(), DropReason> {
    match refusal {
        0 => Ok(()),
        number => Err(DropReason::from_number(number as u8)),
    }
}

/// [`path::admission`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_admission(way: *const Way) -> u64 {
    if way.is_null() {
        return Admission::refusal(DropReason::NotConfigured);
    }
    // SAFETY: not null, and the verifier has made sure that all of it can be read.
    path::admission(&Maps, unsafe { &*way })
}

/// [`mss::smallest_mtu`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_smallest_mtu(group: u32) -> u32 {
    mss::smallest_mtu(&Maps, group)
}

/// [`mss::clamp`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_clamp_mss(ctx: *mut __sk_buff, at: u32, mtu: u32) -> u32 {
    number(mss::clamp(&mut Skb::from_raw(ctx.cast()), at, mtu))
}

/// [`transport::locate`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_locate(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    transport::locate(&Skb::from_raw(ctx.cast()), v6 != 0, at).pack()
}

/// [`flow::hash_unusual`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_hash_unusual(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    flow::hash_unusual(&Skb::from_raw(ctx.cast()), v6 != 0, at)
}

/// [`too_big::headers_len`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_segment_headers(ctx: *mut __sk_buff, at: u32) -> u32 {
    too_big::headers_len(&Skb::from_raw(ctx.cast()), at)
}

/// [`icmp::sum`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_sum(ctx: *mut __sk_buff, at: u32, len: u32) -> u32 {
    number(icmp::sum(&Skb::from_raw(ctx.cast()), at, len))
}

/// [`icmp::settle`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_settle(
    ctx: *mut __sk_buff,
    at: u32,
    quoted: u32,
    sum: u32,
    transport: u32,
) -> u32 {
    let transport = Transport::unpack(transport);
    number(icmp::settle(
        &mut Skb::from_raw(ctx.cast()),
        at,
        quoted,
        sum as u16,
        transport,
    ))
}

/// [`icmp::store_headers`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_store_error(ctx: *mut __sk_buff, v6: u32, at: u32, mtu: u32, sum: u32) -> u32 {
    let stored = icmp::store_headers(&mut Skb::from_raw(ctx.cast()), v6 != 0, at, mtu, sum as u16);
    number(stored.map(|()| 0_u32))
}

/// [`too_big::send_back`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_send_back(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    number(too_big::send_back(&mut Skb::from_raw(ctx.cast()), &Maps, v6 != 0, at).map(|()| 0_u32))
}

/// [`too_big::answer`]: 0, or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_answer_too_big(ctx: *mut __sk_buff, at: u32, size: u32, mtu: u32) -> u32 {
    refusal(too_big::answer(
        &mut Skb::from_raw(ctx.cast()),
        &Maps,
        at,
        size,
        mtu,
    ))
}

/// [`service::serve`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_serve(ctx: *mut __sk_buff, v6: u32, finding: u64) -> u64 {
    service::serve(&mut Skb::from_raw(ctx.cast()), &Maps, v6 != 0, finding)
}

/// [`service::choose`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_choose_backend(ctx: *mut __sk_buff, v6: u32) -> u64 {
    service::choose(&mut Skb::from_raw(ctx.cast()), &Maps, v6 != 0)
}

/// [`service::backend_of`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_backend_of(ctx: *mut __sk_buff, at: u32, flow: u64, back: u32) -> u64 {
    service::backend_of(&Skb::from_raw(ctx.cast()), &Maps, at, flow, back != 0)
}

/// [`service::to_pod`]: 0, or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_serve_request(ctx: *mut __sk_buff, at: u32, backend: u64) -> u32 {
    refusal(service::to_pod(
        &mut Skb::from_raw(ctx.cast()),
        &Maps,
        at,
        backend,
    ))
}

/// [`service::directly`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_forget_service(ctx: *mut __sk_buff, at: u32) -> u32 {
    service::directly(&Skb::from_raw(ctx.cast()), &Maps, at);
    0
}

/// [`service::from_pod`]: 0, or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_serve_reply(ctx: *mut __sk_buff) -> u32 {
    refusal(service::from_pod(&mut Skb::from_raw(ctx.cast()), &Maps))
}

/// [`service::rename`]: 0, or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_rename(ctx: *mut __sk_buff, at: u32, source: u32, to: u32) -> u32 {
    refusal(service::rename(
        &mut Skb::from_raw(ctx.cast()),
        at,
        source != 0,
        to,
    ))
}

/// [`service::rename_arrival`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_rename_arrival(ctx: *mut __sk_buff, finding: u64, back: u32) -> u64 {
    service::rename_arrival(&mut Skb::from_raw(ctx.cast()), &Maps, finding, back != 0)
}

/// [`service::flow_at`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_flow_at(ctx: *mut __sk_buff, v6: u32, at: u32) -> u64 {
    service::flow_at(&Skb::from_raw(ctx.cast()), v6 != 0, at)
}
