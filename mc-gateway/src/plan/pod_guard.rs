//! Changes of the Pod guard.
//!
//! *Guarantees*: a Pod passes the guard only after programs are attached to its device and the tables of policies know
//! it; a Pod that ends, or that moves to another device, passes no longer before anything else changes.

use super::{Action, ObservedState, Planner};
use crate::resolved::{PodGuard, ResolvedState};

/// The guard as nftables has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InstalledGuard {
    /// No table.
    #[default]
    Absent,
    /// Tables of another state, or modified ones.
    Unknown,
    /// The tables of this guard.
    Known(PodGuard),
}

impl InstalledGuard {
    /// The result of installing a guard, or of removing it.
    #[must_use]
    pub fn of(guard: Option<&PodGuard>) -> Self {
        guard.cloned().map_or(Self::Absent, Self::Known)
    }
}

impl Planner {
    /// Removes Pods from the guard, before all other changes.
    pub(super) fn close_pods(&mut self, observed: &ObservedState, resolved: &ResolvedState) {
        let (InstalledGuard::Known(from), Some(to)) = (&observed.pod_guard, &resolved.pod_guard) else {
            return;
        };
        let rest = from.without_missing(to);
        if rest != *from {
            self.set_pod_guard(&observed.pod_guard, Some(&rest));
        }
    }

    /// Completes the guard, after the programs of its Pods are attached, or removes it.
    pub(super) fn pod_guard(&mut self, observed: &ObservedState, resolved: &ResolvedState) {
        let to = resolved.pod_guard.as_ref();
        let from = match (&observed.pod_guard, to) {
            (InstalledGuard::Known(from), Some(to)) => InstalledGuard::Known(from.without_missing(to)),
            (from, _) => from.clone(),
        };
        if from != InstalledGuard::of(to) {
            self.set_pod_guard(&from, to);
        }
    }

    fn set_pod_guard(&mut self, from: &InstalledGuard, to: Option<&PodGuard>) {
        self.adds.push(Action::SetPodGuard {
            from: Box::new(from.clone()),
            to: to.cloned().map(Box::new),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use mc_gateway_common::abi::policy::PolicyPod;

    use super::*;
    use crate::plan::{PlanCache, execute_in_memory, plan};
    use crate::policy_tables::PolicyTables;
    use crate::resolved::{PlainName, PodGuard};

    /// A node whose Pods, by the last byte of their addresses, have devices.
    fn resolved(pods: &[u8], polices: bool) -> ResolvedState {
        let mut state = ResolvedState::default();
        let device = |last: &u8| format!("cali{last}");
        if polices {
            let selected = pods.iter().map(|last| ([*last; 16], PolicyPod::default()));
            state.policies = Arc::new(PolicyTables {
                pods: selected.collect(),
                ..PolicyTables::default()
            });
            state.pod_devices = pods.iter().map(|last| (device(last), u32::from(*last))).collect();
        }
        state.pod_guard = Some(PodGuard {
            ranges: ["10.1.1.0/24".parse().unwrap()].into(),
            pods: pods
                .iter()
                .map(|last| {
                    (
                        PlainName::new(&device(last)).unwrap(),
                        IpAddr::from([10, 1, 1, *last]),
                    )
                })
                .collect(),
            ..PodGuard::default()
        });
        state
    }

    /// The actions that concern Pods.
    fn converge(node: &mut ObservedState, resolved: &ResolvedState) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..3 {
            for action in plan(node, resolved, "mc0", &mut PlanCache::default())
                .unwrap()
                .actions
            {
                done.push(action.to_string());
                execute_in_memory(node, action);
            }
        }
        assert_eq!(node.pod_guard, InstalledGuard::of(resolved.pod_guard.as_ref()));
        done.retain(|action| ["Pod", "_pod"].iter().any(|word| action.contains(word)));
        done
    }

    fn policies(pods: u8) -> String {
        format!("set policies: {pods} Pod addresses, 0 identities, 0 address blocks, 0 rules")
    }

    #[test]
    fn a_pod_passes_after_its_programs_are_attached_and_until_anything_changes() {
        let mut node = ObservedState::default();
        let closed = converge(&mut node, &resolved(&[], false));
        assert_eq!(closed, ["set Pod guard with 0 addresses of Pods"]);
        assert_eq!(
            converge(&mut node, &resolved(&[7], true)),
            [
                &*policies(1),
                "attach to_pod to cali7",
                "attach from_pod to cali7",
                "set Pod guard with 1 addresses of Pods",
            ]
        );
        let other = converge(&mut node, &resolved(&[8], true));
        assert_eq!(other.first().unwrap(), "set Pod guard with 0 addresses of Pods");
        let attached = other
            .iter()
            .position(|action| action == "attach from_pod to cali8");
        let opened = other
            .iter()
            .position(|action| action == "set Pod guard with 1 addresses of Pods");
        assert!(attached.unwrap() < opened.unwrap(), "{other:?}");
        assert_eq!(
            converge(&mut node, &ResolvedState::default()),
            [
                &*policies(0),
                "remove Pod guard",
                "detach from_pod from cali8",
                "detach to_pod from cali8",
            ]
        );
        assert_eq!(converge(&mut node, &ResolvedState::default()), [""; 0]);
    }

    #[test]
    fn a_pod_that_ends_is_removed_by_one_action() {
        let mut node = ObservedState::default();
        let _ = converge(&mut node, &resolved(&[7, 8], true));
        let ended = converge(&mut node, &resolved(&[7], true));
        assert_eq!(ended.first().unwrap(), "set Pod guard with 1 addresses of Pods");
        assert_eq!(
            ended.iter().filter(|action| action.contains("guard")).count(),
            1,
            "{ended:?}"
        );
    }

    #[test]
    fn unknown_tables_are_replaced_or_removed() {
        for wanted in [resolved(&[7], false), ResolvedState::default()] {
            let mut node = ObservedState {
                pod_guard: InstalledGuard::Unknown,
                ..ObservedState::default()
            };
            assert_eq!(converge(&mut node, &wanted).len(), 1);
        }
    }

    #[test]
    fn only_known_tables_are_restored() {
        let guard = PodGuard::default();
        let action = |from| Action::SetPodGuard {
            from: Box::new(from),
            to: None,
        };
        let undo = |from| action(from).undo();
        assert_eq!(undo(InstalledGuard::Unknown), None);
        assert_eq!(undo(InstalledGuard::Absent), Some(action(InstalledGuard::Absent)));
        let restored = undo(InstalledGuard::Known(guard.clone())).unwrap();
        assert_eq!(restored.undo(), Some(action(InstalledGuard::Known(guard))));
    }
}
