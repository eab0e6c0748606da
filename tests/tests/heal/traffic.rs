//! Requests between the clusters at short intervals, and the gaps between their replies.

use std::{
    fs::File,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mc_tests::netns::Netns;
use nix::sched::{CloneFlags, setns};

/// Pause between requests.
const INTERVAL: Duration = Duration::from_millis(10);
/// Time limit of a reply.
const REPLY: Duration = Duration::from_millis(40);

/// A client that sends a datagram from a new port for each request, so that each request is a new flow.
#[derive(Debug)]
pub(crate) struct Client {
    replies: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Sends requests to a UDP echo server from a namespace until dropped.
    pub(crate) fn start(from: &Netns, to: SocketAddr) -> Self {
        let path = Path::new("/run/netns").join(from.name());
        let netns = File::open(path).expect("the namespace");
        let replies = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (kept, stopped) = (Arc::clone(&replies), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET).expect("the namespace");
            while !stopped.load(Ordering::Relaxed) {
                if request(to) {
                    kept.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(Instant::now());
                }
                thread::sleep(INTERVAL);
            }
        });
        Self {
            replies,
            stop,
            thread: Some(thread),
        }
    }

    /// Time of the last reply.
    pub(crate) fn last_reply(&self) -> Option<Instant> {
        let replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        replies.last().copied()
    }

    /// The longest time without a reply from `start` on, until the last reply.
    pub(crate) fn longest_gap_since(&self, start: Instant) -> Duration {
        let replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut last, mut longest) = (start, Duration::ZERO);
        for reply in replies.iter().filter(|reply| **reply >= start) {
            longest = longest.max(reply.saturating_duration_since(last));
            last = *reply;
        }
        longest
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Whether the server replies to a request from a new port.
fn request(to: SocketAddr) -> bool {
    let exchange = || {
        let socket = UdpSocket::bind((IpAddr::from([0, 0, 0, 0]), 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(REPLY))?;
        socket.send(b"heal")?;
        socket.recv(&mut [0; 64])
    };
    exchange().is_ok()
}
