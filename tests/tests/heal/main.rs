//! Changes that other programs make to the data path are repaired by the running agents.
//!
//! Runs as root, one test at a time, with the paths of agent and traffic program in `MC_AGENT` and `MC_TRAFFIC`:
//! `cargo xtask test --suite heal`; `MC_LONG=1` selects both attach modes, 1,000 prefixes and the promised time.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bed;
mod changes;
mod pinned;
mod state;
mod traffic;
mod unrepairable;

use std::{
    collections::BTreeSet,
    env,
    time::{Duration, Instant},
};

use mc_tests::{fixture, topology::Place, wait::wait_for};

use bed::{Attach, Bed};
use changes::Change;

/// The promised time until a change is repaired, asserted in long runs.
const PROMISED: Duration = Duration::from_secs(2);
/// The time that a loaded machine needs at most.
const BOUND: Duration = Duration::from_secs(5);

/// Makes each change that fits the attach modes, one after the other, then all of them together.
fn repair_all(bed: &mut Bed) {
    let only = env::var("MC_HEAL_CHANGE").unwrap_or_default();
    let mut changes: Vec<Change> = changes::all();
    changes.retain(|change| {
        change.name.contains(&only)
            && change
                .attach
                .is_none_or(|attach| attach == bed.attach(change.place))
    });
    println!("state repaired, outage of a Pod, outage of a Service (ms)");
    let mut failed = Vec::new();
    for change in &changes {
        let since = bed.change(&[change.place], |bed| {
            (change.make)(bed, change.place).expect(change.name);
        });
        measure(bed, change.name, &[change.place], since, &mut failed);
    }
    let places: BTreeSet<Place> = changes.iter().map(|change| change.place).collect();
    let places: Vec<Place> = places.into_iter().collect();
    let mut made = 0;
    let since = bed.change(&places, |bed| {
        // Some changes remove the object of others.
        made = changes
            .iter()
            .filter(|change| (change.make)(bed, change.place).is_ok())
            .count();
    });
    assert!(
        made * 4 >= changes.len() * 3,
        "{made} of {} changes were made",
        changes.len()
    );
    measure(bed, &format!("all at once ({made})"), &places, since, &mut failed);
    assert!(
        failed.is_empty(),
        "{} of {} failed:\n{}",
        failed.len(),
        changes.len() + 1,
        failed.join("\n")
    );
}

/// Waits for the repair of a change and prints the outage.
fn measure(bed: &mut Bed, name: &str, places: &[Place], since: Instant, failed: &mut Vec<String>) {
    let limit = if fixture::is_long_run() { PROMISED } else { BOUND };
    match bed.repaired(places, since) {
        Ok(repair) => {
            let times = [repair.restored, repair.pod_outage, repair.service_outage];
            let [state, pod, service] = times.map(|time| time.as_millis());
            println!("{state:>6} {pod:>6} {service:>6}  {name}");
            if times.iter().any(|time| *time > limit) {
                failed.push(format!("{name}: later than {limit:?}: {repair:?}"));
            }
        }
        Err(error) => {
            println!("{:>6} {:>6} {:>6}  {name}", "never", "", "");
            failed.push(format!("{name}: {error}"));
            for place in places {
                bed.restart(*place);
            }
            if let Err(error) = bed.repaired(places, Instant::now()) {
                panic!("{name}: not even a restart repairs it: {error}");
            }
        }
    }
}

/// West's gateway uses filters, the other nodes use links.
fn mixed(place: Place) -> Attach {
    if place == Place::GatewayWest {
        Attach::Clsact
    } else {
        Attach::Tcx
    }
}

/// Contents of maps, detached links, filters and the settings of `mc0` were repaired by the resync after up to 30 s,
/// replies to probes and a renamed `mc0` by a restart only.
#[test]
fn foreign_changes_are_repaired() {
    if fixture::is_long_run() {
        for attach in [Attach::Tcx, Attach::Clsact] {
            println!("{attach:?}, 1,000 prefixes");
            let mut bed = Bed::connect("long", |_| attach, 1_000);
            for _ in 0..3 {
                repair_all(&mut bed);
            }
        }
    } else {
        repair_all(&mut Bed::connect("mixed", mixed, 1));
    }
}

#[test]
fn readiness_names_a_change_that_cannot_be_repaired() {
    let mut bed = Bed::connect("ready", mixed, 1);
    for change in unrepairable::ALL {
        let place = change.place;
        bed.readyz(place).expect("ready before");
        let since = bed.change(&[place], |bed| (change.make)(bed, place).expect(change.name));
        let named = wait_for(change.reason, BOUND, || match bed.readyz(place) {
            Err(reason) if reason.contains(change.reason) => Ok(reason),
            other => Err(format!("{other:?}")),
        });
        let after = since.elapsed();
        (change.revert)(&bed, place).expect(change.name);
        println!(
            "{:>6}  {}: {}",
            after.as_millis(),
            change.name,
            named.expect(change.name)
        );
        bed.repaired(&[place], Instant::now()).expect(change.name);
        wait_for("readiness", BOUND, || bed.readyz(place)).expect(change.name);
        assert!(
            !fixture::is_long_run() || after <= PROMISED,
            "{}: named after {after:?}",
            change.name
        );
    }
}

/// The search for foreign changes must not cost more than it is worth.
#[test]
fn an_idle_agent_uses_little_cpu_time() {
    let (time, percent) = if fixture::is_long_run() {
        (20, 1.0)
    } else {
        (5, 4.0)
    };
    let mut bed = Bed::connect("idle", mixed, if fixture::is_long_run() { 1_000 } else { 1 });
    let before = Place::NODES.map(|place| bed.cpu_time(place));
    let began = Instant::now();
    wait_for(
        "the end of the measurement",
        Duration::from_secs(2 * time),
        || {
            let elapsed = began.elapsed();
            if elapsed >= Duration::from_secs(time) {
                Ok(())
            } else {
                Err(format!("{elapsed:?}"))
            }
        },
    )
    .expect("time");
    let elapsed = began.elapsed();
    for (place, before) in Place::NODES.into_iter().zip(before) {
        let used = bed.cpu_time(place).saturating_sub(before);
        let share = 100.0 * used.as_secs_f64() / elapsed.as_secs_f64();
        println!("{}: {share:.2} % of a core, idle for {time} s", place.name());
        assert!(share <= percent, "{}: {share:.2} % of a core", place.name());
    }
}
