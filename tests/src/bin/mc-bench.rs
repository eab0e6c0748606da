//! `mc-bench`: mc-gateway next to other ways, all over the same namespaces.

#![forbid(unsafe_code)]

use std::{collections::BTreeSet, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use mc_tests::{
    bench::{
        self, PREFIX, Settings,
        case::Case,
        part::{Pace, Part},
        plot,
    },
    interrupt::on_interrupt,
};

/// Measures mc-gateway next to plain routing and to tunnels of the kernel, and its parts by themselves.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// The mc-gateway program.
    #[arg(long, default_value = "target/release/mc-gateway")]
    agent: PathBuf,
    /// Directory with the eBPF objects.
    #[arg(long, default_value = "target/bpf")]
    objects: PathBuf,
    /// Rounds in which the cases alternate; medians are taken over them.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Parts to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    only: Vec<Part>,
    /// Cases to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Case::ALL)]
    cases: Vec<Case>,
    /// Gateways lost in part failover; without it 200 in a run of all parts, else 12, and 5 of a quick one.
    #[arg(long)]
    trials: Option<u32>,
    /// Short measurements: whether everything works, not how fast.
    #[arg(long)]
    quick: bool,
    /// MTU of the underlay; that of the Pods is 50 smaller in every case.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Attach Pods to a bridge, as bridge CNIs do, instead of directly.
    #[arg(long)]
    bridge: bool,
    /// Directory for `report.json` and the pictures.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// Start of the names of everything that is created.
    #[arg(long, default_value = PREFIX)]
    prefix: String,
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
    fs::create_dir_all(&cli.out).with_context(|| format!("cannot create {}", cli.out.display()))?;
    let parts: BTreeSet<Part> = cli.only.into_iter().collect();
    let mut pace = if cli.quick { Pace::QUICK } else { Pace::FULL };
    if let Some(trials) = cli.trials {
        pace.trials = trials;
    } else if !cli.quick && parts.len() == Part::ALL.len() {
        pace.trials = Pace::ALL_TRIALS;
    }
    let settings = Settings {
        prefix: cli.prefix.clone(),
        agent: cli.agent,
        objects: cli.objects,
        parts,
        cases: cli.cases,
        rounds: cli.rounds,
        pace,
        mtu: cli.mtu,
        bridge: cli.bridge,
    };
    on_interrupt(move || {
        if let Err(error) = bench::remove(&cli.prefix) {
            eprintln!("{error:#}");
        }
    })?;
    let report = bench::run(&settings, |line| eprintln!("{line}"))?;
    let file = |name: &str, content: &str| {
        let path = cli.out.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    file("report.json", &(serde_json::to_string_pretty(&report)? + "\n"))?;
    for (name, svg) in plot::all(&report) {
        file(&name, &svg)?;
    }
    println!(
        "\n{report}\nreport.json and pictures are in {}",
        cli.out.display()
    );
    let failed: Vec<&str> = report
        .missing
        .iter()
        .filter(|missing| missing.failed)
        .map(|missing| missing.name.as_str())
        .collect();
    if !failed.is_empty() {
        bail!("not measured because something went wrong: {}", failed.join(", "));
    }
    Ok(())
}
