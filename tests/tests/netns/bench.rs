//! The benchmark's own function: every part and every case, with measurements too short to say anything.

use std::path::PathBuf;

use mc_tests::{
    bench::{self, Settings, case::Case, goals::GOALS, part::Pace, part::Part, plot},
    netns::residue,
};

use crate::bed::agent_program;

#[test]
fn a_quick_run_measures_everything_and_leaves_nothing() {
    let objects = std::env::var_os("MC_GATEWAY_EBPF_OBJECT").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf"),
        |object| PathBuf::from(object).with_file_name(""),
    );
    let settings = Settings {
        prefix: "nt-bench".to_owned(),
        agent: agent_program(),
        objects,
        parts: Part::ALL.into_iter().collect(),
        cases: Case::ALL.to_vec(),
        rounds: 1,
        pace: Pace::QUICK,
        mtu: 1500,
        bridge: false,
    };
    let report = bench::run(&settings, |line| println!("{line}")).expect("a report");
    println!("{report}");
    let failed: Vec<_> = report.missing.iter().filter(|missing| missing.failed).collect();
    assert!(failed.is_empty(), "{failed:?}");
    for (goal, _) in GOALS {
        let missing = report
            .missing
            .iter()
            .any(|missing| goal.starts_with(&missing.name));
        assert!(
            missing || report.goals.iter().any(|outcome| outcome.figure == goal),
            "{goal} has no figure and nothing says why"
        );
    }
    assert!(plot::all(&report).len() >= 8);
    let left = residue(&settings.prefix).expect("residue");
    assert!(left.is_empty(), "{left:?}");
}
