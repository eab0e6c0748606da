//! Generated packets through the kernel's programs and the oracle in `tests/oracle`, which shares no code with them.
//!
//! The oracle reads worlds, packets and the kernel's results as JSON lines. `PROG_RUN` shows no device of a redirected
//! packet: the oracle compares the next hop by its counters instead.

#![expect(clippy::cast_possible_truncation, reason = "random bits are cut to size")]

use std::{
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
        CONFIG_BACKENDS, CONFIG_DSCP_FIXED, CONFIG_UDP_CHECKSUM, CONFIG_VXLAN, PEER_LOCAL_GATEWAY,
        PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY, PREFIX_BACKENDS, V4_PREFIX_BITS,
        affinity::AffinityEntry,
        service::{BACKEND_READY, FLOW_OF_STACK, SERVICE_AFFINITY, SERVICE_STACK},
    },
    maps::{MemoryMaps, service::ServiceMaps},
    packet::ip::is_v4,
    verdict::{DropReason, Event, Outcome},
};
use mc_tests::rng::Rng;
use serde_json::{Value, json};

use crate::{
    Counts, Kernel, TC_ACT_SHOT, TC_ACT_UNSPEC,
    fixture::Shape,
    generator::{Generator, World},
    load_or_refill,
};

/// Number of packets in the gate and with `--long`.
const PACKETS: usize = 8_000;
const LONG_PACKETS: usize = 200_000;
/// Worlds without Antrea gateways, which the oracle does not know.
const WORLDS: [World; 5] = [
    World::Node,
    World::ServiceGateway,
    World::SeveralBackends,
    World::NoReadyBackend,
    World::ServiceNode,
];

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
            })
        })
        .collect();
    json!({
        "configured": config.abi == ABI_VERSION, "vxlan": flag(CONFIG_VXLAN),
        "udp_checksum": flag(CONFIG_UDP_CHECKSUM), "all_services": flag(CONFIG_ALL_SERVICES),
        "fixed_dscp": if flag(CONFIG_DSCP_FIXED) { Some(config.tos) } else { None },
        "backends_here": flag(CONFIG_BACKENDS), "port": config.port, "mac": hex(&config.mc0_mac),
        "hop_limit": config.hop_limit, "local": local, "prefixes": prefixes, "next_hops": next_hops,
        "groups": groups, "peers": peers, "services": services_json(&tables.services),
        "backends": backends_json(&tables.services),
    })
}

fn services_json(maps: &ServiceMaps) -> Vec<Value> {
    maps.services
        .iter()
        .map(|(key, service)| {
            let mut table: Vec<u64> = maps
                .maglev
                .get(key)
                .map(|table| table.backends.into_iter().filter(|id| *id != 0).collect())
                .unwrap_or_default();
            table.sort_unstable();
            table.dedup();
            json!({
                "address": address(key.addr), "port": key.port, "proto": key.proto, "table": table,
                "affinity": service.flags & SERVICE_AFFINITY != 0, "stack": service.flags & SERVICE_STACK != 0,
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

/// The contents of the flow maps.
fn flows_json(maps: &ServiceMaps) -> Value {
    let flows: Vec<Value> = maps
        .flows
        .borrow()
        .iter()
        .map(|(key, word)| {
            // The oracle has no clock: the entries of clients have no time.
            let backend = match (key.client_port, *word) {
                (0, word) => Some(AffinityEntry::from_word(word).backend()),
                (_, FLOW_OF_STACK) => None,
                (_, id) => Some(id),
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
    for flag in [CONFIG_UDP_CHECKSUM, CONFIG_ALL_SERVICES] {
        if random.one_in(2) {
            config.flags |= flag;
        }
    }
    if random.one_in(3) {
        config.flags |= CONFIG_DSCP_FIXED;
        config.tos = random.next_u64() as u8 & 0xfc;
    }
    config.hop_limit = *random.pick(&[0, 0, 17]);
    tables
}

/// Runs packets in the kernel and writes worlds, packets and results.
fn write_cases(path: &Path, seed: u64, packets: usize) {
    let mut out = BufWriter::new(fs::File::create(path).expect("a file"));
    let mut line = |value: &Value| writeln!(out, "{value}").expect("a line");
    let mut loaded = None;
    let mut random = Rng::new(seed);
    let each = packets / (WORLDS.len() * Shape::all().count());
    for world in WORLDS {
        for shape in Shape::all() {
            let tables = tables(world, shape, &mut random);
            tables
                .services
                .flows
                .borrow_mut()
                .clone_from(&world.known_flows(shape));
            let kernel = load_or_refill(&mut loaded, &tables);
            kernel.set_icmp_limit(&tables);
            line(
                &json!({ "world": world_json(&tables), "flows": flows_json(&tables.services),
                "name": format!("{world:?} {}", shape.name()) }),
            );
            let mut generator = Generator::new(random.next_u64(), shape, world);
            generator.probes = false;
            let mut before = kernel.counts();
            let mut count = 0;
            while count < each {
                let generated = generator.packet();
                if !Kernel::accepts_frame(&generated.frame) {
                    continue;
                }
                count += 1;
                let result = kernel.run(generated.program.name(), &generated.frame);
                let after = kernel.counts();
                let action = match result.action {
                    TC_ACT_UNSPEC => "pass",
                    TC_ACT_SHOT => "drop",
                    _ => "redirect",
                };
                line(&json!({
                    "program": generated.program.name(), "frame": hex(&generated.frame), "action": action,
                    "bytes": if action == "drop" { None } else { Some(hex(&result.bytes)) },
                    "counters": counters_json(&before, &after),
                }));
                before = after;
            }
            line(&json!({ "flows": flows_json(&kernel.flows(&tables.services)) }));
        }
    }
    out.flush().expect("a file");
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
    write_cases(&path, seed, packets);
    println!(
        "oracle: seed {seed}, {packets} packets in the kernel after {:.1} s",
        start.elapsed().as_secs_f32()
    );
    print!("{}", run_oracle(&path, &[]));
    // The oracle is able to fail: it rejects wrong results of every kind.
    print!("{}", run_oracle(&path, &["--wrong-results"]));
    println!("oracle: {:.1} s", start.elapsed().as_secs_f32());
}
