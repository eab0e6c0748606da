//! Random policies from objects through the agent's maps to the programs: they give the verdict of the evaluator, which
//! walks the rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use mc_api::{
    label_identity::{LabelKeyFilter, Labels, join_labels, normalize},
    names::imported_service,
    network_policy::{ObjectName, parse},
};
use mc_gateway::{
    cidr::to_abi_addr,
    config::PolicyEnforcement,
    desired::{DesiredCache, Established, LocalNode, compute},
    identity_objects::{IdentityInfo, IdentityObjects, NamespaceInfo},
    ids::cluster_id,
    maps::{PinnedMaps, RuleCounterMap},
    objects::{NodeInfo, Objects, PodInfo, RemoteCluster},
    policy::{
        Direction, Identity, LocalPod, Packet, PolicySet, RuleRef, ServicePeer, VerdictAction, compile,
        evaluate,
    },
    policy_objects::Parsed,
    service_objects::{ServiceInfo, ServicePort},
};
use mc_gateway_common::{
    abi::{
        ACTION_DELIVER, CLUSTER_LOCAL, IDENTITY_HOST, IDENTITY_UNKNOWN, Prefix, V4_PREFIX_BITS,
        policy::RuleCounter,
    },
    maps::MemoryMaps,
    packet::ip::{ICMP, ICMPV6, TCP, UDP},
    verdict::DropReason,
};
use mc_tests::rng::Rng;
use serde_json::{Value, json};

use crate::{
    TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC,
    cases::{Program, from_underlay::delivered_mac},
    fixture::MC0_MAC,
    kernel::Kernel,
    packets::{Ip, ethernet, tcp_syn, udp},
    pins::Pins,
};

/// Packets of a run, and of one with `MC_LONG=1`.
const PACKETS: u64 = 100_000;
const LONG_PACKETS: u64 = 1_000_000;
/// Packets for each set of policies.
const PACKETS_PER_SET: u32 = 250;
/// Sets of policies after which a new agent opens the maps.
const SETS_PER_AGENT: u64 = 10;
const NODE: &str = "here";
/// The cluster of all senders, and one that exports identities as well.
const SENDERS: &str = "west";
const OTHERS: &str = "north";
const NAMESPACES: [&str; 2] = ["shop", "lab"];
const ACCOUNTS: [&str; 2] = ["default", "job"];
/// Pods of the node, by the last byte of their addresses.
const PODS: std::ops::RangeInclusive<u8> = 5..=8;
/// Pods of another node.
const NEIGHBORS: std::ops::RangeInclusive<u8> = 1..=6;
const SERVICES: [&str; 2] = ["web", "dns"];
const IDENTITIES: u32 = 8;
const GRE: u8 = 47;

/// Objects, and the same as input of the evaluator.
struct World {
    objects: Objects,
    set: PolicySet,
    /// The clusters that export an identity.
    exporters: BTreeMap<u32, BTreeSet<String>>,
}

fn pod_address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        [0xfd01, 0, 0, 0, 0, 0, 0, last.into()].into()
    } else {
        [10, 1, 0, last].into()
    }
}

fn sender_address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        [0xfd02, 0, 0, 0, 0, 0, 0, last.into()].into()
    } else {
        [10, 2, 0, last].into()
    }
}

/// A Pod of another node of this cluster.
fn neighbor_address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        [0xfd01, 0, 0, 0, 0, 0, 1, last.into()].into()
    } else {
        [10, 1, 1, last].into()
    }
}

fn service_address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        [0xfd96, 0, 0, 0, 0, 0, 0, last.into()].into()
    } else {
        [10, 96, 0, last].into()
    }
}

fn labels(rng: &mut Rng) -> Labels {
    let mut labels = Labels::new();
    for key in ["app", "env"] {
        if !rng.one_in(3) {
            labels.insert(key.into(), (*rng.pick(&["a", "b"])).into());
        }
    }
    labels
}

fn selector(rng: &mut Rng) -> Value {
    let (key, value) = (*rng.pick(&["app", "env"]), *rng.pick(&["a", "b"]));
    match rng.index(6) {
        0 => json!({}),
        1 => json!({ "matchExpressions": [{ "key": key, "operator": "NotIn", "values": [value] }] }),
        2 => json!({ "matchExpressions": [{ "key": key, "operator": "Exists" }] }),
        _ => json!({ "matchLabels": { key: value } }),
    }
}

fn peer(rng: &mut Rng) -> Value {
    let pods = selector(rng);
    match rng.index(9) {
        0 | 1 => json!({ "scope": "ClusterSet", "podSelector": pods }),
        6 => json!({ "podSelector": pods, "namespaceSelector": selector(rng) }),
        7 => json!({ "namespaces": { "match": "Self" } }),
        8 => {
            json!({ "serviceAccount": { "name": *rng.pick(&ACCOUNTS), "namespace": *rng.pick(&NAMESPACES) } })
        }
        2 => json!({ "scope": "ClusterSet", "namespaceSelector": selector(rng), "podSelector": pods }),
        3 => json!({ "scope": "ClusterSet", "namespaces": { "match": "Self" } }),
        4 => json!({ "ipBlock": { "cidr": format!("10.2.0.{}/26", 64 * rng.below(4)) } }),
        _ => {
            json!({ "ipBlock": { "cidr": "fd02::/121", "except": [format!("fd02::{:x}/124", 16 * rng.below(8))] } })
        }
    }
}

/// A rule for packets of the Pods.
fn egress_rule(rng: &mut Rng) -> Value {
    let action = *rng.pick(&["Allow", "Drop", "Drop", "Drop", "Reject", "Pass"]);
    if !rng.one_in(3) {
        let services: Vec<Value> = (0..rng.range(1, 2))
            .map(|_| {
                let scope = *rng.pick(&["Cluster", "ClusterSet"]);
                json!({ "name": *rng.pick(&SERVICES), "namespace": NAMESPACES[0], "scope": scope })
            })
            .collect();
        return json!({ "action": action, "toServices": services });
    }
    let blocks = [
        json!({ "ipBlock": { "cidr": format!("10.2.0.{}/25", 128 * rng.below(2)) } }),
        json!({ "ipBlock": { "cidr": "fd96::/125", "except": ["fd96::2/127"] } }),
        json!({ "ipBlock": { "cidr": "10.96.0.0/30" } }),
    ];
    let to: Vec<Value> = (0..rng.below(3)).map(|_| rng.pick(&blocks).clone()).collect();
    let first = rng.range(1, 40);
    let ports =
        json!([{ "protocol": *rng.pick(&["TCP", "UDP"]), "port": first, "endPort": first + rng.below(20) }]);
    json!({ "action": action, "to": to, "ports": ports })
}

fn rule(rng: &mut Rng) -> Value {
    let from: Vec<Value> = (0..rng.below(3)).map(|_| peer(rng)).collect();
    let (mut ports, mut protocols) = (Vec::new(), Vec::new());
    for _ in 0..rng.below(3) {
        let first = rng.range(1, 40);
        let protocol = *rng.pick(&["TCP", "UDP"]);
        ports.push(json!({ "protocol": protocol, "port": first, "endPort": first + rng.below(20) }));
    }
    if rng.one_in(6) {
        protocols.push(json!({ "icmp": { "icmpType": *rng.pick(&[8, 128]) } }));
    }
    let action = *rng.pick(&["Allow", "Allow", "Drop", "Drop", "Reject", "Pass"]);
    json!({ "action": action, "from": from, "ports": ports, "protocols": protocols })
}

fn policy_spec(rng: &mut Rng) -> Value {
    let rules: Vec<Value> = (0..rng.range(1, 4)).map(|_| rule(rng)).collect();
    let egress: Vec<Value> = (0..rng.below(4)).map(|_| egress_rule(rng)).collect();
    json!({
        "tier": *rng.pick(&["emergency", "application", "baseline"]),
        "priority": rng.range(1, 3),
        "appliedTo": [{ "podSelector": selector(rng) }],
        "ingress": rules,
        "egress": egress,
    })
}

fn world(rng: &mut Rng) -> World {
    let mut set = PolicySet::default();
    let mut objects = Objects {
        nodes: vec![NodeInfo {
            name: NODE.into(),
            ..NodeInfo::default()
        }],
        ..Objects::default()
    };
    for name in [OTHERS, SENDERS] {
        objects.remotes.push(Arc::new(RemoteCluster {
            name: name.into(),
            cluster_id: name.into(),
            ..RemoteCluster::default()
        }));
    }
    let all = LabelKeyFilter::default();
    let mut known = IdentityObjects::default();
    for name in NAMESPACES {
        let labels = labels(rng);
        set.namespaces.insert(name.into(), labels.clone());
        known.namespaces.push(Arc::new(NamespaceInfo {
            name: name.into(),
            labels,
        }));
    }
    let here = PODS.map(|last| (NODE, [false, true].map(|v6| pod_address(v6, last))));
    let there = NEIGHBORS.map(|last| ("there", [false, true].map(|v6| neighbor_address(v6, last))));
    for (number, (node, ips)) in here.chain(there).enumerate() {
        let (namespace, labels, account) = (*rng.pick(&NAMESPACES), labels(rng), *rng.pick(&ACCOUNTS));
        objects.pods.push(Arc::new(PodInfo {
            name: format!("{namespace}/pod{number}"),
            node: node.into(),
            ips: ips.iter().map(ToString::to_string).collect(),
            labels: join_labels(&labels, &all).into(),
            service_account: account.into(),
            ..PodInfo::default()
        }));
        let pod = LocalPod {
            namespace: namespace.into(),
            name: format!("pod{number}"),
            labels,
            service_account: account.into(),
            ips: ips.into(),
            ..LocalPod::default()
        };
        if node == NODE {
            set.local_pods.push(pod.clone());
        }
        set.cluster_pods.push(pod);
    }
    for (last, name) in (1..).zip(SERVICES) {
        // The Service, and that of an import with this name.
        for (last, name) in [(last, name.to_owned()), (last + 4, imported_service(name))] {
            let ips = [false, true].map(|v6| service_address(v6, last));
            let ports =
                [("TCP", TCP), ("UDP", UDP)].map(|(protocol, number)| (protocol, number, last.into()));
            objects.policies.services.push(ServiceInfo {
                namespace: NAMESPACES[0].into(),
                name: name.clone(),
                cluster_ips: ips.iter().map(ToString::to_string).collect(),
                ports: ports
                    .iter()
                    .map(|(protocol, _, port)| ServicePort {
                        port: i32::from(*port),
                        protocol: (*protocol).into(),
                        ..ServicePort::default()
                    })
                    .collect(),
                ..ServiceInfo::default()
            });
            set.services.push(ServicePeer {
                name: ObjectName::namespaced(NAMESPACES[0], &name),
                ips: ips.into(),
                ports: ports.iter().map(|(_, number, port)| (*number, *port)).collect(),
            });
        }
    }
    let mut exporters = BTreeMap::new();
    for id in 1..=IDENTITIES {
        let (name, of_namespace, of_pod) = (*rng.pick(&NAMESPACES), labels(rng), labels(rng));
        let label = normalize(name, &of_namespace, &join_labels(&of_pod, &all).into(), &all);
        // An Antrea leader names no clusters: each may be an exporter.
        let named: [Option<&[&str]>; 4] = [Some(&[SENDERS]), Some(&[OTHERS]), Some(&[SENDERS, OTHERS]), None];
        let named = rng.pick(&named);
        let clusters: Option<BTreeSet<String>> =
            named.map(|names| names.iter().map(ToString::to_string).collect());
        exporters.insert(
            id,
            clusters
                .clone()
                .unwrap_or_else(|| [SENDERS.into(), OTHERS.into()].into()),
        );
        known.identities.push(Arc::new(IdentityInfo {
            name: format!("identity{id}"),
            label_name: format!("identity{id}"),
            id,
            label,
            clusters,
        }));
        let mut namespace = of_namespace;
        namespace.insert("kubernetes.io/metadata.name".into(), name.into());
        set.identities.push(Identity {
            id,
            namespace,
            pod: of_pod,
        });
    }
    objects.identities = Some(known);
    for number in 0..rng.range(1, 4) {
        let (policy, errors) = parse(ObjectName::cluster(&format!("policy{number}")), &policy_spec(rng));
        assert!(errors.is_empty(), "{errors:?}");
        set.policies.push(policy.clone());
        objects.policies.policies.push(Arc::new(Parsed {
            key: policy.object(),
            object: policy,
            errors,
            uid: String::new(),
            generation: 0,
        }));
    }
    World {
        objects,
        set,
        exporters,
    }
}

/// A packet, and the program that decides on it.
fn packet(rng: &mut Rng) -> (Program, Packet) {
    let v6 = rng.one_in(2);
    let program = *rng.pick(&[Program::FromRemote, Program::ToPod, Program::FromPod]);
    let mut last = |limit| u8::try_from(rng.below(limit)).expect("a byte");
    let (pod, sender) = (PODS.start() + last(4), last(256));
    let peer = match (program, last(4)) {
        (Program::FromRemote, _) | (_, 0) => sender_address(v6, sender),
        (Program::ToPod, 1) => pod_address(v6, PODS.start() + last(4)),
        (Program::ToPod, _) => neighbor_address(v6, last(8)),
        _ => service_address(v6, last(8)),
    };
    let protocol = *rng.pick(&[TCP, TCP, UDP, if v6 { ICMPV6 } else { ICMP }, GRE]);
    let echo = if v6 { 128_u16 } else { 8 };
    let port = if matches!(protocol, ICMP | ICMPV6) {
        echo << 8
    } else if program == Program::FromPod && rng.one_in(2) {
        // That of the Service.
        match peer {
            IpAddr::V4(addr) => addr.octets()[3].into(),
            IpAddr::V6(addr) => addr.segments()[7],
        }
    } else {
        u16::try_from(rng.below(60)).expect("a port")
    };
    let identity = if program != Program::FromRemote {
        IDENTITY_HOST
    } else if rng.one_in(6) {
        *rng.pick(&[IDENTITY_HOST, IDENTITY_UNKNOWN, IDENTITIES + 1])
    } else {
        u32::try_from(rng.range(1, IDENTITIES.into())).expect("an identity")
    };
    let packet = Packet {
        direction: if program == Program::FromPod {
            Direction::Egress
        } else {
            Direction::Ingress
        },
        pod: pod_address(v6, pod),
        peer,
        identity,
        protocol,
        port,
    };
    (program, packet)
}

/// The packet as delivered to `mc0`, or on the device of a Pod, where its addresses count.
fn frame(packet: &Packet) -> Vec<u8> {
    let [kind, code] = packet.port.to_be_bytes();
    let payload = match packet.protocol {
        TCP => tcp_syn(40_000, packet.port),
        UDP => udp(40_000, packet.port, b"x"),
        ICMP | ICMPV6 => vec![kind, code, 0, 0, 0, 1, 0, 1],
        _ => vec![0; 8],
    };
    let (src, dst) = match packet.direction {
        Direction::Ingress => (packet.peer, packet.pod),
        Direction::Egress => (packet.pod, packet.peer),
    };
    let ip = Ip::new(src, dst, packet.protocol, payload);
    let mac = delivered_mac(packet.identity, true);
    ethernet(MC0_MAC, mac, ip.ethertype(), &ip.bytes())
}

/// Actions and drop reasons of the programs.
type Outcome = (u32, Option<DropReason>);

/// The result for a packet, by the rules and the recorded exporters, and the rule that decides.
fn expected(
    world: &World,
    selected: &BTreeSet<IpAddr>,
    program: Program,
    packet: &Packet,
) -> (Outcome, Option<RuleRef>) {
    const PASSES: Outcome = (TC_ACT_UNSPEC, None);
    let dropped = |reason| (TC_ACT_SHOT, Some(reason));
    if program == Program::FromRemote && !selected.contains(&packet.pod) {
        return (PASSES, None);
    }
    let exports = |clusters: &BTreeSet<String>| clusters.contains(SENDERS);
    let identity = match world.exporters.get(&packet.identity) {
        _ if program != Program::FromRemote => packet.identity,
        Some(clusters) if !exports(clusters) => return (dropped(DropReason::IdentityForged), None),
        // The senders' cluster is not known to announce identities.
        None if packet.identity == IDENTITY_HOST && !world.exporters.values().any(exports) => {
            IDENTITY_UNKNOWN
        }
        _ => packet.identity,
    };
    let verdict = evaluate(&world.set, &Packet { identity, ..*packet });
    let outcome = match verdict.action {
        VerdictAction::Allow | VerdictAction::Pass | VerdictAction::DefaultAllow => PASSES,
        // The answer leaves by a redirect.
        VerdictAction::Reject if packet.protocol == TCP => (TC_ACT_REDIRECT, None),
        VerdictAction::Drop | VerdictAction::Reject => dropped(DropReason::Policy),
        VerdictAction::UnknownIdentity => dropped(DropReason::IdentityUnknown),
    };
    (outcome, verdict.rule)
}

/// The prefixes of the Pods and of the senders' cluster.
fn tables(me: &LocalNode) -> MemoryMaps {
    let prefix = |cluster| Prefix {
        cluster,
        group: 0,
        action: ACTION_DELIVER,
        flags: 0,
        identity: 0,
    };
    let mut tables = MemoryMaps::default();
    let senders = prefix(cluster_id(&me.cluster_id_key, SENDERS));
    for (v6, len) in [(false, V4_PREFIX_BITS + 24), (true, 64)] {
        tables
            .prefixes
            .insert((len, to_abi_addr(sender_address(v6, 0))), senders);
        for last in PODS {
            let key = (128, to_abi_addr(pod_address(v6, last)));
            tables.prefixes.insert(key, prefix(CLUSTER_LOCAL));
        }
    }
    tables
}

#[test]
fn random_policies_get_the_verdict_of_the_evaluator_in_the_kernel() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("MC_SEED").unwrap_or(18);
    let gate = if number("MC_LONG") == Some(1) {
        LONG_PACKETS
    } else {
        PACKETS
    };
    let packets = number("MC_PACKETS").unwrap_or(gate);
    println!("seed {seed}, {packets} packets (MC_SEED and MC_PACKETS change them)");
    let mut rng = Rng::new(seed);
    let me = LocalNode {
        node_name: NODE.into(),
        policy_enforcement: PolicyEnforcement::All,
        ..LocalNode::default()
    };
    let mut kernel = Kernel::load(&tables(&me));
    let pins = Pins::new("random-policies");
    kernel.pin_maps(pins.dir());
    let mut maps = PinnedMaps::open(pins.dir()).expect("the maps");
    let counters = RuleCounterMap::open(pins.dir()).expect("the counters");
    let mut counted_packets = 0;
    let mut cache = DesiredCache::default();
    let mut results: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
    let mut drops = kernel.counts().drops;
    for number in 0..packets / u64::from(PACKETS_PER_SET) {
        let world = world(&mut rng);
        let (desired, _) =
            compute(&world.objects, &me, &Established::default(), &mut cache).expect("a desired state");
        if number % SETS_PER_AGENT == 0 {
            // A new agent.
            maps = PinnedMaps::open(pins.dir()).expect("the maps");
        }
        let earlier = counters.read().expect("the counters");
        maps.set_policies(&desired.policies.tables).expect("the tables");
        let before = counters.read().expect("the counters");
        for (id, counter) in &before {
            let kept = earlier.get(id).copied().unwrap_or_default();
            assert_eq!(*counter, kept, "a counter outlives other tables and agents");
        }
        let mut decided: BTreeMap<(String, String), RuleCounter> = BTreeMap::new();
        let selected: BTreeSet<IpAddr> = compile(&world.set).0.pods.into_keys().collect();
        for _ in 0..PACKETS_PER_SET {
            let (program, packet) = packet(&mut rng);
            let ((wanted, reason), rule) = expected(&world, &selected, program, &packet);
            let frame = frame(&packet);
            let action = kernel.run(program.name(), &frame).action;
            if let Some(rule) = rule {
                let counter = decided.entry((rule.policy.to_string(), rule.path())).or_default();
                counter.packets += 1;
                counter.bytes += u64::try_from(frame.len()).expect("a length");
                counted_packets += 1;
            }
            if let Some(reason) = reason {
                drops[reason as usize] += 1;
            }
            let context = || {
                format!(
                    "seed {seed}, set {number}: {packet:?}: {reason:?}: {:#?}",
                    world.set.policies
                )
            };
            assert_eq!(action, wanted, "{}", context());
            assert_eq!(kernel.counts().drops, drops, "{}", context());
            if packet.protocol != TCP {
                kernel.clear_policy_flows();
            }
            let result = match wanted {
                TC_ACT_REDIRECT => Some("reset"),
                _ => reason.map(DropReason::name),
            };
            *results.entry((program.name(), result)).or_default() += 1;
        }
        let after = counters.read().expect("the counters");
        let ids: BTreeSet<u32> = after.keys().copied().collect();
        assert!(
            desired.policies.rules.keys().copied().eq(ids),
            "counters of all rules"
        );
        let counted = desired.policies.rules.iter().filter_map(|(id, rule)| {
            let (before, after) = (before[id], after[id]);
            let counter = RuleCounter {
                packets: after.packets - before.packets,
                bytes: after.bytes - before.bytes,
            };
            (counter.packets > 0).then(|| ((rule.policy.clone(), rule.rule.clone()), counter))
        });
        let counted: BTreeMap<_, _> = counted.collect();
        assert_eq!(counted, decided, "seed {seed}, set {number}");
    }
    println!("{results:?}; {counted_packets} counted by rules");
    assert!(counted_packets > packets / 10, "{counted_packets}");
    let of_remote = [DropReason::IdentityUnknown, DropReason::IdentityForged];
    let of_remote = of_remote.map(|reason| (Program::FromRemote, Some(reason)));
    let of_all = [Program::FromRemote, Program::ToPod, Program::FromPod]
        .into_iter()
        .flat_map(|program| {
            [None, Some(DropReason::Policy.name()), Some("reset")].map(|result| (program, result))
        });
    let of_remote = of_remote.map(|(program, reason)| (program, reason.map(DropReason::name)));
    for (program, result) in of_all.chain(of_remote) {
        let result = (program.name(), result);
        let count = results.get(&result).copied().unwrap_or_default();
        assert!(
            count > packets / 1_000,
            "{result:?} occurs too rarely: {results:?}"
        );
    }
}
