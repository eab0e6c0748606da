//! The loop: a change of objects or of the host becomes a plan, and the plan is carried out.

mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mc_gateway_common::abi::CONFIG_GATEWAY;
use mc_metrics::server::{self, Listener};
use rtnetlink::Handle;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};

use crate::apply::{ApplyError, Executor, apply};
use crate::capacity::{Capacity, truncate_to_capacity};
use crate::cidr::is_ipv6;
use crate::config::Config;
use crate::datapath::{Datapath, DatapathError};
use crate::desired::{DesiredError, DesiredState, LocalNode, Masquerade, compute};
use crate::drop_samples::{self, DropSamplesError};
use crate::error_chain;
use crate::host::{
    self, HostChanges, HostError, address, ipv6, link, nftables, policy_routing, route, state, tc_filter,
    underlay,
};
use crate::id_names::IdNames;
use crate::maps::{MapsError, PinnedMaps};
use crate::metrics::Metrics;
use crate::objects::{FieldError, Objects};
use crate::plan::{Action, AttachMode, ObservedState, PlanError, plan};
use crate::preflight::{self, Locks, PreflightError};
use crate::probe::{self, Prober};
use crate::resolved::{ResolvedState, Underlay, resolve};
use crate::service_ip_reservation;
use crate::source::{self, SourceError};
use schedule::Schedule;

/// Name of the abstract socket only one agent per network namespace can hold.
pub const LOCK_SOCKET: &str = "mc-gateway";

/// How long an agent that is just ending is waited for.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Rounds of observing and planning until nothing is left to do: one for a new device, one to free slots of
/// a full table, one for the rest, one to see that it is enough.
const MAX_ITERATIONS: usize = 4;

/// Why the agent does not run, or a round failed.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The host is not fit.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// Objects cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Objects do not make a desired state.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// The desired state does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An action failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// eBPF.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// Maps.
    #[error(transparent)]
    Tables(#[from] MapsError),
    /// Sampled drops.
    #[error(transparent)]
    Samples(#[from] DropSamplesError),
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Netlink sockets or signals.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody undoes what we do.
    #[error("something is left to do after {MAX_ITERATIONS} rounds; next would be: {0}")]
    NotConverged(String),
}

/// Runs until a signal ends it; the data path stays.
pub async fn run(config: Config, object: &[u8]) -> Result<(), AgentError> {
    let mut agent = Agent::start(config.clone(), object).await?;
    drop_samples::start(&agent.datapath.maps_dir(), Arc::clone(&agent.metrics))?;
    service_ip_reservation::start(&config, agent.needs_address.subscribe());
    if let Some(address) = config.metrics_address {
        let listener = Listener {
            addresses: vec![address],
            setting: "--metrics-address",
            metrics: true,
            health: true,
        };
        server::start(listener, Arc::clone(&agent.metrics));
    }
    let mut objects = source::start(&config).await?;
    let mut changes = HostChanges::subscribe().map_err(io_error("subscribe to netlink"))?;
    let mut signals = Signals::new()?;
    let mut schedule = Schedule::new(Instant::now());
    let mut status = agent.prober.status();
    loop {
        agent.metrics.state().last_turn = std::time::Instant::now();
        tokio::select! {
            name = signals.received() => {
                info!(signal = name, "leaving the data path in place");
                return Ok(());
            }
            alive = objects.changed() => {
                if alive.is_err() {
                    return Err(SourceError::Ended.into());
                }
                schedule.objects_changed(Instant::now());
            }
            () = changes.changed() => schedule.host_changed(Instant::now()),
            Ok(()) = status.changed() => {
                let sizes = status.borrow_and_update().path_mtus();
                if agent.path_mtus != sizes {
                    agent.path_mtus = sizes;
                    schedule.host_changed(Instant::now());
                }
            }
            () = sleep_until(schedule.due_at()) => {
                let known = objects.borrow_and_update().clone();
                let Some(known) = known else {
                    schedule.done(Instant::now());
                    continue;
                };
                let began = Instant::now();
                let result = agent.reconcile(&known, schedule.resync_due(began)).await;
                let outcome = result.as_ref().copied().map_err(|error| error_chain(error));
                agent.metrics.state().record_reconcile(began.elapsed(), SystemTime::now(), outcome);
                match result {
                    Ok(()) => schedule.done(Instant::now()),
                    Err(AgentError::Desired(error)) => {
                        agent.report.error(&error);
                        schedule.done(Instant::now());
                    }
                    Err(error) => {
                        agent.report.error(&error);
                        // What the maps hold is not known for sure any more.
                        agent.maps_stale = true;
                        schedule.failed(Instant::now());
                    }
                }
            }
        }
    }
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> AgentError {
    move |source| AgentError::Io { what, source }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, AgentError> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(io_error("handle SIGTERM"))?,
            interrupt: signal(SignalKind::interrupt()).map_err(io_error("handle SIGINT"))?,
        })
    }

    async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Says everything once, and again only after it changed.
#[derive(Debug, Default)]
struct ChangeLogger {
    rejected: Vec<FieldError>,
    error: Option<String>,
    ready: bool,
    not_forwarding: bool,
}

impl ChangeLogger {
    fn rejected(&mut self, rejected: Vec<FieldError>) {
        for error in &rejected {
            if !self.rejected.contains(error) {
                let FieldError {
                    object,
                    field,
                    value,
                    reason,
                } = error;
                warn!(%object, %field, %value, %reason, "refused");
            }
        }
        for error in &self.rejected {
            if !rejected.contains(error) {
                info!(object = %error.object, field = %error.field, value = %error.value, "no longer refused");
            }
        }
        self.rejected = rejected;
    }

    fn ipv6_forwarding(&mut self, on: bool) {
        if !on && !self.not_forwarding {
            warn!(
                "net.ipv6.conf.all.forwarding is 0: this node does not pass Pods' IPv6 packets on; run `sysctl -w net.ipv6.conf.all.forwarding=1`"
            );
        }
        self.not_forwarding = !on;
    }

    fn error(&mut self, error: &dyn std::error::Error) {
        let text = error_chain(error);
        if self.error.as_ref() != Some(&text) {
            error!(error = %text, "the data path stays as it is");
        }
        self.error = Some(text);
    }

    fn success(&mut self, target: &ResolvedState, changes: usize) {
        if changes == 0 && self.ready && self.error.is_none() {
            return;
        }
        let message = if self.ready {
            "datapath updated"
        } else {
            "datapath ready"
        };
        info!(
            prefixes = target.prefixes.len(),
            members = target.next_hops.len(),
            peers = target.peers.len(),
            gateway = target.flags & CONFIG_GATEWAY != 0,
            changes,
            "{message}"
        );
        self.ready = true;
        self.error = None;
    }
}

/// The agent's hold on the node.
struct Agent {
    config: Config,
    /// How programs are attached.
    mode: AttachMode,
    handle: Handle,
    datapath: Datapath,
    tables: PinnedMaps,
    report: ChangeLogger,
    /// What our nftables table did when we last looked or wrote.
    masquerade: Option<Masquerade>,
    /// Whether it must be looked at again before the next plan: nothing tells when somebody changes it, and beside a
    /// service proxy's thousands of rules looking takes longer than everything else.
    nat_stale: bool,
    /// Whether the maps must be read again before the next plan.
    maps_stale: bool,
    /// What was last written to the state directory.
    names: IdNames,
    /// What is served about all this.
    metrics: Arc<Metrics>,
    prober: Prober,
    /// What paths are known to carry, as outer IP packets in bytes, by member id.
    path_mtus: BTreeMap<u32, u32>,
    /// Whether an address has to be reserved for this Node.
    needs_address: watch::Sender<bool>,
    _locks: Locks,
}

impl Agent {
    async fn start(config: Config, object: &[u8]) -> Result<Self, AgentError> {
        preflight::check_kernel()?;
        preflight::check_capabilities()?;
        let locks = Locks::acquire(LOCK_SOCKET, LOCK_TIMEOUT, || {
            preflight::prepare_bpf_dir(&config.paths.bpf_dir)
        })
        .await?;
        let dir = locks.dir().to_owned();
        let handle = host::connect().map_err(io_error("open a netlink socket"))?;
        // Before anything is loaded: a foreign device would make everything else useless.
        link::observe(&handle, &config.paths.device).await?;
        let mode = preflight::attach_mode(config.attach)?;
        let datapath = Datapath::load(&dir, object, config.tcx_order)?;
        let tables = PinnedMaps::open(&datapath.maps_dir())?;
        let adopted = tables.contents().config.abi != 0;
        let metrics = Metrics::open(&datapath.maps_dir(), std::time::Instant::now(), adopted)?;
        let health = probe::ProbeMaps::open(&datapath.maps_dir())?;
        let sizes = health.path_mtus(&tables.contents().next_hops)?;
        preflight::drop_load_capabilities().map_err(io_error("drop capabilities"))?;
        info!(node = %config.node_name, bpf_dir = %dir.display(), attach = ?mode, "programs loaded");
        warn_if_not_forwarding();
        // After the capabilities are dropped: a thread starts with its parent's.
        let prober = Prober::start(health, config.probes).map_err(io_error("start a thread"))?;
        Ok(Self {
            config,
            mode,
            handle,
            datapath,
            tables,
            report: ChangeLogger::default(),
            masquerade: None,
            nat_stale: true,
            maps_stale: false,
            names: IdNames::default(),
            metrics,
            prober,
            path_mtus: sizes,
            needs_address: watch::Sender::new(false),
            _locks: locks,
        })
    }

    /// Makes everything as `objects` want it.
    async fn reconcile(&mut self, objects: &Objects, resync: bool) -> Result<(), AgentError> {
        let me = LocalNode {
            node_name: self.config.node_name.clone(),
            cluster_id: self.config.cluster_id.clone(),
            pod_lookup: self.config.pod_lookup,
            antrea_clusters: self.config.antrea_clusters.clone(),
        };
        let (desired, refused) = compute(objects, &me)?;
        if resync || self.maps_stale {
            self.tables.reload()?;
            self.nat_stale = true;
            self.maps_stale = false;
        }
        let mut changes: usize = 0;
        let mut next = String::new();
        for _ in 0..MAX_ITERATIONS {
            let underlay = self.underlay(&desired).await?;
            let (mut target, unresolved) = resolve(&desired, &underlay, &self.config.tunnel);
            target.attach_mode = self.mode;
            target.detect = self.config.probes.detect;
            target.hold_down_ms = self.config.probes.hold_down_ms();
            let links = probe::link_mtus(&target);
            probe::limit_mtus(&mut target, &self.path_mtus);
            let mut foreign = self.without_foreign_routes(&mut target).await?;
            foreign.extend(truncate_to_capacity(&mut target, Capacity::default()));
            foreign.extend(self.without_ipv6_routes(&mut target));
            let observed = self.observe(&target, underlay.mc0_addrs).await?;
            let plan = plan(&state, &target, &self.config.paths.device)?;
            let Some(first) = plan.actions.first() else {
                self.datapath.commit()?;
                let rejected = refused.into_iter().chain(unresolved).chain(foreign).collect();
                self.report.rejected(rejected);
                self.store_names(&desired);
                self.needs_address.send_replace(target.needs_address);
                let contents = self.tables.contents();
                self.metrics
                    .state()
                    .set_contents(contents, &self.names, &self.report.rejected);
                self.report.success(&target, changes);
                self.prober
                    .set_targets(probe::probe_targets(self.tables.contents(), &links));
                return Ok(());
            };
            next = first.to_string();
            debug!(actions = plan.actions.len(), "plan");
            changes = changes.saturating_add(plan.actions.len());
            let applied = apply(&plan, self).await;
            self.tables.bump_epoch()?;
            applied?;
        }
        Err(AgentError::NotConverged(next))
    }

    /// Leaves names for the numbers in the maps to `inspect` and `trace`, which print numbers without.
    fn store_names(&mut self, desired: &DesiredState) {
        let place = &self.config.paths;
        let names = IdNames::new(desired, &place.bpf_dir, &self.config.node_name);
        if names == self.names {
            return;
        }
        if let Err(error) = names.store(&place.state_dir) {
            warn!(state_dir = %place.state_dir.display(), %error, "names are not kept for `inspect`");
        }
        self.names = names;
    }

    async fn underlay(&self, desired: &DesiredState) -> Result<Underlay, HostError> {
        let members = desired.members.values().map(|member| member.addr);
        let addresses: BTreeSet<_> = members.chain(desired.peers.keys().copied()).collect();
        underlay::observe(&self.handle, &addresses, &self.config.paths.device).await
    }

    /// Leaves out routes that would collide with somebody else's.
    async fn without_foreign_routes(&self, target: &mut ResolvedState) -> Result<Vec<FieldError>, HostError> {
        let routes = route::observe(&self.handle, 0).await?;
        let mut rejected = Vec::new();
        target.routes.retain(|net| {
            let Some(whose) = routes.foreign.get(net) else {
                return true;
            };
            rejected.push(FieldError {
                object: format!("Node {}", self.config.node_name),
                field: "main routing table".to_owned(),
                value: net.to_string(),
                reason: format!("is routed by somebody else (protocol {whose})"),
            });
            false
        });
        Ok(rejected)
    }

    /// Leaves out IPv6 routes where the host does no IPv6: IPv4 goes on.
    fn without_ipv6_routes(&mut self, target: &mut ResolvedState) -> Vec<FieldError> {
        if !target.routes.iter().copied().any(is_ipv6) {
            return Vec::new();
        }
        let Some(reason) = ipv6::unavailable_reason(&self.config.paths.device) else {
            self.report.ipv6_forwarding(ipv6::is_forwarding());
            return Vec::new();
        };
        let refused = target.routes.iter().filter(|net| is_ipv6(**net));
        let rejected = refused
            .map(|net| FieldError {
                object: format!("Node {}", self.config.node_name),
                field: "net.ipv6.conf".to_owned(),
                value: net.to_string(),
                reason: reason.clone(),
            })
            .collect();
        target.without_ipv6();
        rejected
    }

    async fn observe(
        &mut self,
        target: &ResolvedState,
        addresses: BTreeSet<IpAddr>,
    ) -> Result<ObservedState, AgentError> {
        let device = &self.config.paths.device;
        let host = state::observe(&self.handle, device).await?;
        if self.nat_stale {
            let mut candidates = vec![&target.masquerade];
            let known = self.masquerade.as_ref();
            candidates.extend(known.filter(|known| **known != target.masquerade));
            self.masquerade = state::find_masquerade(&candidates, device).await?;
            self.nat_stale = false;
        }
        let filters = tc_filter::observe(&self.handle).await?;
        let contents = self.tables.contents();
        Ok(ObservedState {
            device: host.device,
            config: contents.config,
            prefixes: contents.prefixes.clone(),
            groups: contents.groups.clone(),
            next_hops: contents.next_hops.clone(),
            peers: contents.peers.clone(),
            services: contents.services.clone(),
            addresses,
            routes: host.routes,
            return_routes: host.return_routes,
            masquerade: self.masquerade.clone(),
            attachments: self.datapath.attachments(&filters)?,
        })
    }

    /// Index of `mc0` now.
    async fn mc0(&self) -> Result<u32, HostError> {
        let name = &self.config.paths.device;
        let device = link::observe(&self.handle, name).await?;
        device
            .map(|device| device.ifindex)
            .ok_or(HostError::NoDevice { name: name.clone() })
    }
}

impl Executor for Agent {
    type Error = ErrorChain;

    async fn execute(&mut self, action: &Action) -> Result<(), ErrorChain> {
        self.execute_action(action)
            .await
            .map_err(|error| ErrorChain(error_chain(&error)))
    }
}

/// An error and its causes as text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
struct ErrorChain(String);

impl Agent {
    async fn execute_action(&mut self, action: &Action) -> Result<(), AgentError> {
        if !matches!(action, Action::SetPrefix { .. } | Action::SetPeer { .. }) {
            self.tables.bump_epoch()?;
        }
        let name = self.config.paths.device.as_str();
        match action {
            Action::CreateDevice { mtu } => link::create(&self.handle, name, *mtu).await?,
            Action::DeleteDevice => {
                link::delete(&self.handle, name).await?;
            }
            Action::SetDevice { to: (mtu, up), .. } => link::set(&self.handle, name, *mtu, *up).await?,
            Action::SetAddress { addr, to } => {
                let mc0 = self.mc0().await?;
                if *to {
                    address::add(&self.handle, *addr, mc0).await?;
                } else {
                    address::remove(&self.handle, *addr, mc0).await?;
                }
            }
            Action::SetNextHop { slot, to, .. } => self.tables.set_next_hop(*slot, *to)?,
            Action::SetGroup { slot, to, .. } => self.tables.set_group(*slot, *to)?,
            Action::SetPeer { addr, to, .. } => self.tables.set_peer(*addr, *to)?,
            Action::SetConfig { to, .. } => self.tables.set_config(*to)?,
            Action::Service(action) => self.tables.set_service(action)?,
            Action::SetPrefix { key, to, .. } => self.tables.set_prefix(*key, *to)?,
            Action::Attach { hook, ifindex, from } => self.datapath.attach(hook, *ifindex, *from)?,
            Action::Detach { hook, .. } => self.datapath.detach(hook)?,
            Action::SetNat { to, .. } => {
                match to {
                    Some(masquerade) => nftables::write(masquerade, name).await.map_err(HostError::from)?,
                    None => nftables::remove().await.map_err(HostError::from)?,
                }
                self.masquerade.clone_from(to);
            }
            Action::SetReturnRoutes { from, to } => {
                policy_routing::replace(&self.handle, name, self.mc0().await?, from, to).await?;
            }
            Action::SetRoute {
                key,
                to: Some(source),
                ..
            } => route::set(&self.handle, *key, *source, self.mc0().await?).await?,
            Action::SetRoute { key, to: None, .. } => {
                route::delete(&self.handle, *key, self.mc0().await?).await?;
            }
        }
        Ok(())
    }
}

fn warn_if_not_forwarding() {
    let path = "/proc/sys/net/ipv4/ip_forward";
    if std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "0") {
        warn!(
            "net.ipv4.ip_forward is 0: this node does not pass Pods' packets on; run `sysctl -w net.ipv4.ip_forward=1`"
        );
    }
}
