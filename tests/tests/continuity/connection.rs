//! One open connection: its traffic, and the record of its pauses and its end.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use mc_tests::topology::Family;
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpSocket, UdpSocket,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::wire::{BULK, BULK_DATAGRAM, RECORD, Record, Request};

/// Timeout for a new connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Interval of requests of an idle connection, of a slow one, and of datagrams of a bulk flow.
const IDLE: Duration = Duration::from_secs(3);
const SLOW: Duration = Duration::from_millis(100);
const BULK_DATAGRAMS: Duration = Duration::from_millis(50);
/// Datagrams that one call sends in a bulk flow: the kernel carries them as one super-packet.
const SUPER_PACKET: u64 = 4;

/// How much a connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request every few seconds.
    Idle,
    /// Ten requests each second.
    Slow,
    /// A download of 320 KiB/s, or super-packets of datagrams.
    Bulk,
}

/// Transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// Server of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The address of a Pod.
    Pod,
    /// An exported Service with several backends.
    Service,
}

/// Properties of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) kind: Kind,
    pub(crate) protocol: Protocol,
    pub(crate) family: Family,
    pub(crate) target: Target,
}

/// State of a connection, written by its task.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// Backend of the first reply.
    pub(crate) backend: Option<IpAddr>,
    /// The latest round in which a request was sent and answered.
    pub(crate) answered: u64,
    /// Longest time without a reply since the last reset.
    pub(crate) longest_pause: Duration,
    /// Errors that the network returned to a UDP socket.
    pub(crate) errors: u64,
    /// Cause of the end.
    pub(crate) cut: Option<String>,
}

/// A state shared with the task.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedState(Arc<Mutex<State>>);

// === impl SharedState ===

impl SharedState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a reply after `pause`, which must be from the backend of the first one.
    fn replied(&self, record: Record, pause: Duration) -> Result<()> {
        let mut state = self.lock();
        let backend = *state.backend.get_or_insert(record.backend);
        ensure!(
            backend == record.backend,
            "moved from {backend} to {}",
            record.backend
        );
        state.longest_pause = state.longest_pause.max(pause);
        Ok(())
    }

    fn answered(&self, round: u64) {
        let mut state = self.lock();
        state.answered = state.answered.max(round);
    }
}

/// Runs a connection from local port `port` to its end, which is recorded.
pub(crate) async fn run(
    spec: Spec,
    port: u16,
    to: SocketAddr,
    state: SharedState,
    rounds: watch::Receiver<u64>,
) {
    let end = match (spec.protocol, spec.kind) {
        (Protocol::Tcp, Kind::Bulk) => download(port, to, &state, rounds).await,
        (Protocol::Tcp, kind) => requests(kind, port, to, &state, rounds).await,
        (Protocol::Udp, kind) => datagrams(kind, port, to, &state, rounds).await,
    };
    let cause = end.map_or_else(|error| format!("{error:#}"), |()| "the pool has ended".to_owned());
    state.lock().cut = Some(cause);
}

async fn connect(port: u16, to: SocketAddr) -> Result<(OwnedReadHalf, OwnedWriteHalf)> {
    let socket = if to.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(local(port, to))?;
    let stream = timeout(CONNECT, socket.connect(to)).await;
    let stream = stream.context("connect: no answer")?.context("connect")?;
    stream.set_nodelay(true)?;
    Ok(stream.into_split())
}

fn local(port: u16, to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

/// One request after the other, each with one reply.
async fn requests(
    kind: Kind,
    port: u16,
    to: SocketAddr,
    state: &SharedState,
    mut rounds: watch::Receiver<u64>,
) -> Result<()> {
    let (mut reader, mut writer) = connect(port, to).await?;
    let interval = if kind == Kind::Idle { IDLE } else { SLOW };
    for number in 1.. {
        let round = *rounds.borrow_and_update();
        let sent = Instant::now();
        let request = Request { bulk: false, number };
        writer.write_all(&request.encode()).await.context("request")?;
        let mut bytes = [0; RECORD];
        reader.read_exact(&mut bytes).await.context("reply")?;
        let record = Record::decode(&bytes);
        ensure!(
            record.number == number,
            "reply {} to request {number}",
            record.number
        );
        state.replied(record, sent.elapsed())?;
        state.answered(round);
        tokio::select! {
            () = sleep(interval) => {}
            changed = rounds.changed() => if changed.is_err() { return Ok(()) },
        }
    }
    Ok(())
}

/// A stream of records; each round sends a request, which later records acknowledge.
async fn download(
    port: u16,
    to: SocketAddr,
    state: &SharedState,
    mut rounds: watch::Receiver<u64>,
) -> Result<()> {
    let (mut reader, mut writer) = connect(port, to).await?;
    let receive = async {
        let mut bytes = vec![0; RECORD + BULK];
        let mut before = Instant::now();
        for position in 0.. {
            reader.read_exact(&mut bytes).await.context("record")?;
            let (Some(head), Some(padding)) = (bytes.first_chunk(), bytes.get(RECORD..)) else {
                bail!("a short record");
            };
            let record = Record::decode(head);
            ensure!(
                record.position == position && padding.iter().all(|byte| *byte == record.padding()),
                "record {} in place of {position}",
                record.position
            );
            let now = Instant::now();
            state.replied(record, now - before)?;
            // The number of a request is the round after which it was sent, plus one.
            if let Some(round) = record.number.checked_sub(1) {
                state.answered(round);
            }
            before = now;
        }
        Ok(())
    };
    let send = async {
        loop {
            let number = *rounds.borrow_and_update() + 1;
            let request = Request { bulk: true, number };
            writer.write_all(&request.encode()).await.context("request")?;
            if rounds.changed().await.is_err() {
                return Ok(());
            }
        }
    };
    tokio::select! {
        end = receive => end,
        end = send => end,
    }
}

/// Numbered datagrams from one socket. A lost one is a pause, a reply of another backend is the end.
async fn datagrams(
    kind: Kind,
    port: u16,
    to: SocketAddr,
    state: &SharedState,
    mut rounds: watch::Receiver<u64>,
) -> Result<()> {
    let socket = UdpSocket::bind(local(port, to)).await?;
    socket.connect(to).await?;
    let (interval, batch, length) = match kind {
        Kind::Idle => (IDLE, 1, RECORD),
        Kind::Slow => (SLOW, 1, RECORD),
        Kind::Bulk => (BULK_DATAGRAMS, SUPER_PACKET, BULK_DATAGRAM),
    };
    if kind == Kind::Bulk {
        setsockopt(&socket.as_fd(), UdpGsoSegment, &i32::try_from(length)?).context("UDP_SEGMENT")?;
    }
    let mut round = *rounds.borrow_and_update();
    let mut number = 0;
    // The first number of the current round.
    let mut first = 1;
    let mut unanswered: Option<(u64, Instant)> = None;
    let mut due = Instant::now();
    let mut bytes = [0; 2048];
    loop {
        tokio::select! {
            () = sleep_until(due) => {
                let mut datagrams = Vec::new();
                for _ in 0..batch {
                    number += 1;
                    let mut datagram = vec![0; length];
                    let request = Request { bulk: false, number };
                    datagram[..request.encode().len()].copy_from_slice(&request.encode());
                    datagrams.extend(datagram);
                }
                let now = Instant::now();
                unanswered = unanswered.or(Some((number, now)));
                count_error(state, socket.send(&datagrams).await);
                // A datagram may be lost: the next one follows soon until a reply has arrived.
                due = now + if unanswered.is_some() && kind == Kind::Idle { SLOW } else { interval };
            }
            received = socket.recv(&mut bytes) => {
                let Some(length) = count_error(state, received) else { continue };
                let Some(head) = bytes.get(..length).and_then(<[u8]>::first_chunk) else {
                    bail!("a reply of {length} bytes");
                };
                let record = Record::decode(head);
                let pause = match unanswered {
                    Some((waiting, since)) if record.number >= waiting => {
                        unanswered = None;
                        if kind == Kind::Idle {
                            due = Instant::now() + interval;
                        }
                        since.elapsed()
                    }
                    _ => Duration::ZERO,
                };
                state.replied(record, pause)?;
                if record.number >= first {
                    state.answered(round);
                }
            }
            changed = rounds.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                round = *rounds.borrow_and_update();
                first = number + 1;
                due = Instant::now();
            }
        }
    }
}

/// The network's errors about earlier datagrams end no flow.
fn count_error<T>(state: &SharedState, result: io::Result<T>) -> Option<T> {
    if result.is_err() {
        state.lock().errors += 1;
    }
    result.ok()
}
