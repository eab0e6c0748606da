//! Open connections without a flow entry: the gateway's choices, the Node that returns a packet, and the conditions for
//! a returned packet.

use mc_gateway_common::{
    abi::{
        PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, SourceMac,
        flow_entry::FlowEntry,
        service::{Reply, ReplyKey, SERVICE_AFFINITY, SERVICE_PAST, ServiceKey},
    },
    maglev,
    maps::MemoryMaps,
    verdict::DropReason,
};

use super::{
    BROKEN, BY_UDP, CLIENT, Cases, DATAGRAMS, ENDING, GONE, ON_NODE, POD_PORT, SECOND, STICKY, STICKY_FIRST,
    STICKY_KNOWN, TCP, WEB, WEB_HERE, addr,
};
use crate::{
    cases::{Expect, from_underlay::forwarded_with_mac},
    fixture::{
        self, GATEWAY_INSIDE, NODE, OTHER_GATEWAY, PERIOD, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE,
        WEST_GATEWAY, keyed, received_mac,
    },
    packets::{Ip, Tunnel, with_checksum},
};

/// Group of a Node without packets in these cases.
const GROUP_OTHER: u32 = 4;
/// A backend there.
const ELSEWHERE: u64 = 0x08_0000_0001;

impl Cases<'_> {
    pub(super) fn second_choice(&mut self) {
        self.first_choices();
        self.returned_by_node();
        self.next_choices();
        self.refused_returns();
        self.both_roles();
    }

    /// East's gateway: [`ON_NODE`] of [`WEB`] is ready, and past tables have these backends in their order.
    fn gateway_with_past(&self, past: &[u64]) -> MemoryMaps {
        let mut tables = self.gateway();
        for (id, pod, group) in [
            (SECOND, POD_NODE, super::GROUP_NODE),
            (WEB_HERE, POD_HERE, 0),
            (ELSEWHERE, POD_NODE, GROUP_OTHER),
        ] {
            let backend = self.backend(pod, WEB, TCP, group);
            tables.services.backends.insert(id, backend);
        }
        Self::set_past(&mut tables, self.key(WEB, TCP), past);
        tables
    }

    fn set_past(tables: &mut MemoryMaps, key: ServiceKey, past: &[u64]) {
        let services = &mut tables.services;
        services.services.get_mut(&key).expect("a Service").flags |= SERVICE_PAST;
        for (generation, id) in (1..).zip(past) {
            let table = maglev::table(&[*id].into()).expect("a table");
            services.maglev.insert(key.with_generation(generation), *table);
        }
    }

    /// The gateway after it has offered a connection to a backend of a table.
    fn unconfirmed(&self, past: &[u64], backend: u64, table: u32) -> MemoryMaps {
        self.with_entry(
            self.gateway_with_past(past),
            FlowEntry::unconfirmed(backend, table),
        )
    }

    fn with_entry(&self, tables: MemoryMaps, entry: FlowEntry) -> MemoryMaps {
        let key = self.flow_key(CLIENT, WEB, TCP);
        tables.services.flows.borrow_mut().insert(key, entry.word());
        tables
    }

    /// The connection of [`CLIENT`] at a Pod, through a port of the Service.
    fn with_reply(&self, tables: MemoryMaps, pod: [u8; 4], port: u16) -> MemoryMaps {
        let key = ReplyKey {
            pod: addr(self.addr_of(pod)),
            client: addr(self.addr_of(POD_WEST)),
            pod_port: POD_PORT,
            client_port: CLIENT,
            proto: TCP.into(),
        };
        let reply = Reply {
            addr: addr(self.addr_of(SERVICE_HERE)),
            port,
            pad: 0,
        };
        tables.services.replies.borrow_mut().insert(key, reply);
        tables
    }

    /// Forwarded to the node with the backend's MAC address and the mark.
    fn push_offer(&mut self, name: &str, tables: MemoryMaps, tunnel: &Tunnel, backend: u64) {
        let mac = fixture::sent_mac(NODE).with_backend(backend).may_return();
        self.push_sent(name, tables, tunnel, mac);
    }

    fn push_sent(&mut self, name: &str, tables: MemoryMaps, tunnel: &Tunnel, mac: SourceMac) {
        let (src, dst) = (self.shape.outer(GATEWAY_INSIDE), self.shape.outer(NODE));
        let next = forwarded_with_mac(tunnel, src, dst, mac.bytes());
        self.push(name, tables, tunnel, Expect::Transit(next));
    }

    /// The first fragment of a segment.
    fn tcp_fragment(&self) -> Ip {
        let mut ip = self.ack(WEB);
        if self.shape.inner_v6 {
            ip.proto = 44;
            ip.options = vec![TCP, 0, 0, 1, 0x12, 0x34, 0x56, 0x78];
        } else {
            ip.frags = 0x2000;
        }
        ip
    }

    /// An ICMP error of the client about a segment of the Service.
    fn error_about_reply(&self, from: ([u8; 4], u16)) -> Ip {
        let (client, server) = (self.addr_of(POD_WEST), self.addr_of(from.0));
        let quoted = self.tcp(from, (POD_WEST, CLIENT), 0x10).bytes();
        let (proto, kind, check_at) = if self.shape.inner_v6 {
            (58, [1, 4], 2)
        } else {
            (1, [3, 3], 2)
        };
        let message = [&kind[..], &[0; 6], &quoted].concat();
        let message = if self.shape.inner_v6 {
            with_checksum(client, server, proto, message, check_at)
        } else {
            let mut message = message;
            let sum = crate::packets::checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            message
        };
        Ip::new(client, server, proto, message)
    }

    /// Packets of another cluster.
    fn first_choices(&mut self) {
        let data = self.sent_by_west(&self.ack(WEB));
        let past = [SECOND];
        self.push_offer(
            "second choice: an unknown connection may return",
            self.gateway_with_past(&past),
            &data,
            ON_NODE,
        );
        let mut with_checksum = data.clone();
        with_checksum.udp_checksum = true;
        self.push_offer(
            "second choice: the outer checksum covers the mark",
            self.gateway_with_past(&past),
            &with_checksum,
            ON_NODE,
        );
        self.push_offer(
            "second choice: an unconfirmed connection may return",
            self.unconfirmed(&past, SECOND, 1),
            &data,
            SECOND,
        );
        let confirmed = || self.with_entry(self.gateway_with_past(&past), FlowEntry::confirmed(SECOND));
        let (confirmed, unready) = (confirmed(), confirmed());
        self.push_selection("second choice: a confirmed connection", confirmed, &data, SECOND);
        let unready = Self::without_ready_backend(unready);
        self.push_selection("second choice: confirmed, no ready Pod", unready, &data, SECOND);
        let syn = self.sent_by_west(&self.syn(WEB));
        self.push_selection(
            "second choice: a SYN",
            self.gateway_with_past(&past),
            &syn,
            ON_NODE,
        );
        let unconfirmed = self.unconfirmed(&past, ON_NODE, 0);
        self.push_selection(
            "second choice: a SYN of an unconfirmed flow",
            unconfirmed,
            &syn,
            ON_NODE,
        );
        let mut tables = self.gateway();
        Self::set_past(&mut tables, self.key(DATAGRAMS, super::UDP), &[BY_UDP]);
        let datagram = self.sent_by_west(&self.datagram(DATAGRAMS));
        self.push_selection("second choice: a datagram", tables, &datagram, BY_UDP);
        let limited = Self::exhausted(self.gateway_with_past(&past));
        self.push_selection("second choice: too many flows", limited, &data, ON_NODE);
        let fragment = self.sent_by_west(&self.tcp_fragment());
        let tables = self.gateway_with_past(&past);
        self.push_selection("second choice: a fragment", tables, &fragment, ON_NODE);
        let tables = self.unconfirmed(&past, SECOND, 1);
        self.push_selection(
            "second choice: a fragment of an unconfirmed flow",
            tables,
            &fragment,
            SECOND,
        );
        let error = self.sent_by_west(&self.error_about_reply((SERVICE_HERE, WEB)));
        let tables = self.gateway_with_past(&past);
        self.push_selection("second choice: an ICMP error", tables, &error, ON_NODE);
        let mut tables = self.gateway_with_past(&past);
        for next_hop in tables.next_hops.values_mut() {
            next_hop.source_mac = SourceMac::UNKEYED.to_bits();
        }
        let mac = SourceMac::UNKEYED.with_backend(ON_NODE);
        self.push_sent("second choice: a Node without a secret", tables, &data, mac);
        let unready = Self::without_ready_backend(self.gateway_with_past(&[]));
        let mut tables = unready;
        Self::set_past(&mut tables, self.key(WEB, TCP), &past);
        self.push_offer("second choice: no ready Pod", tables, &data, SECOND);
        let sticky = self.sent_by_west(&self.ack(STICKY));
        let mut tables = self.gateway();
        Self::set_past(&mut tables, self.key(STICKY, TCP), &[STICKY_KNOWN]);
        self.push_offer("second choice: affinity", tables, &sticky, STICKY_FIRST);
        let broken = self.ack(BROKEN);
        let mut tables = self.gateway();
        Self::set_past(&mut tables, self.key(BROKEN, TCP), &[GONE]);
        let tunnel = self.sent_by_west(&broken);
        self.push_delivery("second choice: no backend is left", tables, &tunnel, &broken);
        self.own_pods(&data);
    }

    /// Backends on the gateway itself.
    fn own_pods(&mut self, data: &Tunnel) {
        let first_is_here = |past: &[u64]| {
            let mut tables = self.gateway_with_past(past);
            let table = maglev::table(&[WEB_HERE].into()).expect("a table");
            tables.services.maglev.insert(self.key(WEB, TCP), *table);
            tables
        };
        let here = self.tcp((POD_WEST, CLIENT), (POD_HERE, POD_PORT), 0x10);
        let known = self.with_reply(first_is_here(&[SECOND]), POD_HERE, WEB);
        let unknown = first_is_here(&[SECOND]);
        let other_port = self.with_reply(first_is_here(&[SECOND]), POD_HERE, WEB + 1);
        let alone = first_is_here(&[GONE]);
        let past = self.with_reply(self.unconfirmed(&[WEB_HERE], ON_NODE, 0), POD_HERE, WEB);
        self.push_delivery("second choice: a Pod here has the connection", known, data, &here);
        self.push_offer(
            "second choice: no Pod here has the connection",
            unknown,
            data,
            SECOND,
        );
        self.push_offer(
            "second choice: a Pod here has a connection through another port",
            other_port,
            data,
            SECOND,
        );
        self.push_delivery("second choice: a Pod here is the only choice", alone, data, &here);
        let returned = self.returned(ON_NODE, &self.ack(WEB));
        self.push_delivery("returned: a Pod here has the connection", past, &returned, &here);
    }

    /// A packet that the node returns to the gateway.
    fn returned(&self, backend: u64, inner: &Ip) -> Tunnel {
        let mut tunnel = self.tunnel(NODE, GATEWAY_INSIDE, inner);
        tunnel.inner_src = SourceMac::UNKEYED.with_backend(backend).may_return().bytes();
        tunnel
    }

    /// A packet of the gateway that the node may return.
    fn offered(&self, backend: u64, inner: &Ip) -> Tunnel {
        let mut tunnel = self.sent_by_gateway(backend, inner);
        tunnel.inner_src = SourceMac::UNKEYED.with_backend(backend).may_return().bytes();
        tunnel
    }

    fn push_returned(&mut self, name: &str, tables: MemoryMaps, tunnel: &Tunnel, backend: u64) {
        let (src, dst) = (self.shape.outer(NODE), self.shape.outer(GATEWAY_INSIDE));
        let mac = fixture::sent_mac(GATEWAY_INSIDE)
            .with_backend(backend)
            .may_return();
        let frame = forwarded_with_mac(tunnel, src, dst, mac.bytes());
        let name = format!("return: {name}");
        self.push(&name, tables, tunnel, Expect::Transit(frame));
    }

    fn returned_by_node(&mut self) {
        let data = self.offered(ON_NODE, &self.ack(WEB));
        self.push_returned("an unknown connection", self.node(), &data, ON_NODE);
        let mut with_checksum = data.clone();
        with_checksum.udp_checksum = true;
        self.push_returned("the outer checksum", self.node(), &with_checksum, ON_NODE);
        let other = self.node_with_flow(WEB + 1, TCP);
        self.push_returned("a connection through another port", other, &data, ON_NODE);
        let mut secret = data.clone();
        let mac = received_mac(GATEWAY_INSIDE, PERIOD)
            .with_backend(ON_NODE)
            .may_return();
        secret.inner_src = mac.bytes();
        self.push_returned("with the secret", keyed(self.node()), &secret, ON_NODE);
        let [ack, syn] = [0x10, 0x02].map(|flags| self.tcp((POD_WEST, CLIENT), (POD_NODE, POD_PORT), flags));
        let known = self.node_with_flow(WEB, TCP);
        self.push_delivery("return: a known connection is translated", known, &data, &ack);
        let tunnel = self.offered(ON_NODE, &self.syn(WEB));
        self.push_delivery("return: never a SYN", self.node(), &tunnel, &syn);
        let tunnel = self.sent_by_gateway(ON_NODE, &self.ack(WEB));
        self.push_delivery("return: never without the mark", self.node(), &tunnel, &ack);
        let tunnel = self.offered(BY_UDP, &self.datagram(DATAGRAMS));
        let datagram = self.udp((POD_WEST, CLIENT), (POD_NODE, POD_PORT));
        self.push_delivery("return: never a datagram", self.node(), &tunnel, &datagram);
        let mut fragment = ack.clone();
        let request = self.tcp_fragment();
        fragment.proto = request.proto;
        fragment.options.clone_from(&request.options);
        fragment.frags = request.frags;
        let tunnel = self.offered(ON_NODE, &request);
        self.push_delivery("return: never a fragment", self.node(), &tunnel, &fragment);
        let mut last_hop = data.clone();
        last_hop.ttl = 1;
        for (name, tunnel, reason) in [
            ("hop limit 1", &last_hop, DropReason::TtlExceeded),
            (
                "a backend that does not exist",
                &self.offered(GONE, &self.ack(WEB)),
                DropReason::UnknownBackend,
            ),
            (
                "another port",
                &self.offered(ON_NODE, &self.ack(WEB + 1)),
                DropReason::ForeignBackend,
            ),
        ] {
            let name = format!("return: {name}");
            self.push(&name, self.node(), tunnel, Expect::Drop(reason));
        }
    }

    /// Packets that the node returns.
    fn next_choices(&mut self) {
        let data = self.returned(ON_NODE, &self.ack(WEB));
        let past = [GONE, ON_NODE, SECOND, WEB_HERE];
        let cases = [
            (
                "the backend of a past table",
                self.unconfirmed(&[SECOND], ON_NODE, 0),
                SECOND,
            ),
            (
                "missing backends and the first one are skipped",
                self.unconfirmed(&past, ON_NODE, 0),
                SECOND,
            ),
            (
                "a Pod here without the connection is skipped",
                self.unconfirmed(&[WEB_HERE, ENDING], ON_NODE, 0),
                ENDING,
            ),
            (
                "on its way before the entry changed",
                self.unconfirmed(&[SECOND], SECOND, 1),
                SECOND,
            ),
        ];
        for (name, tables, backend) in cases {
            self.push_offer(&format!("returned: {name}"), tables, &data, backend);
        }
        let mut secret = data.clone();
        secret.inner_src = received_mac(NODE, PERIOD)
            .with_backend(ON_NODE)
            .may_return()
            .bytes();
        let tables = keyed(self.unconfirmed(&[SECOND], ON_NODE, 0));
        self.push_offer("returned: with the secret", tables, &secret, SECOND);
        let mut with_checksum = data.clone();
        with_checksum.udp_checksum = true;
        let tables = self.unconfirmed(&[SECOND], ON_NODE, 0);
        self.push_offer("returned: the outer checksum", tables, &with_checksum, SECOND);
        let by_second = self.returned(SECOND, &self.ack(WEB));
        let last = self.unconfirmed(&[SECOND], SECOND, 1);
        self.push_selection("returned: no choice is left", last, &by_second, ON_NODE);
        let evicted = self.unconfirmed(&[GONE], ON_NODE, 0);
        self.push_selection("returned: the only backend", evicted, &data, ON_NODE);
        let unready = Self::without_ready_backend(self.unconfirmed(&[], SECOND, 1));
        self.push_selection(
            "returned: no ready Pod and no choice",
            unready,
            &by_second,
            SECOND,
        );
        let mut proxied = self.unconfirmed(&[], ON_NODE, 0);
        let service = proxied
            .services
            .services
            .get_mut(&self.key(WEB, TCP))
            .expect("a Service");
        service.flags = super::SERVICE_STACK;
        self.push_selection(
            "returned: the port is the service proxy's now",
            proxied,
            &data,
            ON_NODE,
        );
        let mut sticky = self.gateway();
        Self::set_past(&mut sticky, self.key(STICKY, TCP), &[STICKY_KNOWN]);
        assert_ne!(
            sticky.services.services[&self.key(STICKY, TCP)].flags & SERVICE_AFFINITY,
            0
        );
        let key = self.flow_key(CLIENT, STICKY, TCP);
        let entry = FlowEntry::unconfirmed(STICKY_FIRST, 0).word();
        sticky.services.flows.borrow_mut().insert(key, entry);
        let tunnel = self.returned(STICKY_FIRST, &self.ack(STICKY));
        self.push_offer("returned: affinity", sticky, &tunnel, STICKY_KNOWN);
    }

    /// One condition is missing.
    fn refused_returns(&mut self) {
        use DropReason::{
            ForeignBackend, InnerMalformed, InnerSource, NoRoute, NotExported, PeerSecret, TtlExceeded,
            UnexpectedReturn, UnknownBackend,
        };
        let offered = self.unconfirmed(&[SECOND], ON_NODE, 0);
        let tables = || offered.clone();
        let data = self.returned(ON_NODE, &self.ack(WEB));
        let with = |backend: u64, inner: &Ip| self.returned(backend, inner);
        let from = |src: [u8; 4]| self.tcp((src, CLIENT), (SERVICE_HERE, WEB), 0x10);
        let mut last_hop = data.clone();
        last_hop.ttl = 1;
        let mut unmarked = data.clone();
        unmarked.inner_src = SourceMac::UNKEYED.with_backend(ON_NODE).bytes();
        let mut other_gateway = data.clone();
        other_gateway.src = self.shape.outer(OTHER_GATEWAY);
        let cut = Ip::new(
            self.addr_of(POD_WEST),
            self.addr_of(SERVICE_HERE),
            TCP,
            vec![0x9c, 0x40],
        );
        let mut unexported = tables();
        unexported.services.services.remove(&self.key(WEB, TCP));
        let mut without_group = tables();
        for peer in without_group.peers.values_mut() {
            peer.group = 0;
        }
        let confirmed = self.with_entry(self.gateway_with_past(&[SECOND]), FlowEntry::confirmed(ON_NODE));
        let refused = [
            ("unmarked", tables(), unmarked, InnerSource),
            ("by another gateway", tables(), other_gateway, UnknownBackend),
            (
                "a backend that does not exist",
                tables(),
                with(GONE, &self.ack(WEB)),
                UnknownBackend,
            ),
            (
                "a backend of another Node",
                tables(),
                with(ELSEWHERE, &self.ack(WEB)),
                ForeignBackend,
            ),
            (
                "a backend of the gateway",
                tables(),
                with(WEB_HERE, &self.ack(WEB)),
                ForeignBackend,
            ),
            (
                "by a Node without a group",
                without_group,
                data.clone(),
                ForeignBackend,
            ),
            (
                "a backend of another port",
                tables(),
                with(STICKY_FIRST, &self.ack(WEB)),
                ForeignBackend,
            ),
            (
                "a port that is not exported",
                unexported,
                data.clone(),
                NotExported,
            ),
            ("a SYN", tables(), with(ON_NODE, &self.syn(WEB)), UnexpectedReturn),
            (
                "a datagram",
                tables(),
                with(BY_UDP, &self.datagram(DATAGRAMS)),
                UnexpectedReturn,
            ),
            (
                "a fragment",
                tables(),
                with(ON_NODE, &self.tcp_fragment()),
                UnexpectedReturn,
            ),
            (
                "an ICMP error",
                tables(),
                with(ON_NODE, &self.error_about_reply((SERVICE_HERE, WEB))),
                UnexpectedReturn,
            ),
            (
                "truncated before the ports",
                tables(),
                with(ON_NODE, &cut),
                InnerMalformed,
            ),
            ("a confirmed flow", confirmed, data.clone(), UnexpectedReturn),
            (
                "no flow",
                self.gateway_with_past(&[SECOND]),
                data.clone(),
                UnexpectedReturn,
            ),
            (
                "of the Node's Pod",
                tables(),
                with(ON_NODE, &from(POD_NODE)),
                NoRoute,
            ),
            (
                "of a Pod of the gateway",
                tables(),
                with(ON_NODE, &from(POD_HERE)),
                InnerSource,
            ),
            (
                "to a Pod",
                tables(),
                with(ON_NODE, &self.tcp((POD_WEST, CLIENT), (POD_HERE, WEB), 0x10)),
                InnerSource,
            ),
            ("hop limit 1", tables(), last_hop, TtlExceeded),
        ];
        for (name, tables, tunnel, reason) in refused {
            self.push(
                &format!("returned: {name}"),
                tables,
                &tunnel,
                Expect::Drop(reason),
            );
        }
        let right = received_mac(NODE, PERIOD).with_backend(ON_NODE);
        let to_pod = self.tcp((POD_WEST, CLIENT), (POD_HERE, WEB), 0x10);
        for (name, inner, mac, reason) in [
            ("without the mark", self.ack(WEB), right, PeerSecret),
            (
                "without a secret",
                self.ack(WEB),
                SourceMac::UNKEYED.with_backend(ON_NODE).may_return(),
                PeerSecret,
            ),
            (
                "a period too early",
                self.ack(WEB),
                received_mac(NODE, PERIOD - 2).with_backend(ON_NODE).may_return(),
                PeerSecret,
            ),
            (
                "the secret of another pair",
                self.ack(WEB),
                received_mac(OTHER_GATEWAY, PERIOD)
                    .with_backend(ON_NODE)
                    .may_return(),
                UnknownBackend,
            ),
            (
                "the mark without a backend",
                self.ack(WEB),
                received_mac(NODE, PERIOD).may_return(),
                PeerSecret,
            ),
            ("to a Pod", to_pod, right.may_return(), PeerSecret),
        ] {
            let mut tunnel = self.returned(ON_NODE, &inner);
            tunnel.inner_src = mac.bytes();
            let name = format!("returned with secrets: {name}");
            self.push(&name, keyed(tables()), &tunnel, Expect::Drop(reason));
        }
        // The mark of another cluster's gateway is no mark.
        let mut marked = self.sent_by_west(&self.ack(WEB));
        let mac = received_mac(WEST_GATEWAY, PERIOD)
            .with_backend(ON_NODE)
            .may_return();
        marked.inner_src = mac.bytes();
        let name = "returned with secrets: by a gateway of another cluster";
        self.push(name, keyed(tables()), &marked, Expect::Drop(PeerSecret));
        self.push_selection(
            "returned: by a gateway of another cluster",
            self.with_entry(tables(), FlowEntry::confirmed(SECOND)),
            &marked,
            SECOND,
        );
    }

    /// A peer that is both a gateway and a Node: the place of the backend decides.
    fn both_roles(&mut self) {
        let node = addr(self.shape.outer(NODE));
        let both = |mut tables: MemoryMaps| {
            let peer = tables.peers.get_mut(&node).expect("a peer");
            peer.flags |= PEER_LOCAL_GATEWAY | PEER_LOCAL_NODE;
            tables
        };
        let data = self.returned(ON_NODE, &self.ack(WEB));
        let tables = both(self.unconfirmed(&[SECOND], ON_NODE, 0));
        self.push_offer("returned: by a gateway with the backend", tables, &data, SECOND);
        let mut unmarked = data.clone();
        unmarked.inner_src = SourceMac::UNKEYED.with_backend(ON_NODE).bytes();
        let tables = both(self.unconfirmed(&[SECOND], ON_NODE, 0));
        self.push(
            "returned: unmarked by a gateway with the backend",
            tables,
            &unmarked,
            Expect::Drop(DropReason::UnknownBackend),
        );
        let request = self.returned(WEB_HERE, &self.ack(WEB));
        let here = self.tcp((POD_WEST, CLIENT), (POD_HERE, POD_PORT), 0x10);
        let tables = both(self.with_reply(self.gateway_with_past(&[]), POD_HERE, WEB));
        self.push_delivery(
            "return: a request of a gateway to a gateway",
            tables,
            &request,
            &here,
        );
        let (src, dst) = (self.shape.outer(GATEWAY_INSIDE), self.shape.outer(NODE));
        let mac = fixture::sent_mac(NODE).with_backend(WEB_HERE).may_return();
        let frame = forwarded_with_mac(&request, src, dst, mac.bytes());
        let tables = both(self.gateway_with_past(&[]));
        let name = "return: an unknown connection, by a gateway to a gateway";
        self.push(name, tables, &request, Expect::Transit(frame));
    }
}
