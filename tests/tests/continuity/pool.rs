//! The ledger: all open connections, checked after each event.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use mc_tests::{topology::Family, wait::wait_for};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    connection::{self, Kind, Protocol, SharedState, Spec, Target},
    runtime::Runtime,
};

/// Longest time until the reply to a request that is sent after an event: TCP doubles its interval of retransmissions
/// during an outage.
const DEADLINE: Duration = Duration::from_secs(20);
/// First local port: ports are fixed, so that each connection has the same gateways and backend in every run.
const FIRST_PORT: u16 = 20_000;

/// Number of a connection, never used again.
pub(crate) type Id = usize;

/// An open connection.
#[derive(Debug)]
struct Connection {
    spec: Spec,
    port: u16,
    state: SharedState,
    task: JoinHandle<()>,
}

/// A connection that an event has cut.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) id: Id,
    pub(crate) spec: Spec,
    pub(crate) port: u16,
    pub(crate) cause: String,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            spec,
            port,
            cause,
        } = self;
        let Spec {
            kind,
            protocol,
            family,
            target,
        } = spec;
        write!(
            f,
            "{id}: {kind:?} {protocol:?} {family:?} from port {port} to a {target:?}: {cause}"
        )
    }
}

/// Result of a check.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) cut: Vec<Cut>,
    pub(crate) longest_pause: Duration,
    /// Errors that UDP sockets received.
    pub(crate) errors: u64,
}

/// The open connections of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    runtime: Runtime,
    /// Address of each target.
    addresses: fn(Spec) -> SocketAddr,
    rounds: watch::Sender<u64>,
    connections: BTreeMap<Id, Connection>,
    next: Id,
    next_port: u16,
}

// === impl Report ===

impl Report {
    /// No connection is cut.
    pub(crate) fn ensure_none_cut(&self) -> Result<()> {
        ensure!(self.cut.is_empty(), "cut:\n  {}", list(&self.cut));
        Ok(())
    }
}

/// One line for each connection.
pub(crate) fn list<'a>(cut: impl IntoIterator<Item = &'a Cut>) -> String {
    let lines: Vec<_> = cut.into_iter().map(ToString::to_string).collect();
    lines.join("\n  ")
}

// === impl Pool ===

impl Pool {
    pub(crate) fn new(runtime: Runtime, addresses: fn(Spec) -> SocketAddr) -> Self {
        Self {
            runtime,
            addresses,
            rounds: watch::Sender::new(1),
            connections: BTreeMap::new(),
            next: 0,
            next_port: FIRST_PORT,
        }
    }

    /// Starts connections; [`Self::wait_open`] waits for them.
    pub(crate) fn start(&mut self, specs: impl IntoIterator<Item = Spec>) -> Result<Vec<Id>> {
        let mut ids = Vec::new();
        for spec in specs {
            let id = self.next;
            self.next += 1;
            let port = self.next_port;
            self.next_port = port.checked_add(1).context("no port is left")?;
            let state = SharedState::default();
            let to = (self.addresses)(spec);
            let run = connection::run(spec, port, to, state.clone(), self.rounds.subscribe());
            let task = self.runtime.spawn(run);
            let connection = Connection {
                spec,
                port,
                state,
                task,
            };
            self.connections.insert(id, connection);
            ids.push(id);
        }
        Ok(ids)
    }

    /// Waits for the first reply to each of these connections.
    pub(crate) fn wait_open(&self, ids: &[Id]) -> Result<()> {
        wait_for("replies to new connections", DEADLINE, || {
            let mut waiting = Vec::new();
            for id in ids {
                let Some(connection) = self.connections.get(id) else {
                    continue;
                };
                let state = connection.state.lock();
                if state.backend.is_none() {
                    waiting.push((*id, connection.spec, connection.port, state.cut.clone()));
                }
            }
            if waiting.is_empty() {
                Ok(())
            } else {
                Err(format!("{waiting:?}"))
            }
        })
    }

    /// Opens connections.
    pub(crate) fn open(&mut self, specs: impl IntoIterator<Item = Spec>) -> Result<Vec<Id>> {
        let ids = self.start(specs)?;
        self.wait_open(&ids)?;
        Ok(ids)
    }

    /// Number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Connections with a given property, with their ports.
    pub(crate) fn select(&self, wanted: impl Fn(Spec) -> bool) -> impl Iterator<Item = (Id, Spec, u16)> {
        let all = self.connections.iter();
        all.filter(move |(_, connection)| wanted(connection.spec))
            .map(|(id, connection)| (*id, connection.spec, connection.port))
    }

    /// Backend of a connection.
    pub(crate) fn backend(&self, id: Id) -> Option<IpAddr> {
        self.connections.get(&id)?.state.lock().backend
    }

    /// Closes connections.
    pub(crate) fn close(&mut self, ids: &[Id]) {
        for id in ids {
            if let Some(connection) = self.connections.remove(id) {
                connection.task.abort();
            }
        }
    }

    /// Closes all connections; later ones begin at a local port.
    pub(crate) fn restart_at(&mut self, port: u16) {
        let ids: Vec<Id> = self.connections.keys().copied().collect();
        self.close(&ids);
        self.next_port = port;
    }

    /// Sends a request over each connection and waits for the replies. A connection without one is cut. Cut
    /// connections are closed; a new one takes the place of each.
    pub(crate) fn check(&mut self) -> Result<Report> {
        let round = *self.rounds.borrow() + 1;
        self.rounds.send_replace(round);
        let waited = wait_for("replies over all connections", DEADLINE, || {
            let silent = self.connections.values().filter(|connection| {
                let state = connection.state.lock();
                state.cut.is_none() && state.answered < round
            });
            match silent.count() {
                0 => Ok(()),
                silent => Err(format!("{silent} silent")),
            }
        });
        let mut report = Report {
            cut: Vec::new(),
            longest_pause: Duration::ZERO,
            errors: 0,
        };
        for (id, connection) in &self.connections {
            let mut state = connection.state.lock();
            let silent = (state.answered < round).then(|| format!("no reply for {DEADLINE:?}"));
            if let Some(cause) = state.cut.clone().or(silent) {
                let Connection { spec, port, .. } = *connection;
                report.cut.push(Cut {
                    id: *id,
                    spec,
                    port,
                    cause,
                });
            } else {
                report.longest_pause = report.longest_pause.max(state.longest_pause);
            }
            report.errors += std::mem::take(&mut state.errors);
            state.longest_pause = Duration::ZERO;
        }
        ensure!(waited.is_ok() || !report.cut.is_empty(), "{waited:?}");
        let ids: Vec<Id> = report.cut.iter().map(|cut| cut.id).collect();
        let specs: Vec<Spec> = report.cut.iter().map(|cut| cut.spec).collect();
        self.close(&ids);
        self.open(specs)?;
        Ok(report)
    }
}

/// A mixture of `count` connections: both families and transports, a third to Pods, one in five with bulk data.
pub(crate) fn mixture(count: usize) -> impl Iterator<Item = Spec> {
    (0..count).map(|at| Spec {
        family: [Family::V4, Family::V6][at % 2],
        protocol: [Protocol::Tcp, Protocol::Udp][at / 2 % 2],
        kind: [Kind::Bulk, Kind::Idle, Kind::Slow, Kind::Slow, Kind::Idle][at / 4 % 5],
        target: [Target::Pod, Target::Service, Target::Service][at / 4 % 3],
    })
}

/// `count` slow connections to Services, of both families and transports.
pub(crate) fn to_services(count: usize) -> impl Iterator<Item = Spec> {
    (0..count).map(|at| Spec {
        family: [Family::V4, Family::V6][at % 2],
        protocol: [Protocol::Tcp, Protocol::Udp][at / 2 % 2],
        kind: Kind::Slow,
        target: Target::Service,
    })
}

#[test]
fn a_mixture_of_100_has_every_kind() {
    let all: Vec<Spec> = mixture(100).collect();
    for kind in [Kind::Idle, Kind::Slow, Kind::Bulk] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for family in [Family::V4, Family::V6] {
                for target in [Target::Pod, Target::Service] {
                    let wanted = Spec {
                        kind,
                        protocol,
                        family,
                        target,
                    };
                    assert!(all.contains(&wanted), "{wanted:?}");
                }
            }
        }
    }
}
