//! `tcp-rr-client` and `tcp-rr-server`: round-trip times of requests over one TCP connection.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use mc_tests::traffic::{LISTENING, LatencyReport};

/// Untimed requests at the start.
const WARM_UP: usize = 500;
/// Timeout for a connection and for a response.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// Destination `ADDRESS:PORT`.
    to: SocketAddr,
    /// Timed requests.
    #[arg(long, default_value_t = 10_000)]
    requests: usize,
    /// Bytes of each request and each response.
    #[arg(long, default_value_t = 1)]
    size: usize,
}

pub(crate) fn client(args: &ClientArgs) -> Result<()> {
    if args.requests == 0 {
        bail!("--requests 0 measures nothing");
    }
    if args.size == 0 {
        bail!("--size 0 sends nothing");
    }
    let mut connection = TcpStream::connect_timeout(&args.to, TIMEOUT)
        .with_context(|| format!("cannot connect to {}", args.to))?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    let mut times = Vec::with_capacity(args.requests);
    let request = vec![b'?'; args.size];
    let mut response = vec![0; args.size];
    for number in 0..WARM_UP + args.requests {
        let sent = Instant::now();
        connection.write_all(&request)?;
        connection.read_exact(&mut response).context("no response")?;
        if number >= WARM_UP {
            times.push(sent.elapsed());
        }
    }
    println!("{}", serde_json::to_string(&report(times))?);
    Ok(())
}

/// Percentiles by nearest rank.
fn report(mut times: Vec<Duration>) -> LatencyReport {
    times.sort_unstable();
    let micros = |time: &Duration| time.as_secs_f64() * 1e6;
    let percentile = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(rank).map_or(0.0, micros)
    };
    let total: Duration = times.iter().sum();
    #[expect(clippy::cast_precision_loss, reason = "no run has 2^52 requests")]
    let mean_us = if times.is_empty() {
        0.0
    } else {
        micros(&total) / times.len() as f64
    };
    LatencyReport {
        requests: times.len(),
        p50_us: percentile(50),
        p99_us: percentile(99),
        mean_us,
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// TCP port.
    #[arg(long)]
    port: u16,
    /// Bytes of each request and each response.
    #[arg(long, default_value_t = 1)]
    size: usize,
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    bind: IpAddr,
}

pub(crate) fn server(args: &ServerArgs) -> Result<()> {
    let listener = TcpListener::bind((args.bind, args.port))
        .with_context(|| format!("cannot listen on TCP port {}", args.port))?;
    println!("{LISTENING} on port {}", args.port);
    let (mut connection, _) = listener.accept()?;
    connection.set_nodelay(true)?;
    let mut request = vec![0; args.size.max(1)];
    loop {
        match connection.read_exact(&mut request) {
            Ok(()) => connection.write_all(&request)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error).context("connection lost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_one_to_a_hundred() {
        let report = report((1..=100).rev().map(Duration::from_micros).collect());
        assert_eq!(report.requests, 100);
        assert!((report.p50_us - 50.0).abs() < 1e-6, "{report:?}");
        assert!((report.p99_us - 99.0).abs() < 1e-6, "{report:?}");
        assert!((report.mean_us - 50.5).abs() < 1e-6, "{report:?}");
    }
}
