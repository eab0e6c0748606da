//! Open connections without a flow entry: the gateway's choices, the Node that returns a packet, and the conditions for
//! a returned packet.

mod datagrams;
mod refused;

use mc_gateway_common::{
    abi::{
        SourceMac,
        flow_entry::FlowEntry,
        service::{SERVICE_AFFINITY, SERVICE_PAST, ServiceKey},
    },
    maglev,
    maps::MemoryMaps,
    verdict::DropReason,
};

use super::{
    BROKEN, CLIENT, Cases, ENDING, GONE, ON_NODE, POD_PORT, SECOND, STICKY, STICKY_FIRST, STICKY_HERE,
    STICKY_KNOWN, TCP, WEB, WEB_HERE,
};
use crate::{
    cases::{Expect, from_underlay::forwarded_with_mac},
    fixture::{
        self, GATEWAY_INSIDE, NODE, PERIOD, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE, keyed, received_mac,
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
        self.datagrams();
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
    fn error_about_segment(&self) -> Ip {
        self.error_about(&self.tcp((SERVICE_HERE, WEB), (POD_WEST, CLIENT), 0x10))
    }

    /// An ICMP error of the client about a packet of the Service.
    fn error_about(&self, reply: &Ip) -> Ip {
        let (client, server) = (self.addr_of(POD_WEST), self.addr_of(SERVICE_HERE));
        let quoted = reply.bytes();
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
        let error = self.sent_by_west(&self.error_about_segment());
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
        let known = self.with_reply(first_is_here(&[SECOND]), POD_HERE, WEB, TCP);
        let unknown = first_is_here(&[SECOND]);
        let other_port = self.with_reply(first_is_here(&[SECOND]), POD_HERE, WEB + 1, TCP);
        let alone = first_is_here(&[GONE]);
        let past = self.with_reply(self.unconfirmed(&[WEB_HERE], ON_NODE, 0), POD_HERE, WEB, TCP);
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
        let here = self.tcp((POD_WEST, CLIENT), (POD_HERE, POD_PORT), 0x10);
        let mut sticky = self.gateway();
        let backend = self.backend(POD_HERE, STICKY, TCP, 0);
        sticky.services.backends.insert(STICKY_HERE, backend);
        Self::set_past(&mut sticky, self.key(STICKY, TCP), &[STICKY_KNOWN]);
        let client = self.flow_key(0, STICKY, TCP);
        let entry = super::affinity::entry(STICKY_HERE, 1);
        sticky.services.flows.borrow_mut().insert(client, entry);
        let sticky = self.with_reply(sticky, POD_HERE, STICKY, TCP);
        let segment = self.sent_by_west(&self.ack(STICKY));
        let name = "second choice: the client's Pod here, in no table, has the connection";
        self.push_delivery(name, sticky, &segment, &here);
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
}
