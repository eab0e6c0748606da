//! A Go toolchain new enough to build the clusters' programs: an installed one, the distribution's, or one that an
//! older Go downloads as a module.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{cmd, setup};

/// Highest version in the modules' `go` lines; a test compares them.
const REQUIRED: Version = Version(1, 26);
/// First version that downloads newer toolchains itself.
const FIRST_SELF_UPDATING: Version = Version(1, 21);
/// The toolchain that an older Go downloads.
const TOOLCHAIN: &str = "go1.26.8";
/// Path of installations from go.dev.
const DEFAULT_PATH: &str = "/usr/local/go/bin/go";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32);

/// A `go` command that can build the modules.
pub(crate) fn command() -> Result<Command> {
    if find().is_none() {
        setup::ensure_packages(
            "building Kubernetes, etcd and CoreDNS",
            &["golang-go", "ca-certificates"],
        )
        .context("Go is missing: install it, or name built programs in KUBEBUILDER_ASSETS")?;
    }
    let program = find().context("golang-go is installed, but there is no `go` in PATH")?;
    let version = version(&program)?;
    let mut command = Command::new(&program);
    if version < FIRST_SELF_UPDATING {
        command = Command::new(download_toolchain(&program)?);
        command.env("GOTOOLCHAIN", "local");
    } else if version < REQUIRED {
        command.env("GOTOOLCHAIN", "auto");
    }
    Ok(command)
}

fn find() -> Option<PathBuf> {
    setup::find_program("go").or_else(|| Some(PathBuf::from(DEFAULT_PATH)).filter(|path| path.is_file()))
}

fn version(program: &Path) -> Result<Version> {
    let mut command = Command::new(program);
    // Its own version, not that of a toolchain required by a go.mod.
    let text = cmd::output(
        command
            .arg("version")
            .env("GOTOOLCHAIN", "local")
            .current_dir("/"),
    )?;
    parse_version(&text).with_context(|| format!("`{} version` printed `{}`", program.display(), text.trim()))
}

/// Reads `go version go1.26.8 linux/amd64`.
fn parse_version(text: &str) -> Option<Version> {
    let word = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("go1."))?;
    let minor: String = word.chars().take_while(char::is_ascii_digit).collect();
    Some(Version(1, minor.parse().ok()?))
}

/// Downloads a toolchain with a Go that cannot do so itself. Toolchains are modules since 1.21, and any Go downloads
/// modules, but without the executable bits of their programs.
fn download_toolchain(old: &Path) -> Result<PathBuf> {
    let (system, arch) = (
        "linux",
        if cfg!(target_arch = "aarch64") {
            "arm64"
        } else {
            "amd64"
        },
    );
    let cache = setup::cache_dir()?;
    let module = format!("golang.org/toolchain@v0.0.1-{TOOLCHAIN}.{system}-{arch}");
    let modules = cache.join("go-toolchain");
    let root = modules.join(&module);
    let program = root.join("bin/go");
    if is_executable(&program) {
        return Ok(program);
    }
    println!(
        "fetching {TOOLCHAIN}: {} is too old to build Kubernetes",
        old.display()
    );
    let mut command = Command::new(old);
    command
        .args(["mod", "download", "-modcacherw", &module])
        .env("GOMODCACHE", &modules);
    // The user's flags are for building.
    command.env("GOFLAGS", "").current_dir("/");
    cmd::capture(&mut command).with_context(|| format!("downloading {module}"))?;
    for directory in ["bin", &format!("pkg/tool/{system}_{arch}")] {
        let directory = root.join(directory);
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let path = entry?.path();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .with_context(|| path.display().to_string())?;
        }
    }
    Ok(program)
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_module_requires_a_newer_toolchain() {
        let modules = fs::read_dir(cmd::workspace().join("xtask/binaries")).unwrap();
        let required = modules.map(|module| {
            let text = fs::read_to_string(module.unwrap().path().join("go.mod")).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("go ")).unwrap();
            parse_version(&format!("go{line}")).unwrap()
        });
        assert_eq!(required.max(), Some(REQUIRED));
        assert_eq!(parse_version(TOOLCHAIN), Some(REQUIRED));
    }

    #[test]
    fn versions_compare_by_number() {
        let of = |text| parse_version(text).unwrap();
        assert_eq!(of("go version go1.26.8 linux/amd64"), Version(1, 26));
        assert_eq!(of("go version go1.24rc1 linux/arm64"), Version(1, 24));
        assert!(of("go version go1.9 linux/amd64") < of("go version go1.19.8 linux/amd64"));
        assert_eq!(parse_version("gccgo 12"), None);
    }
}
