//! Service addresses: backend selection at a gateway, DNAT at the Pod's node, and replies.

mod affinity;
mod errors;
mod hidden_senders;
mod second_choice;
pub(crate) mod worlds;

use std::net::IpAddr;

use mc_gateway_common::{
    abi::{
        ACTION_DELIVER, ACTION_SERVICE, Addr, CLUSTER_LOCAL, CONFIG_ALL_SERVICES, CONFIG_BACKENDS,
        PREFIX_BACKENDS, Prefix,
        rate_limit::{PeerLimits, TokenBucket},
        service::{
            BACKEND_READY, Backend, FLOW_OF_STACK, FlowKey, Fragment, FragmentKey, Reply, ReplyKey,
            SERVICE_AFFINITY, SERVICE_STACK, SERVICE_TIMEOUT_SHIFT, Service, ServiceKey,
        },
    },
    maglev,
    maps::MemoryMaps,
    verdict::DropReason,
};

use super::{
    Case, Expect, Program, case_from_underlay,
    from_underlay::{decapsulated, forwarded, forwarded_with_mac},
    to_remote::encapsulated,
};
use crate::{
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE, Shape,
        WEST_GATEWAY,
    },
    packets::{Ip, Tunnel, checksum, tcp_syn, udp, with_checksum},
};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
/// Ports of the Service: to a Pod of the node by TCP and UDP, to a Pod of the gateway by UDP, and one with a missing
/// backend in its lookup table.
const WEB: u16 = 80;
const DATAGRAMS: u16 = 5000;
const LOCAL: u16 = 53;
const BROKEN: u16 = 7;
/// A port with session affinity.
const STICKY: u16 = 81;
/// A port that the service proxy serves.
const PROXIED: u16 = 443;
/// The Pods' port.
const POD_PORT: u16 = 8080;
/// The client's port.
const CLIENT: u16 = 40_000;

/// IDs of the backends: those of the ports above, two that accept no new flows, one of [`STICKY`] outside its lookup
/// table, and a missing one.
pub(super) const ON_NODE: u64 = 0x01_0203_0405;
const BY_UDP: u64 = 0x02_0000_0001;
const HERE: u64 = 0xff_ffff_fffe;
const ENDING: u64 = 0x03_0000_0001;
const ENDING_UDP: u64 = 0x03_0000_0002;
const STICKY_KNOWN: u64 = 0x04_0000_0001;
const STICKY_FIRST: u64 = 0x04_0000_0002;
const GONE: u64 = 0x05_0000_0001;
/// Backends of [`worlds::several_backends`]: on the node, and on the gateway by TCP, by UDP and of [`STICKY`].
const SECOND: u64 = 0x07_0000_0001;
const WEB_HERE: u64 = 0x07_0000_0002;
const UDP_HERE: u64 = 0x07_0000_0003;
const STICKY_HERE: u64 = 0x07_0000_0004;

/// `mc_nh_groups` slot of the node in [`world::gateway`].
const GROUP_NODE: u32 = 2;

/// All of them except those of [`worlds::several_backends`].
pub(crate) const BACKENDS: [u64; 8] = [
    ON_NODE,
    BY_UDP,
    HERE,
    ENDING,
    ENDING_UDP,
    STICKY_KNOWN,
    STICKY_FIRST,
    GONE,
];

/// The MAC address that names a backend.
pub(crate) fn mac(backend: u64) -> [u8; 6] {
    let bytes = backend.to_be_bytes();
    [6, bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]
}

fn addr(address: IpAddr) -> Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The cases of one shape.
struct Cases<'c> {
    shape: Shape,
    cases: &'c mut Vec<Case>,
}

pub(crate) fn services(cases: &mut Vec<Case>) {
    for shape in Shape::all() {
        let mut cases = Cases { shape, cases };
        cases.selected();
        cases.existing_flows();
        cases.host_stack();
        cases.hidden_senders();
        cases.translated();
        cases.dropped();
        cases.limited();
        cases.replies();
        cases.fragments();
        cases.errors();
        cases.second_choice();
    }
}

/// The gateway or the node of a shape with all Services.
pub(crate) fn world(shape: Shape, gateway: bool) -> MemoryMaps {
    let cases = Cases {
        shape,
        cases: &mut Vec::new(),
    };
    if gateway { cases.gateway() } else { cases.node() }
}

/// Tables of the node, a packet of the gateway to the backend [`ON_NODE`], and the packet as its Pod receives it.
pub(super) fn request_on_node(shape: Shape) -> (MemoryMaps, Tunnel, Ip) {
    let cases = Cases {
        shape,
        cases: &mut Vec::new(),
    };
    let request = cases.sent_by_gateway(ON_NODE, &cases.syn(WEB));
    let translated = cases.tcp((POD_WEST, CLIENT), (POD_NODE, POD_PORT), 0x02);
    (cases.node(), request, translated)
}

impl Cases<'_> {
    fn addr_of(&self, address: [u8; 4]) -> IpAddr {
        self.shape.inner(address)
    }

    fn backend(&self, pod: [u8; 4], port: u16, proto: u8, group: u32) -> Backend {
        Backend {
            pod: addr(self.addr_of(pod)),
            service: addr(self.addr_of(SERVICE_HERE)),
            group,
            pod_port: POD_PORT,
            service_port: port,
            proto,
            flags: BACKEND_READY,
            pad: 0,
        }
    }

    fn key(&self, port: u16, proto: u8) -> ServiceKey {
        ServiceKey {
            addr: addr(self.addr_of(SERVICE_HERE)),
            port,
            proto,
            generation: 0,
        }
    }

    fn with_service_prefix(&self, tables: MemoryMaps) -> MemoryMaps {
        let mut tables = self.shape.tables(tables);
        let Some(config) = &mut tables.config else {
            return tables;
        };
        config.flags |= CONFIG_BACKENDS;
        let network = addr(self.addr_of([10, 101, 0, 0]));
        let value = Prefix {
            cluster: CLUSTER_LOCAL,
            group: 0,
            action: ACTION_SERVICE,
            flags: 0,
            identity: 0,
        };
        tables.prefixes.insert((112, network), value);
        tables
    }

    /// Adds the prefix of a local Pod behind a Service.
    fn with_backend(&self, mut tables: MemoryMaps, pod: [u8; 4]) -> MemoryMaps {
        let value = Prefix {
            cluster: CLUSTER_LOCAL,
            group: 0,
            action: ACTION_DELIVER,
            flags: PREFIX_BACKENDS,
            identity: 0,
        };
        tables.prefixes.insert((128, addr(self.addr_of(pod))), value);
        tables
    }

    /// East's gateway with all Services.
    fn gateway(&self) -> MemoryMaps {
        let mut tables = self.with_backend(self.with_service_prefix(fixture::gateway()), POD_HERE);
        tables.health.now = fixture::now();
        let services = &mut tables.services;
        for (port, proto, ids, flags) in [
            (WEB, TCP, [ON_NODE], 0),
            (DATAGRAMS, UDP, [BY_UDP], 0),
            (LOCAL, UDP, [HERE], 0),
            (BROKEN, TCP, [GONE], 0),
            (
                STICKY,
                TCP,
                [STICKY_FIRST],
                SERVICE_AFFINITY | affinity::SECONDS << SERVICE_TIMEOUT_SHIFT,
            ),
        ] {
            let key = self.key(port, proto);
            let table = maglev::table(&ids.into()).expect("a table");
            services.maglev.insert(key, *table);
            services.services.insert(key, Service { flags, backends: 1 });
        }
        for key in [self.key(PROXIED, TCP), self.key(WEB, SCTP)] {
            let proxied = Service {
                flags: SERVICE_STACK,
                backends: 0,
            };
            services.services.insert(key, proxied);
        }
        let mut backends = vec![
            (ON_NODE, self.backend(POD_NODE, WEB, TCP, GROUP_NODE)),
            (BY_UDP, self.backend(POD_NODE, DATAGRAMS, UDP, GROUP_NODE)),
            (HERE, self.backend(POD_HERE, LOCAL, UDP, 0)),
            (STICKY_KNOWN, self.backend(POD_NODE, STICKY, TCP, GROUP_NODE)),
            (STICKY_FIRST, self.backend(POD_NODE, STICKY, TCP, GROUP_NODE)),
            (ENDING, self.backend(POD_NODE, WEB, TCP, GROUP_NODE)),
            (ENDING_UDP, self.backend(POD_NODE, DATAGRAMS, UDP, GROUP_NODE)),
        ];
        for (id, backend) in &mut backends {
            if matches!(*id, ENDING | ENDING_UDP) {
                backend.flags = 0;
            }
        }
        services.backends = backends.into_iter().collect();
        tables
    }

    /// The gateway with an existing flow.
    fn gateway_with_flow(&self, client_port: u16, port: u16, proto: u8, backend: u64) -> MemoryMaps {
        let tables = self.gateway();
        let key = self.flow_key(client_port, port, proto);
        tables.services.flows.borrow_mut().insert(key, backend);
        tables
    }

    fn flow_key(&self, client_port: u16, port: u16, proto: u8) -> FlowKey {
        FlowKey {
            client: addr(self.addr_of(POD_WEST)),
            service: addr(self.addr_of(SERVICE_HERE)),
            client_port,
            service_port: port,
            proto: proto.into(),
        }
    }

    /// The same maps after the last backend became unready.
    fn without_ready_backend(mut tables: MemoryMaps) -> MemoryMaps {
        tables.services.maglev.clear();
        for service in tables.services.services.values_mut() {
            service.backends = 0;
        }
        for backend in tables.services.backends.values_mut() {
            backend.flags = 0;
        }
        tables
    }

    /// East's regular node with its own Pods.
    fn node(&self) -> MemoryMaps {
        let mut tables = self.with_backend(self.with_service_prefix(fixture::node()), POD_NODE);
        tables.services.backends = [
            (ON_NODE, self.backend(POD_NODE, WEB, TCP, 0)),
            (BY_UDP, self.backend(POD_NODE, DATAGRAMS, UDP, 0)),
            (HERE, self.backend(POD_HERE, LOCAL, UDP, GROUP_NODE)),
        ]
        .into();
        tables
    }

    /// The node with an existing flow to the Service.
    fn node_with_flow(&self, port: u16, proto: u8) -> MemoryMaps {
        self.with_reply(self.node(), POD_NODE, port, proto)
    }

    /// The flow of [`CLIENT`] at a Pod, through a port of the Service.
    fn with_reply(&self, tables: MemoryMaps, pod: [u8; 4], port: u16, proto: u8) -> MemoryMaps {
        let key = ReplyKey {
            pod: addr(self.addr_of(pod)),
            client: addr(self.addr_of(POD_WEST)),
            pod_port: POD_PORT,
            client_port: CLIENT,
            proto: proto.into(),
        };
        let reply = Reply {
            addr: addr(self.addr_of(SERVICE_HERE)),
            port,
            pad: 0,
        };
        tables.services.replies.borrow_mut().insert(key, reply);
        tables
    }

    /// A TCP segment with a valid checksum.
    fn tcp(&self, src: ([u8; 4], u16), dst: ([u8; 4], u16), flags: u8) -> Ip {
        let (from, to) = (self.addr_of(src.0), self.addr_of(dst.0));
        let mut segment = tcp_syn(src.1, dst.1);
        segment[13] = flags;
        Ip::new(from, to, TCP, with_checksum(from, to, TCP, segment, 16))
    }

    /// A UDP datagram with a valid checksum.
    fn udp(&self, src: ([u8; 4], u16), dst: ([u8; 4], u16)) -> Ip {
        let (from, to) = (self.addr_of(src.0), self.addr_of(dst.0));
        Ip::new(
            from,
            to,
            UDP,
            with_checksum(from, to, UDP, udp(src.1, dst.1, b"odd"), 6),
        )
    }

    fn syn(&self, port: u16) -> Ip {
        self.tcp((POD_WEST, CLIENT), (SERVICE_HERE, port), 0x02)
    }

    fn ack(&self, port: u16) -> Ip {
        self.tcp((POD_WEST, CLIENT), (SERVICE_HERE, port), 0x10)
    }

    fn datagram(&self, port: u16) -> Ip {
        self.udp((POD_WEST, CLIENT), (SERVICE_HERE, port))
    }

    fn tunnel(&self, src: [u8; 4], dst: [u8; 4], inner: &Ip) -> Tunnel {
        let mut tunnel = Tunnel::new(self.shape.outer(src), self.shape.outer(dst), inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel
    }

    /// From the other cluster's gateway.
    fn sent_by_west(&self, inner: &Ip) -> Tunnel {
        self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, inner)
    }

    /// From the own cluster's gateway, with a selected backend.
    fn sent_by_gateway(&self, backend: u64, inner: &Ip) -> Tunnel {
        let mut tunnel = self.tunnel(GATEWAY_INSIDE, NODE, inner);
        tunnel.inner_src = mac(backend);
        tunnel
    }

    fn push(&mut self, name: &str, tables: MemoryMaps, tunnel: &Tunnel, expect: Expect) {
        let name = format!("{}: Service, {name}", self.shape.name());
        self.cases
            .push(case_from_underlay(name, tables, tunnel.frame(), expect));
    }

    /// Forwarded to the node with the backend's MAC address.
    fn push_selection(&mut self, name: &str, tables: MemoryMaps, tunnel: &Tunnel, backend: u64) {
        let (src, dst) = (self.shape.outer(GATEWAY_INSIDE), self.shape.outer(NODE));
        let mac = fixture::sent_mac(NODE).with_backend(backend).bytes();
        let next = forwarded_with_mac(tunnel, src, dst, mac);
        self.push(name, tables, tunnel, Expect::Transit(next));
    }

    fn push_delivery(&mut self, name: &str, tables: MemoryMaps, tunnel: &Tunnel, inner: &Ip) {
        let mut translated = tunnel.clone();
        translated.inner = inner.bytes().to_vec();
        self.push(name, tables, tunnel, Expect::Deliver(decapsulated(&translated)));
    }

    fn push_reply(&mut self, name: &str, tables: MemoryMaps, from_pod: &Ip, on_the_wire: &Ip) {
        let (src, dst) = (self.shape.outer(NODE), self.shape.outer(GATEWAY_INSIDE));
        let mut expected = encapsulated(on_the_wire, src, dst);
        // Next-hop selection precedes the translation, so that all packets of a flow use the same next hop.
        let chosen = encapsulated(from_pod, src, dst);
        (expected.src_port, expected.label) = (chosen.src_port, chosen.label);
        expected.vxlan = self.shape.vxlan;
        expected.dst_port = self.shape.port();
        self.cases.push(Case {
            gso_size: 0,
            name: format!("{}: Service, {name}", self.shape.name()),
            program: Program::ToRemote,
            tables,
            frame: from_pod.frame(),
            expect: Expect::Encap(expected.frame()),
        });
    }

    fn selected(&mut self) {
        let web = self.sent_by_west(&self.syn(WEB));
        self.push_selection("TCP to a Pod of a node", self.gateway(), &web, ON_NODE);
        let mut with_checksum = web.clone();
        with_checksum.udp_checksum = true;
        self.push_selection(
            "the outer checksum covers the selected backend",
            self.gateway(),
            &with_checksum,
            ON_NODE,
        );
        let mut forged = web.clone();
        forged.inner_src = mac(HERE);
        self.push_selection("another cluster cannot select", self.gateway(), &forged, ON_NODE);
        let datagram = self.sent_by_west(&self.datagram(DATAGRAMS));
        self.push_selection("UDP to a Pod of a node", self.gateway(), &datagram, BY_UDP);
        let mut last_hop = web.clone();
        last_hop.ttl = 1;
        self.push(
            "a loop ends",
            self.gateway(),
            &last_hop,
            Expect::Drop(DropReason::TtlExceeded),
        );
        let sticky = self.sent_by_west(&self.syn(STICKY));
        self.push_selection("affinity, first flow", self.gateway(), &sticky, STICKY_FIRST);
        self.affinity(&sticky);
        let local = self.sent_by_west(&self.datagram(LOCAL));
        let translated = self.udp((POD_WEST, CLIENT), (POD_HERE, POD_PORT));
        self.push_delivery("a Pod of the gateway itself", self.gateway(), &local, &translated);
    }

    fn existing_flows(&mut self) {
        let data = self.sent_by_west(&self.ack(WEB));
        let flow = self.gateway_with_flow(CLIENT, WEB, TCP, ENDING);
        self.push_selection("a connection stays on a terminating Pod", flow, &data, ENDING);
        let syn = self.sent_by_west(&self.syn(WEB));
        let flow = self.gateway_with_flow(CLIENT, WEB, TCP, ENDING);
        self.push_selection("a new connection avoids a terminating Pod", flow, &syn, ON_NODE);
        let flow = self.gateway_with_flow(CLIENT, WEB, TCP, GONE);
        self.push_selection("a removed backend is replaced", flow, &data, ON_NODE);
        let datagram = self.sent_by_west(&self.datagram(DATAGRAMS));
        let flow = self.gateway_with_flow(CLIENT, DATAGRAMS, UDP, ENDING_UDP);
        self.push_selection("datagrams leave a terminating Pod", flow, &datagram, BY_UDP);
        // No backend is ready: the entry stays without a lookup table.
        for (name, port, proto, backend, packet) in [
            ("a connection", WEB, TCP, ENDING, &data),
            ("datagrams", DATAGRAMS, UDP, ENDING_UDP, &datagram),
        ] {
            let flow = Self::without_ready_backend(self.gateway_with_flow(CLIENT, port, proto, backend));
            let name = format!("{name} of a Service without a ready Pod stay");
            self.push_selection(&name, flow, packet, backend);
        }
        let inner = self.syn(WEB);
        self.push_delivery(
            "to the stack: a new connection without a ready Pod",
            Self::without_ready_backend(self.gateway()),
            &self.sent_by_west(&inner),
            &inner,
        );
        self.push_selection(
            "a flow of another gateway continues",
            self.gateway(),
            &data,
            ON_NODE,
        );
    }

    fn host_stack(&mut self) {
        let echo = Ip::new(
            self.addr_of(POD_WEST),
            self.addr_of(SERVICE_HERE),
            if self.shape.inner_v6 { 58 } else { 1 },
            vec![if self.shape.inner_v6 { 128 } else { 8 }, 0, 0, 0, 0, 0, 0, 0],
        );
        let sctp = Ip::new(
            self.addr_of(POD_WEST),
            self.addr_of(SERVICE_HERE),
            132,
            tcp_syn(CLIENT, WEB),
        );
        let sctp_elsewhere = Ip::new(
            self.addr_of(POD_WEST),
            self.addr_of(SERVICE_HERE),
            132,
            tcp_syn(CLIENT, WEB + 1),
        );
        for (name, inner) in [
            ("a port of the service proxy", self.syn(PROXIED)),
            ("SCTP", sctp),
            ("missing backend in the lookup table", self.syn(BROKEN)),
        ] {
            let tunnel = self.sent_by_west(&inner);
            self.push_delivery(&format!("to the stack: {name}"), self.gateway(), &tunnel, &inner);
        }
        for (name, inner) in [
            ("another port", self.syn(444)),
            ("a segment without SYN", self.ack(444)),
            ("another protocol", self.datagram(WEB)),
            ("an echo request", echo),
            ("SCTP", sctp_elsewhere),
        ] {
            let tunnel = self.sent_by_west(&inner);
            let name = format!("not exported: {name}");
            self.push(
                &name,
                self.gateway(),
                &tunnel,
                Expect::Drop(DropReason::NotExported),
            );
            let mut open = self.gateway();
            if let Some(config) = &mut open.config {
                config.flags |= CONFIG_ALL_SERVICES;
            }
            self.push_delivery(&format!("{name}, all Services open"), open, &tunnel, &inner);
        }
        // The port is translated now, or left to the service proxy now.
        let flow = self.gateway_with_flow(CLIENT, WEB, TCP, FLOW_OF_STACK);
        let inner = self.ack(WEB);
        let data = self.sent_by_west(&inner);
        self.push_delivery("a connection stays at the service proxy", flow, &data, &inner);
        let flow = self.gateway_with_flow(CLIENT, WEB, TCP, FLOW_OF_STACK);
        let syn = self.sent_by_west(&self.syn(WEB));
        self.push_selection("a new connection leaves the service proxy", flow, &syn, ON_NODE);
        let mut proxied = self.gateway_with_flow(CLIENT, WEB, TCP, ON_NODE);
        let key = self.key(WEB, TCP);
        if let Some(service) = proxied.services.services.get_mut(&key) {
            service.flags = SERVICE_STACK;
        }
        self.push_selection(
            "a connection does not move to the service proxy",
            proxied.clone(),
            &data,
            ON_NODE,
        );
        let inner = self.syn(WEB);
        self.push_delivery(
            "a new connection moves to the service proxy",
            proxied,
            &syn,
            &inner,
        );
        let mut withdrawn = self.gateway_with_flow(CLIENT, WEB, TCP, ON_NODE);
        let key = self.key(WEB, TCP);
        withdrawn.services.services.remove(&key);
        let tunnel = self.sent_by_west(&self.ack(WEB));
        self.push(
            "a flow of a withdrawn export",
            withdrawn,
            &tunnel,
            Expect::Drop(DropReason::NotExported),
        );
        let cut = Ip::new(
            self.addr_of(POD_WEST),
            self.addr_of(SERVICE_HERE),
            TCP,
            vec![0x9c, 0x40],
        );
        let cut = self.sent_by_west(&cut);
        self.push(
            "truncated before the ports",
            self.gateway(),
            &cut,
            Expect::Drop(DropReason::InnerMalformed),
        );
    }

    fn translated(&mut self) {
        let web = self.sent_by_gateway(ON_NODE, &self.syn(WEB));
        let translated = self.tcp((POD_WEST, CLIENT), (POD_NODE, POD_PORT), 0x02);
        self.push_delivery("TCP to the Pod", self.node(), &web, &translated);
        self.push_delivery(
            "TCP to the Pod, known flow",
            self.node_with_flow(WEB, TCP),
            &web,
            &translated,
        );
        self.push_delivery(
            "TCP to the Pod, previously of another Service",
            self.node_with_flow(443, TCP),
            &web,
            &translated,
        );
        let datagram = self.sent_by_gateway(BY_UDP, &self.datagram(DATAGRAMS));
        let translated = self.udp((POD_WEST, CLIENT), (POD_NODE, POD_PORT));
        self.push_delivery("UDP to the Pod", self.node(), &datagram, &translated);
        let same_port = self.sent_by_gateway(ON_NODE, &self.syn(POD_PORT));
        let mut tables = self.node();
        if let Some(backend) = tables.services.backends.get_mut(&ON_NODE) {
            backend.service_port = POD_PORT;
        }
        let expected = self.tcp((POD_WEST, CLIENT), (POD_NODE, POD_PORT), 0x02);
        self.push_delivery("unchanged port", tables, &same_port, &expected);
        if !self.shape.inner_v6 {
            let bare = |dst, port| {
                let (from, to) = (self.addr_of(POD_WEST), self.addr_of(dst));
                Ip::new(from, to, UDP, udp(CLIENT, port, b"bare"))
            };
            let tunnel = self.sent_by_gateway(BY_UDP, &bare(SERVICE_HERE, DATAGRAMS));
            let translated = bare(POD_NODE, POD_PORT);
            self.push_delivery("no UDP checksum", self.node(), &tunnel, &translated);
            let mut options = self.syn(WEB);
            options.options = vec![1; 8];
            let tunnel = self.sent_by_gateway(ON_NODE, &options);
            let mut translated = self.tcp((POD_WEST, CLIENT), (POD_NODE, POD_PORT), 0x02);
            translated.options = vec![1; 8];
            self.push_delivery("IPv4 options", self.node(), &tunnel, &translated);
        }
        let direct = self.tcp((POD_WEST, CLIENT), (POD_NODE, POD_PORT), 0x02);
        let tunnel = self.tunnel(GATEWAY_INSIDE, NODE, &direct);
        self.push_delivery(
            "a direct connection from the same port",
            self.node_with_flow(WEB, TCP),
            &tunnel,
            &direct,
        );
    }

    fn dropped(&mut self) {
        let unknown = Expect::Drop(DropReason::UnknownBackend);
        let foreign = Expect::Drop(DropReason::ForeignBackend);
        let syn = self.syn(WEB);
        let unnamed = self.tunnel(GATEWAY_INSIDE, NODE, &syn);
        self.push("no selected backend", self.node(), &unnamed, unknown.clone());
        let gone = self.sent_by_gateway(GONE, &syn);
        self.push("an unknown backend", self.node(), &gone, unknown.clone());
        let elsewhere = self.sent_by_gateway(HERE, &self.datagram(LOCAL));
        self.push("a backend of another node", self.node(), &elsewhere, unknown);
        let port = self.sent_by_gateway(ON_NODE, &self.syn(443));
        self.push("another port", self.node(), &port, foreign.clone());
        let proto = self.sent_by_gateway(ON_NODE, &self.datagram(WEB));
        self.push("another protocol", self.node(), &proto, foreign.clone());
        let other = self.tcp((POD_WEST, CLIENT), ([10, 101, 0, 11], WEB), 0x02);
        let other = self.sent_by_gateway(ON_NODE, &other);
        self.push("another address", self.node(), &other, foreign.clone());
        let sctp = Ip::new(
            self.addr_of(POD_WEST),
            self.addr_of(SERVICE_HERE),
            132,
            tcp_syn(CLIENT, WEB),
        );
        let sctp = self.sent_by_gateway(ON_NODE, &sctp);
        self.push("SCTP is never translated", self.node(), &sctp, foreign);
    }

    /// Tables in which the gateway of west has used up its new flows and fragmented packets.
    fn exhausted(tables: MemoryMaps) -> MemoryMaps {
        let none = TokenBucket {
            tokens: 0,
            at: u64::MAX,
        };
        let limits = PeerLimits {
            flows: none,
            fragments: none,
            ..PeerLimits::default()
        };
        let slot = fixture::traffic(WEST_GATEWAY);
        tables.peer_limits.borrow_mut().insert(slot, limits);
        tables
    }

    fn limited(&mut self) {
        let dropped = || Expect::Drop(DropReason::FlowLimited);
        let exhausted = || Self::exhausted(self.gateway());
        let fragment = self.fragment((POD_WEST, CLIENT), (SERVICE_HERE, DATAGRAMS), false);
        let known_fragment = Self::exhausted(self.gateway_with_flow(CLIENT, DATAGRAMS, UDP, BY_UDP));
        let drops = [
            ("TCP", exhausted(), self.syn(WEB)),
            ("TCP with affinity", exhausted(), self.syn(STICKY)),
            ("TCP to the service proxy", exhausted(), self.syn(PROXIED)),
            ("UDP", exhausted(), self.datagram(DATAGRAMS)),
            ("a fragmented packet", known_fragment, fragment),
        ];
        for (name, tables, inner) in drops {
            let name = format!("too many flows: {name}");
            self.push(&name, tables, &self.sent_by_west(&inner), dropped());
        }
        let ack = self.sent_by_west(&self.ack(WEB));
        let known = Self::exhausted(self.gateway_with_flow(CLIENT, WEB, TCP, ENDING));
        self.push_selection("too many flows: an established one", known, &ack, ENDING);
        let unknown = Self::exhausted(self.gateway());
        self.push_selection(
            "too many flows: an established one of another gateway",
            unknown,
            &ack,
            ON_NODE,
        );
        let sticky = self.sent_by_west(&self.ack(STICKY));
        let unknown = Self::exhausted(self.gateway());
        self.push_selection(
            "too many flows: an established one with affinity",
            unknown,
            &sticky,
            STICKY_FIRST,
        );
        let datagram = self.sent_by_west(&self.datagram(DATAGRAMS));
        let known = Self::exhausted(self.gateway_with_flow(CLIENT, DATAGRAMS, UDP, BY_UDP));
        self.push_selection("too many flows: a known UDP flow", known, &datagram, BY_UDP);
        let own = Self::exhausted(self.gateway());
        own.peer_limits.borrow_mut().clear();
        self.push_selection("too many flows of another peer", own, &datagram, BY_UDP);
    }

    fn replies(&mut self) {
        let reply = self.tcp((POD_NODE, POD_PORT), (POD_WEST, CLIENT), 0x12);
        let translated = self.tcp((SERVICE_HERE, WEB), (POD_WEST, CLIENT), 0x12);
        self.push_reply("TCP reply", self.node_with_flow(WEB, TCP), &reply, &translated);
        let datagram = self.udp((POD_NODE, POD_PORT), (POD_WEST, CLIENT));
        let back = self.udp((SERVICE_HERE, DATAGRAMS), (POD_WEST, CLIENT));
        let flow = self.node_with_flow(DATAGRAMS, UDP);
        self.push_reply("UDP reply", flow, &datagram, &back);
        self.push_reply("reply to a direct connection", self.node(), &reply, &reply);
        let other = self.tcp((POD_NODE, POD_PORT), (POD_WEST, 40_001), 0x12);
        let flow = self.node_with_flow(WEB, TCP);
        self.push_reply("reply to another port", flow, &other, &other);
        let tunnel = self.tunnel(NODE, GATEWAY_INSIDE, &translated);
        let (src, dst) = (self.shape.outer(GATEWAY_OUTSIDE), self.shape.outer(WEST_GATEWAY));
        let expect = Expect::Transit(forwarded(&tunnel, src, dst));
        self.push("a reply from a node", self.gateway(), &tunnel, expect);
    }

    /// A fragment of a datagram with 24 bytes of payload: the first 16 bytes, or the rest.
    fn fragment(&self, src: ([u8; 4], u16), dst: ([u8; 4], u16), later: bool) -> Ip {
        let (from, to) = (self.addr_of(src.0), self.addr_of(dst.0));
        let whole = with_checksum(from, to, UDP, udp(src.1, dst.1, &[0x5a; 24]), 6);
        let part = if later { &whole[16..] } else { &whole[..16] };
        let mut ip = Ip::new(from, to, UDP, part);
        if self.shape.inner_v6 {
            ip.proto = 44;
            let place = if later { 16 } else { 1 };
            ip.options = vec![UDP, 0, 0, place, 0x12, 0x34, 0x56, 0x78];
        } else {
            ip.frags = if later { 2 } else { 0x2000 };
        }
        ip
    }

    fn fragment_key(&self, src: [u8; 4], dst: [u8; 4]) -> FragmentKey {
        FragmentKey {
            src: addr(self.addr_of(src)),
            dst: addr(self.addr_of(dst)),
            id: if self.shape.inner_v6 {
                u32::from_ne_bytes([0x12, 0x34, 0x56, 0x78])
            } else {
                u32::from_ne_bytes([0x12, 0x34, 0, 0])
            },
            proto: UDP.into(),
        }
    }

    fn fragments(&mut self) {
        let (client, service) = ((POD_WEST, CLIENT), (SERVICE_HERE, DATAGRAMS));
        let pod = (POD_NODE, POD_PORT);
        let first = self.fragment(client, service, false);
        let later = self.fragment(client, service, true);
        let tunnel = self.sent_by_west(&first);
        self.push_selection("first fragment", self.gateway(), &tunnel, BY_UDP);
        let known = self.gateway();
        let fragment = Fragment {
            backend: BY_UDP,
            ..Fragment::default()
        };
        let key = self.fragment_key(POD_WEST, SERVICE_HERE);
        known.services.fragments.borrow_mut().insert(key, fragment);
        let tunnel = self.sent_by_west(&later);
        self.push_selection("later fragment", known, &tunnel, BY_UDP);
        self.push_delivery("later fragment alone", self.gateway(), &tunnel, &later);
        let tunnel = self.sent_by_gateway(BY_UDP, &first);
        let translated = self.fragment(client, pod, false);
        self.push_delivery("first fragment to the Pod", self.node(), &tunnel, &translated);
        let tunnel = self.sent_by_gateway(BY_UDP, &later);
        let translated = self.fragment(client, pod, true);
        self.push_delivery("later fragment to the Pod", self.node(), &tunnel, &translated);
        let from_pod = self.fragment(pod, client, false);
        let reply = self.fragment(service, client, false);
        let flow = self.node_with_flow(DATAGRAMS, UDP);
        self.push_reply("first fragment of a reply", flow, &from_pod, &reply);
        let flow = self.node();
        let fragment = Fragment {
            backend: 0,
            service: addr(self.addr_of(SERVICE_HERE)),
        };
        let key = self.fragment_key(POD_NODE, POD_WEST);
        flow.services.fragments.borrow_mut().insert(key, fragment);
        let from_pod = self.fragment(pod, client, true);
        let reply = self.fragment(service, client, true);
        self.push_reply("later fragment of a reply", flow, &from_pod, &reply);
        self.push_reply(
            "later fragment of a direct reply",
            self.node(),
            &from_pod,
            &from_pod,
        );
    }
}
