//! The object whose programs log every decision (`cargo xtask build-ebpf --log`).

use std::sync::{Arc, Mutex};

use mc_gateway::program_log::Decision;

use crate::{cases, cases::Expect, fixture, kernel::Kernel, tc_action};

#[test]
fn an_object_without_records_is_refused_with_the_command_that_builds_one() {
    let mut kernel = Kernel::load(&fixture::gateway());
    let error = kernel.open_log(|_: &str| {}).err().expect("no log").to_string();
    assert!(error.contains("cargo xtask build-ebpf --log"), "{error}");
}

#[test]
fn the_log_has_program_reason_and_destination_of_each_packet() {
    let tables = fixture::gateway();
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = {
        let records = Arc::clone(&records);
        move |text: &str| records.lock().expect("no panic").push(text.to_owned())
    };
    let mut kernel = Kernel::load_logging(&tables);
    let mut flush = kernel.open_log(sink).expect("the object logs");
    let mut checked = 0;
    for case in cases::all() {
        if case.tables != tables || !Kernel::accepts_frame(&case.frame) {
            continue;
        }
        let (verdict, _) = crate::run_gso_on_host(case.program, &tables.clone(), &case.frame, case.gso_size);
        let result = kernel.run_gso(case.program.name(), &case.frame, case.gso_size);
        assert_eq!(result.action, tc_action(verdict), "{}", case.name);
        flush();
        let records = std::mem::take(&mut *records.lock().expect("no panic"));
        let Expect::Drop(reason) = case.expect else {
            continue;
        };
        let [text] = records.as_slice() else {
            panic!("{}: {records:?}", case.name);
        };
        let decision = Decision::parse(text).unwrap_or_else(|| panic!("{}: {text}", case.name));
        let expected = (case.program.name(), "drop", reason.name());
        assert_eq!(
            (decision.program, decision.verdict, decision.reason),
            expected,
            "{}",
            case.name
        );
        if let Some(addr) = case.frame.get(30..34).filter(|_| case.frame[12..14] == [8, 0]) {
            let addr: [u8; 4] = addr.try_into().expect("4 bytes");
            assert_eq!(
                decision.destination,
                std::net::IpAddr::from(addr),
                "{}: {text}",
                case.name
            );
        }
        checked += 1;
    }
    assert!(checked > 5, "{checked} cases");
}
