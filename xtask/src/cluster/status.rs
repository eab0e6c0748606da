//! `cargo xtask cluster status`: processes, health and memory.

use std::fs;

use anyhow::{Result, bail};

use super::{
    Layout, binaries,
    kubectl::Kubectl,
    state::{Process, StateFile},
    topology::Topology,
};

/// The state of the clusters.
#[derive(Debug)]
pub(crate) enum Health {
    /// No clusters.
    Down,
    /// All run, and all their nodes are ready.
    Up(Topology),
    /// Incomplete; the missing parts.
    Broken(Vec<String>),
}

/// Checks the health of the clusters.
pub(crate) fn check_health(layout: &Layout) -> Result<Health> {
    let record = match StateFile::read(layout.directory()) {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(Health::Down),
        Err(error) => return Ok(Health::Broken(vec![format!("{error:#}")])),
    };
    let mut reasons: Vec<String> = record
        .exited()
        .iter()
        .map(|process| format!("{} does not run", process.role))
        .collect();
    if !record.complete {
        reasons.push("`up` did not finish".to_owned());
    }
    if !reasons.is_empty() {
        return Ok(Health::Broken(reasons));
    }
    let topology = record.topology()?;
    let program = binaries::kubectl()?;
    for cluster in topology.clusters() {
        let kubectl = Kubectl::new(&program, &layout.kubeconfig(), cluster.name());
        let wanted = cluster.nodes().count();
        match ready_nodes(&kubectl) {
            Ok(ready) if ready == wanted => {}
            Ok(ready) => reasons.push(format!("{}: {ready} of {wanted} nodes ready", cluster.name())),
            Err(error) => reasons.push(format!("{}: {error:#}", cluster.name())),
        }
    }
    Ok(if reasons.is_empty() {
        Health::Up(topology)
    } else {
        Health::Broken(reasons)
    })
}

/// Number of ready nodes of a cluster.
pub(crate) fn ready_nodes(kubectl: &Kubectl) -> Result<usize> {
    let path = "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}";
    let text = kubectl.output(&["get", "nodes", "--request-timeout=5s", "-o", path])?;
    Ok(text.lines().filter(|line| *line == "True").count())
}

/// Prints the state of the clusters; fails unless they are up.
pub(crate) fn print(layout: &Layout) -> Result<()> {
    let health = check_health(layout)?;
    if let Ok(Some(record)) = StateFile::read(layout.directory()) {
        println!("{:<28} {:>8} {:>9}  log", "process", "pid", "memory");
        let mut total = 0;
        for process in &record.processes {
            let memory = if process.is_alive() {
                resident_mebibytes(process)
            } else {
                0
            };
            total += memory;
            let memory = if process.is_alive() {
                format!("{memory} MiB")
            } else {
                "ended".to_owned()
            };
            println!(
                "{:<28} {:>8} {memory:>9}  {}",
                process.role,
                process.pid,
                process.log.display()
            );
        }
        println!("{:<28} {:>8} {total:>5} MiB", "all", record.processes.len());
    }
    match health {
        Health::Up(topology) => {
            println!("up: {topology}; KUBECONFIG={}", layout.kubeconfig().display());
            for cluster in topology.clusters() {
                println!(
                    "  {}: API server {}, Pods {}, Services {}; nodes {}",
                    cluster.name(),
                    cluster.api_url(),
                    cluster.pod_cidrs(),
                    cluster.service_cidrs(),
                    cluster
                        .nodes()
                        .map(|node| format!("{} {}", node.name(), node.addresses()))
                        .collect::<Vec<_>>()
                        .join(", ")
                );
            }
            Ok(())
        }
        Health::Down => bail!("the clusters are down: `cargo xtask cluster up`"),
        Health::Broken(reasons) => bail!("the clusters are broken: {}", reasons.join("; ")),
    }
}

/// The memory a process holds now.
fn resident_mebibytes(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or_default() / 1024
}
