//! Arbitrary Services, and packets over the whole path: a gateway, the Pod's node, and the Pod's reply.
//!
//! *Properties*: no panic; a gateway writes nothing but the MAC address of the selected Pod, which is a backend of that
//! Service and port, the same for a flow (with affinity: for a client) as long as it exists, and the same at every
//! gateway for a new flow; Pod and client receive, byte for byte, the packet rebuilt with translated address and port
//! and every checksum recomputed; a wrong checksum stays wrong; fragments and ICMP errors follow their flow; other
//! traffic is bit-identical; only flow tables and counters are written.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use mc_gateway_common::{
    abi::{
        ACTION_DELIVER, ACTION_SERVICE, Addr, CLUSTER_LOCAL, CONFIG_BACKENDS, PREFIX_BACKENDS, Prefix,
        service::{
            BACKEND_READY, Backend, FLOW_OF_STACK, FlowKey, SERVICE_AFFINITY, SERVICE_STACK, Service,
            ServiceKey,
        },
    },
    maglev,
    maps::MemoryMaps,
    packet::SlicePacket,
    pipeline,
    verdict::{DropReason, Outcome, Verdict},
};

use crate::{
    arbitrary_packet::{ArbitraryPacket, Bytes, TCP, UDP, icmp_error_about},
    datapath::{ETH, TUNNEL_LEN, mapped},
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE, Shape,
        WEST_GATEWAY,
    },
    headers::{checksum_at, ip},
    packets::{Ip, Tunnel},
};

/// `mc_nh_groups` slot of the node in [`fixture::gateway`].
const GROUP_NODE: u32 = 2;
/// Ports of Services and clients: few, so that flows coincide.
const PORTS: [u16; 4] = [80, 53, 5_000, 65_535];
const CLIENTS: [u16; 4] = [1, 40_000, 40_001, 65_535];
/// Maximum number of steps of an input.
const STEPS: usize = 24;

/// Handling of a packet by the gateway.
#[derive(Debug)]
enum GatewayResult {
    /// Delivered unmodified to the host's stack.
    HostStack,
    /// Dropped: the port is not exported.
    NotExported,
    /// Forwarded to the node of the Pod with this MAC address.
    RemoteNode([u8; 6], Vec<u8>),
    /// Delivered to a local Pod.
    LocalPod(Vec<u8>),
}

/// The gateway and the node of the Pods.
struct World {
    shape: Shape,
    gateway: MemoryMaps,
    node: MemoryMaps,
    /// Flows of the gateway before the last packet.
    flows_before: BTreeMap<FlowKey, u64>,
    /// Last selected Pods of clients with affinity.
    affinity: BTreeMap<FlowKey, u64>,
}

/// Arbitrary Services, Pods and packets.
pub fn services(data: &[u8]) {
    let mut bytes = Bytes(data);
    let flags = bytes.next();
    let shape = Shape {
        inner_v6: flags & 1 != 0,
        outer_v6: flags & 2 != 0,
        vxlan: flags & 4 != 0,
    };
    let mut world = World::new(shape, &mut bytes);
    for _ in 0..STEPS {
        if bytes.0.is_empty() {
            break;
        }
        let before = (world.gateway.clone(), world.node.clone());
        match bytes.next() % 8 {
            0..=2 => world.request(&mut bytes),
            3 => world.fragmented_request(&mut bytes),
            4 => world.icmp_error(&mut bytes),
            5 => world.request_to_pod(&mut bytes),
            6 => world.corrupted(&mut bytes),
            _ => {
                world.change_backend(&mut bytes);
                continue;
            }
        }
        check_only_flows_changed(&before.0, &world.gateway);
        check_only_flows_changed(&before.1, &world.node);
    }
}

/// Checks that no map of the agent changed.
fn check_only_flows_changed(before: &MemoryMaps, after: &MemoryMaps) {
    let agents = |tables: &MemoryMaps| {
        let tables = tables.clone();
        tables.events.take();
        tables.traffic.take();
        tables.icmp_limit.take();
        tables.services.flows.take();
        tables.services.replies.take();
        tables.services.fragments.take();
        tables
    };
    assert_eq!(agents(before), agents(after));
}

impl World {
    fn new(shape: Shape, bytes: &mut Bytes<'_>) -> Self {
        let at = |address: [u8; 4]| mapped(shape.inner(address));
        let [mut gateway, mut node] =
            [fixture::gateway(), fixture::node()].map(|tables| shape.tables(tables));
        for (tables, pod) in [(&mut gateway, POD_HERE), (&mut node, POD_NODE)] {
            tables.config.as_mut().expect("a configuration").flags |= CONFIG_BACKENDS;
            let prefix = |action, flags| Prefix {
                cluster: CLUSTER_LOCAL,
                group: 0,
                action,
                flags,
                identity: 0,
            };
            tables
                .prefixes
                .insert((112, at([10, 101, 0, 0])), prefix(ACTION_SERVICE, 0));
            tables
                .prefixes
                .insert((128, at(pod)), prefix(ACTION_DELIVER, PREFIX_BACKENDS));
        }
        // The node knows the secret of the gateway's packets, and needs none.
        let gateway_inside = mapped(shape.outer(GATEWAY_INSIDE));
        let peer = node.peers.get_mut(&gateway_inside).expect("a peer");
        let mac = fixture::sent_mac(NODE);
        peer.source_macs[mac.slot()] = mac.to_bits();
        let mut world = Self {
            shape,
            gateway,
            node,
            flows_before: BTreeMap::new(),
            affinity: BTreeMap::new(),
        };
        for service in 1..=u64::from(bytes.next() % 4) {
            let key = ServiceKey {
                addr: at(SERVICE_HERE),
                port: bytes.choose(PORTS),
                proto: bytes.choose([TCP, UDP]),
                generation: 0,
            };
            let flags = bytes.choose([0, SERVICE_AFFINITY, 0, SERVICE_STACK]);
            let backends = world.gateway.services.backends.values();
            if backends.filter(|known| key_of(known) == key).count() != 0 {
                continue;
            }
            for number in 0..u64::from(bytes.next() % 4) {
                // Bits in every byte of an ID.
                let id =
                    (service << 36 | number << 20 | u64::from(bytes.next()) << 8 | 0x80) & 0xff_ffff_ffff;
                let bits = bytes.next();
                let here = bits & 1 != 0;
                let backend = Backend {
                    pod: at(if here { POD_HERE } else { POD_NODE }),
                    service: key.addr,
                    group: if here { 0 } else { GROUP_NODE },
                    pod_port: bytes.choose([key.port, 8_080, 1]),
                    service_port: key.port,
                    proto: key.proto,
                    flags: if bits & 2 == 0 { BACKEND_READY } else { 0 },
                    pad: 0,
                };
                world.gateway.services.backends.insert(id, backend);
                // The node may not know the backend yet.
                if !here && bits & 4 == 0 {
                    let backend = Backend { group: 0, ..backend };
                    world.node.services.backends.insert(id, backend);
                }
            }
            world.write_service(key, flags);
        }
        world
    }

    /// Writes the maps of a Service for its ready Pods, like the agent. Without Pods the export is withdrawn.
    fn write_service(&mut self, key: ServiceKey, flags: u32) {
        let services = &mut self.gateway.services;
        let ready: BTreeSet<u64> = services
            .backends
            .iter()
            .filter(|(_, backend)| key_of(backend) == key && backend.flags & BACKEND_READY != 0)
            .map(|(id, _)| *id)
            .collect();
        let backends = u32::try_from(ready.len()).expect("few");
        match maglev::table(&ready) {
            Some(table) => services.maglev.insert(key, *table),
            None => services.maglev.remove(&key),
        };
        if services.backends.values().any(|backend| key_of(backend) == key) {
            services.services.insert(key, Service { flags, backends });
        } else {
            services.services.remove(&key);
        }
    }

    /// Changes the readiness of a Pod, or removes it.
    fn change_backend(&mut self, bytes: &mut Bytes<'_>) {
        let which = usize::from(bytes.next());
        let how = bytes.next();
        let backends = &mut self.gateway.services.backends;
        let ids: Vec<u64> = backends.keys().copied().collect();
        let Some(id) = ids.get(which % ids.len().max(1)) else {
            return;
        };
        let key = key_of(&backends[id]);
        if how & 1 == 0 {
            backends.get_mut(id).expect("a backend").flags ^= BACKEND_READY;
        } else {
            backends.remove(id);
        }
        let known = self.gateway.services.services.get(&key);
        let flags = known.map_or(u32::from(how >> 1 & 1), |service| service.flags);
        self.write_service(key, flags);
    }

    fn addr(&self, address: [u8; 4]) -> IpAddr {
        self.shape.inner(address)
    }

    fn tunnel(&self, src: [u8; 4], dst: [u8; 4], inner: &Ip) -> Tunnel {
        let mut tunnel = Tunnel::new(self.shape.outer(src), self.shape.outer(dst), inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel
    }

    /// Offset of the inner IP header.
    fn inner_at(&self) -> usize {
        ETH + if self.shape.outer_v6 { 40 } else { 20 } + TUNNEL_LEN
    }

    /// A client's packet to a Service.
    fn arbitrary_packet(&self, bytes: &mut Bytes<'_>) -> ArbitraryPacket {
        let client = (self.addr(POD_WEST), bytes.choose(CLIENTS));
        let service = (self.addr(SERVICE_HERE), bytes.choose(PORTS));
        let proto = bytes.choose([TCP, UDP]);
        ArbitraryPacket::new(bytes, client, service, proto)
    }

    fn request(&mut self, bytes: &mut Bytes<'_>) {
        let request = self.arbitrary_packet(bytes);
        let udp_checksum = bytes.next() & 1 != 0;
        self.check_gateways_agree(&request);
        let chosen = self.run_gateway(&request.to_ip(), udp_checksum);
        let Some((id, backend)) = self.check_selection(&request, &chosen) else {
            return;
        };
        let translated = request.to((address(&backend.pod), backend.pod_port));
        if self.check_delivery(&chosen, id, &translated.to_ip(), &request) {
            let (reply, expected) = (translated.reply(), request.reply());
            self.check_reply(backend.group == 0, &reply.to_ip(), &expected.to_ip(), &request);
        }
    }

    /// A packet in two fragments: the second has no ports and must follow the first.
    fn fragmented_request(&mut self, bytes: &mut Bytes<'_>) {
        let mut request = self.arbitrary_packet(bytes);
        let udp_checksum = bytes.next() & 1 != 0;
        // The first fragment has the complete transport header (RFC 1858).
        request.len = request.len.max(16);
        let cut = 3 + usize::from(bytes.next() % 4);
        let [first, later] = request.fragments(cut);
        let chosen = self.run_gateway(&first, udp_checksum);
        let given = self.check_selection(&request, &chosen);
        let followed = self.run_gateway(&later, udp_checksum);
        let Some((id, backend)) = given else {
            // Without a first fragment, that of an earlier packet with the same identification may apply.
            let free = matches!(chosen, GatewayResult::NotExported);
            assert!(
                free || matches!(followed, GatewayResult::HostStack),
                "{followed:?}"
            );
            return;
        };
        let translated = request.to((address(&backend.pod), backend.pod_port));
        let [expected, expected_later] = translated.fragments(cut);
        if !self.check_delivery(&chosen, id, &expected, &request) {
            return;
        }
        // The second fragment does not include the checksum.
        let right = ArbitraryPacket {
            wrong_checksum: false,
            ..request
        };
        assert!(self.check_delivery(&followed, id, &expected_later, &right));
        let [reply, reply_later] = translated.reply().fragments(cut);
        let [expected, expected_later] = request.reply().fragments(cut);
        let here = backend.group == 0;
        self.check_reply(here, &reply, &expected, &request);
        self.check_reply(here, &reply_later, &expected_later, &right);
    }

    /// An ICMP error of the client's network about a reply of the Service.
    fn icmp_error(&mut self, bytes: &mut Bytes<'_>) {
        let request = self.arbitrary_packet(bytes);
        let udp_checksum = bytes.next() & 1 != 0;
        let len = 8 + usize::from(bytes.next() % 40);
        let about = request.reply();
        let inner = icmp_error_about(request.src.0, &about, about.src, len);
        let chosen = self.run_gateway(&inner, udp_checksum);
        // An error opens no connection.
        let later = ArbitraryPacket {
            flags: 0x10,
            ..request
        };
        let Some((id, backend)) = self.check_selection(&later, &chosen) else {
            return;
        };
        let pod = (address(&backend.pod), backend.pod_port);
        // Its checksum covers the quote as it is.
        let right = ArbitraryPacket {
            wrong_checksum: false,
            ..request
        };
        self.check_delivery(
            &chosen,
            id,
            &icmp_error_about(request.src.0, &about, pod, len),
            &right,
        );
    }

    /// A request to the Pod's own address: nothing is translated, and an earlier translation of its port ends.
    fn request_to_pod(&mut self, bytes: &mut Bytes<'_>) {
        let client = (self.addr(POD_WEST), bytes.choose(CLIENTS));
        let pod = (self.addr(POD_NODE), bytes.choose([80, 8_080, 1]));
        let proto = bytes.choose([TCP, UDP]);
        let request = ArbitraryPacket::new(bytes, client, pod, proto);
        let inner = request.to_ip();
        let tunnel = self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, &inner);
        let mut packet = SlicePacket::new(tunnel.frame());
        let verdict = pipeline::from_underlay(&mut packet, &self.gateway);
        assert!(
            matches!(
                verdict,
                Verdict::Send {
                    outcome: Outcome::Transit,
                    ..
                }
            ),
            "{verdict:?}"
        );
        let mut packet = SlicePacket::new(packet.bytes().to_vec());
        let verdict = pipeline::from_underlay(&mut packet, &self.node);
        assert!(
            matches!(
                verdict,
                Verdict::Deliver {
                    outcome: Outcome::Deliver,
                    ..
                }
            ),
            "{verdict:?}"
        );
        assert_eq!(packet.bytes()[ETH..], inner.bytes()[..]);
        let reply = request.reply().to_ip();
        self.check_reply(false, &reply, &reply, &request);
    }

    /// Corrupted packets.
    fn corrupted(&mut self, bytes: &mut Bytes<'_>) {
        // It may still be a valid packet of any client.
        self.affinity.clear();
        let request = self.arbitrary_packet(bytes);
        let (way, name) = (bytes.next(), bytes.next());
        let inner = if way & 4 == 0 {
            request.to_ip()
        } else {
            request.fragments(1 + usize::from(name % 4))[usize::from(way >> 3 & 1)].clone()
        };
        let mut frame = match way & 3 {
            0 => self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, &inner).frame(),
            1 => {
                let mut tunnel = self.tunnel(GATEWAY_INSIDE, NODE, &inner);
                let ids: Vec<u64> = self.node.services.backends.keys().copied().collect();
                let id = ids.get(usize::from(name) % ids.len().max(1)).unwrap_or(&1);
                tunnel.inner_src = backend_mac(*id);
                tunnel.frame()
            }
            _ => request.to(request.src).to_ip().frame(),
        };
        for _ in 0..bytes.next() % 6 {
            let at = usize::from(u16::from_le_bytes([bytes.next(), bytes.next()])) % frame.len();
            frame[at] ^= bytes.next();
        }
        let cut = usize::from(bytes.next());
        if cut != 0 {
            frame.truncate((ETH + cut * 2).min(frame.len()));
        }
        let mut packet = SlicePacket::new(frame.clone());
        let tables = if way & 1 == 0 { &self.gateway } else { &self.node };
        let verdict = if way & 2 == 0 {
            pipeline::from_underlay(&mut packet, tables)
        } else {
            pipeline::to_remote(&mut packet, tables)
        };
        match verdict {
            Verdict::Pass => {
                assert_eq!(packet.bytes(), frame, "passed and modified");
                assert_eq!(way & 2, 0, "frame on mc0 passed");
            }
            Verdict::Deliver {
                outcome: Outcome::Deliver,
                ..
            } => {
                let outer = self.inner_at() - ETH;
                assert_eq!(packet.bytes().len(), frame.len() - outer, "length");
            }
            Verdict::Send {
                outcome: Outcome::Transit,
                ..
            } => assert_eq!(packet.bytes().len(), frame.len(), "length"),
            _ => {}
        }
    }

    /// Checks that a gateway without flows selects the same Pod for a new flow.
    fn check_gateways_agree(&self, request: &ArbitraryPacket) {
        let key = service_of(request);
        let service = self.gateway.services.services.get(&key);
        if service.is_none_or(|service| service.flags & SERVICE_AFFINITY != 0) || !request.opens_connection()
        {
            return;
        }
        let choice = |forget: bool| {
            let tables = self.gateway.clone();
            if forget {
                tables.services.flows.take();
            }
            let tunnel = self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, &request.to_ip());
            let _verdict = pipeline::from_underlay(&mut SlicePacket::new(tunnel.frame()), &tables);
            tables.services.flows.take().get(&flow_key(request)).copied()
        };
        assert_eq!(choice(true), choice(false), "gateways differ");
    }

    /// Runs a packet of the other cluster through the gateway, which may only write the MAC address of a Pod.
    fn run_gateway(&mut self, inner: &Ip, udp_checksum: bool) -> GatewayResult {
        let mut tunnel = self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, inner);
        tunnel.udp_checksum = udp_checksum;
        self.flows_before = self.gateway.services.flows.borrow().clone();
        let mut packet = SlicePacket::new(tunnel.frame());
        let verdict = pipeline::from_underlay(&mut packet, &self.gateway);
        let after = packet.bytes().to_vec();
        match verdict {
            Verdict::Send {
                outcome: Outcome::Transit,
                ifindex: 1,
                ..
            } => {
                let name = self.inner_at() - 8;
                tunnel.inner_src.copy_from_slice(&after[name..name + 6]);
                tunnel.src = self.shape.outer(GATEWAY_INSIDE);
                tunnel.dst = self.shape.outer(NODE);
                tunnel.ttl -= 1;
                assert_eq!(after, tunnel.frame(), "other bytes");
                GatewayResult::RemoteNode(tunnel.inner_src, after)
            }
            Verdict::Deliver {
                outcome: Outcome::Deliver,
                ifindex: 1,
            } if after[ETH..] == inner.bytes()[..] => GatewayResult::HostStack,
            Verdict::Deliver {
                outcome: Outcome::Deliver,
                ifindex: 1,
            } => GatewayResult::LocalPod(after),
            Verdict::Drop(DropReason::NotExported) => GatewayResult::NotExported,
            other => panic!("{other:?}"),
        }
    }

    /// Checks the Pod selected for a flow: a valid backend, and the previous one if it exists.
    fn check_selection(
        &mut self,
        request: &ArbitraryPacket,
        chosen: &GatewayResult,
    ) -> Option<(u64, Backend)> {
        let key = service_of(request);
        let services = &self.gateway.services;
        let service = services.services.get(&key);
        match chosen {
            GatewayResult::NotExported => {
                assert!(service.is_none(), "an exported port was dropped");
                return None;
            }
            GatewayResult::HostStack => {
                let service = service.expect("a port that is not exported reached the stack");
                let proxied = service.flags & SERVICE_STACK != 0;
                let stays = self.flows_before.get(&flow_key(request)) == Some(&FLOW_OF_STACK)
                    && !request.opens_connection();
                assert!(
                    proxied || stays || service.backends == 0,
                    "Service was not translated"
                );
                return None;
            }
            GatewayResult::RemoteNode(..) | GatewayResult::LocalPod(_) => {
                let service = service.expect("a port that is not exported was translated");
                assert_eq!(
                    service.flags & SERVICE_STACK,
                    0,
                    "a port of the service proxy was translated"
                );
            }
        }
        let id = *services.flows.borrow().get(&flow_key(request)).expect("a flow");
        let backend = services.backends[&id];
        assert_eq!(key_of(&backend), key, "Pod of another Service");
        match chosen {
            GatewayResult::RemoteNode(name, _) => {
                let mac = fixture::sent_mac(NODE).with_backend(id).bytes();
                assert_eq!((*name, backend.group), (mac, GROUP_NODE));
            }
            _ => assert_eq!(backend.group, 0, "Pod of another node"),
        }
        let known = self.flows_before.get(&flow_key(request));
        let lives = known.and_then(|known| Some((known, services.backends.get(known)?)));
        if let Some((known, before)) = lives
            && !request.opens_connection()
            && (request.proto == TCP || before.flags & BACKEND_READY != 0)
        {
            assert_eq!(*known, id, "flow moved to another Pod");
            return Some((id, backend));
        }
        let service = services.services.get(&key);
        if service.is_some_and(|service| service.flags & SERVICE_AFFINITY != 0) {
            let last = self.affinity.insert(client_key(request), id);
            let last = last.filter(|last| {
                let backend = services.backends.get(last);
                backend.is_some_and(|backend| backend.flags & BACKEND_READY != 0)
            });
            assert_eq!(last.unwrap_or(id), id, "client moved to another Pod");
        }
        Some((id, backend))
    }

    /// Checks the packet delivered to the Pod; `false` if its node does not know the backend yet.
    fn check_delivery(
        &self,
        chosen: &GatewayResult,
        id: u64,
        expected: &Ip,
        request: &ArbitraryPacket,
    ) -> bool {
        let delivered = match chosen {
            GatewayResult::LocalPod(frame) => frame.clone(),
            GatewayResult::RemoteNode(_, frame) => {
                let mut packet = SlicePacket::new(frame.clone());
                let verdict = pipeline::from_underlay(&mut packet, &self.node);
                if !self.node.services.backends.contains_key(&id) {
                    assert_eq!(verdict, Verdict::Drop(DropReason::UnknownBackend));
                    return false;
                }
                let outcome = Outcome::Deliver;
                assert_eq!(verdict, Verdict::Deliver { outcome, ifindex: 1 });
                packet.bytes().to_vec()
            }
            GatewayResult::HostStack | GatewayResult::NotExported => panic!("no backend selected"),
        };
        assert_packet(&delivered[ETH..], expected, request);
        true
    }

    /// Checks the client's view of a Pod's reply.
    fn check_reply(&self, here: bool, reply: &Ip, expected: &Ip, request: &ArbitraryPacket) {
        let mut packet = SlicePacket::new(reply.frame());
        let tables = if here { &self.gateway } else { &self.node };
        let verdict = pipeline::to_remote(&mut packet, tables);
        let sent = Verdict::Send {
            outcome: Outcome::Encap,
            ifindex: 1,
            addressed: false,
        };
        assert_eq!(verdict, sent);
        assert_packet(&packet.bytes()[self.inner_at()..], expected, request);
    }
}

/// Compares a packet with the expected one byte for byte, except for a wrong checksum, which must stay wrong.
fn assert_packet(packet: &[u8], expected: &Ip, request: &ArbitraryPacket) {
    let whole = expected.bytes();
    if !request.has_wrong_checksum() {
        assert_eq!(packet, &whole[..], "differs from the expected packet");
        return;
    }
    let at = whole.len() - expected.payload.len() + checksum_at(request.proto).expect("a checksum");
    let mut rest = packet.to_vec();
    rest[at..at + 2].copy_from_slice(&whole[at..at + 2]);
    assert_eq!(rest, whole, "bytes other than the checksum");
    if expected.frags == 0x4000 && expected.options.is_empty() {
        let read = ip(packet).expect("a packet");
        let left_out = request.proto == UDP && packet[at..at + 2] == [0, 0];
        assert!(
            !read.payload_checksum_is_valid() && !left_out,
            "wrong checksum was corrected"
        );
    }
}

fn key_of(backend: &Backend) -> ServiceKey {
    ServiceKey {
        addr: backend.service,
        port: backend.service_port,
        proto: backend.proto,
        generation: 0,
    }
}

/// The Service port of a packet.
fn service_of(request: &ArbitraryPacket) -> ServiceKey {
    ServiceKey {
        addr: mapped(request.dst.0),
        port: request.dst.1,
        proto: request.proto,
        generation: 0,
    }
}

fn flow_key(request: &ArbitraryPacket) -> FlowKey {
    FlowKey {
        client: mapped(request.src.0),
        service: mapped(request.dst.0),
        client_port: request.src.1,
        service_port: request.dst.1,
        proto: request.proto.into(),
    }
}

/// Key of a client's affinity entry.
fn client_key(request: &ArbitraryPacket) -> FlowKey {
    FlowKey {
        client_port: 0,
        ..flow_key(request)
    }
}

/// The inner source MAC address of a backend.
fn backend_mac(id: u64) -> [u8; 6] {
    let [.., b0, b1, b2, b3, b4] = id.to_be_bytes();
    [6, b0, b1, b2, b3, b4]
}

fn address(addr: &Addr) -> IpAddr {
    IpAddr::from(*addr).to_canonical()
}
