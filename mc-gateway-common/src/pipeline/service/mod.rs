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
mod backend_select;
mod l4;
mod nat;
mod rewrite;

pub use alias::{rewrite_alias, rewrite_ingress_alias};
pub use backend_select::{flow_backend_id, select_backend};
pub use l4::parse_l4;
pub use nat::{clear_nat_entry, dnat_request, snat_reply};

use self::backend_select::BackendRoute;
use super::decision::{Decision, ServiceStep};
use crate::{
    abi::service::{BACKEND_ID_BITS, BACKEND_MAC},
    maps::Maps,
    packet::{
        Packet,
        encap::OuterFamily,
        eth::{self, Mac},
    },
    verdict::Event,
};

/// Does for an encapsulated packet what Services ask for, and returns what is left to do: both are packed
/// findings, and stay words here so that nothing but words is passed on. The outer packet is IPv6 or IPv4.
#[inline(always)]
pub fn translate_service<P: Packet, T: Maps>(packet: &mut P, tables: &T, v6: bool, finding: u64) -> u64 {
    match Decision::step(finding) {
        Some(ServiceStep::SelectBackend) => forward_to_backend(packet, tables, v6, finding),
        Some(ServiceStep::Dnat) => {
            let mac = packet.load(inner_src_mac_at(v6)).unwrap_or_default();
            // What names no backend is no backend's id.
            let backend = decode_backend_mac(mac).unwrap_or(0);
            dnat(packet, tables, v6, finding, backend)
        }
        Some(ServiceStep::ClearNat) => {
            packet.clear_nat_entry(tables, inner_at(v6));
            Decision::served(finding)
        }
        None => finding,
    }
}

/// What a gateway does with a packet another cluster's gateway has sent.
#[inline(always)]
fn forward_to_backend<P: Packet, T: Maps>(packet: &mut P, tables: &T, v6: bool, finding: u64) -> u64 {
    match BackendRoute::unpack(packet.select_backend(tables, v6)) {
        Err(reason) => Decision::Drop(reason).pack(),
        Ok(BackendRoute { backend: 0, .. }) => Decision::served(finding),
        Ok(BackendRoute { backend, group: 0 }) => dnat(packet, tables, v6, finding, backend),
        Ok(route) => {
            Decision::Forward {
                group: route.group,
                // Of the next hops of the group of a Node, which are one as a rule.
                hash: Some(route.flow_hash()),
                syn: Decision::opens(finding),
            }
            .pack()
                | Decision::renames(finding)
        }
    }
}

#[inline(always)]
fn dnat<P: Packet, T: Maps>(packet: &mut P, tables: &T, v6: bool, finding: u64, backend: u64) -> u64 {
    match packet.dnat_request(tables, inner_at(v6), backend) {
        Ok(()) => Decision::served(finding),
        Err(reason) => Decision::Drop(reason).pack(),
    }
}

/// Offset of the inner IP header.
#[inline(always)]
const fn inner_at(v6: bool) -> u32 {
    let room = if v6 { OuterFamily::V6 } else { OuterFamily::V4 };
    eth::END.wrapping_add(room.encap_len())
}

/// Offset of the inner source MAC address.
#[inline(always)]
const fn inner_src_mac_at(v6: bool) -> u32 {
    inner_at(v6).wrapping_sub(8)
}

/// The inner source MAC address that names a backend.
#[inline(always)]
#[must_use]
pub const fn encode_backend_mac(backend: u64) -> Mac {
    let [_, _, _, b0, b1, b2, b3, b4] = backend.to_be_bytes();
    [BACKEND_MAC, b0, b1, b2, b3, b4]
}

/// Id of the backend an inner source MAC address names.
#[inline(always)]
#[must_use]
pub const fn decode_backend_mac(mac: Mac) -> Option<u64> {
    let [BACKEND_MAC, b0, b1, b2, b3, b4] = mac else {
        return None;
    };
    Some(u64::from_be_bytes([0, 0, 0, b0, b1, b2, b3, b4]))
}

const _: () = assert!(BACKEND_ID_BITS == 40);

/// Counts an entry the kernel has refused.
#[inline(always)]
fn count_insert_failure<T: Maps>(tables: &T, done: bool) {
    if !done {
        tables.count(Event::ServiceTableFull);
    }
}
