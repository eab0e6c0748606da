//! `cargo xtask bench`: builds the benchmark of the test crate and runs it.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::{
    build, cluster, cmd, ebpf,
    matrix::{BENCHMARK_KERNEL, Benchmark},
    setup,
};

/// Subject of the measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Packets, in network namespaces.
    #[default]
    Datapath,
    /// The controllers, on three real clusters: joining, exporting, steering, many members.
    Control,
}

/// Options of the benchmark.
#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// Suite to measure; of the options only --quick, --only and --out concern `control`.
    #[arg(long, value_enum, default_value_t)]
    suite: Suite,
    /// Rounds in which the cases alternate; medians are taken over them [default: 7].
    #[arg(long)]
    rounds: Option<u32>,
    /// Sections to run: throughput, latency, transit, programs, scaling, gateways, failover; of `control`: join,
    /// exports, steer, members [default: all].
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Cases to compare over four hops: plain, plain-services, kernel-vxlan, metadata-vxlan, mc-gateway,
    /// mc-gateway-vxlan, mc-gateway-xdp, mc-gateway-vxlan-xdp, plain-ipv6, kernel-vxlan-ipv6, mc-gateway-ipv6
    /// [default: all].
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Gateways lost in part failover [default: 200 in a run of all parts, else 12, and 5 with --quick].
    #[arg(long)]
    trials: Option<u32>,
    /// Short measurements: whether everything works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Beds to compare the cases on: wire-like-routed, wire-like-bridge, wire-like-checksums, veth-routed, veth-bridge;
    /// nics-routed and nics-bridge with pairs of network devices (`MC_NIC_PAIRS`) [default: all that are available].
    #[arg(long, value_delimiter = ',')]
    beds: Vec<String>,
    /// Measure throughput on virtio-net devices (beds nics-routed, nics-bridge) of a guest with an emulated CPU
    /// [default: 3 rounds].
    #[arg(long, conflicts_with_all = ["suite", "only", "trials"])]
    virtio: bool,
    /// Kernel series of the guest.
    #[arg(long, value_name = "SERIES", requires = "virtio", default_value = BENCHMARK_KERNEL)]
    kernel: String,
    /// Directory for `report.json` and the pictures [default: target/bench, target/bench/virtio, target/bench-control].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the benchmark.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match args.suite {
        Suite::Datapath if args.virtio => virtio(args),
        Suite::Datapath => datapath(args),
        Suite::Control => control(args),
    }
}

/// Boots the clusters, measures, and removes the clusters, also after a failure.
fn control(args: &BenchArgs) -> Result<()> {
    setup::require_root("cargo xtask bench")?;
    setup::ensure_packages("the benchmark", build::PACKAGES)?;
    setup::ensure_bpffs()?;
    ebpf::build_and_print()?;
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| cmd::workspace().join("target/bench-control"));
    let out = std::path::absolute(out)?;
    let kubeconfig =
        cluster::up_installed(cluster::Configuration::default()).context("bringing the clusters up")?;
    let measured = cmd::inherit(
        cmd::cargo()
            .args(["bench", "--quiet", "--locked", "--bench", "control"])
            .env("MC_KUBECONFIG", kubeconfig)
            .env("MC_BENCH_OUT", out)
            .env("MC_QUICK", if args.quick { "1" } else { "0" })
            .env("MC_ONLY", args.only.join(",")),
    );
    let ended = cluster::down();
    measured.and(ended)
}

fn virtio(args: &BenchArgs) -> Result<()> {
    let out = args.out.clone();
    Benchmark {
        kernel: args.kernel.clone(),
        rounds: args.rounds,
        cases: args.cases.clone(),
        beds: args.beds.clone(),
        quick: args.quick,
        out: out.unwrap_or_else(|| cmd::workspace().join("target/bench/virtio")),
    }
    .run()
}

fn datapath(args: &BenchArgs) -> Result<()> {
    let mut words = vec![
        "--objects".to_owned(),
        cmd::workspace().join("target/bpf").display().to_string(),
    ];
    let mut add = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([flag.to_owned(), value]);
        }
    };
    let list = |of: &[String]| (!of.is_empty()).then(|| of.join(","));
    add("--rounds", args.rounds.map(|rounds| rounds.to_string()));
    add("--trials", args.trials.map(|trials| trials.to_string()));
    add("--only", list(&args.only));
    add("--cases", list(&args.cases));
    add("--beds", list(&args.beds));
    add("--out", args.out.as_ref().map(|out| out.display().to_string()));
    if args.quick {
        words.push("--quick".to_owned());
    }
    build::run_program("the benchmark", "mc-bench", &words)
}
