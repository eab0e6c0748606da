//! Checks of the eBPF build: the same bytes in two directories, and every way to choose a compiler.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    build, build_with,
    toolchain::{self, FITTING_NIGHTLY},
};
use crate::{cmd, setup};

/// A set of rustup toolchains and whether a nightly of it is expected to be chosen.
struct Case {
    name: &'static str,
    toolchains: &'static [&'static str],
    nightly_fits: bool,
}

const CASES: [Case; 3] = [
    Case {
        name: "no-nightly",
        toolchains: &[],
        nightly_fits: false,
    },
    Case {
        name: "fitting-nightly",
        toolchains: &[FITTING_NIGHTLY],
        nightly_fits: true,
    },
    // LLVM 23, newer than bpf-linker's.
    Case {
        name: "too-new-nightly",
        toolchains: &["nightly-2026-10-30"],
        nightly_fits: false,
    },
];

/// Builds the same source in two directories and compares the digests.
pub(crate) fn reproducible() -> Result<()> {
    let here = build(&cmd::workspace())?;
    let there = in_copy("reproducible", build)?;
    ensure!(
        here.sha256 == there.sha256,
        "the object is not reproducible: sha256 {} here, {} in {}",
        here.sha256,
        there.sha256,
        there.path.display()
    );
    println!("reproducible: sha256 {} in two directories", here.sha256);
    Ok(())
}

/// Builds with no nightly, a fitting one and a too new one. Downloads the nightlies into the cache, apart from the
/// user's toolchains.
pub(crate) fn toolchains() -> Result<()> {
    for case in &CASES {
        let home = setup::cache_dir()?.join("rustup").join(case.name);
        fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
        for name in case.toolchains {
            cmd::capture(
                Command::new("rustup")
                    .env("RUSTUP_HOME", &home)
                    .env_remove("RUSTUP_TOOLCHAIN")
                    .args(["toolchain", "install", name, "--no-self-update"])
                    .args(["--profile", "minimal", "--component", "rust-src"]),
            )?;
        }
        let chosen = toolchain::find(Some(&home))?;
        ensure!(
            chosen.build_std == case.nightly_fits,
            "{}: {} is used",
            case.name,
            chosen.compiler
        );
        let object = in_copy(case.name, |root| build_with(&chosen, root))?;
        println!("{}: {}: sha256 {}", case.name, chosen.compiler, object.sha256);
    }
    Ok(())
}

/// Runs `build` in a copy of the sources, removed afterwards.
fn in_copy<T>(name: &str, build: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let copy: PathBuf = setup::cache_dir()?.join(format!("{name}-{}", std::process::id()));
    let result = copy_sources(&copy).and_then(|()| build(&copy));
    let removed = fs::remove_dir_all(&copy).with_context(|| copy.display().to_string());
    result.and_then(|value| removed.map(|()| value))
}

/// Copies the files cargo needs to build the object: sources, manifests and the lock file.
fn copy_sources(to: &Path) -> Result<()> {
    let root = cmd::workspace();
    for file in cmd::workspace_files()?.iter().filter(|file| {
        Path::new(file)
            .extension()
            .is_some_and(|ext| ext == "rs" || ext == "toml" || ext == "lock")
    }) {
        let (from, to) = (root.join(file), to.join(file));
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        fs::copy(&from, &to).with_context(|| from.display().to_string())?;
    }
    Ok(())
}
