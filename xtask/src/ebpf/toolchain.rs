//! Choice of the compiler for the eBPF programs: a rustup nightly with rust-src, or the distribution's compiler.
//!
//! bpf-linker reads the bitcode that rustc writes. LLVM reads bitcode of its own and of older versions; bitcode of a
//! newer LLVM fails late and obscurely ("Invalid record"). So the LLVM versions are compared first.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{TARGET, linker};
use crate::{cmd, setup};

/// A compiler with a prebuilt `core` for BPF, used where no nightly fits.
const DISTRIBUTION_PACKAGES: &[&str] = &["rustc-web", "libstd-rust-web-dev-bpf", "cargo-web"];
const DISTRIBUTION_RUSTC: &str = "/usr/bin/rustc";
const DISTRIBUTION_CARGO: &str = "/usr/bin/cargo";
/// A nightly with LLVM 22, the one the project is tested with.
pub(super) const FITTING_NIGHTLY: &str = "nightly-2026-05-20";

/// The first two numbers of a rustc release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release(u32, u32);

/// A compiler found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Compiler {
    /// rustup's name of the toolchain, or the path of the distribution's rustc.
    pub(super) name: String,
    rustc: PathBuf,
    cargo: PathBuf,
    release: Release,
    /// Major version of its LLVM.
    llvm: u32,
    /// Source of `core` (nightly) or prebuilt `core` for BPF (distribution).
    has_core: bool,
}

/// Limits for a compiler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requirements {
    /// Oldest rustc that compiles the workspace.
    release: Release,
    /// Newest LLVM whose bitcode bpf-linker reads.
    llvm: u32,
}

/// Every compiler that may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Installed {
    /// rustup nightlies, newest first.
    pub(super) nightlies: Vec<Compiler>,
    pub(super) distribution: Option<Compiler>,
}

/// Reason for rejecting a compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    NoCore,
    OldRelease,
    NewLlvm,
}

/// The chosen compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Toolchain {
    pub(super) compiler: Compiler,
    /// Whether `core` is built from source.
    pub(super) build_std: bool,
}

// === impl Toolchain ===

impl Toolchain {
    /// A cargo command with this compiler, without arguments.
    pub(super) fn cargo(&self) -> Command {
        let mut command = Command::new(&self.compiler.cargo);
        command.arg("build").env("RUSTC", &self.compiler.rustc);
        if self.build_std {
            command.args(["-Z", "build-std=core"]);
        } else {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }
}

// === impl Requirements ===

impl Requirements {
    /// The limits set by the workspace and the pinned bpf-linker.
    pub(super) fn of_project() -> Result<Self> {
        let text = env!("CARGO_PKG_RUST_VERSION");
        Ok(Self {
            release: parse_release(text).with_context(|| format!("rust-version {text:?}"))?,
            llvm: linker::LLVM,
        })
    }

    fn check(self, compiler: &Compiler) -> Result<(), Unfit> {
        if compiler.llvm > self.llvm {
            return Err(Unfit::NewLlvm);
        }
        if compiler.release < self.release {
            return Err(Unfit::OldRelease);
        }
        if compiler.has_core {
            Ok(())
        } else {
            Err(Unfit::NoCore)
        }
    }
}

/// Selects the newest nightly within the limits, else the distribution's compiler; `None` if neither fits.
pub(super) fn select(installed: &Installed, requirements: Requirements) -> Option<Toolchain> {
    let fits = |compiler: &&Compiler| requirements.check(compiler).is_ok();
    let nightly = installed.nightlies.iter().find(fits);
    let distribution = installed.distribution.as_ref().filter(fits);
    let (compiler, build_std) = nightly
        .map(|compiler| (compiler, true))
        .or(distribution.map(|compiler| (compiler, false)))?;
    Some(Toolchain {
        compiler: compiler.clone(),
        build_std,
    })
}

/// One line on the rejected compilers and the limits; `None` if nothing was rejected.
pub(super) fn rejections(installed: &Installed, requirements: Requirements) -> Option<String> {
    let reasons: Vec<_> = installed
        .nightlies
        .iter()
        .chain(&installed.distribution)
        .filter_map(|compiler| {
            let reason = requirements.check(compiler).err()?;
            Some(match reason {
                Unfit::NewLlvm | Unfit::OldRelease => compiler.to_string(),
                Unfit::NoCore if installed.distribution.as_ref() == Some(compiler) => {
                    format!("{compiler} without core for {TARGET}")
                }
                Unfit::NoCore => format!("{compiler} without rust-src"),
            })
        })
        .collect();
    (!reasons.is_empty()).then(|| format!("found {}; {requirements} needed", reasons.join(", ")))
}

/// Finds the compiler to use, installing the distribution's where nothing fits; prints one line if it is a fallback.
pub(super) fn find(rustup_home: Option<&Path>) -> Result<Toolchain> {
    let requirements = Requirements::of_project()?;
    let installed = discover(rustup_home);
    let rejected = rejections(&installed, requirements);
    if let Some(toolchain) = select(&installed, requirements) {
        if let Some(rejected) = rejected.filter(|_| !toolchain.build_std) {
            println!("eBPF compiler: {rejected}; using {}", toolchain.compiler);
        }
        return Ok(toolchain);
    }
    let advice = format!(
        "no compiler for the eBPF programs: {}; \
         run `rustup toolchain install {FITTING_NIGHTLY} --profile minimal --component rust-src`",
        rejected.unwrap_or_else(|| format!("{requirements} needed"))
    );
    setup::ensure_packages("building the eBPF programs", DISTRIBUTION_PACKAGES)
        .with_context(|| advice.clone())?;
    let installed = discover(rustup_home);
    match select(&installed, requirements) {
        Some(toolchain) => {
            println!(
                "eBPF compiler: {requirements} needed; using {}",
                toolchain.compiler
            );
            Ok(toolchain)
        }
        None => bail!(advice),
    }
}

/// Lists the compilers of this machine. No network: rustup must not install a toolchain that is absent.
fn discover(rustup_home: Option<&Path>) -> Installed {
    let rustup = |args: &[&str]| {
        let mut command = Command::new("rustup");
        command
            .args(args)
            .env("RUSTUP_AUTO_INSTALL", "0")
            .env_remove("RUSTUP_TOOLCHAIN");
        command.envs(rustup_home.map(|home| ("RUSTUP_HOME", home)));
        cmd::output(&mut command)
    };
    let names = rustup(&["toolchain", "list"]).unwrap_or_default();
    let mut nightlies: Vec<_> = names
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with("nightly"))
        .filter_map(|name| {
            let program = |program: &str| {
                let path = rustup(&["which", "--toolchain", name, program]).ok()?;
                Some(PathBuf::from(path.trim()))
            };
            inspect(
                name,
                program("rustc")?,
                program("cargo")?,
                "src/rust/library/core/Cargo.toml",
            )
        })
        .collect();
    nightlies.sort_by(|a, b| (b.release, &b.name).cmp(&(a.release, &a.name)));
    let distribution = Path::new(DISTRIBUTION_CARGO).exists().then(|| {
        let core = format!("{TARGET}/lib");
        inspect(
            DISTRIBUTION_RUSTC,
            DISTRIBUTION_RUSTC.into(),
            DISTRIBUTION_CARGO.into(),
            &core,
        )
    });
    Installed {
        nightlies,
        distribution: distribution.flatten(),
    }
}

/// Version and parts of a compiler; `core` is a path below its `lib/rustlib`.
fn inspect(name: &str, rustc: PathBuf, cargo: PathBuf, core: &str) -> Option<Compiler> {
    let run = |args: &[&str]| cmd::output(Command::new(&rustc).args(args)).ok();
    let (release, llvm) = parse_version(&run(&["-vV"])?)?;
    let sysroot = run(&["--print", "sysroot"])?;
    let has_core = Path::new(sysroot.trim()).join("lib/rustlib").join(core).exists();
    Some(Compiler {
        name: name.to_owned(),
        rustc,
        cargo,
        release,
        llvm,
        has_core,
    })
}

/// Release and LLVM major version in the output of `rustc -vV`.
fn parse_version(text: &str) -> Option<(Release, u32)> {
    let field = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key))
            .map(str::trim)
    };
    let llvm = field("LLVM version:")?.split('.').next()?.parse().ok()?;
    Some((parse_release(field("release:")?)?, llvm))
}

fn parse_release(text: &str) -> Option<Release> {
    let mut numbers = text.split('.');
    Some(Release(
        numbers.next()?.parse().ok()?,
        numbers.next()?.parse().ok()?,
    ))
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rustc {}, LLVM {})", self.name, self.release, self.llvm)
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rustc {} or newer with LLVM {} or older",
            self.release, self.llvm
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIREMENTS: Requirements = Requirements {
        release: Release(1, 95),
        llvm: 22,
    };

    fn compiler(name: &str, minor: u32, llvm: u32) -> Compiler {
        Compiler {
            name: name.to_owned(),
            rustc: "rustc".into(),
            cargo: "cargo".into(),
            release: Release(1, minor),
            llvm,
            has_core: true,
        }
    }

    fn without_core(compiler: Compiler) -> Compiler {
        Compiler {
            has_core: false,
            ..compiler
        }
    }

    fn selected(nightlies: &[Compiler], distribution: Option<Compiler>) -> (Option<String>, Option<String>) {
        let installed = Installed {
            nightlies: nightlies.to_vec(),
            distribution,
        };
        let name = select(&installed, REQUIREMENTS).map(|toolchain| toolchain.compiler.name);
        (name, rejections(&installed, REQUIREMENTS))
    }

    #[test]
    fn a_fitting_nightly_precedes_the_distribution() {
        let (name, rejected) = selected(
            &[compiler("nightly", 97, 22)],
            Some(compiler("/usr/bin/rustc", 96, 22)),
        );
        assert_eq!((name.as_deref(), rejected), (Some("nightly"), None));
    }

    #[test]
    fn a_nightly_with_a_newer_llvm_falls_back_to_the_distribution() {
        let (name, rejected) = selected(
            &[compiler("nightly", 101, 23)],
            Some(compiler("/usr/bin/rustc", 96, 22)),
        );
        assert_eq!(name.as_deref(), Some("/usr/bin/rustc"));
        assert_eq!(
            rejected.as_deref(),
            Some("found nightly (rustc 1.101, LLVM 23); rustc 1.95 or newer with LLVM 22 or older needed")
        );
    }

    #[test]
    fn an_older_nightly_is_used_where_the_newest_does_not_fit() {
        let nightlies = [
            compiler("nightly", 101, 23),
            without_core(compiler("nightly-b", 98, 22)),
            compiler("nightly-a", 97, 22),
        ];
        assert_eq!(selected(&nightlies, None).0.as_deref(), Some("nightly-a"));
    }

    #[test]
    fn an_old_release_and_missing_core_are_rejected() {
        let nightlies = [
            without_core(compiler("nightly", 97, 22)),
            compiler("nightly-old", 90, 20),
        ];
        let distribution = without_core(compiler("/usr/bin/rustc", 96, 22));
        let (name, rejected) = selected(&nightlies, Some(distribution));
        assert_eq!(name, None);
        let rejected = rejected.unwrap();
        for part in [
            "nightly (rustc 1.97, LLVM 22) without rust-src",
            "nightly-old (rustc 1.90, LLVM 20),",
            "/usr/bin/rustc (rustc 1.96, LLVM 22) without core for bpfel-unknown-none;",
        ] {
            assert!(rejected.contains(part), "{rejected}");
        }
        assert_eq!(selected(&[], None), (None, None));
    }

    #[test]
    fn versions_are_parsed_from_the_output_of_rustc() {
        let text = "rustc 1.101.0-nightly (92b5b8c87 2026-10-29)\nbinary: rustc\nrelease: 1.101.0-nightly\nLLVM version: 23.1.4\n";
        assert_eq!(parse_version(text), Some((Release(1, 101), 23)));
        assert_eq!(parse_version("rustc 1.0\n"), None);
        assert!(Requirements::of_project().unwrap().release >= Release(1, 95));
    }
}
