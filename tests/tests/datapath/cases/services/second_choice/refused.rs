//! Returned packets that miss a condition, and peers that are both a gateway and a Node.

use mc_gateway_common::{
    abi::{PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, SourceMac, flow_entry::FlowEntry},
    maps::MemoryMaps,
    verdict::DropReason,
};

use super::{
    super::{
        BY_UDP, CLIENT, Cases, DATAGRAMS, ENDING, GONE, ON_NODE, POD_PORT, SECOND, STICKY_FIRST, TCP, WEB,
        WEB_HERE, addr,
    },
    ELSEWHERE,
};
use crate::{
    cases::{Expect, from_underlay::forwarded_with_mac},
    fixture::{
        self, GATEWAY_INSIDE, NODE, OTHER_GATEWAY, PERIOD, POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE,
        WEST_GATEWAY, keyed, received_mac,
    },
    packets::Ip,
};

impl Cases<'_> {
    /// One condition is missing.
    pub(super) fn refused_returns(&mut self) {
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
        let refused = vec![
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
                "a backend that never was a choice of the flow",
                self.unconfirmed(&[SECOND, ON_NODE], SECOND, 1),
                with(ENDING, &self.ack(WEB)),
                UnexpectedReturn,
            ),
            (
                "a backend that is a later choice of the flow",
                self.unconfirmed(&[SECOND, ENDING], SECOND, 1),
                with(ENDING, &self.ack(WEB)),
                UnexpectedReturn,
            ),
            (
                "a datagram without a flow",
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
                with(ON_NODE, &self.error_about_segment()),
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
    pub(super) fn both_roles(&mut self) {
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
        let tables = both(self.with_reply(self.gateway_with_past(&[]), POD_HERE, WEB, TCP));
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
