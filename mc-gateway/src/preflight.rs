//! Requirements checked before anything is changed; each error contains the remedy.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use rustix::fs::{FlockOperation, flock, statfs};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use thiserror::Error;
use tokio::time::{Instant, sleep};

use crate::config::AttachPreference;
use crate::plan::AttachMode;

/// Oldest supported kernel. The programs use `BPF_F_ADJ_ROOM_ENCAP_L2_ETH` (5.13), `bpf_redirect_neigh` (5.10), ring
/// buffers and `CAP_BPF` (5.8). Tested kernels begin at 6.1.
pub const MIN_KERNEL: (u32, u32) = (5, 15);
/// Oldest kernel on which a process without `CAP_BPF` can use its open maps while unprivileged BPF is disabled
/// (c8644cd0efe7).
const MAPS_WITHOUT_CAP_BPF: (u32, u32) = (5, 19);

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// A missing requirement of this host.
#[derive(Debug, Error)]
pub enum PreflightError {
    /// Capabilities.
    #[error("missing capabilities: {}; run as root, or with capabilities BPF, NET_ADMIN and PERFMON", .0.join(", "))]
    Capabilities(Vec<&'static str>),
    /// Kernel version.
    #[error(
        "kernel too old: {release:?}, at least {}.{} is needed",
        MIN_KERNEL.0, MIN_KERNEL.1
    )]
    Kernel {
        /// `uname -r`.
        release: String,
    },
    /// TCX is configured but not supported.
    #[error("--attach tcx: this kernel has no TCX (requires Linux 6.6); use auto or clsact")]
    NoTcx,
    /// No bpffs.
    #[error(
        "bpf-dir {}: is not on a BPF file system (found type {found:#x}); run `mount -t bpf bpf /sys/fs/bpf`",
        .path.display()
    )]
    NoBpffs {
        /// The directory.
        path: PathBuf,
        /// Its file system's magic number.
        found: i64,
    },
    /// Another agent in the same network namespace.
    #[error("another agent runs in this network namespace: {holder} holds the socket @{name}")]
    SecondAgent {
        /// Name of the abstract socket.
        name: String,
        /// The process that holds it.
        holder: String,
    },
    /// Another agent uses the same pins.
    #[error("bpf-dir {}: another agent uses it; every node needs its own", .path.display())]
    DirInUse {
        /// The directory.
        path: PathBuf,
    },
    /// A path cannot be read.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Checks the capabilities of this process.
pub fn check_capabilities() -> Result<(), PreflightError> {
    let path = PathBuf::from("/proc/self/status");
    let status = fs::read_to_string(&path).map_err(|source| PreflightError::Io { path, source })?;
    let missing = missing_capabilities(effective_capabilities(&status).unwrap_or_default());
    if missing.is_empty() {
        Ok(())
    } else {
        Err(PreflightError::Capabilities(missing))
    }
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

/// Required capabilities missing in `effective`. `CAP_SYS_ADMIN` includes BPF and PERFMON.
fn missing_capabilities(effective: u64) -> Vec<&'static str> {
    let has = |cap: u32| effective >> cap & 1 == 1;
    let needed = [
        ("CAP_BPF", has(CAP_BPF) || has(CAP_SYS_ADMIN)),
        ("CAP_NET_ADMIN", has(CAP_NET_ADMIN)),
        ("CAP_PERFMON", has(CAP_PERFMON) || has(CAP_SYS_ADMIN)),
    ];
    needed
        .into_iter()
        .filter(|(_, there)| !there)
        .map(|(name, _)| name)
        .collect()
}

/// Drops the capabilities that only loading requires, permanently. Map updates, links and netlink use open file
/// descriptors and `CAP_NET_ADMIN`.
///
/// *Assumption*: the process has one thread, because capabilities are per thread.
pub fn drop_load_capabilities() -> io::Result<()> {
    let mut only_for_loading = CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
    if version(&release()) >= MAPS_WITHOUT_CAP_BPF {
        only_for_loading |= CapabilitySet::BPF;
    }
    let mut sets = capabilities(None)?;
    sets.effective -= only_for_loading;
    sets.permitted -= only_for_loading;
    sets.inheritable -= only_for_loading;
    Ok(set_capabilities(None, sets)?)
}

/// Checks the version of the running kernel.
pub fn check_kernel() -> Result<(), PreflightError> {
    check_release(&release())
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Major and minor version of a release; 0 for missing numbers.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// How programs are attached: as configured, or the best supported mode.
pub fn attach_mode(wanted: AttachPreference) -> Result<AttachMode, PreflightError> {
    match (wanted, has_tcx()) {
        (AttachPreference::Clsact, _) | (AttachPreference::Auto, false) => Ok(AttachMode::Clsact),
        (AttachPreference::Tcx | AttachPreference::Auto, true) => Ok(AttachMode::Tcx),
        (AttachPreference::Tcx, false) => Err(PreflightError::NoTcx),
    }
}

/// Whether the kernel supports TCX: without it, a query of the programs on a device fails with an invalid attach type.
/// Other errors are ignored: foreign programs may not be readable.
fn has_tcx() -> bool {
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Err(ProgramError::SyscallError(error)) if error.call == "bpf_prog_query" => {
            error.io_error.raw_os_error() != Some(Errno::INVAL.raw_os_error())
        }
        _ => true,
    }
}

fn check_release(release: &str) -> Result<(), PreflightError> {
    if version(release) >= MIN_KERNEL {
        return Ok(());
    }
    Err(PreflightError::Kernel {
        release: release.to_owned(),
    })
}

/// Creates the pin directory on a bpffs and returns its path.
pub fn prepare_bpf_dir(dir: &Path) -> Result<PathBuf, PreflightError> {
    let dir = bpffs_path(dir, Path::exists);
    // The existing part of the path must be on a bpffs; directories created in it then are, too.
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(&dir);
    let io = |path: &Path, source| PreflightError::Io {
        path: path.to_owned(),
        source,
    };
    let stat = statfs(existing).map_err(|error| io(existing, error.into()))?;
    check_magic(&dir, stat.f_type)?;
    fs::create_dir_all(&dir).map_err(|source| io(&dir, source))?;
    Ok(dir)
}

fn check_magic(path: &Path, found: i64) -> Result<(), PreflightError> {
    if found & 0xffff_ffff == BPF_FS_MAGIC {
        return Ok(());
    }
    Err(PreflightError::NoBpffs {
        path: path.to_owned(),
        found,
    })
}

/// `path` with dots replaced in missing components: the kernel rejects dots in names on a bpffs, and Node names may
/// contain them.
#[must_use]
pub fn bpffs_path(path: &Path, exists: impl Fn(&Path) -> bool) -> PathBuf {
    let mut done = PathBuf::new();
    for component in path.components() {
        let as_written = done.join(component);
        done = if exists(&as_written) {
            as_written
        } else {
            let name = component.as_os_str().to_string_lossy().replace('.', "_");
            done.join(name)
        };
    }
    done
}

/// Proof that this process is the only agent of its network namespace and of its pin directory. The kernel releases
/// both locks when the process exits or is killed.
#[derive(Debug)]
pub struct Locks {
    dir: PathBuf,
    _socket: UnixListener,
    file: Option<fs::File>,
}

impl Locks {
    /// Acquires both locks (the directory's if it exists); the error names the holder. `prepare` creates the pin
    /// directory, and is not called while another agent runs. Waits up to `timeout` for another agent to exit.
    pub async fn acquire(
        name: &str,
        timeout: Duration,
        prepare: impl FnOnce() -> Result<PathBuf, PreflightError>,
    ) -> Result<Self, PreflightError> {
        let deadline = Instant::now() + timeout;
        let socket = retry_until(deadline, || bind_lock_socket(name)).await?;
        let dir = prepare()?;
        let file = if dir.exists() {
            Some(retry_until(deadline, || lock_dir(&dir)).await?)
        } else {
            None
        };
        Ok(Self {
            dir,
            _socket: socket,
            file,
        })
    }

    /// Locks the pin directory again after another program replaced it.
    pub fn lock_new_dir(&mut self) -> Result<(), PreflightError> {
        self.file = Some(lock_dir(&self.dir)?);
        Ok(())
    }

    /// The pin directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Retries until the deadline while the lock is held.
async fn retry_until<T>(
    deadline: Instant,
    take: impl Fn() -> Result<T, PreflightError>,
) -> Result<T, PreflightError> {
    loop {
        match take() {
            Err(PreflightError::SecondAgent { .. } | PreflightError::DirInUse { .. })
                if Instant::now() < deadline =>
            {
                sleep(Duration::from_millis(20)).await;
            }
            result => return result,
        }
    }
}

fn lock_dir(dir: &Path) -> Result<fs::File, PreflightError> {
    let io = |source| PreflightError::Io {
        path: dir.to_owned(),
        source,
    };
    let file = fs::File::open(dir).map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(PreflightError::DirInUse { path: dir.to_owned() }),
        Err(error) => Err(io(error.into())),
    }
}

fn bind_lock_socket(name: &str) -> Result<UnixListener, PreflightError> {
    let io = |source| PreflightError::Io {
        path: PathBuf::from(format!("@{name}")),
        source,
    };
    let addr = SocketAddr::from_abstract_name(name).map_err(io)?;
    match UnixListener::bind_addr(&addr) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(PreflightError::SecondAgent {
            name: name.to_owned(),
            holder: holder(&addr),
        }),
        Err(error) => Err(io(error)),
    }
}

/// The process that listens on `addr`, as far as known.
fn holder(addr: &SocketAddr) -> String {
    let peer = UnixStream::connect_addr(addr)
        .ok()
        .and_then(|stream| rustix::net::sockopt::socket_peercred(&stream).ok());
    let Some(peer) = peer else {
        return "a process".to_owned();
    };
    let pid = peer.pid.as_raw_nonzero();
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(comm) => format!("process {pid} ({})", comm.trim()),
        Err(_) => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_capability_is_reported() {
        let all = 1 << CAP_BPF | 1 << CAP_NET_ADMIN | 1 << CAP_PERFMON;
        assert_eq!(missing_capabilities(all), Vec::<&str>::new());
        assert_eq!(
            missing_capabilities(0),
            ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"]
        );
        assert_eq!(missing_capabilities(all & !(1 << CAP_PERFMON)), ["CAP_PERFMON"]);
        assert_eq!(
            missing_capabilities(1 << CAP_SYS_ADMIN | 1 << CAP_NET_ADMIN),
            Vec::<&str>::new()
        );
        assert_eq!(missing_capabilities(1 << CAP_SYS_ADMIN), ["CAP_NET_ADMIN"]);
        let message = PreflightError::Capabilities(missing_capabilities(0)).to_string();
        assert!(message.starts_with("missing capabilities: CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON;"));
    }

    #[test]
    fn capabilities_of_a_status_file() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n";
        assert_eq!(effective_capabilities(status), Some(0x01ff_ffff_ffff));
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
    }

    #[test]
    fn old_kernels_are_rejected() {
        for good in [
            "5.15.0-generic",
            "6.1.0-50-cloud-amd64",
            "6.18.5-cloud-amd64",
            "7.0",
            "10.1.2",
        ] {
            assert!(check_release(good).is_ok(), "{good}");
        }
        for old in ["5.14.21", "5.10.0-30-amd64", "4.19", "garbage", ""] {
            let error = check_release(old).unwrap_err().to_string();
            assert!(
                error.contains("kernel too old") && error.contains("5.15"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_missing_bpffs_error_contains_the_mount_command() {
        assert!(check_magic(Path::new("/x"), BPF_FS_MAGIC).is_ok());
        let dir = tempfile::tempdir().unwrap();
        let error = prepare_bpf_dir(&dir.path().join("mc-gateway"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("mount -t bpf bpf /sys/fs/bpf"), "{error}");
        assert!(error.contains(dir.path().to_str().unwrap()), "{error}");
    }

    #[test]
    fn dots_are_replaced_in_new_directories_only() {
        let exists = |path: &Path| Path::new("/tmp/.x/bpf").starts_with(path);
        assert_eq!(
            bpffs_path(Path::new("/tmp/.x/bpf/mc/node-1.example.org"), exists),
            Path::new("/tmp/.x/bpf/mc/node-1_example_org")
        );
    }

    #[tokio::test]
    async fn the_error_of_a_second_agent_names_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("mc-gateway-test-{}", std::process::id());
        let take = async |name: &str| {
            let prepare = || Ok(dir.path().to_owned());
            Locks::acquire(name, Duration::from_millis(50), prepare).await
        };
        let first = take(&name).await.unwrap();
        let error = take(&name).await.unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        let error = take(&format!("{name}-other")).await.unwrap_err().to_string();
        assert!(error.contains("every node needs its own"), "{error}");
        drop(first);
        take(&name).await.unwrap();
    }

    #[tokio::test]
    async fn a_second_agent_creates_nothing() {
        let name = format!("mc-gateway-test-{}-made", std::process::id());
        let _first = bind_lock_socket(&name).unwrap();
        let result = Locks::acquire(&name, Duration::ZERO, || panic!("prepared")).await;
        assert!(
            matches!(result, Err(PreflightError::SecondAgent { .. })),
            "{result:?}"
        );
    }
}
