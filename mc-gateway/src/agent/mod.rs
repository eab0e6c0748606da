//! The agent: a loop that reconciles the node after every change of objects or of the host.

mod change_logger;
mod executor;
mod foreign_changes;
mod freed_memory;
mod link_lease;
mod reconcile;
mod schedule;
mod signals;
mod transit;
mod tunnel_devices;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mc_metrics::server::{self, Listener};
use thiserror::Error;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};
use tracing::info;

use crate::apply::ApplyError;
use crate::config::Config;
use crate::datapath::DatapathError;
use crate::desired::DesiredError;
use crate::drop_samples::{self, DropSamplesError};
use crate::error_chain;
use crate::host::HostError;
use crate::host::changes::HostChanges;
use crate::key_publisher;
use crate::maps::MapsError;
use crate::peer_secret::KeyFileError;
use crate::plan::PlanError;
use crate::policy_report_publisher;
use crate::preflight::PreflightError;
use crate::program_log::ProgramLogError;
use crate::reachability;
use crate::service_ip_reservation;
use crate::source::{self, SourceError};
use foreign_changes::{ForeignChanges, SEARCH_INTERVAL};
use freed_memory::return_freed_memory;
use link_lease::{CONFIRM_INTERVAL, RENEW_INTERVAL};
pub use reconcile::LOCK_SOCKET;
pub(crate) use reconcile::LOCK_TIMEOUT;
use reconcile::{Agent, MAX_ITERATIONS};
use schedule::Schedule;
use signals::Signals;

/// The agent cannot run, or a reconcile failed.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The host lacks a requirement.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// Objects cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No desired state can be computed.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// No plan can be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An action failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// eBPF programs.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// BPF maps.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// Drop samples.
    #[error(transparent)]
    Samples(#[from] DropSamplesError),
    /// Log of the programs.
    #[error(transparent)]
    ProgramLog(#[from] ProgramLogError),
    /// The private key.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// Netlink or nftables.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Netlink sockets or signals.
    #[error("{operation}")]
    Io {
        /// The operation.
        operation: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Plans are not empty after `MAX_ITERATIONS`: another program reverts the changes.
    #[error("reconcile did not converge after {MAX_ITERATIONS} iterations; next action: {0}")]
    NotConverged(String),
}

/// Runs until SIGTERM or SIGINT; the data path stays in place.
pub async fn run(config: Config, object: &[u8]) -> Result<(), AgentError> {
    let mut agent = Agent::start(config.clone(), object).await?;
    if config.program_log.is_some() {
        agent.datapath.start_program_log()?;
    }
    drop_samples::start(&agent.datapath.maps_dir(), Arc::clone(&agent.metrics))?;
    service_ip_reservation::start(&config, agent.needs_address.subscribe());
    key_publisher::start(&config, agent.secrets.public_key(), agent.needs_key.subscribe());
    policy_report_publisher::start(
        &config,
        agent.policy_report.subscribe(),
        Arc::clone(&agent.metrics),
    );
    reachability::start(&config, agent.remote_gateways.subscribe(), agent.prober.status());
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
    let mut host_changes =
        HostChanges::subscribe(agent.watched.subscribe()).map_err(io_error("subscribe to netlink"))?;
    let mut signals = Signals::new()?;
    let mut schedule = Schedule::new(Instant::now());
    let mut status = agent.prober.status();
    let mut search = every(SEARCH_INTERVAL);
    let mut foreign_changes = ForeignChanges::new(Instant::now());
    let mut renew = every(RENEW_INTERVAL);
    let mut confirm = every(CONFIRM_INTERVAL);
    loop {
        agent.metrics.state().last_turn = std::time::Instant::now();
        tokio::select! {
            name = signals.recv() => {
                info!(signal = name, "leaving the data path in place");
                agent.withdraw_links();
                return Ok(());
            }
            changed = objects.changed() => {
                if changed.is_err() {
                    return Err(SourceError::Ended.into());
                }
                schedule.objects_changed(Instant::now());
            }
            change = host_changes.changed() => {
                agent.outdate(change);
                schedule.host_changed(Instant::now());
            }
            _ = renew.tick() => agent.renew_links(),
            _ = confirm.tick() => if agent.confirm_neighbors().await {
                schedule.host_changed(Instant::now());
            },
            _ = search.tick() => if foreign_changes.find(&mut agent, Instant::now()) {
                schedule.host_changed(Instant::now());
            },
            Ok(()) = status.changed() => {
                let path_mtus = status.borrow_and_update().path_mtus();
                if agent.path_mtus != path_mtus {
                    agent.path_mtus = path_mtus;
                    schedule.host_changed(Instant::now());
                }
            }
            () = sleep_until(schedule.due_at()) => {
                let objects = objects.borrow_and_update().clone();
                let Some(objects) = objects else {
                    schedule.done(Instant::now());
                    continue;
                };
                let began = Instant::now();
                let is_resync = schedule.resync_due(began);
                let result = agent.reconcile(&objects, is_resync).await;
                drop(objects);
                if is_resync {
                    return_freed_memory();
                }
                let outcome = result.as_ref().copied().map_err(|error| error_chain(error));
                agent.metrics.state().record_reconcile(began.elapsed(), SystemTime::now(), outcome);
                match result {
                    Ok(()) => {
                        agent.grant_links();
                        schedule.done(Instant::now());
                    }
                    Err(AgentError::Desired(error)) => {
                        agent.log.error(&error);
                        schedule.done(Instant::now());
                    }
                    Err(error) => {
                        agent.log.error(&error);
                        // The cached map contents may be wrong.
                        agent.maps_stale = true;
                        schedule.failed(Instant::now());
                    }
                }
            }
        }
    }
}

/// Ticks that are delayed after a long reconcile, not repeated.
fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn io_error(operation: &'static str) -> impl FnOnce(io::Error) -> AgentError {
    move |source| AgentError::Io { operation, source }
}
