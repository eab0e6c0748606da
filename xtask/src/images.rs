//! `cargo xtask images`: the container images as tar files, packed without Docker from release binaries and
//! the shared libraries they need on this machine.

pub(crate) mod archive;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use clap::Args;

use self::archive::Image;
use crate::{build, cmd, setup, shared_libraries};

/// Packages that supply the contents of images.
const PACKAGES: &[&str] = &["busybox", "nftables", "libc-bin"];
/// Name and tag of the clusters' own DNS.
pub(crate) const COREDNS: &str = "mc-gateway/coredns:latest";
/// Name and tag of the previous release's controller, for tests of upgrades.
pub(crate) const PREVIOUS_CONTROLLER: &str = "mc-gateway/mc-controller:previous";
/// The user the controllers run as; the gateway needs root for its capabilities.
const NOBODY_UID: u32 = 65532;

/// `cargo xtask images`
#[derive(Debug, Args)]
pub(crate) struct ImagesArgs {
    /// Directory for the image tars.
    #[arg(long, default_value = "target/images")]
    out: PathBuf,
}

/// Packs every image and prints the paths.
pub(crate) fn run(args: &ImagesArgs) -> Result<()> {
    for path in pack(&cmd::workspace().join(&args.out))? {
        println!("{}", path.display());
    }
    Ok(())
}

/// The images that the clusters run, in `target/images`.
pub(crate) fn directory() -> PathBuf {
    cmd::workspace().join("target/images")
}

/// Builds the binaries and packs every image into `out`.
pub(crate) fn pack(out: &Path) -> Result<Vec<PathBuf>> {
    setup::ensure_packages("packing images", PACKAGES)?;
    let programs = build::release().context("the images carry release programs")?;

    let mut gateway = Image::new("mc-gateway/mc-gateway:latest", &["/usr/bin/mc-gateway"]);
    add_program(&mut gateway, &programs.path("mc-gateway"), "usr/bin/mc-gateway")?;
    add_program(&mut gateway, &require_program("nft")?, "usr/sbin/nft")?;

    let controller = controller("mc-gateway/mc-controller:latest", &programs.path("mc-controller"))?;

    let mut test = Image::new("mc-gateway/test:latest", &["/bin/sleep", "infinity"]);
    add_busybox(&mut test)?;
    add_program(&mut test, &programs.path("mc-traffic"), "usr/bin/mc-traffic")?;

    [
        ("mc-gateway", gateway),
        ("mc-controller", controller),
        ("test", test),
    ]
    .iter()
    .map(|(name, image)| write(image, out, name))
    .chain([pause(out)])
    .collect()
}

/// Packs the image of the previous release's controller.
pub(crate) fn previous_controller(out: &Path, program: &Path) -> Result<PathBuf> {
    write(
        &controller(PREVIOUS_CONTROLLER, program)?,
        out,
        "mc-controller-previous",
    )
}

fn controller(reference: &str, program: &Path) -> Result<Image> {
    let mut image = Image::new(reference, &["/usr/bin/mc-controller"]);
    image.user = NOBODY_UID;
    add_program(&mut image, program, "usr/bin/mc-controller")?;
    Ok(image)
}

/// Packs the pause image of Pods; independent of the project's programs.
pub(crate) fn pause(out: &Path) -> Result<PathBuf> {
    setup::ensure_packages("packing images", PACKAGES)?;
    let mut image = Image::new("mc-gateway/pause:latest", &["/bin/busybox", "sleep", "infinity"]);
    add_program(&mut image, &require_program("busybox")?, "bin/busybox")?;
    write(&image, out, "pause")
}

/// Packs the CoreDNS image of the clusters.
pub(crate) fn coredns(out: &Path, from: &Path) -> Result<PathBuf> {
    setup::ensure_packages("packing images", PACKAGES)?;
    let mut image = Image::new(COREDNS, &["/usr/bin/coredns"]);
    image.user = NOBODY_UID;
    add_program(&mut image, from, "usr/bin/coredns")?;
    write(&image, out, "coredns")
}

/// busybox under the name of each of its tools.
fn add_busybox(image: &mut Image) -> Result<()> {
    let program_path = require_program("busybox")?;
    let tools = cmd::output(Command::new(&program_path).arg("--list"))?;
    for tool in tools.lines().filter(|tool| *tool != "busybox") {
        image.link(&format!("bin/{tool}"), "/bin/busybox");
    }
    add_program(image, &program_path, "bin/busybox")
}

fn require_program(name: &str) -> Result<PathBuf> {
    setup::find_program(name).with_context(|| format!("`{name}` is not installed"))
}

fn write(image: &Image, out: &Path, name: &str) -> Result<PathBuf> {
    let path = out.join(format!("{name}.tar"));
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    // Renamed into place: another command may be reading the previous file.
    let new = out.join(format!(".{name}.{}", std::process::id()));
    fs::write(&new, image.to_tar()?).with_context(|| new.display().to_string())?;
    fs::rename(&new, &path).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Adds a program, and its shared libraries at their own paths.
fn add_program(image: &mut Image, from: &Path, to: &str) -> Result<()> {
    add_file(image, from, to)?;
    for library in shared_libraries::list(from)? {
        add_file(image, &library, &library.to_string_lossy())?;
    }
    Ok(())
}

fn add_file(image: &mut Image, from: &Path, to: &str) -> Result<()> {
    let bytes = fs::read(from).with_context(|| from.display().to_string())?;
    image.file(to, bytes, 0o755);
    Ok(())
}
