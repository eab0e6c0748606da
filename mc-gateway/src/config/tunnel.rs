//! Encapsulation between nodes, validated.

use std::str::FromStr;

use clap::ValueEnum;
use mc_gateway_common::abi;

use super::{ConfigError, TunnelArgs, config_error};

/// Format of encapsulated packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EncapFormat {
    /// Geneve (RFC 8926).
    #[default]
    Geneve,
    /// VXLAN (RFC 7348).
    Vxlan,
}

/// DSCP of outer packets (RFC 2474).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dscp {
    /// The inner packet's.
    #[default]
    Inherit,
    /// The same for all packets; below 64.
    Fixed(u8),
}

/// Encapsulation of packets between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Format.
    pub format: EncapFormat,
    /// UDP destination port.
    pub port: u16,
    /// Whether outer UDP packets carry a checksum.
    pub udp_checksum: bool,
    /// DSCP of outer packets.
    pub dscp: Dscp,
    /// TTL or hop limit of outer packets.
    pub hop_limit: u8,
}

impl EncapFormat {
    /// The format in the configuration map.
    #[must_use]
    pub const fn from_config(config: &abi::Config) -> Self {
        if config.flags & abi::CONFIG_VXLAN == 0 {
            Self::Geneve
        } else {
            Self::Vxlan
        }
    }

    /// The port assigned by IANA.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Geneve => 6081,
            Self::Vxlan => 4789,
        }
    }
}

impl FromStr for Dscp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "inherit" {
            return Ok(Self::Inherit);
        }
        let number = text.parse().ok().filter(|number| *number < 64);
        number
            .map(Self::Fixed)
            .ok_or("neither \"inherit\" nor a number from 0 to 63")
    }
}

impl TryFrom<TunnelArgs> for Tunnel {
    type Error = ConfigError;

    fn try_from(args: TunnelArgs) -> Result<Self, ConfigError> {
        let port = args.port.unwrap_or(args.format.default_port());
        if port == 0 {
            return Err(config_error("--port", "0", "is not a valid port"));
        }
        Ok(Self {
            format: args.format,
            port,
            udp_checksum: args.udp_checksum,
            dscp: args.dscp,
            hop_limit: args.hop_limit,
        })
    }
}
