//! Traffic between namespaces, sent and measured by this crate's program `mc-traffic`.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use crate::sequence::SequenceReport;
use crate::{netns::Netns, process::Process};

/// Line that a server of `mc-traffic` prints once it listens.
pub const LISTENING: &str = "listening";
/// Timeout for the start of a subcommand.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a report after the end of the traffic.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

/// TCP port of the throughput servers.
pub const STREAM_PORT: u16 = 5201;
/// UDP port of the datagram servers.
pub const DATAGRAM_PORT: u16 = 5202;
/// TCP port of the request/response server.
pub const LATENCY_PORT: u16 = 5203;

/// Throughput measured by a receiver of TCP streams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Bytes counted.
    pub bytes: u64,
    /// Duration.
    pub seconds: f64,
    /// Bits per second.
    pub bits_per_second: f64,
}

/// Rate measured by a receiver of a UDP flood.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FloodReport {
    /// Datagrams sent, reported by the sender.
    pub sent: u64,
    /// Datagrams received.
    pub received: u64,
    /// Time between the first and the last arrival.
    pub seconds: f64,
    /// Datagrams received per second.
    pub packets_per_second: f64,
}

/// Round-trip times of requests over one TCP connection, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Requests answered.
    pub requests: usize,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Mean.
    pub mean_us: f64,
}

/// Results of ICMP echo requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PingReport {
    /// Requests sent.
    pub sent: u32,
    /// Replies received.
    pub received: u32,
    /// Smallest round-trip time in microseconds.
    pub min_us: f64,
    /// Mean round-trip time in microseconds.
    pub mean_us: f64,
}

/// Results of a kept-alive HTTP connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeepaliveReport {
    /// Requests answered over the connection.
    pub requests: u64,
    /// Longest response time in milliseconds.
    pub longest_ms: f64,
}

/// The program `mc-traffic`, run inside namespaces.
#[derive(Clone, Debug)]
pub struct Traffic {
    program: PathBuf,
    logs: PathBuf,
    cpu: Option<usize>,
}

// === impl Traffic ===

impl Traffic {
    /// Uses the program at `program` and writes the logs of its children below `logs`.
    #[must_use]
    pub fn new(program: &Path, logs: &Path) -> Self {
        Self {
            program: program.to_owned(),
            logs: logs.to_owned(),
            cpu: None,
        }
    }

    /// Path of the `mc-traffic` built with the running program: beside it, or one directory up for a test.
    pub fn program() -> Result<PathBuf> {
        let own = std::env::current_exe().context("cannot find the running program")?;
        let found = own
            .ancestors()
            .skip(1)
            .take(2)
            .map(|directory| directory.join("mc-traffic"));
        match found.into_iter().find(|path| path.is_file()) {
            Some(path) => Ok(path),
            None => bail!(
                "no mc-traffic beside {}: build it with `cargo build -p mc-tests`",
                own.display()
            ),
        }
    }

    /// The same program, pinned to one CPU.
    #[must_use]
    pub fn on_cpu(&self, cpu: Option<usize>) -> Self {
        Self { cpu, ..self.clone() }
    }

    /// Starts a subcommand inside a namespace.
    pub fn spawn(&self, netns: &Netns, args: &[&str]) -> Result<Process> {
        let subcommand = args.first().copied().unwrap_or_default();
        let log = self.logs.join(format!("{}-{subcommand}.log", netns.name()));
        netns.spawn(&self.program, self.arguments(args), &log)
    }

    fn arguments(&self, args: &[&str]) -> Vec<String> {
        let pin = self.cpu.map(|cpu| format!("--cpu={cpu}"));
        pin.into_iter()
            .chain(args.iter().map(ToString::to_string))
            .collect()
    }

    /// Starts a server inside a namespace and waits until it listens.
    pub fn serve(&self, netns: &Netns, args: &[&str]) -> Result<Process> {
        let mut server = self.spawn(netns, args)?;
        server.wait_for_line(LISTENING, START_TIMEOUT)?;
        Ok(server)
    }

    /// Runs a subcommand inside a namespace to completion.
    pub fn run(&self, netns: &Netns, args: &[&str]) -> Result<String> {
        netns.run(&self.program, self.arguments(args))
    }

    /// Starts the HTTP and UDP echo server, which responds with its name.
    pub fn echo_server(&self, netns: &Netns, name: &str, port: u16) -> Result<Process> {
        self.serve(
            netns,
            &["echo-server", "--name", name, "--port", &port.to_string()],
        )
    }

    /// Requests a URL and returns the body.
    pub fn get(&self, netns: &Netns, url: &str) -> Result<String> {
        Ok(self.run(netns, &["get", url])?.trim().to_owned())
    }

    /// Sends ICMP echo requests.
    pub fn ping(&self, netns: &Netns, to: impl Into<IpAddr>, count: u32) -> Result<PingReport> {
        parse_report(&self.run(
            netns,
            &["ping", &to.into().to_string(), "--count", &count.to_string()],
        )?)
    }

    /// Measures TCP throughput of one connection; see [`Self::streams`].
    pub fn stream(
        &self,
        from: &Netns,
        to: &Netns,
        address: impl Into<IpAddr>,
        duration: Duration,
    ) -> Result<StreamReport> {
        self.streams(from, to, address, 1, duration)
    }

    /// Measures the total TCP throughput of several connections for `duration`, after an uncounted warm-up. Senders
    /// and receivers are pinned to one CPU each, if there are two, so that scheduling does not vary between
    /// measurements.
    pub fn streams(
        &self,
        from: &Netns,
        to: &Netns,
        address: impl Into<IpAddr>,
        streams: usize,
        duration: Duration,
    ) -> Result<StreamReport> {
        let to_address = SocketAddr::new(address.into(), STREAM_PORT);
        let (port, streams) = (STREAM_PORT.to_string(), streams.to_string());
        let [sending, receiving] = two_cpus().map(|cpu| self.on_cpu(cpu));
        let flags = [
            "stream-recv",
            "--port",
            &port,
            "--streams",
            &streams,
            "--bind",
            unspecified(to_address),
        ];
        let mut receiver = receiving.serve(to, &flags)?;
        sending.run(
            from,
            &[
                "stream-send",
                &to_address.to_string(),
                "--streams",
                &streams,
                "--duration",
                &duration.as_secs_f64().to_string(),
            ],
        )?;
        parse_report(&receiver.finish(REPORT_TIMEOUT)?)
    }

    /// Sends datagrams with `size` bytes of payload at the maximum rate and measures the rate of arrival; CPUs as
    /// for [`Self::streams`].
    pub fn udp_flood(
        &self,
        from: &Netns,
        to: &Netns,
        address: impl Into<IpAddr>,
        size: usize,
        duration: Duration,
    ) -> Result<FloodReport> {
        let to_address = SocketAddr::new(address.into(), DATAGRAM_PORT);
        let port = DATAGRAM_PORT.to_string();
        let [sending, receiving] = two_cpus().map(|cpu| self.on_cpu(cpu));
        let mut receiver = receiving.serve(
            to,
            &["udp-sink", "--port", &port, "--bind", unspecified(to_address)],
        )?;
        sending.run(
            from,
            &[
                "udp-flood",
                &to_address.to_string(),
                "--size",
                &size.to_string(),
                "--duration",
                &duration.as_secs_f64().to_string(),
            ],
        )?;
        parse_report(&receiver.finish(REPORT_TIMEOUT)?)
    }

    /// Measures request/response times over one TCP connection, `size` bytes each way. Both ends share a CPU, which
    /// excludes the wake-up of another one.
    pub fn latency(
        &self,
        from: &Netns,
        to: &Netns,
        address: impl Into<IpAddr>,
        size: usize,
        requests: usize,
    ) -> Result<LatencyReport> {
        let to_address = SocketAddr::new(address.into(), LATENCY_PORT);
        let (port, size) = (LATENCY_PORT.to_string(), size.to_string());
        let [both, _] = two_cpus().map(|cpu| self.on_cpu(cpu));
        let flags = [
            "tcp-rr-server",
            "--port",
            &port,
            "--size",
            &size,
            "--bind",
            unspecified(to_address),
        ];
        let mut server = both.serve(to, &flags)?;
        let report = parse_report(&both.run(
            from,
            &[
                "tcp-rr-client",
                &to_address.to_string(),
                "--size",
                &size,
                "--requests",
                &requests.to_string(),
            ],
        )?)?;
        server.finish(REPORT_TIMEOUT)?;
        Ok(report)
    }

    /// Starts a sequence-numbered stream of datagrams once the receiver has replied over its path;
    /// [`SequencedStream::finish`] returns the statistics.
    pub fn sequenced(
        &self,
        from: &Netns,
        to: &Netns,
        address: impl Into<IpAddr>,
        rate: u32,
        duration: Duration,
    ) -> Result<SequencedStream> {
        let to_address = SocketAddr::new(address.into(), DATAGRAM_PORT);
        let port = DATAGRAM_PORT.to_string();
        let receiver = self.serve(
            to,
            &["udp-recv", "--port", &port, "--bind", unspecified(to_address)],
        )?;
        let mut sender = self.spawn(
            from,
            &[
                "udp-send",
                &to_address.to_string(),
                "--rate",
                &rate.to_string(),
                "--duration",
                &duration.as_secs_f64().to_string(),
            ],
        )?;
        sender.wait_for_line("sending", START_TIMEOUT)?;
        Ok(SequencedStream { sender, receiver })
    }
}

/// A running stream of sequence-numbered datagrams.
#[derive(Debug)]
pub struct SequencedStream {
    sender: Process,
    receiver: Process,
}

// === impl SequencedStream ===

impl SequencedStream {
    /// Whether the sender is running.
    pub fn is_running(&mut self) -> bool {
        self.sender.is_running()
    }

    /// Stops the stream. An earlier end is an error: the stream did not cover the whole test.
    pub fn stop(mut self, deadline: Duration) -> Result<SequenceReport> {
        self.sender.stop_cleanly(deadline)?;
        parse_report(&self.receiver.finish(REPORT_TIMEOUT)?)
    }

    /// Waits for the end, at most for `deadline`, and returns the receiver's report. A failed sender or receiver is
    /// an error; lost datagrams are not.
    pub fn finish(mut self, deadline: Duration) -> Result<SequenceReport> {
        self.sender.finish(deadline)?;
        parse_report(&self.receiver.finish(REPORT_TIMEOUT)?)
    }
}

/// The first two CPUs available to this process; none if there is only one.
fn two_cpus() -> [Option<usize>; 2] {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else {
        return [None; 2];
    };
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    match [cpus.next(), cpus.next()] {
        both @ [Some(_), Some(_)] => both,
        _ => [None; 2],
    }
}

/// The unspecified address of the family of `to`: a dual-stack socket uses another code path in the kernel.
fn unspecified(to: SocketAddr) -> &'static str {
    if to.is_ipv4() { "0.0.0.0" } else { "::" }
}

/// Parses the report on the last line of an output.
fn parse_report<T: DeserializeOwned>(output: &str) -> Result<T> {
    let line = output.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("no report in `{}`", output.trim()))
}
