//! Every metric of the agent. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::time::UNIX_EPOCH;

use mc_gateway_common::abi::liveness::{ProbeRtt, RTT_BUCKETS, RTT_FIRST_BUCKET};
use mc_gateway_common::abi::policy::RuleCounter;
use mc_gateway_common::abi::sample::SampleLimiter;
use mc_gateway_common::abi::{self, PeerStats};
use mc_gateway_common::liveness;
use mc_metrics::scrape::{Kind, Scrape};

use super::state::{NextHopLabels, State};
use crate::cidr::from_abi_addr;
use crate::maps::{Counters, NextHopHealth};
use crate::transit::Transit;

/// Counters outside of the main loop.
#[derive(Debug, Default)]
pub(super) struct KernelCounters {
    /// By the programs.
    pub(super) counters: Counters,
    /// Of next hops, by slot.
    pub(super) health: BTreeMap<u32, NextHopHealth>,
    /// Of peers, by slot.
    pub(super) peer_counters: BTreeMap<u32, PeerStats>,
    /// Of rules of network policies, by ID.
    pub(super) rule_counters: BTreeMap<u32, RuleCounter>,
    /// Of sampled drops, by CPU.
    pub(super) sample_limiters: Vec<SampleLimiter>,
    /// By the kernel's connection tracking.
    pub(super) conntrack: BTreeMap<&'static str, u64>,
    /// Packets dropped by the nftables tables.
    pub(super) nftables: BTreeMap<&'static str, u64>,
}

pub(super) fn render(state: &State, counted: &KernelCounters) -> Result<String, fmt::Error> {
    let mut scrape = Scrape::default();
    data_path(&mut scrape, &counted.counters);
    samples(&mut scrape, state, &counted.sample_limiters);
    conntrack(&mut scrape, &counted.conntrack);
    nftables(&mut scrape, &counted.nftables);
    next_hops(&mut scrape, state, &counted.health);
    peers(&mut scrape, state, &counted.peer_counters);
    rules(&mut scrape, state, &counted.rule_counters);
    underlay(&mut scrape, state);
    map_usage(&mut scrape, state);
    agent(&mut scrape, state);
    scrape.encode()
}

/// Name, HELP text and field of a counter.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

/// One family for each field, with the same series: labels and counter.
fn counters<T, const N: usize>(
    scrape: &mut Scrape,
    families: &[Family<T>],
    series: &[([(&'static str, &str); N], T)],
) {
    for &(name, help, value) in families {
        scrape.family(name, Kind::Counter, help);
        for (labels, counter) in series {
            scrape.value(labels, value(counter));
        }
    }
}

fn data_path(scrape: &mut Scrape, counted: &Counters) {
    let families: [Family<abi::Counter>; 3] = [
        (
            "mcgateway_packets_total",
            "Packets by outcome; a super-packet counts once.",
            |counter| counter.packets,
        ),
        (
            "mcgateway_bytes_total",
            "Bytes of these packets with the link-layer header, as received by the program.",
            |counter| counter.bytes,
        ),
        (
            "mcgateway_gso_packets_total",
            "Segmentation-offload super-packets among these packets.",
            |counter| counter.gso,
        ),
    ];
    let series = counted.outcomes.iter();
    let series: Vec<_> = series
        .map(|(outcome, counter)| ([("outcome", outcome.name())], *counter))
        .collect();
    counters(scrape, &families, &series);
    scrape.family(
        "mcgateway_drops_total",
        Kind::Counter,
        "Packets dropped, by reason; docs/metrics.md has advice for each.",
    );
    for (reason, packets) in &counted.drops {
        scrape.value(&[("reason", reason.name())], packets);
    }
    scrape.family(
        "mcgateway_events_total",
        Kind::Counter,
        "Events of packets that were forwarded.",
    );
    for (event, packets) in &counted.events {
        scrape.value(&[("event", event.name())], packets);
    }
}

fn samples(scrape: &mut Scrape, state: &State, gates: &[SampleLimiter]) {
    let sum = |field: fn(&SampleLimiter) -> u64| {
        gates
            .iter()
            .map(field)
            .fold(0, |sum: u64, value| sum.wrapping_add(value))
    };
    scrape.family(
        "mcgateway_drop_samples_total",
        Kind::Counter,
        "Samples of dropped packets: read, suppressed by the rate limit, or lost in a full ring.",
    );
    scrape.value(&[("result", "read")], state.samples_read);
    scrape.value(&[("result", "limited")], sum(|gate| gate.suppressed));
    scrape.value(&[("result", "lost")], sum(|gate| gate.lost));
}

fn conntrack(scrape: &mut Scrape, losses: &BTreeMap<&str, u64>) {
    scrape.family(
        "mcgateway_conntrack_errors_total",
        Kind::Counter,
        "Errors of this node's connection tracking, for any traffic.",
    );
    for (kind, count) in losses {
        scrape.value(&[("kind", kind)], count);
    }
}

fn nftables(scrape: &mut Scrape, drops: &BTreeMap<&str, u64>) {
    scrape.family(
        "mcgateway_nftables_drops_total",
        Kind::Counter,
        "Packets dropped by the agent's nftables tables since they were last written, by reason.",
    );
    for (reason, packets) in drops {
        scrape.value(&[("reason", reason)], packets);
    }
}

fn next_hops(scrape: &mut Scrape, state: &State, health: &BTreeMap<u32, NextHopHealth>) {
    let mut family = |name, kind, help, value: &dyn Fn(&NextHopLabels, &NextHopHealth) -> u64| {
        scrape.family(name, kind, help);
        for next_hop in &state.next_hops {
            let health = health.get(&next_hop.slot).copied().unwrap_or_default();
            let addr = from_abi_addr(&next_hop.next_hop.addr).to_string();
            scrape.value(&labels(next_hop, &addr), value(next_hop, &health));
        }
    };
    family(
        "mcgateway_nexthop_usable",
        Kind::Gauge,
        "1 while the next hop is alive or not probed, 0 while it is dead or held down.",
        &|next_hop, health| u64::from(usable(next_hop, health, state.detect)),
    );
    family(
        "mcgateway_nexthop_probed",
        Kind::Gauge,
        "1 if the next hop is probed.",
        &|next_hop, health| u64::from(state.detect != 0 && health.is_probed(&next_hop.next_hop)),
    );
    family(
        "mcgateway_nexthop_unanswered_probes",
        Kind::Gauge,
        "Probes sent since the last one that was answered.",
        &|_, health| u64::from(liveness::unanswered(health.sent, health.seen)),
    );
    family(
        "mcgateway_nexthop_probes_total",
        Kind::Counter,
        "Number of the last probe; wraps at 2^32.",
        &|_, health| u64::from(health.sent.sequence),
    );
    family(
        "mcgateway_nexthop_mtu_bytes",
        Kind::Gauge,
        "Largest inner IP packet of the path to the next hop.",
        &|next_hop, _| u64::from(next_hop.next_hop.mtu),
    );
    family(
        "mcgateway_nexthop_weight",
        Kind::Gauge,
        "Relative share of flows; 0 drains.",
        &|next_hop, _| u64::from(next_hop.next_hop.weight),
    );
    scrape.single(
        "mcgateway_probe_interval_seconds",
        Kind::Gauge,
        "Time between two probes to each next hop that answers; it grows with the number of next hops.",
        state.probe_interval.as_secs_f64(),
    );
    scrape.family(
        "mcgateway_nexthop_rtt_seconds",
        Kind::Histogram,
        "Round-trip time of probes.",
    );
    for next_hop in &state.next_hops {
        let rtt = health
            .get(&next_hop.slot)
            .map(|health| health.rtt)
            .unwrap_or_default();
        let addr = from_abi_addr(&next_hop.next_hop.addr).to_string();
        scrape.buckets(&labels(next_hop, &addr), rtt_buckets(&rtt), seconds(rtt.sum));
    }
}

fn rules(scrape: &mut Scrape, state: &State, counted: &BTreeMap<u32, RuleCounter>) {
    let families: [Family<RuleCounter>; 2] = [
        (
            "mcgateway_policy_rule_packets_total",
            "Packets on which the rule of a network policy decided: those that open a connection or flow, and all that \
             it drops; a super-packet counts once.",
            |counter| counter.packets,
        ),
        (
            "mcgateway_policy_rule_bytes_total",
            "Bytes of these packets with the link-layer header.",
            |counter| counter.bytes,
        ),
    ];
    // Counters of a removed rule have no name until the agent removes them.
    let series = counted.iter().filter_map(|(id, counter)| {
        let rule = state.names.rules.get(id)?;
        let labels = [
            ("policy", &*rule.policy),
            ("rule", &rule.rule),
            ("action", &rule.action),
        ];
        Some((labels, *counter))
    });
    counters(scrape, &families, &series.collect::<Vec<_>>());
}

fn peers(scrape: &mut Scrape, state: &State, traffic: &BTreeMap<u32, PeerStats>) {
    let families: [Family<PeerStats>; 4] = [
        (
            "mcgateway_peer_sent_packets_total",
            "Packets sent to the peer, without probes and ICMP errors of the programs; a super-packet counts once.",
            |traffic| traffic.sent_packets,
        ),
        (
            "mcgateway_peer_sent_bytes_total",
            "Bytes of these packets as frames on the underlay.",
            |traffic| traffic.sent_bytes,
        ),
        (
            "mcgateway_peer_received_packets_total",
            "Packets of the peer that pass admission, without probes; a super-packet counts once.",
            |traffic| traffic.received_packets,
        ),
        (
            "mcgateway_peer_received_bytes_total",
            "Bytes of these packets as frames on the underlay.",
            |traffic| traffic.received_bytes,
        ),
    ];
    // Those without a slot of their own are one series, or their sum would count each packet for all.
    let mut shared = false;
    let own = state
        .peers
        .iter()
        .filter(|peer| peer.slot != 0 || !std::mem::replace(&mut shared, true));
    let named: Vec<_> = own
        .map(|peer| {
            let counted = traffic.get(&peer.slot).copied().unwrap_or_default();
            if peer.slot == 0 {
                ("others", String::new(), counted)
            } else {
                (peer.name.as_str(), peer.addr.to_string(), counted)
            }
        })
        .collect();
    let series = named.iter();
    let series: Vec<_> = series
        .map(|(name, addr, counted)| ([("peer", *name), ("address", addr.as_str())], *counted))
        .collect();
    counters(scrape, &families, &series);
}

fn usable(next_hop: &NextHopLabels, health: &NextHopHealth, detect: u32) -> bool {
    let config = abi::Config {
        detect,
        ..abi::Config::default()
    };
    !matches!(
        health.state(&next_hop.next_hop, &config),
        Some(liveness::State::Dead | liveness::State::HeldDown)
    )
}

fn labels<'a>(next_hop: &'a NextHopLabels, addr: &'a str) -> [(&'static str, &'a str); 3] {
    [
        ("group", &next_hop.group),
        ("nexthop", &next_hop.name),
        ("address", addr),
    ]
}

/// Each bucket with its upper bound, which doubles from bucket to bucket; the last one has none.
fn rtt_buckets(rtt: &ProbeRtt) -> impl Iterator<Item = (f64, u64)> {
    let finite = RTT_BUCKETS.saturating_sub(1);
    let bounds = std::iter::successors(Some(u64::from(RTT_FIRST_BUCKET)), |bound| bound.checked_mul(2));
    let bounds = bounds.take(finite).map(seconds).chain([f64::INFINITY]);
    bounds.zip(rtt.buckets)
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 104 days")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn underlay(scrape: &mut Scrape, state: &State) {
    scrape.family(
        "mcgateway_underlay_aggregation",
        Kind::Gauge,
        "1 if the kernel joins tunnel packets from an underlay device to super-packets.",
    );
    for (device, aggregation) in &state.aggregation {
        scrape.value(&[("device", device)], u64::from(aggregation.is_active()));
    }
    scrape.family(
        "mcgateway_underlay_xdp",
        Kind::Gauge,
        "1 if the XDP program of a gateway forwards frequent packets from an underlay device.",
    );
    for (device, transit) in &state.transit {
        scrape.value(&[("device", device)], u64::from(*transit == Transit::Xdp));
    }
}

fn map_usage(scrape: &mut Scrape, state: &State) {
    scrape.family("mcgateway_map_entries", Kind::Gauge, "Entries of each map.");
    for (table, entries, _) in &state.map_usage {
        scrape.value(&[("map", table)], entries);
    }
    scrape.family(
        "mcgateway_map_capacity_entries",
        Kind::Gauge,
        "Capacity of each map.",
    );
    for (table, _, capacity) in &state.map_usage {
        scrape.value(&[("map", table)], capacity);
    }
}

fn agent(scrape: &mut Scrape, state: &State) {
    scrape.family(
        "mcgateway_reconciles_total",
        Kind::Counter,
        "Reconciles of objects and data path.",
    );
    scrape.value(&[("result", "success")], state.succeeded);
    scrape.value(&[("result", "error")], state.failed);
    scrape.family(
        "mcgateway_reconcile_duration_seconds",
        Kind::Histogram,
        "Duration of reconciles.",
    );
    scrape.histogram(&[], &state.durations);
    let last = state
        .last_success
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    scrape.single(
        "mcgateway_last_successful_reconcile_timestamp_seconds",
        Kind::Gauge,
        "Unix time of the last successful reconcile, 0 for never.",
        last.map_or(0.0, |since| since.as_secs_f64()),
    );
    scrape.family(
        "mcgateway_invalid_fields",
        Kind::Gauge,
        "Unusable fields of objects, by kind of object; the log names each.",
    );
    for (kind, count) in &state.invalid_fields {
        scrape.value(&[("kind", kind)], count);
    }
    scrape.single(
        "mcgateway_ready",
        Kind::Gauge,
        "1 while /readyz succeeds.",
        state.ready().is_ok(),
    );
    scrape.single(
        "mcgateway_gateway",
        Kind::Gauge,
        "1 if this node is a gateway.",
        state.gateway,
    );
    scrape.family("mcgateway_build_info", Kind::Gauge, "Version of the agent.");
    scrape.value(&[("version", env!("CARGO_PKG_VERSION"))], true);
    scrape.single(
        "mcgateway_abi_version",
        Kind::Gauge,
        "Version of the map layouts.",
        abi::ABI_VERSION,
    );
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use mc_gateway_common::abi::liveness::{ProbeReply, ProbeSent};
    use mc_gateway_common::verdict::{DropReason, Outcome};

    use super::*;
    use crate::desired::rule_names::RuleName;
    use crate::metrics::state::PeerLabels;

    #[test]
    fn next_hops_are_labelled_with_group_name_and_address() {
        let mut state = State::new(Instant::now(), false);
        state.detect = 3;
        state.next_hops.push(NextHopLabels {
            slot: 4,
            next_hop: abi::NextHop {
                id: 9,
                mtu: 1450,
                addr: mc_gateway_common::packet::ip::mapped([192, 0, 2, 1]),
                ..abi::NextHop::default()
            },
            group: "gateways".into(),
            name: "Gateway gw".into(),
        });
        let mut rtt = ProbeRtt {
            sum: 40_000,
            ..ProbeRtt::default()
        };
        rtt.buckets[1] = 1;
        let health = NextHopHealth {
            sent: ProbeSent { id: 9, sequence: 10 },
            seen: ProbeReply {
                id: 9,
                sequence: 6,
                ..ProbeReply::default()
            },
            rtt,
        };
        let counters = Counters {
            outcomes: vec![(Outcome::Encap, abi::Counter::default())],
            drops: vec![(DropReason::NoRoute, 2)],
            events: Vec::new(),
        };
        let counted = KernelCounters {
            counters,
            health: [(4, health)].into(),
            conntrack: [("insert_failed", 3)].into(),
            nftables: [("tunnel-guard", 4)].into(),
            ..KernelCounters::default()
        };
        let text = render(&state, &counted).unwrap();
        let labels = "group=\"gateways\",nexthop=\"Gateway gw\",address=\"192.0.2.1\"";
        for line in [
            format!("mcgateway_nexthop_usable{{{labels}}} 0"),
            format!("mcgateway_nexthop_unanswered_probes{{{labels}}} 4"),
            format!("mcgateway_nexthop_mtu_bytes{{{labels}}} 1450"),
            format!("mcgateway_nexthop_rtt_seconds_bucket{{le=\"0.000032768\",{labels}}} 0"),
            format!("mcgateway_nexthop_rtt_seconds_bucket{{le=\"0.000065536\",{labels}}} 1"),
            format!("mcgateway_nexthop_rtt_seconds_sum{{{labels}}} 0.00004"),
            "mcgateway_drops_total{reason=\"no-route\"} 2".to_owned(),
            "mcgateway_packets_total{outcome=\"encap\"} 0".to_owned(),
            "mcgateway_conntrack_errors_total{kind=\"insert_failed\"} 3".to_owned(),
            "mcgateway_nftables_drops_total{reason=\"tunnel-guard\"} 4".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn rules_have_series_by_policy_rule_and_action() {
        let mut state = State::new(Instant::now(), false);
        let name = RuleName {
            policy: "NetworkPolicy shop/web".into(),
            rule: "spec.ingress[1]".into(),
            action: "Drop".into(),
        };
        Arc::make_mut(&mut state.names).rules = [(7, name)].into();
        let of_rule = |packets| RuleCounter {
            packets,
            bytes: packets * 74,
        };
        let counted = KernelCounters {
            rule_counters: [(7, of_rule(3)), (8, of_rule(9))].into(),
            ..KernelCounters::default()
        };
        let text = render(&state, &counted).unwrap();
        let lines: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("mcgateway_policy_rule"))
            .collect();
        let labels = "{policy=\"NetworkPolicy shop/web\",rule=\"spec.ingress[1]\",action=\"Drop\"}";
        let expected = [
            format!("mcgateway_policy_rule_packets_total{labels} 3"),
            format!("mcgateway_policy_rule_bytes_total{labels} 222"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn peers_without_counters_of_their_own_are_one_series() {
        let mut state = State::new(Instant::now(), false);
        let peer = |slot, last, name: &str| PeerLabels {
            slot,
            addr: [192, 0, 2, last].into(),
            name: name.into(),
        };
        state.peers = vec![
            peer(0, 1, "Node a"),
            peer(7, 2, "Gateway gw"),
            peer(0, 3, "Node c"),
        ];
        let traffic = |packets| PeerStats {
            sent_packets: packets,
            sent_bytes: packets * 100,
            received_packets: packets + 1,
            received_bytes: packets * 200,
        };
        let counted = KernelCounters {
            peer_counters: [(0, traffic(5)), (7, traffic(9))].into(),
            ..KernelCounters::default()
        };
        let text = render(&state, &counted).unwrap();
        let of = |direction: &str| {
            let name = format!("mcgateway_peer_{direction}_total");
            let lines = text.lines().filter(|line| line.starts_with(&name));
            lines
                .map(|line| line[name.len()..].to_owned())
                .collect::<Vec<_>>()
        };
        let others = "{peer=\"others\",address=\"\"}";
        let gateway = "{peer=\"Gateway gw\",address=\"192.0.2.2\"}";
        for (direction, of_others, of_gateway) in [
            ("sent_packets", 5, 9),
            ("sent_bytes", 500, 900),
            ("received_packets", 6, 10),
            ("received_bytes", 1000, 1800),
        ] {
            let expected = [format!("{others} {of_others}"), format!("{gateway} {of_gateway}")];
            assert_eq!(of(direction), expected);
        }
    }
}
