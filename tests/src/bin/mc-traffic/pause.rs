//! `pause`: the process of a Pod's pause container.

use anyhow::Result;
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
};

pub(crate) fn run() -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block()?;
    while signals.wait()? == Signal::SIGCHLD {
        reap();
    }
    Ok(())
}

/// Reaps every exited child: their signals may be merged.
fn reap() {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                eprintln!("waitpid: {error}");
                return;
            }
        }
    }
}
