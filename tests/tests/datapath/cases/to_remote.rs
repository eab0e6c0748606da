//! `to_remote`: encapsulation and drops.

use std::net::IpAddr;

use mc_gateway_common::{
    abi::{
        ACTION_DELIVER, ACTION_SERVICE, CLUSTER_LOCAL, CONFIG_BACKENDS, IDENTITY_UNKNOWN, PREFIX_BACKENDS,
        Prefix, V4_PREFIX_BITS,
    },
    flow,
    maps::MemoryMaps,
    packet::{
        SlicePacket,
        encap::source_port,
        ip::{Header, mapped},
    },
    verdict::DropReason,
};

use super::{Case, Expect, Program, web};
use crate::{
    fixture::{
        self, ALIAS_SOUTH, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, OTHER_GATEWAY, POD_HERE, POD_NODE,
        POD_NORTH, POD_SOUTH, POD_WEST, SERVICE_HERE, SERVICE_SOUTH, SERVICE_WEST, STRANGER, Shape,
        WEST_GATEWAY,
    },
    packets::{Ip, OUTER_DST, Tunnel, checksum, ethernet, udp},
};

fn case(name: impl Into<String>, tables: MemoryMaps, frame: Vec<u8>, expect: Expect) -> Case {
    Case {
        gso_size: 0,
        name: name.into(),
        program: Program::ToRemote,
        tables,
        frame,
        expect,
    }
}

/// The expected encapsulated packet. Source port and flow label derive from the flow hash under test.
pub(super) fn encapsulated(inner: &Ip, src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Tunnel {
    let mut tunnel = Tunnel::new(src, dst, inner);
    let hash = hash_of(inner);
    tunnel.src_port = source_port(hash);
    tunnel.label = hash & 0x000f_ffff;
    tunnel.tos = inner.tos;
    tunnel.inner_src = fixture::sent_mac_to(tunnel.dst).bytes();
    tunnel
}

fn hash_of(inner: &Ip) -> u32 {
    let bytes = inner.bytes();
    let (header, len) = match inner.src {
        IpAddr::V4(_) => (Header::v4(bytes[..20].try_into().expect("a header")), 20),
        IpAddr::V6(_) => (Header::v6(bytes[..40].try_into().expect("a header")), 40),
    };
    let next = bytes.get(len..len + 4);
    let next = next.map_or([0; 4], |p| p.try_into().expect("four bytes"));
    flow::hash(
        &SlicePacket::new(inner.frame()),
        &header,
        14,
        u32::from_le_bytes(next),
    )
}

fn encap_case(name: &'static str, tables: MemoryMaps, inner: &Ip, src: [u8; 4], dst: [u8; 4]) -> Case {
    let expect = Expect::Encap(encapsulated(inner, src, dst).frame());
    case(name, tables, inner.frame(), expect)
}

pub(crate) fn encap(cases: &mut Vec<Case>) {
    let from_node = |name, inner: &Ip| encap_case(name, fixture::node(), inner, NODE, GATEWAY_INSIDE);
    let from_gateway =
        |name, inner: &Ip| encap_case(name, fixture::gateway(), inner, GATEWAY_OUTSIDE, WEST_GATEWAY);
    cases.push(from_node("node: TCP to a remote Pod", &web(POD_NODE, POD_WEST)));
    cases.push(from_node(
        "node: TCP to a remote Service",
        &web(POD_NODE, SERVICE_WEST),
    ));
    cases.push(from_gateway(
        "gateway: TCP to a remote Pod",
        &web(POD_HERE, POD_WEST),
    ));
    cases.push(from_gateway(
        "gateway: reply from a Service address",
        &web(SERVICE_HERE, POD_WEST),
    ));
    identities(cases);
    let datagram = Ip::new(POD_NODE, POD_WEST, 17, udp(53, 5353, b"x"));
    cases.push(from_node("node: UDP, odd length", &datagram));
    let ping = Ip::new(POD_NODE, POD_WEST, 1, [8, 0, 0xf7, 0xff, 0, 0, 0, 0].to_vec());
    cases.push(from_node("node: ICMP echo", &ping));
    cases.push(from_node(
        "node: a header and nothing else",
        &Ip::new(POD_NODE, POD_WEST, 59, []),
    ));
    cases.push(from_node(
        "node: three bytes of payload",
        &Ip::new(POD_NODE, POD_WEST, 17, [1, 2, 3]),
    ));
    let mut options = web(POD_NODE, POD_WEST);
    options.options = vec![1, 1, 1, 0];
    cases.push(from_node("node: IP options", &options));
    let mut first = datagram.clone();
    first.frags = 0x2000;
    cases.push(from_node("node: first fragment", &first));
    let mut last = Ip::new(POD_NODE, POD_WEST, 17, [7; 40]);
    last.frags = 0x00b9;
    cases.push(from_node("node: last fragment", &last));
    cases.push(from_node(
        "node: full-size packet",
        &Ip::new(POD_NODE, POD_WEST, 17, vec![0x5a; 1430]),
    ));
    let mut marked = web(POD_NODE, POD_WEST);
    marked.tos = 0xb9;
    cases.push(from_node("node: DSCP and ECN inside and outside", &marked));
    let mut padded = web(POD_NODE, POD_WEST).frame();
    let inner = web(POD_NODE, POD_WEST);
    padded.extend([0; 6]);
    let mut expected = encapsulated(&inner, NODE, GATEWAY_INSIDE).frame();
    // Padding is encapsulated: the outer lengths cover it.
    expected.extend([0; 6]);
    let total = u16::from_be_bytes([expected[16], expected[17]]) + 6;
    expected[16..18].copy_from_slice(&total.to_be_bytes());
    expected[24..26].fill(0);
    let sum = checksum(&expected[14..34]);
    expected[24..26].copy_from_slice(&sum.to_be_bytes());
    expected[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    cases.push(case(
        "node: frame with padding",
        fixture::node(),
        padded,
        Expect::Encap(expected),
    ));
}

pub(crate) fn dropped(cases: &mut Vec<Case>) {
    let mut drop = |name, tables, frame, reason| cases.push(case(name, tables, frame, Expect::Drop(reason)));
    let west = web(POD_NODE, POD_WEST);
    drop(
        "mc0: no configuration",
        MemoryMaps::default(),
        west.frame(),
        DropReason::NotConfigured,
    );
    drop(
        "mc0: tables of another ABI",
        fixture::foreign_abi(),
        west.frame(),
        DropReason::NotConfigured,
    );
    let ipv6 = ethernet(OUTER_DST, OUTER_DST, 0x86dd, &[0x60; 40]);
    drop(
        "mc0: IPv6 of a wrong length",
        fixture::node(),
        ipv6,
        DropReason::InnerMalformed,
    );
    let arp = ethernet(OUTER_DST, OUTER_DST, 0x0806, &[0; 28]);
    drop("mc0: ARP", fixture::node(), arp, DropReason::NotIp);
    let elsewhere = web(POD_NODE, [192, 0, 2, 1]);
    drop(
        "mc0: destination in no prefix",
        fixture::node(),
        elsewhere.frame(),
        DropReason::NoRoute,
    );
    let local = web(POD_NODE, POD_NODE);
    drop(
        "mc0: destination in the own cluster",
        fixture::node(),
        local.frame(),
        DropReason::NoRoute,
    );
    let sibling = web(POD_HERE, POD_NODE);
    drop(
        "mc0: destination on another node",
        fixture::gateway(),
        sibling.frame(),
        DropReason::NoRoute,
    );
    let empty = web(POD_HERE, [10, 4, 0, 1]);
    drop(
        "mc0: group without next hops",
        fixture::gateway(),
        empty.frame(),
        DropReason::NoNextHop,
    );
    let nowhere = web(POD_HERE, [10, 5, 0, 1]);
    drop(
        "mc0: group beyond the table",
        fixture::gateway(),
        nowhere.frame(),
        DropReason::NoNextHop,
    );
    let undecided = web(POD_HERE, [10, 6, 0, 1]);
    drop(
        "mc0: prefix without an action",
        fixture::gateway(),
        undecided.frame(),
        DropReason::NoRoute,
    );
    let mut frame = west.frame();
    frame.truncate(14 + 19);
    drop(
        "mc0: truncated header",
        fixture::node(),
        frame,
        DropReason::InnerMalformed,
    );
    let mut frame = west.frame();
    frame.pop();
    drop(
        "mc0: shorter than its total length",
        fixture::node(),
        frame,
        DropReason::InnerMalformed,
    );
    let with = |change: fn(&mut Ip)| {
        let mut ip = web(POD_NODE, POD_WEST);
        change(&mut ip);
        ip.frame()
    };
    drop(
        "mc0: version 6 as IPv4",
        fixture::node(),
        with(|ip| ip.vihl = Some(0x65)),
        DropReason::InnerMalformed,
    );
    drop(
        "mc0: header length 4",
        fixture::node(),
        with(|ip| ip.vihl = Some(0x44)),
        DropReason::InnerMalformed,
    );
    drop(
        "mc0: header beyond the frame",
        fixture::node(),
        with(|ip| ip.vihl = Some(0x4f)),
        DropReason::InnerMalformed,
    );
    drop(
        "mc0: total length 0",
        fixture::node(),
        with(|ip| ip.total = Some(0)),
        DropReason::InnerMalformed,
    );
    drop(
        "mc0: total length 19",
        fixture::node(),
        with(|ip| ip.total = Some(19)),
        DropReason::InnerMalformed,
    );
}

/// Sources that this node must not send, in both families.
pub(crate) fn spoofed(cases: &mut Vec<Case>) {
    const UNOWNED: [u8; 4] = [198, 51, 100, 7];
    for inner_v6 in [false, true] {
        let shape = Shape {
            inner_v6,
            ..Shape::default()
        };
        let version = if inner_v6 { 6 } else { 4 };
        let (gateway, node) = (shape.tables(fixture::gateway()), shape.tables(fixture::node()));
        for (place, tables, sources) in [
            (
                "gateway",
                &gateway,
                &[
                    ("a Pod of another node", POD_NODE),
                    ("a Pod of the other cluster", POD_WEST),
                    ("a Pod of a third cluster", POD_NORTH),
                    ("a Service of the other cluster", SERVICE_WEST),
                    ("its own underlay address", GATEWAY_OUTSIDE),
                    ("another gateway's underlay address", OTHER_GATEWAY),
                    ("the other cluster's gateway", WEST_GATEWAY),
                    ("a host of the underlay", STRANGER),
                    ("an address without an owner", UNOWNED),
                    ("no address", [0, 0, 0, 0]),
                    ("loopback", [127, 0, 0, 1]),
                ][..],
            ),
            (
                "node",
                &node,
                &[
                    ("a Pod of another node", POD_HERE),
                    ("a Pod of the other cluster", POD_WEST),
                    ("a Service of the other cluster", SERVICE_WEST),
                    ("its own underlay address", NODE),
                    ("its gateway's underlay address", GATEWAY_INSIDE),
                    ("an address without an owner", UNOWNED),
                ][..],
            ),
        ] {
            for (source, address) in sources {
                cases.push(case(
                    format!("spoof: IPv{version}, {place} sends as {source}"),
                    tables.clone(),
                    web(shape.inner(*address), shape.inner(POD_WEST)).frame(),
                    Expect::Drop(DropReason::InnerSource),
                ));
            }
        }
    }
    spoofed_towards_antrea(cases);
    translated_only(cases);
}

/// The address of this gateway towards Antrea gateways, and replies that its stack has translated.
fn spoofed_towards_antrea(cases: &mut Vec<Case>) {
    let mut drop = |name, src, dst| {
        cases.push(case(
            format!("spoof: antrea: {name}"),
            fixture::antrea(),
            web(src, dst).frame(),
            Expect::Drop(DropReason::InnerSource),
        ));
    };
    drop("own gatewayIP to another cluster", GATEWAY_OUTSIDE, POD_WEST);
    drop("another node's Pod to the cluster", POD_NODE, SERVICE_SOUTH);
    drop("another node's Pod to the alias", POD_NODE, ALIAS_SOUTH);
    drop("another cluster's Pod to the alias", POD_WEST, ALIAS_SOUTH);
    drop("own Pod to another node", POD_HERE, POD_NODE);
    drop("own Service to another node", SERVICE_HERE, POD_NODE);
    drop("own gatewayIP to another node", GATEWAY_OUTSIDE, POD_NODE);
    drop("a cluster without Antrea to another node", POD_WEST, POD_NODE);
    drop("an underlay host to another node", STRANGER, POD_NODE);
    for (name, src) in [("a Pod", POD_SOUTH), ("the alias", ALIAS_SOUTH)] {
        let reply = web(src, POD_NODE);
        cases.push(case(
            format!("antrea: a reply of {name} to another node"),
            fixture::antrea(),
            reply.frame(),
            Expect::Encap(encapsulated(&reply, GATEWAY_INSIDE, NODE).frame()),
        ));
    }
}

/// The VNI is the label identity of the longest prefix of the source: a Pod's, or that of the rest of the Pod range.
fn identities(cases: &mut Vec<Case>) {
    let mut tables = fixture::node();
    for prefix in tables.prefixes.values_mut() {
        // No packet has the identity of its destination.
        prefix.identity = if prefix.action == ACTION_DELIVER {
            IDENTITY_UNKNOWN
        } else {
            0x0011_1111
        };
    }
    let pod = Prefix {
        cluster: CLUSTER_LOCAL,
        group: 0,
        action: ACTION_DELIVER,
        flags: 0,
        identity: 0x0012_3456,
    };
    tables
        .prefixes
        .insert((V4_PREFIX_BITS + 32, mapped(POD_NODE)), pod);
    let mut push = |name: &str, src: [u8; 4], identity| {
        let inner = web(src, POD_WEST);
        let mut tunnel = encapsulated(&inner, NODE, GATEWAY_INSIDE);
        tunnel.vni = identity;
        cases.push(case(
            format!("identity: {name}"),
            tables.clone(),
            inner.frame(),
            Expect::Encap(tunnel.frame()),
        ));
    };
    push("of a Pod", POD_NODE, 0x0012_3456);
    push("of an unknown Pod", [10, 1, 0, 77], IDENTITY_UNKNOWN);
}

/// Packets whose source is only acceptable as part of a flow to a Service. The flows themselves are in `services`.
fn translated_only(cases: &mut Vec<Case>) {
    let services = || {
        let mut tables = fixture::node();
        if let Some(config) = &mut tables.config {
            config.flags |= CONFIG_BACKENDS;
        }
        let mut insert = |address, bits, action, flags| {
            let value = Prefix {
                identity: 0,
                cluster: CLUSTER_LOCAL,
                group: 0,
                action,
                flags,
            };
            tables
                .prefixes
                .insert((V4_PREFIX_BITS + bits, mapped(address)), value);
        };
        insert([10, 101, 0, 0], 16, ACTION_SERVICE, 0);
        // A backend outside of the delivered prefixes.
        insert(POD_HERE, 32, 0, PREFIX_BACKENDS);
        tables
    };
    let mut drop = |name, inner: &Ip| {
        cases.push(case(
            format!("spoof: {name}"),
            services(),
            inner.frame(),
            Expect::Drop(DropReason::InnerSource),
        ));
    };
    let message = |kind: u8, src: [u8; 4]| {
        let quoted = Ip::new(POD_WEST, POD_NODE, 17, udp(40_000, 53, b"quoted")).bytes();
        let mut message = vec![kind, 1, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(&quoted);
        let check = checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        Ip::new(src, POD_WEST, 1, message)
    };
    drop("a router's error about no flow to a Service", &message(3, NODE));
    drop("a ping of a foreign address", &message(8, NODE));
    drop("a ping of another node's Pod", &message(8, POD_HERE));
    drop(
        "a backend outside of the node's prefixes, about no flow to a Service",
        &web(POD_HERE, POD_WEST),
    );
    let reply = web(SERVICE_HERE, POD_WEST);
    cases.push(encap_case(
        "node: reply of the service proxy",
        services(),
        &reply,
        NODE,
        GATEWAY_INSIDE,
    ));
}
