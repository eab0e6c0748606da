//! Service addresses: a gateway chooses the Pod, the Pod's node translates.
//!
//! *Guarantees*: gateways never change a packet's addresses, so each of them can carry any packet of a
//! flow; those with the same backends choose alike, because the lookup table and the flow's hash are the
//! same everywhere. The Pod's node translates both directions, and believes a choice only of its own
//! cluster's gateways and only for the Service the backend stands for.
//!
//! A gateway writes its choice into the inner source MAC address, which nothing else reads. Fragments
//! follow their first one; a packet of a Service that is not known goes to the stack untouched.

mod alias;
mod choose;
mod pod;
mod rewrite;
mod transport;

pub use alias::{rename, rename_arrival};
pub use choose::{backend_of, choose};
pub use pod::{directly, from_pod, to_pod};
pub use transport::flow_at;

use self::choose::Route;
use super::finding::{Finding, Step};
use crate::{
    abi::service::{BACKEND_ID_BITS, BACKEND_MAC},
    packet::{
        Packet,
        encap::Room,
        eth::{self, Mac},
    },
    tables::Tables,
    verdict::Event,
};

/// Does for an encapsulated packet what Services ask for, and returns what is left to do: both are packed
/// findings, and stay words here so that nothing but words is passed on. The outer packet is IPv6 or IPv4.
#[inline(always)]
pub fn serve<P: Packet, T: Tables>(packet: &mut P, tables: &T, v6: bool, finding: u64) -> u64 {
    match Finding::step(finding) {
        Some(Step::Choose) => chosen(packet, tables, v6, finding),
        Some(Step::Translate) => {
            let mac = packet.load(name_at(v6)).unwrap_or_default();
            // What names no backend is no backend's id.
            let backend = named(mac).unwrap_or(0);
            translated(packet, tables, v6, finding, backend)
        }
        Some(Step::Direct) => {
            packet.forget_service(tables, inner_at(v6));
            Finding::served(finding)
        }
        None => finding,
    }
}

/// What a gateway does with a packet another cluster's gateway has sent.
#[inline(always)]
fn chosen<P: Packet, T: Tables>(packet: &mut P, tables: &T, v6: bool, finding: u64) -> u64 {
    match Route::unpack(packet.choose_backend(tables, v6)) {
        Err(reason) => Finding::Refused(reason).pack(),
        Ok(Route { backend: 0, .. }) => Finding::served(finding),
        Ok(Route { backend, group: 0 }) => translated(packet, tables, v6, finding, backend),
        Ok(route) => {
            Finding::Onward {
                group: route.group,
                // Of the members of the group of a Node, which are one as a rule.
                hash: Some(route.hash()),
                syn: Finding::opens(finding),
            }
            .pack()
                | Finding::renames(finding)
        }
    }
}

#[inline(always)]
fn translated<P: Packet, T: Tables>(packet: &mut P, tables: &T, v6: bool, finding: u64, backend: u64) -> u64 {
    match packet.serve_request(tables, inner_at(v6), backend) {
        Ok(()) => Finding::served(finding),
        Err(reason) => Finding::Refused(reason).pack(),
    }
}

/// Offset of the inner IP header.
#[inline(always)]
const fn inner_at(v6: bool) -> u32 {
    let room = if v6 { Room::V6 } else { Room::V4 };
    eth::END.wrapping_add(room.bytes())
}

/// Offset of the inner source MAC address.
#[inline(always)]
const fn name_at(v6: bool) -> u32 {
    inner_at(v6).wrapping_sub(8)
}

/// The inner source MAC address that names a backend.
#[inline(always)]
#[must_use]
pub const fn name(backend: u64) -> Mac {
    let [_, _, _, b0, b1, b2, b3, b4] = backend.to_be_bytes();
    [BACKEND_MAC, b0, b1, b2, b3, b4]
}

/// Id of the backend an inner source MAC address names.
#[inline(always)]
#[must_use]
pub const fn named(mac: Mac) -> Option<u64> {
    let [BACKEND_MAC, b0, b1, b2, b3, b4] = mac else {
        return None;
    };
    Some(u64::from_be_bytes([0, 0, 0, b0, b1, b2, b3, b4]))
}

const _: () = assert!(BACKEND_ID_BITS == 40);

/// Counts an entry the kernel has refused.
#[inline(always)]
fn remember<T: Tables>(tables: &T, done: bool) {
    if !done {
        tables.count(Event::ServiceTableFull);
    }
}
