//! `mc-traffic`: small servers and clients for the topologies and the test image.

#![forbid(unsafe_code)]

mod capture;
mod echo_server;
mod fake_prober;
mod get;
mod keepalive;
mod pause;
mod ping;
mod stream;
mod tcp_rr;
mod udp;
mod udp_flood;

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
    /// Respond to HTTP with `<name> <client address>` and echo UDP.
    EchoServer(echo_server::Args),
    /// Request a URL and print the body of each response.
    Get(get::Args),
    /// Send periodic requests over one HTTP connection.
    Keepalive(keepalive::Args),
    /// Send ICMP echo requests.
    Ping(ping::Args),
    /// Send numbered datagrams at a steady rate.
    UdpSend(udp::SendArgs),
    /// Receive numbered datagrams and report loss.
    UdpRecv(udp::RecvArgs),
    /// Send bytes over TCP connections at the maximum rate.
    StreamSend(stream::SendArgs),
    /// Receive these bytes and report the throughput.
    StreamRecv(stream::RecvArgs),
    /// Send small datagrams at the maximum rate.
    UdpFlood(udp_flood::FloodArgs),
    /// Receive these datagrams and report the rate.
    UdpSink(udp_flood::SinkArgs),
    /// Send requests one by one over a TCP connection and report the round-trip times.
    TcpRrClient(tcp_rr::ClientArgs),
    /// Respond to these requests.
    TcpRrServer(tcp_rr::ServerArgs),
    /// Write the frames of one device to a pcap file.
    Capture(capture::Args),
    /// Reply to probes of the data path with garbage or too late.
    FakeProber(fake_prober::Args),
    /// Sleep until SIGTERM and reap children, like a Pod's pause container.
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
        Command::Keepalive(args) => keepalive::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::UdpSend(args) => udp::send(&args),
        Command::UdpRecv(args) => udp::recv(&args),
        Command::StreamSend(args) => stream::send(&args),
        Command::StreamRecv(args) => stream::recv(&args),
        Command::UdpFlood(args) => udp_flood::flood(&args),
        Command::UdpSink(args) => udp_flood::sink(&args),
        Command::TcpRrClient(args) => tcp_rr::client(&args),
        Command::TcpRrServer(args) => tcp_rr::server(&args),
        Command::Capture(args) => capture::run(&args),
        Command::FakeProber(args) => fake_prober::run(&args),
        Command::Pause => pause::run(),
    }
}
