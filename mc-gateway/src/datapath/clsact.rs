//! Attachment by filters of a clsact qdisc, for kernels without TCX.
//!
//! *Guarantees*: a filter outlives the agent; it is replaced in place, so that every packet on the device meets a
//! program; filters of other programs are neither moved nor removed. The qdisc itself stays until `cleanup`, because
//! the kernel stops a device for a moment to add or remove one.

use std::fs;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};

use aya::programs::links::Link as _;
use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact,
};
use aya::programs::{ProgramError, SchedClassifier};

use super::error::DatapathError;
use super::pin_dir;
use super::program::{attach_type, program_error};
use crate::config::TcxOrder;
use crate::host::tc_filter::HANDLE;
use crate::plan::Program;

/// Directory below the pin directory with a marker for each qdisc that the agent created.
pub(super) const QDISCS: &str = "qdiscs";

/// Priority of the agent's filters: small numbers run first.
#[must_use]
pub(crate) const fn priority(order: TcxOrder) -> u16 {
    match order {
        TcxOrder::First => 1,
        // After the priorities that the kernel assigns, which are 49152 and less.
        TcxOrder::Last => 60_000,
    }
}

/// Attaches the program, or replaces the attached one in one step.
pub(super) fn attach(
    classifier: &mut SchedClassifier,
    program: Program,
    device: &str,
    order: TcxOrder,
) -> Result<(), DatapathError> {
    let failed = || program_error(program.name(), format!("attach to {device}"));
    let link = existing(program, device, order).map_err(|error| failed()(TcError::IoError(error).into()))?;
    let id = match classifier.attach_to_link(link) {
        Err(error) if errno(&error) == Some(libc::ENOENT) => {
            let options = NlOptions {
                priority: priority(order),
                handle: TcHandle::from(HANDLE),
                classid: None,
            };
            classifier.attach_with_options(device, attach_type(program), TcAttachOptions::Netlink(options))
        }
        result => result,
    };
    let link = classifier.take_link(id.map_err(failed())?).map_err(failed())?;
    // Dropping the link would detach the filter.
    mem::forget(link);
    let other = match order {
        TcxOrder::First => TcxOrder::Last,
        TcxOrder::Last => TcxOrder::First,
    };
    detach_at(program, device, other)
}

/// Removes the agent's filter at either position.
pub(crate) fn detach(program: Program, device: &str) -> Result<(), DatapathError> {
    detach_at(program, device, TcxOrder::First)?;
    detach_at(program, device, TcxOrder::Last)
}

fn detach_at(program: Program, device: &str, order: TcxOrder) -> Result<(), DatapathError> {
    let Ok(link) = existing(program, device, order) else {
        // No device, no filter.
        return Ok(());
    };
    match link.detach() {
        // Filter, qdisc or device are gone.
        Err(error) if matches!(errno(&error), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)) => Ok(()),
        result => result.map_err(program_error(program.name(), format!("detach from {device}"))),
    }
}

fn existing(program: Program, device: &str, order: TcxOrder) -> io::Result<SchedClassifierLink> {
    let handle = TcHandle::from(HANDLE);
    SchedClassifierLink::attached(device, attach_type(program), priority(order), handle, None)
}

/// Error number of a netlink request.
fn errno(error: &ProgramError) -> Option<i32> {
    match error {
        ProgramError::NetlinkError(error) | ProgramError::TcError(TcError::NetlinkError(error)) => {
            error.raw_os_error()
        }
        _ => None,
    }
}

/// Creates the qdisc and its marker, unless the device has one.
pub(super) fn ensure_qdisc(dir: &Path, device: &str, ifindex: u32) -> Result<(), DatapathError> {
    match qdisc_add_clsact(device) {
        Ok(()) => {
            let path = marker(dir, device, ifindex);
            fs::create_dir_all(&path).map_err(|source| DatapathError::Io { path, source })
        }
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        Err(source) => Err(DatapathError::Qdisc {
            device: device.to_owned(),
            source,
        }),
    }
}

/// Indexes of devices with a qdisc of this agent, with their markers.
pub(crate) fn made_qdiscs(dir: &Path) -> Result<Vec<(u32, PathBuf)>, DatapathError> {
    let mut made = Vec::new();
    for entry in pin_dir::entries(&dir.join(QDISCS))? {
        let note = entry.path();
        let index = note
            .file_name()
            .and_then(|name| name.to_str()?.split_once('-')?.0.parse().ok());
        made.extend(index.map(|index| (index, note)));
    }
    made.sort();
    Ok(made)
}

/// A directory as a marker: it outlives the agent on the file system of the pins. The index distinguishes devices of
/// one name.
fn marker(dir: &Path, device: &str, ifindex: u32) -> PathBuf {
    dir.join(QDISCS)
        .join(format!("{ifindex}-{}", pin_dir::escape(device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_qdiscs_are_recorded_by_index() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(made_qdiscs(dir.path()).unwrap(), []);
        let notes = [(3, "eth0.7"), (12, "mc-0")].map(|(index, device)| {
            let note = marker(dir.path(), device, index);
            fs::create_dir_all(&note).unwrap();
            (index, note)
        });
        assert_eq!(made_qdiscs(dir.path()).unwrap(), notes);
    }

    #[test]
    fn the_last_position_follows_the_priorities_of_the_kernel() {
        assert!(priority(TcxOrder::Last) > 49_152);
        assert!(priority(TcxOrder::First) > 0);
    }
}
