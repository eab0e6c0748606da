//! A directory on the BPF file system.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A directory of pins, removed at the end.
pub(crate) struct Pins(PathBuf);

// === impl Pins ===

impl Pins {
    /// A directory for the test `test`.
    pub(crate) fn new(test: &str) -> Self {
        let dir = Path::new("/sys/fs/bpf").join(format!("mc-{test}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory on the BPF file system");
        Self(dir)
    }

    /// Its path.
    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("remove the pins");
    }
}
