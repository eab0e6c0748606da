//! Processes of Pods on this machine: which they are, what they need, and requests from their networks.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns};

/// The unit of times in /proc, per second (Linux, include/asm-generic/param.h: `USER_HZ`).
const TICKS: f64 = 100.0;
/// How long one try may take: a packet that is lost is not waited for.
const TRY: Duration = Duration::from_millis(100);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(2);

/// What a process has used since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Resident memory now and at most, MiB.
    pub(crate) rss_mib: f64,
    pub(crate) peak_mib: f64,
    /// CPU time, seconds.
    pub(crate) cpu_s: f64,
    /// Since when it runs, seconds since boot.
    pub(crate) since: f64,
}

/// What a process has used.
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
    // The name before it may have spaces; fields count from the state, the third.
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

/// Seconds since boot, as [`Usage::since`] counts them.
pub(crate) fn uptime() -> Result<f64> {
    let text = fs::read_to_string("/proc/uptime")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

/// Asks from the network of a process until an answer begins with `wanted`; when that was.
pub(crate) async fn asked(pid: u32, to: SocketAddr, wanted: String, deadline: Duration) -> Result<Instant> {
    let (tell, told) = tokio::sync::oneshot::channel();
    // A thread of its own: a network is left by ending.
    thread::spawn(move || tell.send(ask(pid, to, &wanted, deadline)));
    told.await?
}

fn ask(pid: u32, to: SocketAddr, wanted: &str, deadline: Duration) -> Result<Instant> {
    let netns = fs::File::open(format!("/proc/{pid}/ns/net"))?;
    setns(netns, CloneFlags::CLONE_NEWNET)?;
    let start = Instant::now();
    loop {
        let seen = match once(to) {
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

fn once(to: SocketAddr) -> std::io::Result<String> {
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
