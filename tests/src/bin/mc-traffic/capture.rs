//! `capture`: writes the frames of one device to a pcap file.

use std::{
    fs::File,
    io::BufWriter,
    os::fd::{AsFd as _, AsRawFd as _},
    path::PathBuf,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use mc_tests::capture::{CAPTURING, PcapWriter, SNAP_LENGTH};
use nix::{
    errno::Errno,
    net::if_::if_nametoindex,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
        socket::{
            AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket,
            sockopt::RcvBufForce,
        },
    },
};

/// Receive buffer for frames that arrive during a write.
const RECEIVE_BUFFER: usize = 64 << 20;
/// `sll_pkttype` of a frame sent by the device (`linux/if_packet.h`).
const PACKET_OUTGOING: u8 = 4;

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Direction {
    In,
    Out,
    Both,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Device to capture on.
    #[arg(long)]
    device: String,
    /// Direction of frames, seen from the device.
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    direction: Direction,
    /// Stop after this number of frames.
    #[arg(long)]
    count: Option<u64>,
    /// Stop after this number of seconds; SIGTERM also stops the capture.
    #[arg(long)]
    timeout: Option<f64>,
    /// File to write, in pcap format.
    #[arg(long)]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let index = if_nametoindex(args.device.as_str()).with_context(|| format!("no device {}", args.device))?;
    let index = usize::try_from(index)?;
    let deadline = match args.timeout {
        Some(seconds) => Some(Instant::now() + Duration::try_from_secs_f64(seconds).context("--timeout")?),
        None => None,
    };
    let file = File::create(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    let mut pcap = PcapWriter::new(BufWriter::new(file))?;

    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;
    let signals = SignalFd::new(&signals)?;
    // Not bound to the device: the loop below filters out frames of other devices.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)
        .context("cannot open a packet socket (CAP_NET_RAW is needed)")?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER).ok();
    println!("{CAPTURING} on {}", args.device);

    let mut buffer = vec![0; SNAP_LENGTH];
    let mut frames = 0u64;
    let mut stopping = false;
    while args.count.is_none_or(|count| frames < count) {
        match recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer) {
            Ok((length, Some(from))) if from.ifindex() == index && matches(args.direction, &from) => {
                let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
                pcap.frame(at, buffer.get(..length).unwrap_or(&buffer))?;
                frames += 1;
            }
            Ok(_) | Err(Errno::EINTR) => {}
            // All frames from before the signal are written.
            Err(Errno::EAGAIN) if stopping => break,
            Err(Errno::EAGAIN) => {
                let timeout = match deadline {
                    Some(deadline) => {
                        let left = deadline.saturating_duration_since(Instant::now());
                        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
                    }
                    None => PollTimeout::NONE,
                };
                let mut ready = [
                    PollFd::new(socket.as_fd(), PollFlags::POLLIN),
                    PollFd::new(signals.as_fd(), PollFlags::POLLIN),
                ];
                let count = match poll(&mut ready, timeout) {
                    Err(Errno::EINTR) => continue,
                    count => count?,
                };
                let [_, signal] = ready;
                stopping = count == 0 || signal.any().unwrap_or(false);
            }
            Err(error) => return Err(error).with_context(|| format!("capture on {}", args.device)),
        }
    }
    pcap.flush()?;
    println!("{frames} frames");
    Ok(())
}

/// Whether a frame has the requested direction.
fn matches(direction: Direction, from: &LinkAddr) -> bool {
    match direction {
        Direction::In => from.pkttype() != PACKET_OUTGOING,
        Direction::Out => from.pkttype() == PACKET_OUTGOING,
        Direction::Both => true,
    }
}
