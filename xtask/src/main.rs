//! `cargo xtask`: builds, packs, boots and tests the project.
#![forbid(unsafe_code)]

mod ebpf;
mod run;
mod setup;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Builds, packs, boots and tests mc-gateway. Missing prerequisites are named and installed.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Xtask {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the eBPF object and print its path and SHA-256.
    BuildEbpf {
        /// Build it a second time in another directory and compare the bytes.
        #[arg(long)]
        check_reproducible: bool,
    },
}

fn main() -> Result<()> {
    match Xtask::parse().command {
        Command::BuildEbpf {
            check_reproducible: true,
        } => ebpf::check_reproducible(),
        Command::BuildEbpf {
            check_reproducible: false,
        } => ebpf::build_and_print(),
    }
}
