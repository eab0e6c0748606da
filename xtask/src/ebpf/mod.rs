//! `cargo xtask build-ebpf`: the eBPF object, built reproducibly.

pub(crate) mod check;
mod linker;
mod toolchain;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use self::toolchain::Toolchain;
use crate::cmd;

const TARGET: &str = "bpfel-unknown-none";

/// The object and its digest.
#[derive(Debug)]
pub(crate) struct Object {
    /// Path of the object file.
    pub(crate) path: PathBuf,
    /// SHA-256 of its bytes, hexadecimal.
    pub(crate) sha256: String,
}

/// Builds the object of the workspace `root` into its `target/bpf`.
pub(crate) fn build(root: &Path) -> Result<Object> {
    build_with(toolchain()?, root)
}

/// Builds the agent's object alone, of the workspace `root` of any release.
pub(crate) fn build_agent_object(root: &Path) -> Result<Object> {
    let out = root.join("target/bpf");
    let built = compile(toolchain()?, root, &out.join("build"), &["--bin", PROGRAMS])?;
    install_object(&built, &out, PROGRAMS, PROGRAMS)
}

/// Builds the object whose programs log every decision.
pub(crate) fn build_log(root: &Path) -> Result<Object> {
    let out = root.join("target/bpf");
    let built = compile(
        toolchain()?,
        root,
        &out.join("build-log"),
        &["--bin", PROGRAMS, "--features", "log"],
    )?;
    install_object(&built, &out, PROGRAMS, LOG_PROGRAMS)
}

fn toolchain() -> Result<&'static Toolchain> {
    // Chosen and reported once per process.
    static CHOSEN: OnceLock<Toolchain> = OnceLock::new();
    if let Some(toolchain) = CHOSEN.get() {
        return Ok(toolchain);
    }
    let found = toolchain::find(None)?;
    Ok(CHOSEN.get_or_init(|| found))
}

fn build_with(toolchain: &Toolchain, root: &Path) -> Result<Object> {
    let out = root.join("target/bpf");
    let built = compile(toolchain, root, &out.join("build"), &[])?;
    install_object(&built, &out, BENCH_PROGRAMS, BENCH_PROGRAMS)?;
    install_object(&built, &out, PROGRAMS, PROGRAMS)
}

/// Compiles the crate into a target directory; returns the directory of its binaries.
fn compile(toolchain: &Toolchain, root: &Path, target_dir: &Path, selection: &[&str]) -> Result<PathBuf> {
    let linker = linker::find_or_build()?;
    let arch = env::consts::ARCH;
    // Paths of this machine must not reach the object: same source, same bytes.
    let flags = [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        format!("-Clinker={}", linker.display()),
        "-Clink-arg=--btf".into(),
        // 32-bit registers and jumps, available since kernel 5.1.
        "-Ctarget-cpu=v3".into(),
        format!("--remap-path-prefix={}=/src", root.display()),
        format!("--remap-path-prefix={}=/cargo", cargo_home()?.display()),
    ];
    let mut command = toolchain.cargo();
    command
        .current_dir(root)
        .args(["--locked", "--quiet", "--package", "mc-gateway-ebpf"])
        .args(["--profile", "bpf", "--target", TARGET])
        .args(selection)
        .arg("--target-dir")
        .arg(target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    for inherited in [
        "RUSTUP_TOOLCHAIN",
        "CARGO",
        "RUSTFLAGS",
        "CARGO_BUILD_RUSTFLAGS",
        "CARGO_TARGET_DIR",
    ] {
        command.env_remove(inherited);
    }
    cmd::inherit(&mut command)
        .with_context(|| format!("building mc-gateway-ebpf with {}", toolchain.compiler))?;
    Ok(target_dir.join(TARGET).join("bpf"))
}

/// The benchmark's baseline programs, a binary of the same crate.
const BENCH_PROGRAMS: &str = "bench-baseline";
/// The agent's programs, and the object of the same programs with the feature `log`.
const PROGRAMS: &str = "mc-gateway-ebpf";
const LOG_PROGRAMS: &str = "mc-gateway-ebpf-log";

/// Copies a built object to its final path after checking it for BTF.
fn install_object(built: &Path, out: &Path, binary: &str, name: &str) -> Result<Object> {
    let built = built.join(binary);
    let bytes = fs::read(&built).with_context(|| built.display().to_string())?;
    if !has_btf(&bytes) {
        bail!(
            "{} has no .BTF section: bpf-linker {} ran without --btf or is another version",
            built.display(),
            linker::VERSION
        );
    }
    let path = out.join(format!("{name}.o"));
    // Written only on a change: the agent's build depends on the file's modification time.
    if fs::read(&path).ok().as_deref() != Some(bytes.as_slice()) {
        fs::write(&path, &bytes).with_context(|| path.display().to_string())?;
    }
    let sha256 = hex::encode(Sha256::digest(&bytes));
    Ok(Object { path, sha256 })
}

/// Builds the object and prints its path and digest.
pub(crate) fn build_and_print() -> Result<()> {
    print(&build(&cmd::workspace())?);
    Ok(())
}

/// Builds the object that logs and prints its path and digest.
pub(crate) fn build_log_and_print() -> Result<()> {
    print(&build_log(&cmd::workspace())?);
    Ok(())
}

fn print(object: &Object) {
    println!("{}\nsha256 {}", object.path.display(), object.sha256);
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("CARGO_HOME") {
        return Ok(dir.into());
    }
    Ok(PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cargo"))
}

/// Whether an ELF object has a section `.BTF`. A search of the section names is enough: the loader parses the section.
/// (Section names share suffixes: the name may be the end of `.rel.BTF`.)
fn has_btf(object: &[u8]) -> bool {
    object.windows(5).any(|window| window == b".BTF\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_btf_is_rejected() {
        assert!(has_btf(b"\0.text\0.rel.BTF\0.symtab"));
        assert!(!has_btf(b"\0.text\0.BTF.ext\0"));
    }
}
