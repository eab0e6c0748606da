//! Directories of pins: their entries, and names of devices in them.

use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;

use super::error::DatapathError;

/// The entries of a directory; none if it is missing.
pub(super) fn entries(path: &Path) -> Result<Vec<DirEntry>, DatapathError> {
    let listed = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result.and_then(Iterator::collect),
    };
    listed.map_err(|source| DatapathError::Io {
        path: path.to_owned(),
        source,
    })
}

/// A device's name in the name of a pin. A bpffs rejects `.`, a device name may contain it; `%` is the reverse.
pub(super) fn escape(device: &str) -> String {
    device.replace('.', "%2e")
}

/// The device whose name [`escape`] returned.
pub(super) fn unescape(name: &str) -> String {
    name.replace("%2e", ".")
}
