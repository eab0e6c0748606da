//! Explanation of every decision on a packet, from the entries of the maps. Pure.
//!
//! The lines follow [`mc_gateway_common::pipeline`] step by step. The verdict is always computed by the pipeline
//! itself, so a wrong line cannot contradict the result.

use std::net::IpAddr;

use mc_gateway_common::abi::service::{
    BACKEND_READY, SERVICE_AFFINITY, SERVICE_IDENTITY_LOST, SERVICE_STACK, SERVICE_TIMEOUT_SHIFT, ServiceKey,
};
use mc_gateway_common::abi::{self, Addr, CLUSTER_LOCAL, MacMatch, Prefix, SourceMac};
use mc_gateway_common::liveness::State;
use mc_gateway_common::nexthop_select;
use mc_gateway_common::packet::Address;
use mc_gateway_common::packet::encap::source_port;
use mc_gateway_common::packet::eth;
use mc_gateway_common::pipeline;
use mc_gateway_common::rendezvous::{Candidate, hrw_better};
use mc_gateway_common::verdict::DropReason;

use super::packet::TraceFlow;
use crate::cidr::{from_abi_addr, to_abi_addr};
use crate::inspect::backend_location;
use crate::inspect::notation::{action_name, format_endpoint, format_prefix, role_names, state_name};
use crate::inspect::snapshot::Snapshot;
use crate::maps::nexthop_slots;
use crate::resolved::PrefixKey;

/// Whether programs forward packets to this address to another cluster.
pub(super) fn is_forwarded(snapshot: &Snapshot, dst: IpAddr) -> bool {
    let found = longest_match(snapshot, &to_abi_addr(dst));
    found.is_some_and(|(_, dst)| dst.action == abi::ACTION_FORWARD && dst.cluster != CLUSTER_LOCAL)
}

/// The rule of a network policy that decides, or would decide if it were not audited.
pub(super) fn rule(snapshot: &Snapshot, id: u32) -> String {
    match snapshot.names.rules.get(&id) {
        Some(name) if name.is_audited() => {
            format!("{} {} would decide: {}", name.policy, name.rule, name.action)
        }
        Some(name) => format!("{} {} decides: {}", name.policy, name.rule, name.action),
        None => format!("the rule {id:#010x} of a policy decides"),
    }
}

/// Decisions on a packet that leaves through `mc0`.
pub(super) fn to_remote(snapshot: &Snapshot, flow: &TraceFlow) -> Vec<String> {
    let mut lines = Vec::new();
    let Some((_, dst)) = lookup_prefix(snapshot, "destination", flow.dst, &mut lines) else {
        return lines;
    };
    let back = dst.flags & abi::PREFIX_RETURN_ROUTE != 0;
    if dst.action != abi::ACTION_FORWARD || (dst.cluster == CLUSTER_LOCAL && !back) {
        lines.push("the destination belongs to this cluster: to_remote does not forward it".to_owned());
        return lines;
    }
    let src = lookup_prefix(snapshot, "source", flow.src, &mut lines);
    if !src.is_some_and(|(_, src)| pipeline::may_send(src, dst)) {
        lines.push(
            "the source is no address of this node: to_remote drops the packet unless it belongs to a flow to a \
             Service"
                .to_owned(),
        );
    }
    rank_next_hops(snapshot, dst.group, flow.hash(), &mut lines);
    describe_alias(dst, &mut lines);
    let config = &snapshot.contents.config;
    let format = if config.flags & abi::CONFIG_VXLAN == 0 {
        "Geneve"
    } else {
        "VXLAN"
    };
    lines.push(format!(
        "encapsulated in {format}, UDP {} -> {}",
        source_port(flow.hash()),
        config.port
    ));
    lines
}

/// Decisions on a packet that arrives from `peer`.
pub(super) fn from_underlay(snapshot: &Snapshot, flow: &TraceFlow, peer: IpAddr) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(entry) = snapshot.contents.peers.get(&to_abi_addr(peer)) else {
        lines.push(format!("outer source {peer} is no peer"));
        return lines;
    };
    lines.push(format!(
        "outer source {peer} is {}: {}, cluster {}",
        or_default(snapshot.names.peer(peer), "a peer"),
        role_names(entry.flags).join(" and "),
        snapshot.names.cluster(entry.cluster),
    ));
    let mut from = flow.src;
    if entry.flags & abi::PEER_ANTREA != 0 && flow.src == peer {
        from = from_abi_addr(&entry.alias().bytes());
        lines.push(format!(
            "inner source {peer} is the Antrea gateway itself: its alias {from} replaces it"
        ));
    }
    let src = lookup_prefix(snapshot, "inner source", from, &mut lines);
    let dst = lookup_prefix(snapshot, "inner destination", flow.dst, &mut lines);
    let (Some(_), Some((_, dst))) = (src, dst) else {
        return lines;
    };
    match dst.action {
        abi::ACTION_FORWARD if dst.flags & abi::PREFIX_HOST_SNAT != 0 => lines.push(
            "decapsulated and delivered to this node's stack on mc0, which replaces the source by this gateway's gatewayIP: an Antrea gateway replies to no other source".to_owned(),
        ),
        abi::ACTION_REPLY => lines.push(
            "decapsulated and delivered to this node's stack on mc0, which tracks the connection".to_owned(),
        ),
        abi::ACTION_FORWARD => {
            let hash = nexthop_select::mix(
                u32::from(source_port(flow.hash())),
                Address::from(to_abi_addr(flow.dst)).fold(),
            );
            rank_next_hops(snapshot, dst.group, hash, &mut lines);
            describe_alias(dst, &mut lines);
            lines.push("forwarded: only the outer header changes".to_owned());
        }
        abi::ACTION_DELIVER => lines.push("decapsulated and delivered to this node's stack on mc0".to_owned()),
        abi::ACTION_SERVICE => describe_service(snapshot, flow, entry.flags, &mut lines),
        _ => {}
    }
    lines
}

/// Rewriting of an alias destination.
fn describe_alias(dst: &Prefix, lines: &mut Vec<String>) {
    if dst.flags & abi::PREFIX_ALIAS != 0 {
        lines.push(
            "the destination is the alias of an Antrea gateway: the address of the gateway replaces it"
                .to_owned(),
        );
    }
}

/// Decisions on a packet to a Service of this cluster.
fn describe_service(snapshot: &Snapshot, flow: &TraceFlow, peer: u32, lines: &mut Vec<String>) {
    let exposure = snapshot.contents.config.flags;
    let not_exported = if exposure & abi::CONFIG_IDENTITY_LOST != 0 {
        "all Services are exposed, but the service proxy would hide the sender from policies: new flows are dropped \
         (identity-lost)"
    } else if exposure & abi::CONFIG_ALL_SERVICES != 0 {
        "all Services are exposed: delivered to this node's stack on mc0"
    } else {
        "only exported Services are reachable: dropped (not-exported)"
    };
    let Some((proto, port)) = flow.proto_and_port() else {
        lines.push(format!("the packet has no port; {not_exported}"));
        return;
    };
    if peer & abi::PEER_REMOTE_GATEWAY == 0 {
        lines.push(match flow.backend(snapshot) {
            Some((_, backend)) => format!(
                "translated to the Pod {}, a backend of the Service on this node",
                format_endpoint(&backend.pod, backend.pod_port)
            ),
            None => "no Pod of this node is a backend of this Service and port".to_owned(),
        });
        return;
    }
    let maps = &snapshot.contents.services;
    let key = ServiceKey {
        addr: to_abi_addr(flow.dst),
        port,
        proto,
        generation: 0,
    };
    let Some(service) = maps.services.get(&key) else {
        lines.push(format!(
            "no exported Service has this address and port; {not_exported}"
        ));
        return;
    };
    if service.flags & SERVICE_IDENTITY_LOST != 0 {
        let text = "the destination is an exported Service that is left to the service proxy, which would hide the \
                    sender from the policies for its Pods: new flows are dropped (identity-lost)";
        lines.push(text.to_owned());
        return;
    }
    if service.flags & SERVICE_STACK != 0 {
        let text = "the destination is an exported Service without backends in the maps: delivered to this node's \
                    stack on mc0, for the service proxy";
        lines.push(text.to_owned());
        return;
    }
    let affinity = match (
        service.flags & SERVICE_AFFINITY,
        service.flags >> SERVICE_TIMEOUT_SHIFT,
    ) {
        (0, _) => String::new(),
        (_, 0) => ", with session affinity".to_owned(),
        (_, seconds) => format!(", with session affinity for {seconds} s"),
    };
    lines.push(format!(
        "the destination is an exported Service with {} Pods in its lookup table{affinity}:",
        service.backends
    ));
    for backend in maps.backends.values() {
        if (backend.service, backend.service_port, backend.proto) == (key.addr, key.port, key.proto) {
            lines.push(format!(
                "  {} on {}{}",
                format_endpoint(&backend.pod, backend.pod_port),
                backend_location(snapshot, backend),
                if backend.flags & BACKEND_READY == 0 {
                    ", not ready: only existing connections"
                } else {
                    ""
                }
            ));
        }
    }
}

/// The Pod that a gateway has selected, by its ID in the inner source MAC address.
pub(super) fn chosen_backend(snapshot: &Snapshot, bytes: &[u8], inner_at: usize) -> Option<String> {
    let at = inner_at.checked_sub(8)?;
    let mac = SourceMac::from_bits(eth::mac_to_u64(*bytes.get(at..)?.first_chunk()?));
    let contents = &snapshot.contents;
    let selected = |next_hop: &abi::NextHop| match mac.compare(SourceMac::from_bits(next_hop.source_mac)) {
        MacMatch::Backend(id) => contents.services.backends.get(&id),
        MacMatch::Equal | MacMatch::Different => None,
    };
    let backend = contents.next_hops.values().find_map(selected)?;
    let pod = format_endpoint(&backend.pod, backend.pod_port);
    Some(format!(
        "chosen: the Pod {pod} on {}",
        backend_location(snapshot, backend)
    ))
}

fn or_default(text: String, other: &str) -> String {
    if text.is_empty() { other.to_owned() } else { text }
}

/// Longest prefix of an address, with a line about it.
fn lookup_prefix<'s>(
    snapshot: &'s Snapshot,
    field: &str,
    addr: IpAddr,
    lines: &mut Vec<String>,
) -> Option<(&'s PrefixKey, &'s Prefix)> {
    let found = longest_match(snapshot, &to_abi_addr(addr));
    lines.push(match found {
        None => format!("{field} {addr} is in no prefix"),
        Some((key, value)) => {
            let group = match snapshot.group_name(value.group) {
                name if name.is_empty() => name,
                name => format!(", group {name}"),
            };
            format!(
                "{field} {addr} is in {}: cluster {}, {}{group}",
                format_prefix(key),
                snapshot.names.cluster(value.cluster),
                action_name(value.action),
            )
        }
    });
    found
}

/// The longest prefix with an address.
fn longest_match<'s>(snapshot: &'s Snapshot, addr: &Addr) -> Option<(&'s PrefixKey, &'s Prefix)> {
    let addr = u128::from_be_bytes(*addr);
    // Ordered by length first.
    snapshot.contents.prefixes.iter().rev().find(|(key, _)| {
        let mask = u128::MAX
            .checked_shl(128_u32.saturating_sub(key.len))
            .unwrap_or(0);
        (addr ^ u128::from_be_bytes(key.addr)) & mask == 0
    })
}

/// The next hops of a group in a flow's order of preference.
fn rank_next_hops(snapshot: &Snapshot, group: u32, hash: u32, lines: &mut Vec<String>) {
    let contents = &snapshot.contents;
    let Some(group) = contents.groups.get(&group) else {
        lines.push("the map of groups has no such group".to_owned());
        return;
    };
    let mut left: Vec<(u32, &abi::NextHop)> = nexthop_slots(group)
        .filter_map(|slot| Some((slot, contents.next_hops.get(&slot)?)))
        .filter(|(_, next_hop)| next_hop.ifindex != 0)
        .collect();
    lines.push(format!(
        "group {} has {} next hops; order of preference of this flow (hash {hash:#010x}):",
        snapshot.names.group(group.id),
        left.len()
    ));
    let mut place: usize = 0;
    let mut chosen = false;
    while let Some(best) = hrw_winner(&left, hash) {
        let (slot, next_hop) = left.remove(best);
        place = place.saturating_add(1);
        let health = snapshot.health.get(&slot).copied().unwrap_or_default();
        let state = health.state(next_hop, &contents.config);
        let usable = !matches!(state, Some(State::Dead | State::HeldDown));
        let mark = if usable && !chosen { " <- chosen" } else { "" };
        chosen |= usable;
        lines.push(format!(
            "  {place}. {} ({}), {}, weight {}, MTU {}{mark}",
            from_abi_addr(&next_hop.addr),
            snapshot.names.next_hop(next_hop.id),
            state_name(state),
            next_hop.weight,
            next_hop.mtu,
        ));
    }
    if place > 0 && !chosen {
        lines.push("  none is usable: the first is used".to_owned());
    }
}

/// Place of the next hop a flow prefers.
fn hrw_winner(next_hops: &[(u32, &abi::NextHop)], hash: u32) -> Option<usize> {
    let mut best: Option<(usize, Candidate)> = None;
    for (place, (_, next_hop)) in next_hops.iter().enumerate() {
        let candidate = Candidate {
            hash: nexthop_select::mix(hash, next_hop.id),
            weight: next_hop.weight,
        };
        if best.is_none_or(|(_, other)| hrw_better(candidate, other)) {
            best = Some((place, candidate));
        }
    }
    best.map(|(place, _)| place)
}

/// Advice for a drop reason.
pub(super) const fn advice(reason: DropReason) -> &'static str {
    match reason {
        DropReason::NotConfigured => {
            "the agent has not written the configuration yet, or has another version: see its log"
        }
        DropReason::NoRoute => {
            "no ClusterInfoImport (or own Node or Service CIDR) covers the destination, or this sender may not reach it: see `inspect prefixes` and the log for rejected fields"
        }
        DropReason::NoNextHop => {
            "the cluster has no usable gateway: see `inspect groups` and the log for rejected gateway addresses"
        }
        DropReason::UnknownPeer => {
            "no Gateway, Node or ClusterInfoImport names the outer source: see `inspect peers`; a NAT between the clusters changes it"
        }
        DropReason::InnerSource => {
            "the sender does not own the inner source: see `inspect prefixes`; a forged or routed packet, masquerading on the sending node, host-network clients, and an Antrea gateway that is missing in --antrea-clusters cause it"
        }
        DropReason::TtlExceeded => "a forwarding loop: two clusters announce each other's prefixes",
        DropReason::OuterFamily => "gateways must reach each other in the same IP version on every leg",
        DropReason::UnknownBackend => {
            "a gateway of this cluster selected no Pod, or one that this node does not have: harmless while endpoints change; otherwise compare `inspect services` on both nodes"
        }
        DropReason::ForeignBackend => {
            "a gateway selected a Pod that is no backend of this Service and port: compare `inspect services` on both nodes"
        }
        _ => "see the drop reasons in docs/metrics.md",
    }
}
