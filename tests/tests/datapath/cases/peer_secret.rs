//! The secret of a pair of peers in the inner source MAC address: accepted periods, and packets without it.

use mc_gateway_common::{abi::SourceMac, maps::MemoryMaps, packet::eth::mac_to_u64, verdict::DropReason};

use super::{
    Case, Expect, case_from_underlay,
    from_underlay::{decapsulated, forwarded},
    probes, services, web,
};
use crate::{
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, PERIOD, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE,
        Shape, WEST_GATEWAY, keyed, received_mac, sent_mac,
    },
    packets::Tunnel,
};

/// A sender, its receiver at this node, the inner packet, and the tables of the receiver.
struct Leg {
    name: &'static str,
    from: [u8; 4],
    to: [u8; 4],
    src: [u8; 4],
    dst: [u8; 4],
    tables: fn() -> MemoryMaps,
    /// The leg to the next hop; none for a delivery.
    next: Option<([u8; 4], [u8; 4])>,
}

const LEGS: [Leg; 4] = [
    Leg {
        name: "node to gateway",
        from: NODE,
        to: GATEWAY_INSIDE,
        src: POD_NODE,
        dst: POD_WEST,
        tables: fixture::gateway,
        next: Some((GATEWAY_OUTSIDE, WEST_GATEWAY)),
    },
    Leg {
        name: "gateway to gateway, for a node",
        from: WEST_GATEWAY,
        to: GATEWAY_OUTSIDE,
        src: POD_WEST,
        dst: POD_NODE,
        tables: fixture::gateway,
        next: Some((GATEWAY_INSIDE, NODE)),
    },
    Leg {
        name: "gateway to gateway, for its Pod",
        from: WEST_GATEWAY,
        to: GATEWAY_OUTSIDE,
        src: POD_WEST,
        dst: POD_HERE,
        tables: fixture::gateway,
        next: None,
    },
    Leg {
        name: "gateway to node",
        from: GATEWAY_INSIDE,
        to: NODE,
        src: POD_WEST,
        dst: POD_NODE,
        tables: fixture::node,
        next: None,
    },
];

impl Leg {
    fn tunnel(&self, shape: Shape, mac: SourceMac) -> Tunnel {
        let inner = web(shape.inner(self.src), shape.inner(self.dst));
        let mut tunnel = Tunnel::new(shape.outer(self.from), shape.outer(self.to), &inner);
        tunnel.vxlan = shape.vxlan;
        tunnel.dst_port = shape.port();
        tunnel.inner_src = mac.bytes();
        tunnel
    }

    fn accepted(&self, shape: Shape, tunnel: &Tunnel) -> Expect {
        match self.next {
            None => Expect::Deliver(decapsulated(tunnel)),
            Some((src, dst)) => Expect::Transit(forwarded(tunnel, shape.outer(src), shape.outer(dst))),
        }
    }
}

/// Names and inner source MAC addresses that are not accepted from `from`.
fn forged(from: [u8; 4], to: [u8; 4]) -> Vec<(String, SourceMac)> {
    let right = received_mac(from, PERIOD);
    let [first, s0, s1, s2, s3, s4] = right.bytes();
    let of = |bytes| SourceMac::from_bits(mac_to_u64(bytes));
    let all = [
        ("no secret", SourceMac::UNKEYED),
        (
            "no secret, a backend ID",
            SourceMac::UNKEYED.with_backend(services::ON_NODE),
        ),
        ("a global address", of([0x00, s0, s1, s2, s3, s4])),
        ("a multicast address", of([first | 1, s0, s1, s2, s3, s4])),
        ("zeros", SourceMac::from_bits(0)),
        ("ones", SourceMac::from_bits(u64::MAX)),
        (
            "the secret of another pair",
            received_mac(fixture::STRANGER, PERIOD),
        ),
        ("the secret of the other direction", sent_mac(from)),
        ("the secret of packets to itself", received_mac(to, PERIOD)),
        ("a period too early", received_mac(from, PERIOD - 2)),
        ("a period too late", received_mac(from, PERIOD + 2)),
        (
            "an earlier secret in the slot of the present",
            received_mac(from, PERIOD - 4),
        ),
        (
            "the right secret in another slot",
            SourceMac::keyed(PERIOD + 1, [s0, s1, s2, s3, s4]),
        ),
        (
            "the right secret without its mark",
            of([first & !0x08, s0, s1, s2, s3, s4]),
        ),
    ];
    let flipped = (0..40).map(|bit| {
        let mut bytes = right.bytes();
        bytes[1 + bit / 8] ^= 1 << (bit % 8);
        (format!("bit {bit} of the secret flipped"), of(bytes))
    });
    all.into_iter()
        .map(|(name, mac)| (name.to_owned(), mac))
        .chain(flipped)
        .collect()
}

pub(crate) fn cases(cases: &mut Vec<Case>) {
    for shape in Shape::all() {
        for leg in &LEGS {
            let tables = shape.tables(keyed((leg.tables)()));
            let mut push = |name: &str, mac: SourceMac, expect: Option<DropReason>| {
                let tunnel = leg.tunnel(shape, mac);
                let expect = expect.map_or_else(|| leg.accepted(shape, &tunnel), Expect::Drop);
                let name = format!("{}: secret: {}: {name}", shape.name(), leg.name);
                cases.push(case_from_underlay(name, tables.clone(), tunnel.frame(), expect));
            };
            for period in PERIOD - 1..=PERIOD + 1 {
                push(&format!("period {period}"), received_mac(leg.from, period), None);
            }
            for (name, mac) in forged(leg.from, leg.to) {
                push(&name, mac, Some(DropReason::PeerSecret));
            }
            let backend = received_mac(leg.from, PERIOD).with_backend(services::ON_NODE);
            push(
                "a backend ID for a Pod address",
                backend,
                Some(DropReason::PeerSecret),
            );
        }
        unkeyed(cases, shape);
        service_legs(cases, shape);
        service_requests(cases, shape);
        probe_cases(cases, shape);
    }
}

/// A peer that needs no secret: one that has it is accepted as well.
fn unkeyed(cases: &mut Vec<Case>, shape: Shape) {
    for leg in &LEGS {
        for (name, mac) in [
            ("without it", SourceMac::UNKEYED),
            ("with it", received_mac(leg.from, PERIOD)),
            ("another address", SourceMac::from_bits(0x66_5544_3322_1100)),
        ] {
            let tunnel = leg.tunnel(shape, mac);
            let expect = leg.accepted(shape, &tunnel);
            let name = format!("{}: secret not required: {}: {name}", shape.name(), leg.name);
            cases.push(case_from_underlay(
                name,
                shape.tables((leg.tables)()),
                tunnel.frame(),
                expect,
            ));
        }
    }
}

/// Packets of a gateway with a selected backend.
fn service_legs(cases: &mut Vec<Case>, shape: Shape) {
    let right = received_mac(GATEWAY_INSIDE, PERIOD);
    let unknown = 0xff_ffff_fffe;
    for (name, mac, expect) in [
        ("the backend", right.with_backend(services::ON_NODE), None),
        (
            "the neighbouring period",
            received_mac(GATEWAY_INSIDE, PERIOD + 1).with_backend(services::ON_NODE),
            None,
        ),
        (
            "an unknown backend",
            right.with_backend(unknown),
            Some(DropReason::UnknownBackend),
        ),
        ("no backend", right, Some(DropReason::UnknownBackend)),
        (
            "no secret",
            SourceMac::UNKEYED.with_backend(services::ON_NODE),
            Some(DropReason::PeerSecret),
        ),
        (
            "the secret of another pair",
            received_mac(fixture::OTHER_GATEWAY, PERIOD).with_backend(services::ON_NODE),
            Some(DropReason::UnknownBackend),
        ),
        (
            "a period too early",
            received_mac(GATEWAY_INSIDE, PERIOD - 2).with_backend(services::ON_NODE),
            Some(DropReason::PeerSecret),
        ),
    ] {
        let (tables, tunnel, inner) = services::request_on_node(shape);
        let mut sent = tunnel;
        sent.inner_src = mac.bytes();
        let expect = expect.map_or_else(
            || {
                let mut translated = sent.clone();
                translated.inner = inner.bytes().to_vec();
                Expect::Deliver(decapsulated(&translated))
            },
            Expect::Drop,
        );
        let name = format!("{}: secret: Service: {name}", shape.name());
        cases.push(case_from_underlay(name, keyed(tables), sent.frame(), expect));
    }
}

/// Requests to a Service by a gateway of another cluster: it selects no backend.
fn service_requests(cases: &mut Vec<Case>, shape: Shape) {
    let tables = keyed(services::world(shape, true));
    let chosen = received_mac(WEST_GATEWAY, PERIOD).with_backend(services::ON_NODE);
    for (name, mac) in [
        ("a backend ID", chosen),
        ("a backend ID and the mark", chosen.may_return()),
    ] {
        let inner = web(shape.inner(POD_WEST), shape.inner(SERVICE_HERE));
        let mut tunnel = Tunnel::new(shape.outer(WEST_GATEWAY), shape.outer(GATEWAY_OUTSIDE), &inner);
        tunnel.vxlan = shape.vxlan;
        tunnel.dst_port = shape.port();
        tunnel.inner_src = mac.bytes();
        let name = format!("{}: secret: gateway of another cluster: {name}", shape.name());
        let expect = Expect::Drop(DropReason::PeerSecret);
        cases.push(case_from_underlay(name, tables.clone(), tunnel.frame(), expect));
    }
}

/// Probes of peers.
fn probe_cases(cases: &mut Vec<Case>, shape: Shape) {
    let tables = shape.tables(keyed(fixture::gateway()));
    for (from, to) in [(WEST_GATEWAY, GATEWAY_OUTSIDE), (NODE, GATEWAY_INSIDE)] {
        let (request, reply) = probes::request_and_reply(shape, from, to);
        let mut push = |name: &str, mac: SourceMac, expect: Expect| {
            let mut request = request.clone();
            request.inner_src = mac.bytes();
            let name = format!("{}: secret: probe to {to:?}: {name}", shape.name());
            cases.push(case_from_underlay(name, tables.clone(), request.frame(), expect));
        };
        push(
            "with the secret",
            received_mac(from, PERIOD),
            Expect::Reflect(reply.frame()),
        );
        for (name, mac) in forged(from, to) {
            push(&name, mac, Expect::Drop(DropReason::PeerSecret));
        }
        let backend = received_mac(from, PERIOD).with_backend(1);
        push("with a backend ID", backend, Expect::Drop(DropReason::PeerSecret));
    }
}
