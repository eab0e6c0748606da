//! Session affinity and its time-out.

use mc_gateway_common::abi::{
    affinity::AffinityEntry,
    service::{SERVICE_AFFINITY, SERVICE_STACK},
};

use super::{CLIENT, Cases, STICKY, STICKY_FIRST, STICKY_KNOWN, TCP};
use crate::{fixture, packets::Tunnel};

/// Time-out of [`STICKY`] in seconds: longer than any run of the tests.
pub(super) const SECONDS: u32 = 10_800;

/// The entry of a client whose last new flow was some time ago.
pub(super) fn entry(backend: u64, seconds_ago: u32) -> u64 {
    let now = AffinityEntry::seconds(fixture::now());
    AffinityEntry::new(backend, now.wrapping_sub(seconds_ago.into())).word()
}

impl Cases<'_> {
    /// A client with an entry in the flow table.
    pub(super) fn affinity(&mut self, sticky: &Tunnel) {
        let client = |seconds_ago| {
            let entry = entry(STICKY_KNOWN, seconds_ago);
            self.gateway_with_flow(0, STICKY, TCP, entry)
        };
        let (known, expired, no_timeout, other_flow) = (
            client(SECONDS - 800),
            client(SECONDS + 800),
            client(SECONDS + 800),
            client(SECONDS + 800),
        );
        self.push_selection("affinity within the time-out", known, sticky, STICKY_KNOWN);
        self.push_selection("affinity after the time-out", expired, sticky, STICKY_FIRST);
        let untimed = self.gateway_with_flow(0, STICKY, TCP, STICKY_KNOWN);
        self.push_selection(
            "affinity of an entry without a time",
            untimed,
            sticky,
            STICKY_KNOWN,
        );
        let mut tables = no_timeout;
        for service in tables.services.services.values_mut() {
            service.flags &= SERVICE_AFFINITY | SERVICE_STACK;
        }
        self.push_selection("affinity without a time-out", tables, sticky, STICKY_KNOWN);
        // The connection was opened before the client's entry expired.
        let key = self.flow_key(CLIENT, STICKY, TCP);
        other_flow.services.flows.borrow_mut().insert(key, STICKY_KNOWN);
        let data = self.sent_by_west(&self.ack(STICKY));
        self.push_selection(
            "a connection outlives its affinity",
            other_flow,
            &data,
            STICKY_KNOWN,
        );
    }
}
