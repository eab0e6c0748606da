//! The programs of Kubernetes, etcd and CoreDNS: installed ones of the right version, else built once from the Go
//! modules in `xtask/binaries` and cached by version.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::go_toolchain;
use crate::{cmd, setup, wait::Progress};

/// Programs built together from one module.
#[derive(Debug)]
struct GoModule {
    /// Directory below `xtask/binaries`.
    name: &'static str,
    version: &'static str,
    programs: &'static [Program],
    /// Linker flags that set the programs' version.
    ldflags: &'static str,
    build_time: &'static str,
}

#[derive(Debug)]
struct Program {
    name: &'static str,
    package: &'static str,
}

/// The same versions as in the modules' `go.mod`; a test compares them.
const MODULES: &[GoModule] = &[
    GoModule {
        name: "kubernetes",
        version: "v1.34.4",
        programs: &[
            kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            kubernetes(
                "kube-controller-manager",
                "k8s.io/kubernetes/cmd/kube-controller-manager",
            ),
            kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
            kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        ],
        ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.4 \
                  -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34",
        build_time: "about 4 minutes on 2 cores",
    },
    GoModule {
        name: "etcd",
        version: "v3.6.7",
        programs: &[
            Program {
                name: "etcd",
                package: "go.etcd.io/etcd/server/v3",
            },
            Program {
                name: "etcdctl",
                package: "go.etcd.io/etcd/etcdctl/v3",
            },
            Program {
                name: "etcdutl",
                package: "go.etcd.io/etcd/etcdutl/v3",
            },
        ],
        ldflags: "-s -w",
        build_time: "about half a minute",
    },
    GoModule {
        name: "coredns",
        version: "v1.15.0",
        programs: &[Program {
            name: "coredns",
            package: "mc-gateway.io/xtask/binaries/coredns",
        }],
        ldflags: "-s -w",
        build_time: "about 2 to 3 minutes on 2 cores",
    },
];

const fn kubernetes(name: &'static str, package: &'static str) -> Program {
    Program { name, package }
}

/// Paths of the programs.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    paths: BTreeMap<&'static str, PathBuf>,
}

// === impl Binaries ===

impl Binaries {
    /// Finds all programs; builds missing ones.
    pub(crate) fn find_or_build(progress: Progress) -> Result<Self> {
        let mut paths = BTreeMap::new();
        for module in MODULES {
            let cache = module.cache()?;
            let found: Vec<_> = module
                .programs
                .iter()
                .map(|program| (program, module.find(program, &cache)))
                .collect();
            if found.iter().any(|(_, path)| path.is_none()) {
                module.build(&cache, progress)?;
            }
            for (program, path) in found {
                paths.insert(program.name, path.unwrap_or_else(|| cache.join(program.name)));
            }
        }
        Ok(Self { paths })
    }

    /// The path of a program.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        self.paths
            .get(name)
            .cloned()
            .with_context(|| format!("no program `{name}` in the clusters"))
    }

    /// Every program.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.paths.iter().map(|(name, path)| (*name, path.as_path()))
    }
}

/// kubectl: the built one, else any in `PATH`.
pub(crate) fn kubectl() -> Result<PathBuf> {
    let module = MODULES
        .iter()
        .find(|module| module.name == "kubernetes")
        .context("no module kubernetes")?;
    let built = module.cache()?.join("kubectl");
    if built.exists() {
        return Ok(built);
    }
    setup::find_program("kubectl").context("no kubectl: run `cargo xtask cluster up` first")
}

// === impl Module ===

impl GoModule {
    fn cache(&self) -> Result<PathBuf> {
        Ok(setup::cache_dir()?
            .join("bin")
            .join(format!("{}-{}", self.name, self.version)))
    }

    /// An existing program: from `KUBEBUILDER_ASSETS`, then one of the same version in `PATH`, then the built one.
    fn find(&self, program: &Program, cache: &Path) -> Option<PathBuf> {
        let chosen = env::var_os("KUBEBUILDER_ASSETS").map(|dir| PathBuf::from(dir).join(program.name));
        chosen
            .filter(|path| path.is_file())
            .or_else(|| setup::find_program(program.name).filter(|path| self.has_our_version(path)))
            .or_else(|| Some(cache.join(program.name)).filter(|path| path.is_file()))
    }

    fn has_our_version(&self, program: &Path) -> bool {
        let client = program.ends_with("kubectl");
        let argument = if client || program.ends_with("etcdctl") || program.ends_with("etcdutl") {
            "version"
        } else {
            "--version"
        };
        // Without `--client` kubectl requests the server's version, too.
        let mut command = Command::new(program);
        command.arg(argument).args(client.then_some("--client"));
        cmd::output(&mut command).is_ok_and(|text| contains_version(&text, self.version))
    }

    /// Builds every program into the cache.
    fn build(&self, cache: &Path, progress: Progress) -> Result<()> {
        let source = cmd::workspace().join("xtask/binaries").join(self.name);
        progress.report(format_args!(
            "building {} {} ({}, once)",
            self.name, self.version, self.build_time
        ));
        let new = cache.with_file_name(format!(
            "{}-{}.new-{}",
            self.name,
            self.version,
            std::process::id()
        ));
        fs::create_dir_all(&new).with_context(|| new.display().to_string())?;
        let mut command = go_toolchain::command()?;
        command.current_dir(&source).env("CGO_ENABLED", "0");
        command.args([
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            "-ldflags",
            self.ldflags,
        ]);
        command
            .arg("-o")
            .arg(&new)
            .args(self.programs.iter().map(|program| program.package));
        let built = cmd::capture(&mut command)
            .with_context(|| format!("building {} in {}", self.name, source.display()))
            .and_then(|()| self.check(&new));
        if let Err(error) = built {
            // Hundreds of megabytes.
            drop(fs::remove_dir_all(&new));
            return Err(error);
        }
        if cache.exists() {
            fs::remove_dir_all(cache).with_context(|| cache.display().to_string())?;
        }
        fs::rename(&new, cache).with_context(|| cache.display().to_string())?;
        progress.report(format_args!("built {} {}", self.name, self.version));
        Ok(())
    }

    /// Checks that every program was built, under its own name.
    fn check(&self, directory: &Path) -> Result<()> {
        for program in self.programs {
            // `go build` names a program after the last element of its package path, or the one before `v3`.
            let (built, other) = (directory.join(program.name), directory.join("server"));
            if !built.exists() && other.exists() {
                fs::rename(&other, &built).with_context(|| built.display().to_string())?;
            }
            if !built.exists() {
                bail!("go build of {} left no {}", program.package, built.display());
            }
        }
        Ok(())
    }
}

/// Whether the text has the version as a word: `Kubernetes v1.34.4`, `etcd Version: 3.6.7`, `CoreDNS-1.15.0`.
fn contains_version(text: &str, version: &str) -> bool {
    let bare = version.trim_start_matches('v');
    text.split_whitespace()
        .any(|word| word.trim_start_matches("CoreDNS-").trim_start_matches('v') == bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_pin_the_versions_we_name() {
        for module in MODULES {
            let path = cmd::workspace()
                .join("xtask/binaries")
                .join(module.name)
                .join("go.mod");
            let text = fs::read_to_string(&path).unwrap();
            let direct: Vec<_> = text
                .lines()
                .map(str::trim)
                .filter(|line| line.ends_with(&format!(" {}", module.version)))
                .map(|line| {
                    line.trim_start_matches("require ")
                        .trim_end_matches(module.version)
                })
                .collect();
            for program in module.programs {
                let required = direct.iter().any(|path| program.package.starts_with(path.trim()));
                let ours = program.package.starts_with("mc-gateway.io/");
                assert!(required || (ours && !direct.is_empty()), "{}", path.display());
            }
        }
    }

    #[test]
    fn versions_are_compared_as_words() {
        assert!(contains_version("Kubernetes v1.34.4\n", "v1.34.4"));
        assert!(contains_version("etcd Version: 3.6.7\nGit SHA: abc\n", "v3.6.7"));
        assert!(contains_version(
            "CoreDNS-1.15.0\nlinux/amd64, go1.26.8, \n",
            "v1.15.0"
        ));
        assert!(!contains_version("Kubernetes v1.34.41\n", "v1.34.4"));
    }
}
