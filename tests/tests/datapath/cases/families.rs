//! The same packets in every combination of inner and outer family and tunnel format.

use mc_gateway_common::{
    abi::{CONFIG_DSCP_FIXED, CONFIG_UDP_CHECKSUM},
    maps::MemoryMaps,
    verdict::DropReason,
};

use super::{
    Case, Expect, Program, case_from_underlay,
    from_underlay::{decapsulated, forwarded},
    to_remote::encapsulated,
};
use crate::{
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE, STRANGER,
        Shape, WEST_GATEWAY,
    },
    packets::{Ip, Tunnel, tcp_syn, udp, with_checksum},
};

/// Builds the cases of one shape.
struct Cases<'c> {
    shape: Shape,
    cases: &'c mut Vec<Case>,
}

pub(crate) fn families(cases: &mut Vec<Case>) {
    for shape in Shape::all() {
        let mut cases = Cases { shape, cases };
        cases.encap();
        cases.encap_checksums();
        cases.transit();
        cases.deliver();
        cases.dropped();
    }
}

impl Cases<'_> {
    fn name(&self, name: &str) -> String {
        format!("{}: {name}", self.shape.name())
    }

    fn node(&self) -> MemoryMaps {
        self.shape.tables(fixture::node())
    }

    fn gateway(&self) -> MemoryMaps {
        self.shape.tables(fixture::gateway())
    }

    fn ip(&self, src: [u8; 4], dst: [u8; 4], proto: u8, payload: Vec<u8>) -> Ip {
        Ip::new(self.shape.inner(src), self.shape.inner(dst), proto, payload)
    }

    /// TCP with a valid checksum.
    fn tcp(&self, src: [u8; 4], dst: [u8; 4]) -> Ip {
        let (from, to) = (self.shape.inner(src), self.shape.inner(dst));
        let payload = with_checksum(from, to, 6, tcp_syn(40_000, 80), 16);
        Ip::new(from, to, 6, payload)
    }

    fn tunnel(&self, src: [u8; 4], dst: [u8; 4], inner: &Ip) -> Tunnel {
        let mut tunnel = Tunnel::new(self.shape.outer(src), self.shape.outer(dst), inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel
    }

    fn push_encap(&mut self, name: &str, tables: MemoryMaps, inner: &Ip, expected: &Tunnel) {
        self.cases.push(Case {
            gso_size: 0,
            name: self.name(name),
            program: Program::ToRemote,
            tables,
            frame: inner.frame(),
            expect: Expect::Encap(expected.frame()),
        });
    }

    fn push(&mut self, name: &str, tables: MemoryMaps, tunnel: &Tunnel, expect: Expect) {
        self.cases.push(case_from_underlay(
            self.name(name),
            tables,
            tunnel.frame(),
            expect,
        ));
    }

    /// The packet encapsulated by `to_remote`.
    fn encapsulated(&self, src: [u8; 4], dst: [u8; 4], inner: &Ip) -> Tunnel {
        let mut expected = encapsulated(inner, self.shape.outer(src), self.shape.outer(dst));
        expected.vxlan = self.shape.vxlan;
        expected.dst_port = self.shape.port();
        expected
    }

    fn encap(&mut self) {
        let tcp = self.tcp(POD_NODE, POD_WEST);
        let expected = self.encapsulated(NODE, GATEWAY_INSIDE, &tcp);
        self.push_encap("node to its gateway", self.node(), &tcp, &expected);
        let local = self.tcp(POD_HERE, POD_WEST);
        let expected = self.encapsulated(GATEWAY_OUTSIDE, WEST_GATEWAY, &local);
        self.push_encap(
            "gateway to the other cluster's gateway",
            self.gateway(),
            &local,
            &expected,
        );
        let bare = self.ip(POD_NODE, POD_WEST, 59, Vec::new());
        let expected = self.encapsulated(NODE, GATEWAY_INSIDE, &bare);
        self.push_encap("no payload", self.node(), &bare, &expected);
        let mut marked = tcp.clone();
        marked.tos = 0xb9;
        let expected = self.encapsulated(NODE, GATEWAY_INSIDE, &marked);
        self.push_encap("DSCP and ECN are copied", self.node(), &marked, &expected);
        let mut fixed = self.node();
        if let Some(config) = &mut fixed.config {
            config.flags |= CONFIG_DSCP_FIXED;
            (config.tos, config.hop_limit) = (0x28, 9);
        }
        let mut expected = expected.clone();
        (expected.tos, expected.ttl) = (0x29, 9);
        self.push_encap("fixed DSCP and hop limit, ECN copied", fixed, &marked, &expected);
    }

    fn encap_checksums(&mut self) {
        let (from, to) = (self.shape.inner(POD_NODE), self.shape.inner(POD_WEST));
        let odd = udp(53, 5353, b"odd");
        let icmp = if self.shape.inner_v6 { 58 } else { 1 };
        let echo = vec![if self.shape.inner_v6 { 128 } else { 8 }, 0, 0, 0, 1, 2, 3, 4, 5];
        let echo = if self.shape.inner_v6 {
            with_checksum(from, to, icmp, echo, 2)
        } else {
            let mut echo = echo;
            let sum = crate::packets::checksum(&echo);
            echo[2..4].copy_from_slice(&sum.to_be_bytes());
            echo
        };
        let inner = [
            ("TCP", true, self.tcp(POD_NODE, POD_WEST)),
            (
                "UDP",
                true,
                Ip::new(from, to, 17, with_checksum(from, to, 17, odd.clone(), 6)),
            ),
            ("ICMP", true, Ip::new(from, to, icmp, echo)),
            ("UDP without a checksum", false, Ip::new(from, to, 17, odd)),
            (
                "unknown protocol",
                false,
                Ip::new(from, to, 250, vec![1, 2, 3, 4]),
            ),
        ];
        for (name, can, inner) in inner {
            let mut tables = self.node();
            if let Some(config) = &mut tables.config {
                config.flags |= CONFIG_UDP_CHECKSUM;
            }
            let mut expected = self.encapsulated(NODE, GATEWAY_INSIDE, &inner);
            expected.udp_checksum = can;
            self.push_encap(&format!("outer checksum over {name}"), tables, &inner, &expected);
        }
    }

    fn transit(&mut self) {
        let ways = [
            (
                "node to the other cluster",
                NODE,
                GATEWAY_INSIDE,
                POD_NODE,
                POD_WEST,
                GATEWAY_OUTSIDE,
                WEST_GATEWAY,
            ),
            (
                "other cluster to a node",
                WEST_GATEWAY,
                GATEWAY_OUTSIDE,
                POD_WEST,
                POD_NODE,
                GATEWAY_INSIDE,
                NODE,
            ),
        ];
        for (name, from, to, src, dst, next_from, next_to) in ways {
            for checksum in [false, true] {
                let mut tunnel = self.tunnel(from, to, &self.tcp(src, dst));
                tunnel.udp_checksum = checksum;
                (tunnel.tos, tunnel.label, tunnel.vni) = (0x2b, 0x000a_bcde, 0x0012_3456);
                let next = forwarded(&tunnel, self.shape.outer(next_from), self.shape.outer(next_to));
                let name = format!("{name}, outer checksum {checksum}");
                self.push(&name, self.gateway(), &tunnel, Expect::Transit(next));
            }
        }
    }

    fn deliver(&mut self) {
        let ways = [
            (
                "to a Pod of this node",
                self.node(),
                GATEWAY_INSIDE,
                NODE,
                POD_NODE,
            ),
            (
                "to a Pod of the gateway",
                self.gateway(),
                WEST_GATEWAY,
                GATEWAY_OUTSIDE,
                POD_HERE,
            ),
            (
                "to a Service",
                self.gateway(),
                WEST_GATEWAY,
                GATEWAY_OUTSIDE,
                SERVICE_HERE,
            ),
        ];
        for (name, tables, from, to, dst) in ways {
            let tunnel = self.tunnel(from, to, &self.tcp(POD_WEST, dst));
            let expect = Expect::Deliver(decapsulated(&tunnel));
            self.push(name, tables, &tunnel, expect);
        }
        let bare = self.tunnel(GATEWAY_INSIDE, NODE, &self.ip(POD_WEST, POD_NODE, 59, Vec::new()));
        let expect = Expect::Deliver(decapsulated(&bare));
        self.push("a header and nothing else", self.node(), &bare, expect);
        for (outer, inner, expected) in [(3, 2, Some(3)), (3, 1, Some(3)), (1, 2, Some(1)), (3, 0, None)] {
            let mut packet = self.tcp(POD_WEST, POD_NODE);
            packet.tos = 0xb8 | inner;
            let mut tunnel = self.tunnel(GATEWAY_INSIDE, NODE, &packet);
            tunnel.tos = outer;
            let expect = match expected {
                None => Expect::Drop(DropReason::Ecn),
                Some(ecn) => {
                    packet.tos = 0xb8 | ecn;
                    Expect::Deliver(decapsulated(&self.tunnel(GATEWAY_INSIDE, NODE, &packet)))
                }
            };
            let name = format!("ECN {outer:02b} outside, {inner:02b} inside");
            self.push(&name, self.node(), &tunnel, expect);
        }
    }

    fn dropped(&mut self) {
        let good = self.tunnel(NODE, GATEWAY_INSIDE, &self.tcp(POD_NODE, POD_WEST));
        let mut spoofed = good.clone();
        spoofed.src = self.shape.outer(STRANGER);
        self.push(
            "unknown peer",
            self.gateway(),
            &spoofed,
            Expect::Drop(DropReason::UnknownPeer),
        );
        let inner = self.tunnel(NODE, GATEWAY_INSIDE, &self.tcp(POD_HERE, POD_WEST));
        self.push(
            "inner source of another node",
            self.gateway(),
            &inner,
            Expect::Drop(DropReason::InnerSource),
        );
        let mut last = good.clone();
        last.ttl = 1;
        self.push(
            "hop limit 1 at a gateway",
            self.gateway(),
            &last,
            Expect::Drop(DropReason::TtlExceeded),
        );
        let mut arp = good.clone();
        (arp.inner_type, arp.inner) = (0x0806, vec![0; 46]);
        self.push(
            "ARP inside",
            self.gateway(),
            &arp,
            Expect::Drop(DropReason::InnerProtocol),
        );
        let mut long = self.tcp(POD_NODE, POD_WEST);
        long.total = Some(9_000);
        let long = self.tunnel(NODE, GATEWAY_INSIDE, &long);
        self.push(
            "inner length beyond the end",
            self.gateway(),
            &long,
            Expect::Drop(DropReason::InnerMalformed),
        );
        let frame = good.frame();
        let outer_len = if self.shape.outer_v6 { 40 } else { 20 };
        self.cases.push(case_from_underlay(
            self.name("cut off in the tunnel header"),
            self.gateway(),
            frame[..14 + outer_len + 12].to_vec(),
            Expect::Drop(DropReason::Truncated),
        ));
        self.other_family(&good);
        self.fragmented(&good);
        let mut foreign = good.clone();
        foreign.mac = [2, 0, 0, 0, 0, 1];
        self.push(
            "another MAC address passes",
            self.gateway(),
            &foreign,
            Expect::Pass,
        );
        let mut port = good;
        port.dst_port += 1;
        self.push("another port passes", self.gateway(), &port, Expect::Pass);
    }

    /// A gateway with a next hop of the other family.
    fn other_family(&mut self, good: &Tunnel) {
        let mut other = self.shape;
        other.outer_v6 = !other.outer_v6;
        let mut tables = self.gateway();
        tables.next_hops = other.tables(fixture::gateway()).next_hops;
        self.push(
            "next hop of the other family",
            tables,
            good,
            Expect::Drop(DropReason::OuterFamily),
        );
    }

    /// The outer packet as a fragment, which peers never send.
    fn fragmented(&mut self, good: &Tunnel) {
        let mut fragment = good.clone();
        if !self.shape.outer_v6 {
            fragment.frags = 0x2000;
            self.push(
                "outer fragment",
                self.gateway(),
                &fragment,
                Expect::Drop(DropReason::OuterFragment),
            );
            return;
        }
        let frame = fragment.frame();
        let mut outer = Ip::new(fragment.src, fragment.dst, 44, frame[54..].to_vec());
        outer.options = vec![17, 0, 0, 1, 0, 0, 0, 9];
        let expect = Expect::Drop(DropReason::OuterFragment);
        let case = case_from_underlay(self.name("outer fragment"), self.gateway(), outer.frame(), expect);
        self.cases.push(case);
        outer.options = vec![17, 0, 0, 8, 0, 0, 0, 9];
        let case = case_from_underlay(
            self.name("later outer fragment"),
            self.gateway(),
            outer.frame(),
            Expect::Pass,
        );
        self.cases.push(case);
    }
}
