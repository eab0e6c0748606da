//! The packet pipelines, one function per program: from a packet and the maps to a [`crate::verdict::Verdict`].

mod admission;
mod config;
mod decision;
mod delivery;
mod egress_route;
mod first_rule;
mod from_pod;
mod from_remote;
mod from_tunnel;
mod from_underlay;
#[cfg(any(test, feature = "std"))]
mod host;
pub mod icmp_too_big;
mod kernel_decap;
mod link_header;
pub mod mss;
pub mod peer_limit;
mod plain_packet;
mod policy;
pub mod policy_flow;
mod probe;
pub mod quoted_checksum;
pub mod rejection;
mod reset;
pub mod service;
pub mod subprograms;
mod to_pod;
mod to_remote;
mod transit;

pub use admission::admission;
pub use decision::PackedDecision;
pub use egress_route::{egress_route, may_send};
pub use first_rule::{PackedRule, RuleQuery, first_rule};
pub use from_pod::from_pod;
pub use from_remote::from_remote;
pub use from_tunnel::from_tunnel;
pub use from_underlay::{from_underlay, from_underlay_v4, from_underlay_v6, rewrite_outer};
pub use policy_flow::track_flow;
pub use subprograms::{MapSubprograms, Subprograms};
pub use to_pod::to_pod;
pub use to_remote::to_remote;
pub use transit::transit;
