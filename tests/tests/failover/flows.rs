//! Numbered datagrams of many flows from Pod to Pod, and what became of each flow.

use std::{
    collections::BTreeSet,
    fs::File,
    net::UdpSocket,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mc_tests::wait::wait_for;
use nix::{
    sched::{CloneFlags, setns},
    sys::socket::{setsockopt, sockopt::RcvBufForce},
};

use crate::bed::{Bed, POD_EAST, POD_WEST, SOON};

/// Flows, told apart by their source port.
pub(crate) const FLOWS: usize = 16;
/// Datagrams per second, of all flows together.
const RATE: u32 = 2_000;
const PORT: u16 = 5_202;
const RECEIVE_BUFFER: usize = 32 << 20;

/// Arrivals of one flow: when, and which number.
type Arrivals = Vec<(Instant, u64)>;

/// Traffic that goes on until this is dropped.
pub(crate) struct Flows {
    arrivals: Arc<Mutex<Vec<Arrivals>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// How many datagrams of each flow had arrived at a moment.
pub(crate) struct Mark(Vec<usize>);

impl Flows {
    /// Starts sender and receiver, and waits until every flow gets through.
    pub(crate) fn start(bed: &Bed) -> Self {
        let arrivals = Arc::new(Mutex::new(vec![Vec::new(); FLOWS]));
        let stop = Arc::new(AtomicBool::new(false));
        let receiver = {
            let (netns, arrivals, stop) = (bed.netns_path("pod-west"), arrivals.clone(), stop.clone());
            thread::spawn(move || receive(&netns, &arrivals, &stop))
        };
        let sender = {
            let (netns, stop) = (bed.netns_path("pod-east"), stop.clone());
            thread::spawn(move || send(&netns, &stop))
        };
        let flows = Self {
            arrivals,
            stop,
            threads: vec![receiver, sender],
        };
        flows.wait_all_after(Instant::now(), "every flow gets through");
        flows
    }

    fn arrivals(&self) -> MutexGuard<'_, Vec<Arrivals>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.arrivals().iter().map(Vec::len).collect())
    }

    /// Waits until a datagram of every flow has arrived after `moment`.
    pub(crate) fn wait_all_after(&self, moment: Instant, what: &str) {
        let deadline = SOON + moment.saturating_duration_since(Instant::now());
        wait_for(what, deadline, || {
            let arrivals = self.arrivals();
            let silent: Vec<usize> = (0..FLOWS)
                .filter(|flow| arrivals[*flow].last().is_none_or(|(at, _)| *at <= moment))
                .collect();
            if silent.is_empty() {
                Ok(())
            } else {
                Err(format!("flows {silent:?} are silent"))
            }
        })
        .expect("traffic");
    }

    /// Flows of which a datagram is missing between the last one before the mark and the last one now.
    pub(crate) fn lost_since(&self, mark: &Mark) -> BTreeSet<usize> {
        let arrivals = self.arrivals();
        (0..FLOWS)
            .filter(|flow| {
                let new = &arrivals[*flow][mark.0[*flow].saturating_sub(1)..];
                let numbers: BTreeSet<u64> = new.iter().map(|(_, number)| *number).collect();
                let (first, last) = (numbers.first().expect("one"), numbers.last().expect("one"));
                last - first + 1 != u64::try_from(numbers.len()).expect("a count")
            })
            .collect()
    }

    /// The longest silence of these flows since the mark.
    pub(crate) fn longest_gap_since(&self, mark: &Mark, flows: &BTreeSet<usize>) -> Duration {
        let arrivals = self.arrivals();
        flows
            .iter()
            .flat_map(|flow| {
                let new = &arrivals[*flow][mark.0[*flow].saturating_sub(1)..];
                new.windows(2).map(|pair| pair[1].0 - pair[0].0)
            })
            .max()
            .unwrap_or_default()
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

/// Moves this thread into a network namespace.
fn enter(netns: &str) {
    let file = File::open(netns).expect("a namespace");
    setns(file, CloneFlags::CLONE_NEWNET).expect("enter a namespace");
}

fn receive(netns: &str, arrivals: &Mutex<Vec<Arrivals>>, stop: &AtomicBool) {
    enter(netns);
    let socket = UdpSocket::bind((POD_WEST, PORT)).expect("a socket");
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER).expect("a receive buffer");
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("a timeout");
    let mut bytes = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        let Ok(16) = socket.recv(&mut bytes) else { continue };
        let flow = u64::from_be_bytes(bytes[..8].try_into().expect("eight"));
        let number = u64::from_be_bytes(bytes[8..16].try_into().expect("eight"));
        let flow = usize::try_from(flow).expect("a flow");
        arrivals.lock().expect("arrivals")[flow].push((Instant::now(), number));
    }
}

fn send(netns: &str, stop: &AtomicBool) {
    enter(netns);
    let sockets: Vec<UdpSocket> = (0..FLOWS)
        .map(|flow| {
            // Fixed ports: which gateway a flow takes is the same in every run.
            let port = 40_000 + u16::try_from(flow).expect("few");
            let socket = UdpSocket::bind((POD_EAST, port)).expect("a socket");
            socket.connect((POD_WEST, PORT)).expect("a route");
            socket
        })
        .collect();
    let interval = Duration::from_secs(1) / RATE;
    let mut due = Instant::now();
    for number in 0_u64.. {
        for (flow, socket) in (0_u64..).zip(&sockets) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let now = Instant::now();
            // Pacing. A sender that is late goes on from here: no burst.
            due = if due + Duration::from_millis(5) < now {
                now
            } else {
                due
            };
            thread::sleep(due.saturating_duration_since(now));
            due += interval;
            let bytes = [flow.to_be_bytes(), number.to_be_bytes()].concat();
            // What the local kernel refuses counts as lost.
            socket.send(&bytes).ok();
        }
    }
}
