//! Opening pinned maps, and the error of every access to them.

use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData, MapError};
use rustix::io::Errno;
use thiserror::Error;

/// A failed access to a pinned map.
#[derive(Debug, Error)]
pub enum MapsError {
    /// A pinned map cannot be opened.
    #[error("map {path}: open")]
    Open {
        /// The pin.
        path: PathBuf,
        /// The kernel's error.
        source: MapError,
    },
    /// The kernel rejected an operation.
    #[error("map {map}: {operation}")]
    Access {
        /// Name of the map.
        map: &'static str,
        /// The rejected operation.
        operation: &'static str,
        /// The kernel's error.
        source: MapError,
    },
}

/// Opens the map `name` pinned in `dir`.
pub(crate) fn open<M: TryFrom<Map, Error = MapError>>(dir: &Path, name: &str) -> Result<M, MapsError> {
    let path = dir.join(name);
    MapData::from_pin(&path)
        .and_then(Map::from_map_data)
        .and_then(M::try_from)
        .map_err(|source| MapsError::Open { path, source })
}

/// Adds the name of the map and of the operation to an error.
pub(crate) fn map_error(map: &'static str, operation: &'static str) -> impl Fn(MapError) -> MapsError {
    move |source| MapsError::Access {
        map,
        operation,
        source,
    }
}

/// Treats the removal of a missing key as a success.
pub(super) fn ignore_missing(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) =>
        {
            Ok(())
        }
        other => other,
    }
}
