//! The rows of each section. Pure.

use std::net::IpAddr;

use mc_gateway_common::abi::{self, Addr, service};
use mc_gateway_common::liveness;
use serde_json::{Value, json};

use super::notation::{
    action_name, format_prefix, mac_text, neighbor_addr, role_names, secret_name, state_name,
};
use super::policies;
use super::render::Table;
use super::section::Section;
use super::services;
use super::snapshot::Snapshot;
use crate::aggregation::Aggregation;
use crate::cidr::from_abi_addr;
use crate::maps::{NextHopHealth, nexthop_slots};

pub(super) fn table(section: Section, snapshot: &Snapshot) -> Table {
    match section {
        Section::Maps => maps(snapshot),
        Section::Prefixes => prefixes(snapshot),
        Section::Groups => groups(snapshot),
        Section::NextHops => next_hops(snapshot),
        Section::Peers => peers(snapshot),
        Section::Services => services::services(snapshot),
        Section::Flows => services::flows(snapshot),
        Section::Policies => policies::policies(snapshot),
        Section::Rules => policies::rules(snapshot),
        Section::Config => config(snapshot),
        Section::Underlay => underlay(snapshot),
        Section::Counters => counters(snapshot),
    }
}

fn maps(snapshot: &Snapshot) -> Table {
    let flows = &snapshot.flows;
    let [of_flows, of_replies, of_fragments] = flows.capacities;
    let flow_tables = [
        (service::FLOWS, flows.flows.len(), of_flows),
        (service::REPLIES, flows.replies.len(), of_replies),
        (service::FRAGMENTS, flows.fragments.len(), of_fragments),
    ];
    let usage = snapshot.contents.usage().into_iter().chain(flow_tables);
    Table {
        name: "maps",
        columns: &["map", "entries", "capacity"],
        rows: usage
            .map(|(name, used, capacity)| vec![json!(name), json!(used), json!(capacity)])
            .collect(),
    }
}

fn prefixes(snapshot: &Snapshot) -> Table {
    let row = |(key, value): (_, &abi::Prefix)| {
        vec![
            json!(format_prefix(key)),
            json!(snapshot.names.cluster(value.cluster)),
            json!(action_name(value.action)),
            json!(snapshot.group_name(value.group)),
            json!(value.flags & abi::PREFIX_BACKENDS != 0),
            match value.identity {
                abi::IDENTITY_HOST => Value::Null,
                abi::IDENTITY_UNKNOWN => json!("unknown"),
                identity => json!(identity),
            },
        ]
    };
    Table {
        name: "prefixes",
        columns: &["prefix", "cluster", "action", "group", "service_pod", "identity"],
        rows: snapshot.contents.prefixes.iter().map(row).collect(),
    }
}

fn groups(snapshot: &Snapshot) -> Table {
    let contents = &snapshot.contents;
    let row = |(slot, group): (&u32, &abi::NextHopGroup)| {
        let next_hops = nexthop_slots(group).map(|slot| match contents.next_hops.get(&slot) {
            Some(next_hop) => json!(from_abi_addr(&next_hop.addr)),
            None => json!(format!("empty slot {slot}")),
        });
        let using = contents.prefixes.values().filter(|prefix| prefix.group == *slot);
        vec![
            json!(snapshot.names.group(group.id)),
            json!(slot),
            Value::Array(next_hops.collect()),
            json!(using.count()),
        ]
    };
    Table {
        name: "groups",
        columns: &["group", "slot", "nexthops", "prefixes"],
        rows: contents.groups.iter().map(row).collect(),
    }
}

fn next_hops(snapshot: &Snapshot) -> Table {
    let contents = &snapshot.contents;
    let row = |(slot, next_hop): (&u32, &abi::NextHop)| {
        let health = snapshot.health.get(slot).copied().unwrap_or_default();
        let state = health.state(next_hop, &contents.config);
        let probed = health.is_probed(next_hop);
        let group = contents
            .groups
            .iter()
            .find(|(_, group)| nexthop_slots(group).any(|other| other == *slot));
        vec![
            json!(from_abi_addr(&next_hop.addr)),
            json!(snapshot.names.next_hop(next_hop.id)),
            json!(group.map(|(_, group)| snapshot.names.group(group.id))),
            json!(state_name(state)),
            json!(probed.then(|| liveness::unanswered(health.sent, health.seen))),
            json!(rtt_us(&health)),
            json!(next_hop.mtu),
            json!(next_hop.weight),
            json!(from_abi_addr(&next_hop.local)),
            json!(neighbor_addr(&next_hop.neighbor)),
            json!(snapshot.link_address(next_hop).map(mac_text)),
            json!(next_hop.ifindex),
            json!(slot),
        ]
    };
    Table {
        name: "nexthops",
        columns: &[
            "address",
            "name",
            "group",
            "state",
            "unanswered",
            "rtt_us",
            "mtu",
            "weight",
            "local",
            "via",
            "mac",
            "ifindex",
            "slot",
        ],
        rows: contents.next_hops.iter().map(row).collect(),
    }
}

/// The last round-trip time in microseconds.
fn rtt_us(health: &NextHopHealth) -> Option<f64> {
    (health.seen.at != 0).then(|| f64::from(health.seen.rtt) / 1000.0)
}

fn peers(snapshot: &Snapshot) -> Table {
    let row = |(addr, peer): (&Addr, &abi::Peer)| {
        let addr = from_abi_addr(addr);
        // Those that share a slot have no numbers of their own.
        let traffic = snapshot
            .peer_counters
            .get(&peer.stats)
            .filter(|_| peer.stats != 0);
        vec![
            json!(addr),
            json!(snapshot.names.peer(addr)),
            json!(snapshot.names.cluster(peer.cluster)),
            json!(role_names(peer.flags)),
            json!(secret_name(peer)),
            json!(peer_group(snapshot, peer)),
            json!(traffic.map(|traffic| traffic.sent_packets)),
            json!(traffic.map(|traffic| traffic.sent_bytes)),
            json!(traffic.map(|traffic| traffic.received_packets)),
            json!(traffic.map(|traffic| traffic.received_bytes)),
        ]
    };
    Table {
        name: "peers",
        columns: &[
            "address",
            "name",
            "cluster",
            "roles",
            "secret",
            "group",
            "sent_packets",
            "sent_bytes",
            "received_packets",
            "received_bytes",
        ],
        rows: snapshot.contents.peers.iter().map(row).collect(),
    }
}

fn peer_group(snapshot: &Snapshot, peer: &abi::Peer) -> String {
    if peer.flags & abi::PEER_ANTREA == 0 {
        snapshot.group_name(peer.group)
    } else {
        format!("alias {}", from_abi_addr(&peer.alias().bytes()))
    }
}

fn config(snapshot: &Snapshot) -> Table {
    let config = &snapshot.contents.config;
    let flag = |bit: u32| config.flags & bit != 0;
    let mac = mac_text(config.mc0_mac);
    let local: Vec<IpAddr> = config
        .local
        .iter()
        .filter(|addr| **addr != Addr::default())
        .map(from_abi_addr)
        .collect();
    let programs = snapshot
        .links
        .iter()
        .map(|(program, device)| format!("{} on {device}", program.name()));
    let filters = snapshot.filters.iter().map(|filter| {
        let name = filter.program.name();
        format!(
            "{name} on {} (clsact, priority {})",
            filter.device, filter.priority
        )
    });
    let programs: Vec<String> = programs.chain(filters).collect();
    let dscp = if flag(abi::CONFIG_DSCP_FIXED) {
        json!(config.tos >> 2)
    } else {
        json!("inherit")
    };
    let row = |setting: &str, value: Value| vec![json!(setting), value];
    Table {
        name: "config",
        columns: &["setting", "value"],
        rows: vec![
            row("node", json!(snapshot.names.node)),
            row("pins", json!(snapshot.dir)),
            row("layout version", json!(config.abi)),
            row("gateway", json!(flag(abi::CONFIG_GATEWAY))),
            row("Pods of Services", json!(flag(abi::CONFIG_BACKENDS))),
            row(
                "format",
                json!(if flag(abi::CONFIG_VXLAN) {
                    "vxlan"
                } else {
                    "geneve"
                }),
            ),
            row("port", json!(config.port)),
            row("outer UDP checksum", json!(flag(abi::CONFIG_UDP_CHECKSUM))),
            row("DSCP", dscp),
            row("local addresses", json!(local)),
            row("mc0 ifindex", json!(config.mc0_ifindex)),
            row("mc0 MAC", json!(mac)),
            row("unanswered probes allowed", json!(config.detect)),
            row("hold-down ms", json!(config.hold_down_ms)),
            row("programs", json!(programs)),
        ],
    }
}

fn underlay(snapshot: &Snapshot) -> Table {
    let row = |(device, aggregation): (&String, &Aggregation)| {
        vec![
            json!(device),
            json!(aggregation.is_active()),
            json!(aggregation.gro),
            json!(aggregation.sockets),
            json!(aggregation.to_string()),
            json!(if snapshot.transit_devices.contains(device) {
                "xdp"
            } else {
                "tc"
            }),
        ]
    };
    Table {
        name: "underlay",
        columns: &["device", "aggregation", "gro", "sockets", "reason", "transit"],
        rows: snapshot.aggregation.iter().map(row).collect(),
    }
}

fn counters(snapshot: &Snapshot) -> Table {
    let counters = &snapshot.counters;
    let outcomes = counters.outcomes.iter().map(|(outcome, counter)| {
        vec![
            json!("outcome"),
            json!(outcome.name()),
            json!(counter.packets),
            json!(counter.bytes),
            json!(counter.gso),
        ]
    });
    let plain = |kind: &str, name: &str, packets: u64| {
        vec![json!(kind), json!(name), json!(packets), json!(null), json!(null)]
    };
    let drops = counters.drops.iter().filter(|(_, packets)| *packets != 0);
    let events = counters.events.iter().filter(|(_, packets)| *packets != 0);
    Table {
        name: "counters",
        columns: &["kind", "name", "packets", "bytes", "super_packets"],
        rows: outcomes
            .chain(drops.map(|(reason, packets)| plain("drop", reason.name(), *packets)))
            .chain(events.map(|(event, packets)| plain("event", event.name(), *packets)))
            .collect(),
    }
}
