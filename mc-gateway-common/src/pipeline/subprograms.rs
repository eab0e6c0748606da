//! The rare and long parts of the pipelines, behind traits.
//!
//! A BPF program implements each method as a call of a global function with the same name, which the verifier checks
//! once instead of on every path to a call. The host calls the functions of the pipelines directly. A subprogram
//! takes at most five arguments and returns a number, hence the packed types.

use super::{
    decision::PackedDecision,
    first_rule::{PackedRule, RuleQuery},
    service::{Dnat, backend_route::PackedRoute, l4_header::PackedL4Header},
};
use crate::{
    abi::{NextHop, flow_entry::FlowEntry, service::FlowKey},
    maps::{AdmissionKey, EgressKey, Maps, PackedAdmission, PackedEgressRoute, rate_limit::PeerLimit},
    packet::{Packet, icmp::ErrorHeader, l4::L4Location},
    verdict::DropReason,
};

/// Subprograms that read or write a packet. `at` is the offset of an IP header.
pub trait Subprograms: Packet + Sized {
    /// [`super::mss::clamp_mss`].
    fn clamp_mss(&mut self, at: u32, mtu: u32) -> Option<bool>;
    /// [`crate::packet::l4::locate_l4`].
    fn locate_l4(&self, v6: bool, at: u32) -> L4Location;
    /// [`crate::flow::hash_slow`].
    fn hash_slow(&self, v6: bool, at: u32) -> u32;
    /// [`super::icmp_too_big::segment_headers_len`].
    fn segment_headers_len(&self, at: u32) -> u32;
    /// [`crate::packet::icmp::sum_bytes`].
    fn sum_bytes(&self, at: u32, len: u32) -> Option<u16>;
    /// [`super::quoted_checksum::finalize_checksum`].
    fn finalize_checksum(&mut self, at: u32, quoted: u32, sum: u16, location: L4Location) -> Option<u16>;
    /// [`crate::packet::icmp::store_icmp_error`].
    fn store_icmp_error(&mut self, v6: bool, at: u32, header: ErrorHeader, sum: u16) -> Option<()>;
    /// [`super::icmp_too_big::write_return_encap`].
    fn write_return_encap<M: Maps>(&mut self, maps: &M, v6: bool, at: u32) -> Option<()>;
    /// [`super::icmp_too_big::reply_too_big`].
    fn reply_too_big<M: Maps>(&mut self, maps: &M, at: u32, size: u32, mtu: u32) -> Result<(), DropReason>;
    /// [`super::rejection::report_rejection`].
    fn report_rejection<M: Maps>(&mut self, maps: &M) -> Option<()>;
    /// [`super::rewrite_outer`].
    fn rewrite_outer(&mut self, next_hop: &NextHop, v6: bool, backend_mask: u64) -> Option<()>;
    /// [`super::service::translate_service`].
    fn translate_service<M: Maps>(&mut self, maps: &M, v6: bool, decision: PackedDecision) -> PackedDecision;
    /// [`super::service::select_backend`].
    fn select_backend<M: Maps>(&mut self, maps: &M, v6: bool) -> PackedRoute;
    /// [`super::service::flow_backend_id`].
    fn flow_backend_id<M: Maps>(&self, maps: &M, at: u32, l4: PackedL4Header, reverse: bool) -> u64;
    /// [`super::service::next_choice`].
    fn next_choice<M: Maps>(maps: &M, key: &FlowKey, ports: u32, table: u32) -> FlowEntry;
    /// [`super::service::choice`].
    fn choice<M: Maps>(maps: &M, key: &FlowKey, ports: u32, table: u8) -> FlowEntry;
    /// [`super::service::select_again`].
    fn select_again<M: Maps>(&mut self, maps: &M, v6: bool, backend: u64, group: u32) -> PackedRoute;
    /// [`super::service::return_to_gateway`].
    fn return_to_gateway<M: Maps>(&mut self, maps: &M, v6: bool) -> Result<(), DropReason>;
    /// [`super::service::dnat_request`].
    fn dnat_request<M: Maps>(&mut self, maps: &M, at: u32, backend: u64) -> Result<Dnat, DropReason>;
    /// [`super::service::clear_nat_entry`].
    fn clear_nat_entry<M: Maps>(&self, maps: &M, at: u32);
    /// [`super::service::snat_reply`].
    fn snat_reply<M: Maps>(&mut self, maps: &M, source: u32) -> Result<(), DropReason>;
    /// [`super::service::rewrite_alias`].
    fn rewrite_alias(&mut self, at: u32, source: bool, to: u32) -> Result<(), DropReason>;
    /// [`super::service::rewrite_ingress_alias`].
    fn rewrite_ingress_alias<M: Maps>(
        &mut self,
        maps: &M,
        decision: PackedDecision,
        undo: bool,
    ) -> PackedDecision;
    /// [`super::peer_limit::take_peer_token`].
    fn take_peer_token<M: Maps>(&self, maps: &M, limit: PeerLimit) -> bool;
    /// [`super::policy_flow::track_flow`].
    fn track_flow<M: Maps>(&self, maps: &M);
    /// [`super::service::parse_l4`].
    fn parse_l4(&self, v6: bool, at: u32) -> PackedL4Header;
}

/// Subprograms that only use the maps. A BPF program may return a cached result.
pub trait MapSubprograms: Maps {
    /// [`super::admission()`].
    fn admission(&self, key: &AdmissionKey) -> PackedAdmission;
    /// [`super::egress_route()`]. `hash` is any hash of the key.
    fn egress_route(&self, key: &EgressKey, hash: u32) -> PackedEgressRoute;
    /// [`super::mss::smallest_mtu`].
    fn smallest_mtu(&self, group: u32) -> u32;
    /// [`crate::nexthop_select::hrw_winner`].
    fn hrw_winner(&self, group: u32, hash: u32, alive: bool) -> u32;
    /// [`crate::nexthop_select::hrw_better`].
    fn hrw_better(&self, hash: u32, alive: bool, best: u32, slot: u32) -> u32;
    /// [`super::first_rule()`].
    fn first_rule(&self, query: &RuleQuery) -> PackedRule;
    /// [`crate::liveness::is_dead`].
    fn is_dead(&self, slot: u32, id: u32) -> bool;
}
