//! eBPF objects loaded by the benchmark: mc-gateway's programs with generated maps, and its own packet source and
//! classifiers.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf, EbpfLoader, Pod, TestRunOptions,
    maps::{Array, DevMapHash, HashMap, MapData, PerCpuArray},
    programs::{
        ProgramInfo, SchedClassifier, TcAttachType, TestRun as _, Xdp, XdpMode, tc::SchedClassifierLinkId,
        xdp::XdpLinkId,
    },
};
use mc_gateway_common::{
    abi::{
        self, Addr, Counter,
        transit::{PROGRAM_TRANSIT, TRANSIT_DEVICES},
    },
    maps::MemoryMaps,
    verdict::Outcome as PacketPath,
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::{netns::Netns, prefix_table};

/// Frames per call of the packet source: few enough that most calls are not interrupted.
const FRAMES_PER_CALL: u32 = 4096;
/// Frames per batch of the source, the budget of a NAPI poll.
const BATCH: u32 = 64;
/// Leading bytes of a frame that the source writes each time.
pub(super) const HEADER_LEN: usize = 96;
/// Capacity of the source in headers.
pub(super) const MAX_HEADERS: usize = 131_072;

/// Run time and number of runs of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuTime {
    time: Duration,
    runs: u64,
}

// === impl Spent ===

impl CpuTime {
    /// Reads the kernel's statistics of a program.
    pub(super) fn read(info: &ProgramInfo) -> Self {
        Self {
            time: info.run_time(),
            runs: info.run_count(),
        }
    }

    /// Nanoseconds per run since `before`; `None` without runs.
    pub(super) fn nanoseconds_since(self, before: Self) -> Option<f64> {
        let runs = self.runs.saturating_sub(before.runs);
        let time = self.time.saturating_sub(before.time);
        #[expect(clippy::cast_precision_loss, reason = "no measurement has 2^52 runs")]
        (runs > 0).then(|| time.as_secs_f64() * 1e9 / runs as f64)
    }
}

/// mc-gateway's programs with filled maps; dropping it detaches them.
#[derive(Debug)]
pub(super) struct LoadedGateway {
    ebpf: Ebpf,
    attached: Vec<(&'static str, SchedClassifierLinkId)>,
    xdp: Option<XdpLinkId>,
}

// === impl Gateway ===

impl LoadedGateway {
    /// Loads the object `mc-gateway-ebpf.o` and fills its maps.
    pub(super) fn load(objects: &Path, tables: &MemoryMaps) -> Result<Self> {
        let mut ebpf = load(objects, "mc-gateway-ebpf.o")?;
        for name in [abi::PROGRAM_TO_REMOTE, abi::PROGRAM_FROM_UNDERLAY] {
            classifier(&mut ebpf, name)?
                .load()
                .with_context(|| format!("cannot load {name}"))?;
        }
        xdp(&mut ebpf, PROGRAM_TRANSIT)?.load()?;
        fill_maps(&mut ebpf, tables)?;
        Ok(Self {
            ebpf,
            attached: Vec::new(),
            xdp: None,
        })
    }

    /// Attaches a program to a device's ingress.
    pub(super) fn attach(&mut self, netns: &Netns, name: &'static str, device: &str) -> Result<()> {
        let id = attach(&mut self.ebpf, netns, name, device)?;
        self.attached.push((name, id));
        Ok(())
    }

    /// Attaches the XDP program to a device, and allows it to send from another one.
    pub(super) fn attach_transit(&mut self, netns: &Netns, device: &str, to: u32) -> Result<()> {
        let ebpf = &mut self.ebpf;
        let attached = netns.enter(|| {
            let devices = ebpf.map_mut(TRANSIT_DEVICES).context(TRANSIT_DEVICES)?;
            DevMapHash::try_from(devices)?.insert(to, to, None, 0)?;
            Ok(xdp(ebpf, PROGRAM_TRANSIT)?.attach(device, XdpMode::Driver)?)
        });
        self.xdp = Some(attached?);
        Ok(())
    }

    /// Detaches everything.
    pub(super) fn detach(&mut self) -> Result<()> {
        if let Some(id) = self.xdp.take() {
            xdp(&mut self.ebpf, PROGRAM_TRANSIT)?.detach(id)?;
        }
        for (name, id) in self.attached.drain(..) {
            classifier(&mut self.ebpf, name)?.detach(id)?;
        }
        Ok(())
    }

    /// Time and runs of a program.
    pub(super) fn cpu_time(&mut self, name: &str) -> Result<CpuTime> {
        Ok(CpuTime::read(&classifier(&mut self.ebpf, name)?.info()?))
    }

    /// Packets with an outcome.
    pub(super) fn packets(&self, path: PacketPath) -> Result<u64> {
        let map = self.ebpf.map(abi::OUTCOMES).context("no path counters")?;
        let counters: PerCpuArray<&MapData, Counter> = map.try_into()?;
        let values = counters.get(&(path as u32), 0)?;
        Ok(values.iter().map(|counter| counter.packets).sum())
    }

    /// Drop counters that are not zero, for error messages.
    pub(super) fn drops(&self) -> Result<Vec<(u32, u64)>> {
        let map = self.ebpf.map(abi::DROPS).context("no drop counters")?;
        let counters: PerCpuArray<&MapData, u64> = map.try_into()?;
        let mut drops = Vec::new();
        for reason in 0..abi::MAX_DROP_REASONS {
            let count = counters.get(&reason, 0)?.iter().sum();
            if count != 0 {
                drops.push((reason, count));
            }
        }
        Ok(drops)
    }
}

/// The benchmark's own programs: a packet source and three classifiers.
#[derive(Debug)]
pub(super) struct BenchPrograms {
    ebpf: Ebpf,
    entry: Entry,
}

/// Where the frames of the source enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// At the device with the source, behind its driver.
    Device,
    /// At the driver of the other end of its veth pair.
    Driver,
}

impl Entry {
    const fn program(self) -> &'static str {
        match self {
            Self::Device => SOURCE,
            Self::Driver => SENDER,
        }
    }
}

/// The XDP program that sends frames to the other end of a veth pair.
const SENDER: &str = "sender";
/// The XDP program that drops every frame.
const DISCARD: &str = "discard";
/// The XDP program that injects frames at its own device.
const SOURCE: &str = "source";
/// The classifier without any effect.
pub(super) const EMPTY: &str = "empty";
/// The classifier that drops every packet.
pub(super) const SINK: &str = "sink";
/// The classifier that redirects every packet to one device.
pub(super) const WIRE: &str = "wire";

// === impl BenchPrograms ===

impl BenchPrograms {
    /// Loads the object `bench-baseline.o`.
    pub(super) fn load(objects: &Path) -> Result<Self> {
        let mut ebpf = load(objects, "bench-baseline.o")?;
        for name in [EMPTY, SINK, WIRE] {
            classifier(&mut ebpf, name)?.load()?;
        }
        for name in [SOURCE, SENDER, DISCARD] {
            xdp(&mut ebpf, name)?.load()?;
        }
        Ok(Self {
            ebpf,
            entry: Entry::Device,
        })
    }

    /// Attaches the packet source to a device.
    pub(super) fn attach_source(&mut self, netns: &Netns, device: &str, entry: Entry) -> Result<()> {
        self.entry = entry;
        // Live frames require a device with XDP enabled.
        attach_xdp(&mut self.ebpf, netns, entry.program(), device)?;
        Ok(())
    }

    /// Drops all frames in the driver of a device, until [`Self::detach_discard`].
    pub(super) fn attach_discard(&mut self, netns: &Netns, device: &str) -> Result<XdpLinkId> {
        attach_xdp(&mut self.ebpf, netns, DISCARD, device)
    }

    /// Undoes [`Self::attach_discard`].
    pub(super) fn detach_discard(&mut self, id: XdpLinkId) -> Result<()> {
        Ok(xdp(&mut self.ebpf, DISCARD)?.detach(id)?)
    }

    /// Attaches a classifier to a device's ingress until [`Self::detach`].
    pub(super) fn attach(
        &mut self,
        netns: &Netns,
        name: &'static str,
        device: &str,
    ) -> Result<SchedClassifierLinkId> {
        attach(&mut self.ebpf, netns, name, device)
    }

    /// Sets the target device of [`WIRE`].
    pub(super) fn set_wire_target(&mut self, ifindex: u32) -> Result<()> {
        Ok(array(&mut self.ebpf, "target")?.set(0, ifindex, 0)?)
    }

    /// Detaches a classifier.
    pub(super) fn detach(&mut self, name: &str, id: SchedClassifierLinkId) -> Result<()> {
        Ok(classifier(&mut self.ebpf, name)?.detach(id)?)
    }

    /// Time and runs of a classifier.
    pub(super) fn cpu_time(&mut self, name: &str) -> Result<CpuTime> {
        Ok(CpuTime::read(&classifier(&mut self.ebpf, name)?.info()?))
    }

    /// Sets the frames to send in rotation; their number must be a power of two and their lengths equal.
    pub(super) fn set_frames(&mut self, frames: &[Vec<u8>]) -> Result<()> {
        if !frames.len().is_power_of_two() || frames.len() > MAX_HEADERS {
            bail!(
                "{} frames are not a power of two up to {MAX_HEADERS}",
                frames.len()
            );
        }
        let mut heads: Array<_, [u64; HEADER_LEN / 8]> = array(&mut self.ebpf, "heads")?;
        for (slot, frame) in frames.iter().enumerate() {
            let head = frame
                .first_chunk::<HEADER_LEN>()
                .context("a frame is too short")?;
            let mut words = [0; HEADER_LEN / 8];
            for (word, bytes) in words.iter_mut().zip(head.as_chunks::<8>().0) {
                *word = u64::from_ne_bytes(*bytes);
            }
            heads.set(u32::try_from(slot)?, words, 0)?;
        }
        array(&mut self.ebpf, "used")?.set(0, u32::try_from(frames.len())?, 0)?;
        Ok(())
    }

    /// Injects frames like `frame` at a device for about `duration`; returns their number and the time per frame on
    /// this CPU in nanoseconds.
    pub(super) fn send(
        &mut self,
        netns: &Netns,
        ifindex: u32,
        frame: &[u8],
        duration: Duration,
    ) -> Result<SendResult> {
        let name = self.entry.program();
        let program: &Xdp = self.ebpf.program(name).context(name)?.try_into()?;
        let context = xdp_md(frame.len(), ifindex)?;
        netns.enter(|| {
            pin_to_first_cpu()?;
            let mut sent = SendResult::default();
            let mut per_frame = Vec::new();
            while sent.time < duration {
                let result = program
                    .test_run(TestRunOptions {
                        data_in: Some(frame),
                        ctx_in: Some(&context),
                        repeat: FRAMES_PER_CALL,
                        attrs: aya::TestRunAttrs::new().xdp_live_frames(BATCH),
                        ..TestRunOptions::default()
                    })
                    .context("cannot run with live frames (requires Linux 5.18)")?;
                sent.frames += u64::from(FRAMES_PER_CALL);
                sent.time += result.duration * FRAMES_PER_CALL;
                per_frame.push(result.duration.as_secs_f64() * 1e9);
            }
            // The median discards interrupted calls.
            sent.nanoseconds = super::sample::percentile(per_frame, 50).unwrap_or_default();
            Ok(sent)
        })
    }
}

/// Pins this thread to the first available CPU.
fn pin_to_first_cpu() -> Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut cpus = CpuSet::new();
    cpus.set(first.context("no CPU")?)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).context("cannot set the CPU affinity")
}

/// Result of a measurement with the source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SendResult {
    /// Number of frames.
    pub(super) frames: u64,
    /// Total time.
    pub(super) time: Duration,
    /// Nanoseconds per frame, median over calls.
    pub(super) nanoseconds: f64,
}

/// `struct xdp_md` of a frame received by a device.
fn xdp_md(len: usize, ifindex: u32) -> Result<Vec<u8>> {
    let [data, data_end, data_meta, queue, egress] = [0, u32::try_from(len)?, 0, 0, 0];
    Ok([data, data_end, data_meta, ifindex, queue, egress]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect())
}

fn load(objects: &Path, name: &str) -> Result<Ebpf> {
    let path: PathBuf = objects.join(name);
    let bytes =
        fs::read(&path).with_context(|| format!("{}: run `cargo xtask build-ebpf` first", path.display()))?;
    EbpfLoader::new()
        .load(&bytes)
        .with_context(|| format!("cannot load {}", path.display()))
}

fn classifier<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut SchedClassifier> {
    let program = ebpf
        .program_mut(name)
        .with_context(|| format!("no program {name}"))?;
    Ok(program.try_into()?)
}

fn xdp<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Xdp> {
    let program = ebpf.program_mut(name);
    Ok(program
        .with_context(|| format!("no program {name}"))?
        .try_into()?)
}

fn attach_xdp(ebpf: &mut Ebpf, netns: &Netns, name: &str, device: &str) -> Result<XdpLinkId> {
    let program = xdp(ebpf, name)?;
    netns.enter(|| {
        program
            .attach(device, XdpMode::Driver)
            .with_context(|| format!("cannot attach {name} to {device}"))
    })
}

fn attach(ebpf: &mut Ebpf, netns: &Netns, name: &str, device: &str) -> Result<SchedClassifierLinkId> {
    let program = classifier(ebpf, name)?;
    netns.enter(|| {
        program
            .attach(device, TcAttachType::Ingress)
            .with_context(|| format!("cannot attach {name} to {device}"))
    })
}

fn fill_maps(ebpf: &mut Ebpf, tables: &MemoryMaps) -> Result<()> {
    // Epoch 0 disables the programs' caches; an agent starts with epoch 1.
    let epoch = abi::Epoch {
        number: 1,
        pad: 0,
        links_until: u64::MAX,
    };
    array(ebpf, abi::EPOCH)?.set(0, epoch, 0)?;
    if let Some(config) = tables.config {
        array(ebpf, abi::CONFIG)?.set(0, config, 0)?;
    }
    for (slot, group) in &tables.groups {
        array(ebpf, abi::NEXT_HOP_GROUPS)?.set(*slot, *group, 0)?;
    }
    for (slot, next_hop) in &tables.next_hops {
        array(ebpf, abi::NEXT_HOPS)?.set(*slot, *next_hop, 0)?;
    }
    prefix_table::fill(ebpf, &tables.prefixes)?;
    let map = ebpf.map_mut(abi::PEERS).context(abi::PEERS)?;
    let mut peers: HashMap<_, Addr, abi::Peer> = map.try_into()?;
    for (address, peer) in &tables.peers {
        peers.insert(address, peer, 0)?;
    }
    Ok(())
}

fn array<'e, V: Pod>(ebpf: &'e mut Ebpf, name: &'static str) -> Result<Array<&'e mut MapData, V>> {
    Ok(ebpf.map_mut(name).context(name)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_per_run_covers_new_runs_only() {
        let spent = |micros, runs| CpuTime {
            time: Duration::from_micros(micros),
            runs,
        };
        let nanoseconds = spent(30, 150).nanoseconds_since(spent(10, 50)).unwrap();
        assert!((nanoseconds - 200.0).abs() < 1e-9, "{nanoseconds}");
        assert_eq!(spent(10, 50).nanoseconds_since(spent(10, 50)), None);
    }

    #[test]
    fn the_context_has_length_and_device() {
        let context = xdp_md(156, 7).unwrap();
        assert_eq!(context.len(), 24);
        assert_eq!(context[4..8], 156_u32.to_ne_bytes());
        assert_eq!(context[12..16], 7_u32.to_ne_bytes());
    }
}
