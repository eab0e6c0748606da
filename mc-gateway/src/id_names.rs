//! Names of the IDs in the maps, stored in a file for `inspect` and `trace`.
//!
//! The maps contain stable IDs instead of strings. The agent writes their names to its state directory after every
//! change; without the file the IDs are printed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::desired::DesiredState;
use crate::desired::rule_names::RuleName;

/// Names of the IDs and addresses in the maps of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IdNames {
    /// Pin directory the names belong to.
    pub bpf_dir: PathBuf,
    /// Name of the Node.
    pub node: String,
    /// Remote clusters by ID.
    pub clusters: BTreeMap<u64, String>,
    /// Groups by ID.
    pub groups: BTreeMap<u32, String>,
    /// Kind and name of the object that defines a next hop, by ID.
    pub next_hops: BTreeMap<u32, String>,
    /// Kind and name of the object that defines a peer, by its address.
    pub peers: BTreeMap<IpAddr, String>,
    /// Rules of network policies, by ID.
    pub rules: BTreeMap<u32, RuleName>,
}

impl IdNames {
    /// The names in the desired state.
    #[must_use]
    pub fn new(desired: &DesiredState, bpf_dir: &Path, node: &str) -> Self {
        let groups = desired.groups.iter();
        let next_hops = desired.next_hops.iter();
        Self {
            bpf_dir: bpf_dir.to_owned(),
            node: node.to_owned(),
            clusters: desired.cluster_names.clone(),
            groups: groups.map(|(id, group)| (*id, group.name.clone())).collect(),
            next_hops: next_hops
                .map(|(id, next_hop)| (*id, next_hop.object.clone()))
                .collect(),
            peers: desired.peer_names.clone(),
            rules: (*desired.policies.rules).clone(),
        }
    }

    /// Name of a cluster; its ID if unknown.
    #[must_use]
    pub fn cluster(&self, id: u64) -> String {
        if id == mc_gateway_common::abi::CLUSTER_LOCAL {
            return "local".to_owned();
        }
        let name = self.clusters.get(&id).cloned();
        name.unwrap_or_else(|| format!("{id:#018x}"))
    }

    /// Name of a group; its ID if unknown.
    #[must_use]
    pub fn group(&self, id: u32) -> String {
        name_or_id(&self.groups, id)
    }

    /// Name of a next hop; its ID if unknown.
    #[must_use]
    pub fn next_hop(&self, id: u32) -> String {
        name_or_id(&self.next_hops, id)
    }

    /// Name of a peer; empty if unknown.
    #[must_use]
    pub fn peer(&self, addr: IpAddr) -> String {
        self.peers.get(&addr).cloned().unwrap_or_default()
    }

    /// Reads the names of the agent with pins in `bpf_dir`; none without a valid file.
    #[must_use]
    pub fn load(state_dir: &Path, bpf_dir: &Path) -> Option<Self> {
        let text = fs::read(file(state_dir, bpf_dir)).ok()?;
        let names: Self = serde_json::from_slice(&text).ok()?;
        (names.bpf_dir == bpf_dir).then_some(names)
    }

    /// Replaces the file atomically.
    pub fn store(&self, state_dir: &Path) -> io::Result<()> {
        fs::create_dir_all(state_dir)?;
        let path = file(state_dir, &self.bpf_dir);
        let new = path.with_extension("json.new");
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(&new, &path)
    }
}

/// Removes the names of the agent with pins in `bpf_dir`.
pub fn remove(state_dir: &Path, bpf_dir: &Path) -> io::Result<()> {
    match fs::remove_file(file(state_dir, bpf_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The file of a pin directory. Two directories may map to one file, which records its directory.
fn file(state_dir: &Path, bpf_dir: &Path) -> PathBuf {
    let dir = bpf_dir.to_string_lossy();
    state_dir.join(format!("{}.json", dir.trim_matches('/').replace('/', "-")))
}

fn name_or_id(names: &BTreeMap<u32, String>, id: u32) -> String {
    names.get(&id).cloned().unwrap_or_else(|| format!("{id:#010x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_names_belong_to_one_pin_directory() {
        let dir = tempfile::tempdir().unwrap();
        let bpf_dir = Path::new("/sys/fs/bpf/a/b");
        let names = IdNames {
            bpf_dir: bpf_dir.to_owned(),
            node: "n1".to_owned(),
            clusters: [(7, "west".to_owned())].into(),
            peers: [("192.0.2.1".parse().unwrap(), "Gateway g".to_owned())].into(),
            ..IdNames::default()
        };
        names.store(dir.path()).unwrap();
        assert_eq!(IdNames::load(dir.path(), bpf_dir), Some(names.clone()));
        assert_eq!(IdNames::load(dir.path(), Path::new("/sys/fs/bpf/a-b")), None);
        remove(dir.path(), bpf_dir).unwrap();
        remove(dir.path(), bpf_dir).unwrap();
        assert_eq!(IdNames::load(dir.path(), bpf_dir), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(names.cluster(0), "local");
        assert_eq!(names.cluster(7), "west");
        assert_eq!(names.group(0xab), "0x000000ab");
    }
}
