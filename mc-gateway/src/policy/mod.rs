//! Network policies: the decision on packets of Pods, also from other clusters. Pure.
//!
//! [`PolicySet`] is the input. [`evaluate()`] is the specification in plain code: it walks all rules for one packet.
//! [`compile()`] derives [`Tables`], in which [`look_up()`] finds the same verdict at constant cost; the programs do
//! the same look-ups in maps.
//!
//! The Node of the Pods to which a rule applies enforces it. Packets from other clusters have the label identity of
//! their sender; a Pod of the own cluster is known by its address.

mod address_classes;
pub mod closed_pods;
pub mod compile;
mod destinations;
pub mod evaluate;
mod identity_classes;
pub mod look_up;
pub mod model;
mod node_addresses;
mod numbers;
mod order;
mod port_prefixes;
pub mod protected_pods;
mod selection;
pub mod shadowed;
pub mod tables;
#[cfg(test)]
mod tests;

pub use closed_pods::ClosedPods;
pub use compile::compile;
pub use evaluate::evaluate;
pub use look_up::look_up;
pub use model::{
    ContainerPort, Direction, Identity, LocalPod, Mode, Packet, PolicySet, RulePart, RuleRef, ServicePeer,
    ServicePeerPort, Verdict, VerdictAction,
};
pub use protected_pods::{ProtectedPods, ProxiedEndpoints, protected_pods};
pub use selection::selects_local_pods;
pub use shadowed::shadowed;
pub use tables::{Dimension, PodSets, RuleKey, RuleValue, SetInfo, Tables};
