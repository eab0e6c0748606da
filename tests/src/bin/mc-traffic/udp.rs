//! `udp-send` and `udp-recv`: numbered datagrams at a steady rate, with loss statistics.

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

/// Receive buffer for datagrams that arrive while the receiver waits for a CPU.
const RECEIVE_BUFFER: usize = 32 << 20;
/// Retransmissions of a begin or end marker, and the timeout of each reply.
const MARKERS: u32 = 50;
const MARKER_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct SendArgs {
    /// Destination `ADDRESS:PORT`.
    to: SocketAddr,
    /// Datagrams per second.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// Duration in seconds.
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
    // SIGTERM ends the stream like the end of its duration.
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
        // Pacing: a late sender catches up, so that the mean rate is the requested one.
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

/// Sends a datagram; one rejected by the local kernel counts as sent and lost.
pub(crate) fn transmit(socket: &UdpSocket, payload: &mut [u8], datagram: Datagram) {
    payload
        .iter_mut()
        .zip(datagram.encode())
        .for_each(|(to, from)| *to = from);
    drop(socket.send(payload));
}

/// Waits for a reply of the receiver over the path of the stream: during neighbour resolution the kernel queues few
/// packets and drops the rest, which must not be measured.
fn begin(socket: &UdpSocket, stream: u32) -> Result<()> {
    if !handshake(socket, Datagram::Begin { stream }, Datagram::Ready { stream })? {
        bail!("no reply of the receiver to {MARKERS} begin markers");
    }
    Ok(())
}

/// Sends the end marker until the receiver confirms it.
pub(crate) fn end(socket: &UdpSocket, stream: u32, sent: u64) -> Result<()> {
    let marker = Datagram::End { stream, sent };
    if !handshake(socket, marker, Datagram::Received { stream })? {
        bail!("no confirmation of the receiver for {MARKERS} end markers");
    }
    Ok(())
}

/// Sends `request` until `reply` arrives; returns whether it did.
fn handshake(socket: &UdpSocket, request: Datagram, reply: Datagram) -> Result<bool> {
    let mut bytes = [0; HEADER];
    for _ in 0..MARKERS {
        let start = Instant::now();
        drop(socket.send(&request.encode()));
        // Other datagrams and ICMP errors do not end the wait.
        while let Some(left) = MARKER_WAIT
            .checked_sub(start.elapsed())
            .filter(|left| !left.is_zero())
        {
            socket.set_read_timeout(Some(left))?;
            if socket.recv(&mut bytes).is_ok() && Datagram::decode(&bytes) == Some(reply) {
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
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    bind: IpAddr,
    /// Timeout in seconds for the end marker after the last datagram.
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
    // A timeout also ends the stream; the report then has `ended: false`.
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        match Datagram::decode(buffer.get(..length).unwrap_or_default()) {
            Some(Datagram::Data {
                stream,
                sequence: number,
            }) if *current.get_or_insert(stream) == stream => {
                sequence.record(number, start.elapsed());
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

/// A socket with a large receive buffer; prints a line once it listens.
pub(crate) fn listen(bind: IpAddr, port: u16, timeout: Duration) -> Result<UdpSocket> {
    let socket =
        UdpSocket::bind((bind, port)).with_context(|| format!("cannot listen on UDP port {port}"))?;
    // Requires CAP_NET_ADMIN; the kernel's default remains without it.
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER).ok();
    socket.set_read_timeout(Some(timeout))?;
    println!("{LISTENING} on port {port}");
    Ok(socket)
}

/// Confirms the end marker, several times in case of loss: the receiver exits afterwards.
pub(crate) fn confirm(socket: &UdpSocket, stream: u32, to: SocketAddr) {
    const ANSWERS: usize = 3;
    for _ in 0..ANSWERS {
        drop(socket.send_to(&Datagram::Received { stream }.encode(), to));
    }
}
