//! The compared data paths between two clusters.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A data path from Pod to Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Routes on all four nodes, no encapsulation: the baseline.
    Plain,
    /// The same, with the rules of 1,000 Services on every node.
    PlainServices,
    /// A kernel VXLAN device at both ends of each leg.
    KernelVxlan,
    /// One collect-metadata VXLAN device per node; routes select the tunnel.
    MetadataVxlan,
    /// mc-gateway, Geneve over IPv4.
    McGateway,
    /// mc-gateway, VXLAN over IPv4.
    McGatewayVxlan,
    /// mc-gateway, Geneve over IPv4, gateways with the XDP program.
    McGatewayXdp,
    /// mc-gateway, VXLAN over IPv4, gateways with the XDP program.
    McGatewayVxlanXdp,
    /// Routes only, IPv6.
    PlainIpv6,
    /// A kernel VXLAN device at both ends of each leg, IPv6 inside and outside.
    KernelVxlanIpv6,
    /// mc-gateway, IPv6 in Geneve over IPv6.
    McGatewayIpv6,
}

// === impl Case ===

impl Case {
    /// All cases.
    pub const ALL: [Self; 11] = [
        Self::Plain,
        Self::PlainServices,
        Self::KernelVxlan,
        Self::MetadataVxlan,
        Self::McGateway,
        Self::McGatewayVxlan,
        Self::McGatewayXdp,
        Self::McGatewayVxlanXdp,
        Self::PlainIpv6,
        Self::KernelVxlanIpv6,
        Self::McGatewayIpv6,
    ];

    /// Name on the command line and in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::PlainServices => "plain-services",
            Self::KernelVxlan => "kernel-vxlan",
            Self::MetadataVxlan => "metadata-vxlan",
            Self::McGateway => "mc-gateway",
            Self::McGatewayVxlan => "mc-gateway-vxlan",
            Self::McGatewayXdp => "mc-gateway-xdp",
            Self::McGatewayVxlanXdp => "mc-gateway-vxlan-xdp",
            Self::PlainIpv6 => "plain-ipv6",
            Self::KernelVxlanIpv6 => "kernel-vxlan-ipv6",
            Self::McGatewayIpv6 => "mc-gateway-ipv6",
        }
    }

    /// Short description.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Plain => "plain routing",
            Self::PlainServices => "plain routing, 1000 Services in nftables",
            Self::KernelVxlan => "kernel VXLAN on every leg",
            Self::MetadataVxlan => "collect-metadata VXLAN, tunnel routes",
            Self::McGateway => "mc-gateway, Geneve",
            Self::McGatewayVxlan => "mc-gateway, VXLAN",
            Self::McGatewayXdp => "mc-gateway, Geneve, XDP",
            Self::McGatewayVxlanXdp => "mc-gateway, VXLAN, XDP",
            Self::PlainIpv6 => "plain routing, IPv6",
            Self::KernelVxlanIpv6 => "kernel VXLAN on every leg, IPv6",
            Self::McGatewayIpv6 => "mc-gateway, IPv6 in Geneve over IPv6",
        }
    }

    /// Whether gateways have the XDP program.
    #[must_use]
    pub const fn is_xdp(self) -> bool {
        matches!(self, Self::McGatewayXdp | Self::McGatewayVxlanXdp)
    }

    /// Whether inner and outer addresses are IPv6.
    #[must_use]
    pub const fn ipv6(self) -> bool {
        matches!(
            self,
            Self::PlainIpv6 | Self::KernelVxlanIpv6 | Self::McGatewayIpv6
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_command_line_and_the_report() {
        for case in Case::ALL {
            assert_eq!(Case::from_str(case.name(), false), Ok(case));
            assert_eq!(
                serde_json::to_string(&case).unwrap(),
                format!("\"{}\"", case.name())
            );
        }
        assert_eq!(Case::value_variants(), Case::ALL);
    }
}
