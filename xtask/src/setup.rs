//! Prerequisites: packages of the distribution, and the cache of pinned tools.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result, bail};

use crate::cmd;

/// Directory outside of the checkout that caches tools and binaries by version.
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

/// Installs missing packages, and reports them with their purpose.
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
            "missing packages for {purpose}: {list} (no apt-get: install the equivalents of your distribution)"
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

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

/// Fails unless this process runs as root; `command` is the command that needs it.
pub(crate) fn require_root(command: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!("{command} creates network namespaces and loads eBPF programs: run it as root")
}

/// Mounts the BPF file system, which holds the pins, unless it is mounted.
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
