//! `mc-bench`: mc-gateway next to plain routing and kernel VXLAN, all over the same namespaces.

#![forbid(unsafe_code)]

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use mc_tests::{
    bench::{self, PREFIX, Settings},
    interrupt::on_interrupt,
    topology::{Topology, Variant},
};

/// Measures TCP throughput, small datagrams per second and latency over six network namespaces.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// The mc-gateway program.
    #[arg(long, default_value = "target/release/mc-gateway")]
    agent: PathBuf,
    /// How often each variant is measured.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Variants to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Choice::Plain, Choice::KernelVxlan, Choice::McGateway])]
    variants: Vec<Choice>,
    /// Seconds of each throughput and each packet rate measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Requests of each latency measurement.
    #[arg(long, default_value_t = 10_000)]
    requests: usize,
    /// MTU of the underlay; that of the Pods is 50 smaller in every variant.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Attach Pods to a bridge, as bridge CNIs do, instead of directly.
    #[arg(long)]
    bridge: bool,
    /// Where to write the report.
    #[arg(long, default_value = "target/bench/report.json")]
    out: PathBuf,
    /// Start of the names of everything that is created.
    #[arg(long, default_value = PREFIX)]
    prefix: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Choice {
    Plain,
    KernelVxlan,
    McGateway,
}

impl From<Choice> for Variant {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Plain => Self::Plain,
            Choice::KernelVxlan => Self::KernelVxlan,
            Choice::McGateway => Self::McGateway,
        }
    }
}

fn main() -> ExitCode {
    match measure(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mc-bench failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: Cli) -> Result<()> {
    let settings = Settings {
        prefix: cli.prefix.clone(),
        agent: Some(cli.agent),
        variants: cli.variants.into_iter().map(Variant::from).collect(),
        rounds: cli.rounds,
        duration: Duration::try_from_secs_f64(cli.seconds).context("--seconds")?,
        requests: cli.requests,
        mtu: cli.mtu,
        bridge: cli.bridge,
    };
    on_interrupt(move || {
        if let Err(error) = Topology::remove(&cli.prefix) {
            eprintln!("{error:#}");
        }
    })?;
    let report = bench::run(&settings, |one| {
        eprintln!(
            "round {:>2}  {:<14} {:>6.2} Gb/s  {:>7.1} kpps  {:>6.1} us",
            one.round,
            one.variant.name(),
            one.tcp_bits_per_second / 1e9,
            one.udp64_packets_per_second / 1e3,
            one.latency_p50_us
        );
    })?;
    if let Some(directory) = cli.out.parent() {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    fs::write(&cli.out, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("cannot write {}", cli.out.display()))?;
    println!("\n{report}\nwritten to {}", cli.out.display());
    Ok(())
}
