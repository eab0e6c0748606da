//! An initramfs: a cpio archive in the kernel's "newc" form
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};

use crate::shared_libraries;

const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// Entries by path; a directory sorts before its entries.
#[derive(Debug, Default)]
pub(super) struct CpioArchive {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl CpioArchive {
    /// Adds a directory and those it is in.
    pub(super) fn dir(&mut self, path: &str) {
        for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
            if let Some(dir) = path.get(..at).filter(|dir| !dir.is_empty()) {
                self.entries
                    .entry(dir.to_owned())
                    .or_insert((DIR | 0o755, Vec::new()));
            }
        }
    }

    /// Adds a file.
    pub(super) fn file(&mut self, path: &str, data: Vec<u8>, mode: u32) {
        if let Some((dir, _)) = path.rsplit_once('/') {
            self.dir(dir);
        }
        self.entries.insert(path.to_owned(), (FILE | mode, data));
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, to: &str) {
        self.entries.insert(path.to_owned(), (LINK | 0o777, to.into()));
    }

    /// Adds a program and the libraries it is linked with.
    pub(super) fn program(&mut self, from: &Path, to: &str) -> Result<()> {
        let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
        self.file(to, read(from)?, 0o755);
        for library in shared_libraries::list(from)? {
            let path = library.to_string_lossy().trim_start_matches('/').to_owned();
            if !self.entries.contains_key(&path) {
                self.file(&path, read(&library)?, 0o755);
            }
        }
        Ok(())
    }

    /// The archive's bytes.
    pub(super) fn finish(self) -> Vec<u8> {
        let mut out = Vec::new();
        for (inode, (path, (mode, data))) in (1_usize..).zip(&self.entries) {
            write_entry(&mut out, inode, path, *mode, data);
        }
        write_entry(&mut out, 0, "TRAILER!!!", 0, &[]);
        out
    }
}

fn write_entry(out: &mut Vec<u8>, inode: usize, path: &str, mode: u32, data: &[u8]) {
    let mode = usize::try_from(mode).unwrap_or_default();
    let numbers = [
        inode,
        mode,
        0,
        0,
        1,
        0,
        data.len(),
        0,
        0,
        0,
        0,
        path.len().wrapping_add(1),
        0,
    ];
    out.extend(b"070701");
    for number in numbers {
        out.extend(format!("{number:08x}").bytes());
    }
    out.extend(path.bytes());
    out.push(0);
    align(out);
    out.extend(data);
    align(out);
}

fn align(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_directories_come_first() {
        let mut archive = CpioArchive::default();
        archive.file("a/b/c", b"hello".to_vec(), 0o644);
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let at = |text: &[u8]| {
            bytes
                .windows(text.len())
                .position(|window| window == text)
                .unwrap()
        };
        assert!(at(b"a\0") < at(b"a/b\0") && at(b"a/b\0") < at(b"a/b/c\0"));
        assert!(at(b"a/b/c\0") < at(b"hello") && at(b"hello") < at(b"TRAILER!!!"));
        assert_eq!(at(b"hello") % 4, 0);
    }
}
