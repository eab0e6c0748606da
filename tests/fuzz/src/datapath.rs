//! Any frame, and any packet that is too big, through the data path's decisions.
//!
//! *Properties*: no panic; what is not ours is bit-identical, and what is ours never passes; what goes on has
//! the length it must have, says nothing that is not in the tables, and changed only where it may; checksums
//! that were right are right afterwards, recomputed in full.

use std::net::IpAddr;

use mc_gateway_common::{
    abi::{ACTION_FORWARD, Addr, CONFIG_GATEWAY, Config},
    packet::Address,
    path,
    tables::{MapTables, Tables as _},
    verdict::{Path, Verdict},
};

use crate::{
    frame::{Ip, checksum_at, ip, is_right, mss, outer as outer_of},
    input::{Input, MOST_FILL},
    packets::{F0, checksum, l4_checksum, summed},
    world::{POD_HERE, POD_NODE, POD_WEST, WEST_GATEWAY},
};

/// Bytes of an Ethernet header.
pub(crate) const ETH: usize = 14;
/// Bytes between an outer IP header and the inner one.
pub(crate) const TAIL: usize = 8 + 8 + ETH;
/// Largest ICMP errors: RFC 1812 section 4.3.2.3, RFC 4443 section 2.4.
const MOST_V4: usize = 576;
const MOST_V6: usize = 1_280;
/// Ethertype of probes.
const PROBE: [u8; 2] = [0x88, 0xb5];

pub(crate) fn mapped(address: IpAddr) -> Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A frame on its way out of `mc0`.
pub fn to_remote(data: &[u8]) {
    let Some((input, frame)) = Input::read(data) else {
        return;
    };
    send(&input, frame);
}

/// A frame that arrives on an underlay device.
pub fn from_underlay(data: &[u8]) {
    let Some((input, frame)) = Input::read(data) else {
        return;
    };
    arrive(&input, frame);
}

/// A sound packet of any protocol with any payload, to or through a member it seldom fits: reaches what
/// answers such packets from almost every input.
pub fn too_big(data: &[u8]) {
    let Some((&[flags, sizes, low, high, proto, way], payload)) = data.split_first_chunk::<6>() else {
        return;
    };
    // The payload has to be whole, so it is filled up here and not behind the frame.
    let fill = usize::from(u16::from_le_bytes([low, high])) % MOST_FILL;
    let mut whole = payload.to_vec();
    whole.extend((0..fill).map(|at| at.to_le_bytes()[0]));
    let Some((input, _)) = Input::read(&[flags, sizes, 0, 0]) else {
        return;
    };
    let shape = input.shape;
    let (src, dst) = if way & 1 == 0 {
        (POD_NODE, POD_WEST)
    } else {
        (POD_WEST, if way & 2 == 0 { POD_NODE } else { POD_HERE })
    };
    let (src, dst) = (shape.inner(src), shape.inner(dst));
    if let Some(at) = checksum_at(proto)
        && whole.len() > at + 1
        && way & 4 == 0
    {
        whole = summed(src, dst, proto, whole, at);
    }
    let mut inner = crate::packets::Ip::new(src, dst, proto, whole);
    if way & 8 != 0 && !shape.inner_v6 {
        inner.frags = 0x2000;
    }
    if way & 1 == 0 {
        send(&input, &inner.frame());
        return;
    }
    let to = if input.gateway {
        crate::world::GATEWAY_OUTSIDE
    } else {
        crate::world::NODE
    };
    let from = if input.gateway {
        WEST_GATEWAY
    } else {
        crate::world::GATEWAY_INSIDE
    };
    let mut tunnel = crate::packets::Tunnel::new(shape.outer(from), shape.outer(to), &inner);
    tunnel.vxlan = shape.vxlan;
    tunnel.dst_port = shape.port();
    tunnel.udp_checksum = way & 16 != 0;
    arrive(&input, &tunnel.frame());
}

fn send(input: &Input, frame: &[u8]) {
    let Some(mut packet) = input.packet(frame) else {
        return;
    };
    let tables = input.tables();
    let before = packet.bytes().to_vec();
    let verdict = path::to_remote(&mut packet, &tables);
    let after = packet.bytes();
    match verdict {
        Verdict::Drop(_) => {}
        Verdict::Send {
            path: Path::Encap,
            ifindex: 1,
        } => {
            let outer = tunnelled(input, &tables, &before, after);
            assert_eq!(after.len(), before.len() + outer, "length");
            unchanged(input, &before[ETH..], &after[ETH + outer..], None);
        }
        Verdict::Deliver {
            path: Path::TooBig,
            ifindex: 1,
        } => {
            let config = tables.config().expect("a configuration");
            assert_eq!(after[..6], config.mc0_mac, "address of mc0");
            assert_eq!(after[12..ETH], before[12..ETH], "ethertype");
            answer(input, &before[ETH..], &after[ETH..]);
        }
        other => panic!("to_remote: {other:?}"),
    }
    only_counted(&input.tables(), &tables);
}

fn arrive(input: &Input, frame: &[u8]) {
    let Some(mut packet) = input.packet(frame) else {
        return;
    };
    let tables = input.tables();
    let config = *tables.config().expect("a configuration");
    let before = packet.bytes().to_vec();
    let verdict = path::from_underlay(&mut packet, &tables);
    let after = packet.bytes();
    let outer = if input.shape.outer_v6 { 40 } else { 20 } + TAIL;
    match ours(&before, &config, input.shape.outer_v6) {
        Some(true) => assert_ne!(verdict, Verdict::Pass, "ours, and passed"),
        Some(false) => assert_eq!(verdict, Verdict::Pass, "not ours"),
        None => {}
    }
    match verdict {
        Verdict::Pass => assert_eq!(after, before, "passed, and not as it came"),
        Verdict::Drop(_) => {}
        Verdict::Consume {
            path: Path::ProbeReply,
        } => {
            consumed(&input.tables(), &tables);
            return;
        }
        Verdict::Send {
            path: Path::Transit,
            ifindex: 1,
        } => {
            assert_eq!(after.len(), before.len(), "length");
            assert!(
                config.flags & CONFIG_GATEWAY != 0 || !input.gateway,
                "a gateway's work"
            );
            let (old, new) = (
                outer_of(&before[ETH..]).expect("a header"),
                outer_of(&after[ETH..]).expect("a header"),
            );
            assert_eq!(new.ttl, old.ttl - 1, "TTL");
            assert!(new.header_is_sound(), "outer header checksum");
            is_next_hop(&tables, &new);
            let (old_udp, new_udp) = (udp_of(&old), udp_of(&new));
            assert_eq!(old_udp[..6], new_udp[..6], "ports and length");
            // An MSS that is lowered changes what the outer checksum covers, and so does the inner checksum
            // against it: unless a device is still to complete that one, which the outer one presumes.
            if old_udp[6..8] != [0, 0] && is_right(&before[ETH..]) && new_udp[6..8] != [0, 0] {
                assert!(
                    is_right(&after[ETH..]) || input.is_gso() || input.summed_later,
                    "outer UDP checksum"
                );
            }
            assert_eq!(old_udp[8..30], new_udp[8..30], "tunnel header and inner Ethernet");
            unchanged(input, &before[ETH + outer..], &after[ETH + outer..], None);
        }
        Verdict::Send {
            path: Path::Reflect,
            ifindex: 1,
        } => reflected(input, &before, after),
        Verdict::Send {
            path: Path::TooBig,
            ifindex: 1,
        } => {
            let (old, new) = (
                outer_of(&before[ETH..]).expect("a header"),
                outer_of(&after[ETH..]).expect("a header"),
            );
            assert_eq!((new.src, new.dst), (old.dst, old.src), "the way back");
            assert!(
                new.header_is_sound() && ip(&after[ETH..]).is_some_and(|outer| outer.rest.is_empty()),
                "outer header of an error"
            );
            let datagram = udp_of(&new);
            assert!(datagram[6..8] == [0, 0] || new.is_sound(), "outer UDP checksum");
            assert_eq!(datagram[2..4], config.port.to_be_bytes(), "port");
            answer(input, &before[ETH + outer..], &after[ETH + outer..]);
        }
        Verdict::Deliver {
            path: Path::Deliver,
            ifindex: 1,
        } => {
            assert_eq!(after.len(), before.len() - outer, "length");
            assert_eq!(after[..6], config.mc0_mac, "address of mc0");
            let inner = ip(&after[ETH..]).expect("a sound packet");
            assert_eq!(after[12..ETH], inner.ethertype(), "ethertype");
            let dst = tables.prefix(Address::from(mapped(inner.dst))).expect("a prefix");
            assert_ne!(dst.action, ACTION_FORWARD, "delivered elsewhere");
            let met = outer_of(&before[ETH..]).expect("a header").tos;
            unchanged(input, &before[ETH + outer..], &after[ETH..], Some(met));
        }
        other => panic!("from_underlay: {other:?}"),
    }
    only_counted(&input.tables(), &tables);
}

/// Whether a frame is ours, where that is beyond doubt.
fn ours(frame: &[u8], config: &Config, outer_v6: bool) -> Option<bool> {
    let ethertype = &frame[12..14];
    if ethertype != [8, 0] && ethertype != [0x86, 0xdd] {
        return Some(false);
    }
    let packet = &frame[ETH..];
    let v6 = ethertype == [0x86, 0xdd];
    let len = if v6 { 40 } else { 20 };
    // With everything an inner IPv6 header has: then nothing is too short.
    if packet.len() < len + TAIL + 40 {
        return None;
    }
    if !v6 && packet[0] != 0x45 || v6 && packet[0] >> 4 != 6 {
        return None;
    }
    let proto = if v6 { packet[6] } else { packet[9] };
    let fragment = if v6 {
        proto == 44
    } else {
        packet[6] & 0x3f != 0 || packet[7] != 0
    };
    if fragment {
        return None;
    }
    let dst = if v6 {
        <Addr>::try_from(&packet[24..40]).expect("sixteen bytes")
    } else {
        mapped(IpAddr::from(
            <[u8; 4]>::try_from(&packet[16..20]).expect("four bytes"),
        ))
    };
    let port = u16::from_be_bytes([packet[len + 2], packet[len + 3]]);
    if proto != 17 || port != config.port || !config.local.contains(&dst) || v6 != outer_v6 {
        return Some(false);
    }
    let tunnel = &packet[len + 8..];
    let plain = tunnel[..4] == [0, 0, 0x65, 0x58] || tunnel[..4] == [8, 0, 0, 0];
    if !plain {
        return None;
    }
    let geneve_here = config.port == 6081;
    if geneve_here != (tunnel[0] == 0) {
        return None;
    }
    Some(tunnel[8..14] == F0)
}

fn udp_of<'p>(outer: &Ip<'p>) -> &'p [u8] {
    assert!(outer.payload.len() >= TAIL, "a datagram without a frame");
    outer.payload
}

fn is_next_hop(tables: &MapTables, outer: &Ip<'_>) {
    let known = tables
        .members
        .values()
        .any(|member| member.addr == mapped(outer.dst) && member.local == mapped(outer.src));
    assert!(known, "{} to {} is no member", outer.src, outer.dst);
}

/// The outer headers of a packet that was put into its tunnel; returns how many bytes they are.
fn tunnelled(input: &Input, tables: &MapTables, before: &[u8], after: &[u8]) -> usize {
    let config = tables.config().expect("a configuration");
    let outer = ip(&after[ETH..]).expect("a sound outer packet");
    assert_eq!(after[12..ETH], outer.ethertype(), "ethertype");
    assert!(
        outer.header_is_sound() && outer.rest.is_empty(),
        "outer length or checksum"
    );
    assert_eq!((outer.proto, outer.ttl), (17, 64));
    is_next_hop(tables, &outer);
    let datagram = udp_of(&outer);
    assert_eq!(datagram[2..4], config.port.to_be_bytes(), "port");
    assert_eq!(
        usize::from(u16::from_be_bytes([datagram[4], datagram[5]])),
        datagram.len(),
        "UDP length"
    );
    let format: &[u8] = if input.shape.vxlan {
        &[8, 0, 0, 0, 0, 0, 0, 0]
    } else {
        &[0, 0, 0x65, 0x58, 0, 0, 0, 0]
    };
    assert_eq!(datagram[8..16], *format, "tunnel header");
    assert_eq!(datagram[16..22], F0, "inner destination");
    assert_eq!(datagram[22..28], config.mc0_mac, "inner source");
    assert_eq!(datagram[28..30], before[12..14], "inner ethertype");
    let inner = ip(&datagram[TAIL..]).expect("a sound inner packet");
    // The outer sum is derived from the inner checksums, and right where those are.
    let inner_is_right = inner.header_is_sound() && inner.is_sound() && inner.rest.is_empty();
    if datagram[6..8] != [0, 0] && inner_is_right && !input.summed_later {
        assert!(outer.is_sound(), "outer UDP checksum");
    }
    outer.header.len() + TAIL
}

/// Compares a packet with what it was: only the MSS of a SYN may have got smaller and, once it is out of its
/// tunnel, ECN says what the `outer` header met (RFC 6040); with the checksums that cover them.
fn unchanged(input: &Input, before: &[u8], after: &[u8], outer: Option<u8>) {
    let (Some(old), Some(new)) = (ip(before), ip(after)) else {
        assert_eq!(before, after, "a packet that cannot be read");
        return;
    };
    let mut expected = before.to_vec();
    let marked = match (outer.map(|tos| tos & 3), old.tos & 3) {
        (Some(3), 1 | 2) => old.tos | 3,
        (Some(1), 2) => old.tos ^ 3,
        _ => old.tos,
    };
    if old.tos != new.tos {
        assert_eq!(new.tos, marked, "ECN");
        assert!(new.header_is_sound() || !old.header_is_sound(), "header checksum");
        if old.v6 {
            expected[..2].copy_from_slice(&after[..2]);
        } else {
            expected[1] = after[1];
            expected[10..12].copy_from_slice(&after[10..12]);
        }
    }
    let segment = old.payload;
    let syn = old.proto == 6 && !old.fragment && segment.len() >= 20 && segment[13] & 2 != 0;
    if syn
        && let (Some((at, was)), Some((_, is))) = (mss(segment), mss(new.payload))
        && was != is
    {
        assert!(is < was, "MSS raised from {was} to {is}");
        let start = old.header.len();
        for at in [at, at + 1, 16, 17] {
            expected[start + at] = after[start + at];
        }
        assert!(
            input.summed_later || new.is_sound() || !old.is_sound(),
            "TCP checksum"
        );
    }
    assert_eq!(expected, after, "bytes that must not change");
}

/// An ICMP error about `before`.
fn answer(input: &Input, before: &[u8], after: &[u8]) {
    let (old, new) = (
        ip(before).expect("a sound packet"),
        ip(after).expect("a sound error"),
    );
    assert!(before.len() > mtu_of(input), "it fits");
    assert_eq!(
        (new.src, new.dst),
        (old.dst, old.src),
        "from its destination to its source"
    );
    assert!(
        new.header_is_sound() && new.rest.is_empty(),
        "header of the error"
    );
    let mtu = u32::from_be_bytes([0, 0, new.payload[6], new.payload[7]]);
    if old.v6 {
        assert!(after.len() <= MOST_V6, "{} bytes", after.len());
        assert_eq!((new.proto, &new.payload[..2]), (58, &[2, 0][..]));
        assert_eq!(
            l4_checksum(new.src, new.dst, 58, new.payload),
            0,
            "checksum of the error"
        );
        assert_eq!(mtu, input.mtu.max(1_280));
    } else {
        assert!(after.len() <= MOST_V4, "{} bytes", after.len());
        assert_eq!((new.proto, &new.payload[..2]), (1, &[3, 4][..]));
        assert_eq!(checksum(new.payload), 0, "checksum of the error");
        assert_eq!(mtu, input.mtu.max(68));
    }
    let quoted = &new.payload[8..];
    if !input.summed_later {
        assert_eq!(quoted, &before[..quoted.len()], "what is quoted");
    }
}

fn mtu_of(input: &Input) -> usize {
    usize::try_from(input.mtu).expect("small")
}

/// A probe that was turned round where it stood.
fn reflected(input: &Input, before: &[u8], after: &[u8]) {
    let tables = input.tables();
    let config = tables.config().expect("a configuration");
    assert_eq!(after.len(), before.len(), "length");
    let (old, new) = (
        outer_of(&before[ETH..]).expect("a header"),
        outer_of(&after[ETH..]).expect("a header"),
    );
    assert_eq!((new.src, new.dst, new.ttl), (old.dst, old.src, 64));
    assert!(new.header_is_sound(), "outer header checksum");
    let (asked, told) = (udp_of(&old), udp_of(&new));
    assert_eq!(told[28..30], PROBE, "ethertype");
    assert_eq!(told[22..28], config.mc0_mac, "inner source");
    assert_eq!(told[..6], asked[..6], "ports and length");
    assert!(matches!((asked[TAIL + 1], told[TAIL + 1]), (1, 2) | (3, 4)));
    assert_eq!(
        told[TAIL + 2..],
        asked[TAIL + 2..],
        "everything but the kind comes back"
    );
    // One that a device is still to complete says nothing yet.
    if asked[6..8] != [0, 0] && is_right(&before[ETH..]) && !input.summed_later {
        assert!(is_right(&after[ETH..]), "outer UDP checksum");
    }
}

/// An answer to a probe changes what is known of one member, and never for the worse.
fn consumed(before: &MapTables, after: &MapTables) {
    let (old, new) = (before.health.seen.borrow(), after.health.seen.borrow());
    let changed: Vec<_> = new
        .iter()
        .filter(|(slot, seen)| old.get(slot) != Some(seen))
        .collect();
    assert!(changed.len() <= 1, "{changed:?}");
    for (slot, seen) in changed {
        let was = old.get(slot).expect("a member that is probed");
        let sent = before.health.sent.get(slot).expect("a member that is probed");
        assert_eq!(seen.id, was.id);
        assert!(
            seen.sequence >= was.sequence && seen.sequence <= sent.sequence,
            "{was:?} {seen:?}"
        );
    }
}

/// Nothing a decision reads has changed.
fn only_counted(before: &MapTables, after: &MapTables) {
    assert_eq!(before.health, after.health, "liveness");
    assert_eq!(before.members, after.members);
}
