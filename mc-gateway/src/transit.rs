//! Choice of the devices on which the XDP program forwards packets. Pure.
//!
//! The program runs for each packet of the wire: small packets gain, while super-packets of bulk TCP would be lost,
//! which the kernel joins behind it.

use std::fmt;

use crate::config::TransitPolicy;

/// Properties of an underlay device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraits {
    /// It is an end of a veth pair.
    pub veth: bool,
    /// Its driver removes the VLAN tag of a frame, which the program would take for a frame without one.
    pub strips_tags: bool,
    /// The kernel joins tunnel packets from it to super-packets.
    pub aggregates: bool,
}

/// How a gateway forwards frequent packets that a device receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transit {
    /// By the XDP program.
    Xdp,
    /// By `from_underlay`.
    Tc(TcReason),
}

/// Reason why a device has no XDP program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcReason {
    /// [`TransitPolicy::Never`].
    Policy,
    /// The node is no gateway.
    NoGateway,
    /// [`DeviceTraits::strips_tags`].
    StripsTags,
    /// [`DeviceTraits::veth`]: frames may have no checksum yet, which XDP does not complete, and the other end may lose
    /// them.
    Veth,
    /// [`DeviceTraits::aggregates`].
    Aggregates,
    /// The kernel rejected the program.
    Rejected(String),
}

impl Transit {
    /// The choice for a device, before the kernel has accepted the program.
    #[must_use]
    pub fn choose(policy: TransitPolicy, gateway: bool, device: &DeviceTraits) -> Self {
        let auto = policy == TransitPolicy::Auto;
        let reason = match device {
            _ if policy == TransitPolicy::Never => TcReason::Policy,
            _ if !gateway => TcReason::NoGateway,
            DeviceTraits { veth: true, .. } if auto => TcReason::Veth,
            DeviceTraits {
                strips_tags: true, ..
            } => TcReason::StripsTags,
            DeviceTraits { aggregates: true, .. } if auto => TcReason::Aggregates,
            _ => return Self::Xdp,
        };
        Self::Tc(reason)
    }
}

impl fmt::Display for Transit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp => f.write_str("xdp"),
            Self::Tc(reason) => write!(f, "tc: {reason}"),
        }
    }
}

impl fmt::Display for TcReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "--xdp-transit never",
            Self::NoGateway => "not a gateway",
            Self::StripsTags => "the driver removes VLAN tags (ethtool -K DEVICE rxvlan off)",
            Self::Veth => "end of a veth pair (--xdp-transit always)",
            Self::Aggregates => "the kernel joins its packets (--xdp-transit always)",
            Self::Rejected(error) => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TransitPolicy::{Always, Auto, Never};

    #[test]
    fn each_reason_keeps_the_program_away() {
        let wire = DeviceTraits::default();
        let veth = DeviceTraits {
            veth: true,
            ..wire.clone()
        };
        let tags = DeviceTraits {
            strips_tags: true,
            ..wire.clone()
        };
        let aggregates = DeviceTraits {
            aggregates: true,
            ..wire.clone()
        };
        for (policy, gateway, device, expected) in [
            (Auto, true, &wire, Transit::Xdp),
            (Always, true, &wire, Transit::Xdp),
            (Never, true, &wire, Transit::Tc(TcReason::Policy)),
            (Always, false, &wire, Transit::Tc(TcReason::NoGateway)),
            (Always, true, &tags, Transit::Tc(TcReason::StripsTags)),
            (Auto, true, &veth, Transit::Tc(TcReason::Veth)),
            (Always, true, &veth, Transit::Xdp),
            (Auto, true, &aggregates, Transit::Tc(TcReason::Aggregates)),
            (Always, true, &aggregates, Transit::Xdp),
        ] {
            assert_eq!(
                Transit::choose(policy, gateway, device),
                expected,
                "{policy:?} {device:?}"
            );
        }
    }
}
