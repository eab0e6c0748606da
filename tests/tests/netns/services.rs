//! Service addresses: backend selection at the gateway and DNAT at the Pod's node, with the client's address preserved.

use std::{collections::BTreeSet, fs, time::Duration};

use aya::maps::{Map, MapData};
use mc_gateway_common::{
    abi::{
        MAPS_DIR,
        service::{FLOWS, Flow, FlowKey, MAX_FLOWS, SERVICE_PAST},
    },
    verdict::Event,
};
use mc_tests::{
    failover::event_count,
    process::Process,
    topology::{Cluster, Fault, Place, Topology},
    wait::wait_for,
};

use crate::{
    fixture::{TIMEOUT, bpftool, connected, map_dirs, web_service, with_two_gateways},
    observability::metrics,
};

/// West's Service: port 80 by TCP, 53 by UDP.
pub(crate) const SERVICE: &str = "10.102.0.10";
/// A Pod on west's gateway, with an address in the gateway's Pod CIDR.
const GATEWAY_POD: &str = "10.12.0.5";

/// Manifests of the Service with a Pod on the regular node and optionally one on the gateway.
fn service(affinity: &str, on_gateway: bool) -> String {
    let mut endpoints = vec![(Cluster::West.pod_ip(), "node-west")];
    endpoints.extend(on_gateway.then(|| (GATEWAY_POD.parse().expect("an address"), "gw-west")));
    web_service(SERVICE, affinity, &endpoints)
}

/// Writes the Service to west's manifests and waits until its gateway has `backends` of them.
fn publish(bed: &Topology, text: &str, backends: usize) {
    fs::write(bed.manifests_dir(Cluster::West).join("web.yaml"), text).expect("a manifest");
    let map = |place: Place, name: &str| bed.bpf_dir(place).join(MAPS_DIR).join(name).display().to_string();
    let dump = |place, name: &str| -> Vec<serde_json::Value> {
        let dump = bpftool(&["-j", "map", "dump", "pinned", &map(place, name)]);
        serde_json::from_str(&dump).expect("JSON")
    };
    // Set once the endpoints have changed.
    let past = u64::from(SERVICE_PAST);
    // With the default time-out of three hours.
    let flags = u64::from(text.contains("sessionAffinity: ClientIP")) * (1 | 10_800 << 8);
    wait_for("the Service in the maps", TIMEOUT, || {
        let seen = (
            dump(Place::GatewayWest, "mc_services")
                .iter()
                .filter_map(|entry| entry["formatted"]["value"]["flags"].as_u64())
                .filter(|seen| seen & !past == flags)
                .count(),
            dump(Place::GatewayWest, "mc_backends").len(),
            dump(Place::NodeWest, "mc_backends").len(),
        );
        if seen == (2, 2 * backends, 2) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .expect("the Service");
}

/// Sends a datagram from a socket connected to the Service address and returns the reply.
fn udp_request(bed: &Topology) -> String {
    let script = format!("exec 3<>/dev/udp/{SERVICE}/53; printf hello >&3; timeout 5 head -c 5 <&3");
    bed.netns(Place::PodEast)
        .run("bash", ["-c", script.as_str()])
        .expect("an answer")
}

/// Has west's gateway translate the Service to the Pod on the regular node, as its service proxy.
pub(crate) fn start_service_proxy(bed: &Topology) {
    bed.netns(Place::GatewayWest)
        .nft(&format!(
            "table ip proxy {{ chain prerouting {{ type nat hook prerouting priority dstnat; \
             ip daddr {SERVICE} tcp dport 80 dnat to {}:8080; }}; }}",
            Cluster::West.pod_ip()
        ))
        .expect("a service proxy");
}

fn get(bed: &Topology) -> String {
    bed.traffic()
        .get(bed.netns(Place::PodEast), &format!("http://{SERVICE}/"))
        .expect("an answer")
}

/// Starts the server of the Pod on the regular node.
fn pod_on_node(bed: &Topology) -> Process {
    let pod = bed.netns(Place::PodWest);
    bed.traffic().echo_server(pod, "on-node", 8080).expect("a server")
}

#[test]
fn a_service_address_answers_tcp_and_udp_and_sees_the_client_address() {
    let bed = connected("service");
    let gateway = bed.netns(Place::GatewayWest);
    gateway
        .ip(&[format!("address add {GATEWAY_POD}/32 dev lo")])
        .expect("an address");
    let _pod = pod_on_node(&bed);
    let _other = bed
        .traffic()
        .echo_server(gateway, "on-gateway", 8080)
        .expect("a server");
    publish(&bed, &service("None", false), 1);
    let client = Cluster::East.pod_ip();
    assert_eq!(get(&bed), format!("on-node {client}"));
    assert!(!udp_request(&bed).is_empty(), "no reply from the Service address");
    publish(&bed, &service("None", true), 2);
    let answers: BTreeSet<String> = (0..40).map(|_| get(&bed)).collect();
    let expected = ["on-gateway", "on-node"].map(|name| format!("{name} {client}"));
    assert_eq!(answers, expected.into());
    publish(&bed, &service("ClientIP", true), 2);
    let answers: BTreeSet<String> = (0..20).map(|_| get(&bed)).collect();
    assert_eq!(answers.len(), 1, "one client, one Pod: {answers:?}");
}

#[test]
fn a_connection_stays_on_its_pod_when_a_pod_is_added() {
    let bed = connected("svcstay");
    let _pod = pod_on_node(&bed);
    publish(&bed, &service("None", false), 1);
    // The connection is opened before the change and used after it.
    let client = open_client(&bed);
    let flows = bed.bpf_dir(Place::GatewayWest).join(MAPS_DIR).join("mc_flows");
    wait_for("the flow at the gateway", Duration::from_secs(20), || {
        let dump = bpftool(&["-j", "map", "dump", "pinned", &flows.display().to_string()]);
        if dump.contains("backend") {
            Ok(())
        } else {
            Err(dump)
        }
    })
    .expect("a flow");
    // The other Pod has no listener: a connection that moved there would be refused.
    publish(&bed, &service("None", true), 2);
    let answer = send_request(client);
    assert!(answer.contains("on-node"), "{answer}");
}

/// A client that connects, waits for the end of its stdin, and then sends a request.
fn open_client(bed: &Topology) -> std::process::Child {
    let script = format!(
        "exec 3<>/dev/tcp/{SERVICE}/80; read -r _; \
         printf 'GET / HTTP/1.1\\r\\nHost: web\\r\\nConnection: close\\r\\n\\r\\n' >&3; timeout 20 cat <&3"
    );
    bed.netns(Place::PodEast)
        .command("bash")
        .args(["-c", script.as_str()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("a client")
}

/// Lets a client send its request and returns the response.
fn send_request(mut client: std::process::Child) -> String {
    drop(client.stdin.take());
    let output = client.wait_with_output().expect("the client's end");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Rows of a section of `inspect`.
fn inspect(bed: &Topology, place: Place, section: &str) -> Vec<serde_json::Value> {
    let out = bed
        .run_agent(place, &["inspect", section, "-o", "json"])
        .expect("inspect");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let value: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    value[section].as_array().expect("rows").clone()
}

#[test]
fn connections_survive_the_loss_of_a_gateway_of_their_service() {
    const CLIENTS: usize = 8;
    const GATEWAYS: [Place; 2] = [Place::GatewayWest, Place::SecondGatewayWest];
    let mut bed = with_two_gateways("svclost");
    let pod = bed.netns(Place::PodWest);
    let _servers = [("first", 8080), ("second", 8081)]
        .map(|(name, port)| bed.traffic().echo_server(pod, name, port).expect("a server"));
    // Two endpoints with different ports.
    let one = service("None", false);
    let other = one
        .split("---\n")
        .find(|document| document.contains("EndpointSlice"))
        .expect("a slice")
        .replace("web-1", "web-2")
        .replace("port: 8080", "port: 8081");
    let text = format!("{one}---\n{other}");
    fs::write(bed.manifests_dir(Cluster::West).join("web.yaml"), text).expect("a manifest");
    for place in [GATEWAYS[0], GATEWAYS[1], Place::NodeWest] {
        wait_for("all endpoints", TIMEOUT, || {
            let rows = inspect(&bed, place, "services");
            (rows.len() == 4).then_some(()).ok_or(format!("{rows:?}"))
        })
        .expect("all endpoints");
    }
    let clients: Vec<_> = (0..CLIENTS).map(|_| open_client(&bed)).collect();
    let flows = |place| {
        let rows = inspect(&bed, place, "flows");
        rows.iter().filter(|row| row["kind"] == "chosen").count()
    };
    wait_for("a flow of each client", TIMEOUT, || {
        let found = GATEWAYS.map(flows);
        (found.iter().sum::<usize>() == CLIENTS)
            .then_some(())
            .ok_or(format!("{found:?}"))
    })
    .expect("flows");
    let (victim, lost) = GATEWAYS
        .map(|place| (place, flows(place)))
        .into_iter()
        .max_by_key(|(_, flows)| *flows)
        .expect("a gateway");
    println!("{} fails with {lost} of {CLIENTS} connections", victim.name());
    let translated = inspect(&bed, Place::NodeWest, "flows");
    let pods: BTreeSet<String> = translated.iter().map(|row| row["pod"].to_string()).collect();
    assert_eq!(translated.len(), CLIENTS, "{translated:?}");
    bed.inject_fault(victim, Fault::Freeze).expect("a fault");
    for client in clients {
        let answer = send_request(client);
        assert!(
            answer.contains("first 10.") || answer.contains("second 10."),
            "{answer:?} after the loss of {}; Pods: {pods:?}",
            victim.name()
        );
    }
}

#[test]
fn a_service_without_a_ready_pod_is_delivered_to_the_host_and_counted() {
    let bed = connected("svcnone");
    let _pod = pod_on_node(&bed);
    publish(&bed, &service("None", false), 1);
    assert!(get(&bed).starts_with("on-node"));
    let text = service("None", false).replace(
        "nodeName: node-west",
        "nodeName: node-west, conditions: {ready: false}",
    );
    fs::write(bed.manifests_dir(Cluster::West).join("web.yaml"), text).expect("a manifest");
    wait_for("no Service at the gateway", TIMEOUT, || {
        let rows = inspect(&bed, Place::GatewayWest, "services");
        let ready = rows.iter().filter(|row| row["ready"] == true).count();
        (ready == 0 && rows.len() == 2)
            .then_some(())
            .ok_or(format!("{rows:?}"))
    })
    .expect("no Service");
    let stack = || event_count(&bed, Place::GatewayWest, Event::ServiceToStack).expect("a count");
    let before = stack();
    let url = format!("http://{SERVICE}/");
    let traffic = bed.traffic();
    // Without a service proxy the host's stack drops the request.
    assert!(traffic.get(bed.netns(Place::PodEast), &url).is_err());
    assert!(stack() > before, "{before} packets before and now");
}

/// A port that the gateway began to translate took connections in their middle from the service proxy, and their new
/// Pod reset them; a port left to the service proxy lost its connections to it.
#[test]
fn connections_survive_switches_between_gateway_and_service_proxy() {
    let bed = connected("svcswitch");
    let _pod = pod_on_node(&bed);
    start_service_proxy(&bed);
    let translated = service("None", false);
    let proxied = translated.replace("clusterIP:", "internalTrafficPolicy: Local\n  clusterIP:");
    let file = bed.manifests_dir(Cluster::West).join("web.yaml");
    let leave_to_proxy = || {
        fs::write(&file, &proxied).expect("a manifest");
        wait_for("ports of the service proxy", TIMEOUT, || {
            let rows = inspect(&bed, Place::GatewayWest, "services");
            let ports = rows.iter().filter(|row| row["node"] == "service proxy").count();
            (ports == 2).then_some(()).ok_or(format!("{rows:?}"))
        })
        .expect("no translation");
    };
    let wait_for_flow = |pod: &str| {
        wait_for("the flow at the gateway", TIMEOUT, || {
            let rows = inspect(&bed, Place::GatewayWest, "flows");
            let found = rows.iter().any(|row| row["pod"] == pod);
            found.then_some(()).ok_or(format!("{rows:?}"))
        })
        .expect("a flow");
    };
    leave_to_proxy();
    let of_proxy = open_client(&bed);
    wait_for_flow("service proxy");
    publish(&bed, &translated, 1);
    let of_gateway = open_client(&bed);
    wait_for_flow(&format!("{}:8080", Cluster::West.pod_ip()));
    let answer = send_request(of_proxy);
    assert!(
        answer.contains("on-node"),
        "opened at the service proxy: {answer:?}"
    );
    leave_to_proxy();
    let answer = send_request(of_gateway);
    let client = Cluster::East.pod_ip();
    assert!(
        answer.contains(&format!("on-node {client}")),
        "opened at the gateway: {answer:?}"
    );
}

#[test]
fn inspect_trace_and_metrics_cover_services() {
    let bed = connected("svcsee");
    let _pod = pod_on_node(&bed);
    publish(&bed, &service("ClientIP", false), 1);
    get(&bed);
    let pod = format!("{}:8080", Cluster::West.pod_ip());
    let rows = inspect(&bed, Place::GatewayWest, "services");
    let http = rows.iter().find(|row| row["protocol"] == "TCP").expect("TCP");
    assert_eq!(http["service"], format!("{SERVICE}:80"));
    assert_eq!(
        (&http["pod"], &http["node"]),
        (&pod.as_str().into(), &"node/node-west".into())
    );
    assert_eq!((&http["affinity"], &http["share"]), (&true.into(), &509.into()));
    let rows = inspect(&bed, Place::NodeWest, "services");
    assert!(rows.iter().all(|row| row["node"] == "here"), "{rows:?}");
    let rows = inspect(&bed, Place::GatewayWest, "flows");
    assert_eq!(rows.len(), 2, "a flow and its client's choice: {rows:?}");
    assert!(
        rows.iter()
            .all(|row| row["kind"] == "chosen" && row["pod"] == pod.as_str())
    );
    let rows = inspect(&bed, Place::NodeWest, "flows");
    assert_eq!(
        (rows.len(), &rows[0]["kind"], &rows[0]["service"]),
        (1, &"translated".into(), &format!("{SERVICE}:80").into())
    );
    let prefixes = inspect(&bed, Place::NodeWest, "prefixes");
    let marked = prefixes.iter().filter(|row| row["service_pod"] == true);
    assert_eq!(marked.count(), 1, "{prefixes:?}");
    let client = Cluster::East.pod_ip().to_string();
    let trace_to = |place, from: &str, protocol, forwarded: bool| {
        let out = bed
            .run_agent(place, &["trace", &client, SERVICE, protocol, "--from", from])
            .expect("trace");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.success(), forwarded, "{text}{errors}");
        text
    };
    let trace = |place, from: &str, protocol| trace_to(place, from, protocol, true);
    let from_east = Cluster::East.gateway_net().addr().to_string();
    let text = trace(Place::GatewayWest, &from_east, "tcp:80");
    let chosen = format!("chosen: the Pod {pod} on node/node-west");
    assert!(
        text.contains(&chosen) && text.contains("program agrees"),
        "{text}"
    );
    for protocol in ["tcp:443", "icmp"] {
        let text = trace_to(Place::GatewayWest, &from_east, protocol, false);
        assert!(
            text.contains("dropped (not-exported)") && text.contains("program agrees"),
            "{text}"
        );
    }
    let from_gateway = Cluster::West.internal_net().addr().to_string();
    let text = trace(Place::NodeWest, &from_gateway, "udp:53");
    let translated = format!("translated to the Pod {pod}");
    assert!(
        text.contains(&translated) && text.contains("program agrees"),
        "{text}"
    );
    let metrics = bed
        .traffic()
        .get(bed.netns(Place::GatewayWest), "http://127.0.0.1:9469/metrics")
        .expect("metrics");
    for line in [
        "mcgateway_map_entries{map=\"mc_services\"} 2",
        "mcgateway_map_entries{map=\"mc_backends\"} 2",
        "mcgateway_map_capacity_entries{map=\"mc_flows\"} 65536",
        "mcgateway_events_total{event=\"service-to-stack\"}",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
}

/// A connection to the Service with a request each 50 ms, for two minutes at most.
fn held_connection(bed: &Topology) -> Process {
    let url = format!("http://{SERVICE}/");
    let args = ["keepalive", &url, "--interval", "50", "--duration", "120"];
    let client = bed.netns(Place::PodEast);
    let mut held = bed.traffic().spawn(client, &args).expect("a connection");
    held.wait_for_line("connected", TIMEOUT).expect("a connection");
    held
}

/// With a full flow table new and evicted connections continue, and `/metrics` reports it.
#[test]
fn a_gateway_with_a_full_flow_table_works_and_reports_it() {
    let bed = connected("fullflows");
    let _pod = pod_on_node(&bed);
    publish(&bed, &service("None", false), 1);
    let mut held = held_connection(&bed);
    let pin = bed.bpf_dir(Place::GatewayWest).join(MAPS_DIR).join(FLOWS);
    let mut flows: aya::maps::HashMap<_, FlowKey, Flow> = MapData::from_pin(&pin)
        .and_then(Map::from_map_data)
        .and_then(TryInto::try_into)
        .expect("the flow table");
    // Flows of non-existent clients, beyond the capacity.
    for flow in 0..MAX_FLOWS + 8_192 {
        let mut key = FlowKey {
            proto: 17,
            ..FlowKey::default()
        };
        key.client[..4].copy_from_slice(&flow.to_be_bytes());
        flows.insert(key, Flow { backend: 1 }, 0).expect("an eviction");
    }
    let seen = metrics(&bed, Place::GatewayWest);
    let of_flows = |name: &str| seen.sum(name, &["map=\"mc_flows\""]);
    let (used, capacity) = (
        of_flows("mcgateway_map_entries"),
        of_flows("mcgateway_map_capacity_entries"),
    );
    assert!((capacity - f64::from(MAX_FLOWS)).abs() < 0.1, "{capacity}");
    assert!(used > capacity * 0.9 && used <= capacity, "{used} of {capacity}");
    let before = event_count(&bed, Place::GatewayWest, Event::ServiceFlow).expect("events");
    for _ in 0..20 {
        assert!(get(&bed).starts_with("on-node"));
    }
    let after = event_count(&bed, Place::GatewayWest, Event::ServiceFlow).expect("events");
    assert!(after >= before + 20, "{before}, then {after}");
    let refused = event_count(&bed, Place::GatewayWest, Event::ServiceTableFull).expect("events");
    assert_eq!(refused, 0);
    let report = held.stop_cleanly(TIMEOUT).expect("the open connection survives");
    println!("{used} of {capacity} flows; the open connection: {report}");
}

/// The size of a flow table is no property of the layout: a change copies the flows.
#[test]
fn another_size_of_the_flow_tables_keeps_open_connections() {
    let mut bed = connected("flowsize");
    let _pod = pod_on_node(&bed);
    publish(&bed, &service("None", false), 1);
    let mut held = held_connection(&bed);
    let place = Place::GatewayWest;
    let table = |bed: &Topology| -> aya::maps::HashMap<MapData, FlowKey, Flow> {
        let pin = bed.bpf_dir(place).join(MAPS_DIR).join(FLOWS);
        MapData::from_pin(&pin)
            .and_then(Map::from_map_data)
            .and_then(TryInto::try_into)
            .expect("the flow table")
    };
    let marked = FlowKey {
        client: [7; 16],
        proto: 17,
        ..FlowKey::default()
    };
    let mut flows = table(&bed);
    flows.insert(marked, Flow { backend: 77 }, 0).expect("a flow");
    for (size, flags) in [
        (131_072_u32, &["--flow-table-size", "131072"][..]),
        (4_096, &["--flow-table-size", "4096"]),
        (MAX_FLOWS, &[]),
    ] {
        bed.set_agent_flags(flags);
        bed.stop_agent(place).expect("SIGTERM");
        bed.start_agent(place).expect("an agent");
        let known: std::collections::BTreeMap<FlowKey, Flow> =
            table(&bed).iter().map(|entry| entry.expect("an entry")).collect();
        assert_eq!(known.get(&marked), Some(&Flow { backend: 77 }), "{size}");
        assert!(
            known.len() > 1,
            "{size}: no entry of the open connection: {known:?}"
        );
        let seen = metrics(&bed, place);
        for (map, capacity) in [
            ("mc_flows", size),
            ("mc_replies", size),
            ("mc_fragments", size / 16),
        ] {
            let label = format!("map=\"{map}\"");
            let shown = seen.sum("mcgateway_map_capacity_entries", &[&label]);
            assert!(
                (shown - f64::from(capacity)).abs() < 0.1,
                "{map}: {shown}, not {capacity}"
            );
        }
        assert_eq!(map_dirs(&bed, place), [MAPS_DIR]);
    }
    let report = held.stop_cleanly(TIMEOUT).expect("the open connection survives");
    println!("{report}");
}
