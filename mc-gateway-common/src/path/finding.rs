//! What is to be done with a packet, as far as reading it tells.

use crate::verdict::DropReason;

/// The outcome of reading a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Untouched for whoever comes next.
    NotOurs,
    /// Ours, and refused.
    Refused(DropReason),
    /// A probe, or the answer to one.
    Probe,
    /// To the next node of its way: a member of a group, chosen by a hash.
    Onward {
        /// Slot of the group.
        group: u32,
        /// Hash of the flow; `None` where finding it out takes another look.
        hash: Option<u32>,
        /// It can open a connection.
        syn: bool,
    },
    /// Into this node's stack.
    Here {
        /// The inner packet is IPv6.
        v6: bool,
        /// DSCP and ECN of the outer header.
        outer_tos: u8,
        /// DSCP and ECN of the inner header.
        inner_tos: u8,
        /// Slot of the group answers go to, where the packet can open a connection; else 0.
        back: u32,
    },
}

/// Slots a packed group has room for; one above it is no slot of any map.
const GROUP_BITS: u32 = 0x00ff_ffff;

/// Flags beside the kind of [`Finding::Onward`].
const SYN: u64 = 1 << 6;
const KNOWN: u64 = 1 << 7;

impl Finding {
    /// As one word: what a function of a program can return. Memory for it would have padding, which the verifier
    /// does not accept, and the kernel refuses the BTF of most Rust enums.
    #[inline(always)]
    pub(super) const fn pack(self) -> u64 {
        match self {
            Self::NotOurs => 0,
            Self::Refused(reason) => 1 | (reason as u64) << 8,
            Self::Probe => 2,
            Self::Onward { group, hash, syn } => {
                let group = if group > GROUP_BITS { GROUP_BITS } else { group };
                let (known, hash) = match hash {
                    Some(hash) => (KNOWN, hash as u64),
                    None => (0, 0),
                };
                let syn = if syn { SYN } else { 0 };
                3 | syn | known | (group as u64) << 8 | hash << 32
            }
            Self::Here {
                v6,
                outer_tos,
                inner_tos,
                back,
            } => {
                4 | (v6 as u64) << 8
                    | (outer_tos as u64) << 16
                    | (inner_tos as u64) << 24
                    | (back as u64) << 32
            }
        }
    }

    /// The reverse of [`Finding::pack`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
    pub(super) fn unpack(word: u64) -> Self {
        match word & 7 {
            0 => Self::NotOurs,
            1 => Self::Refused(DropReason::from_number((word >> 8) as u8)),
            2 => Self::Probe,
            3 => Self::Onward {
                group: (word >> 8) as u32 & GROUP_BITS,
                hash: (word & KNOWN != 0).then_some((word >> 32) as u32),
                syn: word & SYN != 0,
            },
            _ => Self::Here {
                v6: (word >> 8) & 1 != 0,
                outer_tos: (word >> 16) as u8,
                inner_tos: (word >> 24) as u8,
                back: (word >> 32) as u32,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn findings() -> impl Strategy<Value = Finding> {
        prop_oneof![
            Just(Finding::NotOurs),
            prop::sample::select(DropReason::ALL.as_slice()).prop_map(Finding::Refused),
            Just(Finding::Probe),
            (0..=GROUP_BITS, any::<Option<u32>>(), any::<bool>())
                .prop_map(|(group, hash, syn)| Finding::Onward { group, hash, syn }),
            any::<(bool, u8, u8, u32)>().prop_map(|(v6, outer_tos, inner_tos, back)| Finding::Here {
                v6,
                outer_tos,
                inner_tos,
                back
            }),
        ]
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(finding in findings()) {
            prop_assert_eq!(Finding::unpack(finding.pack()), finding);
        }
    }
}
