//! `pause`: what a Pod's first container does.

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

/// Collects every child that has ended: signals of several may arrive as one.
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
