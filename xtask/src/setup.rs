//! What the machine is missing, and how it gets there: distribution packages and pinned tools.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result, bail};

use crate::cmd;

/// Where tools and binaries are cached by version, outside the checkout.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(dir).join("mc-gateway"));
    }
    let home = env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache/mc-gateway"))
}

/// The first executable of this name in `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|p| is_executable(p))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Whether a distribution package is installed.
pub(crate) fn has_package(name: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", name])
        .output()
        .is_ok_and(|out| out.status.success() && out.stdout == b"installed")
}

/// Installs the packages that are missing, saying which and what for.
pub(crate) fn ensure_packages(purpose: &str, packages: &[&str]) -> Result<()> {
    static UPDATED: AtomicBool = AtomicBool::new(false);
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|name| !has_package(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if find_program("apt-get").is_none() {
        bail!(
            "missing packages for {purpose}: {list} (this is no Debian or Ubuntu: install their equivalents)"
        );
    }
    if !is_root() {
        bail!("missing packages for {purpose}: run as root, or first: apt-get install {list}");
    }
    println!("installing packages for {purpose}: {list}");
    if !UPDATED.swap(true, Ordering::Relaxed) {
        cmd::capture(Command::new("apt-get").arg("update")).context("apt-get update")?;
    }
    cmd::capture(
        Command::new("apt-get")
            .args(["install", "-y", "--no-install-recommends"])
            .args(&missing)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
    .with_context(|| format!("apt-get install {list}"))
}

/// Whether this process may configure the kernel.
pub(crate) fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

/// Fails with what to do where `what` needs root and this process is not.
pub(crate) fn require_root(what: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!("{what} creates network namespaces and loads eBPF programs: run it as root")
}

/// Mounts the BPF file system where it is missing: pins live there.
pub(crate) fn ensure_bpffs() -> Result<()> {
    let mounted = std::fs::read_to_string("/proc/self/mounts")
        .context("/proc/self/mounts")?
        .lines()
        .any(|line| line.split(' ').nth(1) == Some("/sys/fs/bpf"));
    if mounted {
        return Ok(());
    }
    println!("mounting the BPF file system at /sys/fs/bpf");
    cmd::capture(Command::new("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"])).context("mount /sys/fs/bpf")
}
