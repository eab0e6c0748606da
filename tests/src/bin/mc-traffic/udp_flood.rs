//! `udp-flood` and `udp-sink`: rate of small datagrams.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use mc_tests::{
    sequence::{Datagram, HEADER},
    traffic::FloodReport,
};

use crate::udp::{confirm, connect, end, listen, transmit};

/// Datagrams between two readings of the clock.
const BATCH: u64 = 64;

#[derive(Debug, clap::Args)]
pub(crate) struct FloodArgs {
    /// Destination `ADDRESS:PORT`.
    to: SocketAddr,
    /// Bytes of payload.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Duration in seconds.
    #[arg(long, default_value_t = 3.0)]
    duration: f64,
}

pub(crate) fn flood(args: &FloodArgs) -> Result<()> {
    let duration = Duration::try_from_secs_f64(args.duration).context("--duration")?;
    let socket = connect(args.to)?;
    let stream = std::process::id();
    let mut payload = vec![0; args.size.max(HEADER)];
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < duration {
        for _ in 0..BATCH {
            transmit(
                &socket,
                &mut payload,
                Datagram::Data {
                    stream,
                    sequence: sent,
                },
            );
            sent += 1;
        }
    }
    end(&socket, stream, sent)?;
    println!("{sent} sent");
    Ok(())
}

#[derive(Debug, clap::Args)]
pub(crate) struct SinkArgs {
    /// UDP port.
    #[arg(long)]
    port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    bind: IpAddr,
    /// Seconds to wait for the end marker after the last datagram.
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
}

pub(crate) fn sink(args: &SinkArgs) -> Result<()> {
    let timeout = Duration::try_from_secs_f64(args.timeout).context("--timeout")?;
    let socket = listen(args.bind, args.port, timeout)?;
    let mut buffer = vec![0; 2048];
    let mut report = FloodReport::default();
    let (mut first, mut last) = (None, None);
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        match Datagram::decode(buffer.get(..length).unwrap_or_default()) {
            Some(Datagram::Data { .. }) => {
                report.received += 1;
                let now = Instant::now();
                first.get_or_insert(now);
                last = Some(now);
            }
            Some(Datagram::End { stream, sent }) => {
                report.sent = sent;
                confirm(&socket, stream, from);
                break;
            }
            _ => {}
        }
    }
    if let (Some(first), Some(last)) = (first, last) {
        report.seconds = last.duration_since(first).as_secs_f64();
    }
    if report.seconds > 0.0 {
        #[expect(clippy::cast_precision_loss, reason = "no run has 2^52 datagrams")]
        let received = report.received as f64;
        report.packets_per_second = received / report.seconds;
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
