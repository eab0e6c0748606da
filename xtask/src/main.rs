//! `cargo xtask`: builds, packs, boots and tests the project.
#![forbid(unsafe_code)]
// std's macros panic on a closed pipe; those of `output` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod background;
mod bench;
mod build;
mod cluster;
mod cluster_suites;
mod cmd;
mod demo;
mod ebpf;
mod fuzz;
mod images;
mod lint;
mod manifests;
mod matrix;
mod mutants;
mod previous_release;
mod rbac;
mod setup;
mod shared_libraries;
mod test;
mod test_summary;
mod wait;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Builds, packs, boots and tests mc-gateway. Missing prerequisites are reported and installed.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Xtask {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show traffic between two clusters in network namespaces, or between real ones.
    Demo(demo::DemoArgs),
    /// Run all tests, or some suites; the last line is `N passed, N failed`.
    Test {
        /// The suites to run, one after the other.
        #[arg(long, value_enum, value_delimiter = ',')]
        suite: Vec<test::Suite>,
        /// Run more rounds and longer.
        #[arg(long)]
        long: bool,
    },
    /// Compare plain routing, kernel VXLAN and mc-gateway over the same hops.
    Bench(bench::BenchArgs),
    /// Boot older kernels in QEMU and run load, `PROG_RUN` and one end-to-end flow on each.
    Matrix(matrix::MatrixArgs),
    /// Build the eBPF object and print its path and SHA-256.
    BuildEbpf {
        /// Build it a second time in another directory and compare the bytes.
        #[arg(long)]
        check_reproducible: bool,
        /// Build it with no nightly, a fitting nightly and a too new one (downloads two toolchains into the cache).
        #[arg(long, conflicts_with = "check_reproducible")]
        check_toolchains: bool,
        /// Build the programs that log every decision, for the agent's --program-log.
        #[arg(long, conflicts_with_all = ["check_reproducible", "check_toolchains"])]
        log: bool,
    },
    /// Real Kubernetes clusters in network namespaces of this machine.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Pack the container images as tar files, without Docker.
    Images(images::ImagesArgs),
    /// Write deploy/crds from the Rust types.
    Crds,
    /// Write the one-file manifests of deploy/ from the kustomize bases.
    Manifests,
    /// Write the tables of drop reasons in README.md and docs/metrics.md from the enum `DropReason`.
    DropReasons,
    /// List the seeded bugs of tests/mutants, and those that no longer apply or name a test that does not exist.
    Mutants,
}

fn main() -> Result<()> {
    match Xtask::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Test { suite, long } => test::run(&suite, long),
        Command::Bench(args) => bench::run(&args),
        Command::Matrix(args) => matrix::run(&args),
        Command::Crds => lint::crds("--out"),
        Command::Manifests => manifests::write(),
        Command::DropReasons => lint::drop_reasons::write(),
        Command::Mutants => mutants::list(),
        Command::BuildEbpf {
            check_reproducible: true,
            ..
        } => ebpf::check::reproducible(),
        Command::BuildEbpf {
            check_toolchains: true,
            ..
        } => ebpf::check::toolchains(),
        Command::BuildEbpf { log: true, .. } => ebpf::build_log_and_print(),
        Command::BuildEbpf { .. } => ebpf::build_and_print(),
        Command::Cluster(command) => cluster::run(command),
        Command::Images(args) => images::run(&args),
    }
}
