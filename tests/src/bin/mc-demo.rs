//! `mc-demo`: cross-cluster traffic in a minute, without Kubernetes.

#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use mc_tests::{
    demo::{self, PREFIX, Settings},
    outln,
    signals::on_interrupt,
    topology::Topology,
};

/// Two small clusters in network namespaces, with traffic between their Pods.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Path of mc-gateway.
    #[arg(long, default_value = "target/release/mc-gateway")]
    agent: PathBuf,
    /// IPv6 addresses for Pods and nodes, instead of IPv4.
    #[arg(long)]
    ipv6: bool,
    /// Keep everything running and print commands to explore it.
    #[arg(long)]
    keep: bool,
    /// Remove the leftovers of `--keep`.
    #[arg(long, conflicts_with = "keep")]
    remove: bool,
    /// Name prefix of everything that is created.
    #[arg(long, default_value = PREFIX)]
    prefix: String,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = if cli.remove {
        remove(&cli.prefix)
    } else {
        show(cli)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nmc-demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn show(cli: Cli) -> anyhow::Result<()> {
    let prefix = cli.prefix.clone();
    on_interrupt(move || {
        if let Err(error) = Topology::remove(&prefix) {
            eprintln!("{error:#}");
        }
    })?;
    demo::run(&Settings {
        prefix: cli.prefix,
        agent: cli.agent,
        keep: cli.keep,
        ipv6: cli.ipv6,
    })
}

fn remove(prefix: &str) -> anyhow::Result<()> {
    let removed = Topology::remove(prefix)?;
    match removed.namespaces.len() {
        0 => outln!("nothing to remove"),
        count => outln!(
            "removed {count} namespaces and {} pin directories",
            removed.pins.len()
        ),
    }
    Ok(())
}
