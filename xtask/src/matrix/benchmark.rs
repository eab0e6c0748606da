//! `cargo xtask bench --virtio`: the benchmark in a guest, on beds of virtio-net devices.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use super::{boot, guest, guest_archive, kernel, prepare, series_names};
use crate::{build, wait::Progress};

/// Kernel of the guest unless another is named: the newest of Debian 13.
pub(crate) const KERNEL: &str = "6.12";
/// Rounds unless their number is given: QEMU emulates the CPUs, and a round takes minutes.
const ROUNDS: u32 = 3;
/// Time limit for the boot, and for each round.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Beds of network devices, in `mc-bench`.
const BEDS: &str = "nics-routed,nics-bridge";

/// A run of the benchmark in a guest.
#[derive(Debug)]
pub(crate) struct Benchmark {
    /// Series of the kernel, such as 6.12.
    pub(crate) kernel: String,
    /// Number of rounds.
    pub(crate) rounds: Option<u32>,
    /// Cases to compare; all when empty.
    pub(crate) cases: Vec<String>,
    /// Beds to compare them on; all beds of network devices when empty.
    pub(crate) beds: Vec<String>,
    /// Short measurements.
    pub(crate) quick: bool,
    /// Directory for `report.json`.
    pub(crate) out: PathBuf,
}

impl Benchmark {
    /// Builds, boots, measures, and writes the report.
    pub(crate) fn run(&self) -> Result<()> {
        prepare()?;
        let kernels = kernel::available()?;
        let kernel = kernels
            .iter()
            .find(|kernel| kernel.series.to_string() == self.kernel);
        let kernel = kernel.with_context(|| {
            let names = series_names(&kernels);
            format!("--kernel {}: no such kernel among {names:?}", self.kernel)
        })?;
        println!("building the eBPF programs, the agent and the test programs");
        let programs = build::release()?;
        let progress = Progress::start();
        progress.report(format!("{}: {}", kernel.series, kernel.package));
        let files = kernel.fetch()?;
        let modules = files.modules(guest::KERNEL_MODULES)?;
        let mut archive = guest_archive(&modules, &self.init_script(&guest::prologue(&modules)))?;
        for name in ["mc-gateway", "mc-traffic", "mc-bench"] {
            archive.program(&programs.path(name), &format!("t/{name}"))?;
        }
        fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        let received = self.out.join("received.json");
        let machine = guest::Machine {
            image: &files.image,
            second_serial: Some(&received),
            timeout: TIMEOUT * (1 + self.rounds()),
        };
        let booted = boot(&format!("bench-{}", kernel.series), archive, &machine, progress);
        // QEMU creates the file, also for a guest that fails.
        let text = fs::read_to_string(&received).unwrap_or_default();
        drop(fs::remove_file(&received));
        let (report, console) = booted?;
        ensure!(
            report.ended,
            "the guest ended before the benchmark did; the console log is {}",
            console.display()
        );
        let path = self.write_report(&text)?;
        println!("report.json is {}", path.display());
        if !report.failed.is_empty() {
            bail!("mc-bench failed; the console log is {}", console.display());
        }
        Ok(())
    }

    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(ROUNDS)
    }

    /// Writes the report without the carriage returns of the serial port.
    fn write_report(&self, received: &str) -> Result<PathBuf> {
        let report: serde_json::Value = serde_json::from_str(received)
            .context("the guest's report.json, as received over a serial port")?;
        let path = self.out.join("report.json");
        fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// The guest's init script, after the common part.
    fn init_script(&self, prologue: &str) -> String {
        let list = |all: &[String]| all.join(",");
        let mut words = vec![
            "--only throughput".to_owned(),
            format!("--rounds {}", self.rounds()),
        ];
        let beds = if self.beds.is_empty() {
            BEDS.to_owned()
        } else {
            list(&self.beds)
        };
        words.push(format!("--beds {beds}"));
        if !self.cases.is_empty() {
            words.push(format!("--cases {}", list(&self.cases)));
        }
        if self.quick {
            words.push("--quick".to_owned());
        }
        // The last line of the group is the exit code: that of a pipeline is the reader's.
        format!(
            "{prologue}\
             {{ /t/mc-bench --agent /t/mc-gateway --objects /t --out /tmp/bench {} 2>&1; echo \"@exit $?\"; }} | \
             while IFS= read -r line; do case \"$line\" in\n\
             '@exit 0') echo '@ok benchmark';;\n\
             '@exit '*) echo '@failed benchmark';;\n\
             *' are in /tmp/bench') ;;\n\
             *) echo \"@bench $line\";;\n\
             esac; done\n\
             if [ -e /tmp/bench/report.json ]; then cat /tmp/bench/report.json > /dev/ttyS1; fi\n{}",
            words.join(" "),
            guest::EPILOGUE
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_the_program_in_the_guest() {
        let benchmark = Benchmark {
            kernel: KERNEL.to_owned(),
            rounds: None,
            cases: vec!["plain".to_owned(), "mc-gateway".to_owned()],
            beds: Vec::new(),
            quick: true,
            out: PathBuf::new(),
        };
        let script = benchmark.init_script("#!/bin/sh\n");
        let options = " --only throughput --rounds 3 --beds nics-routed,nics-bridge --cases plain,mc-gateway --quick 2>&1";
        assert!(script.contains(options), "{script}");
    }
}
