//! Attackers in namespaces of the test bed: the packets that they send into running agents are dropped with the
//! expected reason.
//!
//! A vector is a packet, the place of its sender and the right answer. The packets are sent one by one, as frames or by
//! sockets; the counters of all nodes and captures must show the right answer and nothing else. After each vector a
//! genuine packet of the same builder must arrive. Packets that arrive through a known gap are marked as such: a gap
//! that closes fails the suite.
//!
//! Runs as root, one test at a time, with the paths of agent and traffic program in `MC_AGENT` and `MC_TRAFFIC`:
//! `cargo xtask test --suite attack`. `MC_LONG=1` selects more mutations, `MC_SEED` their seed, `MC_VECTOR` the vectors
//! whose names contain its value.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bed;
mod check;
mod mutations;
mod policies;
mod tap;
mod vector;
mod vectors;

use std::{collections::BTreeMap, env, time::Duration};

use mc_tests::topology::{Family, Format, wait_within_period};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    bed::{Bed, Way},
    check::Checker,
    vector::{Entry, Expected},
};

/// Least number of vectors of each topology that S2 of the specification promises.
const PROMISED: usize = 100;

/// Longest time in which a topology is created and its vectors are sent.
const DURATION: Duration = Duration::from_secs(150);

/// Binds this thread to one CPU: the kernel queues its packets there, in order.
fn use_one_cpu() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("CPUs");
    let cpu = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or_default());
    let mut one = CpuSet::new();
    one.set(cpu.expect("a CPU")).expect("a CPU");
    sched_setaffinity(Pid::from_raw(0), &one).expect("one CPU");
}

/// Sends every vector of a topology.
fn attack(name: &str, outer: Family, format: Format, way: Way) {
    // The bed has the secrets of the period of its creation.
    wait_within_period(DURATION).expect("a period");
    let bed = Bed::create(name, outer, format, way);
    use_one_cpu();
    let selected = env::var("MC_VECTOR").unwrap_or_default();
    let mut checker = Checker::new(&bed);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut gaps, mut wrong) = (0, Vec::new());
    for entry in Entry::ALL {
        for vector in vectors::all(&bed, entry) {
            let full = format!("{}: {}", entry.name(), vector.name);
            if !full.contains(&selected) {
                continue;
            }
            if vector.expected == Expected::Gap {
                gaps += 1;
            } else {
                *counts.entry(entry.name()).or_default() += 1;
            }
            let found = checker.check(&vector);
            wrong.extend(found.iter().map(|found| format!("{full}: {found}")));
        }
    }
    wrong.extend(checker.check_rules());
    let sum: usize = counts.values().sum();
    println!(
        "attack: {outer:?} {format:?} {way:?}: {sum} vectors {counts:?}, {gaps} packets through known gaps"
    );
    if way != Way::Policies {
        wrong.extend(mutations::mutate_all(&bed, &checker));
    }
    assert!(
        wrong.is_empty(),
        "{} wrong answers:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(sum >= PROMISED || !selected.is_empty(), "{sum} vectors");
}

#[test]
fn geneve_over_ipv4() {
    attack("g4", Family::V4, Format::Geneve, Way::Classifiers);
}

#[test]
fn vxlan_over_ipv4() {
    attack("x4", Family::V4, Format::Vxlan, Way::Classifiers);
}

#[test]
fn geneve_over_ipv6() {
    attack("g6", Family::V6, Format::Geneve, Way::Classifiers);
}

#[test]
fn vxlan_over_ipv6() {
    attack("x6", Family::V6, Format::Vxlan, Way::Classifiers);
}

#[test]
fn vxlan_over_ipv4_with_tunnel_devices() {
    attack("t4", Family::V4, Format::Vxlan, Way::TunnelDevices);
}

#[test]
fn geneve_over_ipv4_with_xdp() {
    attack("p4", Family::V4, Format::Geneve, Way::Xdp);
}

#[test]
fn identities_in_geneve_over_ipv4() {
    attack("i4", Family::V4, Format::Geneve, Way::Policies);
}

#[test]
fn identities_in_vxlan_over_ipv6() {
    attack("i6", Family::V6, Format::Vxlan, Way::Policies);
}
