//! The topology with its agents, Services and open connections, and the steps that events are made of.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    net::IpAddr,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use mc_tests::{
    failover, fixture,
    topology::{Cluster, Family, Inner, Place, Secrets, Topology, UPDATED, Variant},
    wait::wait_for,
};
use serde_json::Value;

use crate::{
    connection::{Protocol, Spec, Target},
    objects::{self, SPARE, SPARES, Service},
    pool::{Id, Pool},
    runtime::Runtime,
    server,
};

/// Timeout for steps that take milliseconds on a quiet machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// Gateways of cluster west.
pub(crate) const WEST_GATEWAYS: [Place; 2] = [Place::GatewayWest, Place::SecondGatewayWest];
/// Agents of each cluster.
pub(crate) const EAST: [Place; 3] = [Place::NodeEast, Place::GatewayEast, Place::SecondGatewayEast];
pub(crate) const WEST: [Place; 3] = [Place::NodeWest, Place::GatewayWest, Place::SecondGatewayWest];

/// The topology and its traffic.
#[derive(Debug)]
pub(crate) struct World {
    // Drop order: tasks before the namespaces of their sockets.
    pub(crate) pool: Pool,
    _servers: Runtime,
    pub(crate) bed: Topology,
    /// The Service of the connections.
    pub(crate) web: Service,
    /// Connections that the service proxy of a gateway translates.
    pub(crate) of_stack: Vec<Id>,
    /// The agent of the previous release, which the agents are at the start.
    pub(crate) previous: bool,
}

/// Last liveness of a next hop in an agent's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Dead,
    Alive,
}

// === impl World ===

impl World {
    /// Two clusters with two gateways each, both families, and the Services of west, without connections.
    pub(crate) fn create(previous: Option<PathBuf>) -> Result<Self> {
        let mut options = fixture::options("open");
        options.two_gateways = true;
        options.inner = Inner::Dual;
        let is_previous = previous.is_some();
        if let Some(previous) = previous {
            options.agent = Some(previous);
            options.secrets = Secrets::Unknown;
        }
        let mut bed = Topology::create(options)?;
        for place in bed.nodes() {
            // IPv6 addresses stay on a device that goes down, as a network daemon restores them.
            bed.netns(place)
                .sysctl(&[("net.ipv6.conf.all.keep_addr_on_down", "1")])?;
        }
        for place in [Place::NodeEast, Place::NodeWest] {
            // As on a wire, which carries no super-packets of datagrams (docs/known-gaps.md).
            bed.netns(place)
                .run("ethtool", ["-K", "eth0", "tx-udp-segmentation", "off"])?;
        }
        let pod = bed.netns(Place::PodWest);
        let mut backends = Vec::new();
        for family in [Family::V4, Family::V6] {
            let bits = Cluster::West.nets(family).pod.prefix_len();
            for backend in 0..SPARE + SPARES {
                let address = objects::backend_addr(backend, family);
                pod.add_address("eth0", ipnet::IpNet::new(address, bits)?)?;
                backends.push(address);
            }
        }
        bed.configure(Variant::McGateway)?;
        // A next hop that comes alive later would take flows from another gateway.
        failover::wait_all_in_use(&mut bed)?;
        let servers = Runtime::start(bed.netns(Place::PodWest))?;
        server::start(&servers, backends)?;
        let clients = Runtime::start(bed.netns(Place::PodEast))?;
        let world = Self {
            pool: Pool::new(clients, objects::destination),
            _servers: servers,
            bed,
            web: Service::web(),
            of_stack: Vec::new(),
            previous: is_previous,
        };
        world.start_service_proxy()?;
        world.write_service(&Service::other())?;
        world.publish()?;
        Ok(world)
    }

    /// Opens connections that only the flow tables keep in place: the Service has fewer endpoints until they are open.
    pub(crate) fn open_before_change(&mut self, specs: impl IntoIterator<Item = Spec>) -> Result<()> {
        let all = self.web.endpoints.clone();
        self.web.endpoints.truncate(2);
        self.publish()?;
        self.pool.open(specs)?;
        self.web.endpoints = all;
        self.publish()
    }

    /// Replaces all connections, except those of the service proxy, by new ones to the present endpoints.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        let old: Vec<(Id, Spec)> = self
            .pool
            .select(|_| true)
            .map(|(id, spec, _)| (id, spec))
            .filter(|(id, _)| !self.of_stack.contains(id))
            .collect();
        let ids: Vec<Id> = old.iter().map(|(id, _)| *id).collect();
        self.pool.close(&ids);
        self.pool.open(old.into_iter().map(|(_, spec)| spec))?;
        Ok(())
    }

    /// A service proxy with one backend on the gateways of west.
    fn start_service_proxy(&self) -> Result<()> {
        for place in WEST_GATEWAYS {
            for (table, family) in [("ip", Family::V4), ("ip6", Family::V6)] {
                let service = self.web.addr(family);
                let to = std::net::SocketAddr::from((objects::backend_addr(0, family), server::PORT));
                self.bed.netns(place).nft(&format!(
                    "table {table} proxy {{ chain prerouting {{ type nat hook prerouting priority dstnat; \
                     {table} daddr {service} tcp dport 80 dnat to {to}; \
                     {table} daddr {service} udp dport 53 dnat to {to}; }}; }}"
                ))?;
            }
        }
        Ok(())
    }

    /// Writes the objects of a Service of west.
    pub(crate) fn write_service(&self, service: &Service) -> Result<()> {
        let file = self
            .bed
            .manifests_dir(Cluster::West)
            .join(format!("{}.yaml", service.name));
        fs::write(&file, service.manifest()).with_context(|| file.display().to_string())
    }

    /// Writes the objects of [`Self::web`] and waits until the gateways and the Node of west have applied them.
    pub(crate) fn publish(&self) -> Result<()> {
        self.write_service(&self.web)?;
        let pods = |ready: Option<bool>| -> BTreeSet<String> {
            let endpoints = self.web.endpoints.iter();
            endpoints
                .filter(|one| !one.absent && ready.is_none_or(|ready| ready == one.ready))
                .flat_map(|one| {
                    [Family::V4, Family::V6].map(|family| {
                        std::net::SocketAddr::from((objects::backend_addr(one.backend, family), server::PORT))
                            .to_string()
                    })
                })
                .collect()
        };
        let addresses = [Family::V4, Family::V6].map(|family| self.web.addr(family));
        let of_web = |row: &&Value| {
            let service = row["service"].as_str().unwrap_or_default();
            let service: Option<std::net::SocketAddr> = service.parse().ok();
            service.is_some_and(|service| addresses.contains(&service.ip()))
        };
        let pod = |row: &Value| row["pod"].as_str().map(str::to_owned);
        for place in WEST {
            let gateway = WEST_GATEWAYS.contains(&place);
            // A Node without Pods that is no gateway any more has no endpoints in its maps.
            if gateway && !self.is_gateway(place)? {
                continue;
            }
            wait_for(&format!("endpoints at {}", place.name()), TIMEOUT, || {
                let rows = self
                    .inspect(place, "services")
                    .map_err(|error| format!("{error:#}"))?;
                let rows: Vec<_> = rows.iter().filter(of_web).collect();
                let all: BTreeSet<_> = rows.iter().filter_map(|row| pod(row)).collect();
                let stack = rows.iter().filter(|row| row["node"] == "service proxy").count();
                let metrics = rows
                    .iter()
                    .filter(|row| {
                        row["service"]
                            .as_str()
                            .is_some_and(|text| text.ends_with(":9090"))
                    })
                    .count();
                let mut settled = all == pods(None) && (metrics > 0) == self.web.metrics_port;
                if gateway {
                    let ready: BTreeSet<_> = rows
                        .iter()
                        .filter(|row| row["ready"] == true)
                        .filter_map(|row| pod(row))
                        .collect();
                    // No endpoint of a port of the service proxy takes new flows.
                    settled &= self.web.local == (stack > 0) && (self.web.local || ready == pods(Some(true)));
                }
                if settled { Ok(()) } else { Err(format!("{rows:?}")) }
            })?;
        }
        Ok(())
    }

    fn is_gateway(&self, place: Place) -> Result<bool> {
        let rows = self.inspect(place, "config")?;
        let row = rows.iter().find(|row| row["setting"] == "gateway");
        row.and_then(|row| row["value"].as_bool())
            .context("the setting \"gateway\"")
    }

    /// Rows of a section of `inspect`.
    pub(crate) fn inspect(&self, place: Place, section: &str) -> Result<Vec<Value>> {
        let out = self.bed.run_agent(place, &["inspect", section, "-o", "json"])?;
        ensure!(
            out.status.success(),
            "inspect {section} on {}: {}",
            place.name(),
            String::from_utf8_lossy(&out.stderr)
        );
        let value: Value = serde_json::from_slice(&out.stdout)?;
        Ok(value[section].as_array().context("rows")?.clone())
    }

    /// The flows to Services that a gateway has: transport, family and client port.
    fn flows(&self, place: Place) -> Result<BTreeSet<(Protocol, Family, u16)>> {
        let rows = self.inspect(place, "flows")?;
        let flows = rows
            .iter()
            .filter(|row| row["kind"] == "chosen")
            .filter_map(|row| {
                let protocol = match row["protocol"].as_str()? {
                    "TCP" => Protocol::Tcp,
                    "UDP" => Protocol::Udp,
                    _ => return None,
                };
                let client: std::net::SocketAddr = row["client"].as_str()?.parse().ok()?;
                let family = if client.is_ipv4() { Family::V4 } else { Family::V6 };
                Some((protocol, family, client.port()))
            });
        Ok(flows.collect())
    }

    /// Connections to the Service with a flow at a gateway.
    pub(crate) fn connections_at(&self, place: Place) -> Result<BTreeSet<Id>> {
        let flows = self.flows(place)?;
        let all = self.pool.select(|spec| spec.target == Target::Service);
        Ok(all
            .filter(|(_, spec, port)| flows.contains(&(spec.protocol, spec.family, *port)))
            .map(|(id, _, _)| id)
            .collect())
    }

    /// Number of changes that the agent of a node has applied since its start.
    pub(crate) fn updates(&mut self, place: Place) -> Result<usize> {
        let log = self.bed.agent_log(place)?;
        Ok(log.lines().filter(|line| line.contains(UPDATED)).count())
    }

    /// Runs `change` and waits until each of these agents has applied another change.
    pub(crate) fn applied(
        &mut self,
        places: &[Place],
        change: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before: Vec<usize> = places
            .iter()
            .map(|place| self.updates(*place))
            .collect::<Result<_>>()?;
        change(self)?;
        for (place, before) in places.iter().zip(before) {
            wait_for(&format!("a change at {}", place.name()), TIMEOUT, || {
                let now = self.updates(*place).map_err(|error| format!("{error:#}"))?;
                if now > before {
                    return Ok(());
                }
                let log = self.bed.agent_log(*place).unwrap_or_default();
                let tail: Vec<_> = log.lines().rev().take(5).collect();
                Err(format!("{now} changes; {tail:?}"))
            })?;
        }
        Ok(())
    }

    /// Edits a manifest of a cluster and waits for these agents. An edit without effect is an error.
    pub(crate) fn edit(
        &mut self,
        cluster: Cluster,
        file: &str,
        places: &[Place],
        edit: impl Fn(&str) -> String,
    ) -> Result<()> {
        let path = self.bed.manifests_dir(cluster).join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let new = edit(&text);
        ensure!(new != text, "the edit of {file} changes nothing: {text}");
        self.applied(places, |_| fs::write(&path, &new).context("a manifest"))
    }

    /// Creates a manifest of a cluster and waits for these agents.
    pub(crate) fn add_file(
        &mut self,
        cluster: Cluster,
        file: &str,
        text: &str,
        places: &[Place],
    ) -> Result<()> {
        let path = self.bed.manifests_dir(cluster).join(file);
        self.applied(places, |_| fs::write(&path, text).context("a manifest"))
    }

    /// Removes a manifest of a cluster, waits for these agents, and returns its text.
    pub(crate) fn remove_file(&mut self, cluster: Cluster, file: &str, places: &[Place]) -> Result<String> {
        let path = self.bed.manifests_dir(cluster).join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        self.applied(places, |_| fs::remove_file(&path).context("a manifest"))?;
        Ok(text)
    }

    /// Waits until the agent of a node has a next hop in this state.
    pub(crate) fn wait_liveness(&mut self, place: Place, next_hop: IpAddr, wanted: Liveness) -> Result<()> {
        let what = format!("next hop {next_hop} of {} {wanted:?}", place.name());
        let start = format!("next hop {next_hop} ");
        wait_for(&what, TIMEOUT, || {
            let log = self.bed.agent_log(place).map_err(|error| format!("{error:#}"))?;
            let last = log.lines().filter_map(|line| line.split_once(&start)).next_back();
            let dead = last.is_some_and(|(_, state)| !state.starts_with("alive:"));
            let settled = match wanted {
                Liveness::Dead => last.is_some_and(|(_, state)| state.starts_with("dead:")),
                Liveness::Alive => !dead,
            };
            if settled { Ok(()) } else { Err(format!("{last:?}")) }
        })
    }

    /// Waits until the agents that send to a gateway of west have it in this state.
    pub(crate) fn wait_gateway(&mut self, gateway: Place, wanted: Liveness) -> Result<()> {
        let nets = Cluster::West.nets(Family::V4);
        let at = usize::from(gateway == Place::SecondGatewayWest);
        let (outside, inside) = (nets.gateway[at].addr(), nets.internal[at].addr());
        self.wait_liveness(Place::GatewayEast, outside, wanted)?;
        self.wait_liveness(Place::SecondGatewayEast, outside, wanted)?;
        self.wait_liveness(Place::NodeWest, inside, wanted)
    }

    /// Transitions of next hops to dead in the logs of all agents.
    pub(crate) fn deaths(&mut self) -> BTreeMap<Place, usize> {
        let mut deaths = BTreeMap::new();
        for place in self.bed.nodes() {
            let log = self.bed.agent_log(place).unwrap_or_default();
            let count = log
                .lines()
                .filter(|line| line.contains("next hop ") && line.contains(" dead:"));
            deaths.insert(place, count.count());
        }
        deaths
    }

    /// Restarts an agent.
    pub(crate) fn restart(&mut self, places: &[Place], kill: bool) -> Result<()> {
        for place in places {
            if kill {
                self.bed.kill_agent(*place)?;
            } else {
                self.bed.stop_agent(*place)?;
            }
        }
        for place in places {
            self.bed.spawn_agent(*place)?;
        }
        places.iter().try_for_each(|place| self.bed.wait_agent(*place))
    }
}

/// The agent of the previous release, if one is given.
pub(crate) fn previous_agent() -> Option<PathBuf> {
    env::var_os("MC_AGENT_PREVIOUS").map(PathBuf::from)
}
