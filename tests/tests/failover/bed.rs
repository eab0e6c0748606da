//! Two clusters, the western one with two gateways, on switches whose ports can be blocked.
//!
//! ```text
//!  pod-east -- node-east -- gw-east --[between]-- gw-west-1 --[inside]-- node-west -- pod-west
//!                                        |------- gw-west-2 -----|
//! ```

use std::{
    collections::BTreeMap,
    env, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use aya::maps::{Map, MapData, PerCpuArray};
use mc_gateway_common::{abi, verdict::Event};
use mc_tests::{
    netns::{Netns, remove_pins, residue},
    process::Process,
    wait::wait_for,
};
use nix::sys::signal::Signal;

pub(crate) const POD_EAST: Ipv4Addr = Ipv4Addr::new(10, 11, 1, 2);
pub(crate) const POD_WEST: Ipv4Addr = Ipv4Addr::new(10, 12, 1, 2);
pub(crate) const G1: &str = "gw-west-1";
pub(crate) const G2: &str = "gw-west-2";

/// How long something that takes a second may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

const HOSTS: [&str; 8] = [
    "pod-east",
    "node-east",
    "gw-east",
    "switch",
    G1,
    G2,
    "node-west",
    "pod-west",
];
const AGENTS: [&str; 5] = ["node-east", "gw-east", G1, G2, "node-west"];

/// What happens to a gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Its underlay devices go down.
    LinkDown,
    /// Everything stops without a sign: the switch no longer passes its frames, its agent is stopped.
    Freeze,
}

/// The namespaces and agents; dropping it removes everything.
pub(crate) struct Bed {
    agents: BTreeMap<&'static str, Process>,
    hosts: BTreeMap<&'static str, Netns>,
    prefix: String,
    directory: PathBuf,
}

/// Address of a western gateway between the clusters.
pub(crate) fn outside(gateway: &str) -> &'static str {
    if gateway == G1 {
        "192.168.100.11"
    } else {
        "192.168.100.12"
    }
}

impl Bed {
    pub(crate) fn create(name: &str) -> Self {
        let prefix = format!("lv-{name}");
        // What a run that was killed has left.
        residue(&prefix)
            .and_then(|left| left.remove())
            .expect("remove leftovers");
        let directory = env::temp_dir().join(format!("{prefix}-lab"));
        fs::remove_dir_all(&directory).ok();
        fs::create_dir_all(&directory).expect("a directory");
        let hosts = HOSTS
            .into_iter()
            .map(|host| {
                (
                    host,
                    Netns::create(&format!("{prefix}-{host}")).expect("a namespace"),
                )
            })
            .collect();
        let mut bed = Self {
            agents: BTreeMap::new(),
            hosts,
            prefix,
            directory,
        };
        bed.wire();
        for cluster in ["east", "west"] {
            let directory = bed.directory.join(cluster);
            fs::create_dir_all(&directory).expect("a directory");
            fs::write(directory.join("all.yaml"), manifests(cluster)).expect("manifests");
        }
        for agent in AGENTS {
            bed.start_agent(agent);
        }
        for agent in AGENTS {
            bed.wait_log(agent, "datapath ready", 1);
        }
        bed
    }

    fn host(&self, name: &str) -> &Netns {
        &self.hosts[name]
    }

    pub(crate) fn netns_path(&self, name: &str) -> String {
        format!("/run/netns/{}-{name}", self.prefix)
    }

    fn bpf_dir(&self, name: &str) -> PathBuf {
        Path::new("/sys/fs/bpf").join(format!("{}-{name}", self.prefix))
    }

    fn wire(&self) {
        for name in HOSTS {
            let mut settings = vec![
                ("net.ipv6.conf.all.disable_ipv6", "1"),
                ("net.ipv6.conf.default.disable_ipv6", "1"),
            ];
            if AGENTS.contains(&name) {
                settings.extend([
                    ("net.ipv4.ip_forward", "1"),
                    ("net.ipv4.conf.all.rp_filter", "1"),
                    ("net.ipv4.conf.default.rp_filter", "1"),
                ]);
            }
            self.host(name).sysctl(&settings).expect("sysctl");
        }
        let join = |a: &str, dev_a: &str, b: &str, dev_b: &str| {
            self.host(a)
                .veth(dev_a, self.host(b), dev_b)
                .expect("a veth pair");
        };
        join("pod-east", "eth0", "node-east", "pod0");
        join("node-east", "eth0", "gw-east", "eth0");
        join("gw-east", "eth1", "switch", "b-east");
        join(G1, "eth1", "switch", "b-g1");
        join(G2, "eth1", "switch", "b-g2");
        join(G1, "eth0", "switch", "i-g1");
        join(G2, "eth0", "switch", "i-g2");
        join("node-west", "eth0", "switch", "i-node");
        join("pod-west", "eth0", "node-west", "pod0");
        let up = |host: &str, device: &str, address: &str, mtu: u32| {
            let lines = [
                format!("addr add {address} dev {device}"),
                format!("link set {device} mtu {mtu} up"),
            ];
            self.host(host).ip(&lines).expect("an address");
        };
        up("pod-east", "eth0", "10.11.1.2/24", 1450);
        up("node-east", "pod0", "10.11.1.1/24", 1450);
        up("node-east", "eth0", "192.168.11.2/24", 1500);
        up("gw-east", "eth0", "192.168.11.1/24", 1500);
        up("gw-east", "eth1", "192.168.100.1/24", 1500);
        up(G1, "eth1", "192.168.100.11/24", 1500);
        up(G2, "eth1", "192.168.100.12/24", 1500);
        up(G1, "eth0", "192.168.12.11/24", 1500);
        up(G2, "eth0", "192.168.12.12/24", 1500);
        up("node-west", "eth0", "192.168.12.2/24", 1500);
        up("node-west", "pod0", "10.12.1.1/24", 1450);
        up("pod-west", "eth0", "10.12.1.2/24", 1450);
        let mut lines = vec![
            "link add between type bridge".to_owned(),
            "link add inside type bridge".to_owned(),
            "link set between up".to_owned(),
            "link set inside up".to_owned(),
        ];
        for (port, bridge) in [
            ("b-east", "between"),
            ("b-g1", "between"),
            ("b-g2", "between"),
            ("i-g1", "inside"),
            ("i-g2", "inside"),
            ("i-node", "inside"),
        ] {
            lines.push(format!("link set {port} master {bridge} up"));
        }
        self.host("switch").ip(&lines).expect("bridges");
        for (pod, gateway) in [("pod-east", "10.11.1.1"), ("pod-west", "10.12.1.1")] {
            let route = [format!("route add default via {gateway}")];
            self.host(pod).ip(&route).expect("a route");
        }
    }

    fn start_agent(&mut self, name: &'static str) {
        let program = env::var_os("MC_AGENT")
            .expect("MC_AGENT names the agent: run `cargo xtask test --suite failover`");
        let cluster = if name.ends_with("east") { "east" } else { "west" };
        let mut command = self.host(name).command(program);
        command
            .args(["run", "--node-name", name, "--manifests"])
            .arg(self.directory.join(cluster))
            .arg("--bpf-dir")
            .arg(self.bpf_dir(name));
        let log = self.directory.join(format!("agent-{name}.log"));
        let process = Process::spawn(&format!("mc-gateway on {name}"), &mut command, &log).expect("an agent");
        self.agents.insert(name, process);
    }

    pub(crate) fn break_gateway(&mut self, gateway: &'static str, fault: Fault) {
        match fault {
            Fault::LinkDown => self.links(gateway, "down"),
            Fault::Freeze => {
                self.ports(gateway, "disabled");
                self.signal_agent(gateway, Signal::SIGSTOP);
            }
        }
    }

    pub(crate) fn heal_gateway(&mut self, gateway: &'static str, fault: Fault) {
        match fault {
            Fault::LinkDown => self.links(gateway, "up"),
            Fault::Freeze => {
                self.signal_agent(gateway, Signal::SIGCONT);
                self.ports(gateway, "forwarding");
            }
        }
    }

    fn links(&self, gateway: &str, state: &str) {
        let lines = [format!("link set eth1 {state}"), format!("link set eth0 {state}")];
        self.host(gateway).ip(&lines).expect("links");
    }

    fn ports(&self, gateway: &str, state: &str) {
        let number = if gateway == G1 { "g1" } else { "g2" };
        for side in ["b", "i"] {
            let port = format!("{side}-{number}");
            self.host("switch")
                .run("bridge", ["link", "set", "dev", port.as_str(), "state", state])
                .expect("a port");
        }
    }

    pub(crate) fn signal_agent(&mut self, name: &str, signal: Signal) {
        self.agents
            .get_mut(name)
            .expect("an agent")
            .signal(signal)
            .expect("a signal");
    }

    fn log(&self, agent: &str) -> String {
        self.agents[agent].output()
    }

    /// Lines of an agent's log that contain `text`.
    pub(crate) fn count_log(&self, agent: &str, text: &str) -> usize {
        self.log(agent).lines().filter(|line| line.contains(text)).count()
    }

    pub(crate) fn wait_log(&self, agent: &str, text: &str, times: usize) {
        wait_for(&format!("`{text}` in the log of {agent}"), SOON, || {
            let found = self.count_log(agent, text);
            if found >= times {
                Ok(())
            } else {
                Err(format!("{found} of {times}: {}", self.log(agent)))
            }
        })
        .expect("a log line");
    }

    pub(crate) fn wait(&self, what: &str, mut look: impl FnMut(&Self) -> Result<(), String>) {
        wait_for(what, SOON, || look(self)).expect(what);
    }

    pub(crate) fn assert_nobody_died(&self) {
        for agent in AGENTS {
            let log = self.log(agent);
            assert!(
                !log.lines()
                    .any(|line| line.contains("member") && line.contains(" dead")),
                "{agent}: {log}"
            );
            assert_eq!(self.events(agent, Event::AllMembersDead), 0, "{agent}");
        }
    }

    /// How often an agent's programs have counted an event.
    pub(crate) fn events(&self, agent: &str, event: Event) -> u64 {
        let pin = self.bpf_dir(agent).join(abi::MAPS_DIR).join(abi::EVENTS);
        let data = MapData::from_pin(&pin).expect("pinned events");
        let map = Map::from_map_data(data).expect("a map");
        let events: PerCpuArray<MapData, u64> = map.try_into().expect("a per-CPU array");
        events.get(&(event as u32), 0).expect("a count").iter().sum()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // A stopped process ends only by SIGKILL, which `Process` sends.
        self.agents.clear();
        for agent in AGENTS {
            if let Err(error) = remove_pins(&self.bpf_dir(agent)) {
                eprintln!("{error:#}");
            }
        }
        self.hosts.clear();
        fs::remove_dir_all(&self.directory).ok();
    }
}

fn manifests(cluster: &str) -> String {
    let node = |name: &str, address: &str, cidr: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\nspec:\n  podCIDR: {cidr}\n  podCIDRs:\n  - {cidr}\n\
             status:\n  addresses:\n  - type: InternalIP\n    address: {address}\n"
        )
    };
    let gateway = |name: &str, outside: &str, inside: &str, services: &str| {
        format!(
            "apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: Gateway\nmetadata:\n  name: {name}\n  \
             namespace: kube-system\ngatewayIP: {outside}\ninternalIP: {inside}\nserviceCIDR: {services}\n"
        )
    };
    let import = |name: &str, gateways: &[&str], pods: &str, services: &str| {
        let infos: String = gateways
            .iter()
            .flat_map(|ip| ["  - gatewayIP: ", *ip, "\n"])
            .collect();
        format!(
            "apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: ClusterInfoImport\nmetadata:\n  \
             name: {name}-clusterinfo\n  namespace: kube-system\nspec:\n  clusterID: {name}\n  gatewayInfos:\n{infos}  \
             podCIDRs:\n  - {pods}\n  serviceCIDR: {services}\n"
        )
    };
    let (east, west) = ("10.101.0.0/16", "10.102.0.0/16");
    let documents = if cluster == "east" {
        vec![
            node("node-east", "192.168.11.2", "10.11.1.0/24"),
            node("gw-east", "192.168.11.1", "10.11.0.0/24"),
            gateway("gw-east", "192.168.100.1", "192.168.11.1", east),
            import("west", &[outside(G1), outside(G2)], "10.12.0.0/16", west),
        ]
    } else {
        vec![
            node("node-west", "192.168.12.2", "10.12.1.0/24"),
            node(G1, "192.168.12.11", "10.12.10.0/24"),
            node(G2, "192.168.12.12", "10.12.11.0/24"),
            gateway(G1, outside(G1), "192.168.12.11", west),
            gateway(G2, outside(G2), "192.168.12.12", west),
            import("east", &["192.168.100.1"], "10.11.0.0/16", east),
        ]
    };
    documents.join("---\n")
}
