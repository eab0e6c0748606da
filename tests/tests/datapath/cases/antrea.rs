//! Antrea gateways as peers: their clients are rewritten to an alias and back, and packets to them pass the host's
//! stack.

use std::net::IpAddr;

use mc_gateway_common::{
    abi::CONFIG_UDP_CHECKSUM,
    maps::MemoryMaps,
    nexthop_select,
    packet::encap::source_port,
    verdict::DropReason::{self, InnerSource, NoNextHop, NoRoute},
};

use super::{
    Case, Expect, Program, case_from_underlay,
    from_underlay::{decapsulated, forwarded},
    to_remote::encapsulated,
};
use crate::{
    fixture::{
        self, ALIAS_SOUTH, GATEWAY_INSIDE, GATEWAY_OUTSIDE, GROUP_SOUTH, NODE, POD_HERE, POD_NODE, POD_SOUTH,
        POD_WEST, SERVICE_SOUTH, SOUTH_GATEWAY, WEST_GATEWAY,
    },
    packets::{Ip, Tunnel, checksum, tcp_syn, udp, with_checksum},
};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// Builds a kind of packet for two addresses.
type Make = fn([u8; 4], [u8; 4]) -> Ip;

/// Kinds of packets that differ in the position of addresses or checksums. ICMP errors quote the reverse flow.
const KINDS: [(&str, Make); 9] = [
    ("TCP", |src, dst| ip(src, dst, TCP, tcp_syn(40_000, 80))),
    ("UDP", |src, dst| ip(src, dst, UDP, udp(40_000, 53, b"datagram"))),
    ("UDP without a checksum", |src, dst| {
        Ip::new(src, dst, UDP, udp(40_000, 53, b"datagram"))
    }),
    ("a first fragment", |src, dst| {
        let mut first = ip(src, dst, UDP, udp(40_000, 53, b"datagram"));
        first.frags = 0x2000;
        first
    }),
    ("a later fragment", |src, dst| {
        let mut later = Ip::new(src, dst, UDP, vec![0xa5; 24]);
        later.frags = 0x0010;
        later
    }),
    ("TCP behind options", |src, dst| {
        let mut long = ip(src, dst, TCP, tcp_syn(40_000, 80));
        long.options = vec![1; 8];
        long
    }),
    ("a ping", |src, dst| {
        icmp(src, dst, &[8, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3, 4])
    }),
    ("an error about TCP", |src, dst| {
        // The quoted packet keeps its checksum, which cannot be verified.
        let about = Ip::new(dst, src, TCP, tcp_syn(80, 40_000));
        icmp(
            src,
            dst,
            &[&[3, 4, 0, 0, 0, 0, 5, 0][..], &about.bytes()[..]].concat(),
        )
    }),
    ("an error that quotes a header", |src, dst| {
        let about = ip(dst, src, UDP, udp(53, 40_000, b"datagram"));
        icmp(
            src,
            dst,
            &[&[11, 0, 0, 0, 0, 0, 0, 0][..], &about.bytes()[..20]].concat(),
        )
    }),
];

/// A TCP or UDP packet with its checksum.
fn ip(src: [u8; 4], dst: [u8; 4], proto: u8, message: Vec<u8>) -> Ip {
    let at = if proto == TCP { 16 } else { 6 };
    let (from, to) = (IpAddr::from(src), IpAddr::from(dst));
    Ip::new(src, dst, proto, with_checksum(from, to, proto, message, at))
}

fn icmp(src: [u8; 4], dst: [u8; 4], message: &[u8]) -> Ip {
    let mut message = message.to_vec();
    let check = checksum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    Ip::new(src, dst, ICMP, message)
}

fn to_remote(name: impl Into<String>, tables: MemoryMaps, inner: &Ip, expect: Expect) -> Case {
    Case {
        gso_size: 0,
        name: name.into(),
        program: Program::ToRemote,
        tables,
        frame: inner.frame(),
        expect,
    }
}

/// `tunnel` with another packet inside.
fn with_inner(tunnel: &Tunnel, inner: &Ip) -> Tunnel {
    Tunnel {
        inner: inner.bytes().to_vec(),
        ..tunnel.clone()
    }
}

pub(crate) fn antrea(cases: &mut Vec<Case>) {
    clients(cases);
    replies(cases);
    outbound(cases);
    dropped(cases);
    too_big(cases);
}

/// Clients of the Antrea gateway: to a Pod here, and on to a node.
fn clients(cases: &mut Vec<Case>) {
    for (kind, make) in KINDS {
        for checksum in [false, true] {
            let summed = if checksum { ", with an outer checksum" } else { "" };
            let tunnel = |to| {
                let inner = make(SOUTH_GATEWAY, to);
                let mut tunnel = Tunnel::new(SOUTH_GATEWAY, GATEWAY_OUTSIDE, &inner);
                tunnel.udp_checksum = checksum;
                tunnel
            };
            let incoming = tunnel(POD_NODE);
            let outgoing = with_inner(&incoming, &make(ALIAS_SOUTH, POD_NODE));
            cases.push(case_from_underlay(
                format!("antrea: {kind} of a client to a node{summed}"),
                fixture::antrea(),
                incoming.frame(),
                Expect::Transit(forwarded(&outgoing, GATEWAY_INSIDE, NODE)),
            ));
            let incoming = tunnel(POD_HERE);
            let outgoing = with_inner(&incoming, &make(ALIAS_SOUTH, POD_HERE));
            cases.push(case_from_underlay(
                format!("antrea: {kind} of a client to a Pod here{summed}"),
                fixture::antrea(),
                incoming.frame(),
                Expect::Deliver(decapsulated(&outgoing)),
            ));
        }
    }
    // Addresses of its own Pods and Services are not rewritten.
    let incoming = Tunnel::new(
        SOUTH_GATEWAY,
        GATEWAY_OUTSIDE,
        &ip(POD_SOUTH, POD_NODE, TCP, tcp_syn(80, 40_000)),
    );
    cases.push(case_from_underlay(
        "antrea: a Pod's own address",
        fixture::antrea(),
        incoming.frame(),
        Expect::Transit(forwarded(&incoming, GATEWAY_INSIDE, NODE)),
    ));
}

/// Replies to such clients, from a node and from a Pod of the gateway.
fn replies(cases: &mut Vec<Case>) {
    for (kind, make) in KINDS {
        for checksum in [false, true] {
            let summed = if checksum { ", with an outer checksum" } else { "" };
            let mut incoming = Tunnel::new(NODE, GATEWAY_INSIDE, &make(POD_NODE, ALIAS_SOUTH));
            incoming.udp_checksum = checksum;
            let outgoing = with_inner(&incoming, &make(POD_NODE, SOUTH_GATEWAY));
            cases.push(case_from_underlay(
                format!("antrea: {kind} from a node to a client{summed}"),
                fixture::antrea(),
                incoming.frame(),
                Expect::Transit(forwarded(&outgoing, GATEWAY_OUTSIDE, SOUTH_GATEWAY)),
            ));
            let mut tables = fixture::antrea();
            if let Some(config) = tables.config.as_mut().filter(|_| checksum) {
                config.flags |= CONFIG_UDP_CHECKSUM;
            }
            let (inner, outgoing) = (make(POD_HERE, ALIAS_SOUTH), make(POD_HERE, SOUTH_GATEWAY));
            // The flow hash is that of the alias.
            let mut tunnel = encapsulated(&inner, GATEWAY_OUTSIDE, SOUTH_GATEWAY);
            tunnel.inner = outgoing.bytes().to_vec();
            // Fragments and packets with options have no outer checksum.
            let sums = !matches!(
                kind,
                "a first fragment" | "a later fragment" | "TCP behind options" | "UDP without a checksum"
            );
            if checksum && !sums {
                continue;
            }
            tunnel.udp_checksum = checksum;
            cases.push(to_remote(
                format!("antrea: {kind} from a Pod here to a client{summed}"),
                tables,
                &inner,
                Expect::Encap(tunnel.frame()),
            ));
        }
    }
    let mut tables = fixture::antrea();
    tables.groups.entry(GROUP_SOUTH).or_default().len = 0;
    tables.groups.entry(GROUP_SOUTH).or_default().next_hops[0] = 0;
    let incoming = Tunnel::new(
        NODE,
        GATEWAY_INSIDE,
        &ip(POD_NODE, ALIAS_SOUTH, TCP, tcp_syn(80, 4)),
    );
    cases.push(case_from_underlay(
        "antrea: no next hop for a reply",
        tables,
        incoming.frame(),
        Expect::Drop(NoNextHop),
    ));
}

/// Requests of this cluster, and the replies.
fn outbound(cases: &mut Vec<Case>) {
    for to in [POD_SOUTH, SERVICE_SOUTH] {
        let incoming = Tunnel::new(NODE, GATEWAY_INSIDE, &ip(POD_NODE, to, TCP, tcp_syn(40_000, 80)));
        cases.push(case_from_underlay(
            format!("antrea: from a node to {to:?}, through the stack"),
            fixture::antrea(),
            incoming.frame(),
            Expect::Deliver(decapsulated(&incoming)),
        ));
    }
    let translated = ip(GATEWAY_OUTSIDE, SERVICE_SOUTH, TCP, tcp_syn(40_000, 80));
    let tunnel = encapsulated(&translated, GATEWAY_OUTSIDE, SOUTH_GATEWAY);
    cases.push(to_remote(
        "antrea: translated by the stack",
        fixture::antrea(),
        &translated,
        Expect::Encap(tunnel.frame()),
    ));
    let reply = ip(SERVICE_SOUTH, GATEWAY_OUTSIDE, TCP, tcp_syn(80, 40_000));
    let incoming = Tunnel::new(SOUTH_GATEWAY, GATEWAY_OUTSIDE, &reply);
    cases.push(case_from_underlay(
        "antrea: a reply to our own address",
        fixture::antrea(),
        incoming.frame(),
        Expect::Deliver(decapsulated(&incoming)),
    ));
    // An ICMP error of the gateway itself.
    let about = ip(GATEWAY_OUTSIDE, SERVICE_SOUTH, TCP, tcp_syn(40_000, 80));
    let error = |src| {
        icmp(
            src,
            GATEWAY_OUTSIDE,
            &[&[3, 4, 0, 0, 0, 0, 5, 0][..], &about.bytes()[..]].concat(),
        )
    };
    let incoming = Tunnel::new(SOUTH_GATEWAY, GATEWAY_OUTSIDE, &error(SOUTH_GATEWAY));
    let outgoing = with_inner(&incoming, &error(ALIAS_SOUTH));
    cases.push(case_from_underlay(
        "antrea: an error of the gateway to our own address",
        fixture::antrea(),
        incoming.frame(),
        Expect::Deliver(decapsulated(&outgoing)),
    ));
    let back = ip(SERVICE_SOUTH, POD_NODE, TCP, tcp_syn(80, 40_000));
    let tunnel = encapsulated(&back, GATEWAY_INSIDE, NODE);
    cases.push(to_remote(
        "antrea: a reply translated back by the stack",
        fixture::antrea(),
        &back,
        Expect::Encap(tunnel.frame()),
    ));
    cases.push(to_remote(
        "antrea: without such peers mc0 has no route to own nodes",
        fixture::gateway(),
        &back,
        Expect::Drop(NoRoute),
    ));
}

fn dropped(cases: &mut Vec<Case>) {
    let mut drop = |name: &str, tables, tunnel: Tunnel, reason: DropReason| {
        let name = format!("antrea: {name}");
        cases.push(case_from_underlay(
            name,
            tables,
            tunnel.frame(),
            Expect::Drop(reason),
        ));
    };
    let t = |src, dst, from, to| Tunnel::new(src, dst, &ip(from, to, TCP, tcp_syn(40_000, 80)));
    let south = |from, to| t(SOUTH_GATEWAY, GATEWAY_OUTSIDE, from, to);
    drop(
        "an address that is neither its own nor its cluster's",
        fixture::antrea(),
        south([192, 0, 2, 9], POD_NODE),
        InnerSource,
    );
    drop(
        "another cluster's Pod",
        fixture::antrea(),
        south(POD_WEST, POD_NODE),
        InnerSource,
    );
    drop(
        "another gateway's address",
        fixture::antrea(),
        south(WEST_GATEWAY, POD_NODE),
        InnerSource,
    );
    drop(
        "the address of a gateway that is not Antrea's",
        fixture::antrea(),
        t(WEST_GATEWAY, GATEWAY_OUTSIDE, WEST_GATEWAY, POD_NODE),
        InnerSource,
    );
    drop(
        "a client without a configured alias",
        {
            let mut tables = fixture::antrea();
            for peer in tables
                .peers
                .values_mut()
                .filter(|peer| peer.cluster == fixture::SOUTH)
            {
                peer.group = 0;
            }
            tables
        },
        south(SOUTH_GATEWAY, POD_NODE),
        InnerSource,
    );
    drop(
        "a client to another cluster",
        fixture::antrea(),
        south(SOUTH_GATEWAY, POD_WEST),
        NoRoute,
    );
    drop(
        "a client to its own alias",
        fixture::antrea(),
        south(SOUTH_GATEWAY, ALIAS_SOUTH),
        NoRoute,
    );
    drop(
        "a cluster without Antrea to our own address",
        fixture::antrea(),
        t(WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, GATEWAY_OUTSIDE),
        NoRoute,
    );
    drop(
        "a node to our own address",
        fixture::antrea(),
        t(NODE, GATEWAY_INSIDE, POD_NODE, GATEWAY_OUTSIDE),
        NoRoute,
    );
    drop(
        "a node from our own address",
        {
            let mut tables = fixture::antrea();
            for peer in tables.peers.values_mut() {
                if peer.flags & mc_gateway_common::abi::PEER_LOCAL_NODE != 0 {
                    peer.group = 0;
                }
            }
            tables
        },
        t(NODE, GATEWAY_INSIDE, GATEWAY_OUTSIDE, SERVICE_SOUTH),
        InnerSource,
    );
    drop(
        "a cluster without Antrea to an alias",
        fixture::antrea(),
        t(WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, ALIAS_SOUTH),
        NoRoute,
    );
}

/// ICMP errors about rewritten packets quote the packet as its sender sent it.
fn too_big(cases: &mut Vec<Case>) {
    const MTU: u32 = 1300;
    let tables = || {
        let mut tables = fixture::antrea();
        for next_hop in tables.next_hops.values_mut() {
            next_hop.mtu = MTU;
        }
        tables
    };
    for (name, from, to, src, dst) in [
        (
            "a client",
            SOUTH_GATEWAY,
            GATEWAY_OUTSIDE,
            SOUTH_GATEWAY,
            POD_NODE,
        ),
        ("an answer", NODE, GATEWAY_INSIDE, POD_NODE, ALIAS_SOUTH),
    ] {
        let big = ip(src, dst, UDP, udp(40_000, 53, &[0x5a; 1400]));
        let incoming = Tunnel::new(from, to, &big);
        let quoted = &big.bytes()[..548];
        let mut error = icmp(dst, src, &[&[3, 4, 0, 0, 0, 0, 5, 20][..], quoted].concat());
        (error.tos, error.id) = (0xc0, 0);
        let mut answer = Tunnel::new(to, from, &error);
        answer.tos = 0xc0;
        answer.inner_src = fixture::sent_mac_to(answer.dst).bytes();
        let hash = {
            let [a, b] = [to, from].map(|address| u64::from(u32::from_le_bytes(address)));
            nexthop_select::mix(u32::from(mc_gateway_common::packet::checksum::fold(a + b)), 0)
        };
        answer.src_port = source_port(hash);
        cases.push(case_from_underlay(
            format!("antrea: {name} does not fit"),
            tables(),
            incoming.frame(),
            Expect::ErrorThroughTunnel(answer.frame()),
        ));
    }
}
