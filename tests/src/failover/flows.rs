//! Numbered datagrams of many flows between two Pods, with loss statistics for each flow.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use super::TIMEOUT;
use crate::{
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};

/// Number of flows, each with its own source port.
pub const FLOWS: usize = 16;
/// Datagrams per second, of all flows together.
const RATE: u32 = 2_000;
/// Destination port, and the first source port.
const PORT: u16 = 5_202;
const FIRST_PORT: u16 = 40_000;
const RECEIVE_BUFFER: usize = 32 << 20;
/// Bytes of a datagram: flow and sequence number.
const LEN: usize = 16;

/// Arrivals of one flow: time and sequence number.
type Arrivals = Vec<(Instant, u64)>;

/// Running traffic; dropping it stops sender and receiver.
#[derive(Debug)]
pub struct Flows {
    arrivals: Arc<Mutex<Vec<Arrivals>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Number of datagrams of each flow received at a point in time.
#[derive(Clone, Debug)]
pub struct Checkpoint(Vec<usize>);

// === impl Flows ===

impl Flows {
    /// Starts sender and receiver and waits for a datagram of every flow.
    pub fn start(bed: &Topology) -> Result<Self> {
        let [from, to] = [Cluster::East, Cluster::West].map(|cluster| {
            let family = bed.options().inner.families().first().copied();
            cluster.pod_addr(family.unwrap_or_default())
        });
        let receiver = bed.netns(Place::PodWest).enter(|| receiver(to))?;
        let senders = bed.netns(Place::PodEast).enter(|| senders(from, to))?;
        let arrivals = Arc::new(Mutex::new(vec![Vec::new(); FLOWS]));
        let stop = Arc::new(AtomicBool::new(false));
        let threads = vec![
            {
                let (arrivals, stop) = (Arc::clone(&arrivals), Arc::clone(&stop));
                thread::spawn(move || receive(&receiver, &arrivals, &stop))
            },
            {
                let stop = Arc::clone(&stop);
                thread::spawn(move || send(&senders, &stop))
            },
        ];
        let flows = Self {
            arrivals,
            stop,
            threads,
        };
        flows.wait_all_after(Instant::now(), "every flow to arrive")?;
        Ok(flows)
    }

    fn arrivals(&self) -> MutexGuard<'_, Vec<Arrivals>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A checkpoint at the current time.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.arrivals().iter().map(Vec::len).collect())
    }

    /// Waits for a datagram of every flow that arrives after `moment`.
    pub fn wait_all_after(&self, moment: Instant, what: &str) -> Result<()> {
        let deadline = TIMEOUT + moment.saturating_duration_since(Instant::now());
        wait_for(what, deadline, || {
            let silent: Vec<usize> = (0..)
                .zip(self.arrivals().iter())
                .filter(|(_, arrivals)| arrivals.last().is_none_or(|(at, _)| *at <= moment))
                .map(|(flow, _)| flow)
                .collect();
            if silent.is_empty() {
                Ok(())
            } else {
                Err(format!("no datagram of flows {silent:?}"))
            }
        })
    }

    /// Flows with a missing number between the last datagram before the checkpoint and the newest one.
    #[must_use]
    pub fn lost_since(&self, checkpoint: &Checkpoint) -> BTreeSet<usize> {
        self.per_flow(checkpoint, |new| {
            let numbers: BTreeSet<u64> = new.iter().map(|(_, number)| *number).collect();
            let ends = numbers.first().zip(numbers.last());
            ends.is_some_and(|(first, last)| usize::try_from(last - first + 1) != Ok(numbers.len()))
        })
        .into_iter()
        .filter_map(|(flow, lost)| lost.then_some(flow))
        .collect()
    }

    /// The longest gap between arrivals of these flows since the checkpoint.
    #[must_use]
    pub fn longest_gap_since(&self, checkpoint: &Checkpoint, flows: &BTreeSet<usize>) -> Duration {
        let gap = |new: &[(Instant, u64)]| {
            let gaps = new
                .array_windows()
                .map(|[(before, _), (after, _)]| *after - *before);
            gaps.max().unwrap_or_default()
        };
        self.per_flow(checkpoint, gap)
            .into_iter()
            .filter_map(|(flow, gap)| flows.contains(&flow).then_some(gap))
            .max()
            .unwrap_or_default()
    }

    /// Evaluates the arrivals of each flow, from the last one before the checkpoint.
    fn per_flow<T>(
        &self,
        checkpoint: &Checkpoint,
        evaluate: impl Fn(&[(Instant, u64)]) -> T,
    ) -> Vec<(usize, T)> {
        self.arrivals()
            .iter()
            .zip(&checkpoint.0)
            .map(|(arrivals, before)| arrivals.get(before.saturating_sub(1)..).unwrap_or_default())
            .enumerate()
            .map(|(flow, new)| (flow, evaluate(new)))
            .collect()
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn receiver(to: IpAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((to, PORT))?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER)?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

/// A socket for each flow. The ports are fixed, so that each flow uses the same gateway in every run.
fn senders(from: IpAddr, to: IpAddr) -> Result<Vec<UdpSocket>> {
    let sockets = (FIRST_PORT..).take(FLOWS).map(|port| {
        let socket = UdpSocket::bind((from, port))?;
        socket.connect(SocketAddr::from((to, PORT)))?;
        Ok(socket)
    });
    Ok(sockets.collect::<io::Result<_>>()?)
}

fn receive(socket: &UdpSocket, arrivals: &Mutex<Vec<Arrivals>>, stop: &AtomicBool) {
    let mut bytes = [0; LEN];
    while !stop.load(Ordering::Relaxed) {
        // A timeout is expected during an outage.
        let Ok(LEN) = socket.recv(&mut bytes) else {
            continue;
        };
        let now = Instant::now();
        let [flow, number] = [0, 1].map(|word| {
            let (words, _) = bytes.as_chunks::<8>();
            words.get(word).map_or(0, |word| u64::from_be_bytes(*word))
        });
        let mut all = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of) = usize::try_from(flow).ok().and_then(|flow| all.get_mut(flow)) {
            of.push((now, number));
        }
    }
}

fn send(sockets: &[UdpSocket], stop: &AtomicBool) {
    let interval = Duration::from_secs(1) / RATE;
    let mut due = Instant::now();
    for number in 0_u64.. {
        for (flow, socket) in (0_u64..).zip(sockets) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let now = Instant::now();
            // Pacing: a late sender skips the missed slots and sends no burst.
            due = if due + Duration::from_millis(5) < now {
                now
            } else {
                due
            };
            thread::sleep(due.saturating_duration_since(now));
            due += interval;
            let bytes = [flow.to_be_bytes(), number.to_be_bytes()].concat();
            // A datagram rejected by the local kernel counts as lost.
            socket.send(&bytes).ok();
        }
    }
}
