//! Rare and long parts of the decisions as functions of their own.
//!
//! Exported, so that their BTF says "global": the verifier then checks each once, for any arguments, and not
//! again for every way through a program that leads to a call (Linux 5.6). They take at most five
//! arguments, return a number, and live on what their callers leave of the stack.

use mc_gateway_common::{
    flow,
    maps::{Admission, AdmissionKey},
    packet::{
        icmp,
        l4::{self, L4Location},
    },
    pipeline::{self, icmp_too_big, mss, service},
    verdict::DropReason,
};

use crate::{__sk_buff, maps::KernelMaps, skb::Skb};

/// What functions return that have no other number to spare.
pub(crate) const FAILED: u32 = 1 << 31;

#[inline(always)]
fn encode_option<T: Into<u32>>(result: Option<T>) -> u32 {
    result.map_or(FAILED, Into::into)
}

/// What functions return that can refuse a packet: 0, or the number of a drop reason.
#[inline(always)]
fn encode_result(outcome: Result<(), DropReason>) -> u32 {
    match outcome {
        Ok(()) => 0,
        Err(reason) => reason as u32,
    }
}

/// The reverse of [`refusal`].
#[inline(always)]
pub(crate) fn decode_result(refusal: u32) -> Result<(), DropReason> {
    match refusal {
        0 => Ok(()),
        number => Err(DropReason::from_number(number as u8)),
    }
}

/// [`path::admission`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_admission(way: *const AdmissionKey) -> u64 {
    if way.is_null() {
        return Admission::refusal(DropReason::NotConfigured);
    }
    // SAFETY: not null, and the verifier has made sure that all of it can be read.
    pipeline::admission(&KernelMaps, unsafe { &*way })
}

/// [`mss::smallest_mtu`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_smallest_mtu(group: u32) -> u32 {
    mss::smallest_mtu(&KernelMaps, group)
}

/// [`mss::clamp`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_clamp_mss(ctx: *mut __sk_buff, at: u32, mtu: u32) -> u32 {
    encode_option(mss::clamp_mss(&mut Skb::from_raw(ctx.cast()), at, mtu))
}

/// [`transport::locate`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_locate_l4(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    l4::locate_l4(&Skb::from_raw(ctx.cast()), v6 != 0, at).pack()
}

/// [`flow::hash_unusual`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_hash_slow(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    flow::hash_slow(&Skb::from_raw(ctx.cast()), v6 != 0, at)
}

/// [`too_big::headers_len`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_segment_headers_len(ctx: *mut __sk_buff, at: u32) -> u32 {
    icmp_too_big::segment_headers_len(&Skb::from_raw(ctx.cast()), at)
}

/// [`icmp::sum`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_sum_bytes(ctx: *mut __sk_buff, at: u32, len: u32) -> u32 {
    encode_option(icmp::sum_bytes(&Skb::from_raw(ctx.cast()), at, len))
}

/// [`icmp::settle`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_finalize_checksum(
    ctx: *mut __sk_buff,
    at: u32,
    quoted: u32,
    sum: u32,
    location: u32,
) -> u32 {
    let location = L4Location::unpack(location);
    encode_option(icmp::finalize_checksum(
        &mut Skb::from_raw(ctx.cast()),
        at,
        quoted,
        sum as u16,
        location,
    ))
}

/// [`icmp::store_headers`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_store_icmp_error(
    ctx: *mut __sk_buff,
    v6: u32,
    at: u32,
    mtu: u32,
    sum: u32,
) -> u32 {
    let stored = icmp::store_icmp_error(&mut Skb::from_raw(ctx.cast()), v6 != 0, at, mtu, sum as u16);
    encode_option(stored.map(|()| 0_u32))
}

/// [`too_big::send_back`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_write_return_encap(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    encode_option(
        icmp_too_big::write_return_encap(&mut Skb::from_raw(ctx.cast()), &KernelMaps, v6 != 0, at)
            .map(|()| 0_u32),
    )
}

/// [`too_big::answer`]: 0, or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_reply_too_big(ctx: *mut __sk_buff, at: u32, size: u32, mtu: u32) -> u32 {
    encode_result(icmp_too_big::reply_too_big(
        &mut Skb::from_raw(ctx.cast()),
        &KernelMaps,
        at,
        size,
        mtu,
    ))
}

/// [`service::serve`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_translate_service(ctx: *mut __sk_buff, v6: u32, finding: u64) -> u64 {
    service::translate_service(&mut Skb::from_raw(ctx.cast()), &KernelMaps, v6 != 0, finding)
}

/// [`service::choose`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_select_backend(ctx: *mut __sk_buff, v6: u32) -> u64 {
    service::select_backend(&mut Skb::from_raw(ctx.cast()), &KernelMaps, v6 != 0)
}

/// [`service::backend_of`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_flow_backend_id(ctx: *mut __sk_buff, at: u32, flow: u64, back: u32) -> u64 {
    service::flow_backend_id(&Skb::from_raw(ctx.cast()), &KernelMaps, at, flow, back != 0)
}

/// [`service::to_pod`]: 0, or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_dnat_request(ctx: *mut __sk_buff, at: u32, backend: u64) -> u32 {
    encode_result(service::dnat_request(
        &mut Skb::from_raw(ctx.cast()),
        &KernelMaps,
        at,
        backend,
    ))
}

/// [`service::directly`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_clear_nat_entry(ctx: *mut __sk_buff, at: u32) -> u32 {
    service::clear_nat_entry(&Skb::from_raw(ctx.cast()), &KernelMaps, at);
    0
}

/// [`service::from_pod`]: 0, or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_snat_reply(ctx: *mut __sk_buff) -> u32 {
    encode_result(service::snat_reply(&mut Skb::from_raw(ctx.cast()), &KernelMaps))
}

/// [`service::rename`]: 0, or the number of a drop reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_rewrite_alias(ctx: *mut __sk_buff, at: u32, source: u32, to: u32) -> u32 {
    encode_result(service::rewrite_alias(
        &mut Skb::from_raw(ctx.cast()),
        at,
        source != 0,
        to,
    ))
}

/// [`service::rename_arrival`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_rewrite_ingress_alias(ctx: *mut __sk_buff, finding: u64, back: u32) -> u64 {
    service::rewrite_ingress_alias(&mut Skb::from_raw(ctx.cast()), &KernelMaps, finding, back != 0)
}

/// [`service::flow_at`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mc_parse_l4(ctx: *mut __sk_buff, v6: u32, at: u32) -> u64 {
    service::parse_l4(&Skb::from_raw(ctx.cast()), v6 != 0, at)
}
