//! `cargo xtask build-ebpf`: the BPF object, reproducibly.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::{cmd, setup};

/// Version of bpf-linker, and of the LLVM it is linked with.
const BPF_LINKER: &str = "0.13.0";
const LLVM: u32 = 22;
const TARGET: &str = "bpfel-unknown-none";
/// What building bpf-linker against the distribution's LLVM takes.
const LLVM_PACKAGES: &[&str] = &[
    "llvm-22-dev",
    "libpolly-22-dev",
    "libzstd-dev",
    "zlib1g-dev",
    "gcc",
    "g++",
    "libc6-dev",
];
/// A compiler with a prebuilt `core` for BPF, for machines whose rustup has no nightly with rust-src.
const CORE_PACKAGES: &[&str] = &["rustc-web", "libstd-rust-web-dev-bpf", "cargo-web"];

/// The object and its digest.
#[derive(Debug)]
pub(crate) struct Object {
    /// Where it was written.
    pub(crate) path: PathBuf,
    /// SHA-256 of its bytes, hexadecimal.
    pub(crate) sha256: String,
}

/// A compiler that can produce the object.
enum Toolchain {
    /// rustup's nightly with rust-src: `core` is built along.
    Nightly,
    /// The distribution's compiler with its prebuilt `core`.
    Distribution { rustc: PathBuf, cargo: PathBuf },
}

/// Builds the object; `root` is the workspace to build, its `target/bpf` receives the result.
pub(crate) fn build(root: &Path) -> Result<Object> {
    let toolchain = toolchain()?;
    let linker = bpf_linker()?;
    let out = root.join("target/bpf");
    let mut command = match &toolchain {
        Toolchain::Nightly => {
            let mut command = Command::new("cargo");
            command.args(["+nightly", "build", "-Z", "build-std=core"]);
            command
        }
        Toolchain::Distribution { rustc, cargo } => {
            let mut command = Command::new(cargo);
            command
                .arg("build")
                .env("RUSTC", rustc)
                .env("RUSTC_BOOTSTRAP", "1");
            command
        }
    };
    let arch = env::consts::ARCH;
    let cargo_home = cargo_home()?;
    // Paths of this machine must not reach the object: same source, same bytes.
    let flags = [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        format!("-Clinker={}", linker.display()),
        "-Clink-arg=--btf".into(),
        // 32-bit registers and jumps, which every kernel since 5.1 has.
        "-Ctarget-cpu=v3".into(),
        format!("--remap-path-prefix={}=/src", root.display()),
        format!("--remap-path-prefix={}=/cargo", cargo_home.display()),
    ];
    command
        .current_dir(root)
        .args([
            "--locked",
            "--quiet",
            "--package",
            "mc-gateway-ebpf",
            "--profile",
            "bpf",
            "--target",
            TARGET,
        ])
        .arg("--target-dir")
        .arg(out.join("build"))
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
    cmd::inherit(&mut command).context("building mc-gateway-ebpf")?;
    let built = out.join("build").join(TARGET).join("bpf");
    install_object(&built, &out, "yardstick")?;
    install_object(&built, &out, "mc-gateway-ebpf")
}

/// Copies what was built to where it is looked for, if it is whole.
fn install_object(built: &Path, out: &Path, name: &str) -> Result<Object> {
    let built = built.join(name);
    let bytes = fs::read(&built).with_context(|| built.display().to_string())?;
    if !has_btf(&bytes) {
        bail!(
            "{} has no .BTF section: bpf-linker {BPF_LINKER} was called without --btf or is another version",
            built.display()
        );
    }
    let path = out.join(format!("{name}.o"));
    // Written only when it changed: the agent's build depends on the file's time.
    if fs::read(&path).ok().as_deref() != Some(bytes.as_slice()) {
        fs::write(&path, &bytes).with_context(|| path.display().to_string())?;
    }
    let sha256 = hex(&Sha256::digest(&bytes));
    Ok(Object { path, sha256 })
}

/// Builds, and prints where and what.
pub(crate) fn build_and_print() -> Result<()> {
    let object = build(&cmd::workspace())?;
    println!("{}\nsha256 {}", object.path.display(), object.sha256);
    Ok(())
}

/// Builds the same source in two directories and compares.
pub(crate) fn check_reproducible() -> Result<()> {
    let here = build(&cmd::workspace())?;
    let copy = setup::cache_dir()?.join(format!("reproducible-{}", std::process::id()));
    let result = copy_sources(&copy).and_then(|()| build(&copy));
    let removed = fs::remove_dir_all(&copy);
    let there = result?;
    removed.with_context(|| copy.display().to_string())?;
    if here.sha256 != there.sha256 {
        bail!(
            "the object is not reproducible: sha256 {} here, {} in {}",
            here.sha256,
            there.sha256,
            copy.display()
        );
    }
    println!("reproducible: sha256 {} in two directories", here.sha256);
    Ok(())
}

/// Copies what cargo needs to build the object: manifests, lock file and the two crates.
fn copy_sources(to: &Path) -> Result<()> {
    let root = cmd::workspace();
    let listed = cmd::output(Command::new("git").current_dir(&root).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    for file in listed.lines().filter(|file| {
        Path::new(file)
            .extension()
            .is_some_and(|ext| ext == "rs" || ext == "toml" || ext == "lock")
    }) {
        let (from, to) = (root.join(file), to.join(file));
        if !from.exists() {
            continue;
        }
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        fs::copy(&from, &to).with_context(|| from.display().to_string())?;
    }
    Ok(())
}

fn toolchain() -> Result<Toolchain> {
    if nightly_has_source() {
        return Ok(Toolchain::Nightly);
    }
    let distribution = Toolchain::Distribution {
        rustc: "/usr/bin/rustc".into(),
        cargo: "/usr/bin/cargo".into(),
    };
    if !distribution_has_core() {
        println!(
            "no nightly toolchain with rust-src: using the distribution's compiler with its prebuilt core"
        );
        setup::ensure_packages("building the eBPF programs", CORE_PACKAGES).context(
            "building the eBPF programs needs either `rustup toolchain install nightly --component rust-src` \
             or the distribution's prebuilt core",
        )?;
        if !distribution_has_core() {
            bail!(
                "/usr/bin/rustc has no prebuilt core for {TARGET}: expected it from {}",
                CORE_PACKAGES.join(" ")
            );
        }
    }
    Ok(distribution)
}

fn nightly_has_source() -> bool {
    let sysroot = cmd::output(
        Command::new("rustc")
            .args(["+nightly", "--print", "sysroot"])
            .env_remove("RUSTUP_TOOLCHAIN"),
    );
    sysroot.is_ok_and(|dir| {
        Path::new(dir.trim())
            .join("lib/rustlib/src/rust/library/core/Cargo.toml")
            .exists()
    })
}

fn distribution_has_core() -> bool {
    let sysroot = cmd::output(Command::new("/usr/bin/rustc").args(["--print", "sysroot"]));
    sysroot.is_ok_and(|dir| {
        Path::new(dir.trim())
            .join("lib/rustlib")
            .join(TARGET)
            .join("lib")
            .exists()
    }) && Path::new("/usr/bin/cargo").exists()
}

/// The pinned bpf-linker, built once against the LLVM that belongs to it.
fn bpf_linker() -> Result<PathBuf> {
    let root = setup::cache_dir()?.join(format!("tools/bpf-linker-{BPF_LINKER}-llvm{LLVM}"));
    let program = root.join("bin/bpf-linker");
    if program.exists() {
        return Ok(program);
    }
    setup::ensure_packages("bpf-linker", LLVM_PACKAGES)?;
    println!("building bpf-linker {BPF_LINKER} for LLVM {LLVM} (once, about a minute)");
    let prefix = format!("/usr/lib/llvm-{LLVM}");
    cmd::capture(
        cmd::cargo()
            .args([
                "install",
                "bpf-linker",
                "--locked",
                "--version",
                BPF_LINKER,
                "--no-default-features",
            ])
            .args(["--features", &format!("llvm-{LLVM}"), "--root"])
            .arg(&root)
            .env("LLVM_PREFIX", &prefix)
            // Without this prefix the build takes whichever llvm-config is first in PATH.
            .env(format!("LLVM_SYS_{LLVM}1_PREFIX"), &prefix)
            .env_remove("CARGO_TARGET_DIR"),
    )
    .with_context(|| format!("cargo install bpf-linker {BPF_LINKER} with LLVM in {prefix}"))?;
    Ok(program)
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("CARGO_HOME") {
        return Ok(dir.into());
    }
    Ok(PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cargo"))
}

/// Bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ok = write!(text, "{byte:02x}");
        text
    })
}

/// Whether an ELF object names a `.BTF` section. A search of the section names is enough: the loader
/// parses the section itself. (Section names share suffixes, so `.rel.BTF` may be where it stands.)
fn has_btf(object: &[u8]) -> bool {
    object.windows(5).any(|window| window == b".BTF\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_btf_is_noticed() {
        assert!(has_btf(b"\0.text\0.rel.BTF\0.symtab"));
        assert!(!has_btf(b"\0.text\0.BTF.ext\0"));
    }
}
