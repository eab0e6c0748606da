//! Packets larger than the next hop's MTU, and MSS clamping, in every combination of families.

use mc_gateway_common::{
    abi::{ACTION_DELIVER, CONFIG_UDP_CHECKSUM, Prefix, rate_limit::TokenBucket},
    maps::MemoryMaps,
    nexthop_select,
    packet::{checksum, encap::source_port, ip::mapped},
    verdict::DropReason::{BelowIpv6Minimum, TooBig, TooBigLimited},
};

use super::{
    Case, Expect, Program, case_from_underlay,
    from_underlay::{decapsulated, delivered_mac, forwarded},
    to_remote::encapsulated,
};
use crate::{
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, MC0_MAC, NODE, POD_HERE, POD_NODE, POD_WEST, Shape,
        WEST_GATEWAY,
    },
    packets::{Ip, Tunnel, checksum as sum_of, ethernet, udp, with_checksum},
};

/// MTU of the next hops in these cases.
const MTU: u32 = 1300;

struct Cases<'c> {
    shape: Shape,
    cases: &'c mut Vec<Case>,
}

pub(crate) fn mtu(cases: &mut Vec<Case>) {
    for shape in Shape::all() {
        let mut cases = Cases { shape, cases };
        cases.errors_to_host();
        cases.errors_through_tunnel();
        cases.dropped();
        cases.mss();
    }
}

impl Cases<'_> {
    fn name(&self, name: &str) -> String {
        format!("{}: {name}", self.shape.name())
    }

    fn tables(&self, tables: MemoryMaps, mtu: u32) -> MemoryMaps {
        let mut tables = self.shape.tables(tables);
        for next_hop in tables.next_hops.values_mut() {
            next_hop.mtu = mtu;
        }
        tables
    }

    fn ip(&self, src: [u8; 4], dst: [u8; 4], proto: u8, payload: Vec<u8>) -> Ip {
        Ip::new(self.shape.inner(src), self.shape.inner(dst), proto, payload)
    }

    /// A datagram in a packet of `len` bytes with varying payload.
    fn datagram(&self, src: [u8; 4], dst: [u8; 4], len: usize) -> Ip {
        let header = if self.shape.inner_v6 { 40 } else { 20 };
        let payload: Vec<u8> = (0..len - header - 8)
            .map(|i| u8::try_from(i * 7 % 251).expect("small"))
            .collect();
        let datagram = udp(40_000, 53, &payload);
        let (from, to) = (self.shape.inner(src), self.shape.inner(dst));
        Ip::new(from, to, 17, with_checksum(from, to, 17, datagram, 6))
    }

    fn tunnel(&self, src: [u8; 4], dst: [u8; 4], inner: &Ip) -> Tunnel {
        let mut tunnel = Tunnel::new(self.shape.outer(src), self.shape.outer(dst), inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel
    }

    /// The ICMP error about a packet (RFC 1191, RFC 4443).
    fn error(&self, about: &Ip, mtu: u32) -> Ip {
        let most = if self.shape.inner_v6 { 1280 - 48 } else { 576 - 28 };
        let mut quoted = about.bytes().to_vec();
        quoted.truncate(most);
        quoted.truncate(quoted.len() & !3);
        let [m0, m1, m2, m3] = mtu.to_be_bytes();
        let mut error = if self.shape.inner_v6 {
            let message = [vec![2, 0, 0, 0, m0, m1, m2, m3], quoted].concat();
            let message = with_checksum(about.dst, about.src, 58, message, 2);
            Ip::new(about.dst, about.src, 58, message)
        } else {
            let mut message = [vec![3, 4, 0, 0, 0, 0, m2, m3], quoted].concat();
            let check = sum_of(&message);
            message[2..4].copy_from_slice(&check.to_be_bytes());
            Ip::new(about.dst, about.src, 1, message)
        };
        (error.tos, error.id) = (0xc0, 0);
        error
    }

    fn push_to_remote(&mut self, name: &str, tables: MemoryMaps, inner: &Ip, expect: Expect) {
        self.cases.push(Case {
            gso_size: 0,
            name: self.name(name),
            program: Program::ToRemote,
            tables,
            frame: inner.frame(),
            expect,
        });
    }

    fn push_from_underlay(&mut self, name: &str, tables: MemoryMaps, tunnel: &Tunnel, expect: Expect) {
        let name = self.name(name);
        self.cases
            .push(case_from_underlay(name, tables, tunnel.frame(), expect));
    }

    fn errors_to_host(&mut self) {
        let error_frame = |error: &Ip| {
            ethernet(
                MC0_MAC,
                delivered_mac(0, false),
                error.ethertype(),
                &error.bytes(),
            )
        };
        for len in [1301, 1303, 1450] {
            let big = self.datagram(POD_NODE, POD_WEST, len);
            let expect = Expect::ErrorToHost(error_frame(&self.error(&big, MTU)));
            let name = format!("node: {len} bytes do not fit {MTU}");
            self.push_to_remote(&name, self.tables(fixture::node(), MTU), &big, expect);
        }
        let fits = self.datagram(POD_NODE, POD_WEST, 1300);
        let mut expected = encapsulated(&fits, self.shape.outer(NODE), self.shape.outer(GATEWAY_INSIDE));
        (expected.vxlan, expected.dst_port) = (self.shape.vxlan, self.shape.port());
        let expect = Expect::Encap(expected.frame());
        self.push_to_remote(
            "node: 1300 bytes fit",
            self.tables(fixture::node(), MTU),
            &fits,
            expect,
        );
        let unknown = self.datagram(POD_NODE, POD_WEST, 1450);
        let mut expected = encapsulated(&unknown, self.shape.outer(NODE), self.shape.outer(GATEWAY_INSIDE));
        (expected.vxlan, expected.dst_port) = (self.shape.vxlan, self.shape.port());
        let expect = Expect::Encap(expected.frame());
        self.push_to_remote(
            "node: MTU unknown",
            self.tables(fixture::node(), 0),
            &unknown,
            expect,
        );
        if self.shape.inner_v6 {
            let big = self.datagram(POD_NODE, POD_WEST, 1281);
            let expect = Expect::ErrorToHost(error_frame(&self.error(&big, 1280)));
            self.push_to_remote(
                "reported MTU at least 1280",
                self.tables(fixture::node(), 1000),
                &big,
                expect,
            );
        } else {
            let mut may_fragment = self.datagram(POD_NODE, POD_WEST, 1400);
            may_fragment.frags = 0;
            let expect = Expect::ErrorToHost(error_frame(&self.error(&may_fragment, MTU)));
            self.push_to_remote(
                "DF is not set",
                self.tables(fixture::node(), MTU),
                &may_fragment,
                expect,
            );
            let mut first = self.datagram(POD_NODE, POD_WEST, 1400);
            first.frags = 0x2000;
            let expect = Expect::ErrorToHost(error_frame(&self.error(&first, MTU)));
            self.push_to_remote(
                "first fragment",
                self.tables(fixture::node(), MTU),
                &first,
                expect,
            );
            let tiny = self.datagram(POD_NODE, POD_WEST, 301);
            let expect = Expect::ErrorToHost(error_frame(&self.error(&tiny, 300)));
            self.push_to_remote(
                "the whole packet is quoted",
                self.tables(fixture::node(), 300),
                &tiny,
                expect,
            );
        }
    }

    /// The encapsulated error that a gateway returns to a packet's peer.
    fn error_tunnel(&self, incoming: &Tunnel, error: &Ip, udp_checksum: bool) -> Tunnel {
        let mut back = self.tunnel(NODE, NODE, error);
        (back.src, back.dst) = (incoming.dst, incoming.src);
        let mut addresses = Vec::new();
        for address in [back.src, back.dst] {
            match address {
                std::net::IpAddr::V4(v4) => addresses.extend(v4.octets()),
                std::net::IpAddr::V6(v6) => addresses.extend(v6.octets()),
            }
        }
        addresses.resize(32, 0);
        let sum = checksum::sum::<32>(addresses.as_slice().try_into().expect("32 bytes"));
        back.src_port = source_port(nexthop_select::mix(u32::from(checksum::fold(sum)), 0));
        (back.tos, back.udp_checksum) = (0xc0, udp_checksum);
        back.inner_src = fixture::sent_mac_to(back.dst).bytes();
        back
    }

    fn errors_through_tunnel(&mut self) {
        for (name, from, at, src, dst) in [
            (
                "gateway: back to the node",
                NODE,
                GATEWAY_INSIDE,
                POD_NODE,
                POD_WEST,
            ),
            (
                "gateway: back to the other cluster",
                WEST_GATEWAY,
                GATEWAY_OUTSIDE,
                POD_WEST,
                POD_NODE,
            ),
        ] {
            let big = self.datagram(src, dst, 1402);
            let incoming = self.tunnel(from, at, &big);
            let expect = Expect::ErrorThroughTunnel(
                self.error_tunnel(&incoming, &self.error(&big, MTU), false)
                    .frame(),
            );
            self.push_from_underlay(name, self.tables(fixture::gateway(), MTU), &incoming, expect);
        }
        let big = self.datagram(POD_NODE, POD_WEST, 1402);
        let incoming = self.tunnel(NODE, GATEWAY_INSIDE, &big);
        let mut tables = self.tables(fixture::gateway(), MTU);
        if let Some(config) = &mut tables.config {
            config.flags |= CONFIG_UDP_CHECKSUM;
        }
        let expect =
            Expect::ErrorThroughTunnel(self.error_tunnel(&incoming, &self.error(&big, MTU), true).frame());
        self.push_from_underlay("gateway: back with an outer checksum", tables, &incoming, expect);
    }

    fn dropped(&mut self) {
        let node = || self.tables(fixture::node(), MTU);
        let mut drops = Vec::new();
        let error = if self.shape.inner_v6 {
            self.ip(POD_NODE, POD_WEST, 58, [vec![1; 8], vec![0; 1400]].concat())
        } else {
            self.ip(POD_NODE, POD_WEST, 1, [vec![3; 8], vec![0; 1400]].concat())
        };
        drops.push(("an ICMP error", node(), error, TooBig));
        let mut later = self.datagram(POD_NODE, POD_WEST, 1400);
        if self.shape.inner_v6 {
            later.proto = 44;
            later.options = vec![17, 0, 0, 9, 0, 0, 0, 1];
        } else {
            later.frags = 0x0010;
        }
        drops.push(("a later fragment", node(), later, TooBig));
        let multicast = self.datagram([224, 0, 0, 1], POD_WEST, 1400);
        if !self.shape.inner_v6 {
            // The check of the source passes only if an agent delivers the address.
            let mut tables = node();
            let own = Prefix {
                action: ACTION_DELIVER,
                ..Prefix::default()
            };
            tables.prefixes.insert((128, mapped([224, 0, 0, 1])), own);
            drops.push(("from a multicast address", tables, multicast, TooBig));
        }
        let limited = node();
        *limited.icmp_limit.borrow_mut() = TokenBucket {
            tokens: 0,
            at: u64::MAX,
        };
        let big = self.datagram(POD_NODE, POD_WEST, 1400);
        drops.push(("too many errors", limited, big, TooBigLimited));
        if self.shape.inner_v6 {
            let small = self.datagram(POD_NODE, POD_WEST, 1280);
            drops.push((
                "below IPv6's minimum",
                self.tables(fixture::node(), 1000),
                small,
                BelowIpv6Minimum,
            ));
        }
        for (name, tables, inner, reason) in drops {
            let name = format!("too big, no error: {name}");
            self.push_to_remote(&name, tables, &inner, Expect::Drop(reason));
        }
    }

    /// A SYN with options and a valid checksum.
    fn syn(&self, src: [u8; 4], dst: [u8; 4], flags: u8, options: &[u8]) -> Ip {
        let words = u8::try_from(5 + options.len() / 4).expect("at most 60 bytes");
        let mut tcp = vec![
            0x9c,
            0x40,
            0,
            80,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            words << 4,
            flags,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
        ];
        tcp.extend(options);
        let (from, to) = (self.shape.inner(src), self.shape.inner(dst));
        Ip::new(from, to, 6, with_checksum(from, to, 6, tcp, 16))
    }

    fn mss(&mut self) {
        let mss = |mss: u16| [[2, 4], mss.to_be_bytes()].concat();
        let most = u16::try_from(MTU).expect("small") - if self.shape.inner_v6 { 60 } else { 40 };
        let behind = |value: u16| [vec![4, 2, 3, 3, 7, 1, 1, 1], mss(value)].concat();
        let odd = |value: u16| [vec![1], mss(value), vec![1, 1, 1]].concat();
        for (name, flags, before, after) in [
            ("SYN", 0x02, mss(1460), mss(most)),
            ("SYN-ACK", 0x12, mss(8960), mss(most)),
            ("small enough", 0x02, mss(536), mss(536)),
            ("behind other options", 0x02, behind(1460), behind(most)),
            ("at an odd offset", 0x02, odd(1460), odd(most)),
            ("no SYN", 0x10, mss(1460), mss(1460)),
            ("malformed", 0x02, vec![2, 3, 5, 180], vec![2, 3, 5, 180]),
        ] {
            let (syn, lowered) = (
                self.syn(POD_NODE, POD_WEST, flags, &before),
                self.syn(POD_NODE, POD_WEST, flags, &after),
            );
            let mut expected =
                encapsulated(&lowered, self.shape.outer(NODE), self.shape.outer(GATEWAY_INSIDE));
            (expected.vxlan, expected.dst_port) = (self.shape.vxlan, self.shape.port());
            let expect = Expect::Encap(expected.frame());
            self.push_to_remote(
                &format!("MSS, encap: {name}"),
                self.tables(fixture::node(), MTU),
                &syn,
                expect,
            );
            let incoming = self.tunnel(NODE, GATEWAY_INSIDE, &syn);
            let next = self.tunnel(NODE, GATEWAY_INSIDE, &lowered);
            let (src, dst) = (self.shape.outer(GATEWAY_OUTSIDE), self.shape.outer(WEST_GATEWAY));
            let expect = Expect::Transit(forwarded(&next, src, dst));
            self.push_from_underlay(
                &format!("MSS, transit: {name}"),
                self.tables(fixture::gateway(), MTU),
                &incoming,
                expect,
            );
            let (syn, lowered) = (
                self.syn(POD_WEST, POD_HERE, flags, &before),
                self.syn(POD_WEST, POD_HERE, flags, &after),
            );
            let incoming = self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, &syn);
            let expect = Expect::Deliver(decapsulated(&self.tunnel(
                WEST_GATEWAY,
                GATEWAY_OUTSIDE,
                &lowered,
            )));
            self.push_from_underlay(
                &format!("MSS, return path: {name}"),
                self.tables(fixture::gateway(), MTU),
                &incoming,
                expect,
            );
        }
    }
}
