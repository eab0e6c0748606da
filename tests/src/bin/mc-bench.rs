//! `mc-bench`: comparison of mc-gateway with other data paths over the same namespaces.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use mc_tests::{
    bench::{
        self, PREFIX, Settings,
        bed::Bed,
        case::Case,
        plot,
        report::Report,
        section::{Pace, Section},
    },
    outln,
    signals::on_interrupt,
};

/// Compares mc-gateway with plain routing and kernel tunnels, and measures its parts.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Path of mc-gateway.
    #[arg(long, default_value = "target/release/mc-gateway")]
    agent: PathBuf,
    /// Directory with the eBPF objects.
    #[arg(long, default_value = "target/bpf")]
    objects: PathBuf,
    /// Number of rounds; figures are medians over them.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Sections to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Section::ALL)]
    only: Vec<Section>,
    /// Cases to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Case::ALL)]
    cases: Vec<Case>,
    /// Gateway failures in section failover [default: 200 in a run of all sections, else 12, and 5 with --quick].
    #[arg(long)]
    trials: Option<u32>,
    /// Short measurements for a smoke test.
    #[arg(long)]
    quick: bool,
    /// MTU of the underlay; the Pods' MTU is 50 smaller in every case.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Beds to compare the cases on; sections other than throughput use veth-routed only. nics-routed and nics-bridge
    /// need `MC_NIC_PAIRS`, three pairs of connected network devices: MAC/MAC,MAC/MAC,MAC/MAC.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Bed::available())]
    beds: Vec<Bed>,
    /// Directory for `report.json` and the diagrams.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// Draw the diagrams of this report and measure nothing.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Name prefix of everything that is created.
    #[arg(long, default_value = PREFIX)]
    prefix: String,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mc-bench failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    fs::create_dir_all(&cli.out).with_context(|| format!("cannot create {}", cli.out.display()))?;
    match &cli.report {
        Some(path) => {
            let name = || format!("--report {}", path.display());
            let text = fs::read_to_string(path).with_context(name)?;
            draw(&cli.out, &serde_json::from_str(&text).with_context(name)?)
        }
        None => measure(cli),
    }
}

/// Writes the diagrams of a report.
fn draw(out: &Path, report: &Report) -> Result<()> {
    for (name, svg) in plot::all(report) {
        write(out, &name, &svg)?;
    }
    Ok(())
}

fn write(out: &Path, name: &str, content: &str) -> Result<()> {
    let path = out.join(name);
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn measure(cli: Cli) -> Result<()> {
    let sections: BTreeSet<Section> = cli.only.into_iter().collect();
    let mut pace = if cli.quick { Pace::QUICK } else { Pace::FULL };
    if let Some(trials) = cli.trials {
        pace.trials = trials;
    } else if !cli.quick && sections.len() == Section::ALL.len() {
        pace.trials = Pace::ALL_TRIALS;
    }
    let settings = Settings {
        prefix: cli.prefix.clone(),
        agent: cli.agent,
        objects: cli.objects,
        sections,
        cases: cli.cases,
        rounds: cli.rounds,
        pace,
        mtu: cli.mtu,
        beds: cli.beds,
    };
    on_interrupt(move || {
        if let Err(error) = bench::remove(&cli.prefix) {
            eprintln!("{error:#}");
        }
    })?;
    let report = bench::run(&settings, |line| eprintln!("{line}"))?;
    let json = serde_json::to_string_pretty(&report)? + "\n";
    write(&cli.out, "report.json", &json)?;
    draw(&cli.out, &report)?;
    outln!(
        "\n{report}\nreport.json and diagrams are in {}",
        cli.out.display()
    );
    let failed: Vec<&str> = report
        .skipped
        .iter()
        .filter(|missing| missing.failed)
        .map(|missing| missing.name.as_str())
        .collect();
    if !failed.is_empty() {
        bail!("failed measurements: {}", failed.join(", "));
    }
    Ok(())
}
