//! Arbitrary frames, and too large packets, through the data path's programs.
//!
//! *Properties*: no panic; other traffic passes bit-identical, and multi-cluster traffic never passes; forwarded
//! packets have the correct length, only values of the tables and no other changes; valid checksums remain valid,
//! recomputed in full.

use std::net::IpAddr;

use mc_gateway_common::{
    abi::{ACTION_DELIVER, ACTION_FORWARD, Addr, CLUSTER_LOCAL, CONFIG_GATEWAY, Config},
    maps::{Maps as _, MemoryMaps},
    packet::Address,
    pipeline,
    verdict::{Outcome, Verdict},
};

use crate::{
    decode_input::{Input, MAX_FILL},
    fixture::{POD_HERE, POD_NODE, POD_WEST, WEST_GATEWAY},
    headers::{Ip, checksum_at, checksum_is_valid, ip, mss, outer_ip as outer_of},
    packets::{F0, checksum, l4_checksum, with_checksum},
};

/// Bytes of an Ethernet header.
pub(crate) const ETH: usize = 14;
/// Bytes between an outer IP header and the inner one.
pub(crate) const TUNNEL_LEN: usize = 8 + 8 + ETH;
/// Largest ICMP errors: RFC 1812 section 4.3.2.3, RFC 4443 section 2.4.
const MAX_ERROR_V4: usize = 576;
const MAX_ERROR_V6: usize = 1_280;
/// Ethertype of probes.
const PROBE: [u8; 2] = [0x88, 0xb5];

pub(crate) fn mapped(address: IpAddr) -> Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A frame sent on `mc0`.
pub fn to_remote(data: &[u8]) {
    let Some((input, frame)) = Input::read(data) else {
        return;
    };
    run_to_remote(&input, frame);
}

/// A frame received on an underlay device.
pub fn from_underlay(data: &[u8]) {
    let Some((input, frame)) = Input::read(data) else {
        return;
    };
    run_from_underlay(&input, frame);
}

/// A valid packet of any protocol and payload, usually too large for its next hop: almost every input reaches the code
/// for ICMP errors.
pub fn too_big(data: &[u8]) {
    let Some((&[flags, sizes, low, high, proto, way], payload)) = data.split_first_chunk::<6>() else {
        return;
    };
    // Filled up here and not behind the frame, since the payload must be complete.
    let fill = usize::from(u16::from_le_bytes([low, high])) % MAX_FILL;
    let mut whole = payload.to_vec();
    whole.extend((0..fill).map(|at| at.to_le_bytes()[0]));
    let Some((input, _)) = Input::read(&[flags, sizes, 0, 0]) else {
        return;
    };
    let shape = input.shape;
    let (src, dst) = if way & 1 == 0 {
        (if input.gateway { POD_HERE } else { POD_NODE }, POD_WEST)
    } else {
        (POD_WEST, if way & 2 == 0 { POD_NODE } else { POD_HERE })
    };
    let (src, dst) = (shape.inner(src), shape.inner(dst));
    if let Some(at) = checksum_at(proto)
        && whole.len() > at + 1
        && way & 4 == 0
    {
        whole = with_checksum(src, dst, proto, whole, at);
    }
    let mut inner = crate::packets::Ip::new(src, dst, proto, whole);
    if way & 8 != 0 && !shape.inner_v6 {
        inner.frags = 0x2000;
    }
    if way & 1 == 0 {
        run_to_remote(&input, &inner.frame());
        return;
    }
    let to = if input.gateway {
        crate::fixture::GATEWAY_OUTSIDE
    } else {
        crate::fixture::NODE
    };
    let from = if input.gateway {
        WEST_GATEWAY
    } else {
        crate::fixture::GATEWAY_INSIDE
    };
    let mut tunnel = crate::packets::Tunnel::new(shape.outer(from), shape.outer(to), &inner);
    tunnel.vxlan = shape.vxlan;
    tunnel.dst_port = shape.port();
    tunnel.udp_checksum = way & 16 != 0;
    run_from_underlay(&input, &tunnel.frame());
}

fn run_to_remote(input: &Input, frame: &[u8]) {
    let Some(mut packet) = input.packet_with(frame) else {
        return;
    };
    let tables = input.tables();
    let before = packet.bytes().to_vec();
    let verdict = pipeline::to_remote(&mut packet, &tables);
    let after = packet.bytes();
    match verdict {
        Verdict::Drop(_) => {}
        Verdict::Send {
            outcome: Outcome::Encap,
            ifindex: 1,
            ..
        } => {
            let source = ip(&before[ETH..]).expect("a valid packet").src;
            assert!(!is_mapped(source), "sent as {source}");
            let prefix = tables
                .prefix(Address::from(mapped(source)), CLUSTER_LOCAL)
                .expect("a prefix");
            assert_eq!(
                (prefix.cluster, prefix.action),
                (CLUSTER_LOCAL, ACTION_DELIVER),
                "sent as {source}"
            );
            let outer = check_encap(input, &tables, &before, after);
            assert_eq!(after.len(), before.len() + outer, "length");
            check_inner(input, &before[ETH..], &after[ETH + outer..], None);
        }
        Verdict::Deliver {
            outcome: Outcome::TooBig,
            ifindex: 1,
        } => {
            let config = tables.config().expect("a configuration");
            assert_eq!(after[..6], config.mc0_mac, "address of mc0");
            assert_eq!(after[12..ETH], before[12..ETH], "ethertype");
            check_too_big(input, &before[ETH..], &after[ETH..]);
        }
        other => panic!("to_remote: {other:?}"),
    }
    check_only_counters_changed(&input.tables(), &tables);
}

/// Checks the inner Ethernet header of a forwarded packet: the source is the secret of the next hop.
fn check_link_header(before: &[u8], after: &[u8], next_hop: IpAddr) {
    assert_eq!(before[8..22], after[8..22], "tunnel header and inner destination");
    // A backend ID is combined with the address.
    let plain = after[22..28] == crate::fixture::sent_mac_to(next_hop).bytes();
    assert!(plain || after[22] & 4 != 0, "inner source {:?}", &after[22..28]);
    assert_eq!(before[28..30], after[28..30], "inner ethertype");
}

/// Checks a packet that a gateway forwards.
fn check_transit(input: &Input, tables: &MemoryMaps, before: &[u8], after: &[u8]) {
    let config = tables.config().expect("a configuration");
    let outer = if input.shape.outer_v6 { 40 } else { 20 } + TUNNEL_LEN;
    assert_eq!(after.len(), before.len(), "length");
    assert!(
        config.flags & CONFIG_GATEWAY != 0 || !input.gateway,
        "transit at a regular node"
    );
    let (old, new) = (
        outer_of(&before[ETH..]).expect("a header"),
        outer_of(&after[ETH..]).expect("a header"),
    );
    assert_eq!(new.ttl, old.ttl - 1, "TTL");
    assert!(new.header_checksum_is_valid(), "outer header checksum");
    assert_next_hop(tables, &new);
    let (old_udp, new_udp) = (udp_of(&old), udp_of(&new));
    assert_eq!(old_udp[..6], new_udp[..6], "ports and length");
    // MSS clamping and its inner checksum update cancel out in the outer checksum, except for a partial inner
    // checksum that a device completes later.
    if old_udp[6..8] != [0, 0] && checksum_is_valid(&before[ETH..]) && new_udp[6..8] != [0, 0] {
        assert!(
            checksum_is_valid(&after[ETH..]) || input.is_gso() || input.partial_checksum,
            "outer UDP checksum"
        );
    }
    check_link_header(old_udp, new_udp, new.dst);
    check_inner(input, &before[ETH + outer..], &after[ETH + outer..], None);
}

fn run_from_underlay(input: &Input, frame: &[u8]) {
    let Some(mut packet) = input.packet_with(frame) else {
        return;
    };
    let tables = input.tables();
    let config = *tables.config().expect("a configuration");
    let before = packet.bytes().to_vec();
    let verdict = pipeline::from_underlay(&mut packet, &tables);
    let after = packet.bytes();
    let outer = if input.shape.outer_v6 { 40 } else { 20 } + TUNNEL_LEN;
    match is_multicluster(&before, &config, input.shape.outer_v6) {
        Some(true) => assert_ne!(verdict, Verdict::Pass, "multi-cluster frame passed"),
        Some(false) => assert_eq!(verdict, Verdict::Pass, "other frame did not pass"),
        None => {}
    }
    match verdict {
        Verdict::Pass => assert_eq!(after, before, "passed and modified"),
        Verdict::Drop(_) => {}
        Verdict::Consume {
            outcome: Outcome::ProbeReply,
        } => {
            check_liveness_update(&input.tables(), &tables);
            return;
        }
        Verdict::Send {
            outcome: Outcome::Transit,
            ifindex: 1,
            ..
        } => {
            check_transit(input, &tables, &before, after);
        }
        Verdict::Send {
            outcome: Outcome::Reflect,
            ifindex: 1,
            ..
        } => check_reflected_probe(input, &before, after),
        Verdict::Send {
            outcome: Outcome::TooBig,
            ifindex: 1,
            ..
        } => {
            let (old, new) = (
                outer_of(&before[ETH..]).expect("a header"),
                outer_of(&after[ETH..]).expect("a header"),
            );
            assert_eq!((new.src, new.dst), (old.dst, old.src), "reversed addresses");
            assert!(
                new.header_checksum_is_valid()
                    && ip(&after[ETH..]).is_some_and(|outer| outer.rest.is_empty()),
                "outer header of an error"
            );
            let datagram = udp_of(&new);
            assert!(
                datagram[6..8] == [0, 0] || new.payload_checksum_is_valid(),
                "outer UDP checksum"
            );
            assert_eq!(datagram[2..4], config.port.to_be_bytes(), "port");
            check_too_big(input, &before[ETH + outer..], &after[ETH + outer..]);
        }
        Verdict::Deliver {
            outcome: Outcome::Deliver,
            ifindex: 1,
        } => {
            assert_eq!(after.len(), before.len() - outer, "length");
            assert_eq!(after[..6], config.mc0_mac, "address of mc0");
            let inner = ip(&after[ETH..]).expect("a valid packet");
            assert!(
                !is_mapped(inner.src) && !is_mapped(inner.dst),
                "{} to {}",
                inner.src,
                inner.dst
            );
            assert_eq!(after[12..ETH], inner.ethertype(), "ethertype");
            let dst = tables
                .prefix(Address::from(mapped(inner.dst)), CLUSTER_LOCAL)
                .expect("a prefix");
            assert_ne!(dst.action, ACTION_FORWARD, "delivered instead of forwarded");
            let met = outer_of(&before[ETH..]).expect("a header").tos;
            check_inner(input, &before[ETH + outer..], &after[ETH..], Some(met));
        }
        other => panic!("from_underlay: {other:?}"),
    }
    check_only_counters_changed(&input.tables(), &tables);
}

/// Whether an IPv6 header has the maps' form of an IPv4 address.
fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// Whether a frame is multi-cluster traffic; `None` in unclear cases.
fn is_multicluster(frame: &[u8], config: &Config, outer_v6: bool) -> Option<bool> {
    let ethertype = &frame[12..14];
    if ethertype != [8, 0] && ethertype != [0x86, 0xdd] {
        return Some(false);
    }
    let packet = &frame[ETH..];
    let v6 = ethertype == [0x86, 0xdd];
    let len = if v6 { 40 } else { 20 };
    // Long enough for an inner IPv6 header, so that no header is truncated.
    if packet.len() < len + TUNNEL_LEN + 40 {
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
    // Zeros are an unused entry.
    let local = dst != [0; 16] && config.local.contains(&dst);
    if proto != 17 || port != config.port || !local || v6 != outer_v6 {
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
    assert!(outer.payload.len() >= TUNNEL_LEN, "datagram without a frame");
    outer.payload
}

fn assert_next_hop(tables: &MemoryMaps, outer: &Ip<'_>) {
    let known = tables
        .next_hops
        .values()
        .any(|next_hop| next_hop.addr == mapped(outer.dst) && next_hop.local == mapped(outer.src));
    assert!(known, "{} to {} is no next hop", outer.src, outer.dst);
}

/// Checks the outer headers of an encapsulated packet and returns their length.
fn check_encap(input: &Input, tables: &MemoryMaps, before: &[u8], after: &[u8]) -> usize {
    let config = tables.config().expect("a configuration");
    let outer = ip(&after[ETH..]).expect("a valid outer packet");
    assert_eq!(after[12..ETH], outer.ethertype(), "ethertype");
    assert!(
        outer.header_checksum_is_valid() && outer.rest.is_empty(),
        "outer length or checksum"
    );
    assert_eq!((outer.proto, outer.ttl), (17, 64));
    assert_next_hop(tables, &outer);
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
    assert_eq!(
        datagram[22..28],
        crate::fixture::sent_mac_to(outer.dst).bytes(),
        "inner source"
    );
    assert_eq!(datagram[28..30], before[12..14], "inner ethertype");
    let inner = ip(&datagram[TUNNEL_LEN..]).expect("a valid inner packet");
    // The outer checksum derives from the inner ones and is valid if they are.
    let inner_is_right =
        inner.header_checksum_is_valid() && inner.payload_checksum_is_valid() && inner.rest.is_empty();
    if datagram[6..8] != [0, 0] && inner_is_right && !input.partial_checksum {
        assert!(outer.payload_checksum_is_valid(), "outer UDP checksum");
    }
    outer.header.len() + TUNNEL_LEN
}

/// Compares a packet with its original: only the MSS of a SYN may be lowered and, after decapsulation, the ECN field
/// may change by that of the `outer` header (RFC 6040), with their checksums.
fn check_inner(input: &Input, before: &[u8], after: &[u8], outer: Option<u8>) {
    let (Some(old), Some(new)) = (ip(before), ip(after)) else {
        assert_eq!(before, after, "unreadable packet");
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
        assert!(
            new.header_checksum_is_valid() || !old.header_checksum_is_valid(),
            "header checksum"
        );
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
            input.partial_checksum || new.payload_checksum_is_valid() || !old.payload_checksum_is_valid(),
            "TCP checksum"
        );
    }
    assert_eq!(expected, after, "other bytes");
}

/// Checks an ICMP error about `before`.
fn check_too_big(input: &Input, before: &[u8], after: &[u8]) {
    let (old, new) = (
        ip(before).expect("a valid packet"),
        ip(after).expect("a valid error"),
    );
    assert!(before.len() > mtu_of(input), "error about a packet that fits");
    assert_eq!(
        (new.src, new.dst),
        (old.dst, old.src),
        "from its destination to its source"
    );
    assert!(
        new.header_checksum_is_valid() && new.rest.is_empty(),
        "header of the error"
    );
    let mtu = u32::from_be_bytes([0, 0, new.payload[6], new.payload[7]]);
    if old.v6 {
        assert!(after.len() <= MAX_ERROR_V6, "{} bytes", after.len());
        assert_eq!((new.proto, &new.payload[..2]), (58, &[2, 0][..]));
        assert_eq!(
            l4_checksum(new.src, new.dst, 58, new.payload),
            0,
            "checksum of the error"
        );
        assert_eq!(mtu, input.mtu.max(1_280));
    } else {
        assert!(after.len() <= MAX_ERROR_V4, "{} bytes", after.len());
        assert_eq!((new.proto, &new.payload[..2]), (1, &[3, 4][..]));
        assert_eq!(checksum(new.payload), 0, "checksum of the error");
        assert_eq!(mtu, input.mtu.max(68));
    }
    let quoted = &new.payload[8..];
    if !input.partial_checksum {
        assert_eq!(quoted, &before[..quoted.len()], "quoted packet");
    }
}

fn mtu_of(input: &Input) -> usize {
    usize::try_from(input.mtu).expect("small")
}

/// Checks a reflected probe.
fn check_reflected_probe(input: &Input, before: &[u8], after: &[u8]) {
    assert_eq!(after.len(), before.len(), "length");
    let (old, new) = (
        outer_of(&before[ETH..]).expect("a header"),
        outer_of(&after[ETH..]).expect("a header"),
    );
    assert_eq!((new.src, new.dst, new.ttl), (old.dst, old.src, 64));
    assert!(new.header_checksum_is_valid(), "outer header checksum");
    let (request, reply) = (udp_of(&old), udp_of(&new));
    assert_eq!(reply[28..30], PROBE, "ethertype");
    assert_eq!(
        reply[22..28],
        crate::fixture::sent_mac_to(new.dst).bytes(),
        "inner source"
    );
    assert_eq!(reply[..6], request[..6], "ports and length");
    assert!(matches!(
        (request[TUNNEL_LEN + 1], reply[TUNNEL_LEN + 1]),
        (1, 2) | (3, 4)
    ));
    assert_eq!(
        reply[TUNNEL_LEN + 2..],
        request[TUNNEL_LEN + 2..],
        "fields other than the kind"
    );
    // A partial checksum is completed later by a device.
    if request[6..8] != [0, 0] && checksum_is_valid(&before[ETH..]) && !input.partial_checksum {
        assert!(checksum_is_valid(&after[ETH..]), "outer UDP checksum");
    }
}

/// A probe reply updates the liveness of one next hop at most, and only to newer values.
fn check_liveness_update(before: &MemoryMaps, after: &MemoryMaps) {
    let (old, new) = (before.health.seen.borrow(), after.health.seen.borrow());
    let changed: Vec<_> = new
        .iter()
        .filter(|(slot, seen)| old.get(slot) != Some(seen))
        .collect();
    assert!(changed.len() <= 1, "{changed:?}");
    for (slot, seen) in changed {
        let was = old.get(slot).expect("a probed next hop");
        let sent = before.health.sent.get(slot).expect("a probed next hop");
        assert_eq!(seen.id, was.id);
        assert!(
            seen.sequence >= was.sequence && seen.sequence <= sent.sequence,
            "{was:?} {seen:?}"
        );
    }
}

/// Checks that no input of a decision changed.
fn check_only_counters_changed(before: &MemoryMaps, after: &MemoryMaps) {
    assert_eq!(before.health, after.health, "liveness");
    assert_eq!(before.next_hops, after.next_hops);
}
