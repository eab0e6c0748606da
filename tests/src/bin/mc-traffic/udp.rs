//! `udp-send` and `udp-recv`: numbered datagrams at a steady rate, and what is missing of them.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use mc_tests::{
    sequence::{Datagram, HEADER, Sequence},
    traffic::LISTENING,
};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use signal_hook::{consts::SIGTERM, flag};

/// Receive buffer: holds what arrives while the receiver waits for a CPU.
const RECEIVE_BUFFER: usize = 32 << 20;
/// How often a marker of the beginning or the end is repeated, and how long each time its answer is waited for.
const MARKERS: u32 = 50;
const MARKER_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct SendArgs {
    /// Destination `ADDRESS:PORT`.
    to: SocketAddr,
    /// Datagrams per second.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// Seconds to go on for.
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    /// Bytes of payload.
    #[arg(long, default_value_t = 64)]
    size: usize,
}

pub(crate) fn send(args: &SendArgs) -> Result<()> {
    if args.rate == 0 {
        bail!("--rate 0 sends nothing");
    }
    let socket = connect(args.to)?;
    let stream = std::process::id();
    let total = (f64::from(args.rate) * args.duration).max(1.0).round();
    // Asked to end, it ends as it would at its time.
    let stop = Arc::new(AtomicBool::new(false));
    flag::register(SIGTERM, Arc::clone(&stop))?;
    begin(&socket, stream)?;
    println!("sending");

    let start = Instant::now();
    let mut sent = 0u64;
    let mut payload = vec![0; args.size.max(HEADER)];
    #[expect(clippy::cast_precision_loss, reason = "no stream has 2^52 datagrams")]
    while (sent as f64) < total && !stop.load(Ordering::Relaxed) {
        let due = start + Duration::from_secs_f64(sent as f64 / f64::from(args.rate));
        // Pacing. A late sender catches up, so that the mean rate is what was asked for.
        thread::sleep(due.saturating_duration_since(Instant::now()));
        transmit(
            &socket,
            &mut payload,
            Datagram::Data {
                stream,
                sequence: sent,
            },
        );
        sent += 1;
    }
    end(&socket, stream, sent)?;
    println!("{sent} sent");
    Ok(())
}

/// A socket connected to a destination.
pub(crate) fn connect(to: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to).with_context(|| format!("cannot reach {to}"))?;
    Ok(socket)
}

/// Sends one datagram; one the local kernel refuses counts as sent and lost.
pub(crate) fn transmit(socket: &UdpSocket, payload: &mut [u8], datagram: Datagram) {
    payload
        .iter_mut()
        .zip(datagram.encode())
        .for_each(|(to, from)| *to = from);
    drop(socket.send(payload));
}

/// Waits until the receiver has answered over the way the stream will take: while a neighbour's address is
/// not known yet the kernel holds few packets for it and drops the rest, and that is not to be measured.
fn begin(socket: &UdpSocket, stream: u32) -> Result<()> {
    if !asked(socket, Datagram::Begin { stream }, Datagram::Ready { stream })? {
        bail!("the receiver did not answer {MARKERS} attempts to begin");
    }
    Ok(())
}

/// Sends the end marker until the receiver confirms it.
pub(crate) fn end(socket: &UdpSocket, stream: u32, sent: u64) -> Result<()> {
    let marker = Datagram::End { stream, sent };
    if !asked(socket, marker, Datagram::Received { stream })? {
        bail!("the receiver did not confirm the end of the stream after {MARKERS} attempts");
    }
    Ok(())
}

/// Sends `question` until `answer` arrives; whether it did.
fn asked(socket: &UdpSocket, question: Datagram, answer: Datagram) -> Result<bool> {
    let mut bytes = [0; HEADER];
    for _ in 0..MARKERS {
        let start = Instant::now();
        drop(socket.send(&question.encode()));
        // Other datagrams and refusals by ICMP are no answer and do not end the wait.
        while let Some(left) = MARKER_WAIT
            .checked_sub(start.elapsed())
            .filter(|left| !left.is_zero())
        {
            socket.set_read_timeout(Some(left))?;
            if socket.recv(&mut bytes).is_ok() && Datagram::decode(&bytes) == Some(answer) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[derive(Debug, clap::Args)]
pub(crate) struct RecvArgs {
    /// UDP port.
    #[arg(long)]
    port: u16,
    /// Address to listen at.
    #[arg(long, default_value = "0.0.0.0")]
    bind: IpAddr,
    /// Seconds to wait for the end marker after the last datagram.
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
}

pub(crate) fn recv(args: &RecvArgs) -> Result<()> {
    let timeout = Duration::try_from_secs_f64(args.timeout).context("--timeout")?;
    let socket = listen(args.bind, args.port, timeout)?;
    let start = Instant::now();
    let mut sequence = Sequence::default();
    let mut current = None;
    let mut buffer = vec![0; 65_536];
    // A timeout ends the stream too; the report then says that it did not end by itself.
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        match Datagram::decode(buffer.get(..length).unwrap_or_default()) {
            Some(Datagram::Data {
                stream,
                sequence: number,
            }) if *current.get_or_insert(stream) == stream => {
                sequence.arrival(number, start.elapsed());
            }
            Some(Datagram::End { stream, sent }) if *current.get_or_insert(stream) == stream => {
                sequence.end(sent);
                confirm(&socket, stream, from);
                break;
            }
            Some(Datagram::Begin { stream }) if *current.get_or_insert(stream) == stream => {
                drop(socket.send_to(&Datagram::Ready { stream }.encode(), from));
            }
            _ => {}
        }
    }
    println!("{}", serde_json::to_string(&sequence.report())?);
    Ok(())
}

/// A socket with a large buffer; says so once it can be reached.
pub(crate) fn listen(bind: IpAddr, port: u16, timeout: Duration) -> Result<UdpSocket> {
    let socket =
        UdpSocket::bind((bind, port)).with_context(|| format!("cannot listen on UDP port {port}"))?;
    // Needs CAP_NET_ADMIN; without it the kernel's default has to do.
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER).ok();
    socket.set_read_timeout(Some(timeout))?;
    println!("{LISTENING} on port {port}");
    Ok(socket)
}

/// Confirms the end marker. Repeated in case the answer is lost: the receiver is gone afterwards.
pub(crate) fn confirm(socket: &UdpSocket, stream: u32, to: SocketAddr) {
    const ANSWERS: usize = 3;
    for _ in 0..ANSWERS {
        drop(socket.send_to(&Datagram::Received { stream }.encode(), to));
    }
}
