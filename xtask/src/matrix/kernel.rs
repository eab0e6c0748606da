//! Kernels of the distribution: which there are, their images and modules.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{cmd, setup};

/// The first two numbers of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Series(pub(super) u32, pub(super) u32);

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A kernel package of the distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) series: Series,
    /// Name of the distribution's package.
    pub(super) package: String,
}

/// Image and modules of an unpacked kernel.
#[derive(Debug)]
pub(super) struct KernelFiles {
    pub(super) image: PathBuf,
    modules: PathBuf,
}

/// A module, uncompressed.
pub(super) struct KernelModule {
    pub(super) name: String,
    pub(super) data: Vec<u8>,
}

/// Series of the running kernel.
pub(super) fn running() -> Result<Series> {
    let path = "/proc/sys/kernel/osrelease";
    let release = fs::read_to_string(path).context(path)?;
    parse_release(&release).with_context(|| format!("{path}: {release:?}"))
}

/// The first two numbers of such as `6.1.0-50-cloud-amd64`.
fn parse_release(release: &str) -> Option<Series> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some(Series(
        numbers.next()?.parse().ok()?,
        numbers.next()?.parse().ok()?,
    ))
}

/// The newest package of every series, the oldest series first. Falls back to downloaded kernels where
/// the distribution is unreachable.
pub(super) fn available() -> Result<Vec<Kernel>> {
    let search = || {
        cmd::output(Command::new("apt-cache").args([
            "search",
            "--names-only",
            "^linux-image-[0-9].*-cloud-amd64$",
        ]))
    };
    let mut listed = search()?;
    if newest_per_series(&listed).is_empty() {
        cmd::capture(Command::new("apt-get").arg("update")).context("apt-get update")?;
        listed = search()?;
    }
    let kernels = newest_per_series(&listed);
    if !kernels.is_empty() {
        return Ok(kernels);
    }
    let cached = fs::read_dir(cache()?).map(|entries| {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.collect::<Vec<_>>().join("\n")
    });
    Ok(newest_per_series(&cached.unwrap_or_default()))
}

fn cache() -> Result<PathBuf> {
    Ok(setup::cache_dir()?.join("kernels"))
}

/// Chooses from lines that begin with names such as `linux-image-6.1.0-56-cloud-amd64`.
fn newest_per_series(listed: &str) -> Vec<Kernel> {
    let mut found: BTreeMap<Series, (Vec<u32>, String)> = BTreeMap::new();
    for package in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let Some(version) = package.strip_prefix("linux-image-") else {
            continue;
        };
        let numbers: Vec<u32> = version
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect();
        // Two numbers alone are the name of a package that only depends on the newest.
        let [major, minor, _, ..] = *numbers.as_slice() else {
            continue;
        };
        let dots = version
            .split(['-', '+'])
            .next()
            .map(|version| version.split('.').count());
        if dots != Some(3) {
            continue;
        }
        let entry = found.entry(Series(major, minor)).or_default();
        if entry.0 < numbers {
            *entry = (numbers, package.to_owned());
        }
    }
    found
        .into_iter()
        .map(|(series, (_, package))| Kernel { series, package })
        .collect()
}

impl Kernel {
    /// Downloads and unpacks the package, once.
    pub(super) fn fetch(&self) -> Result<KernelFiles> {
        let cache = cache()?;
        let dir = cache.join(&self.package);
        if !dir.exists() {
            let partial = cache.join(format!("{}-{}", self.package, std::process::id()));
            fs::create_dir_all(&partial).with_context(|| partial.display().to_string())?;
            println!("downloading {}", self.package);
            let result = self.download(&partial).and_then(|()| {
                fs::rename(partial.join("root"), &dir).with_context(|| dir.display().to_string())
            });
            fs::remove_dir_all(&partial).with_context(|| partial.display().to_string())?;
            result?;
        }
        Ok(KernelFiles::unpacked(&dir)?.1)
    }

    fn download(&self, to: &Path) -> Result<()> {
        cmd::capture(Command::new("apt-get").current_dir(to).args([
            "download",
            "-o",
            "APT::Sandbox::User=root",
            &self.package,
        ]))?;
        let package = find_entry(to, "linux-image")?;
        cmd::capture(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(package)
                .arg(to.join("root")),
        )
    }
}

/// The entry whose name has this prefix.
fn find_entry(dir: &Path, start: &str) -> Result<PathBuf> {
    fs::read_dir(dir)
        .with_context(|| dir.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(start))
        })
        .with_context(|| format!("{}: no {start}*", dir.display()))
}

impl KernelFiles {
    /// Finds the files of packages unpacked in `dir`, and the series. The image is in `boot`, or beside the modules
    /// (Debian since Linux 7.2).
    pub(super) fn unpacked(dir: &Path) -> Result<(Series, Self)> {
        let modules = ["lib/modules", "usr/lib/modules"].map(|path| dir.join(path));
        let modules = modules.iter().find(|path| path.exists());
        let modules = modules.with_context(|| format!("{}: no lib/modules", dir.display()))?;
        let modules = find_entry(modules, "")?;
        let release = modules.file_name().unwrap_or_default().to_string_lossy();
        let series = parse_release(&release).with_context(|| format!("{}: no release", modules.display()))?;
        let files = Self {
            image: find_entry(&dir.join("boot"), "vmlinuz").or_else(|_| find_entry(&modules, "vmlinuz"))?,
            modules: modules.join("kernel"),
        };
        Ok((series, files))
    }

    /// The modules and their dependencies in loading order, without those that are built in or absent.
    pub(super) fn modules(&self, wanted: &[&str]) -> Result<Vec<KernelModule>> {
        let mut paths = BTreeMap::new();
        index_modules(&self.modules, &mut paths)?;
        let mut modules = Vec::new();
        for name in wanted {
            add_with_dependencies(name, &paths, &mut modules)?;
        }
        Ok(modules)
    }
}

fn index_modules(dir: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            index_modules(&path, found)?;
        } else if let Some((name, _)) = path.file_name().and_then(|name| name.to_str()?.split_once(".ko")) {
            found.insert(name.replace('-', "_"), path.clone());
        }
    }
    Ok(())
}

fn add_with_dependencies(
    name: &str,
    paths: &BTreeMap<String, PathBuf>,
    modules: &mut Vec<KernelModule>,
) -> Result<()> {
    let Some(path) = paths.get(name) else {
        return Ok(());
    };
    if modules.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let depends = cmd::output(Command::new("modinfo").args(["-F", "depends"]).arg(path))?;
    for other in depends.trim().split(',').filter(|other| !other.is_empty()) {
        add_with_dependencies(&other.replace('-', "_"), paths, modules)?;
    }
    modules.push(KernelModule {
        name: name.to_owned(),
        data: decompress(path)?,
    });
    Ok(())
}

fn decompress(path: &Path) -> Result<Vec<u8>> {
    let with = |program: &str| -> Result<Vec<u8>> {
        let out = Command::new(program)
            .arg("-dc")
            .arg(path)
            .output()
            .with_context(|| program.to_owned())?;
        if !out.status.success() {
            bail!("{program} -dc {}: {}", path.display(), out.status);
        }
        Ok(out.stdout)
    };
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => with("xz"),
        Some("zst") => with("zstd"),
        _ => fs::read(path).with_context(|| path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_a_series() {
        assert_eq!(parse_release("6.1.0-50-cloud-amd64\n"), Some(Series(6, 1)));
        assert_eq!(parse_release("6.18.44\n"), Some(Series(6, 18)));
        assert_eq!(parse_release("unknown"), None);
    }

    #[test]
    fn images_are_found_in_boot_and_beside_the_modules() {
        for (image, modules) in [
            (
                "boot/vmlinuz-6.1.0-50-cloud-amd64",
                "lib/modules/6.1.0-50-cloud-amd64",
            ),
            (
                "usr/lib/modules/7.3-cloud-amd64/vmlinuz",
                "usr/lib/modules/7.3-cloud-amd64",
            ),
        ] {
            let dir = std::env::temp_dir().join(format!("mc-kernel-{}", std::process::id()));
            let (image, modules) = (dir.join(image), dir.join(modules));
            for path in [image.parent().unwrap(), &modules] {
                fs::create_dir_all(path).unwrap();
            }
            fs::write(&image, "").unwrap();
            let found =
                KernelFiles::unpacked(&dir).map(|(series, files)| (series, files.image, files.modules));
            fs::remove_dir_all(&dir).unwrap();
            let series = parse_release(modules.file_name().unwrap().to_str().unwrap()).unwrap();
            assert_eq!(found.unwrap(), (series, image, modules.join("kernel")));
        }
        let error = KernelFiles::unpacked(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(error.to_string(), "/nonexistent: no lib/modules");
    }

    #[test]
    fn the_newest_of_each_series_and_no_meta_packages() {
        let listed = "linux-image-6.1.0-9-cloud-amd64 - Linux\nlinux-image-6.1.0-56-cloud-amd64 - Linux\n\
                      linux-image-6.12-cloud-amd64 - meta\nlinux-image-6.12.107+deb12-cloud-amd64 - Linux\n\
                      linux-image-6.12.9+deb12-cloud-amd64 - Linux\nlinux-image-cloud-amd64 - meta\n";
        let found: Vec<_> = newest_per_series(listed)
            .into_iter()
            .map(|kernel| (kernel.series.to_string(), kernel.package))
            .collect();
        let want = [
            ("6.1", "linux-image-6.1.0-56-cloud-amd64"),
            ("6.12", "linux-image-6.12.107+deb12-cloud-amd64"),
        ];
        assert_eq!(
            found,
            want.map(|(series, package)| (series.to_owned(), package.to_owned()))
        );
    }
}
