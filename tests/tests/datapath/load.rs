//! Verification of the programs, with its number of instructions.

use aya::programs::SchedClassifier;

use crate::{cases::Program, fixture, kernel::Kernel};

/// `cargo xtask matrix` compares the printed numbers with `tests/verified-instructions.toml`.
#[test]
fn programs_load_and_report_verified_instructions() {
    let kernel = Kernel::load(&fixture::gateway());
    for name in Program::ALL.map(Program::name) {
        let program: &SchedClassifier = kernel.program(name);
        // Reported since Linux 5.16.
        if let Some(count) = program.info().expect("info").verified_instruction_count() {
            println!("\nverified {name} {count}");
        }
    }
    let info = kernel.xdp_program().info().expect("info");
    if let Some(count) = info.verified_instruction_count() {
        println!("\nverified transit {count}");
    }
}
