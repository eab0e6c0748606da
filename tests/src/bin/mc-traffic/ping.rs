//! `ping`: ICMP echo requests (RFC 792), one at a time.

use std::{
    net::Ipv4Addr,
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use mc_tests::traffic::PingReport;
use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, setsockopt,
        socket, sockopt::ReceiveTimeout,
    },
    time::{TimeVal, TimeValLike as _},
};

/// ICMP types.
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
/// Bytes in front of the payload.
const ICMP_HEADER: usize = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Destination.
    address: Ipv4Addr,
    /// Requests to send.
    #[arg(long, default_value_t = 3)]
    count: u16,
    /// Bytes of payload.
    #[arg(long, default_value_t = 56)]
    size: usize,
    /// Seconds to wait for each answer.
    #[arg(long, default_value_t = 2.0)]
    timeout: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let timeout = Duration::try_from_secs_f64(args.timeout).context("--timeout")?;
    let socket = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Icmp,
    )
    .context("cannot open a raw ICMP socket (CAP_NET_RAW is needed)")?;
    // Shorter than the deadline: the socket sees other ICMP packets, and each restarts the timer.
    let slice = timeout.min(Duration::from_millis(100));
    setsockopt(
        &socket,
        ReceiveTimeout,
        &TimeVal::milliseconds(i64::try_from(slice.as_millis())?.max(1)),
    )?;
    let to = SockaddrIn::from(std::net::SocketAddrV4::new(args.address, 0));
    let identifier = u16::try_from(std::process::id() & 0xffff)?;

    let mut times = Vec::new();
    let mut buffer = vec![0; 65_536];
    for sequence in 0..args.count {
        let sent = Instant::now();
        let request = echo_request(identifier, sequence, args.size);
        sendto(socket.as_raw_fd(), &request, &to, MsgFlags::empty())
            .with_context(|| format!("cannot send to {}", args.address))?;
        while sent.elapsed() < timeout {
            let Ok(length) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) else {
                continue;
            };
            if is_reply(buffer.get(..length).unwrap_or_default(), identifier, sequence) {
                times.push(sent.elapsed());
                break;
            }
        }
    }
    let received = u32::try_from(times.len())?;
    let total: Duration = times.iter().sum();
    let report = PingReport {
        sent: u32::from(args.count),
        received,
        min_us: times.iter().min().map_or(0.0, |min| min.as_secs_f64() * 1e6),
        mean_us: if received == 0 {
            0.0
        } else {
            total.as_secs_f64() * 1e6 / f64::from(received)
        },
    };
    println!("{}", serde_json::to_string(&report)?);
    if received == 0 {
        bail!("no answer from {} to {} requests", args.address, args.count);
    }
    Ok(())
}

/// The bytes of a request.
fn echo_request(identifier: u16, sequence: u16, size: usize) -> Vec<u8> {
    let header = |checksum: u16| {
        let [check_high, check_low] = checksum.to_be_bytes();
        let [id_high, id_low] = identifier.to_be_bytes();
        let [sequence_high, sequence_low] = sequence.to_be_bytes();
        [
            ECHO_REQUEST,
            0,
            check_high,
            check_low,
            id_high,
            id_low,
            sequence_high,
            sequence_low,
        ]
    };
    let payload: Vec<u8> = b"mc-gateway ".iter().copied().cycle().take(size).collect();
    let checksum = checksum(header(0).iter().chain(&payload).copied());
    header(checksum).into_iter().chain(payload).collect()
}

/// Internet checksum (RFC 1071).
fn checksum(bytes: impl Iterator<Item = u8>) -> u16 {
    let mut sum = 0u64;
    for (at, byte) in bytes.enumerate() {
        sum += u64::from(byte) << if at % 2 == 0 { 8 } else { 0 };
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

/// Whether an IPv4 packet is the answer to one request.
fn is_reply(packet: &[u8], identifier: u16, sequence: u16) -> bool {
    let header = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    let Some([kind, _, _, _, id_high, id_low, sequence_high, sequence_low]) =
        packet.get(header..header + ICMP_HEADER)
    else {
        return false;
    };
    *kind == ECHO_REPLY
        && u16::from_be_bytes([*id_high, *id_low]) == identifier
        && u16::from_be_bytes([*sequence_high, *sequence_low]) == sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_over_a_whole_request_is_zero() {
        for size in [0, 1, 56, 57] {
            assert_eq!(
                checksum(echo_request(7, 9, size).into_iter()),
                0,
                "payload of {size}"
            );
        }
    }

    #[test]
    fn reply_to_another_request_is_not_ours() {
        let mut packet = vec![0x45; 1];
        packet.resize(20, 0);
        packet.extend([ECHO_REPLY, 0, 0, 0, 0, 7, 0, 9]);
        assert!(is_reply(&packet, 7, 9));
        assert!(!is_reply(&packet, 7, 8));
        assert!(!is_reply(&packet[..27], 7, 9));
    }
}
