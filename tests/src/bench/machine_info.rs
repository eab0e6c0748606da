//! Machine and versions of a run.

use std::{collections::BTreeMap, fs, process::Command};

use super::{Settings, report::MachineInfo};
use crate::{process::run, topology::OVERHEAD};

/// Collects the information; unavailable values remain empty.
pub(super) fn collect(settings: &Settings) -> MachineInfo {
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let load = file("/proc/loadavg");
    MachineInfo {
        kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu: cpu_model(&file("/proc/cpuinfo")).unwrap_or_default(),
        cpus: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        load: load
            .split_whitespace()
            .next()
            .and_then(|load| load.parse().ok())
            .unwrap_or_default(),
        versions: versions(settings),
        sections: settings.sections.iter().copied().collect(),
        rounds: settings.rounds,
        pace: settings.pace,
        underlay_mtu: settings.mtu,
        pod_mtu: settings.mtu.saturating_sub(OVERHEAD),
        beds: settings.beds.clone(),
    }
}

fn versions(settings: &Settings) -> BTreeMap<String, String> {
    let version = |command: &mut Command| run(command).unwrap_or_default().trim().to_owned();
    BTreeMap::from([
        (
            "mc-gateway".to_owned(),
            version(Command::new(&settings.agent).arg("--version")),
        ),
        (
            "commit".to_owned(),
            version(Command::new("git").args(["describe", "--always", "--dirty"])),
        ),
        ("iproute2".to_owned(), version(Command::new("ip").arg("-V"))),
        (
            "nftables".to_owned(),
            version(Command::new("nft").arg("--version")),
        ),
    ])
}

/// Model of the first CPU in `/proc/cpuinfo`.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let (_, model) = line.split_once(':')?;
    Some(model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cpu_model_is_found() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nmodel name\t: Other\n";
        assert_eq!(cpu_model(text).as_deref(), Some("Some CPU @ 3 GHz"));
        assert_eq!(cpu_model("Hardware: none"), None);
    }
}
