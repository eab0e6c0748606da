//! `ping`: ICMP echo requests (RFC 792, RFC 4443), one at a time.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use mc_tests::traffic::PingReport;
use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recv, sendto, setsockopt,
        socket, sockopt::ReceiveTimeout,
    },
    time::{TimeVal, TimeValLike as _},
};

/// ICMP types of requests and replies.
const V4: (u8, u8) = (8, 0);
const V6: (u8, u8) = (128, 129);
/// Bytes in front of the payload.
const ICMP_HEADER: usize = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Destination.
    address: IpAddr,
    /// Requests to send.
    #[arg(long, default_value_t = 3)]
    count: u16,
    /// Bytes of payload.
    #[arg(long, default_value_t = 56)]
    size: usize,
    /// Timeout in seconds for each reply.
    #[arg(long, default_value_t = 2.0)]
    timeout: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let timeout = Duration::try_from_secs_f64(args.timeout).context("--timeout")?;
    let v6 = args.address.is_ipv6();
    let (family, protocol, types) = if v6 {
        (AddressFamily::Inet6, SockProtocol::IcmpV6, V6)
    } else {
        (AddressFamily::Inet, SockProtocol::Icmp, V4)
    };
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
        .context("cannot open a raw ICMP socket (CAP_NET_RAW is needed)")?;
    // Shorter than the deadline: other ICMP packets restart the timer.
    let slice = timeout.min(Duration::from_millis(100));
    setsockopt(
        &socket,
        ReceiveTimeout,
        &TimeVal::milliseconds(i64::try_from(slice.as_millis())?.max(1)),
    )?;
    let to = SockaddrStorage::from(SocketAddr::new(args.address, 0));
    let identifier = u16::try_from(std::process::id() & 0xffff)?;

    let mut times = Vec::new();
    let mut buffer = vec![0; 65_536];
    for sequence in 0..args.count {
        let sent = Instant::now();
        let request = echo_request(types.0, identifier, sequence, args.size);
        sendto(socket.as_raw_fd(), &request, &to, MsgFlags::empty())
            .with_context(|| format!("cannot send to {}", args.address))?;
        while sent.elapsed() < timeout {
            let Ok(length) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) else {
                continue;
            };
            let packet = buffer.get(..length).unwrap_or_default();
            // Only IPv4 sockets receive the IP header.
            let header = packet
                .first()
                .filter(|_| !v6)
                .map_or(0, |first| usize::from(first & 0x0f) * 4);
            let message = packet.get(header..).unwrap_or_default();
            if is_reply(message, types.1, identifier, sequence) {
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
        bail!("no reply from {} to {} requests", args.address, args.count);
    }
    Ok(())
}

/// The bytes of a request; the kernel recomputes the `ICMPv6` checksum.
fn echo_request(kind: u8, identifier: u16, sequence: u16, size: usize) -> Vec<u8> {
    let header = |checksum: u16| {
        let [check_high, check_low] = checksum.to_be_bytes();
        let [id_high, id_low] = identifier.to_be_bytes();
        let [sequence_high, sequence_low] = sequence.to_be_bytes();
        [
            kind,
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

/// Whether an ICMP message is the reply to a request.
fn is_reply(message: &[u8], reply: u8, identifier: u16, sequence: u16) -> bool {
    let Some([kind, _, _, _, id_high, id_low, sequence_high, sequence_low]) = message.get(..ICMP_HEADER)
    else {
        return false;
    };
    *kind == reply
        && u16::from_be_bytes([*id_high, *id_low]) == identifier
        && u16::from_be_bytes([*sequence_high, *sequence_low]) == sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_over_a_request_is_zero() {
        for size in [0, 1, 56, 57] {
            assert_eq!(
                checksum(echo_request(V4.0, 7, 9, size).into_iter()),
                0,
                "payload of {size}"
            );
        }
    }

    #[test]
    fn replies_to_other_requests_are_ignored() {
        let message = [V6.1, 0, 0, 0, 0, 7, 0, 9];
        assert!(is_reply(&message, V6.1, 7, 9));
        assert!(!is_reply(&message, V6.1, 7, 8));
        assert!(!is_reply(&message, V4.1, 7, 9));
        assert!(!is_reply(&message[..7], V6.1, 7, 9));
    }
}
