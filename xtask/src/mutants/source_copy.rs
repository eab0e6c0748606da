//! A copy of the sources for seeding bugs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::cmd;

/// The copy, its target directory and the eBPF object of the workspace.
pub(super) struct SourceCopy {
    sources: PathBuf,
    target: PathBuf,
    object: PathBuf,
}

// === impl SourceCopy ===

impl SourceCopy {
    /// Creates or updates the copy below `work`. Its agent embeds the eBPF object at `object`.
    pub(super) fn new(work: &Path, object: PathBuf) -> Result<Self> {
        let tree = Self {
            sources: work.join("sources"),
            target: work.join("target"),
            object,
        };
        tree.sync()?;
        Ok(tree)
    }

    /// Makes the copy equal to the workspace. Equal files are not written, since cargo compares modification times.
    pub(super) fn sync(&self) -> Result<()> {
        let root = cmd::workspace();
        let mut wanted = BTreeSet::new();
        for file in &cmd::workspace_files()? {
            let (from, to) = (root.join(file), self.sources.join(file));
            let text = fs::read(&from).with_context(|| from.display().to_string())?;
            if !fs::read(&to).is_ok_and(|old| old == text) {
                if let Some(dir) = to.parent() {
                    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
                }
                fs::write(&to, text).with_context(|| to.display().to_string())?;
                let mode = fs::metadata(&from)?.permissions();
                fs::set_permissions(&to, mode).with_context(|| to.display().to_string())?;
            }
            wanted.insert(to);
        }
        prune(&self.sources, &wanted)
    }

    /// Applies a patch.
    pub(super) fn apply(&self, patch: &Path) -> Result<()> {
        // Otherwise git treats the copy as a directory of the surrounding repository and applies nothing.
        let above = self.sources.parent().unwrap_or(&self.sources);
        cmd::capture(
            Command::new("git")
                .current_dir(&self.sources)
                .env("GIT_CEILING_DIRECTORIES", above)
                .arg("apply")
                .arg(patch),
        )
    }

    /// Cargo in the copy, ended after so many seconds.
    pub(super) fn cargo(&self, seconds: u64) -> Command {
        let mut command = cmd::cargo_within(seconds);
        command
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("MC_GATEWAY_EBPF_OBJECT", &self.object);
        command
    }
}

/// Removes files that are not in `wanted`.
fn prune(dir: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            prune(&path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
