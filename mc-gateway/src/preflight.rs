//! What must be true before anything is touched, each with a message that says what to do.

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

/// Oldest kernel that has what the programs use: `BPF_F_ADJ_ROOM_ENCAP_L2_ETH` is of 5.13,
/// `bpf_redirect_neigh` of 5.10, ring buffers and `CAP_BPF` of 5.8. What we can test begins at 6.1.
pub const MIN_KERNEL: (u32, u32) = (5, 15);
/// Oldest kernel that lets a process without `CAP_BPF` use the maps it holds where unprivileged BPF is off
/// (c8644cd0efe7).
const MAPS_WITHOUT_CAP_BPF: (u32, u32) = (5, 19);

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// What is missing on this host.
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
    /// TCX was asked for and is not there.
    #[error("--attach tcx: this kernel has no TCX (Linux 6.6 has); use auto or clsact")]
    NoTcx,
    /// No bpffs.
    #[error("bpf-dir {}: is not on a BPF file system (found type {found:#x}); run `mount -t bpf bpf /sys/fs/bpf`", .path.display())]
    NoBpffs {
        /// The directory that was looked at.
        path: PathBuf,
        /// Its file system's magic number.
        found: i64,
    },
    /// Another agent in the same network namespace.
    #[error("another agent runs in this network namespace: {holder} holds the socket @{name}")]
    SecondAgent {
        /// Name of the abstract socket.
        name: String,
        /// Who listens on it.
        holder: String,
    },
    /// Another agent uses the same pins.
    #[error("bpf-dir {}: another agent uses it; every node needs its own", .path.display())]
    DirInUse {
        /// The directory.
        path: PathBuf,
    },
    /// Something cannot be read.
    #[error("{}: {source}", .path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
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

/// Capabilities the agent needs and `effective` lacks. `CAP_SYS_ADMIN` stands for BPF and PERFMON.
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

/// Gives up, for good, the capabilities that only loading needs. What is left to do (map updates, links,
/// netlink) goes through descriptors already held and `CAP_NET_ADMIN`.
///
/// *Assumption*: the process has one thread; capabilities belong to threads.
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

/// Major and minor version of a release; zeros where it has none.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// How programs are attached: as wanted, or the best the kernel has.
pub fn attach_mode(wanted: AttachPreference) -> Result<AttachMode, PreflightError> {
    match (wanted, has_tcx()) {
        (AttachPreference::Clsact, _) | (AttachPreference::Auto, false) => Ok(AttachMode::Clsact),
        (AttachPreference::Tcx | AttachPreference::Auto, true) => Ok(AttachMode::Tcx),
        (AttachPreference::Tcx, false) => Err(PreflightError::NoTcx),
    }
}

/// Whether the kernel knows TCX: asked for the programs on a device, one that does not says that there is
/// no such attach type. (Programs of others may be there that we must not look at.)
fn has_tcx() -> bool {
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Err(ProgramError::SyscallError(error)) if error.call == "bpf_prog_query" => {
            error.io_error.raw_os_error() != Some(libc::EINVAL)
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

/// Makes the pin directory on a bpffs and returns its path.
pub fn prepare_bpf_dir(dir: &Path) -> Result<PathBuf, PreflightError> {
    let dir = bpffs_path(dir, Path::exists);
    // What exists of the path must be on a bpffs: what is made below it then is, too.
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

/// `path` with dots replaced in those components that still have to be made: the kernel reserves dots in
/// names on a bpffs, and Node names may have some.
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

/// Proof that this process is the only agent of its network namespace and of its pin directory. The
/// kernel gives both locks back when the process ends, however it ends.
#[derive(Debug)]
pub struct Locks {
    dir: PathBuf,
    _socket: UnixListener,
    _file: Option<fs::File>,
}

impl Locks {
    /// Takes both locks (the directory's if it exists), or says who has them. `prepare` makes the pin directory; it is not called where
    /// another agent runs. An agent that is just ending is waited for as long as `patience`.
    pub async fn acquire(
        name: &str,
        patience: Duration,
        prepare: impl FnOnce() -> Result<PathBuf, PreflightError>,
    ) -> Result<Self, PreflightError> {
        let deadline = Instant::now() + patience;
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
            _file: file,
        })
    }

    /// The pin directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Tries again until the deadline while somebody else has the lock.
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

/// Who listens on `addr`, as precisely as the kernel tells us.
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
    fn each_missing_capability_is_named() {
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
    fn old_kernels_are_refused() {
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
    fn no_bpffs_tells_how_to_mount_one() {
        assert!(check_magic(Path::new("/x"), BPF_FS_MAGIC).is_ok());
        let dir = tempfile::tempdir().unwrap();
        let error = prepare_bpf_dir(&dir.path().join("mc-gateway"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("mount -t bpf bpf /sys/fs/bpf"), "{error}");
        assert!(error.contains(dir.path().to_str().unwrap()), "{error}");
    }

    #[test]
    fn dots_only_where_directories_have_to_be_made() {
        let exists = |path: &Path| Path::new("/tmp/.x/bpf").starts_with(path);
        assert_eq!(
            bpffs_path(Path::new("/tmp/.x/bpf/mc/node-1.example.org"), exists),
            Path::new("/tmp/.x/bpf/mc/node-1_example_org")
        );
    }

    #[tokio::test]
    async fn second_agent_learns_who_is_first() {
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
    async fn where_another_agent_runs_nothing_is_made() {
        let name = format!("mc-gateway-test-{}-made", std::process::id());
        let _first = bind_lock_socket(&name).unwrap();
        let result = Locks::acquire(&name, Duration::ZERO, || panic!("prepared")).await;
        assert!(
            matches!(result, Err(PreflightError::SecondAgent { .. })),
            "{result:?}"
        );
    }
}
