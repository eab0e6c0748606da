//! `to_remote`: encapsulation and drops.

use std::net::IpAddr;

use mc_gateway_common::{
    flow,
    maps::MemoryMaps,
    packet::{SlicePacket, encap::source_port, ip::Header},
    verdict::DropReason,
};

use super::{Case, Expect, Program, web};
use crate::{
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, MC0_MAC, NODE, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE,
        SERVICE_WEST, WEST_GATEWAY,
    },
    packets::{Ip, OUTER_DST, Tunnel, checksum, ethernet, udp},
};

fn case(name: impl Into<String>, tables: MemoryMaps, frame: Vec<u8>, expect: Expect) -> Case {
    Case {
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
    tunnel.inner_src = MC0_MAC;
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
