//! Log records of the programs (`--program-log`), forwarded to `tracing` (target `programs`).
//!
//! Only the object of `cargo xtask build-ebpf --log` writes records, one for each packet. It is a file of its own: the
//! embedded object has no code for them.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use mc_gateway_common::verdict::{DropReason, Outcome};
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{info, warn};

use crate::plan::Program;

/// A failure to read the records.
#[derive(Debug, Error)]
pub enum ProgramLogError {
    /// The object has no usable ring of records.
    #[error("the eBPF object writes no log; use the object of `cargo xtask build-ebpf --log`")]
    NoLog(#[source] aya_log::Error),
    /// The ring cannot be polled.
    #[error("poll the program log")]
    Poll(#[source] io::Error),
}

/// Decision of a program on one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Name of the program.
    pub program: &'static str,
    /// Kind of verdict.
    pub verdict: &'static str,
    /// Drop reason or outcome; empty for a foreign packet.
    pub reason: &'static str,
    /// Destination of the outermost header after the decision.
    pub destination: IpAddr,
}

/// A logger that passes the text of each record to a function.
pub struct Sink<F>(F);

impl<F: Fn(&str) + Send + Sync> Log for Sink<F> {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        (self.0)(&record.args().to_string());
    }

    fn flush(&self) {}
}

/// Takes the ring of records out of a loaded object; `flush` passes the text of each record to `sink`.
pub fn open<F: Fn(&str) + Send + Sync>(
    ebpf: &mut Ebpf,
    sink: F,
) -> Result<EbpfLogger<Sink<F>>, ProgramLogError> {
    EbpfLogger::init_with_logger(ebpf, Sink(sink)).map_err(ProgramLogError::NoLog)
}

/// Forwards the records in a background task.
pub fn start(ebpf: &mut Ebpf) -> Result<(), ProgramLogError> {
    let logger = open(ebpf, forward)?;
    // SAFETY: the logger owns its descriptor, keeps it and is dropped with the registration.
    let mut logger = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }
        .map_err(|error| ProgramLogError::Poll(error.into()))?;
    tokio::spawn(async move {
        loop {
            match logger.readable_mut().await {
                Ok(mut ready) => {
                    ready.get_inner_mut().flush();
                    ready.clear_ready();
                }
                Err(error) => {
                    warn!(%error, "program log stopped");
                    return;
                }
            }
        }
    });
    Ok(())
}

fn forward(text: &str) {
    let Some(decision) = Decision::parse(text) else {
        info!(target: "programs", "{text}");
        return;
    };
    let Decision {
        program,
        verdict,
        reason,
        destination,
    } = decision;
    info!(target: "programs", program, verdict, reason, %destination, "decision");
}

impl Decision {
    /// Parses the text of a record, whose verdicts and reasons are numbers.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix('=');
        let program = Program::of_sample(field("program")?.parse().ok()?)?.name();
        let kind: u32 = field("verdict")?.parse().ok()?;
        let number: u32 = field("number")?.parse().ok()?;
        let destination: Ipv6Addr = field("destination")?.parse().ok()?;
        let verdict = match kind {
            0 => "pass",
            1 => "drop",
            2 => "send",
            3 => "deliver",
            4 => "consume",
            5 => "kernel-decap",
            _ => return None,
        };
        let reason = match kind {
            0 => "",
            1 => DropReason::ALL
                .into_iter()
                .find(|reason| *reason as u32 == number)?
                .name(),
            _ => Outcome::ALL
                .into_iter()
                .find(|outcome| *outcome as u32 == number)?
                .name(),
        };
        Some(Self {
            program,
            verdict,
            reason,
            destination: destination.to_canonical(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_names() {
        let number = DropReason::NoRoute as u32;
        let text = format!("program=1 verdict=1 number={number} destination=::ffff:10.9.0.1");
        let expected = Decision {
            program: "to_remote",
            verdict: "drop",
            reason: "no-route",
            destination: [10, 9, 0, 1].into(),
        };
        assert_eq!(Decision::parse(&text), Some(expected));
    }

    #[test]
    fn other_texts_are_no_decisions() {
        for text in [
            "",
            "program=1",
            "program=9 verdict=1 number=4 destination=::",
            "program=1 verdict=1 number=999 destination=::",
        ] {
            assert_eq!(Decision::parse(text), None, "{text}");
        }
    }
}
