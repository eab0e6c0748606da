//! Cleanup on SIGINT and SIGTERM.

use std::thread;

use anyhow::{Context as _, Result};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

/// Exit status of an interrupted program by the shells' convention (128 + SIGINT).
pub const INTERRUPTED: i32 = 130;

/// Runs `clean_up` on SIGINT or SIGTERM and exits with [`INTERRUPTED`].
///
/// The signals are handled, not blocked: children inherit blocked signals and could not be terminated.
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
