//! The pinned bpf-linker, built once against the LLVM it supports.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{cmd, setup};

/// Version of bpf-linker.
pub(super) const VERSION: &str = "0.13.0";
/// Major version of the LLVM that bpf-linker links with, the newest it supports.
pub(super) const LLVM: u32 = 22;
/// Build dependencies.
const PACKAGES: &[&str] = &[
    "llvm-22-dev",
    "libpolly-22-dev",
    "libzstd-dev",
    "zlib1g-dev",
    "gcc",
    "g++",
    "libc6-dev",
];

/// Path of bpf-linker; builds it on first use.
pub(super) fn find_or_build() -> Result<PathBuf> {
    let root = setup::cache_dir()?.join(format!("tools/bpf-linker-{VERSION}-llvm{LLVM}"));
    let program = root.join("bin/bpf-linker");
    if program.exists() {
        return Ok(program);
    }
    setup::ensure_packages("bpf-linker", PACKAGES)?;
    println!("building bpf-linker {VERSION} for LLVM {LLVM} (once, about a minute)");
    let prefix = format!("/usr/lib/llvm-{LLVM}");
    let mut command: Command = cmd::cargo();
    command
        .args(["install", "bpf-linker", "--locked", "--version", VERSION])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{LLVM}"),
            "--root",
        ])
        .arg(&root)
        // Without these the build uses the first llvm-config in PATH.
        .env("LLVM_PREFIX", &prefix)
        .env(format!("LLVM_SYS_{LLVM}1_PREFIX"), &prefix)
        .env_remove("CARGO_TARGET_DIR");
    cmd::capture(&mut command)
        .with_context(|| format!("cargo install bpf-linker {VERSION} with LLVM in {prefix}"))?;
    Ok(program)
}
