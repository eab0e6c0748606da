//! The guest: its init script, and QEMU.

use std::{
    fmt::Write as _,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{
    insn_budget::InsnCounts,
    kernel::{KernelModule, Series},
    kill_with_parent, nics,
};
use crate::wait::Progress;

/// Time limit of the steps on a kernel.
pub(super) const GUEST_TIMEOUT: Duration = Duration::from_mins(20);
/// A panic ends the guest. A CPU that has been in the kernel for 120 s is a panic with the stacks of all CPUs: QEMU
/// emulates the CPUs, and the host may be busy for half a minute. `loglevel=5` prints the stacks, `quiet` would hide
/// them.
const KERNEL_PARAMETERS: &str = "console=ttyS0 loglevel=5 panic=-1 rdinit=/init mitigations=off watchdog_thresh=60 \
                                 softlockup_panic=1 softlockup_all_cpu_backtrace=1";
/// Without `cmpxchg16b`: two guests of QEMU 7.2 with it panicked in `kmem_cache_alloc`, which uses it (#DB, double
/// fault), with EFLAGS that held a part of a pointer.
const CPU: &str = "max,-cx16";
/// First kernel with TCX.
const TCX: Series = Series(6, 6);

/// Modules of agents and tests.
pub(super) const KERNEL_MODULES: &[&str] = &[
    "veth",
    "dummy",
    "sch_ingress",
    "cls_bpf",
    "nf_tables",
    "nf_conntrack",
    "nf_nat",
    "nft_chain_nat",
    "nft_nat",
    "nft_masq",
    "nft_ct",
    "crc32c_generic",
    "8021q",
    "bridge",
    "geneve",
    "vxlan",
    "virtio_pci",
    "virtio_net",
];

/// Programs of the guest and their directories.
pub(super) const GUEST_TOOLS: [(&str, &str); 9] = [
    ("busybox", "bin"),
    ("ip", "sbin"),
    ("tc", "sbin"),
    ("nft", "sbin"),
    ("bpftool", "sbin"),
    ("ethtool", "sbin"),
    ("nsenter", "bin"),
    ("setpriv", "bin"),
    ("sysctl", "sbin"),
];

/// Links to busybox.
pub(super) const APPLETS: &[&str] = &[
    "sh", "mount", "insmod", "cat", "echo", "grep", "ls", "mkdir", "poweroff", "sed", "tail", "uname",
];

/// Exactly the capabilities of an agent in a DaemonSet.
const WITH_CAPABILITIES: &str =
    "/bin/setpriv --bounding-set -all,+bpf,+net_admin,+perfmon --inh-caps -all,+bpf,+net_admin,+perfmon";

/// A wrapper that starts the agent with these capabilities.
pub(super) const AGENT_WRAPPER: &str = "#!/bin/sh\nexec /bin/setpriv --bounding-set -all,+bpf,+net_admin,+perfmon \
     --inh-caps -all,+bpf,+net_admin,+perfmon /t/mc-gateway \"$@\"\n";

/// A command of the guest.
struct Step {
    name: &'static str,
    command: String,
}

fn step(name: &'static str, command: impl Into<String>) -> Step {
    Step {
        name,
        command: command.into(),
    }
}

/// The steps on a kernel.
fn steps(series: Series) -> Vec<Step> {
    let flow = "/t/netns --test-threads=1 --exact traffic::pods_reach_each_other_and_keep_their_addresses";
    let suite = "MC_PACKETS=5000 /t/datapath --test-threads=1 --nocapture --skip fuzz --skip differential";
    let mut steps = vec![
        step("load as root", "/t/datapath --nocapture load::"),
        step(
            "load with three capabilities",
            format!("{WITH_CAPABILITIES} /t/datapath --nocapture load::"),
        ),
        step("PROG_RUN as root", suite),
        step(
            "end to end, clsact, root",
            format!("MC_AGENT_FLAGS='--attach clsact' {flow}"),
        ),
        step(
            "end to end, clsact, three capabilities",
            format!("MC_AGENT=/t/agent-caps MC_AGENT_FLAGS='--attach clsact' {flow}"),
        ),
        step(
            "a foreign filter next to ours",
            "/t/netns --test-threads=1 --exact attach::a_foreign_filter_stays_and_receives_unrelated_packets",
        ),
        step(
            "VLAN devices",
            "/t/netns --test-threads=1 --exact underlay::vlan_devices_between_the_gateways_carry_traffic",
        ),
        step(
            "aggregation with Geneve and VXLAN devices",
            "/t/netns --test-threads=1 --nocapture geneve_packets_ vxlan_packets_of_pods a_geneve_device",
        ),
        step(
            "aggregation behind virtio-net devices",
            "/t/netns --test-threads=1 --nocapture --ignored nics::geneve nics::vxlan",
        ),
        step(
            "transit by XDP in virtio-net devices",
            "/t/netns --test-threads=1 --nocapture --ignored nics::xdp",
        ),
    ];
    // Older kernels have clsact only.
    if series >= TCX {
        steps.push(step("end to end, as the agent chooses", flow));
        steps.push(step(
            "end to end, TCX, three capabilities",
            format!("MC_AGENT=/t/agent-caps MC_AGENT_FLAGS='--attach tcx' {flow}"),
        ));
        steps.push(step(
            "a foreign TCX program next to ours",
            "/t/netns --test-threads=1 --exact attach::a_foreign_tcx_program_stays_and_receives_unrelated_packets",
        ));
    }
    steps
}

/// Last lines of an init script.
pub(super) const EPILOGUE: &str = "echo @end\npoweroff -f\n";

/// The first part of an init script: file systems, environment, modules.
pub(super) fn prologue(modules: &[KernelModule]) -> String {
    let mut text = "#!/bin/sh\n\
        export PATH=/bin:/sbin MC_GATEWAY_EBPF_OBJECT=/t/mc-gateway-ebpf.o MC_GATEWAY_EBPF_LOG_OBJECT=/t/mc-gateway-ebpf-log.o\n\
        export MC_AGENT=/t/mc-gateway MC_TRAFFIC=/t/mc-traffic\n\
        mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n\
        mount -t bpf bpf /sys/fs/bpf; mount -t tmpfs tmp /tmp; mount -t tmpfs run /run\n"
        .to_owned();
    // Writing to a string cannot fail.
    let _ok = writeln!(text, "export {}", nics::variable());
    for module in modules {
        let _ok = writeln!(text, "insmod /mod/{}.ko", module.name);
    }
    text.push_str(nics::COALESCE);
    text.push_str("ip link set lo up\ncd /t\n");
    text
}

/// The init script that runs the steps.
pub(super) fn init_script(series: Series, modules: &[KernelModule]) -> String {
    let mut text = prologue(modules);
    for Step { name, command } in steps(series) {
        // A filter that matches no test succeeds, and so does a test that skips itself.
        // Writing to a string cannot fail.
        let _ok = writeln!(
            text,
            "echo '@step {name}'\nif {command} >/tmp/out 2>&1 && ! grep -q -e ': ok. 0 passed' -e '^SKIPPED:' /tmp/out; then sed -n -e 's/^.*\\(verified [a-z_]* [0-9]*\\)$/@\\1/p' -e 's/^.*\\(aggregation: .*\\)$/@\\1/p' /tmp/out; echo '@ok {name}'\n\
             else tail -n 150 /tmp/out; echo '@failed {name}'; fi"
        );
    }
    text + EPILOGUE
}

/// Results in the guest's console output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GuestReport {
    /// Steps that passed.
    pub(super) passed: Vec<String>,
    /// Steps that did not.
    pub(super) failed: Vec<String>,
    /// Verified instructions by program.
    pub(super) verified: InsnCounts,
    /// Whether the guest finished all steps.
    pub(super) ended: bool,
}

impl GuestReport {
    /// Reads one line of the console. False for lines without a result.
    fn read_line(&mut self, line: &str) -> bool {
        let Some((_, text)) = line.split_once('@') else {
            return false;
        };
        let (word, rest) = text.trim_end().split_once(' ').unwrap_or((text.trim_end(), ""));
        match (word, rest.split_once(' ')) {
            ("ok", _) => self.passed.push(rest.to_owned()),
            ("failed", _) => self.failed.push(rest.to_owned()),
            ("end", _) => self.ended = true,
            ("verified", Some((program, count))) => {
                self.verified
                    .extend(count.parse().ok().map(|count| (program.to_owned(), count)));
            }
            ("step" | "aggregation:" | "bench", _) => {}
            _ => return false,
        }
        true
    }
}

/// Counts on one line.
pub(super) fn format_counts(counts: &InsnCounts) -> String {
    let counts: Vec<String> = counts
        .iter()
        .map(|(program, count)| format!("{program} {count}"))
        .collect();
    counts.join(", ")
}

/// The counts in the output of the load test.
pub(super) fn parse_counts(printed: &str) -> InsnCounts {
    printed
        .lines()
        .filter_map(|line| {
            let (_, text) = line.split_once("verified ")?;
            let (program, count) = text.trim_end().split_once(' ')?;
            Some((program.to_owned(), count.parse().ok()?))
        })
        .collect()
}

/// A guest to boot.
pub(super) struct Machine<'a> {
    /// Kernel.
    pub(super) image: &'a Path,
    /// File for the output of the second serial port, `/dev/ttyS1` of the guest.
    pub(super) second_serial: Option<&'a Path>,
    /// Time limit; QEMU emulates the CPU.
    pub(super) timeout: Duration,
}

/// Boots and reads the console until the guest has ended.
pub(super) fn boot(
    machine: &Machine<'_>,
    initramfs: &Path,
    serial: &Path,
    progress: Progress,
) -> Result<GuestReport> {
    let mut log = File::create(serial).with_context(|| serial.display().to_string())?;
    let second_serial = machine
        .second_serial
        .into_iter()
        .flat_map(|path| ["-serial".to_owned(), format!("file:{}", path.display())]);
    let mut child = kill_with_parent("qemu-system-x86_64")
        .args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            CPU,
            "-smp",
            "2",
            "-m",
            "1536",
        ])
        .args([
            "-display",
            "none",
            "-serial",
            "stdio",
            "-monitor",
            "none",
            "-nic",
            "none",
            "-no-reboot",
        ])
        .args(second_serial)
        .args(nics::qemu_args())
        .arg("-kernel")
        .arg(machine.image)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", KERNEL_PARAMETERS])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start qemu-system-x86_64")?;
    let result = read_console(&mut child, &mut log, serial, machine.timeout, progress);
    // Fails for a guest that has powered off.
    drop(child.kill());
    child.wait().context("qemu-system-x86_64")?;
    result
}

fn read_console(
    child: &mut Child,
    log: &mut File,
    serial: &Path,
    timeout: Duration,
    progress: Progress,
) -> Result<GuestReport> {
    let stdout = child.stdout.take().context("a piped console")?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + timeout;
    let mut report = GuestReport::default();
    let mut panic = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => {
                writeln!(log, "{line}").with_context(|| serial.display().to_string())?;
                if report.read_line(&line) {
                    progress.report(line.trim());
                } else if panic.is_none() && line.contains("Kernel panic") {
                    panic = Some(line.trim().to_owned());
                }
            }
            // The stacks follow the line with the panic.
            Err(RecvTimeoutError::Disconnected) => match panic {
                Some(panic) if report.failed.is_empty() => {
                    bail!("{panic}; the console log is {}", serial.display())
                }
                _ => return Ok(report),
            },
            Err(RecvTimeoutError::Timeout) => bail!(
                "not done within {} s; passed: {:?}; the console log is {}",
                timeout.as_secs(),
                report.passed,
                serial.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_becomes_a_report() {
        let mut report = GuestReport::default();
        let console = "[    0.1] hello\r\n@step load as root\r\n@verified to_remote 5944\r\n@ok load as root\r\n\
                       mail@example.org\r\n@failed end to end, root\r\n@end\r\n";
        for line in console.lines() {
            report.read_line(line);
        }
        let want = GuestReport {
            passed: vec!["load as root".to_owned()],
            failed: vec!["end to end, root".to_owned()],
            verified: [("to_remote".to_owned(), 5944)].into(),
            ended: true,
        };
        assert_eq!(report, want);
        assert_eq!(format_counts(&report.verified), "to_remote 5944");
    }

    #[test]
    fn counts_are_parsed_from_mixed_output() {
        let printed =
            "running 1 test\nverified to_remote 31018\nverified from_underlay 41820\nverified nothing\n.\n";
        assert_eq!(
            format_counts(&parse_counts(printed)),
            "from_underlay 41820, to_remote 31018"
        );
    }

    #[test]
    fn tcx_steps_need_a_kernel_with_tcx() {
        assert!(!init_script(Series(6, 1), &[]).contains("--attach tcx"));
        assert!(init_script(Series(6, 12), &[]).contains("--attach tcx"));
    }
}
