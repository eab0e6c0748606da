//! Generated packets through the kernel's programs and the oracle in `tests/oracle`, which shares no code with them.
//!
//! The oracle reads worlds, packets and the kernel's results as JSON lines. `PROG_RUN` shows no device of a redirected
//! packet: the oracle compares the next hop by its counters instead.

#![expect(clippy::cast_possible_truncation, reason = "random bits are cut to size")]

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::{BufWriter, Write as _},
    net::Ipv6Addr,
    path::{Path, PathBuf},
    process::Command,
};

use mc_gateway_common::{
    abi::{
        ABI_VERSION, ACTION_DELIVER, ACTION_FORWARD, ACTION_REPLY, ACTION_SERVICE, Addr, CONFIG_ALL_SERVICES,
        CONFIG_BACKENDS, CONFIG_DSCP_FIXED, CONFIG_IDENTITY_LOST, CONFIG_UDP_CHECKSUM, CONFIG_VXLAN,
        LinkAddresses, PEER_ANTREA, PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY, PEER_UNKEYED,
        PREFIX_BACKENDS, PREFIX_POLICY, SourceMac, V4_PREFIX_BITS,
        affinity::AffinityEntry,
        flow_entry::FlowEntry,
        policy::{
            ADDRESS_CLASS_BITS, DIMENSION_ADDRESS, DIRECTION_EGRESS, ENFORCED_EGRESS, ENFORCED_INGRESS,
            ExporterKey, POD_CLOSED, POD_DROPS_UNKNOWN, RULE_ALLOW, RULE_AUDITED, RULE_BITS, RULE_PASS,
            RULE_REJECT, of_half_slot,
        },
        service::{
            BACKEND_READY, FLOW_OF_STACK, MAGLEV_ENTRIES, PAST_TABLES, SERVICE_AFFINITY,
            SERVICE_IDENTITY_LOST, SERVICE_PAST, SERVICE_STACK, SERVICE_TIMEOUT_SHIFT,
        },
    },
    maps::{MemoryMaps, policy::PolicyMaps, service::ServiceMaps},
    packet::ip::is_v4,
    rate_limit::ICMP_ERRORS,
    verdict::{DropReason, Event, Outcome},
};
use mc_tests::rng::Rng;
use serde_json::{Value, json};

use crate::{
    Case, Counts, Kernel, Program, TC_ACT_SHOT, TC_ACT_UNSPEC, cases,
    fixture::{self, Shape},
    generator::{Generator, World},
    kernel, load_or_refill,
    transit::resolve_neighbors,
};

/// Number of packets in the gate and with `--long`.
const PACKETS: usize = 8_000;
const LONG_PACKETS: usize = 200_000;
/// Worlds without Antrea gateways, which the oracle does not know.
const WORLDS: [World; 6] = [
    World::Node,
    World::ServiceGateway,
    World::SeveralBackends,
    World::PastTables,
    World::NoReadyBackend,
    World::ServiceNode,
];

/// The inner Ethernet header of a probe: multi-cluster MAC address, any source, ethertype.
const PROBE: [Option<u8>; 14] = {
    let mut header = [None; 14];
    let known = [
        (0, 0xaa),
        (1, 0xbb),
        (2, 0xcc),
        (3, 0xdd),
        (4, 0xee),
        (5, 0xf0),
        (12, 0x88),
        (13, 0xb5),
    ];
    let mut at = 0;
    while at < known.len() {
        header[known[at].0] = Some(known[at].1);
        at += 1;
    }
    header
};

fn address(addr: Addr) -> String {
    Ipv6Addr::from(addr).to_canonical().to_string()
}

fn network(bits: u32, addr: Addr) -> String {
    let bits = if is_v4(&addr) { bits - V4_PREFIX_BITS } else { bits };
    format!("{}/{bits}", address(addr))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string");
        text
    })
}

fn action_name(action: u32) -> &'static str {
    match action {
        ACTION_DELIVER => "deliver",
        ACTION_FORWARD => "forward",
        ACTION_SERVICE => "service",
        ACTION_REPLY => "reply",
        _ => "none",
    }
}

/// The tables as the oracle reads them.
fn world_json(tables: &MemoryMaps) -> Value {
    let config = tables.config.expect("a configuration");
    let flag = |flag| config.flags & flag != 0;
    let local: Vec<String> = config
        .local
        .into_iter()
        .filter(|local| *local != [0; 16])
        .map(address)
        .collect();
    let prefixes: Vec<Value> = tables
        .prefixes
        .iter()
        .map(|((bits, addr), prefix)| {
            json!({
                "network": network(*bits, *addr), "cluster": prefix.cluster, "group": prefix.group,
                "action": action_name(prefix.action), "backends": prefix.flags & PREFIX_BACKENDS != 0,
                "identity": prefix.identity, "policy": prefix.flags & PREFIX_POLICY != 0,
            })
        })
        .collect();
    let next_hops: Vec<Value> = tables
        .next_hops
        .iter()
        .map(|(slot, next_hop)| {
            json!({
                "slot": slot, "address": address(next_hop.addr), "local": address(next_hop.local),
                "mtu": next_hop.mtu, "weight": next_hop.weight, "counter": next_hop.stats,
                "source_mac": mac(next_hop.source_mac),
                "link": tables.links_are_current.then(|| link(&next_hop.link)),
            })
        })
        .collect();
    let groups: Vec<Value> = tables
        .groups
        .iter()
        .map(|(slot, group)| json!({ "slot": slot, "next_hops": group.next_hops[..group.len as usize] }))
        .collect();
    let peers: Vec<Value> = tables
        .peers
        .iter()
        .map(|(addr, peer)| {
            json!({
                "address": address(*addr), "cluster": peer.cluster, "group": peer.group, "counter": peer.stats,
                "remote_gateway": peer.flags & PEER_REMOTE_GATEWAY != 0,
                "local_gateway": peer.flags & PEER_LOCAL_GATEWAY != 0,
                "local_node": peer.flags & PEER_LOCAL_NODE != 0,
                "unkeyed": peer.flags & PEER_UNKEYED != 0, "reply_mac": mac(peer.reply_mac),
                "source_macs": peer.source_macs.map(|bits| (bits != 0).then(|| mac(bits))),
            })
        })
        .collect();
    json!({
        "configured": config.abi == ABI_VERSION, "vxlan": flag(CONFIG_VXLAN),
        "udp_checksum": flag(CONFIG_UDP_CHECKSUM), "all_services": flag(CONFIG_ALL_SERVICES),
        "identity_lost": flag(CONFIG_IDENTITY_LOST),
        "fixed_dscp": if flag(CONFIG_DSCP_FIXED) { Some(config.tos) } else { None },
        "backends_here": flag(CONFIG_BACKENDS), "port": config.port, "mac": hex(&config.mc0_mac),
        "tunnel_mac": hex(&config.tunnel_mac),
        "hop_limit": config.hop_limit, "local": local, "prefixes": prefixes, "next_hops": next_hops,
        "policies": policies_json(&tables.policies), "groups": groups, "peers": peers, "services": services_json(&tables.services),
        "backends": backends_json(&tables.services),
    })
}

/// The policy tables in use.
fn policies_json(policies: &PolicyMaps) -> Value {
    let half = policies.state.half;
    let pods = policies
        .pods
        .iter()
        .filter(|(key, _)| u32::from(key.half) == half);
    let pods: Vec<Value> = pods
        .map(|(key, pod)| {
            json!({
                "address": address(key.addr), "set": pod.set, "closed": pod.flags & POD_CLOSED != 0,
                "enforced": pod.enforced, "unselected": pod.is_unselected(),
                "drops_unknown": pod.flags & POD_DROPS_UNKNOWN != 0,
                "direction": if key.direction == DIRECTION_EGRESS { "egress" } else { "ingress" },
            })
        })
        .collect();
    let identities = policies.identities.iter();
    let identities = identities.map(|(slot, identity)| (of_half_slot(*slot), identity));
    let identities: Vec<Value> = identities
        .filter(|((_, of_half), _)| *of_half == half)
        .map(|((number, _), identity)| {
            let of_set = |key: &&ExporterKey| (key.set, key.half) == (identity.exporters, half);
            let exporters = policies.exporters.iter().filter(of_set);
            json!({
                "identity": number, "class": identity.class,
                "clusters": exporters.map(|key| key.cluster).collect::<Vec<_>>(),
            })
        })
        .collect();
    let blocks = policies
        .address_classes
        .iter()
        .filter(|((_, key), _)| key.half == half);
    let blocks: Vec<Value> = blocks
        .map(|((bits, key), class)| json!({ "network": network(bits - ADDRESS_CLASS_BITS, key.addr), "class": class }))
        .collect();
    let by_prefix = policies.rules.iter().map(|((len, key), rule)| {
        let port = (u16::from_be_bytes(key.port), len - RULE_BITS);
        (key.peer, port, *rule)
    });
    let by_peer = policies.peer_rules.iter().flat_map(|(peer, rules)| {
        rules.rules().map(|rule| {
            let port = (u16::from_be_bytes(rule.port), u32::from(rule.bits));
            (*peer, port, rule.rule())
        })
    });
    let rules: Vec<Value> = by_prefix
        .chain(by_peer)
        .filter(|(peer, ..)| u32::from(peer.half) == half)
        .map(|(peer, (port, bits), rule)| {
            json!({
                "set": peer.set, "class": peer.class, "protocol": peer.proto, "port": port,
                "bits": bits, "precedence": rule.precedence,
                "passes": matches!(rule.action, RULE_ALLOW | RULE_PASS), "rejects": rule.action == RULE_REJECT,
                "audited": rule.action & RULE_AUDITED != 0,
                "dimension": if peer.dimension == DIMENSION_ADDRESS { "address" } else { "identity" },
            })
        })
        .collect();
    let flows = policies.flows.borrow();
    let flows: Vec<Value> = flows
        .keys()
        .map(|key| {
            json!([
                address(key.pod),
                address(key.client),
                key.pod_port,
                key.client_port,
                key.proto
            ])
        })
        .collect();
    json!({
        "enforced": {
            "ingress": policies.state.enforced & ENFORCED_INGRESS != 0,
            "egress": policies.state.enforced & ENFORCED_EGRESS != 0,
        },
        "pods": pods, "identities": identities, "blocks": blocks,
        "rules": rules, "flows": flows,
    })
}

fn link(link: &LinkAddresses) -> String {
    hex(&link.dst()) + &hex(&link.src())
}

fn mac(bits: u64) -> String {
    hex(&SourceMac::from_bits(bits).bytes())
}

fn services_json(maps: &ServiceMaps) -> Vec<Value> {
    maps.services
        .iter()
        .map(|(key, service)| {
            // The backends of a table; 0 for a place without one.
            let backends = |generation| {
                let table = maps.maglev.get(&key.with_generation(generation));
                let places = table.into_iter().flat_map(|table| table.backends.into_iter().take(MAGLEV_ENTRIES));
                places.collect::<BTreeSet<u64>>()
            };
            json!({
                "address": address(key.addr), "port": key.port, "proto": key.proto, "table": backends(0),
                "past": (1..=PAST_TABLES).map(backends).collect::<Vec<_>>(),
                "has_past": service.flags & SERVICE_PAST != 0,
                "affinity": service.flags & SERVICE_AFFINITY != 0,
                "timeout": service.flags >> SERVICE_TIMEOUT_SHIFT, "stack": service.flags & SERVICE_STACK != 0,
                "identity_lost": service.flags & SERVICE_IDENTITY_LOST != 0,
            })
        })
        .collect()
}

fn backends_json(maps: &ServiceMaps) -> Vec<Value> {
    maps.backends
        .iter()
        .map(|(id, backend)| {
            json!({
                "id": id, "pod": address(backend.pod), "service": address(backend.service),
                "group": backend.group, "pod_port": backend.pod_port, "service_port": backend.service_port,
                "proto": backend.proto, "ready": backend.flags & BACKEND_READY != 0,
            })
        })
        .collect()
}

/// Backend of a client, and the age of its last new flow in seconds, if it is known.
fn client_json(entry: AffinityEntry) -> Value {
    let now = AffinityEntry::seconds(fixture::now());
    // The largest age that has not expired.
    let age = (0..=2 * u64::from(u16::MAX)).find(|age| !entry.is_expired(now, *age));
    let has_time = entry.word() != entry.backend();
    json!([entry.backend(), if has_time { age } else { None }])
}

/// The contents of the flow maps.
fn flows_json(maps: &ServiceMaps) -> Value {
    let flows: Vec<Value> = maps
        .flows
        .borrow()
        .iter()
        .map(|(key, word)| {
            let backend = match (key.client_port, *word) {
                (0, word) => client_json(AffinityEntry::from_word(word)),
                (_, FLOW_OF_STACK) => Value::Null,
                (_, word) => {
                    let entry = FlowEntry::from_word(word);
                    let id = entry.backend();
                    // An unconfirmed flow has the number of a table.
                    if entry.is_unconfirmed() {
                        json!([id, entry.table()])
                    } else {
                        json!(id)
                    }
                }
            };
            json!([
                address(key.client),
                key.client_port,
                address(key.service),
                key.service_port,
                key.proto,
                backend
            ])
        })
        .collect();
    let replies: Vec<Value> = maps
        .replies
        .borrow()
        .iter()
        .map(|(key, reply)| {
            json!([
                address(key.pod),
                key.pod_port,
                address(key.client),
                key.client_port,
                key.proto,
                address(reply.addr),
                reply.port
            ])
        })
        .collect();
    let fragments: Vec<Value> = maps
        .fragments
        .borrow()
        .iter()
        .map(|(key, fragment)| {
            json!([
                address(key.src),
                address(key.dst),
                hex(&key.id.to_ne_bytes()),
                key.proto,
                fragment.backend,
                address(fragment.service)
            ])
        })
        .collect();
    json!({ "flows": flows, "replies": replies, "fragments": fragments })
}

/// The counters that a packet moved, by name or slot.
fn counters_json(before: &Counts, after: &Counts) -> Value {
    let drops: Vec<&str> = DropReason::ALL
        .into_iter()
        .filter(|reason| before.drops[*reason as usize] != after.drops[*reason as usize])
        .map(DropReason::name)
        .collect();
    let outcomes: Vec<&str> = Outcome::ALL
        .into_iter()
        .filter(|outcome| before.paths[*outcome as usize] != after.paths[*outcome as usize])
        .map(Outcome::name)
        .collect();
    let events: Vec<&str> = Event::ALL
        .into_iter()
        .filter(|event| before.events[*event as usize] != after.events[*event as usize])
        .map(Event::name)
        .collect();
    let mut sent = Vec::new();
    let mut received = Vec::new();
    for (slot, new) in &after.traffic {
        let old = before.traffic.get(slot).copied().unwrap_or_default();
        if new.sent_packets != old.sent_packets {
            sent.push(json!([
                slot,
                new.sent_packets - old.sent_packets,
                new.sent_bytes - old.sent_bytes
            ]));
        }
        if new.received_packets != old.received_packets {
            received.push(json!([
                slot,
                new.received_packets - old.received_packets,
                new.received_bytes - old.received_bytes
            ]));
        }
    }
    json!({ "drops": drops, "outcomes": outcomes, "events": events, "sent": sent, "received": received })
}

/// The tables of a world with a random configuration.
fn tables(world: World, shape: Shape, random: &mut Rng) -> MemoryMaps {
    let mut tables = world.tables(shape);
    let config = tables.config.as_mut().expect("a configuration");
    for flag in [CONFIG_UDP_CHECKSUM, CONFIG_ALL_SERVICES, CONFIG_IDENTITY_LOST] {
        if random.one_in(2) {
            config.flags |= flag;
        }
    }
    if random.one_in(3) {
        config.flags |= CONFIG_DSCP_FIXED;
        config.tos = random.next_u64() as u8 & 0xfc;
    }
    config.hop_limit = *random.pick(&[0, 0, 17]);
    for service in tables.services.services.values_mut() {
        if service.flags & SERVICE_STACK != 0 && random.one_in(2) {
            service.flags |= SERVICE_IDENTITY_LOST;
        }
    }
    if random.one_in(2) {
        resolve_neighbors(&mut tables);
    }
    tables
}

/// Worlds, packets and the kernel's results as lines.
struct CaseFile {
    out: BufWriter<fs::File>,
    loaded: Option<(MemoryMaps, Kernel)>,
}

impl CaseFile {
    fn line(&mut self, value: &Value) {
        writeln!(self.out, "{value}").expect("a line");
    }

    /// Fills the maps and writes them, runs the packets and writes the results, and writes the flow maps.
    fn run(&mut self, name: &str, tables: &MemoryMaps, packets: impl Iterator<Item = (Program, Vec<u8>)>) {
        let mut loaded = self.loaded.take();
        let programs = load_or_refill(&mut loaded, tables);
        programs.set_icmp_limit(tables);
        let flows = flows_json(&kernel::without_seconds(&tables.services));
        self.line(&json!({ "world": world_json(tables), "flows": flows, "name": name }));
        let mut before = programs.counts();
        for (program, frame) in packets {
            let result = programs.run(program.name(), &frame);
            let after = programs.counts();
            let action = match result.action {
                TC_ACT_UNSPEC => "pass",
                TC_ACT_SHOT => "drop",
                _ => "redirect",
            };
            self.line(&json!({
                "program": program.name(), "frame": hex(&frame), "action": action,
                "bytes": if action == "drop" { None } else { Some(hex(&result.bytes)) },
                "counters": counters_json(&before, &after),
            }));
            before = after;
        }
        self.line(&json!({ "flows": flows_json(&programs.flows(&tables.services)) }));
        self.loaded = loaded;
    }
}

/// Writes the results of the oracle's part of the cases and of generated packets; the number of cases.
fn write_cases(path: &Path, seed: u64, packets: usize) -> usize {
    let mut file = CaseFile {
        out: BufWriter::new(fs::File::create(path).expect("a file")),
        loaded: None,
    };
    let cases: Vec<Case> = cases::all().into_iter().filter(is_modelled).collect();
    for case in &cases {
        file.run(
            &case.name,
            &case.tables,
            std::iter::once((case.program, case.frame.clone())),
        );
    }
    let mut random = Rng::new(seed);
    let each = packets / (WORLDS.len() * Shape::all().count());
    for world in WORLDS {
        for shape in Shape::all() {
            let tables = tables(world, shape, &mut random);
            let flows = world.known_flows(shape);
            tables.services.flows.borrow_mut().clone_from(&flows);
            tables
                .services
                .replies
                .borrow_mut()
                .clone_from(&world.known_replies(shape));
            let mut generator = Generator::new(random.next_u64(), shape, world);
            generator.probes = false;
            let packets = std::iter::from_fn(|| Some(generator.packet()))
                .filter(|generated| Kernel::accepts_frame(&generated.frame))
                .map(|generated| (generated.program, generated.frame));
            file.run(
                &format!("{world:?} {}", shape.name()),
                &tables,
                packets.take(each),
            );
        }
    }
    file.out.flush().expect("a file");
    cases.len()
}

/// Whether the oracle models the case, by its input: no probes, liveness, Antrea gateways, GSO packets and exhausted
/// rate limits.
fn is_modelled(case: &Case) -> bool {
    let tables = &case.tables;
    let is_probe = |bytes: &[u8]| {
        bytes
            .iter()
            .zip(PROBE)
            .all(|(byte, probe)| probe.is_none_or(|probe| probe == *byte))
    };
    let is_probe = case.frame.windows(PROBE.len()).any(is_probe);
    !is_probe
        && case.gso_size == 0
        && Kernel::accepts_frame(&case.frame)
        && tables.config.is_some()
        && tables.health.sent.is_empty()
        && tables.icmp_limit.borrow().tokens > ICMP_ERRORS.burst / 2
        && tables.sender_limits.borrow().is_empty()
        && tables.peers.values().all(|peer| peer.flags & PEER_ANTREA == 0)
}

/// Runs the oracle over a file of cases; its output.
fn run_oracle(path: &Path, args: &[&str]) -> String {
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle");
    let output = Command::new("python3")
        .arg("-B")
        .arg(&oracle)
        .args(args)
        .arg(path)
        .output()
        .expect("python3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{text}{errors}", path.display());
    text
}

#[test]
fn differential_oracle() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seed = number("MC_SEED").unwrap_or(20_261_123);
    let packets = if number("MC_LONG") == Some(1) {
        LONG_PACKETS
    } else {
        PACKETS
    };
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oracle.jsonl");
    let start = std::time::Instant::now();
    let cases = write_cases(&path, seed, packets);
    assert!(cases > 500, "only {cases} cases");
    println!(
        "oracle: seed {seed}, {packets} packets and {cases} cases in the kernel after {:.1} s",
        start.elapsed().as_secs_f32()
    );
    print!("{}", run_oracle(&path, &[]));
    // The oracle is able to fail: it rejects wrong results of every kind.
    print!("{}", run_oracle(&path, &["--wrong-results"]));
    println!("oracle: {:.1} s", start.elapsed().as_secs_f32());
}
