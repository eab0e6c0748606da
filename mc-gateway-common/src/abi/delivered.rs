//! Source MAC address of packets that the programs deliver to `mc0`: the sender's label identity, for `from_remote`.
//!
//! ```text
//!  0  0x0a 0x6d
//!  2  1 if policies decide on the packet, else 0
//!  3  label identity in network order
//! ```

use super::IDENTITY_UNKNOWN;
use crate::packet::eth::{Mac, mac_to_u64};

/// First two bytes: locally administered, unicast, and of no inner source MAC address of a peer
/// ([`super::SourceMac`]).
const TAG: [u8; 2] = [0x0a, 0x6d];
/// Bit of the third byte: `from_remote` decides on the packet. Without it no policy selects the destination.
const EVALUATED: u64 = 1 << 16;
const IDENTITY_SHIFT: u32 = 24;

/// The source MAC address of a delivered packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredMac {
    /// Label identity of the sender, 24 bits.
    pub identity: u32,
    /// Whether policies decide on the packet.
    pub evaluated: bool,
}

impl DeliveredMac {
    /// The address as a little-endian number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        let [_, i0, i1, i2] = self.identity.to_be_bytes();
        Self::bits(u32::from_le_bytes([i0, i1, i2, 0]), self.evaluated as u32)
    }

    /// The address for the VNI of a tunnel header, its three bytes as a little-endian number, and 1 if policies decide
    /// on the packet, else 0: the verifier would follow both values of a flag.
    #[inline(always)]
    #[must_use]
    pub const fn bits(vni: u32, evaluated: u32) -> u64 {
        let [t0, t1] = TAG;
        u64::from_le_bytes([t0, t1, 0, 0, 0, 0, 0, 0])
            | (evaluated as u64 & 1) << EVALUATED.trailing_zeros()
            | (vni as u64 & IDENTITY_UNKNOWN as u64) << IDENTITY_SHIFT
    }

    /// The fields of an address; those of another address are an unknown sender's.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "24 bits")]
    pub const fn from_mac(mac: Mac) -> Self {
        let bits = mac_to_u64(mac);
        let [t0, t1, ..] = mac;
        if t0 != TAG[0] || t1 != TAG[1] {
            return Self {
                identity: IDENTITY_UNKNOWN,
                evaluated: true,
            };
        }
        Self {
            identity: u32::from_be_bytes(((bits >> IDENTITY_SHIFT << 8) as u32).to_le_bytes()),
            evaluated: bits & EVALUATED != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_has_all_fields(identity in 0..=IDENTITY_UNKNOWN, evaluated: bool) {
            let delivered = DeliveredMac { identity, evaluated };
            let [m0, m1, m2, m3, m4, m5, 0, 0] = delivered.to_bits().to_le_bytes() else {
                panic!("48 bits");
            };
            prop_assert_eq!(DeliveredMac::from_mac([m0, m1, m2, m3, m4, m5]), delivered);
            prop_assert_eq!(m0 & 3, 2, "locally administered and unicast");
        }
    }

    #[test]
    fn any_other_address_is_an_unknown_sender() {
        let unknown = DeliveredMac {
            identity: IDENTITY_UNKNOWN,
            evaluated: true,
        };
        for mac in [[0; 6], [0xff; 6], [0x0a, 0x6c, 0, 7, 0, 0]] {
            assert_eq!(DeliveredMac::from_mac(mac), unknown);
        }
    }
}
