//! The direction of packets.

/// The direction of packets, as seen by the Pods that a rule applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the Pods.
    #[default]
    Ingress,
    /// From the Pods.
    Egress,
}

// === impl Direction ===

impl Direction {
    /// The field of a policy with the rules for it.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}
