//! Stretched policies: the decision on packets from other clusters to Pods of this one. Pure.
//!
//! [`PolicySet`] is the input. [`evaluate()`] is the specification in plain code: it walks all rules for one packet.
//! [`compile()`] derives [`Tables`], in which [`look_up()`] finds the same verdict at constant cost; the programs do
//! the same look-ups in maps.
//!
//! Only ingress is covered: the destination's Node enforces it, as only there both the identity of the source and the
//! Pod are known.

mod address_classes;
pub mod compile;
pub mod evaluate;
mod identity_classes;
pub mod look_up;
pub mod model;
mod numbers;
mod order;
mod port_prefixes;
mod selection;
pub mod tables;
#[cfg(test)]
mod tests;

pub use compile::compile;
pub use evaluate::evaluate;
pub use look_up::look_up;
pub use model::{
    ContainerPort, Identity, LocalPod, Mode, Packet, PolicySet, RuleRef, Verdict, VerdictAction,
};
pub use tables::{Dimension, RuleKey, RuleValue, SetInfo, Tables};
