//! The tunnel header between outer UDP and inner Ethernet: Geneve (RFC 8926) or VXLAN (RFC 7348).

use crate::abi::{CONFIG_VXLAN, Config};

/// Length of either header; of Geneve's without options.
pub const LEN: usize = 8;

/// VNI of packets that `from_underlay` leaves to the agent's tunnel devices ("mcg" in ASCII). It never leaves the node.
pub const VNI_KERNEL_DECAP: u32 = 0x006d_6367;

/// UDP destination port of Geneve (IANA).
pub const GENEVE_PORT: u16 = 6081;
/// UDP destination port of VXLAN (IANA).
pub const VXLAN_PORT: u16 = 4789;

/// Geneve protocol type of an Ethernet payload: Transparent Ethernet Bridging.
const ETHERNET: u64 = 0x6558;
/// Geneve header bits that this gateway does not support: version, control packet, critical options. Option
/// length and protocol type are checked separately.
const GENEVE_UNSUPPORTED: u64 = 0xc0c0 << 48;
/// First word of a VXLAN header: the I flag and nothing else.
const VXLAN_FLAGS: u64 = 0x0800_0000;

/// Format of the tunnel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// RFC 8926.
    Geneve,
    /// RFC 7348.
    Vxlan,
}

impl Format {
    /// The configured format.
    #[inline(always)]
    #[must_use]
    pub const fn from_config(config: &Config) -> Self {
        if config.flags & CONFIG_VXLAN != 0 {
            Self::Vxlan
        } else {
            Self::Geneve
        }
    }

    /// The header for a VNI of 24 bits.
    #[inline(always)]
    #[must_use]
    pub const fn header(self, vni: u32) -> [u8; LEN] {
        let vni = (vni as u64 & 0x00ff_ffff) << 8;
        let header = match self {
            Self::Geneve => ETHERNET << 32 | vni,
            Self::Vxlan => VXLAN_FLAGS << 32 | vni,
        };
        header.to_be_bytes()
    }
}

/// The tunnel header of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    format: Format,
    bits: u64,
}

impl Header {
    /// The header in the eight bytes behind the UDP header.
    #[inline(always)]
    #[must_use]
    pub const fn new(format: Format, bytes: [u8; LEN]) -> Self {
        Self {
            format,
            bits: u64::from_be_bytes(bytes),
        }
    }

    /// Whether the payload is Ethernet.
    #[inline(always)]
    #[must_use]
    pub const fn carries_ethernet(self) -> bool {
        match self.format {
            Format::Geneve => (self.bits >> 32) & 0xffff == ETHERNET,
            Format::Vxlan => true,
        }
    }

    /// Length of the options in bytes; VXLAN has none.
    #[inline(always)]
    #[must_use]
    pub const fn options_len(self) -> u32 {
        match self.format {
            Format::Geneve => ((self.bits >> 56) as u32 & 0x3f).wrapping_mul(4),
            Format::Vxlan => 0,
        }
    }

    /// Whether version and flags are supported.
    #[inline(always)]
    #[must_use]
    pub const fn is_plain(self) -> bool {
        match self.format {
            Format::Geneve => self.bits & GENEVE_UNSUPPORTED == 0,
            Format::Vxlan => self.bits >> 32 == VXLAN_FLAGS,
        }
    }

    /// The virtual network identifier.
    #[inline(always)]
    #[must_use]
    pub const fn vni(self) -> u32 {
        ((self.bits >> 8) & 0x00ff_ffff) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_match_the_rfcs() {
        assert_eq!(
            Format::Geneve.header(0x00ab_cdef),
            [0, 0, 0x65, 0x58, 0xab, 0xcd, 0xef, 0]
        );
        assert_eq!(
            Format::Vxlan.header(0x00ab_cdef),
            [8, 0, 0, 0, 0xab, 0xcd, 0xef, 0]
        );
        for format in [Format::Geneve, Format::Vxlan] {
            let header = Header::new(format, format.header(0x00ab_cdef));
            assert!(header.carries_ethernet() && header.is_plain());
            assert_eq!((header.options_len(), header.vni()), (0, 0x00ab_cdef));
        }
    }

    #[test]
    fn unsupported_versions_and_flags_are_detected() {
        let geneve = |first, second| Header::new(Format::Geneve, [first, second, 0x65, 0x58, 0, 0, 0, 0]);
        assert!(!geneve(0x40, 0).is_plain(), "version 1");
        assert!(!geneve(0, 0x80).is_plain(), "control packet");
        assert!(!geneve(0, 0x40).is_plain(), "critical options");
        assert!(geneve(0, 0x3f).is_plain(), "reserved bits are ignored on receipt");
        assert_eq!(geneve(0x3f, 0).options_len(), 252);
        for flags in [[0, 0, 0, 0], [0x0c, 0, 0, 0], [0x88, 0, 0, 0], [8, 0, 0, 1]] {
            let [a, b, c, d] = flags;
            assert!(!Header::new(Format::Vxlan, [a, b, c, d, 0, 0, 0, 0]).is_plain());
        }
    }
}
