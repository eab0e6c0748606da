//! Owned network namespaces with their devices, addresses, routes and settings.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use nix::{
    sched::{CloneFlags, setns},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    process::{Process, run, run_with_input},
    wait::wait_for,
};

/// Directory of the named namespaces of `ip netns`.
const NETNS_DIR: &str = "/run/netns";
/// Mount point of the BPF file system.
const BPF_FS: &str = "/sys/fs/bpf";
/// Timeout for the exit of killed processes.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A named network namespace (`ip netns`). Dropping it kills every process inside and removes it with its devices,
/// except after [`Netns::keep`].
#[derive(Debug)]
pub struct Netns {
    name: String,
    keep: bool,
}

// === impl Netns ===

impl Netns {
    /// Creates a namespace with its loopback device up. An existing namespace of that name is an error: it belongs
    /// to another owner.
    pub fn create(name: &str) -> Result<Self> {
        run(Command::new("ip").args(["netns", "add", name]))?;
        let netns = Self {
            name: name.to_owned(),
            keep: false,
        };
        netns.ip(&["link set lo up"])?;
        Ok(netns)
    }

    /// Name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Leaves the namespace in place when this value is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// A command to be run inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        // Only the network namespace is entered: `ip netns exec` would also replace /sys, and with it
        // hide the BPF file system.
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={NETNS_DIR}/{}", self.name))
            .arg("--")
            .arg(program);
        command
    }

    /// Runs a program inside to completion and returns its stdout.
    pub fn run<I: IntoIterator<Item: AsRef<OsStr>>>(
        &self,
        program: impl AsRef<OsStr>,
        args: I,
    ) -> Result<String> {
        run(self.command(program).args(args)).with_context(|| format!("in namespace {}", self.name))
    }

    /// Starts a program inside with its output in a log file.
    pub fn spawn<I: IntoIterator<Item: AsRef<OsStr>>>(
        &self,
        program: impl AsRef<OsStr>,
        args: I,
        log: &Path,
    ) -> Result<Process> {
        let name = format!("{} in {}", program.as_ref().to_string_lossy(), self.name);
        Process::spawn(&name, self.command(program).args(args), log)
    }

    /// Runs `ip` command lines inside as one batch; the first failure ends it.
    pub fn ip<S: AsRef<str>>(&self, lines: &[S]) -> Result<String> {
        let batch: String = lines.iter().flat_map(|line| [line.as_ref(), "\n"]).collect();
        run_with_input(
            Command::new("ip").args(["-netns", &self.name, "-batch", "-"]),
            &batch,
        )
    }

    /// Connects two namespaces by a veth pair; `here` and `there` are the device names.
    pub fn veth(&self, here: &str, other: &Self, there: &str) -> Result<()> {
        self.ip(&[format!(
            "link add {here} type veth peer name {there} netns {}",
            other.name
        )])?;
        Ok(())
    }

    /// Sets address and MTU of a device and brings it up.
    pub fn configure_device(&self, device: &str, address: impl Into<IpNet>, mtu: u32) -> Result<()> {
        self.add_address(device, address)?;
        self.ip(&[format!("link set {device} mtu {mtu} up")])?;
        Ok(())
    }

    /// Adds an address to a device, usable at once.
    pub fn add_address(&self, device: &str, address: impl Into<IpNet>) -> Result<()> {
        let address = address.into();
        // Duplicate address detection would take a second.
        let nodad = if address.addr().is_ipv6() { " nodad" } else { "" };
        self.ip(&[format!("addr add {address} dev {device}{nodad}")])?;
        Ok(())
    }

    /// Adds (or replaces) a route; `via` is the rest of the `ip route` line.
    pub fn route(&self, destination: impl Into<IpNet>, via: &str) -> Result<()> {
        let destination = destination.into();
        self.ip(&[format!("route replace {destination} {via}")])?;
        Ok(())
    }

    /// Writes settings below `/proc/sys`, in the dotted notation of `sysctl`.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        let lines = settings
            .iter()
            .map(|(key, value)| format!("echo {value} > /proc/sys/{}\n", key.replace('.', "/")));
        self.run("sh", ["-ec", &lines.collect::<String>()])?;
        Ok(())
    }

    /// Loads an nftables rule set inside.
    pub fn nft(&self, rules: &str) -> Result<()> {
        run_with_input(self.command("nft").args(["-f", "-"]), rules)
            .with_context(|| format!("in namespace {}", self.name))?;
        Ok(())
    }

    /// Runs `work` in a thread inside the namespace; sockets and attached programs remain there.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = Path::new(NETNS_DIR).join(&self.name);
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let entered = || {
            setns(file, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("cannot enter {}", path.display()))?;
            work()
        };
        match thread::scope(|scope| scope.spawn(entered).join()) {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Processes in this namespace.
    pub fn pids(&self) -> Result<Vec<i32>> {
        let listed = run(Command::new("ip").args(["netns", "pids", &self.name]))?;
        listed.split_whitespace().map(|pid| Ok(pid.parse()?)).collect()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = remove(&self.name) {
            eprintln!("cannot remove namespace {}: {error:#}", self.name);
        }
    }
}

/// Kills every process inside a namespace and removes it.
fn remove(name: &str) -> Result<()> {
    let inside = || -> Result<Vec<i32>, String> {
        let listed = run(Command::new("ip").args(["netns", "pids", name])).map_err(|e| format!("{e:#}"))?;
        Ok(listed
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect())
    };
    wait_for(&format!("end of all processes in {name}"), EXIT_TIMEOUT, || {
        let pids = inside()?;
        for pid in &pids {
            // The process may have exited meanwhile.
            kill(Pid::from_raw(*pid), Signal::SIGKILL).ok();
        }
        if pids.is_empty() {
            Ok(())
        } else {
            Err(format!("processes {pids:?}"))
        }
    })?;
    run(Command::new("ip").args(["netns", "del", name]))?;
    Ok(())
}

/// Leftovers of a topology, found by the prefix of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakReport {
    /// Network namespaces.
    pub namespaces: Vec<String>,
    /// Links in the caller's namespace.
    pub links: Vec<String>,
    /// Pin directories.
    pub pins: Vec<PathBuf>,
}

// === impl Residue ===

impl LeakReport {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.links.is_empty() && self.pins.is_empty()
    }

    /// Removes all of it.
    pub fn remove(&self) -> Result<()> {
        for name in &self.namespaces {
            remove(name)?;
        }
        for link in &self.links {
            run(Command::new("ip").args(["link", "del", link]))?;
        }
        for pins in &self.pins {
            remove_pins(pins)?;
        }
        Ok(())
    }
}

/// Lists everything with a name that starts with `<prefix>-`. An empty prefix would match foreign names and is
/// rejected.
pub fn find_leaks(prefix: &str) -> Result<LeakReport> {
    if prefix.is_empty() {
        bail!("empty name prefix");
    }
    let start = format!("{prefix}-");
    let starting = |directory: &str| -> Result<Vec<PathBuf>> {
        let mut found = BTreeSet::new();
        if !Path::new(directory).exists() {
            return Ok(Vec::new());
        }
        for entry in fs::read_dir(directory).with_context(|| format!("cannot list {directory}"))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&start) {
                found.insert(entry.path());
            }
        }
        Ok(found.into_iter().collect())
    };
    let names = |paths: Vec<PathBuf>| -> Vec<String> {
        paths
            .iter()
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect()
    };
    Ok(LeakReport {
        namespaces: names(starting(NETNS_DIR)?),
        links: names(starting("/sys/class/net")?),
        pins: starting(BPF_FS)?,
    })
}

/// Removes a pin directory, which detaches every program attached through its links.
pub fn remove_pins(directory: &Path) -> Result<()> {
    if !directory.starts_with(BPF_FS) {
        bail!("{} is not below {BPF_FS}", directory.display());
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_prefix_is_rejected() {
        assert!(find_leaks("").is_err());
    }

    #[test]
    fn only_directories_on_bpffs_are_removed() {
        assert!(remove_pins(Path::new("/tmp/x")).is_err());
        remove_pins(Path::new("/sys/fs/bpf/mc-tests-does-not-exist")).unwrap();
    }
}
