//! `liar`: answers probes where a peer's program should, and not as it would.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use mc_gateway_common::packet::probe::{ETHERTYPE, Kind};
use mc_tests::traffic::LISTENING;

/// Where a probe begins behind the UDP header: tunnel header and inner Ethernet.
const PROBE_AT: usize = 8 + 14;
/// Where it says how often it was numbered.
const SEQUENCE_AT: usize = PROBE_AT + 12;
/// Shortest time to wait for a probe.
const MOMENT: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Lie {
    /// Cut off, of no version and no kind, of another member, never asked for.
    Garbage,
    /// What a peer would say, but after `--delay`, and then twice.
    Late,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How.
    #[arg(value_enum)]
    lie: Lie,
    /// UDP port of the tunnel.
    #[arg(long, default_value_t = 6081)]
    port: u16,
    /// How long in milliseconds an answer takes.
    #[arg(long, default_value_t = 1_000)]
    delay: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, args.port))
        .with_context(|| format!("cannot listen on UDP port {}", args.port))?;
    println!("{LISTENING} on port {}", args.port);
    let mut waiting: VecDeque<(Instant, Vec<u8>, SocketAddr)> = VecDeque::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let next = waiting.front().map(|(due, ..)| *due);
        // A timeout of zero would be none.
        let timeout = next.map(|due| due.saturating_duration_since(Instant::now()).max(MOMENT));
        socket.set_read_timeout(timeout)?;
        if let Ok((length, from)) = socket.recv_from(&mut buffer)
            && let Some(answer) = buffer.get(..length).and_then(answer)
        {
            // To the tunnel port, whatever port asks.
            let to = SocketAddr::new(from.ip(), args.port);
            match args.lie {
                Lie::Garbage => say(&socket, &garbage(answer), to),
                Lie::Late => {
                    let due = Instant::now() + Duration::from_millis(args.delay);
                    waiting.push_back((due, answer, to));
                }
            }
        }
        while let Some((_, answer, to)) = waiting.pop_front_if(|(due, ..)| *due <= Instant::now()) {
            say(&socket, &answer, to);
            say(&socket, &answer, to);
        }
    }
}

/// An answer nobody takes is not worth more.
fn say(socket: &UdpSocket, answer: &[u8], to: SocketAddr) {
    drop(socket.send_to(answer, to));
}

/// What a peer would answer to a datagram, if it is a probe.
fn answer(datagram: &[u8]) -> Option<Vec<u8>> {
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

/// One of several things that are no answer, made of one.
fn garbage(mut answer: Vec<u8>) -> Vec<u8> {
    // By its number, so that everybody who asks gets all of them in turn.
    match answer.get(SEQUENCE_AT + 3).map_or(0, |last| last % 6) {
        0 => answer.truncate(PROBE_AT + 7),
        1 => set(&mut answer, PROBE_AT, &[9]),
        2 => set(&mut answer, PROBE_AT + 1, &[77]),
        // Another slot, and another member.
        3 => set(&mut answer, PROBE_AT + 4, &[0xff; 8]),
        // A probe of the future. Numbers begin anywhere, so it is counted from this one.
        4 => {
            if let Some(number) = answer.get_mut(SEQUENCE_AT..).and_then(<[u8]>::first_chunk_mut) {
                *number = u32::from_be_bytes(*number).wrapping_add(1 << 20).to_be_bytes();
            }
        }
        _ => answer.iter_mut().skip(PROBE_AT).for_each(|byte| *byte ^= 0xa5),
    }
    answer
}

fn set(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(new) {
        *to = *from;
    }
}
