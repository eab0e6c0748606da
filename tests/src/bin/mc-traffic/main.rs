//! `mc-traffic`: small servers and clients for the test beds and the test image, one file each.

#![forbid(unsafe_code)]

mod blast;
mod capture;
mod echo_server;
mod get;
mod hold;
mod liar;
mod pause;
mod ping;
mod rr;
mod stream;
mod udp;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Servers and clients for tests: echo, HTTP, numbered datagrams, throughput, latency, capture.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Run on this CPU only.
    #[arg(long)]
    cpu: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer HTTP with `<name> <client address>` and UDP with what was received.
    EchoServer(echo_server::Args),
    /// Get a URL, print the body of each answer.
    Get(get::Args),
    /// Keep one HTTP connection open and use it at an interval.
    Hold(hold::Args),
    /// Send ICMP echo requests.
    Ping(ping::Args),
    /// Send numbered datagrams at a steady rate.
    UdpSend(udp::SendArgs),
    /// Receive numbered datagrams, report what is missing.
    UdpRecv(udp::RecvArgs),
    /// Send bytes over one TCP connection as fast as possible.
    StreamSend(stream::SendArgs),
    /// Receive such bytes, report the throughput.
    StreamRecv(stream::RecvArgs),
    /// Send small datagrams as fast as possible.
    Blast(blast::BlastArgs),
    /// Receive such datagrams, report the rate.
    Sink(blast::SinkArgs),
    /// Ask over one TCP connection, one question at a time, report the round-trip times.
    RrClient(rr::ClientArgs),
    /// Answer such questions.
    RrServer(rr::ServerArgs),
    /// Write the frames of one device to a pcap file.
    Capture(capture::Args),
    /// Answer probes of the data path with garbage or too late.
    Liar(liar::Args),
    /// Sleep until SIGTERM, reaping children: the process that keeps a Pod's namespaces.
    Pause,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if let Some(cpu) = cli.cpu {
        let mut cpus = CpuSet::new();
        cpus.set(cpu)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus))
            .with_context(|| format!("--cpu {cpu}"))?;
    }
    match cli.command {
        Command::EchoServer(args) => echo_server::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Hold(args) => hold::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::UdpSend(args) => udp::send(&args),
        Command::UdpRecv(args) => udp::recv(&args),
        Command::StreamSend(args) => stream::send(&args),
        Command::StreamRecv(args) => stream::recv(&args),
        Command::Blast(args) => blast::blast(&args),
        Command::Sink(args) => blast::sink(&args),
        Command::RrClient(args) => rr::client(&args),
        Command::RrServer(args) => rr::server(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Liar(args) => liar::run(&args),
        Command::Pause => pause::run(),
    }
}
