//! `hold`: one HTTP connection used at an interval; it has to survive whatever is done to the path.

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
use mc_tests::traffic::HoldReport;
use signal_hook::{consts::SIGTERM, flag};

use crate::get::{Url, answer};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `http://HOST[:PORT][/PATH]` of a server that keeps connections open.
    url: String,
    /// Milliseconds between requests.
    #[arg(long, default_value_t = 20)]
    interval: u64,
    /// Seconds to go on for, unless SIGTERM comes earlier.
    #[arg(long, default_value_t = 10.0)]
    duration: f64,
    /// Seconds to wait for each answer.
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
    println!("holding");
    let (start, mut report) = (Instant::now(), HoldReport::default());
    while start.elapsed() < duration && !end.load(Ordering::Relaxed) {
        let asked = Instant::now();
        url.ask(&mut connection, "keep-alive")?;
        answer(&mut answers)
            .with_context(|| format!("connection failed after {} requests", report.requests))?;
        report.requests += 1;
        report.longest_ms = report.longest_ms.max(asked.elapsed().as_secs_f64() * 1e3);
        thread::sleep(Duration::from_millis(args.interval));
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
