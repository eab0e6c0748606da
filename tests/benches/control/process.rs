//! Processes of Pods on this machine: lookup, resource use, and requests from their network namespaces.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns};

/// Unit of times in /proc, per second (Linux, include/asm-generic/param.h: `USER_HZ`).
const TICKS: f64 = 100.0;
/// Timeout of one request, so that lost packets cost little.
const TRY: Duration = Duration::from_millis(100);
/// Pause between requests.
const PAUSE: Duration = Duration::from_millis(2);

/// Resource use of a process since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Current and peak resident memory, MiB.
    pub(crate) rss_mib: f64,
    pub(crate) peak_mib: f64,
    /// CPU time, seconds.
    pub(crate) cpu_s: f64,
    /// Start time, seconds since boot.
    pub(crate) since: f64,
}

/// Resource use of a process.
pub(crate) fn usage(pid: u32) -> Result<Usage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mib = |key: &str| -> Result<f64> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .context("a line of status")?;
        let kib: u32 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(f64::from(kib) / 1024.0)
    };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command name may contain spaces; field numbers start at the state, the third.
    let (_, fields) = stat.rsplit_once(") ").context("stat")?;
    let fields: Vec<_> = fields.split(' ').collect();
    let seconds = |field: usize| -> Result<f64> {
        let field: u32 = fields.get(field - 3).context("a field of stat")?.parse()?;
        Ok(f64::from(field) / TICKS)
    };
    Ok(Usage {
        rss_mib: mib("VmRSS:")?,
        peak_mib: mib("VmHWM:")?,
        cpu_s: seconds(14)? + seconds(15)?,
        since: seconds(22)?,
    })
}

/// Seconds since boot, the clock of [`Usage::since`].
pub(crate) fn uptime() -> Result<f64> {
    let text = fs::read_to_string("/proc/uptime")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

/// Sends requests from a process's network namespace until an answer starts with `wanted`; returns the time.
pub(crate) async fn wait_answer(
    pid: u32,
    to: SocketAddr,
    wanted: String,
    deadline: Duration,
) -> Result<Instant> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // A thread of its own, because a network namespace is left by ending the thread.
    thread::spawn(move || sender.send(request_until(pid, to, &wanted, deadline)));
    receiver.await?
}

fn request_until(pid: u32, to: SocketAddr, wanted: &str, deadline: Duration) -> Result<Instant> {
    let netns = fs::File::open(format!("/proc/{pid}/ns/net"))?;
    setns(netns, CloneFlags::CLONE_NEWNET)?;
    let start = Instant::now();
    loop {
        let seen = match get(to) {
            Ok(answer) if answer.starts_with(wanted) => return Ok(Instant::now()),
            Ok(answer) => answer,
            Err(error) => error.to_string(),
        };
        if start.elapsed() > deadline {
            bail!("no answer of {wanted:?} from {to} within {deadline:?}, seen: {seen:?}");
        }
        thread::sleep(PAUSE);
    }
}

fn get(to: SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&to, TRY)?;
    connection.set_read_timeout(Some(TRY))?;
    connection.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned())
        .unwrap_or_default())
}
