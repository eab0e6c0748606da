//! Subprograms on the host: direct calls.

use super::{
    admission::admission,
    decision::PackedDecision,
    egress_route::egress_route,
    first_rule::{PackedRule, RuleQuery, first_rule},
    from_underlay, icmp_too_big, mss, peer_limit, policy_flow, quoted_checksum, rejection, service,
    service::{Dnat, backend_route::PackedRoute, l4_header::PackedL4Header},
    subprograms::{MapSubprograms, Subprograms},
};
use crate::{
    abi::{NextHop, flow_entry::FlowEntry, service::FlowKey},
    flow, liveness,
    maps::{
        AdmissionKey, CachedMaps, EgressKey, Maps, MemoryMaps, PackedAdmission, PackedEgressRoute,
        rate_limit::PeerLimit,
    },
    nexthop_select,
    packet::{
        SlicePacket,
        icmp::{self, ErrorHeader},
        l4::{self, L4Location},
    },
    verdict::DropReason,
};

impl Subprograms for SlicePacket {
    fn clamp_mss(&mut self, at: u32, mtu: u32) -> Option<bool> {
        mss::clamp_mss(self, at, mtu)
    }

    fn locate_l4(&self, v6: bool, at: u32) -> L4Location {
        l4::locate_l4(self, v6, at)
    }

    fn hash_slow(&self, v6: bool, at: u32) -> u32 {
        flow::hash_slow(self, v6, at)
    }

    fn segment_headers_len(&self, at: u32) -> u32 {
        icmp_too_big::segment_headers_len(self, at)
    }

    fn sum_bytes(&self, at: u32, len: u32) -> Option<u16> {
        icmp::sum_bytes(self, at, len)
    }

    fn finalize_checksum(&mut self, at: u32, quoted: u32, sum: u16, location: L4Location) -> Option<u16> {
        quoted_checksum::finalize_checksum(self, at, quoted, sum, location)
    }

    fn store_icmp_error(&mut self, v6: bool, at: u32, header: ErrorHeader, sum: u16) -> Option<()> {
        icmp::store_icmp_error(self, v6, at, header, sum)
    }

    fn write_return_encap<M: Maps>(&mut self, maps: &M, v6: bool, at: u32) -> Option<()> {
        icmp_too_big::write_return_encap(self, maps, v6, at)
    }

    fn reply_too_big<M: Maps>(&mut self, maps: &M, at: u32, size: u32, mtu: u32) -> Result<(), DropReason> {
        icmp_too_big::reply_too_big(self, maps, at, size, mtu)
    }

    fn report_rejection<M: Maps>(&mut self, maps: &M) -> Option<()> {
        rejection::report_rejection(self, maps)
    }

    fn rewrite_outer(&mut self, next_hop: &NextHop, v6: bool, backend_mask: u64) -> Option<()> {
        from_underlay::rewrite_outer(self, next_hop, v6, backend_mask)
    }

    fn translate_service<M: Maps>(&mut self, maps: &M, v6: bool, decision: PackedDecision) -> PackedDecision {
        service::translate_service(self, maps, v6, decision)
    }

    fn select_backend<M: Maps>(&mut self, maps: &M, v6: bool) -> PackedRoute {
        service::select_backend(self, maps, v6)
    }

    fn flow_backend_id<M: Maps>(&self, maps: &M, at: u32, l4: PackedL4Header, reverse: bool) -> u64 {
        service::flow_backend_id(self, maps, at, l4, reverse)
    }

    fn next_choice<M: Maps>(maps: &M, key: &FlowKey, ports: u32, table: u32) -> FlowEntry {
        service::next_choice::<Self, M>(maps, key, ports, table)
    }

    fn choice<M: Maps>(maps: &M, key: &FlowKey, ports: u32, table: u8) -> FlowEntry {
        service::choice(maps, key, ports, table)
    }

    fn select_again<M: Maps>(&mut self, maps: &M, v6: bool, backend: u64, group: u32) -> PackedRoute {
        service::select_again(self, maps, v6, backend, group)
    }

    fn return_to_gateway<M: Maps>(&mut self, maps: &M, v6: bool) -> Result<(), DropReason> {
        service::return_to_gateway(self, maps, v6)
    }

    fn dnat_request<M: Maps>(&mut self, maps: &M, at: u32, backend: u64) -> Result<Dnat, DropReason> {
        service::dnat_request(self, maps, at, backend)
    }

    fn clear_nat_entry<M: Maps>(&self, maps: &M, at: u32) {
        service::clear_nat_entry(self, maps, at);
    }

    fn snat_reply<M: Maps>(&mut self, maps: &M, source: u32) -> Result<(), DropReason> {
        service::snat_reply(self, maps, source)
    }

    fn rewrite_alias(&mut self, at: u32, source: bool, to: u32) -> Result<(), DropReason> {
        service::rewrite_alias(self, at, source, to)
    }

    fn rewrite_ingress_alias<M: Maps>(
        &mut self,
        maps: &M,
        decision: PackedDecision,
        undo: bool,
    ) -> PackedDecision {
        service::rewrite_ingress_alias(self, maps, decision, undo)
    }

    fn take_peer_token<M: Maps>(&self, maps: &M, limit: PeerLimit) -> bool {
        peer_limit::take_peer_token(self, maps, limit)
    }

    fn track_flow<M: Maps>(&self, maps: &M) {
        policy_flow::track_flow(self, maps);
    }

    fn parse_l4(&self, v6: bool, at: u32) -> PackedL4Header {
        service::parse_l4(self, v6, at)
    }
}

impl MapSubprograms for MemoryMaps {
    fn admission(&self, key: &AdmissionKey) -> PackedAdmission {
        admission(self, key)
    }

    fn egress_route(&self, key: &EgressKey, _: u32) -> PackedEgressRoute {
        egress_route(self, key)
    }

    fn first_rule(&self, query: &RuleQuery) -> PackedRule {
        first_rule(self, query)
    }

    fn smallest_mtu(&self, group: u32) -> u32 {
        mss::smallest_mtu(self, group)
    }

    fn hrw_winner(&self, group: u32, hash: u32, alive: bool) -> u32 {
        nexthop_select::hrw_winner(self, group, hash, alive)
    }

    fn hrw_better(&self, hash: u32, alive: bool, best: u32, slot: u32) -> u32 {
        nexthop_select::hrw_better(self, hash, alive, best, slot)
    }

    fn is_dead(&self, slot: u32, id: u32) -> bool {
        liveness::is_dead(self, slot, id)
    }
}

/// Every look-up on the host finds the same as an earlier one.
impl CachedMaps for MemoryMaps {
    fn cached_admission(&self, key: &AdmissionKey) -> Option<PackedAdmission> {
        Some(admission(self, key))
    }

    fn cached_hrw_winner(&self, group: u32, hash: u32) -> Option<u32> {
        Some(nexthop_select::hrw_winner(self, group, hash, false))
    }
}
