//! Cleaning up when a person interrupts a program.

use std::thread;

use anyhow::{Context as _, Result};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

/// Exit status of a program that was interrupted, as shells report it (128 + SIGINT).
pub const INTERRUPTED: i32 = 130;

/// On SIGINT or SIGTERM runs `clean_up` and exits with [`INTERRUPTED`].
///
/// The signals are handled, not blocked: children would inherit a blocked signal and never end when
/// asked to.
pub fn on_interrupt(clean_up: impl FnOnce() + Send + 'static) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            eprintln!("\ninterrupted, cleaning up");
            clean_up();
            std::process::exit(INTERRUPTED);
        }
    });
    Ok(())
}
