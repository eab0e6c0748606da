//! `cargo xtask matrix`: the programs and the agent on the distribution's kernels, in QEMU.

mod benchmark;
mod guest;
mod initramfs;
mod insn_budget;
mod kernel;
mod nics;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

pub(crate) use self::benchmark::{Benchmark, KERNEL as BENCHMARK_KERNEL};
use self::{
    guest::{GuestReport, Machine},
    initramfs::CpioArchive,
    insn_budget::{InsnBudget, InsnCounts},
    kernel::{Kernel, KernelFiles, Series},
};
use crate::{build, cmd, setup, wait::Progress};

/// Packages that boot another kernel.
const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "busybox-static",
    "iproute2",
    "nftables",
    "bpftool",
    "ethtool",
    "util-linux",
    "kmod",
    "xz-utils",
];

/// Runs load, `PROG_RUN` and one end-to-end flow on older kernels.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MatrixArgs {
    /// The kernel series to boot, such as 6.1, or `host` for the running one without booting it; all when absent.
    #[arg(long, value_name = "SERIES", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Boot an unpacked kernel only: a directory with `vmlinuz*` in `boot` or beside the modules in
    /// `lib/modules/RELEASE`, such as that of a kernel newer than the distribution's.
    #[arg(long, value_name = "DIR", conflicts_with = "kernel")]
    kernel_dir: Option<PathBuf>,
    /// Write the measured verified-instruction counts to tests/verified-instructions.toml instead of comparing
    /// them.
    #[arg(long)]
    update: bool,
}

/// Name of the running kernel for `--kernel`.
const HOST: &str = "host";

/// Checks the running kernel and boots the others, one at a time.
pub(crate) fn run(args: &MatrixArgs) -> Result<()> {
    prepare()?;
    if let Some(dir) = &args.kernel_dir {
        let (series, files) = KernelFiles::unpacked(dir)?;
        return boot_kernel(series, &files, &Programs::build()?, args.update);
    }
    let is_wanted = |name: &str| args.kernel.is_empty() || args.kernel.iter().any(|wanted| wanted == name);
    let wanted: Vec<Kernel> = kernel::available()?
        .into_iter()
        .filter(|kernel| is_wanted(&kernel.series.to_string()))
        .collect();
    ensure!(
        !wanted.is_empty() || is_wanted(HOST),
        "no such kernel among {:?}",
        series_names(&kernel::available()?)
    );
    let programs = Programs::build()?;
    let mut failures = Vec::new();
    if is_wanted(HOST)
        && let Err(error) = check_host(&programs, args.update)
    {
        println!("FAILED: {HOST}: {error:#}");
        failures.push(HOST.to_owned());
    }
    for kernel in &wanted {
        if let Err(error) = fetch_and_boot(kernel, &programs, args.update) {
            println!("FAILED: {}: {error:#}", kernel.series);
            failures.push(kernel.series.to_string());
        }
    }
    if !failures.is_empty() {
        bail!("failed on {}", failures.join(", "));
    }
    println!(
        "matrix: {} other kernels passed: {}",
        wanted.len(),
        series_names(&wanted).join(", ")
    );
    Ok(())
}

/// Counts instructions on the running kernel, and boots the oldest kernel of the distribution.
pub(crate) fn oldest() -> Result<()> {
    prepare()?;
    let kernels = kernel::available()?;
    let oldest = kernels.first().context("the distribution has no cloud kernels")?;
    let programs = Programs::build()?;
    let counted = check_host(&programs, false);
    fetch_and_boot(oldest, &programs, false)?;
    counted
}

/// Loads the programs into the running kernel; other suites test the rest there.
fn check_host(programs: &Programs, update: bool) -> Result<()> {
    let loaded = cmd::output(
        Command::new(&programs.datapath)
            .env("MC_GATEWAY_EBPF_OBJECT", &programs.object)
            .args(["--nocapture", "load::"]),
    )?;
    let counts = guest::parse_counts(&loaded);
    ensure!(!counts.is_empty(), "no instruction counts in {loaded}");
    let series = kernel::running()?.to_string();
    println!(
        "{series}, running: verified instructions: {}",
        guest::format_counts(&counts)
    );
    compare(&series, &counts, update)
}

fn prepare() -> Result<()> {
    setup::require_root("cargo xtask matrix")?;
    setup::ensure_packages("booting other kernels", PACKAGES)
}

fn series_names(kernels: &[Kernel]) -> Vec<String> {
    kernels.iter().map(|kernel| kernel.series.to_string()).collect()
}

fn fetch_and_boot(kernel: &Kernel, programs: &Programs, update: bool) -> Result<()> {
    println!("{}: {}", kernel.series, kernel.package);
    boot_kernel(kernel.series, &kernel.fetch()?, programs, update)
}

fn boot_kernel(series: Series, files: &KernelFiles, programs: &Programs, update: bool) -> Result<()> {
    let progress = Progress::start();
    let modules = files.modules(guest::KERNEL_MODULES)?;
    let archive = programs.archive(&modules, &guest::init_script(series, &modules))?;
    let machine = Machine {
        image: &files.image,
        second_serial: None,
        timeout: guest::GUEST_TIMEOUT,
    };
    let (report, serial) = boot(&series.to_string(), archive, &machine, progress)?;
    progress.report(format!(
        "{}: {} steps passed; verified instructions: {}",
        series,
        report.passed.len(),
        guest::format_counts(&report.verified)
    ));
    check_report(series, &report, &serial, update)
}

/// Boots with an initramfs; returns the results, and the console log, whose name begins with `name`.
fn boot(
    name: &str,
    archive: CpioArchive,
    machine: &Machine<'_>,
    progress: Progress,
) -> Result<(GuestReport, PathBuf)> {
    let dir = build::target_dir()?.join("matrix");
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let initramfs = dir.join(format!("{name}-initramfs"));
    fs::write(&initramfs, archive.finish()).with_context(|| initramfs.display().to_string())?;
    let serial = dir.join(format!("{name}-serial.log"));
    let report = guest::boot(machine, &initramfs, &serial, progress)?;
    fs::remove_file(&initramfs).with_context(|| initramfs.display().to_string())?;
    Ok((report, serial))
}

fn check_report(series: Series, report: &GuestReport, serial: &Path, update: bool) -> Result<()> {
    if !report.failed.is_empty() {
        bail!(
            "{} failed; the console log is {}",
            report.failed.join(", "),
            serial.display()
        );
    }
    ensure!(
        report.ended,
        "the guest ended before its last step; the console log is {}",
        serial.display()
    );
    compare(&series.to_string(), &report.verified, update)
}

/// Compares counts with the recorded ones, or records them.
fn compare(series: &str, counts: &InsnCounts, update: bool) -> Result<()> {
    let path = cmd::workspace().join("tests/verified-instructions.toml");
    let mut budget = InsnBudget::read(&path)?;
    if update {
        budget.set(series, counts);
        budget.write(&path)?;
    } else {
        budget.check(series, counts)?;
    }
    InsnBudget::check_maximum(series, counts)
}

/// Programs of the guest.
struct Programs {
    agent: PathBuf,
    traffic: PathBuf,
    object: PathBuf,
    /// The object whose programs log, for a test of `datapath`.
    logging_object: PathBuf,
    datapath: PathBuf,
    netns: PathBuf,
}

impl Programs {
    fn build() -> Result<Self> {
        let object = crate::ebpf::build(&cmd::workspace())?.path;
        let logging_object = crate::ebpf::build_log(&cmd::workspace())?.path;
        let programs = build::release()?;
        let built = cmd::output(cmd::cargo().args([
            "test",
            "--quiet",
            "--locked",
            "--release",
            "--test",
            "datapath",
            "--test",
            "netns",
            "--no-run",
            "--message-format=json",
        ]))?;
        Ok(Self {
            agent: programs.path("mc-gateway"),
            traffic: programs.path("mc-traffic"),
            object,
            logging_object,
            datapath: test_executable(&built, "datapath")?,
            netns: test_executable(&built, "netns")?,
        })
    }

    fn archive(&self, modules: &[kernel::KernelModule], init: &str) -> Result<CpioArchive> {
        let mut archive = guest_archive(modules, init)?;
        for (path, name) in [
            (&self.agent, "mc-gateway"),
            (&self.traffic, "mc-traffic"),
            (&self.datapath, "datapath"),
            (&self.netns, "netns"),
        ] {
            archive.program(path, &format!("t/{name}"))?;
        }
        for (path, name) in [
            (&self.object, "mc-gateway-ebpf.o"),
            (&self.logging_object, "mc-gateway-ebpf-log.o"),
        ] {
            let object = fs::read(path).with_context(|| path.display().to_string())?;
            archive.file(&format!("t/{name}"), object, 0o644);
        }
        archive.file("t/agent-caps", guest::AGENT_WRAPPER.into(), 0o755);
        Ok(archive)
    }
}

/// An archive with the tools, the modules and the init script of a guest.
fn guest_archive(modules: &[kernel::KernelModule], init: &str) -> Result<CpioArchive> {
    let mut archive = CpioArchive::default();
    for (name, mode) in guest::GUEST_TOOLS {
        let path = setup::find_program(name).with_context(|| format!("{name} is not installed"))?;
        archive.program(&path, &format!("{mode}/{name}"))?;
    }
    for applet in guest::APPLETS {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    for module in modules {
        archive.file(&format!("mod/{}.ko", module.name), module.data.clone(), 0o644);
    }
    archive.file("init", init.into(), 0o755);
    for dir in ["proc", "sys", "dev", "tmp", "run", "etc"] {
        archive.dir(dir);
    }
    Ok(archive)
}

/// Path of a test program in cargo's JSON messages.
fn test_executable(messages: &str, name: &str) -> Result<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message.pointer("/target/name").and_then(|found| found.as_str()) == Some(name))
        .find_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
        .with_context(|| format!("cargo reports no executable of the test {name}"))
}

/// A command that is killed with this process.
fn kill_with_parent(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargos_messages() {
        let messages = "{\"reason\":\"build-finished\"}\n\
                        {\"target\":{\"name\":\"netns\"},\"executable\":\"/x/netns-1\"}\n";
        assert_eq!(
            test_executable(messages, "netns").unwrap(),
            PathBuf::from("/x/netns-1")
        );
        assert!(test_executable(messages, "datapath").is_err());
    }
}
