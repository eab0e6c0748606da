//! Packages of the distribution for the clusters.

use anyhow::{Result, bail};

use crate::setup;

/// Packages by their Debian names.
pub(crate) const PACKAGES: &[&str] = &[
    "containerd",
    "runc",
    "containernetworking-plugins",
    "conntrack",
    "iproute2",
    // The bridge plugin masquerades with it.
    "iptables",
    "mount",
    "nftables",
    "util-linux",
];
/// Required programs, from any source.
const PROGRAMS: &[&str] = &[
    "containerd",
    "ctr",
    "runc",
    "ip",
    "iptables",
    "nft",
    "mount",
    "umount",
    "nsenter",
    "setsid",
    "unshare",
];

/// The packages that are not installed.
pub(crate) fn missing() -> Vec<&'static str> {
    PACKAGES
        .iter()
        .copied()
        .filter(|name| !setup::has_package(name))
        .collect()
}

/// Installs missing packages, unless all programs exist already.
pub(crate) fn ensure() -> Result<()> {
    if PROGRAMS.iter().all(|name| setup::find_program(name).is_some()) && super::node::has_cni_plugins() {
        return Ok(());
    }
    setup::ensure_packages("the Kubernetes clusters", &missing())?;
    let absent: Vec<_> = PROGRAMS
        .iter()
        .copied()
        .filter(|name| setup::find_program(name).is_none())
        .collect();
    if !absent.is_empty() {
        bail!("not in PATH after installing packages: {}", absent.join(" "));
    }
    Ok(())
}
