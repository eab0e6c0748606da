//! The two lists of rules in a policy.

/// The side of a rule's peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Ingress,
    Egress,
}
