//! The `mc-gateway` agents of the four nodes.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;

use super::{
    Topology,
    manifests::write_manifests,
    plan::{Cluster, Format, Place},
};
use crate::process::{Process, run};

/// Log message of an agent once its desired state is applied.
pub const READY: &str = "datapath ready";
/// Log message after each later change.
pub const UPDATED: &str = "datapath updated";
/// Timeout for these messages, generous for busy and emulated machines.
const START_TIMEOUT: Duration = Duration::from_mins(1);

impl Topology {
    /// Directory with the manifests of a cluster, watched by its agents.
    #[must_use]
    pub fn manifests_dir(&self, cluster: Cluster) -> PathBuf {
        self.directory.join(cluster.name())
    }

    /// Starts the agent of a node.
    pub fn spawn_agent(&mut self, place: Place) -> Result<()> {
        if self.agents.get_mut(&place).is_some_and(Process::is_running) {
            bail!("agent of {} is already running", place.name());
        }
        let directory = self.manifests_dir(place.cluster());
        if !directory.exists() {
            write_manifests(place.cluster(), &self.options, &directory)?;
        }
        let log = self.directory.join(format!("agent-{}.log", place.name()));
        let mut command = self.netns(place).command(self.agent()?);
        command
            .args(["run", "--node-name", place.name(), "--manifests"])
            .arg(directory);
        self.add_dirs(&mut command, place);
        self.options
            .secrets
            .add_flags(&mut command, place, &self.directory)?;
        command.args(&self.options.agent_flags);
        if self.options.format == Format::Vxlan {
            command.args(["--format", "vxlan"]);
        }
        let process = Process::spawn(&format!("mc-gateway on {}", place.name()), &mut command, &log)?;
        self.agents.insert(place, process);
        Ok(())
    }

    /// Waits until the agent of a node has applied its desired state.
    pub fn wait_agent(&mut self, place: Place) -> Result<()> {
        self.running(place)?.wait_for_line(READY, START_TIMEOUT)?;
        Ok(())
    }

    /// Starts the agent of a node and waits until it has applied its desired state.
    pub fn start_agent(&mut self, place: Place) -> Result<()> {
        self.spawn_agent(place)?;
        self.wait_agent(place)
    }

    /// Starts all agents and waits for them.
    pub(super) fn start_agents(&mut self) -> Result<()> {
        let nodes = self.nodes();
        nodes.iter().try_for_each(|place| self.spawn_agent(*place))?;
        nodes.iter().try_for_each(|place| self.wait_agent(*place))
    }

    /// Waits until the agent of a node has applied `times` changes since its start.
    pub fn wait_agent_updated(&mut self, place: Place, times: usize) -> Result<()> {
        self.running(place)?
            .wait_for_lines(UPDATED, times, START_TIMEOUT)?;
        Ok(())
    }

    /// Log of the agent of a node since its last start.
    pub fn agent_log(&mut self, place: Place) -> Result<String> {
        Ok(self.running(place)?.output())
    }

    /// Stops the agent of a node by SIGTERM, as an upgrade does. The data path remains.
    pub fn stop_agent(&mut self, place: Place) -> Result<()> {
        let status = self.running(place)?.terminate()?;
        if !status.success() {
            bail!(
                "mc-gateway on {} exited with {status}: {}",
                place.name(),
                self.agent_log(place)?
            );
        }
        self.agents.remove(&place);
        Ok(())
    }

    /// Kills the agent of a node (SIGKILL). The data path remains.
    pub fn kill_agent(&mut self, place: Place) -> Result<()> {
        self.running(place)?.kill()?;
        self.agents.remove(&place);
        Ok(())
    }

    /// Sends a signal to the agent of a node, such as SIGSTOP and SIGCONT.
    pub fn signal_agent(&mut self, place: Place, signal: Signal) -> Result<()> {
        self.running(place)?.signal(signal)
    }

    /// Process ID of the agent of a node.
    pub fn agent_pid(&mut self, place: Place) -> Result<u32> {
        Ok(self.running(place)?.pid())
    }

    /// Runs `mc-gateway cleanup` on a node.
    pub fn cleanup_agent(&mut self, place: Place) -> Result<()> {
        let mut command = self.netns(place).command(self.agent()?);
        command.arg("cleanup");
        self.add_dirs(&mut command, place);
        run(&mut command)?;
        Ok(())
    }

    /// Adds the flags for the node's pin and state directories.
    fn add_dirs(&self, command: &mut Command, place: Place) {
        command.arg("--bpf-dir").arg(self.bpf_dir(place));
        command.arg("--state-dir").arg(self.directory.join("state"));
    }

    /// Runs a subcommand of the agent on a node and returns its output, successful or not.
    pub fn run_agent(&self, place: Place, args: &[&str]) -> Result<Output> {
        let mut command = self.netns(place).command(self.agent()?);
        command.args(args);
        self.add_dirs(&mut command, place);
        command
            .output()
            .with_context(|| format!("cannot run mc-gateway {args:?} on {}", place.name()))
    }

    /// Lists the agent's device, routes, rules and pins on a node; pins keep programs attached.
    pub fn agent_leaks(&self, place: Place) -> Result<Vec<String>> {
        let netns = self.netns(place);
        let mut found = Vec::new();
        for (what, program, args, trace) in [
            ("device", "ip", &["-oneline", "link"][..], " mc0"),
            ("route", "ip", &["route", "show", "proto", "109"], "dev mc0"),
            ("route", "ip", &["-6", "route", "show", "proto", "109"], "dev mc0"),
            ("rule", "ip", &["rule", "show"], "iif mc0"),
            (
                "route",
                "ip",
                &["route", "show", "table", "all", "proto", "109"],
                "table 7168871",
            ),
            ("rule table", "nft", &["list", "tables"], "mc_gateway"),
        ] {
            let listed = netns.run(program, args)?;
            found.extend(
                listed
                    .lines()
                    .filter(|line| line.contains(trace))
                    .map(|line| format!("{what}: {line}")),
            );
        }
        let pins = self.bpf_dir(place);
        if pins.exists() {
            found.push(format!("pins: {}", pins.display()));
        }
        Ok(found)
    }

    /// Stops all agents and cleans up after them.
    pub(super) fn remove_agents(&mut self) -> Result<()> {
        for place in self.nodes() {
            if self.agents.contains_key(&place) {
                self.stop_agent(place)?;
            }
        }
        for place in self.nodes() {
            self.cleanup_agent(place)?;
            let left = self.agent_leaks(place)?;
            ensure!(
                left.is_empty(),
                "`mc-gateway cleanup` on {} left {left:?}",
                place.name()
            );
        }
        for cluster in Cluster::ALL {
            let directory = self.manifests_dir(cluster);
            if directory.exists() {
                fs::remove_dir_all(&directory)
                    .with_context(|| format!("cannot remove {}", directory.display()))?;
            }
        }
        Ok(())
    }

    fn running(&mut self, place: Place) -> Result<&mut Process> {
        self.agents
            .get_mut(&place)
            .with_context(|| format!("no agent on {}", place.name()))
    }

    fn agent(&self) -> Result<PathBuf> {
        self.options.agent.clone().context("no path of mc-gateway given")
    }
}
