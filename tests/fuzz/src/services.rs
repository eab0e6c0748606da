//! Any Services, and packets to and from them all the way: a gateway, the Pod's node, the Pod's answer.
//!
//! *Properties*: no panic; a gateway changes nothing but the name of the Pod it has chosen, which is a Pod behind
//! that Service and port, the same for the same flow as long as it exists (with affinity: for the same client), and
//! the same at every gateway for a new one; what a Pod and a client get is, byte for byte, the packet built anew with
//! the translated address and port, every checksum recomputed in full; a wrong checksum is never made right;
//! fragments and ICMP errors follow their flow; what is not ours is bit-identical; nothing but flow tables and
//! counters is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use mc_gateway_common::{
    abi::{
        ACTION_DELIVER, ACTION_SERVICE, Addr, CLUSTER_LOCAL, CONFIG_BACKENDS, PREFIX_BACKENDS, Prefix,
        service::{BACKEND_READY, Backend, FlowKey, SERVICE_AFFINITY, Service, ServiceKey},
    },
    maglev,
    packet::SlicePacket,
    path,
    tables::MapTables,
    verdict::{DropReason, Path, Verdict},
};

use crate::{
    datapath::{ETH, TAIL, mapped},
    draft::{Bytes, Draft, TCP, UDP, complaint},
    frame::{checksum_at, ip},
    packets::{Ip, Tunnel},
    world::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE, Shape,
        WEST_GATEWAY,
    },
};

/// `mc_groups` slot of the node in [`world::gateway`].
const GROUP_NODE: u32 = 2;
/// Ports of Services and of clients: few, so that flows meet.
const PORTS: [u16; 4] = [80, 53, 5_000, 65_535];
const CLIENTS: [u16; 4] = [1, 40_000, 40_001, 65_535];
/// Most steps of one input.
const STEPS: usize = 24;

/// Where a gateway sends a packet.
#[derive(Debug)]
enum Chosen {
    /// Into its stack, as it came.
    Stack,
    /// To the node of the Pod with this name.
    Node([u8; 6], Vec<u8>),
    /// To a Pod of its own.
    Here(Vec<u8>),
}

/// The gateway and the node of the Pods.
struct World {
    shape: Shape,
    gateway: MapTables,
    node: MapTables,
    /// Flows the gateway had before the last packet.
    before: BTreeMap<FlowKey, u64>,
    /// Pods that clients of Services with affinity were given last.
    clients: BTreeMap<FlowKey, u64>,
}

/// Any Services with any Pods, and any packets.
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
            3 => world.fragmented(&mut bytes),
            4 => world.error(&mut bytes),
            5 => world.direct(&mut bytes),
            6 => world.damaged(&mut bytes),
            _ => {
                world.change(&mut bytes);
                continue;
            }
        }
        only_flows(&before.0, &world.gateway);
        only_flows(&before.1, &world.node);
    }
}

/// Nothing the agent writes has changed.
fn only_flows(before: &MapTables, after: &MapTables) {
    let agents = |tables: &MapTables| {
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
        let [mut gateway, mut node] = [world::gateway(), world::node()].map(|tables| shape.tables(tables));
        for (tables, pod) in [(&mut gateway, POD_HERE), (&mut node, POD_NODE)] {
            tables.config.as_mut().expect("a configuration").flags |= CONFIG_BACKENDS;
            let prefix = |action, flags| Prefix {
                cluster: CLUSTER_LOCAL,
                group: 0,
                action,
                flags,
            };
            tables
                .prefixes
                .insert((112, at([10, 101, 0, 0])), prefix(ACTION_SERVICE, 0));
            tables
                .prefixes
                .insert((128, at(pod)), prefix(ACTION_DELIVER, PREFIX_BACKENDS));
        }
        let mut world = Self {
            shape,
            gateway,
            node,
            before: BTreeMap::new(),
            clients: BTreeMap::new(),
        };
        for service in 1..=u64::from(bytes.next() % 4) {
            let key = ServiceKey {
                addr: at(SERVICE_HERE),
                port: bytes.of(PORTS),
                proto: bytes.of([TCP, UDP]),
                pad: 0,
            };
            let flags = bytes.of([0, SERVICE_AFFINITY]);
            let backends = world.gateway.services.backends.values();
            if backends.filter(|known| key_of(known) == key).count() != 0 {
                continue;
            }
            for number in 0..u64::from(bytes.next() % 4) {
                // Some bits in every byte of a name.
                let id =
                    (service << 36 | number << 20 | u64::from(bytes.next()) << 8 | 0x80) & 0xff_ffff_ffff;
                let bits = bytes.next();
                let here = bits & 1 != 0;
                let backend = Backend {
                    pod: at(if here { POD_HERE } else { POD_NODE }),
                    service: key.addr,
                    group: if here { 0 } else { GROUP_NODE },
                    pod_port: bytes.of([key.port, 8_080, 1]),
                    service_port: key.port,
                    proto: key.proto,
                    flags: if bits & 2 == 0 { BACKEND_READY } else { 0 },
                    pad: 0,
                };
                world.gateway.services.backends.insert(id, backend);
                // A node may not have heard of it yet.
                if !here && bits & 4 == 0 {
                    let backend = Backend { group: 0, ..backend };
                    world.node.services.backends.insert(id, backend);
                }
            }
            world.write(key, flags);
        }
        world
    }

    /// Writes what the agent makes of the Pods of a Service that are ready.
    fn write(&mut self, key: ServiceKey, flags: u32) {
        let services = &mut self.gateway.services;
        let ready: BTreeSet<u64> = services
            .backends
            .iter()
            .filter(|(_, backend)| key_of(backend) == key && backend.flags & BACKEND_READY != 0)
            .map(|(id, _)| *id)
            .collect();
        let backends = u32::try_from(ready.len()).expect("few");
        if let Some(table) = maglev::table(&ready) {
            services.maglev.insert(key, *table);
            services.services.insert(key, Service { flags, backends });
        } else {
            services.maglev.remove(&key);
            services.services.remove(&key);
        }
    }

    /// A Pod becomes ready, stops being so, or goes.
    fn change(&mut self, bytes: &mut Bytes<'_>) {
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
        self.write(key, flags);
    }

    fn at(&self, address: [u8; 4]) -> IpAddr {
        self.shape.inner(address)
    }

    fn tunnel(&self, src: [u8; 4], dst: [u8; 4], inner: &Ip) -> Tunnel {
        let mut tunnel = Tunnel::new(self.shape.outer(src), self.shape.outer(dst), inner);
        tunnel.vxlan = self.shape.vxlan;
        tunnel.dst_port = self.shape.port();
        tunnel
    }

    /// Bytes in front of an inner IP header.
    fn inner_at(&self) -> usize {
        ETH + if self.shape.outer_v6 { 40 } else { 20 } + TAIL
    }

    /// A packet a client sends to a Service.
    fn draft(&self, bytes: &mut Bytes<'_>) -> Draft {
        let client = (self.at(POD_WEST), bytes.of(CLIENTS));
        let service = (self.at(SERVICE_HERE), bytes.of(PORTS));
        let proto = bytes.of([TCP, UDP]);
        Draft::new(bytes, client, service, proto)
    }

    fn request(&mut self, bytes: &mut Bytes<'_>) {
        let draft = self.draft(bytes);
        let udp_checksum = bytes.next() & 1 != 0;
        self.same_everywhere(&draft);
        let chosen = self.at_gateway(&draft.whole(), udp_checksum);
        let Some((id, backend)) = self.given(&draft, &chosen) else {
            return;
        };
        let translated = draft.to((address(&backend.pod), backend.pod_port));
        if self.at_pod(&chosen, id, &translated.whole(), &draft) {
            let (reply, expected) = (translated.answer(), draft.answer());
            self.answers(backend.group == 0, &reply.whole(), &expected.whole(), &draft);
        }
    }

    /// A packet in two parts: the second has no ports, and has to go where the first went.
    fn fragmented(&mut self, bytes: &mut Bytes<'_>) {
        let mut draft = self.draft(bytes);
        let udp_checksum = bytes.next() & 1 != 0;
        // The first part has the whole transport header: no sender makes it smaller (RFC 1858).
        draft.len = draft.len.max(16);
        let cut = 3 + usize::from(bytes.next() % 4);
        let [first, later] = draft.fragments(cut);
        let chosen = self.at_gateway(&first, udp_checksum);
        let given = self.given(&draft, &chosen);
        let followed = self.at_gateway(&later, udp_checksum);
        let Some((id, backend)) = given else {
            assert!(matches!(followed, Chosen::Stack), "{followed:?}");
            return;
        };
        let translated = draft.to((address(&backend.pod), backend.pod_port));
        let [expected, expected_later] = translated.fragments(cut);
        if !self.at_pod(&chosen, id, &expected, &draft) {
            return;
        }
        // Behind the checksum there is nothing to be wrong.
        let right = Draft {
            wrong: false,
            ..draft
        };
        assert!(self.at_pod(&followed, id, &expected_later, &right));
        let [reply, reply_later] = translated.answer().fragments(cut);
        let [expected, expected_later] = draft.answer().fragments(cut);
        let here = backend.group == 0;
        self.answers(here, &reply, &expected, &draft);
        self.answers(here, &reply_later, &expected_later, &right);
    }

    /// The client's network complains about an answer of the Service.
    fn error(&mut self, bytes: &mut Bytes<'_>) {
        let draft = self.draft(bytes);
        let udp_checksum = bytes.next() & 1 != 0;
        let len = 8 + usize::from(bytes.next() % 40);
        let about = draft.answer();
        let inner = complaint(draft.src.0, &about, about.src, len);
        let chosen = self.at_gateway(&inner, udp_checksum);
        // A complaint opens nothing.
        let later = Draft { flags: 0x10, ..draft };
        let Some((id, backend)) = self.given(&later, &chosen) else {
            return;
        };
        let pod = (address(&backend.pod), backend.pod_port);
        // Its checksum covers what it quotes, as it is quoted.
        let right = Draft {
            wrong: false,
            ..draft
        };
        self.at_pod(&chosen, id, &complaint(draft.src.0, &about, pod, len), &right);
    }

    /// The client uses the Pod's own address: nothing is translated, and no longer for its port.
    fn direct(&mut self, bytes: &mut Bytes<'_>) {
        let client = (self.at(POD_WEST), bytes.of(CLIENTS));
        let pod = (self.at(POD_NODE), bytes.of([80, 8_080, 1]));
        let proto = bytes.of([TCP, UDP]);
        let draft = Draft::new(bytes, client, pod, proto);
        let inner = draft.whole();
        let tunnel = self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, &inner);
        let mut packet = SlicePacket::new(tunnel.frame());
        let verdict = path::from_underlay(&mut packet, &self.gateway);
        assert!(
            matches!(
                verdict,
                Verdict::Send {
                    path: Path::Transit,
                    ..
                }
            ),
            "{verdict:?}"
        );
        let mut packet = SlicePacket::new(packet.bytes().to_vec());
        let verdict = path::from_underlay(&mut packet, &self.node);
        assert!(
            matches!(
                verdict,
                Verdict::Deliver {
                    path: Path::Deliver,
                    ..
                }
            ),
            "{verdict:?}"
        );
        assert_eq!(packet.bytes()[ETH..], inner.bytes()[..]);
        let reply = draft.answer().whole();
        self.answers(false, &reply, &reply, &draft);
    }

    /// Anything but what somebody would send.
    fn damaged(&mut self, bytes: &mut Bytes<'_>) {
        // It may be a good packet all the same, whoever it is from.
        self.clients.clear();
        let draft = self.draft(bytes);
        let (way, name) = (bytes.next(), bytes.next());
        let inner = if way & 4 == 0 {
            draft.whole()
        } else {
            draft.fragments(1 + usize::from(name % 4))[usize::from(way >> 3 & 1)].clone()
        };
        let mut frame = match way & 3 {
            0 => self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, &inner).frame(),
            1 => {
                let mut tunnel = self.tunnel(GATEWAY_INSIDE, NODE, &inner);
                let ids: Vec<u64> = self.node.services.backends.keys().copied().collect();
                let id = ids.get(usize::from(name) % ids.len().max(1)).unwrap_or(&1);
                tunnel.inner_src = name_of(*id);
                tunnel.frame()
            }
            _ => draft.to(draft.src).whole().frame(),
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
            path::from_underlay(&mut packet, tables)
        } else {
            path::to_remote(&mut packet, tables)
        };
        match verdict {
            Verdict::Pass => {
                assert_eq!(packet.bytes(), frame, "passed, and not as it came");
                assert_eq!(way & 2, 0, "what is on mc0 is ours");
            }
            Verdict::Deliver {
                path: Path::Deliver, ..
            } => {
                let outer = self.inner_at() - ETH;
                assert_eq!(packet.bytes().len(), frame.len() - outer, "length");
            }
            Verdict::Send {
                path: Path::Transit, ..
            } => assert_eq!(packet.bytes().len(), frame.len(), "length"),
            _ => {}
        }
    }

    /// A flow that begins goes to the same Pod through a gateway that knows no flows.
    fn same_everywhere(&self, draft: &Draft) {
        let key = service_of(draft);
        let service = self.gateway.services.services.get(&key);
        if service.is_none_or(|service| service.flags & SERVICE_AFFINITY != 0) || !draft.opens() {
            return;
        }
        let choice = |forget: bool| {
            let tables = self.gateway.clone();
            if forget {
                tables.services.flows.take();
            }
            let tunnel = self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, &draft.whole());
            let _verdict = path::from_underlay(&mut SlicePacket::new(tunnel.frame()), &tables);
            tables.services.flows.take().get(&flow_key(draft)).copied()
        };
        assert_eq!(choice(true), choice(false), "gateways differ");
    }

    /// What the gateway does with a packet of the other cluster: all but the name of a Pod stays as it was.
    fn at_gateway(&mut self, inner: &Ip, udp_checksum: bool) -> Chosen {
        let mut tunnel = self.tunnel(WEST_GATEWAY, GATEWAY_OUTSIDE, inner);
        tunnel.udp_checksum = udp_checksum;
        self.before = self.gateway.services.flows.borrow().clone();
        let mut packet = SlicePacket::new(tunnel.frame());
        let verdict = path::from_underlay(&mut packet, &self.gateway);
        let after = packet.bytes().to_vec();
        match verdict {
            Verdict::Send {
                path: Path::Transit,
                ifindex: 1,
            } => {
                let name = self.inner_at() - 8;
                tunnel.inner_src.copy_from_slice(&after[name..name + 6]);
                tunnel.src = self.shape.outer(GATEWAY_INSIDE);
                tunnel.dst = self.shape.outer(NODE);
                tunnel.ttl -= 1;
                assert_eq!(after, tunnel.frame(), "only a choice is written");
                Chosen::Node(tunnel.inner_src, after)
            }
            Verdict::Deliver {
                path: Path::Deliver,
                ifindex: 1,
            } if after[ETH..] == inner.bytes()[..] => Chosen::Stack,
            Verdict::Deliver {
                path: Path::Deliver,
                ifindex: 1,
            } => Chosen::Here(after),
            other => panic!("{other:?}"),
        }
    }

    /// The Pod a flow was given to: one it may have, and the one it had.
    fn given(&mut self, draft: &Draft, chosen: &Chosen) -> Option<(u64, Backend)> {
        let key = service_of(draft);
        let services = &self.gateway.services;
        if matches!(chosen, Chosen::Stack) {
            assert!(!services.services.contains_key(&key), "a known Service");
            return None;
        }
        let id = *services.flows.borrow().get(&flow_key(draft)).expect("a flow");
        let backend = services.backends[&id];
        assert_eq!(key_of(&backend), key, "a Pod behind something else");
        match chosen {
            Chosen::Node(name, _) => assert_eq!((*name, backend.group), (name_of(id), GROUP_NODE)),
            _ => assert_eq!(backend.group, 0, "a Pod of the node"),
        }
        let known = self.before.get(&flow_key(draft));
        let lives = known.and_then(|known| Some((known, services.backends.get(known)?)));
        if let Some((known, before)) = lives
            && !draft.opens()
            && (draft.proto == TCP || before.flags & BACKEND_READY != 0)
        {
            assert_eq!(*known, id, "a flow has moved");
            return Some((id, backend));
        }
        let service = services.services.get(&key);
        if service.is_some_and(|service| service.flags & SERVICE_AFFINITY != 0) {
            let last = self.clients.insert(client_key(draft), id);
            let last = last.filter(|last| {
                let backend = services.backends.get(last);
                backend.is_some_and(|backend| backend.flags & BACKEND_READY != 0)
            });
            assert_eq!(last.unwrap_or(id), id, "a client has moved");
        }
        Some((id, backend))
    }

    /// What the Pod gets; `false` where its node does not know it yet.
    fn at_pod(&self, chosen: &Chosen, id: u64, expected: &Ip, draft: &Draft) -> bool {
        let delivered = match chosen {
            Chosen::Here(frame) => frame.clone(),
            Chosen::Node(_, frame) => {
                let mut packet = SlicePacket::new(frame.clone());
                let verdict = path::from_underlay(&mut packet, &self.node);
                if !self.node.services.backends.contains_key(&id) {
                    assert_eq!(verdict, Verdict::Drop(DropReason::UnknownBackend));
                    return false;
                }
                let path = Path::Deliver;
                assert_eq!(verdict, Verdict::Deliver { path, ifindex: 1 });
                packet.bytes().to_vec()
            }
            Chosen::Stack => panic!("nobody was chosen"),
        };
        is_right(&delivered[ETH..], expected, draft);
        true
    }

    /// What the client gets of what the Pod sends.
    fn answers(&self, here: bool, sent: &Ip, expected: &Ip, draft: &Draft) {
        let mut packet = SlicePacket::new(sent.frame());
        let tables = if here { &self.gateway } else { &self.node };
        let verdict = path::to_remote(&mut packet, tables);
        let path = Path::Encap;
        assert_eq!(verdict, Verdict::Send { path, ifindex: 1 });
        is_right(&packet.bytes()[self.inner_at()..], expected, draft);
    }
}

/// Compares a packet with what it should be: every byte, but of a wrong checksum only that it still is wrong.
fn is_right(packet: &[u8], expected: &Ip, draft: &Draft) {
    let whole = expected.bytes();
    if !draft.is_wrong() {
        assert_eq!(packet, &whole[..], "as built anew");
        return;
    }
    let at = whole.len() - expected.payload.len() + checksum_at(draft.proto).expect("a checksum");
    let mut rest = packet.to_vec();
    rest[at..at + 2].copy_from_slice(&whole[at..at + 2]);
    assert_eq!(rest, whole, "all but the checksum");
    if expected.frags == 0x4000 && expected.options.is_empty() {
        let read = ip(packet).expect("a packet");
        let left_out = draft.proto == UDP && packet[at..at + 2] == [0, 0];
        assert!(!read.is_sound() && !left_out, "a wrong checksum was made right");
    }
}

fn key_of(backend: &Backend) -> ServiceKey {
    ServiceKey {
        addr: backend.service,
        port: backend.service_port,
        proto: backend.proto,
        pad: 0,
    }
}

/// The port of the Service a packet is for.
fn service_of(draft: &Draft) -> ServiceKey {
    ServiceKey {
        addr: mapped(draft.dst.0),
        port: draft.dst.1,
        proto: draft.proto,
        pad: 0,
    }
}

fn flow_key(draft: &Draft) -> FlowKey {
    FlowKey {
        client: mapped(draft.src.0),
        service: mapped(draft.dst.0),
        client_port: draft.src.1,
        service_port: draft.dst.1,
        proto: draft.proto.into(),
    }
}

/// All flows of a client to a Service with affinity.
fn client_key(draft: &Draft) -> FlowKey {
    FlowKey {
        client_port: 0,
        ..flow_key(draft)
    }
}

/// The inner source MAC address that names a Pod.
fn name_of(id: u64) -> [u8; 6] {
    let [.., b0, b1, b2, b3, b4] = id.to_be_bytes();
    [6, b0, b1, b2, b3, b4]
}

fn address(addr: &Addr) -> IpAddr {
    IpAddr::from(*addr).to_canonical()
}
