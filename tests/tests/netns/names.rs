//! Reserved names of namespaces, and leftovers of processes that were killed.

use std::{process::Command, thread};

use mc_tests::{
    name_lock::NameLock,
    netns::{Netns, find_leaks},
    process::run,
};

/// The gate failed on the namespaces of a run that had been killed.
#[test]
fn leftovers_of_an_ended_process_are_removed_and_names_in_use_are_kept() {
    run(Command::new("ip").args(["netns", "add", "mct-lock-left"])).expect("a leftover");
    let lock = NameLock::take("mct-lock").expect("no process has reserved the prefix");
    assert!(find_leaks("mct-lock").expect("leftovers").is_empty());

    let netns = Netns::create("mct-lock-used").expect("a namespace");
    let refused = |prefix| {
        let other = thread::spawn(move || NameLock::take(prefix).map(drop));
        other
            .join()
            .expect("an answer")
            .expect_err("another one has the names")
            .to_string()
    };
    assert_eq!(refused("mct-lock"), "prefix `mct-lock` is in use by another run");
    let longer = refused("mct");
    assert!(longer.contains("@mc-gateway-tests/mct-lock"), "{longer}");
    assert_eq!(
        find_leaks("mct-lock").expect("leftovers").namespaces,
        [netns.name()]
    );
    drop((netns, lock));
    NameLock::take("mct-lock").expect("the reservation has ended");
}
