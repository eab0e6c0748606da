//! Service addresses: a gateway's choice, the translation at the Pod's node, and the way back.

use std::net::IpAddr;

use mc_gateway_common::{
    abi::{
        ACTION_DELIVER, ACTION_SERVICE, Addr, CLUSTER_LOCAL, CONFIG_BACKENDS, PREFIX_BACKENDS, Prefix,
        service::{
            BACKEND_READY, Backend, FlowKey, Fragment, FragmentKey, Reply, ReplyKey, SERVICE_AFFINITY,
            Service, ServiceKey,
        },
    },
    maglev,
    tables::MapTables,
    verdict::DropReason,
};

use super::{
    Case, Expect, Program, case_from_underlay,
    from_underlay::{decapsulated, passed_on},
    to_remote::encapsulated,
};
use crate::{
    packets::{Ip, Tunnel, checksum, summed, tcp_syn, udp},
    world::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE, Shape,
        WEST_GATEWAY,
    },
};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Ports of the Service: to a Pod of the node by TCP and UDP, to a Pod of the gateway by UDP, and one whose
/// lookup table names a backend that does not exist.
const WEB: u16 = 80;
const DATAGRAMS: u16 = 5000;
const LOCAL: u16 = 53;
const BROKEN: u16 = 7;
/// The same with session affinity.
const STICKY: u16 = 81;
/// The Pods' port.
const POD_PORT: u16 = 8080;
/// The client's port.
const CLIENT: u16 = 40_000;

/// Ids of the backends: those of the ports above, one that takes no new flows, and one of [`STICKY`] that no
/// lookup table names.
const ON_NODE: u64 = 0x01_0203_0405;
const BY_UDP: u64 = 0x02_0000_0001;
const HERE: u64 = 0xff_ffff_fffe;
const ENDING: u64 = 0x03_0000_0001;
const ENDING_UDP: u64 = 0x03_0000_0002;
const STUCK: u64 = 0x04_0000_0001;
const STICKY_FIRST: u64 = 0x04_0000_0002;
const GONE: u64 = 0x05_0000_0001;

/// `mc_groups` slot of the node in [`world::gateway`].
const GROUP_NODE: u32 = 2;

fn mac(backend: u64) -> [u8; 6] {
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
        cases.chosen();
        cases.kept_and_moved();
        cases.left_to_the_stack();
        cases.translated();
        cases.refused();
        cases.replies();
        cases.fragments();
        cases.errors();
    }
}

/// The node of a shape with everything that is known of Services, for the mutated packets.
pub(crate) fn world(shape: Shape, gateway: bool) -> MapTables {
    let cases = Cases {
        shape,
        cases: &mut Vec::new(),
    };
    if gateway { cases.gateway() } else { cases.node() }
}

impl Cases<'_> {
    fn at(&self, address: [u8; 4]) -> IpAddr {
        self.shape.inner(address)
    }

    fn backend(&self, pod: [u8; 4], port: u16, proto: u8, group: u32) -> Backend {
        Backend {
            pod: addr(self.at(pod)),
            service: addr(self.at(SERVICE_HERE)),
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
            addr: addr(self.at(SERVICE_HERE)),
            port,
            proto,
            pad: 0,
        }
    }

    fn with_service_prefix(&self, tables: MapTables) -> MapTables {
        let mut tables = self.shape.tables(tables);
        let Some(config) = &mut tables.config else {
            return tables;
        };
        config.flags |= CONFIG_BACKENDS;
        let network = addr(self.at([10, 101, 0, 0]));
        let value = Prefix {
            cluster: CLUSTER_LOCAL,
            group: 0,
            action: ACTION_SERVICE,
            flags: 0,
        };
        tables.prefixes.insert((112, network), value);
        tables
    }

    /// With a Pod of this node that is behind a Service.
    fn with_backend(&self, mut tables: MapTables, pod: [u8; 4]) -> MapTables {
        let value = Prefix {
            cluster: CLUSTER_LOCAL,
            group: 0,
            action: ACTION_DELIVER,
            flags: PREFIX_BACKENDS,
        };
        tables.prefixes.insert((128, addr(self.at(pod))), value);
        tables
    }

    /// East's gateway, which knows all Services.
    fn gateway(&self) -> MapTables {
        let mut tables = self.with_backend(self.with_service_prefix(world::gateway()), POD_HERE);
        let services = &mut tables.services;
        for (port, proto, ids, flags) in [
            (WEB, TCP, [ON_NODE], 0),
            (DATAGRAMS, UDP, [BY_UDP], 0),
            (LOCAL, UDP, [HERE], 0),
            (BROKEN, TCP, [GONE], 0),
            (STICKY, TCP, [STICKY_FIRST], SERVICE_AFFINITY),
        ] {
            let key = self.key(port, proto);
            let table = maglev::table(&ids.into()).expect("a table");
            services.maglev.insert(key, *table);
            services.services.insert(key, Service { flags, backends: 1 });
        }
        let mut backends = vec![
            (ON_NODE, self.backend(POD_NODE, WEB, TCP, GROUP_NODE)),
            (BY_UDP, self.backend(POD_NODE, DATAGRAMS, UDP, GROUP_NODE)),
            (HERE, self.backend(POD_HERE, LOCAL, UDP, 0)),
            (STUCK, self.backend(POD_NODE, STICKY, TCP, GROUP_NODE)),
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

    /// The gateway with a flow it has given away before.
    fn gateway_with_flow(&self, client_port: u16, port: u16, proto: u8, backend: u64) -> MapTables {
        let tables = self.gateway();
        let key = FlowKey {
            client: addr(self.at(POD_WEST)),
            service: addr(self.at(SERVICE_HERE)),
            client_port,
            service_port: port,
            proto: proto.into(),
        };
        tables.services.flows.borrow_mut().insert(key, backend);
        tables
    }

    /// East's regular node, which knows its own Pods.
    fn node(&self) -> MapTables {
        let mut tables = self.with_backend(self.with_service_prefix(world::node()), POD_NODE);
        tables.services.backends = [
            (ON_NODE, self.backend(POD_NODE, WEB, TCP, 0)),
            (BY_UDP, self.backend(POD_NODE, DATAGRAMS, UDP, 0)),
            (HERE, self.backend(POD_HERE, LOCAL, UDP, GROUP_NODE)),
        ]
        .into();
        tables
    }

    /// The node with a flow that came by the Service.
    fn node_with_flow(&self, port: u16, proto: u8) -> MapTables {
        let tables = self.node();
        let key = ReplyKey {
            pod: addr(self.at(POD_NODE)),
            client: addr(self.at(POD_WEST)),
            pod_port: POD_PORT,
            client_port: CLIENT,
            proto: proto.into(),
        };
        let reply = Reply {
            addr: addr(self.at(SERVICE_HERE)),
            port,
            pad: 0,
        };
        tables.services.replies.borrow_mut().insert(key, reply);
        tables
    }

    /// A TCP segment with a right checksum.
    fn tcp(&self, src: ([u8; 4], u16), dst: ([u8; 4], u16), flags: u8) -> Ip {
        let (from, to) = (self.at(src.0), self.at(dst.0));
        let mut segment = tcp_syn(src.1, dst.1);
        segment[13] = flags;
        Ip::new(from, to, TCP, summed(from, to, TCP, segment, 16))
    }

    /// A UDP datagram with a right checksum.
    fn udp(&self, src: ([u8; 4], u16), dst: ([u8; 4], u16)) -> Ip {
        let (from, to) = (self.at(src.0), self.at(dst.0));
        Ip::new(from, to, UDP, summed(from, to, UDP, udp(src.1, dst.1, b"odd"), 6))
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
    fn arrives(&self, inner: &Ip) -> Tunnel {
        self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, inner)
    }

    /// From our own cluster's gateway, which has chosen.
    fn chosen_for(&self, backend: u64, inner: &Ip) -> Tunnel {
        let mut tunnel = self.tunnel(GATEWAY_INSIDE, NODE, inner);
        tunnel.inner_src = mac(backend);
        tunnel
    }

    fn push(&mut self, name: &str, tables: MapTables, tunnel: &Tunnel, expect: Expect) {
        let name = format!("{}: Service, {name}", self.shape.name());
        self.cases
            .push(case_from_underlay(name, tables, tunnel.frame(), expect));
    }

    /// Passed on to the node with the backend's name in it.
    fn push_choice(&mut self, name: &str, tables: MapTables, tunnel: &Tunnel, backend: u64) {
        let mut next = tunnel.clone();
        next.inner_src = mac(backend);
        let (src, dst) = (self.shape.outer(GATEWAY_INSIDE), self.shape.outer(NODE));
        self.push(name, tables, tunnel, Expect::Transit(passed_on(&next, src, dst)));
    }

    fn push_delivery(&mut self, name: &str, tables: MapTables, tunnel: &Tunnel, inner: &Ip) {
        let mut translated = tunnel.clone();
        translated.inner = inner.bytes().to_vec();
        self.push(name, tables, tunnel, Expect::Deliver(decapsulated(&translated)));
    }

    fn push_reply(&mut self, name: &str, tables: MapTables, from_pod: &Ip, on_the_wire: &Ip) {
        let (src, dst) = (self.shape.outer(NODE), self.shape.outer(GATEWAY_INSIDE));
        let mut expected = encapsulated(on_the_wire, src, dst);
        // The way is chosen before the translation, so that all packets of a flow take the same.
        let chosen = encapsulated(from_pod, src, dst);
        (expected.src_port, expected.label) = (chosen.src_port, chosen.label);
        expected.vxlan = self.shape.vxlan;
        expected.dst_port = self.shape.port();
        self.cases.push(Case {
            name: format!("{}: Service, {name}", self.shape.name()),
            program: Program::ToRemote,
            tables,
            frame: from_pod.frame(),
            expect: Expect::Encap(expected.frame()),
        });
    }

    fn chosen(&mut self) {
        let web = self.arrives(&self.syn(WEB));
        self.push_choice("TCP to a Pod of a node", self.gateway(), &web, ON_NODE);
        let mut with_checksum = web.clone();
        with_checksum.udp_checksum = true;
        self.push_choice(
            "the outer checksum covers the choice",
            self.gateway(),
            &with_checksum,
            ON_NODE,
        );
        let mut forged = web.clone();
        forged.inner_src = mac(HERE);
        self.push_choice("another cluster cannot choose", self.gateway(), &forged, ON_NODE);
        let datagram = self.arrives(&self.datagram(DATAGRAMS));
        self.push_choice("UDP to a Pod of a node", self.gateway(), &datagram, BY_UDP);
        let mut last_hop = web.clone();
        last_hop.ttl = 1;
        self.push(
            "a loop ends",
            self.gateway(),
            &last_hop,
            Expect::Drop(DropReason::TtlExceeded),
        );
        let sticky = self.arrives(&self.syn(STICKY));
        self.push_choice("affinity, first flow", self.gateway(), &sticky, STICKY_FIRST);
        let known = self.gateway_with_flow(0, STICKY, TCP, STUCK);
        self.push_choice("affinity, known client", known, &sticky, STUCK);
        let local = self.arrives(&self.datagram(LOCAL));
        let translated = self.udp((POD_WEST, CLIENT), (POD_HERE, POD_PORT));
        self.push_delivery("a Pod of the gateway itself", self.gateway(), &local, &translated);
    }

    fn kept_and_moved(&mut self) {
        let data = self.arrives(&self.ack(WEB));
        let flow = self.gateway_with_flow(CLIENT, WEB, TCP, ENDING);
        self.push_choice("a connection stays on a Pod that ends", flow, &data, ENDING);
        let syn = self.arrives(&self.syn(WEB));
        let flow = self.gateway_with_flow(CLIENT, WEB, TCP, ENDING);
        self.push_choice("a new connection leaves it", flow, &syn, ON_NODE);
        let flow = self.gateway_with_flow(CLIENT, WEB, TCP, GONE);
        self.push_choice("a backend that is gone is replaced", flow, &data, ON_NODE);
        let datagram = self.arrives(&self.datagram(DATAGRAMS));
        let flow = self.gateway_with_flow(CLIENT, DATAGRAMS, UDP, ENDING_UDP);
        self.push_choice("datagrams leave a Pod that ends", flow, &datagram, BY_UDP);
        self.push_choice(
            "a flow of another gateway goes on",
            self.gateway(),
            &data,
            ON_NODE,
        );
    }

    fn left_to_the_stack(&mut self) {
        let echo = Ip::new(
            self.at(POD_WEST),
            self.at(SERVICE_HERE),
            if self.shape.inner_v6 { 58 } else { 1 },
            vec![if self.shape.inner_v6 { 128 } else { 8 }, 0, 0, 0, 0, 0, 0, 0],
        );
        let sctp = Ip::new(
            self.at(POD_WEST),
            self.at(SERVICE_HERE),
            132,
            tcp_syn(CLIENT, WEB),
        );
        for (name, inner) in [
            ("unknown port", self.syn(443)),
            ("other protocol", self.datagram(WEB)),
            ("echo request", echo),
            ("SCTP", sctp),
            ("backend of the lookup table is missing", self.syn(BROKEN)),
        ] {
            let tunnel = self.arrives(&inner);
            self.push_delivery(&format!("to the stack: {name}"), self.gateway(), &tunnel, &inner);
        }
        let cut = Ip::new(self.at(POD_WEST), self.at(SERVICE_HERE), TCP, vec![0x9c, 0x40]);
        let cut = self.arrives(&cut);
        self.push(
            "cut off before the ports",
            self.gateway(),
            &cut,
            Expect::Drop(DropReason::InnerMalformed),
        );
    }

    fn translated(&mut self) {
        let web = self.chosen_for(ON_NODE, &self.syn(WEB));
        let translated = self.tcp((POD_WEST, CLIENT), (POD_NODE, POD_PORT), 0x02);
        self.push_delivery("TCP to the Pod", self.node(), &web, &translated);
        self.push_delivery(
            "TCP to the Pod, known flow",
            self.node_with_flow(WEB, TCP),
            &web,
            &translated,
        );
        self.push_delivery(
            "TCP to the Pod, by another Service before",
            self.node_with_flow(443, TCP),
            &web,
            &translated,
        );
        let datagram = self.chosen_for(BY_UDP, &self.datagram(DATAGRAMS));
        let translated = self.udp((POD_WEST, CLIENT), (POD_NODE, POD_PORT));
        self.push_delivery("UDP to the Pod", self.node(), &datagram, &translated);
        let same_port = self.chosen_for(ON_NODE, &self.syn(POD_PORT));
        let mut tables = self.node();
        if let Some(backend) = tables.services.backends.get_mut(&ON_NODE) {
            backend.service_port = POD_PORT;
        }
        let expected = self.tcp((POD_WEST, CLIENT), (POD_NODE, POD_PORT), 0x02);
        self.push_delivery("port stays", tables, &same_port, &expected);
        if !self.shape.inner_v6 {
            let bare = |dst, port| {
                let (from, to) = (self.at(POD_WEST), self.at(dst));
                Ip::new(from, to, UDP, udp(CLIENT, port, b"bare"))
            };
            let tunnel = self.chosen_for(BY_UDP, &bare(SERVICE_HERE, DATAGRAMS));
            let translated = bare(POD_NODE, POD_PORT);
            self.push_delivery("no UDP checksum stays none", self.node(), &tunnel, &translated);
            let mut options = self.syn(WEB);
            options.options = vec![1; 8];
            let tunnel = self.chosen_for(ON_NODE, &options);
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

    fn refused(&mut self) {
        let unknown = Expect::Drop(DropReason::UnknownBackend);
        let foreign = Expect::Drop(DropReason::ForeignBackend);
        let syn = self.syn(WEB);
        let unnamed = self.tunnel(GATEWAY_INSIDE, NODE, &syn);
        self.push("no choice", self.node(), &unnamed, unknown.clone());
        let gone = self.chosen_for(GONE, &syn);
        self.push("a backend nobody knows", self.node(), &gone, unknown.clone());
        let elsewhere = self.chosen_for(HERE, &self.datagram(LOCAL));
        self.push("a backend of another node", self.node(), &elsewhere, unknown);
        let port = self.chosen_for(ON_NODE, &self.syn(443));
        self.push("another port", self.node(), &port, foreign.clone());
        let proto = self.chosen_for(ON_NODE, &self.datagram(WEB));
        self.push("another protocol", self.node(), &proto, foreign.clone());
        let other = self.tcp((POD_WEST, CLIENT), ([10, 101, 0, 11], WEB), 0x02);
        let other = self.chosen_for(ON_NODE, &other);
        self.push("another address", self.node(), &other, foreign.clone());
        let sctp = Ip::new(
            self.at(POD_WEST),
            self.at(SERVICE_HERE),
            132,
            tcp_syn(CLIENT, WEB),
        );
        let sctp = self.chosen_for(ON_NODE, &sctp);
        self.push("SCTP is never translated", self.node(), &sctp, foreign);
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
        let expect = Expect::Transit(passed_on(&tunnel, src, dst));
        self.push("a node answers for a Service", self.gateway(), &tunnel, expect);
    }

    /// A fragment of a datagram of 24 bytes of payload: the first 16 bytes, or the rest.
    fn fragment(&self, src: ([u8; 4], u16), dst: ([u8; 4], u16), later: bool) -> Ip {
        let (from, to) = (self.at(src.0), self.at(dst.0));
        let whole = summed(from, to, UDP, udp(src.1, dst.1, &[0x5a; 24]), 6);
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
            src: addr(self.at(src)),
            dst: addr(self.at(dst)),
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
        let tunnel = self.arrives(&first);
        self.push_choice("first fragment", self.gateway(), &tunnel, BY_UDP);
        let known = self.gateway();
        let fragment = Fragment {
            backend: BY_UDP,
            ..Fragment::default()
        };
        let key = self.fragment_key(POD_WEST, SERVICE_HERE);
        known.services.fragments.borrow_mut().insert(key, fragment);
        let tunnel = self.arrives(&later);
        self.push_choice("later fragment", known, &tunnel, BY_UDP);
        self.push_delivery("later fragment alone", self.gateway(), &tunnel, &later);
        let tunnel = self.chosen_for(BY_UDP, &first);
        let translated = self.fragment(client, pod, false);
        self.push_delivery("first fragment to the Pod", self.node(), &tunnel, &translated);
        let tunnel = self.chosen_for(BY_UDP, &later);
        let translated = self.fragment(client, pod, true);
        self.push_delivery("later fragment to the Pod", self.node(), &tunnel, &translated);
        let from_pod = self.fragment(pod, client, false);
        let reply = self.fragment(service, client, false);
        let flow = self.node_with_flow(DATAGRAMS, UDP);
        self.push_reply("first fragment of a reply", flow, &from_pod, &reply);
        let flow = self.node();
        let fragment = Fragment {
            backend: 0,
            service: addr(self.at(SERVICE_HERE)),
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

    /// "Port unreachable" from `src` to `dst`, about the first bytes of a datagram. The quoted UDP checksum is
    /// that of the packet as its receiver saw it, whatever the quote has become since.
    fn error(&self, src: [u8; 4], dst: [u8; 4], from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Ip {
        let v6 = self.shape.inner_v6;
        let mut quoted = Ip::new(self.at(from.0), self.at(to.0), UDP, udp(from.1, to.1, &[0x11; 8]));
        quoted.payload[6..8].copy_from_slice(&[0xab, 0xcd]);
        let mut message = if v6 {
            vec![1, 4, 0, 0, 0, 0, 0, 0]
        } else {
            vec![3, 3, 0, 0, 0, 0, 0, 0]
        };
        message.extend_from_slice(&quoted.bytes());
        let (src, dst) = (self.at(src), self.at(dst));
        if v6 {
            return Ip::new(src, dst, 58, summed(src, dst, 58, message, 2));
        }
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        Ip::new(src, dst, 1, message)
    }

    fn errors(&mut self) {
        let (client, service) = ((POD_WEST, CLIENT), (SERVICE_HERE, DATAGRAMS));
        let pod = (POD_NODE, POD_PORT);
        let about_reply = self.error(POD_WEST, SERVICE_HERE, service, client);
        let tunnel = self.arrives(&about_reply);
        self.push_choice("an error about a reply", self.gateway(), &tunnel, BY_UDP);
        let other = self.error(POD_WEST, SERVICE_HERE, (SERVICE_HERE, 444), client);
        let tunnel = self.arrives(&other);
        self.push_delivery("an error about an unknown port", self.gateway(), &tunnel, &other);
        let tunnel = self.chosen_for(BY_UDP, &about_reply);
        let translated = self.error(POD_WEST, POD_NODE, pod, client);
        self.push_delivery("an error to the Pod", self.node(), &tunnel, &translated);
        let tunnel = self.chosen_for(BY_UDP, &other);
        self.push(
            "an error about another port",
            self.node(),
            &tunnel,
            Expect::Drop(DropReason::ForeignBackend),
        );
        let flow = || self.node_with_flow(DATAGRAMS, UDP);
        let of_pod = self.error(POD_NODE, POD_WEST, client, pod);
        let translated = self.error(SERVICE_HERE, POD_WEST, client, service);
        let (of_pod_flow, of_node_flow) = (flow(), flow());
        self.push_reply("an error of the Pod", of_pod_flow, &of_pod, &translated);
        let of_node = self.error([192, 168, 1, 2], POD_WEST, client, pod);
        self.push_reply("an error of the Pod's node", of_node_flow, &of_node, &translated);
        self.push_reply("an error about a direct packet", self.node(), &of_pod, &of_pod);
    }
}
