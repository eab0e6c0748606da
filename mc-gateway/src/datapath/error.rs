//! Errors of loading, pinning and attaching.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::EbpfError;
use aya::pin::PinError;
use aya::programs::ProgramError;
use aya::programs::links::LinkError;
use aya::programs::tc::TcError;
use thiserror::Error;

use super::pins::PinMismatch;
use super::version::ObjectError;

/// A failure of the data path.
#[derive(Debug, Error)]
pub enum DatapathError {
    /// Pins of another program or another version.
    #[error(transparent)]
    Foreign(#[from] PinMismatch),
    /// The object has another layout version.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The object cannot be loaded.
    #[error("load the eBPF object")]
    Load(#[source] EbpfError),
    /// The object has no such classifier.
    #[error("program {0}: not in the eBPF object")]
    NoProgram(&'static str),
    /// The object has no such map.
    #[error("map {0}: not in the eBPF object")]
    NoMap(&'static str),
    /// The entries of a flow table cannot be copied.
    #[error("map {name}: copy the flows")]
    FlowTable {
        /// Name of the map.
        name: &'static str,
        /// The kernel's error.
        source: aya::maps::MapError,
    },
    /// A map cannot be read or written.
    #[error("map {name}")]
    Map {
        /// Name of the map.
        name: &'static str,
        /// The kernel's error.
        source: aya::maps::MapError,
    },
    /// The kernel rejected a device of the XDP program.
    #[error("device {ifindex}: allow the XDP program to send from it")]
    TransitDevice {
        /// Index of the device.
        ifindex: u32,
        /// The kernel's error.
        source: aya::maps::xdp::XdpMapError,
    },
    /// The kernel rejected a program.
    #[error("program {name}: {operation}")]
    Program {
        /// Name of the program.
        name: &'static str,
        /// The failed operation.
        operation: String,
        /// The cause.
        source: ProgramError,
    },
    /// The kernel rejected a link.
    #[error("link {}: {operation}", .path.display())]
    Link {
        /// The pin.
        path: PathBuf,
        /// The failed operation.
        operation: &'static str,
        /// The cause.
        source: LinkError,
    },
    /// The kernel rejected a qdisc.
    #[error("clsact qdisc of {device}")]
    Qdisc {
        /// The device.
        device: String,
        /// The cause.
        source: TcError,
    },
    /// A pin cannot be created.
    #[error("pin {}", .path.display())]
    Pin {
        /// The pin.
        path: PathBuf,
        /// The cause.
        source: PinError,
    },
    /// A file operation failed.
    #[error("{}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Removes a pin; a missing one is a success.
pub(super) fn remove_pin(path: &Path) -> Result<(), DatapathError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(DatapathError::Io {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}
