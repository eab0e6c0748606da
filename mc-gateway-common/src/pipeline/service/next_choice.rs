//! The backends that may have a flow which another gateway has opened.

use super::{
    super::subprograms::Subprograms,
    backend_select::{hash, service_key, table_backend},
};
use crate::{
    abi::{
        flow_entry::FlowEntry,
        service::{Backend, FlowKey, PAST_TABLES, Reply, ReplyKey},
    },
    maps::Maps,
};

/// The next backend that may have a flow, from table number `table` on: 0 is the present table, the others are past
/// ones. Without another backend the flow stays at that of the present table; the ID is 0 if there is none.
///
/// `ports` is the part of the hash of the flow beside its addresses.
#[inline(always)]
pub fn next_choice<P: Subprograms, M: Maps>(maps: &M, key: &FlowKey, ports: u32, table: u32) -> FlowEntry {
    for number in 0..=PAST_TABLES {
        if u32::from(number) < table {
            continue;
        }
        let choice = P::choice(maps, key, ports, number);
        if choice.backend() != 0 {
            return choice;
        }
    }
    P::choice(maps, key, ports, PRESENT)
}

/// The number of no table: [`choice`] returns the backend of the present table, confirmed, if it exists.
const PRESENT: u8 = PAST_TABLES + 1;

/// The backend of table number `table`. Without an ID it does not exist, is that of the present table as well, or is on
/// this node and does not have the connection.
#[inline(always)]
pub fn choice<M: Maps>(maps: &M, key: &FlowKey, ports: u32, table: u8) -> FlowEntry {
    const NONE: FlowEntry = FlowEntry::confirmed(0);
    let hash = hash(key, ports);
    let mut service = service_key(key);
    let present = table_backend(maps, &service, hash).unwrap_or(0);
    let mut id = present;
    if table != 0 && table != PRESENT {
        service.generation = table;
        id = table_backend(maps, &service, hash).unwrap_or(0);
        if id == present {
            return NONE;
        }
    }
    match maps.backend(id) {
        Some(_) if table == PRESENT => FlowEntry::confirmed(id),
        Some(backend) if backend.group != 0 => FlowEntry::unconfirmed(id, u32::from(table)),
        Some(backend) if is_known(maps, key, backend) => FlowEntry::confirmed(id),
        _ => NONE,
    }
}

/// Whether a backend of this node has the connection.
#[inline(always)]
pub(super) fn is_known<M: Maps>(maps: &M, key: &FlowKey, backend: &Backend) -> bool {
    let reply = maps.reply(&ReplyKey {
        pod: backend.pod,
        client: key.client,
        pod_port: backend.pod_port,
        client_port: key.client_port,
        proto: key.proto,
    });
    reply
        == Some(Reply {
            addr: key.service,
            port: key.service_port,
            pad: 0,
        })
}
