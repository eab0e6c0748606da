//! Service addresses: a gateway selects the Pod, the Pod's node translates.
//!
//! *Guarantees*: gateways never change a packet's addresses, so each gateway can forward any packet of a flow.
//! Gateways with the same backends select alike, because the Maglev table and the flow hash are the same on all of
//! them. The Pod's node translates both directions. It accepts a selected backend only from gateways of its own
//! cluster, and only for the Service of the backend.
//!
//! A gateway writes the selected backend into the inner source MAC address, which has no other use. Fragments follow
//! the first one. A packet to an exported port without backends reaches the stack unchanged; one to a port that is
//! not exported is dropped.

mod alias;
mod backend_mac;
pub(super) mod backend_route;
mod backend_select;
mod l4;
pub(super) mod l4_header;
mod map_insert;
mod nat;
mod next_choice;
mod outer_ttl;
mod returned;
mod rewrite;
mod translate;

pub use alias::{rewrite_alias, rewrite_ingress_alias};
pub use backend_route::PackedRoute;
pub use backend_select::{flow_backend_id, select_backend};
pub use l4::parse_l4;
pub use l4_header::PackedL4Header;
pub use nat::{Dnat, clear_nat_entry, dnat_request, snat_reply};
pub use next_choice::{choice, next_choice};
pub use returned::{return_to_gateway, select_again};
pub use translate::translate_service;
