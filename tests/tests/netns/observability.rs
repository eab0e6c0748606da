//! Observability of a node: `inspect`, `trace`, metrics, probes and sampled drops.

use std::{fs, net::Ipv4Addr};

use mc_gateway_common::abi::{ACTION_DELIVER, CLUSTER_LOCAL, MAPS_DIR, PREFIXES, PrefixKey, V4_PREFIX_BITS};
use mc_tests::{
    prom_parser::Exposition,
    topology::{Cluster, Family, Place, Topology, Variant},
    wait::wait_for,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::{
    TIMEOUT, bpftool, connected, logging_ebpf_object, open_hundred_connections, options, wait_for_log,
    with_two_gateways,
};

const NODE: Place = Place::NodeEast;
const GATEWAY: Place = Place::GatewayEast;

/// Response body of an HTTP request to the agent of a node; an error for any status but 200.
fn get(bed: &Topology, place: Place, path: &str) -> Result<String, String> {
    bed.traffic()
        .get(bed.netns(place), &format!("http://127.0.0.1:9469{path}"))
        .map_err(|error| format!("{error:#}"))
}

pub(crate) fn metrics(bed: &Topology, place: Place) -> Exposition {
    let text = get(bed, place, "/metrics").expect("metrics");
    let found = Exposition::parse(&format!("{}\n", text.trim_end()));
    assert!(found.is_ok(), "{found:?} in\n{text}");
    found.expect("metrics")
}

pub(crate) fn inspect(bed: &Topology, place: Place, section: &str) -> Value {
    let out = bed
        .run_agent(place, &["inspect", section, "-o", "json"])
        .expect("inspect");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut value: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    value.get_mut(section).expect(section).take()
}

/// The row with a value in a column.
pub(crate) fn row<'v>(rows: &'v Value, column: &str, value: &str) -> &'v Value {
    let found = rows
        .as_array()
        .expect("rows")
        .iter()
        .find(|row| row[column] == value);
    assert!(found.is_some(), "no {column} {value} in {rows:#}");
    found.expect("a row")
}

#[test]
fn inspect_prints_names_with_and_without_a_running_agent() {
    let mut bed = connected("inspect");
    for agent in ["running", "gone"] {
        let prefixes = inspect(&bed, NODE, "prefixes");
        let west = row(&prefixes, "prefix", &Cluster::West.pod_cidr().to_string());
        assert_eq!(
            (&west["cluster"], &west["action"]),
            (&"west".into(), &"forward".into()),
            "{agent}"
        );
        assert_eq!(west["group"], "gateways");
        let next_hops = inspect(&bed, NODE, "nexthops");
        let gateway = row(
            &next_hops,
            "address",
            &Cluster::East.internal_net().addr().to_string(),
        );
        assert_eq!(gateway["name"], "Gateway gw-east", "{agent}");
        assert_eq!(gateway["group"], "gateways");
        let peers = inspect(&bed, GATEWAY, "peers");
        let peer = row(&peers, "address", &Cluster::West.gateway_net().addr().to_string());
        assert_eq!(
            (&peer["cluster"], &peer["roles"][0]),
            (&"west".into(), &"remote-gateway".into())
        );
        let maps = inspect(&bed, NODE, "maps");
        assert_eq!(row(&maps, "map", "mc_prefixes")["capacity"], 131_072);
        if agent == "running" {
            for place in [NODE, GATEWAY] {
                bed.stop_agent(place).expect("SIGTERM");
            }
        }
    }
    let text = bed.run_agent(NODE, &["inspect"]).expect("inspect");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for word in ["== config", "== prefixes", "from_underlay on eth0", "encap"] {
        assert!(text.contains(word), "no {word} in\n{text}");
    }
}

#[test]
fn inspect_without_pins_reports_the_directory() {
    let bed = connected("nopins");
    let out = bed.run_agent(Place::PodEast, &["inspect"]).expect("inspect");
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success());
    assert!(
        error.contains("-nopins-pod-east: no such directory; check that mc-gateway runs"),
        "{error}"
    );
}

#[test]
fn metrics_are_well_formed_and_move_with_traffic() {
    let bed = connected("metrics");
    let before = [NODE, GATEWAY].map(|place| metrics(&bed, place));
    let ping = bed
        .traffic()
        .ping(bed.netns(Place::PodEast), Cluster::West.pod_ip(), 5)
        .expect("ping");
    assert_eq!(ping.received, 5);
    let after = [NODE, GATEWAY].map(|place| metrics(&bed, place));
    let [node, gateway] = [0, 1].map(|place| {
        move |name: &str, words: &[&str], after: &[Exposition; 2], before: &[Exposition; 2]| {
            after[place].sum(name, words) - before[place].sum(name, words)
        }
    });
    let packets = "mcgateway_packets_total";
    assert!(node(packets, &["\"encap\""], &after, &before) >= 5.0);
    assert!(node(packets, &["\"deliver\""], &after, &before) >= 5.0);
    assert!(gateway(packets, &["\"transit\""], &after, &before) >= 10.0);
    assert!(gateway("mcgateway_bytes_total", &["\"transit\""], &after, &before) >= 10.0 * 134.0);
    let [node, gateway] = &after;
    assert!((node.sum("mcgateway_ready", &[]) - 1.0).abs() < 0.1);
    assert!((gateway.sum("mcgateway_gateway", &[]) - 1.0).abs() < 0.1);
    assert!(node.sum("mcgateway_map_entries", &["mc_prefixes"]) >= 3.0);
    assert!(node.sum("mcgateway_reconciles_total", &["success"]) >= 1.0);
    assert!(node.sum("mcgateway_nexthop_mtu_bytes", &["Gateway gw-east"]) >= 1400.0);
    assert!(node.sum("mcgateway_nexthop_usable", &["gateways"]) >= 1.0);
}

/// All gateways with their `gatewayIP`.
fn gateways() -> [(Place, String); 4] {
    let [east, west] =
        Cluster::ALL.map(|cluster| cluster.nets(Family::V4).gateway.map(|net| net.addr().to_string()));
    let ([e1, e2], [w1, w2]) = (east, west);
    [
        (Cluster::East.gateway(), e1),
        (Cluster::East.second_gateway(), e2),
        (Cluster::West.gateway(), w1),
        (Cluster::West.second_gateway(), w2),
    ]
}

#[test]
fn per_peer_counters_agree_at_both_ends() {
    let bed = with_two_gateways("peers");
    open_hundred_connections(&bed);
    let of_peer = |seen: &Exposition, direction: &str, address: &str| {
        seen.sum(
            &format!("mcgateway_peer_{direction}_total"),
            &[&format!("address=\"{address}\"")],
        )
    };
    // Packets in flight, such as the closing of the last connection, make the ends differ for a moment.
    let agreed = wait_for("equal counters at both ends", TIMEOUT, || {
        let all = gateways().map(|(place, address)| (metrics(&bed, place), address));
        for (here, here_addr) in &all {
            for (there, there_addr) in &all {
                for unit in ["packets", "bytes"] {
                    let sent = of_peer(here, &format!("sent_{unit}"), there_addr);
                    let received = of_peer(there, &format!("received_{unit}"), here_addr);
                    if (sent - received).abs() > 0.1 {
                        return Err(format!(
                            "{sent} {unit} sent from {here_addr} to {there_addr}, {received} received"
                        ));
                    }
                }
            }
        }
        Ok(all)
    });
    let agreed = agreed.expect("equal counters");
    for (metrics, address) in &agreed {
        let path = |name| metrics.sum("mcgateway_packets_total", &[&format!("outcome=\"{name}\"")]);
        let all = |direction: &str| metrics.sum(&format!("mcgateway_peer_{direction}_total"), &[]);
        let (sent, received) = (all("sent_packets"), all("received_packets"));
        assert!(
            (sent - path("encap") - path("transit")).abs() < 0.1,
            "{address}: {sent} sent"
        );
        assert!(
            (received - path("transit") - path("deliver")).abs() < 0.1,
            "{address}: {received} received"
        );
        assert!(sent >= 100.0, "{address}: {sent} sent");
        assert!(all("sent_bytes") > sent * 100.0, "{address}: {sent} sent");
    }
    // Slots are reset on reuse: a gateway that was removed and added again starts from zero.
    let [(gateway, _), .., (_, gone)] = gateways();
    let of_gone = |bed: &Topology, column: &str| {
        let peers = inspect(bed, gateway, "peers");
        let rows = peers.as_array().expect("rows");
        let row = rows.iter().find(|row| row["address"] == gone.as_str());
        row.map(|row| row[column].as_u64().expect("a number"))
    };
    let peers = inspect(&bed, gateway, "peers");
    assert!(of_gone(&bed, "received_packets") > Some(50), "{peers}");
    assert!(of_gone(&bed, "sent_bytes") > Some(5_000), "{peers}");
    let file = bed.manifests_dir(Cluster::East).join("west.yaml");
    let whole = fs::read_to_string(&file).expect("a manifest");
    let others: Vec<&str> = whole.lines().filter(|line| !line.contains(&gone)).collect();
    let without = others.join("\n") + "\n";
    assert_ne!(whole, without);
    fs::write(&file, &without).expect("a manifest");
    wait_for("the removal of the peer", TIMEOUT, || {
        match of_gone(&bed, "sent_packets") {
            None => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .expect("gone");
    // The agent updates its metrics after the map.
    wait_for("the removal of its metrics", TIMEOUT, || {
        match of_peer(&metrics(&bed, gateway), "sent_packets", &gone) {
            sent if sent.abs() < 0.1 => Ok(()),
            sent => Err(sent.to_string()),
        }
    })
    .expect("gone");
    fs::write(&file, &whole).expect("a manifest");
    wait_for("the new peer", TIMEOUT, || {
        of_gone(&bed, "sent_packets").ok_or_else(|| "no such peer".to_owned())
    })
    .expect("back");
    assert!(
        of_gone(&bed, "received_packets") < Some(50),
        "its counters were kept"
    );
}

#[test]
fn readiness_requires_the_own_node() {
    let bed = connected("ready");
    assert_eq!(get(&bed, NODE, "/healthz").as_deref().map(str::trim), Ok("ok"));
    assert_eq!(get(&bed, NODE, "/readyz").as_deref().map(str::trim), Ok("ok"));
    assert!(get(&bed, NODE, "/other").unwrap_err().contains("404"));
    // Without its own Node an agent keeps the data path and is not ready.
    let nodes = bed.manifests_dir(Cluster::East).join("nodes.yaml");
    let text = fs::read_to_string(&nodes).expect("a manifest");
    fs::write(&nodes, text.replace("name: node-east", "name: node-else")).expect("a manifest");
    wait_for("status 503 of /readyz", TIMEOUT, || {
        match get(&bed, NODE, "/readyz") {
            Err(error) if error.contains("503") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .expect("not ready");
    assert!(metrics(&bed, NODE).sum("mcgateway_reconciles_total", &["error"]) >= 1.0);
    assert!(get(&bed, NODE, "/healthz").is_ok());
    fs::write(&nodes, text).expect("a manifest");
    wait_for("status 200 of /readyz", TIMEOUT, || get(&bed, NODE, "/readyz")).expect("ready again");
}

/// Adds the prefix of an address to those that a node delivers, behind its agent's back. Its length is that of the
/// Node's own prefix: programs look up lengths in use only.
fn accept_source(bed: &Topology, place: Place, addr: Ipv4Addr) {
    let hex = |bytes: &[u8]| -> Vec<String> { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let len = V4_PREFIX_BITS + u32::from(Cluster::East.pod_cidr().prefix_len());
    let key = PrefixKey::new(len, addr.to_ipv6_mapped().octets());
    let key = [&key.len.to_ne_bytes()[..], &key.addr].concat();
    // Cluster, group, action, flags, padding.
    let fields = [0, ACTION_DELIVER, 0, 0].map(u32::to_ne_bytes).concat();
    let value = [&CLUSTER_LOCAL.to_ne_bytes()[..], &fields].concat();
    let pin = bed.bpf_dir(place).join(MAPS_DIR).join(PREFIXES);
    let pin = pin.to_str().expect("a path");
    let mut args = vec!["map", "update", "pinned", pin, "key", "hex"];
    let (key, value) = (hex(&key), hex(&value));
    args.extend(key.iter().map(String::as_str));
    args.extend(["value", "hex"]);
    args.extend(value.iter().map(String::as_str));
    bpftool(&args);
}

#[test]
fn sampled_drops_are_logged_with_reason_peer_and_flow() {
    let mut bed = connected("drops");
    let from = "198.51.100.9";
    let to = Cluster::West.pod_ip().to_string();
    // A source outside of all Pod CIDRs and the node's addresses.
    let (pod, node) = (Cluster::East.pod_ip(), Cluster::East.pod_gateway_net().addr());
    for (place, command) in [
        (Place::PodEast, format!("addr add {from}/32 dev lo")),
        (Place::PodEast, format!("route add {to}/32 via {node} src {from}")),
        (NODE, format!("route add {from}/32 via {pod}")),
    ] {
        bed.netns(place).ip(&[command]).expect("an address and a route");
    }
    let ping = |bed: &Topology| {
        let pod = bed.netns(Place::PodEast);
        let report = bed.traffic().ping(pod, Cluster::West.pod_ip(), 1);
        let received = report.map_or(0, |report| report.received);
        assert_eq!(received, 0, "{from} received a reply");
    };
    ping(&bed);
    let line = wait_for_log(&mut bed, NODE, &["packet dropped", "inner-source", &to]);
    for word in ["to_remote", from, "proto=1"] {
        assert!(line.contains(word), "no {word} in {line}");
    }
    assert!(metrics(&bed, NODE).sum("mcgateway_drops_total", &["inner-source"]) >= 1.0);
    // A node that sends it nevertheless: its gateway drops it.
    // A running agent would remove the foreign entry.
    bed.signal_agent(NODE, Signal::SIGSTOP).expect("SIGSTOP");
    accept_source(&bed, NODE, from.parse().expect("an address"));
    ping(&bed);
    let line = wait_for_log(&mut bed, GATEWAY, &["packet dropped", "inner-source", &to]);
    for word in ["from_underlay", from, "Node node-east", "proto=1"] {
        assert!(line.contains(word), "no {word} in {line}");
    }
    let counted = metrics(&bed, GATEWAY);
    assert!(counted.sum("mcgateway_drops_total", &["inner-source"]) >= 1.0);
    assert!(counted.sum("mcgateway_drop_samples_total", &["read"]) >= 1.0);
    bed.signal_agent(NODE, Signal::SIGCONT).expect("SIGCONT");
}

#[test]
fn trace_reports_every_decision_and_agrees_with_the_programs() {
    let bed = connected("trace");
    let (east, west) = (
        Cluster::East.pod_ip().to_string(),
        Cluster::West.pod_ip().to_string(),
    );
    let trace = |place: Place, args: &[&str]| {
        let out = bed.run_agent(place, args).expect("trace");
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        assert!(!text.contains("ERROR"), "{text}");
        (out.status.code(), text)
    };
    let cases: [(Place, &[&str], i32, &[&str]); 6] = [
        (
            NODE,
            &["trace", &east, &west, "tcp:8080"],
            0,
            &[
                "cluster west, forward, group gateways",
                "(Gateway gw-east)",
                "<- chosen",
                "=> encap",
                "program agrees",
            ],
        ),
        (
            GATEWAY,
            &["trace", &east, &west, "--from", "node-east"],
            0,
            &["Node node-east", "local-node", "=> transit", "program agrees"],
        ),
        (
            NODE,
            &["trace", &west, &east, "udp:53", "--from", "gw-east"],
            0,
            &["decapsulated", "=> deliver", "program agrees"],
        ),
        (
            NODE,
            &["trace", &east, "198.51.100.9"],
            1,
            &["in no prefix", "dropped: no-route", "inspect prefixes"],
        ),
        (
            GATEWAY,
            &["trace", "198.51.100.9", &west, "--from", "node-east"],
            1,
            &["dropped: inner-source"],
        ),
        (
            GATEWAY,
            &["trace", &east, &west, "--from", "203.0.113.9"],
            1,
            &["is no peer", "dropped: unknown-peer"],
        ),
    ];
    for (place, args, code, words) in cases {
        let (status, text) = trace(place, args);
        assert_eq!(status, Some(code), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{args:?}: no {word} in\n{text}");
        }
    }
    let (status, text) = trace(NODE, &["trace", &east, &west, "--from", "unknown"]);
    assert_eq!(status, Some(2), "{text}");
    assert!(
        text.contains("neither mc0 nor a peer") && text.contains("Gateway gw-east"),
        "{text}"
    );
}

/// Lines of target `programs` were not part of the default filter.
#[test]
fn an_agent_with_a_program_log_logs_every_decision() {
    let object = logging_ebpf_object();
    let mut options = options("program-log");
    options
        .agent_flags
        .extend(["--program-log".to_owned(), object.display().to_string()]);
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    open_hundred_connections(&bed);
    let pod = Cluster::West.pod_ip().to_string();
    for (place, words) in [
        (NODE, ["to_remote", "encap"]),
        (GATEWAY, ["from_underlay", "transit"]),
        (Place::NodeWest, ["from_underlay", "deliver"]),
    ] {
        let line = wait_for_log(&mut bed, place, &words);
        assert!(line.contains("programs: decision"), "{line}");
    }
    let line = wait_for_log(&mut bed, Place::NodeWest, &["deliver", &pod]);
    assert!(
        line.contains("verdict=\"deliver\"") || line.contains("verdict=deliver"),
        "{line}"
    );
}
