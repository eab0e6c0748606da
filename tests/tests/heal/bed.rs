//! Two connected clusters with a Service, a third cluster with an Antrea gateway that does not exist, and clients.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use mc_tests::{
    fixture::{self, TIMEOUT, web_service},
    process::{Process, run},
    topology::{Cluster, Format, Masquerade, Place, Topology, Variant},
    wait::wait_for,
};
use nix::sys::signal::Signal;

use crate::{state::State, traffic::Client};

/// West's Service: port 80 by TCP, 53 by UDP.
const SERVICE: &str = "10.102.0.10";
/// Port of the echo server of west's Pod.
const PORT: u16 = 8080;

/// Time limit of a repair, longer than any that passes.
const DEADLINE: Duration = Duration::from_secs(10);

/// How the programs of a node are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// By TCX links.
    Tcx,
    /// By filters.
    Clsact,
}

impl Attach {
    const fn flag(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

/// The clusters, their traffic, and the state of each node when everything worked.
#[derive(Debug)]
pub(crate) struct Bed {
    // Drop order: clients and server before the namespaces.
    pod: Client,
    service: Client,
    _server: Process,
    attach: BTreeMap<Place, Attach>,
    flags: BTreeMap<Place, Vec<String>>,
    whole: BTreeMap<Place, State>,
    pub(crate) topology: Topology,
}

/// The time until a change was repaired, and the longest times without a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repair {
    /// Until the state equals the one before.
    pub(crate) restored: Duration,
    /// Requests to the Pod's address.
    pub(crate) pod_outage: Duration,
    /// Requests to the Service.
    pub(crate) service_outage: Duration,
}

impl Bed {
    /// Connects the clusters. `attach` is the mode of each node, `prefixes` the number of additional prefixes.
    pub(crate) fn connect(name: &str, attach: impl Fn(Place) -> Attach, prefixes: usize) -> Self {
        let mut options = fixture::options(name);
        options.masquerade = Masquerade::LeavingCluster;
        options.format = Format::Vxlan;
        let flags = options.agent_flags.clone();
        let mut topology = Topology::create(options).expect("the namespaces");
        topology.configure(Variant::McGateway).expect("the agents");
        for cluster in Cluster::ALL {
            let manifest = topology.manifests_dir(cluster).join("north.yaml");
            fs::write(manifest, north(cluster, prefixes)).expect("a manifest");
        }
        let web = web_service(SERVICE, "None", &[(Cluster::West.pod_ip(), "node-west")]);
        fs::write(topology.manifests_dir(Cluster::West).join("web.yaml"), web).expect("a manifest");
        let attach: BTreeMap<_, _> = Place::NODES.map(|place| (place, attach(place))).into();
        let flags: BTreeMap<Place, Vec<String>> = attach
            .iter()
            .map(|(place, attach)| {
                let own = ["--antrea-clusters", "north", "--attach", attach.flag()];
                let own = own.into_iter().map(str::to_owned);
                (*place, flags.iter().cloned().chain(own).collect())
            })
            .collect();
        for (place, flags) in &flags {
            topology.stop_agent(*place).expect("SIGTERM");
            start(&mut topology, *place, flags);
        }
        let server = topology
            .traffic()
            .echo_server(topology.netns(Place::PodWest), "west", PORT);
        let client = |to: SocketAddr| Client::start(topology.netns(Place::PodEast), to);
        let mut bed = Self {
            pod: client((Cluster::West.pod_ip(), PORT).into()),
            service: client(SocketAddr::new(SERVICE.parse().expect("an address"), 53)),
            _server: server.expect("a server"),
            attach,
            flags,
            whole: BTreeMap::new(),
            topology,
        };
        bed.wait_replies(Instant::now()).expect("replies");
        bed.whole = Place::NODES.map(|place| (place, bed.settled(place))).into();
        bed
    }

    /// Mode of a node.
    pub(crate) fn attach(&self, place: Place) -> Attach {
        self.attach[&place]
    }

    /// The state of a node once it no longer changes: the path MTUs and the addresses of the Service are known.
    fn settled(&self, place: Place) -> State {
        let mut last = (Instant::now(), State::default());
        wait_for("a constant state", TIMEOUT, || {
            let state = State::read(&self.topology, place);
            if state != last.1 {
                let difference = state.difference(&last.1);
                last = (Instant::now(), state);
                return Err(difference);
            }
            if last.0.elapsed() < Duration::from_secs(1) {
                return Err("constant for less than a second".to_owned());
            }
            Ok(state)
        })
        .expect("a state")
    }

    /// Waits for replies to both clients after `moment`.
    fn wait_replies(&self, moment: Instant) -> Result<()> {
        wait_for("replies to both clients", TIMEOUT, || {
            let late = [("Pod", &self.pod), ("Service", &self.service)]
                .into_iter()
                .filter(|(_, client)| client.last_reply().is_none_or(|reply| reply <= moment));
            let late: Vec<&str> = late.map(|(name, _)| name).collect();
            if late.is_empty() {
                Ok(())
            } else {
                Err(format!("no reply of {late:?}"))
            }
        })
    }

    /// Runs `ip` in the namespace of a node.
    pub(crate) fn ip(&self, place: Place, lines: &[&str]) -> Result<()> {
        self.topology.netns(place).ip(lines).map(drop)
    }

    /// Runs a program in the namespace of a node.
    pub(crate) fn run(&self, place: Place, command: &str) -> Result<()> {
        let mut words = command.split(' ');
        let program = words.next().context("a program")?;
        self.topology.netns(place).run(program, words).map(drop)
    }

    fn signal(&mut self, place: Place, signal: Signal) {
        self.topology.signal_agent(place, signal).expect("a signal");
    }

    /// Makes a change at some nodes while their agents are stopped, so that its effect is seen before they repair it.
    /// Returns the time at which the agents continue.
    pub(crate) fn change(&mut self, places: &[Place], make: impl FnOnce(&Self)) -> Instant {
        for place in places {
            self.signal(*place, Signal::SIGSTOP);
        }
        make(self);
        let unchanged = places
            .iter()
            .filter(|place| State::read(&self.topology, **place) == self.whole[place]);
        let unchanged: Vec<_> = unchanged.copied().collect();
        for place in places {
            self.signal(*place, Signal::SIGCONT);
        }
        let continued = Instant::now();
        assert!(unchanged.is_empty(), "the change has no effect at {unchanged:?}");
        continued
    }

    /// Waits until the state of some nodes and the traffic are as before. `since` is the time of the change.
    pub(crate) fn repaired(&self, places: &[Place], since: Instant) -> Result<Repair, String> {
        let restored = wait_for("the state before the change", DEADLINE, || {
            for place in places {
                let state = State::read(&self.topology, *place);
                let whole = &self.whole[place];
                if state != *whole {
                    return Err(format!("{}:\n{}", place.name(), state.difference(whole)));
                }
            }
            Ok(since.elapsed())
        });
        let restored = restored.map_err(|error| format!("{error:#}"))?;
        self.wait_replies(Instant::now())
            .map_err(|error| format!("{error:#}"))?;
        Ok(Repair {
            restored,
            pod_outage: self.pod.longest_gap_since(since),
            service_outage: self.service.longest_gap_since(since),
        })
    }

    /// Response of an agent to `/readyz`; an error with the reason if it is not ready.
    pub(crate) fn readyz(&self, place: Place) -> Result<(), String> {
        let request = "exec 3<>/dev/tcp/127.0.0.1/9469
            printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3
            timeout 2 cat <&3";
        let response = self.topology.netns(place).run("bash", ["-c", request]);
        let response = response.map_err(|error| format!("{error:#}"))?;
        if response
            .lines()
            .next()
            .is_some_and(|status| status.contains(" 200 "))
        {
            Ok(())
        } else {
            Err(response.lines().last().unwrap_or_default().to_owned())
        }
    }

    /// Restarts an agent that has not repaired a change, so that the next change meets a whole data path.
    pub(crate) fn restart(&mut self, place: Place) {
        self.topology.kill_agent(place).expect("SIGKILL");
        start(&mut self.topology, place, &self.flags[&place]);
    }

    /// CPU time of an agent since its start.
    pub(crate) fn cpu_time(&mut self, place: Place) -> Duration {
        let pid = self.topology.agent_pid(place).expect("an agent");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("statistics");
        // The name in parentheses may contain spaces; utime and stime are fields 14 and 15 of proc(5).
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }
}

/// Removes mounts that a failed test left over pin directories: they would outlive the namespaces.
impl Drop for Bed {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        for place in Place::NODES {
            let dir = self.topology.bpf_dir(place);
            let mounted = |line: &str| line.split(' ').nth(1).is_some_and(|path| Path::new(path) == dir);
            if mounts.lines().any(mounted)
                && let Err(error) = run(Command::new("umount").arg(&dir))
            {
                eprintln!("{error:#}");
            }
        }
    }
}

fn start(topology: &mut Topology, place: Place, flags: &[String]) {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    topology.set_agent_flags(&flags);
    topology.start_agent(place).expect("an agent");
}

/// A cluster with an Antrea gateway, for which a gateway adds rules and a routing table, with `prefixes` Pod CIDRs.
fn north(importer: Cluster, prefixes: usize) -> String {
    let address = match importer {
        Cluster::East => "192.168.100.91",
        Cluster::West => "192.168.100.92",
    };
    let pods =
        (0..prefixes.max(1)).map(|number| format!("  - 10.{}.{}.0/24\n", 130 + number / 256, number % 256));
    let pods = pods.collect::<Vec<_>>().concat();
    format!(
        "\
apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterInfoImport
metadata:
  name: north-clusterinfo
  namespace: kube-system
spec:
  clusterID: north
  gatewayInfos:
  - gatewayIP: {address}
  podCIDRs:
{pods}  serviceCIDR: 10.129.0.0/16
"
    )
}
