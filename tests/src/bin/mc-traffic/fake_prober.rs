//! `fake-prober`: replies to probes incorrectly, in place of a peer's program.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use mc_gateway_common::packet::{
    eth::Mac,
    probe::{ETHERTYPE, Kind},
};
use mc_tests::traffic::LISTENING;

/// Offset of a probe in the UDP payload: tunnel header and inner Ethernet header.
const PROBE_AT: usize = 8 + 14;
/// Offset of the inner source MAC address.
const SOURCE_AT: usize = 8 + 6;
/// Offset of its sequence number.
const SEQUENCE_AT: usize = PROBE_AT + 12;
/// Minimum receive timeout.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FaultMode {
    /// Truncated replies, unknown versions and kinds, wrong next hops, unsolicited replies.
    Garbage,
    /// Correct replies, sent twice after `--delay`.
    Late,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fault of the replies.
    #[arg(value_enum)]
    mode: FaultMode,
    /// UDP port of the tunnel.
    #[arg(long, default_value_t = 6081)]
    port: u16,
    /// Delay of a reply in milliseconds.
    #[arg(long, default_value_t = 1_000)]
    delay: u64,
    /// Inner source MAC address of replies to a peer: its secret.
    #[arg(long, value_name = "ADDRESS=MAC", value_parser = parse_secret)]
    secret: Vec<(IpAddr, Mac)>,
}

fn parse_secret(text: &str) -> Result<(IpAddr, Mac)> {
    let (address, mac) = text.split_once('=').context("no =")?;
    let mut bytes = Mac::default();
    let mut parts = mac.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next().context("six bytes")?, 16)?;
    }
    Ok((address.parse()?, bytes))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, args.port))
        .with_context(|| format!("cannot listen on UDP port {}", args.port))?;
    println!("{LISTENING} on port {}", args.port);
    let mut waiting: VecDeque<(Instant, Vec<u8>, SocketAddr)> = VecDeque::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let next = waiting.front().map(|(due, ..)| *due);
        // A timeout of zero means none.
        let timeout = next.map(|due| due.saturating_duration_since(Instant::now()).max(MIN_TIMEOUT));
        socket.set_read_timeout(timeout)?;
        if let Ok((length, from)) = socket.recv_from(&mut buffer)
            && let Some(mut answer) = buffer.get(..length).and_then(probe_reply)
        {
            if let Some((_, mac)) = args.secret.iter().find(|(peer, _)| *peer == from.ip()) {
                overwrite(&mut answer, SOURCE_AT, mac);
            }
            // To the tunnel port, regardless of the source port.
            let to = SocketAddr::new(from.ip(), args.port);
            match args.mode {
                FaultMode::Garbage => reply(&socket, &corrupt(answer), to),
                FaultMode::Late => {
                    let due = Instant::now() + Duration::from_millis(args.delay);
                    waiting.push_back((due, answer, to));
                }
            }
        }
        while let Some((_, answer, to)) = waiting.pop_front_if(|(due, ..)| *due <= Instant::now()) {
            reply(&socket, &answer, to);
            reply(&socket, &answer, to);
        }
    }
}

/// Sends a reply; errors are ignored.
fn reply(socket: &UdpSocket, answer: &[u8], to: SocketAddr) {
    drop(socket.send_to(answer, to));
}

/// The correct reply to a datagram, if it is a probe.
fn probe_reply(datagram: &[u8]) -> Option<Vec<u8>> {
    let mut answer = datagram.to_vec();
    let (head, probe) = answer.split_at_mut_checked(PROBE_AT)?;
    if !head.ends_with(&ETHERTYPE.to_be_bytes()) {
        return None;
    }
    let kind = probe.get_mut(1)?;
    *kind = match *kind {
        request if request == Kind::Request as u8 => Kind::Reply as u8,
        request if request == Kind::SizeRequest as u8 => Kind::SizeReply as u8,
        _ => return None,
    };
    Some(answer)
}

/// Corrupts a reply in one of several ways.
fn corrupt(mut answer: Vec<u8>) -> Vec<u8> {
    // Selected by the sequence number, so that every prober receives all kinds.
    match answer.get(SEQUENCE_AT + 3).map_or(0, |last| last % 6) {
        0 => answer.truncate(PROBE_AT + 7),
        1 => overwrite(&mut answer, PROBE_AT, &[9]),
        2 => overwrite(&mut answer, PROBE_AT + 1, &[77]),
        // Another slot and another next hop.
        3 => overwrite(&mut answer, PROBE_AT + 4, &[0xff; 8]),
        // A probe that was not sent yet. Sequence numbers start anywhere, so it is relative to this one.
        4 => {
            if let Some(number) = answer.get_mut(SEQUENCE_AT..).and_then(<[u8]>::first_chunk_mut) {
                *number = u32::from_be_bytes(*number).wrapping_add(1 << 20).to_be_bytes();
            }
        }
        _ => answer.iter_mut().skip(PROBE_AT).for_each(|byte| *byte ^= 0xa5),
    }
    answer
}

fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(new) {
        *to = *from;
    }
}
