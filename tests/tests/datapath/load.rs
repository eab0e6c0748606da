//! The programs load, and the verifier's work for them stays known.

use aya::programs::SchedClassifier;

use crate::{kernel::Kernel, world};

/// What this prints is compared with `tests/verified-instructions.toml` by `cargo xtask matrix`.
#[test]
fn programs_load_and_tell_what_the_verifier_walked() {
    let kernel = Kernel::load(&world::gateway());
    for name in ["to_remote", "from_underlay"] {
        let program: &SchedClassifier = kernel.program(name);
        // Linux 5.16 and later tell.
        if let Some(count) = program.info().expect("info").verified_instruction_count() {
            println!("\nverified {name} {count}");
        }
    }
}
