//! Cross-cluster packets on the wire, and the agents' capabilities.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::{Child, Command},
};

use mc_tests::{
    capture,
    decode::{Frame, Payload},
    traffic::StreamReport,
};

use crate::{
    clusters::{EAST, SHORT_TIMEOUT, WEST, agent_pid, on_node},
    workload::Namespace,
};

/// `CAP_NET_ADMIN` of linux/capability.h, the only capability kept after loading.
const NET_ADMIN: u64 = 1 << 12;
/// With `CAP_PERFMON` and `CAP_BPF`: the capabilities the DaemonSet grants.
const GRANTED: u64 = NET_ADMIN | 1 << 38 | 1 << 39;

/// Flag of an inner source MAC address with a secret, in its first byte (docs/design/reachability.md).
const SECRET_FLAG: u8 = 0x08;

#[test]
fn only_encapsulated_packets_cross_and_nothing_is_masqueraded() {
    let ns = Namespace::create("e2e-wire");
    ns.serve(WEST, "west-n2", 1);
    let client = ns.client(EAST, "east-n2");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    client.get(&client.imported_url());
    let servers = ns.pod_addresses(WEST, "app=web").remove(0).1;
    let paths: Vec<_> = servers
        .iter()
        .map(|server| (client.ip_like(*server), *server))
        .collect();
    assert_eq!(paths.len(), 2, "IPv4 and IPv6: {paths:?}");
    let counters = || paths.iter().map(|(pod, _)| masquerade_counters("east-n2", *pod));
    let before: Vec<_> = counters().collect();
    let capturing = PacketCapture::start("east-n1");
    let answers = client.get_many(&client.imported_url(), 10);
    assert_eq!(answers.len(), 10);
    for (pod, server) in &paths {
        let answers = client.get_many(&format!("http://{}/", SocketAddr::new(*server, 8080)), 10);
        assert!(
            answers.iter().all(|answer| answer.ends_with(&format!(" {pod}"))),
            "{answers:?}"
        );
    }
    let frames = capturing.finish();
    let pods: Vec<_> = paths.iter().map(|(pod, _)| *pod).collect();
    let mut tunnelled = 0;
    for frame in &frames {
        let Some(ip) = &frame.ip else { continue };
        // Every device with IPv6 sends it, at growing intervals.
        if ip.is_link_discovery() {
            continue;
        }
        let clear = [ip.from, ip.to];
        assert!(
            !clear.iter().any(|ip| pods.contains(ip)),
            "in clear on the underlay: {frame:?}"
        );
        assert!(ip.from.is_ipv4(), "the underlay's family is IPv4: {frame:?}");
        let Payload::Geneve(_, geneve) = &ip.payload else {
            continue;
        };
        assert_eq!(geneve.vni, 0, "stretched policy is off: {frame:?}");
        let inner = geneve.inner.as_ref().expect("an inner frame");
        assert_ne!(inner.from.0[0] & SECRET_FLAG, 0, "without a secret: {frame:?}");
        if frame.is_probe() {
            continue;
        }
        let inner = frame.inner().expect("an inner packet");
        assert!(
            [inner.from, inner.to].iter().any(|ip| pods.contains(ip)),
            "{frame:?}"
        );
        tunnelled += 1;
    }
    // Each connection has at least four packets each way, and the gateway sees every one twice.
    assert!(
        tunnelled >= 30 * 8 * 2,
        "only {tunnelled} encapsulated packets in {} frames",
        frames.len()
    );
    assert_eq!(
        counters().collect::<Vec<_>>(),
        before,
        "the CNI masqueraded cross-cluster packets"
    );
}

/// Pods have the underlay's MTU, as with most CNIs, so their first packets do not fit the tunnel.
#[test]
fn a_bulk_transfer_crosses_although_pods_have_the_underlays_mtu() {
    let ns = Namespace::create("e2e-bulk");
    let client = ns.client(EAST, "east-n2");
    for sink in ["sink-ipv4", "sink-ipv6"] {
        ns.pod(
            WEST,
            "west-n2",
            sink,
            &["stream-recv", "--port=5201", "'--bind=::'"],
        );
        let ips = ns.pod_addresses(WEST, &format!("app={sink}")).remove(0).1;
        let ip = ips.into_iter().find(|ip| ip.is_ipv6() == sink.ends_with("ipv6"));
        let to = SocketAddr::new(ip.expect("an address"), 5201).to_string();
        client
            .run(&["stream-send", &to, "--duration", "1"])
            .expect("a stream");
        let report = WEST.wait_for(&format!("the report of {sink}"), SHORT_TIMEOUT, || {
            let log = WEST.kubectl(&["logs", sink, "-n", ns.0]);
            let line = log.lines().last().unwrap_or_default().to_owned();
            serde_json::from_str::<StreamReport>(&line).map_err(|_| log)
        });
        assert!(report.bytes > 10_000_000, "{to}: {report:?}");
    }
}

#[test]
fn agents_load_with_three_capabilities_and_keep_one() {
    for cluster in [EAST, WEST] {
        for node in 1..=2 {
            let node = format!("{}-n{node}", cluster.0);
            let (effective, bounding) = agent_capabilities(&node);
            assert_eq!(effective, NET_ADMIN, "{node}: effective {effective:#x}");
            assert_eq!(bounding & !GRANTED, 0, "{node}: bounding {bounding:#x}");
        }
    }
}

/// Effective and bounding capability set of the agent on a Node.
fn agent_capabilities(node: &str) -> (u64, u64) {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", agent_pid(node))).expect("the agent's status");
    let set = |name: &str| {
        let set = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("a capability set");
        u64::from_str_radix(set.trim(), 16).expect("a mask")
    };
    (set("CapEff:"), set("CapBnd:"))
}

/// Packet counters of the rules that masquerade a Pod's traffic.
fn masquerade_counters(node: &str, pod: IpAddr) -> Vec<String> {
    let (program, source) = if pod.is_ipv6() {
        ("ip6tables-save", format!("-s {pod}/128"))
    } else {
        ("iptables-save", format!("-s {pod}/32"))
    };
    let rules = on_node(node, program, &["-t", "nat", "-c"]);
    // `[packets:bytes] -A POSTROUTING -s POD/32 -j CNI-…`, and its target chain.
    let chain = rules
        .lines()
        .find(|line| line.contains("-A POSTROUTING") && line.contains(&source))
        .and_then(|line| line.split_whitespace().skip_while(|word| *word != "-j").nth(1))
        .unwrap_or_else(|| panic!("no masquerade chain of {pod} on {node}: is ipMasq off?\n{rules}"));
    let counters: Vec<String> = rules
        .lines()
        .filter(|line| line.contains(&format!("-A {chain} ")) && line.contains("MASQUERADE"))
        .map(str::to_owned)
        .collect();
    assert!(!counters.is_empty(), "no MASQUERADE rule in {chain}\n{rules}");
    counters
}

/// A capture of all frames on the underlay of a node.
pub(crate) struct PacketCapture {
    child: Child,
    file: PathBuf,
}

impl PacketCapture {
    pub(crate) fn start(node: &str) -> Self {
        let file = std::env::temp_dir().join(format!("mc-e2e-{}-{node}.pcap", std::process::id()));
        let log = file.with_extension("log");
        let program = std::env::var_os("MC_TRAFFIC").expect("MC_TRAFFIC");
        let child = Command::new("ip")
            .args(["netns", "exec", &format!("mc-{node}")])
            .arg(program)
            .args(["capture", "--device", "eth0", "--direction", "both", "--out"])
            .arg(&file)
            .stdout(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("a capture");
        EAST.wait_for("the capture", SHORT_TIMEOUT, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.contains(capture::CAPTURING) {
                Ok(())
            } else {
                Err(text)
            }
        });
        std::fs::remove_file(&log).expect("remove the log");
        Self { child, file }
    }

    pub(crate) fn finish(mut self) -> Vec<Frame> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("SIGTERM");
        self.child.wait().expect("the capture");
        let frames = capture::read(&self.file).expect("frames");
        std::fs::remove_file(&self.file).expect("remove the capture");
        frames.iter().filter_map(|bytes| Frame::decode(bytes)).collect()
    }
}
