//! The subprograms of the pipelines as global functions.
//!
//! The symbols are exported, so that their BTF linkage is "global": the verifier checks each function once for any
//! arguments instead of on every path to a call (Linux 5.6). A global function takes at most five arguments, returns a
//! number, and shares the stack with its callers.

use mc_gateway_common::{
    abi::{NextHop, flow_entry::FlowEntry, service::FlowKey},
    flow, liveness,
    maps::{AdmissionKey, EgressKey, Maps, PackedAdmission, PackedEgressRoute, rate_limit::PeerLimit},
    nexthop_select,
    packet::{
        icmp::{self, ErrorHeader},
        l4::{L4Location, PackedL4Location},
    },
    pipeline::{
        self, MapSubprograms, PackedDecision, PackedRule, RuleQuery, Subprograms, icmp_too_big, mss,
        peer_limit, quoted_checksum, rejection,
        service::{self, Dnat, PackedL4Header, PackedRoute},
    },
    verdict::DropReason,
};

use crate::{
    context::__sk_buff,
    first_rule::mc_first_rule,
    maps::{
        KernelMaps, cached_admission, cached_egress_route, cached_hrw_winner, second_admission,
        second_egress_route, second_hrw_winner, store_admission,
    },
    result::{NONE, decode_option, decode_result, encode_option, encode_result},
    second_choice::{mc_choice, mc_next_choice, mc_return_to_gateway, mc_select_again},
    skb::Skb,
    transport::{mc_clamp_mss, mc_locate_l4, mc_parse_l4, mc_track_flow},
};

/// [`pipeline::admission()`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_admission(key: *const AdmissionKey) -> u64 {
    if key.is_null() {
        return PackedAdmission::rejected(DropReason::NotConfigured).to_bits();
    }
    // SAFETY: not null, and the verifier checks that the caller passes a whole key.
    let key = unsafe { &*key };
    second_admission(key, |key| pipeline::admission(&KernelMaps, key)).to_bits()
}

/// [`store_admission`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_store_admission(key: *const AdmissionKey, epoch: u32, admission: u64) -> u32 {
    if !key.is_null() {
        // SAFETY: as above.
        store_admission(unsafe { &*key }, epoch, PackedAdmission::from_bits(admission));
    }
    0
}

/// [`pipeline::egress_route()`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_egress_route(src_high: u64, src_low: u64, dst_high: u64, dst_low: u64, hash: u32) -> u64 {
    let key = EgressKey::from_words([src_high, src_low, dst_high, dst_low]);
    second_egress_route(&key, hash, || pipeline::egress_route(&KernelMaps, &key)).to_bits()
}

/// [`mss::smallest_mtu`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_smallest_mtu(group: u32) -> u32 {
    mss::smallest_mtu(&KernelMaps, group)
}

/// [`nexthop_select::hrw_winner`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_hrw_winner(group: u32, hash: u32, alive: u32) -> u32 {
    if alive != 0 {
        return nexthop_select::hrw_winner(&KernelMaps, group, hash, true);
    }
    second_hrw_winner(group, hash, || {
        nexthop_select::hrw_winner(&KernelMaps, group, hash, false)
    })
}

/// [`nexthop_select::hrw_better`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_hrw_better(hash: u32, alive: u32, best: u32, slot: u32) -> u32 {
    nexthop_select::hrw_better(&KernelMaps, hash, alive != 0, best, slot)
}

/// [`liveness::is_dead`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_is_dead(slot: u32, id: u32) -> u32 {
    u32::from(liveness::is_dead(&KernelMaps, slot, id))
}

impl MapSubprograms for KernelMaps {
    #[inline(always)]
    fn admission(&self, key: &AdmissionKey) -> PackedAdmission {
        let find = || PackedAdmission::from_bits(mc_admission(key));
        cached_admission(key, find, |epoch, admission| {
            mc_store_admission(key, epoch, admission.to_bits());
        })
    }

    #[inline(always)]
    fn egress_route(&self, key: &EgressKey, hash: u32) -> PackedEgressRoute {
        let [src_high, src_low, dst_high, dst_low] = key.words();
        cached_egress_route(key, hash, || {
            PackedEgressRoute::from_bits(mc_egress_route(src_high, src_low, dst_high, dst_low, hash))
        })
    }

    #[inline(always)]
    fn smallest_mtu(&self, group: u32) -> u32 {
        mc_smallest_mtu(group)
    }

    #[inline(always)]
    fn hrw_winner(&self, group: u32, hash: u32, alive: bool) -> u32 {
        if alive {
            return mc_hrw_winner(group, hash, 1);
        }
        cached_hrw_winner(group, hash, || mc_hrw_winner(group, hash, 0))
    }

    #[inline(always)]
    fn hrw_better(&self, hash: u32, alive: bool, best: u32, slot: u32) -> u32 {
        mc_hrw_better(hash, u32::from(alive), best, slot)
    }

    #[inline(always)]
    fn first_rule(&self, query: &RuleQuery) -> PackedRule {
        PackedRule::from_bits(mc_first_rule(query))
    }

    #[inline(always)]
    fn is_dead(&self, slot: u32, id: u32) -> bool {
        mc_is_dead(slot, id) != 0
    }
}

/// [`flow::hash_slow`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_hash_slow(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    flow::hash_slow(&Skb::from_raw(ctx.cast()), v6 != 0, at)
}

/// [`icmp_too_big::segment_headers_len`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_segment_headers_len(ctx: *mut __sk_buff, at: u32) -> u32 {
    icmp_too_big::segment_headers_len(&Skb::from_raw(ctx.cast()), at)
}

/// [`icmp::sum_bytes`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_sum_bytes(ctx: *mut __sk_buff, at: u32, len: u32) -> u32 {
    encode_option(icmp::sum_bytes(&Skb::from_raw(ctx.cast()), at, len))
}

/// [`quoted_checksum::finalize_checksum`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_finalize_checksum(
    ctx: *mut __sk_buff,
    at: u32,
    quoted: u32,
    sum: u32,
    location: u32,
) -> u32 {
    let location = PackedL4Location::from_bits(location).unpack();
    encode_option(quoted_checksum::finalize_checksum(
        &mut Skb::from_raw(ctx.cast()),
        at,
        quoted,
        sum as u16,
        location,
    ))
}

/// [`icmp::store_icmp_error`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_store_icmp_error(ctx: *mut __sk_buff, v6: u32, at: u32, header: u64, sum: u32) -> u32 {
    let header = ErrorHeader::from_bits(header);
    let stored = icmp::store_icmp_error(&mut Skb::from_raw(ctx.cast()), v6 != 0, at, header, sum as u16);
    encode_option(stored.map(|()| 0_u32))
}

/// [`icmp_too_big::write_return_encap`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_write_return_encap(ctx: *mut __sk_buff, v6: u32, at: u32) -> u32 {
    let written = icmp_too_big::write_return_encap(&mut Skb::from_raw(ctx.cast()), &KernelMaps, v6 != 0, at);
    encode_option(written.map(|()| 0_u32))
}

/// [`icmp_too_big::reply_too_big`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_reply_too_big(ctx: *mut __sk_buff, at: u32, size: u32, mtu: u32) -> u32 {
    encode_result(icmp_too_big::reply_too_big(
        &mut Skb::from_raw(ctx.cast()),
        &KernelMaps,
        at,
        size,
        mtu,
    ))
}

/// [`rejection::report_rejection`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_report_rejection(ctx: *mut __sk_buff) -> u32 {
    let reported = rejection::report_rejection(&mut Skb::from_raw(ctx.cast()), &KernelMaps);
    encode_option(reported.map(|()| 0_u32))
}

/// [`pipeline::rewrite_outer`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_rewrite_outer(ctx: *mut __sk_buff, next_hop: *const NextHop, v6: u32, backend: u64) -> u32 {
    if next_hop.is_null() {
        return NONE;
    }
    // SAFETY: not null, and the verifier checks that the caller passes a whole next hop.
    let next_hop = unsafe { &*next_hop };
    let rewritten = pipeline::rewrite_outer(&mut Skb::from_raw(ctx.cast()), next_hop, v6 != 0, backend);
    encode_option(rewritten.map(|()| 0_u32))
}

/// [`service::translate_service`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_translate_service(ctx: *mut __sk_buff, v6: u32, decision: u64) -> u64 {
    let decision = PackedDecision::from_bits(decision);
    service::translate_service(&mut Skb::from_raw(ctx.cast()), &KernelMaps, v6 != 0, decision).to_bits()
}

/// [`service::select_backend`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_select_backend(ctx: *mut __sk_buff, v6: u32) -> u64 {
    service::select_backend(&mut Skb::from_raw(ctx.cast()), &KernelMaps, v6 != 0).to_bits()
}

/// [`service::flow_backend_id`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_flow_backend_id(ctx: *mut __sk_buff, at: u32, l4: u64, reverse: u32) -> u64 {
    let l4 = PackedL4Header::from_bits(l4);
    service::flow_backend_id(&Skb::from_raw(ctx.cast()), &KernelMaps, at, l4, reverse != 0)
}

/// Return value of [`mc_dnat_request`] for [`Dnat::Unknown`]: the number of no drop reason.
const DNAT_UNKNOWN: u32 = 1 << 8;

/// [`service::dnat_request`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_dnat_request(ctx: *mut __sk_buff, at: u32, backend: u64) -> u32 {
    match service::dnat_request(&mut Skb::from_raw(ctx.cast()), &KernelMaps, at, backend) {
        Ok(Dnat::Translated) => 0,
        Ok(Dnat::Unknown) => DNAT_UNKNOWN,
        Err(reason) => reason as u32,
    }
}

/// [`service::clear_nat_entry`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_clear_nat_entry(ctx: *mut __sk_buff, at: u32) -> u32 {
    service::clear_nat_entry(&Skb::from_raw(ctx.cast()), &KernelMaps, at);
    0
}

/// [`service::snat_reply`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_snat_reply(ctx: *mut __sk_buff, source: u32) -> u32 {
    encode_result(service::snat_reply(
        &mut Skb::from_raw(ctx.cast()),
        &KernelMaps,
        source,
    ))
}

/// [`service::rewrite_alias`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_rewrite_alias(ctx: *mut __sk_buff, at: u32, source: u32, to: u32) -> u32 {
    encode_result(service::rewrite_alias(
        &mut Skb::from_raw(ctx.cast()),
        at,
        source != 0,
        to,
    ))
}

/// [`service::rewrite_ingress_alias`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_rewrite_ingress_alias(ctx: *mut __sk_buff, decision: u64, undo: u32) -> u64 {
    let decision = PackedDecision::from_bits(decision);
    service::rewrite_ingress_alias(&mut Skb::from_raw(ctx.cast()), &KernelMaps, decision, undo != 0).to_bits()
}

/// [`peer_limit::take_peer_token`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_take_peer_token(ctx: *mut __sk_buff, limit: u32) -> u32 {
    let limit = PeerLimit::from_number(limit);
    u32::from(peer_limit::take_peer_token(
        &Skb::from_raw(ctx.cast()),
        &KernelMaps,
        limit,
    ))
}

impl Subprograms for Skb {
    #[inline(always)]
    fn clamp_mss(&mut self, at: u32, mtu: u32) -> Option<bool> {
        decode_option(mc_clamp_mss(self.raw().cast(), at, mtu)).map(|changed| changed != 0)
    }

    #[inline(always)]
    fn locate_l4(&self, v6: bool, at: u32) -> L4Location {
        PackedL4Location::from_bits(mc_locate_l4(self.raw().cast(), v6 as u32, at)).unpack()
    }

    #[inline(always)]
    fn hash_slow(&self, v6: bool, at: u32) -> u32 {
        mc_hash_slow(self.raw().cast(), v6 as u32, at)
    }

    #[inline(always)]
    fn segment_headers_len(&self, at: u32) -> u32 {
        mc_segment_headers_len(self.raw().cast(), at)
    }

    #[inline(always)]
    fn sum_bytes(&self, at: u32, len: u32) -> Option<u16> {
        decode_option(mc_sum_bytes(self.raw().cast(), at, len)).map(|sum| sum as u16)
    }

    #[inline(always)]
    fn finalize_checksum(&mut self, at: u32, quoted: u32, sum: u16, location: L4Location) -> Option<u16> {
        let location = PackedL4Location::new(location).to_bits();
        decode_option(mc_finalize_checksum(
            self.raw().cast(),
            at,
            quoted,
            sum as u32,
            location,
        ))
        .map(|sum| sum as u16)
    }

    #[inline(always)]
    fn store_icmp_error(&mut self, v6: bool, at: u32, header: ErrorHeader, sum: u16) -> Option<()> {
        let (ctx, header) = (self.raw().cast(), header.to_bits());
        decode_option(mc_store_icmp_error(ctx, v6 as u32, at, header, sum as u32)).map(|_| ())
    }

    #[inline(always)]
    fn write_return_encap<M: Maps>(&mut self, _: &M, v6: bool, at: u32) -> Option<()> {
        decode_option(mc_write_return_encap(self.raw().cast(), v6 as u32, at)).map(|_| ())
    }

    #[inline(always)]
    fn reply_too_big<M: Maps>(&mut self, _: &M, at: u32, size: u32, mtu: u32) -> Result<(), DropReason> {
        decode_result(mc_reply_too_big(self.raw().cast(), at, size, mtu))
    }

    #[inline(always)]
    fn report_rejection<M: Maps>(&mut self, _: &M) -> Option<()> {
        decode_option(mc_report_rejection(self.raw().cast())).map(|_| ())
    }

    #[inline(always)]
    fn rewrite_outer(&mut self, next_hop: &NextHop, v6: bool, backend_mask: u64) -> Option<()> {
        decode_option(mc_rewrite_outer(
            self.raw().cast(),
            next_hop,
            v6 as u32,
            backend_mask,
        ))
        .map(|_| ())
    }

    #[inline(always)]
    fn translate_service<M: Maps>(&mut self, _: &M, v6: bool, decision: PackedDecision) -> PackedDecision {
        PackedDecision::from_bits(mc_translate_service(
            self.raw().cast(),
            v6 as u32,
            decision.to_bits(),
        ))
    }

    #[inline(always)]
    fn select_backend<M: Maps>(&mut self, _: &M, v6: bool) -> PackedRoute {
        PackedRoute::from_bits(mc_select_backend(self.raw().cast(), v6 as u32))
    }

    #[inline(always)]
    fn flow_backend_id<M: Maps>(&self, _: &M, at: u32, l4: PackedL4Header, reverse: bool) -> u64 {
        mc_flow_backend_id(self.raw().cast(), at, l4.to_bits(), reverse as u32)
    }

    #[inline(always)]
    fn next_choice<M: Maps>(_: &M, key: &FlowKey, ports: u32, table: u32) -> FlowEntry {
        FlowEntry::from_word(mc_next_choice(key, ports, table))
    }

    #[inline(always)]
    fn choice<M: Maps>(_: &M, key: &FlowKey, ports: u32, table: u8) -> FlowEntry {
        FlowEntry::from_word(mc_choice(key, ports, u32::from(table)))
    }

    #[inline(always)]
    fn select_again<M: Maps>(&mut self, _: &M, v6: bool, backend: u64, group: u32) -> PackedRoute {
        PackedRoute::from_bits(mc_select_again(self.raw().cast(), v6 as u32, backend, group))
    }

    #[inline(always)]
    fn return_to_gateway<M: Maps>(&mut self, _: &M, v6: bool) -> Result<(), DropReason> {
        decode_result(mc_return_to_gateway(self.raw().cast(), v6 as u32))
    }

    #[inline(always)]
    fn dnat_request<M: Maps>(&mut self, _: &M, at: u32, backend: u64) -> Result<Dnat, DropReason> {
        match mc_dnat_request(self.raw().cast(), at, backend) {
            DNAT_UNKNOWN => Ok(Dnat::Unknown),
            result => decode_result(result).map(|()| Dnat::Translated),
        }
    }

    #[inline(always)]
    fn clear_nat_entry<M: Maps>(&self, _: &M, at: u32) {
        mc_clear_nat_entry(self.raw().cast(), at);
    }

    #[inline(always)]
    fn snat_reply<M: Maps>(&mut self, _: &M, source: u32) -> Result<(), DropReason> {
        decode_result(mc_snat_reply(self.raw().cast(), source))
    }

    #[inline(always)]
    fn rewrite_alias(&mut self, at: u32, source: bool, to: u32) -> Result<(), DropReason> {
        decode_result(mc_rewrite_alias(self.raw().cast(), at, source as u32, to))
    }

    #[inline(always)]
    fn rewrite_ingress_alias<M: Maps>(
        &mut self,
        _: &M,
        decision: PackedDecision,
        undo: bool,
    ) -> PackedDecision {
        let bits = mc_rewrite_ingress_alias(self.raw().cast(), decision.to_bits(), undo as u32);
        PackedDecision::from_bits(bits)
    }

    #[inline(always)]
    fn take_peer_token<M: Maps>(&self, _: &M, limit: PeerLimit) -> bool {
        mc_take_peer_token(self.raw().cast(), limit as u32) != 0
    }

    #[inline(always)]
    fn track_flow<M: Maps>(&self, _: &M) {
        mc_track_flow(self.raw().cast());
    }

    #[inline(always)]
    fn parse_l4(&self, v6: bool, at: u32) -> PackedL4Header {
        PackedL4Header::from_bits(mc_parse_l4(self.raw().cast(), v6 as u32, at))
    }
}
