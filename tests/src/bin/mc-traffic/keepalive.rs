//! `keepalive`: periodic requests over one HTTP connection, which must survive changes of the path.

use std::{
    io::BufReader,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use mc_tests::traffic::KeepaliveReport;
use signal_hook::{consts::SIGTERM, flag};

use crate::get::{Url, read_response};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `http://HOST[:PORT][/PATH]` of a server with persistent connections.
    url: String,
    /// Milliseconds between requests.
    #[arg(long, default_value_t = 20)]
    interval: u64,
    /// Duration in seconds; SIGTERM ends it earlier.
    #[arg(long, default_value_t = 10.0)]
    duration: f64,
    /// Timeout in seconds for each response.
    #[arg(long, default_value_t = 10.0)]
    timeout: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let url = Url::parse(&args.url)?;
    let duration = Duration::try_from_secs_f64(args.duration).context("--duration")?;
    let mut connection = url.connect(Duration::try_from_secs_f64(args.timeout).context("--timeout")?)?;
    let mut answers = BufReader::new(connection.try_clone()?);
    let end = Arc::new(AtomicBool::new(false));
    flag::register(SIGTERM, end.clone())?;
    println!("connected");
    let (start, mut report) = (Instant::now(), KeepaliveReport::default());
    while start.elapsed() < duration && !end.load(Ordering::Relaxed) {
        let sent = Instant::now();
        url.send_request(&mut connection, "keep-alive")?;
        read_response(&mut answers)
            .with_context(|| format!("connection failed after {} requests", report.requests))?;
        report.requests += 1;
        report.longest_ms = report.longest_ms.max(sent.elapsed().as_secs_f64() * 1e3);
        thread::sleep(Duration::from_millis(args.interval));
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
