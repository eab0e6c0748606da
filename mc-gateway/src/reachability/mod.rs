//! Reachability of the remote clusters by the probes of a gateway: gateways by cluster, damping, and the
//! `NodeReachability` of the Node.

mod damping;
mod publisher;
mod remote_gateways;

pub use publisher::{Gateways, start};
pub use remote_gateways::RemoteGateways;
