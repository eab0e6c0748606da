//! Removes everything the agent created on a node, and nothing else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tracing::info;

use crate::agent::{LOCK_SOCKET, LOCK_TIMEOUT};
use crate::config::Paths;
use crate::datapath::{
    DatapathError, SUBDIRS, clsact, map_migration, pinned_links, program_pins, transit_links,
};
use crate::host::{self, HostError, link, nftables, policy_routing, tc_filter, tunnel_device};
use crate::id_names;
use crate::preflight::{Locks, PreflightError, bpffs_path};

/// The cleanup is incomplete.
#[derive(Debug, Error)]
pub enum CleanupError {
    /// An agent is running.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// Netlink or nftables.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Pins cannot be listed.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// A file system error.
    #[error("{}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Removes routes and device, the nftables tables and all pins; idempotent.
///
/// The device is removed first, and its routes with it, so that no packet is routed to a device without a program.
pub async fn cleanup(paths: &Paths) -> Result<(), CleanupError> {
    let dir = bpffs_path(&paths.bpf_dir, Path::exists);
    let _locks = Locks::acquire(LOCK_SOCKET, LOCK_TIMEOUT, || Ok(dir.clone())).await?;
    let handle = host::connect().map_err(|source| HostError::Netlink {
        operation: "open a netlink socket".to_owned(),
        source,
    })?;
    if link::delete(&handle, &paths.device).await? {
        info!(device = %paths.device, "device and routes removed");
    }
    for device in tunnel_device::delete_all(&handle).await? {
        info!(%device, "tunnel device removed");
    }
    policy_routing::remove(&handle, &paths.device).await?;
    nftables::remove().await.map_err(HostError::from)?;
    nftables::pod_guard::write(None).await.map_err(HostError::from)?;
    for filter in tc_filter::observe(&handle).await? {
        clsact::detach(filter.program, &filter.device)?;
    }
    for (ifindex, note) in clsact::made_qdiscs(&dir)? {
        tc_filter::remove_unused_qdisc(&handle, ifindex).await?;
        fs::remove_dir(&note).map_err(|source| CleanupError::Io { path: note, source })?;
    }
    let pins = remove_pins(&dir)?;
    id_names::remove(&paths.state_dir, &paths.bpf_dir).map_err(|source| CleanupError::Io {
        path: paths.state_dir.clone(),
        source,
    })?;
    info!(pins, "cleanup complete");
    Ok(())
}

/// Removes the agent's pins in `dir`, and directories left empty.
fn remove_pins(dir: &Path) -> Result<usize, CleanupError> {
    let mut paths: Vec<PathBuf> = pinned_links(dir)?.into_iter().map(|(_, _, path)| path).collect();
    paths.extend(transit_links(dir)?.into_values());
    paths.extend(program_pins(dir));
    let mut removed = map_migration::remove_all(dir)?;
    for path in paths {
        match fs::remove_file(&path) {
            Ok(()) => removed = removed.saturating_add(1),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(CleanupError::Io { path, source }),
        }
    }
    let own = SUBDIRS
        .iter()
        .map(|subdir| dir.join(subdir))
        .chain([dir.to_owned()]);
    for path in own {
        match fs::remove_dir(&path) {
            // Foreign pins keep their directory.
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                return Err(CleanupError::Io { path, source: error });
            }
            _ => {}
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_pins_are_removed_and_cleanup_is_idempotent() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("mc-gateway");
        for subdir in SUBDIRS {
            fs::create_dir_all(dir.join(subdir)).unwrap();
        }
        fs::create_dir_all(dir.join("maps")).unwrap();
        for pin in ["links/to_remote-mc0", "programs/to_remote", "maps/mc_peers"] {
            fs::write(dir.join(pin), "").unwrap();
        }
        fs::write(dir.join("maps/other"), "").unwrap();
        assert_eq!(remove_pins(&dir).unwrap(), 3);
        assert!(dir.join("maps/other").exists());
        assert!(!dir.join("links").exists());
        fs::remove_file(dir.join("maps/other")).unwrap();
        assert_eq!(remove_pins(&dir).unwrap(), 0);
        assert!(!dir.exists());
        assert_eq!(remove_pins(&dir).unwrap(), 0);
    }
}
