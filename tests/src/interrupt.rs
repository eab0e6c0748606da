//! Cleaning up when a person interrupts a program.

use std::thread;

use anyhow::Result;
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::SignalFd,
};

/// Exit status of a program that was interrupted, as shells report it (128 + SIGINT).
pub const INTERRUPTED: i32 = 130;

/// On SIGINT or SIGTERM runs `clean_up` and exits with [`INTERRUPTED`].
///
/// Has to be called before any other thread is started: threads inherit the blocked signals, and one
/// that does not would die of them. Children are not affected, the standard library unblocks signals for
/// them.
pub fn on_interrupt(clean_up: impl FnOnce() + Send + 'static) -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let arrivals = SignalFd::new(&signals)?;
    thread::spawn(move || {
        if matches!(arrivals.read_signal(), Ok(Some(_))) {
            eprintln!("\ninterrupted, cleaning up");
            clean_up();
            std::process::exit(INTERRUPTED);
        }
    });
    Ok(())
}
