//! One reconcile: observed and desired state, resolved, planned and applied until nothing is left to change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rtnetlink::Handle;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::change_logger::ChangeLogger;
use super::{AgentError, io_error};
use crate::apply::apply;
use crate::capacity::Capacity;
use crate::changed_state::send_changed;
use crate::cidr::is_ipv6;
use crate::config::Config;
use crate::datapath::Datapath;
use crate::desired::{DesiredCache, DesiredState, Established, LocalNode, compute};
use crate::flow_names::FlowNames;
use crate::host::changes::HostChange;
use crate::host::nftables::pod_guard::GuardListing;
use crate::host::nftables::{self, Listing};
use crate::host::state::{self, HostState};
use crate::host::underlay::KnownPaths;
use crate::host::watched::Watched;
use crate::host::{self, HostError, features, ipv6, link, tc_filter, tunnel_device};
use crate::id_names::IdNames;
use crate::maps::PinnedMaps;
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::peer_secret::{self, PeerSecrets};
use crate::plan::{AttachMode, InstalledGuard, ObservedState, PlanCache, plan};
use crate::policy_report::AppliedPolicies;
use crate::policy_report_publisher::Report;
use crate::preflight::{self, Locks};
use crate::probe::{self, Prober};
use crate::reachability::{Gateways, RemoteGateways};
use crate::resolved::{NftRules, Resolution, ResolutionCache, ResolvedState, Settings, resolve};
use crate::service_history::ServiceHistory;

/// Name of the abstract socket that one agent per network namespace holds.
pub const LOCK_SOCKET: &str = "mc-gateway";

/// Time limit for another agent to release its locks.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Iterations of observing and planning until a plan is empty: one for a new device, one to free slots of a full
/// map, one for the rest, two with an empty plan around the one for new tunnel devices.
pub(super) const MAX_ITERATIONS: usize = 6;

/// The agent's state and its handles on the node.
pub(super) struct Agent {
    pub(super) config: Config,
    /// How programs are attached.
    attach_mode: AttachMode,
    pub(super) handle: Handle,
    pub(super) datapath: Datapath,
    pub(super) maps: PinnedMaps,
    pub(super) log: ChangeLogger,
    /// Routes to other nodes and neighbors, until they may have changed.
    pub(super) known_paths: KnownPaths,
    /// Whether the link addresses of next hops in the maps are current.
    pub(super) links_current: bool,
    /// The part of the host whose changes are notified.
    pub(super) watched: watch::Sender<Option<Watched>>,
    /// Contents of the nftables table when it was last read or written.
    pub(super) nftables: Option<NftRules>,
    /// The nftables table as listed then.
    pub(super) nft_listing: Option<Listing>,
    /// The Pod guard when its tables were last read or written.
    pub(super) pod_guard: InstalledGuard,
    /// Its tables as listed then.
    pub(super) guard_listing: Option<GuardListing>,
    /// Whether nftables can filter the frames of bridges, else the reason; none until a guard depends on that.
    bridge_filter: Option<Result<(), String>>,
    /// Whether the nftables tables must be read before the next plan: after a notification and at each resync. Next to
    /// the thousands of rules of a service proxy reading takes longer than everything else.
    pub(super) nftables_stale: bool,
    /// Whether the maps must be read before the next plan.
    pub(super) maps_stale: bool,
    /// Names last written to the state directory.
    names: Arc<IdNames>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) prober: Prober,
    /// Measured path MTUs, as lengths of outer IP packets, by next hop ID.
    pub(super) path_mtus: BTreeMap<u32, u32>,
    /// Whether an address must be reserved for this Node.
    pub(super) needs_address: watch::Sender<bool>,
    /// Whether the public key of this Node must be published.
    pub(super) needs_key: watch::Sender<bool>,
    /// The applied report about network policies.
    pub(super) policy_report: watch::Sender<Report>,
    /// The gateways of the other clusters; probes decide whether they are reachable.
    pub(super) remote_gateways: watch::Sender<Gateways>,
    /// Secrets shared with other nodes.
    pub(super) secrets: PeerSecrets,
    /// Earlier ready backends of exported Services.
    service_history: ServiceHistory,
    desired_cache: DesiredCache,
    resolution_cache: ResolutionCache,
    plan_cache: PlanCache,
    /// Key of the cluster IDs: that of the adopted maps, else a random one.
    cluster_id_key: [u8; 16],
    /// Inner source MAC address of packets to the tunnel devices: that of the adopted maps, else a random one.
    tunnel_mac: [u8; 6],
    /// Devices that rejected the XDP program, with their index and the error.
    pub(super) transit_rejected: BTreeMap<String, (u32, String)>,
    locks: Locks,
}

impl Agent {
    /// Checks the host, takes the locks and loads the programs.
    pub(super) async fn start(config: Config, object: &[u8]) -> Result<Self, AgentError> {
        preflight::check_kernel()?;
        preflight::check_capabilities()?;
        let locks = Locks::acquire(LOCK_SOCKET, LOCK_TIMEOUT, || {
            preflight::prepare_bpf_dir(&config.paths.bpf_dir)
        })
        .await?;
        let dir = locks.dir().to_owned();
        let handle = host::connect().map_err(io_error("open a netlink socket"))?;
        let secrets = peer_secret::load_or_create(&config.key_file)?;
        // A foreign device is an error before anything is loaded.
        link::observe(&handle, &config.paths.device).await?;
        let attach_mode = preflight::attach_mode(config.attach)?;
        let datapath = Datapath::load(&dir, object, config.tcx_order, &config.limits)?;
        let maps = PinnedMaps::open(&datapath.maps_dir())?;
        let adopted = maps.contents().config.abi != 0;
        let mut cluster_id_key = maps.contents().config.cluster_id_key;
        if cluster_id_key == [0; 16] {
            getrandom::fill(&mut cluster_id_key)
                .map_err(|source| io_error("read random bytes")(source.into()))?;
        }
        let mut tunnel_mac = maps.contents().config.tunnel_mac;
        if tunnel_mac == [0; 6] {
            getrandom::fill(&mut tunnel_mac)
                .map_err(|source| io_error("read random bytes")(source.into()))?;
        }
        let service_history = ServiceHistory::adopt(&maps.contents().services.tables);
        let metrics = Metrics::open(&datapath.maps_dir(), std::time::Instant::now(), adopted)?;
        let health = probe::ProbeMaps::open(&datapath.maps_dir())?;
        let path_mtus = health.path_mtus(&maps.contents().next_hops)?;
        preflight::drop_load_capabilities().map_err(io_error("drop capabilities"))?;
        info!(
            node = %config.node_name,
            bpf_dir = %dir.display(),
            attach = ?attach_mode,
            clears_tunnel_state = datapath.clears_tunnel_state(),
            "programs loaded"
        );
        warn_if_not_forwarding();
        // After the capabilities are dropped: a thread inherits those of its parent.
        let prober = Prober::start(health, config.probes).map_err(io_error("start a thread"))?;
        Ok(Self {
            config,
            attach_mode,
            handle,
            datapath,
            maps,
            log: ChangeLogger::default(),
            known_paths: KnownPaths::default(),
            links_current: false,
            watched: watch::Sender::new(None),
            nftables: None,
            nft_listing: None,
            pod_guard: InstalledGuard::Unknown,
            guard_listing: None,
            bridge_filter: None,
            nftables_stale: true,
            maps_stale: false,
            names: Arc::default(),
            metrics,
            prober,
            path_mtus,
            needs_address: watch::Sender::new(false),
            needs_key: watch::Sender::new(false),
            policy_report: watch::Sender::new(None),
            remote_gateways: watch::Sender::default(),
            secrets,
            service_history,
            desired_cache: DesiredCache::default(),
            resolution_cache: ResolutionCache::default(),
            plan_cache: PlanCache::default(),
            cluster_id_key,
            tunnel_mac,
            transit_rejected: BTreeMap::new(),
            locks,
        })
    }

    /// Reconciles the node with `objects`; `resync` reads everything again.
    pub(super) async fn reconcile(&mut self, objects: &Arc<Objects>, resync: bool) -> Result<(), AgentError> {
        let me = LocalNode {
            node_name: self.config.node_name.clone(),
            cluster_id: self.config.cluster_id.clone(),
            pod_lookup: self.config.pod_lookup,
            antrea_clusters: self.config.antrea_clusters.clone(),
            secrets: self.config.secrets.clone(),
            public_key: Some(self.secrets.public_key()),
            cluster_id_key: self.cluster_id_key,
            excluded_labels: self.config.excluded_labels.clone(),
        };
        self.restore_pins()?;
        if resync || self.maps_stale {
            self.maps.reload()?;
            self.known_paths.clear();
            self.nftables_stale = true;
            // The module may have been loaded.
            self.bridge_filter = self.bridge_filter.take().filter(Result::is_ok);
            self.maps_stale = false;
        }
        let established = Established::new(me.cluster_id_key, self.maps.contents().prefixes.clone());
        let (mut desired, rejected) = compute(objects, &me, &established, &mut self.desired_cache)?;
        if let Some(services) = &mut desired.services {
            self.service_history.record(&services.endpoints);
            let past = self.service_history.past_tables(services);
            Arc::make_mut(services).past = past;
        }
        let names = self.publish_names(&desired, objects);
        self.secrets.retain(&desired.public_keys());
        let (tunnel_devices, refused) = self.create_tunnel_devices(&desired).await?;
        let mut changes: usize = 0;
        let mut next = String::new();
        for _ in 0..MAX_ITERATIONS {
            let mut host = self.observe_host(&desired).await?;
            if desired.policies.guards_pods() && !host.inputs.pod_links.bridges.is_empty() {
                host.inputs.bridge_filter_unavailable = self.bridge_filter_unavailable().await?;
            }
            let mut cache = std::mem::take(&mut self.resolution_cache);
            let settings = self.settings(!tunnel_devices.is_empty());
            let resolution = resolve(&desired, &host.inputs, &settings, &mut cache);
            self.resolution_cache = cache;
            let observed = self.observe(host, &resolution.state).await?;
            let device = &self.config.paths.device;
            let plan = plan(&observed, &resolution.state, device, &mut self.plan_cache)?;
            let Some(first) = plan.actions.first() else {
                self.datapath.commit()?;
                let (opened, busy) = self.open_tunnel_devices().await?;
                if opened {
                    continue;
                }
                let refused = refused.into_iter().chain(busy);
                let Resolution {
                    state,
                    issues,
                    unenforced,
                    link_mtus,
                    unrepairable,
                } = resolution;
                self.metrics.state().unrepairable = unrepairable;
                let features = features::observe(state.devices.keys()).await;
                let aggregation = self.observe_aggregation(&state.devices, &features).await?;
                self.update_transit(&state, &features, &aggregation).await?;
                let issues = issues.into_iter().chain(unenforced.clone());
                self.log
                    .issues(rejected.into_iter().chain(issues).chain(refused).collect());
                // IPv6 routes are behind IPv4 ones.
                if state.routes.last().copied().is_some_and(is_ipv6) {
                    self.log.ipv6_forwarding(ipv6::is_forwarding());
                }
                self.store_names(names);
                self.needs_address.send_replace(state.needs_address);
                // After the first reconcile: from now on this node accepts packets with its secrets.
                self.needs_key.send_replace(desired.published_key.is_none());
                let applied = AppliedPolicies::new(&desired.policies, unenforced.as_ref());
                send_changed(&self.policy_report, applied);
                let contents = self.maps.contents();
                let gateways = RemoteGateways::new(&desired, contents).into();
                send_changed(&self.remote_gateways, gateways);
                self.metrics
                    .state()
                    .set_contents(contents, &self.names, &self.log.issues);
                self.log.success(&state, changes);
                self.prober
                    .set_targets(probe::probe_targets(contents, &link_mtus));
                self.metrics.state().probe_interval = self.prober.interval();
                return Ok(());
            };
            next = first.to_string();
            debug!(actions = plan.actions.len(), "plan");
            let others = plan.actions.iter().filter(|action| !action.is_link_change());
            changes = changes.saturating_add(others.count());
            let applied = apply(&plan, self).await;
            self.maps.bump_epoch()?;
            applied?;
        }
        Err(AgentError::NotConverged(next))
    }

    /// Forgets the observations that a change outdates.
    pub(super) fn outdate(&mut self, change: HostChange) {
        match change {
            HostChange::Paths => {
                self.withdraw_links();
                self.known_paths.clear();
            }
            HostChange::Neighbors => {
                self.withdraw_links();
                self.known_paths.clear_neighbors();
            }
            HostChange::Nftables => self.nftables_stale = true,
            HostChange::Network | HostChange::Ipsec => {}
        }
    }

    /// Pins again what another program has unpinned.
    fn restore_pins(&mut self) -> Result<(), AgentError> {
        let replaced = !self.locks.dir().exists();
        if self.datapath.restore_pins()? {
            warn!(bpf_dir = %self.locks.dir().display(), "pins removed by another program: restored");
        }
        if replaced {
            self.locks.lock_new_dir()?;
        }
        Ok(())
    }

    fn settings(&self, has_tunnel_devices: bool) -> Settings<'_> {
        Settings {
            node_name: &self.config.node_name,
            tunnel: self.config.tunnel,
            attach_mode: self.attach_mode,
            exposure: self.config.exposure,
            detect: self.config.probes.detect,
            hold_down_ms: self.config.probes.hold_down_ms(),
            path_mtus: &self.path_mtus,
            secrets: &self.secrets,
            period: peer_secret::period(SystemTime::now()),
            cluster_id_key: self.cluster_id_key,
            tunnel_mac: if self.datapath.clears_tunnel_state() {
                [0; 6]
            } else {
                self.tunnel_mac
            },
            decap_test_ms: self.config.probes.decap_test_ms(),
            has_tunnel_devices,
            capacity: Capacity::default(),
            observed_groups: &self.maps.contents().groups,
        }
    }

    /// Publishes the names for the log of dropped packets, before the maps change: the first packet that a new rule
    /// drops is logged at once. Returns those of IDs.
    fn publish_names(&self, desired: &DesiredState, objects: &Arc<Objects>) -> Arc<IdNames> {
        let names = IdNames::new(desired, &self.config.paths.bpf_dir, &self.config.node_name);
        let ids = if names == *self.names {
            Arc::clone(&self.names)
        } else {
            Arc::new(names)
        };
        self.metrics.state().flow_names = Arc::new(FlowNames {
            ids: Arc::clone(&ids),
            prefixes: desired.prefixes.clone(),
            objects: Arc::clone(objects),
        });
        ids
    }

    /// Writes the names of the IDs in the maps for `inspect` and `trace`, which print IDs without them.
    fn store_names(&mut self, names: Arc<IdNames>) {
        let paths = &self.config.paths;
        if names == self.names {
            return;
        }
        if let Err(error) = names.store(&paths.state_dir) {
            warn!(state_dir = %paths.state_dir.display(), %error, "names for `inspect` not written");
        }
        self.names = names;
    }

    /// Observes the host, with the underlay routes to all next hops and peers.
    async fn observe_host(&mut self, desired: &DesiredState) -> Result<HostState, HostError> {
        let device = &self.config.paths.device;
        let policies = &desired.policies;
        let polices_pods = policies.polices_devices() || policies.guards_pods();
        let next_hops = desired.next_hops.values().map(|next_hop| next_hop.addr);
        let addresses: BTreeSet<IpAddr> = next_hops.chain(desired.peers.keys().copied()).collect();
        let mut watched = Watched {
            device: device.clone(),
            addresses,
            prefixes: desired.routes.clone(),
            pod_links: polices_pods,
            ..self.watched.borrow().clone().unwrap_or_default()
        };
        let tunnels = tunnel_device::observe(&self.handle).await?.own;
        watched.devices.extend(tunnels.values().map(|link| link.ifindex));
        loop {
            watched.publish(&self.watched);
            let known = &mut self.known_paths;
            let host = state::observe(&self.handle, device, &watched.addresses, known, polices_pods).await?;
            if !watched.update(&host, &desired.local_addrs) {
                watched.publish(&self.watched);
                return Ok(host);
            }
            // Changes of these devices and neighbors were not notified until now.
            known.clear();
        }
    }

    /// Completes the observed host with nftables, programs and maps.
    async fn observe(
        &mut self,
        host: HostState,
        resolved: &ResolvedState,
    ) -> Result<ObservedState, AgentError> {
        if self.nftables_stale {
            let wanted = resolved.nft_rules();
            let mut candidates = vec![&wanted];
            candidates.extend(self.nftables.as_ref().filter(|last| **last != wanted));
            let device = &self.config.paths.device;
            self.nftables = state::find_nft_rules(&candidates, device, &mut self.nft_listing).await?;
            self.observe_pod_guard(resolved).await?;
            self.nftables_stale = false;
        }
        let filters = tc_filter::observe(&self.handle).await?;
        let contents = self.maps.contents();
        Ok(ObservedState {
            device: host.device,
            config: contents.config,
            prefixes: contents.prefixes.clone(),
            groups: contents.groups.clone(),
            next_hops: contents.next_hops.clone(),
            peers: contents.peers.clone(),
            services: contents.services.clone(),
            policies: Arc::clone(contents.policies.current()),
            addresses: host.inputs.underlay.mc0_addrs,
            tunnel_devices: tunnel_device::observe(&self.handle).await?.own,
            routes: host.routes,
            return_routes: host.return_routes,
            nftables: self.nftables.clone(),
            pod_guard: self.pod_guard.clone(),
            attachments: self.datapath.attachments(&filters)?,
        })
    }
}

impl Agent {
    /// Reads the tables of the Pod guard. Without a guard there is nothing to read, after the first time.
    async fn observe_pod_guard(&mut self, resolved: &ResolvedState) -> Result<(), AgentError> {
        let wanted = resolved.pod_guard.as_ref();
        if wanted.is_none() && self.pod_guard == InstalledGuard::Absent {
            return Ok(());
        }
        let mut candidates: Vec<_> = wanted.into_iter().collect();
        if let InstalledGuard::Known(last) = &self.pod_guard
            && wanted != Some(last)
        {
            candidates.push(last);
        }
        self.pod_guard = state::find_pod_guard(&candidates, &mut self.guard_listing).await?;
        Ok(())
    }

    /// Reason why nftables cannot filter the frames of bridges, if so.
    async fn bridge_filter_unavailable(&mut self) -> Result<Option<String>, AgentError> {
        if let Some(known) = &self.bridge_filter {
            return Ok(known.clone().err());
        }
        let found = nftables::pod_guard::bridge_filter_unavailable().await;
        let found = found.map_err(HostError::from)?;
        self.bridge_filter = Some(found.clone().map_or(Ok(()), Err));
        Ok(found)
    }
}

fn warn_if_not_forwarding() {
    let path = "/proc/sys/net/ipv4/ip_forward";
    if std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "0") {
        warn!(
            "net.ipv4.ip_forward is 0: this node does not forward packets of Pods; run \
             `sysctl -w net.ipv4.ip_forward=1`"
        );
    }
}
