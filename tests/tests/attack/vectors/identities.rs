//! Label identities of other senders, and of senders that a policy drops, from peers with a valid secret.

use std::net::IpAddr;

use mc_gateway_common::verdict::DropReason::{self, IdentityForged, IdentityUnknown, Policy};
use mc_test_kit::datapath::packets::{Ip, tcp_syn, udp, with_checksum};

use crate::{
    bed::{SERVICE_TCP, SERVICE_UDP, Services},
    policies::{
        AMBIGUOUS_ID, DROPPED_ID, LAST_ID, OF_EAST_ID, OF_WEST_ID, UNKNOWN_ID, UNRECORDED_ID, policed_at,
    },
    vector::{ATTACK, Entry, Expected, Generator, POD_PORT, Send},
};

/// Not the port of genuine packets, whose flow is open.
const CLIENT: u16 = 40_000;

pub(super) fn generate(generator: &mut Generator) {
    let mut identities: Vec<(&str, u32, DropReason)> = vec![
        (
            "an identity of the victim's cluster",
            of_victim(generator.entry),
            IdentityForged,
        ),
        ("an identity without a record", UNRECORDED_ID, IdentityUnknown),
        ("the number of unknown senders", UNKNOWN_ID, IdentityUnknown),
        ("the largest identity, without a record", LAST_ID, IdentityUnknown),
        ("an identity with two labels", AMBIGUOUS_ID, IdentityUnknown),
        ("an identity that a rule drops", DROPPED_ID, Policy),
    ];
    if generator.entry == Entry::Member {
        identities.push(("an identity of a third cluster", OF_EAST_ID, IdentityForged));
    }
    for (form, packet) in packets(generator) {
        for (identity, id, reason) in &identities {
            let mut tunnel = generator.carrying(&packet);
            tunnel.vni = *id;
            generator.add(
                format!("{identity} in {form}"),
                Send::Frames(vec![tunnel.frame()]),
                policed_at(generator.entry),
                Expected::Policed(*reason),
            );
        }
    }
}

/// An identity that the cluster of the destination alone exports.
fn of_victim(entry: Entry) -> u32 {
    if entry == Entry::Node {
        OF_EAST_ID
    } else {
        OF_WEST_ID
    }
}

/// Packets that open a flow to the Pod.
fn packets(generator: &Generator) -> Vec<(&'static str, Ip)> {
    let (src, dst) = generator.ends();
    let mut all = vec![
        ("a datagram", datagram(src, dst, POD_PORT)),
        ("a datagram to another port", datagram(src, dst, 53)),
        ("a SYN", tcp(src, dst, POD_PORT, 0x02)),
        ("a SYN with FIN", tcp(src, dst, POD_PORT, 0x03)),
        ("a SYN with RST", tcp(src, dst, POD_PORT, 0x06)),
        ("a SYN with PSH and URG", tcp(src, dst, POD_PORT, 0x2a)),
        ("a SYN with ECE and CWR", tcp(src, dst, POD_PORT, 0xc2)),
        ("an echo request", echo(src, dst)),
        ("a GRE packet", Ip::new(src, dst, 47, [&[0; 4], ATTACK].concat())),
        ("a packet without a protocol", Ip::new(src, dst, 59, ATTACK)),
        ("an SCTP INIT", sctp(src, dst)),
        (
            "a SYN behind options",
            behind_options(tcp(src, dst, POD_PORT, 0x02)),
        ),
        (
            "a first fragment",
            first_fragment(src, dst, 17, first_of_datagram()),
        ),
        (
            "a first TCP fragment without flags",
            first_fragment(src, dst, 6, tcp_syn(CLIENT, POD_PORT)[..8].to_vec()),
        ),
    ];
    // Services of east are not exported.
    if generator.entry == Entry::Member {
        let service = Services::new(generator.inner).exported;
        all.push(("a datagram to a Service", datagram(src, service, SERVICE_UDP)));
        all.push(("a SYN to a Service", tcp(src, service, SERVICE_TCP, 0x02)));
    }
    all
}

fn datagram(src: IpAddr, dst: IpAddr, port: u16) -> Ip {
    Ip::new(
        src,
        dst,
        17,
        with_checksum(src, dst, 17, udp(CLIENT, port, ATTACK), 6),
    )
}

fn tcp(src: IpAddr, dst: IpAddr, port: u16, flags: u8) -> Ip {
    let mut segment = tcp_syn(CLIENT, port);
    segment[13] = flags;
    segment.extend(ATTACK);
    Ip::new(src, dst, 6, with_checksum(src, dst, 6, segment, 16))
}

fn echo(src: IpAddr, dst: IpAddr) -> Ip {
    let (proto, kind) = if dst.is_ipv4() { (1, 8) } else { (58, 128) };
    let mut message = vec![kind, 0, 0, 0, 0, 1, 0, 1];
    message.extend(ATTACK);
    if dst.is_ipv4() {
        let sum = mc_test_kit::datapath::packets::checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    } else {
        message = with_checksum(src, dst, proto, message, 2);
    }
    Ip::new(src, dst, proto, message)
}

fn sctp(src: IpAddr, dst: IpAddr) -> Ip {
    let [[p0, p1], [q0, q1]] = [CLIENT, POD_PORT].map(u16::to_be_bytes);
    // Ports, tag 0, no checksum, and the chunk INIT.
    let header = [p0, p1, q0, q1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20];
    Ip::new(src, dst, 132, [&header[..], ATTACK].concat())
}

/// Behind four bytes of IPv4 options, or a hop-by-hop header.
fn behind_options(mut packet: Ip) -> Ip {
    if packet.src.is_ipv4() {
        packet.options = vec![1; 4];
    } else {
        packet.options = vec![packet.proto, 0, 1, 4, 0, 0, 0, 0];
        packet.proto = 0;
    }
    packet
}

/// The first part of a datagram, with its ports.
fn first_of_datagram() -> Vec<u8> {
    let mut payload = udp(CLIENT, POD_PORT, ATTACK);
    payload.resize(payload.len().next_multiple_of(8), 0);
    payload
}

/// A first fragment with this part of the payload.
fn first_fragment(src: IpAddr, dst: IpAddr, proto: u8, payload: Vec<u8>) -> Ip {
    let mut packet = Ip::new(src, dst, proto, payload);
    match src {
        IpAddr::V4(_) => packet.frags = 0x2000,
        IpAddr::V6(_) => {
            packet.options = vec![proto, 0, 0, 1, 1, 2, 3, 4];
            packet.proto = 44;
        }
    }
    packet
}

/// Identities in packets without a secret change nothing.
pub(super) fn without_secret(generator: &mut Generator) {
    for (name, id) in [
        ("that a rule allows", None),
        ("that a rule drops", Some(DROPPED_ID)),
        ("of another cluster", Some(OF_EAST_ID)),
    ] {
        let mut tunnel = generator.genuine();
        tunnel.vni = id.unwrap_or(tunnel.vni);
        tunnel.inner_src = mc_gateway_common::abi::SourceMac::UNKEYED.bytes();
        generator.without_secret(format!("an identity {name} without a secret"), &tunnel);
    }
}
