//! The file with the private key of this node.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

use super::PeerSecrets;

/// The private key cannot be read or created.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// An error of the file system.
    #[error("--key-file {}: cannot {operation}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation.
        operation: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The content is no key. The content is secret and not part of the error.
    #[error("--key-file {}: the content is not a private key: 32 bytes in base64", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// Users other than the owner can read the file.
    #[error("--key-file {}: mode {mode:o} permits access by others; it must be 600", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Reads the private key from the file; without the file a random key is written to it.
pub fn load_or_create(path: &Path) -> Result<PeerSecrets, KeyFileError> {
    let error = |operation| {
        move |source| KeyFileError::Io {
            path: path.to_owned(),
            operation,
            source,
        }
    };
    match fs::read_to_string(path) {
        Ok(text) => {
            let mode = fs::metadata(path)
                .map_err(error("read the mode"))?
                .permissions()
                .mode()
                & 0o777;
            if mode & 0o077 != 0 {
                return Err(KeyFileError::Open {
                    path: path.to_owned(),
                    mode,
                });
            }
            let bytes = STANDARD.decode(text.trim()).ok();
            let key = bytes.and_then(|bytes| bytes.try_into().ok());
            key.map(PeerSecrets::new).ok_or_else(|| KeyFileError::Malformed {
                path: path.to_owned(),
            })
        }
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            let mut key = [0; 32];
            getrandom::fill(&mut key).map_err(|source| error("read random bytes")(source.into()))?;
            create(path, &key).map_err(error("create the file"))?;
            Ok(PeerSecrets::new(key))
        }
        Err(source) => Err(error("read the file")(source)),
    }
}

/// The content of the file for a private key.
#[must_use]
pub fn private_key_text(key: &[u8; 32]) -> String {
    format!("{}\n", STANDARD.encode(key))
}

/// Writes the key so that the file never has a part of it, also after a crash.
fn create(path: &Path, key: &[u8; 32]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    // A file of an earlier attempt keeps its mode.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(private_key_text(key).as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_is_created_once_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys/private");
        let created = load_or_create(&path).unwrap().public_key();
        assert_eq!(load_or_create(&path).unwrap().public_key(), created);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let other = load_or_create(&dir.path().join("other")).unwrap().public_key();
        assert_ne!(other, created);
    }

    #[test]
    fn a_key_file_that_others_can_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("private");
        load_or_create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = load_or_create(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("mode 640 permits access by others; it must be 600"),
            "{error}"
        );
    }

    #[test]
    fn a_malformed_key_file_is_kept_and_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("private");
        create(&path, &[7; 32]).unwrap();
        fs::write(&path, "c2VjcmV0").unwrap();
        let error = load_or_create(&path).unwrap_err().to_string();
        assert!(
            error.contains("32 bytes in base64") && !error.contains("c2Vj"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "c2VjcmV0");
    }
}
