//! Flows of datagrams without an entry. Any Pod accepts a datagram, and none opens a flow visibly: Pods of past tables
//! come first, and the Pod of the present table gets the flow if none of them has it.

use mc_gateway_common::{
    abi::{flow_entry::FlowEntry, service::SERVICE_AFFINITY},
    maps::MemoryMaps,
    verdict::DropReason,
};

use super::super::{BY_UDP, CLIENT, Cases, DATAGRAMS, GONE, GROUP_NODE, POD_PORT, SECOND, UDP, UDP_HERE};
use crate::{
    cases::Expect,
    fixture::{POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE},
    packets::Ip,
};

impl Cases<'_> {
    pub(super) fn datagrams(&mut self) {
        self.new_flows_of_datagrams();
        self.known_flows_of_datagrams();
        self.returned_datagrams();
    }

    /// East's gateway: [`BY_UDP`] of [`DATAGRAMS`] is ready, and past tables have these backends in their order.
    fn datagrams_with_past(&self, past: &[u64]) -> MemoryMaps {
        let mut tables = self.gateway();
        for (id, pod, group) in [(SECOND, POD_NODE, GROUP_NODE), (UDP_HERE, POD_HERE, 0)] {
            let backend = self.backend(pod, DATAGRAMS, UDP, group);
            tables.services.backends.insert(id, backend);
        }
        Self::set_past(&mut tables, self.key(DATAGRAMS, UDP), past);
        tables
    }

    fn datagrams_with_entry(&self, past: &[u64], entry: FlowEntry) -> MemoryMaps {
        let tables = self.datagrams_with_past(past);
        let key = self.flow_key(CLIENT, DATAGRAMS, UDP);
        tables.services.flows.borrow_mut().insert(key, entry.word());
        tables
    }

    /// The datagram as a Pod receives it.
    fn datagram_to(&self, pod: [u8; 4]) -> Ip {
        self.udp((POD_WEST, CLIENT), (pod, POD_PORT))
    }

    fn new_flows_of_datagrams(&mut self) {
        let datagram = self.sent_by_west(&self.datagram(DATAGRAMS));
        let past = |past: &[u64]| self.datagrams_with_past(past);
        let (moved, second_table, same, limited) = (
            past(&[SECOND]),
            past(&[BY_UDP, SECOND]),
            past(&[BY_UDP]),
            Self::exhausted(past(&[SECOND])),
        );
        let (missing, unknown_here) = (past(&[GONE]), past(&[UDP_HERE]));
        let known_here = self.with_reply(past(&[UDP_HERE]), POD_HERE, DATAGRAMS, UDP);
        let mut sticky = past(&[SECOND]);
        let key = self.key(DATAGRAMS, UDP);
        sticky.services.services.get_mut(&key).expect("a Service").flags |= SERVICE_AFFINITY;
        let unready = {
            let mut tables = Self::without_ready_backend(past(&[]));
            Self::set_past(&mut tables, key, &[SECOND]);
            tables
        };
        self.push_offer("datagram: the Pod of a past table", moved, &datagram, SECOND);
        let name = "datagram: a past table with the same Pod is skipped";
        self.push_offer(name, second_table, &datagram, SECOND);
        for (name, tables) in [
            ("no other Pod in past tables", same),
            ("a missing Pod in the past table", missing),
            ("a Pod here without the flow in the past table", unknown_here),
            ("affinity", sticky),
        ] {
            self.push_selection(&format!("datagram: {name}"), tables, &datagram, BY_UDP);
        }
        self.push_offer("datagram: no ready Pod", unready, &datagram, SECOND);
        let name = "datagram: a Pod here has the flow";
        self.push_delivery(name, known_here, &datagram, &self.datagram_to(POD_HERE));
        let too_many = Expect::Drop(DropReason::FlowLimited);
        self.push("datagram: too many flows", limited, &datagram, too_many);
        let reply = self.udp((SERVICE_HERE, DATAGRAMS), (POD_WEST, CLIENT));
        let error = self.sent_by_west(&self.error_about(&reply));
        let tables = self.datagrams_with_past(&[SECOND]);
        self.push_selection("datagram: an ICMP error", tables, &error, BY_UDP);
    }

    fn known_flows_of_datagrams(&mut self) {
        let datagram = self.sent_by_west(&self.datagram(DATAGRAMS));
        let past = [SECOND];
        let with_entry = |entry| self.datagrams_with_entry(&past, entry);
        let confirmed = with_entry(FlowEntry::confirmed(BY_UDP));
        let unconfirmed = with_entry(FlowEntry::unconfirmed(SECOND, 1));
        let unready = [FlowEntry::confirmed(SECOND), FlowEntry::unconfirmed(SECOND, 1)].map(|entry| {
            let mut tables = with_entry(entry);
            tables
                .services
                .backends
                .get_mut(&SECOND)
                .expect("a backend")
                .flags = 0;
            tables
        });
        self.push_selection("datagram: a confirmed flow", confirmed, &datagram, BY_UDP);
        self.push_offer("datagram: an unconfirmed flow", unconfirmed, &datagram, SECOND);
        for (name, tables) in ["confirmed", "unconfirmed"].into_iter().zip(unready) {
            let name = format!("datagram: a flow, {name}, moves off a Pod that is not ready");
            self.push_selection(&name, tables, &datagram, BY_UDP);
        }
    }

    fn returned_datagrams(&mut self) {
        let offered = self.offered(BY_UDP, &self.datagram(DATAGRAMS));
        self.push_returned("an unknown flow of datagrams", self.node(), &offered, BY_UDP);
        let known = self.node_with_flow(DATAGRAMS, UDP);
        let translated = self.datagram_to(POD_NODE);
        self.push_delivery("return: a known flow of datagrams", known, &offered, &translated);
        let unmarked = self.sent_by_gateway(BY_UDP, &self.datagram(DATAGRAMS));
        let name = "return: never a datagram without the mark";
        self.push_delivery(name, self.node(), &unmarked, &translated);

        let returned = self.returned(SECOND, &self.datagram(DATAGRAMS));
        let last = self.datagrams_with_entry(&[SECOND], FlowEntry::unconfirmed(SECOND, 1));
        let name = "returned: a datagram goes to the Pod of the present table last";
        self.push_selection(name, last, &returned, BY_UDP);
        let known_here = self.datagrams_with_entry(&[SECOND, UDP_HERE], FlowEntry::unconfirmed(SECOND, 1));
        let known_here = self.with_reply(known_here, POD_HERE, DATAGRAMS, UDP);
        let name = "returned: a datagram of a flow that a Pod here has";
        self.push_delivery(name, known_here, &returned, &self.datagram_to(POD_HERE));
        let confirmed = self.datagrams_with_entry(&[SECOND], FlowEntry::confirmed(SECOND));
        let unexpected = Expect::Drop(DropReason::UnexpectedReturn);
        let name = "returned: a datagram of a confirmed flow";
        self.push(name, confirmed, &returned, unexpected);
    }
}
