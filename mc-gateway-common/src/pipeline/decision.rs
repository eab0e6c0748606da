//! What is to be done with a packet, as far as reading it tells.

use crate::{
    maps::{ALIAS_MASK, ALIAS_SOURCE},
    verdict::DropReason,
};

/// The outcome of reading a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Untouched for whoever comes next.
    Pass,
    /// Ours, and refused.
    Drop(DropReason),
    /// A probe, or the answer to one.
    Probe,
    /// To the next node of its way: a next hop of a group, chosen by a hash.
    Forward {
        /// Slot of the group.
        group: u32,
        /// Hash of the flow; `None` where finding it out takes another look.
        hash: Option<u32>,
        /// It can open a connection.
        syn: bool,
    },
    /// Into this node's stack.
    Deliver(DeliveryInfo),
    /// Into this node's stack, or to the next node, after what a Service needs was done.
    Service(ServiceStep, DeliveryInfo),
}

/// What a packet needs of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceStep {
    /// This gateway chooses the Pod.
    SelectBackend,
    /// A gateway of our cluster has chosen a Pod of this node.
    Dnat,
    /// It is for a Pod that is behind a Service, but by the Pod's own address.
    ClearNat,
}

/// What is known of a packet that ends here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeliveryInfo {
    /// The inner packet is IPv6.
    pub(super) v6: bool,
    /// DSCP and ECN of the outer header.
    pub(super) outer_tos: u8,
    /// DSCP and ECN of the inner header.
    pub(super) inner_tos: u8,
    /// Slot of the group answers go to, where the packet can open a connection; else 0.
    pub(super) return_group: u32,
}

/// Slots a packed group has room for; one above it is no slot of any map.
const GROUP_BITS: u32 = 0x00ff_ffff;

/// Where the kind of a packed finding is, and the kinds that are a [`Finding::Service`].
const KIND: u64 = 7;
const HERE: u64 = 4;
const CHOOSE: u64 = 5;
const TRANSLATE: u64 = 6;
const DIRECT: u64 = 7;

/// Bits beside the kind of any finding that say which address is to be replaced.
const RENAMES: u64 = ALIAS_MASK as u64;
const _: () = assert!(RENAMES & (KIND | SYN | KNOWN) == 0 && RENAMES < 1 << 8);

/// Flags beside the kind of [`Finding::Onward`].
const SYN: u64 = 1 << 6;
const KNOWN: u64 = 1 << 7;

impl Decision {
    /// As one word: what a function of a program can return. Memory for it would have padding, which the verifier
    /// does not accept, and the kernel refuses the BTF of most Rust enums.
    #[inline(always)]
    pub(super) const fn pack(self) -> u64 {
        match self {
            Self::Pass => 0,
            Self::Drop(reason) => 1 | (reason as u64) << 8,
            Self::Probe => 2,
            Self::Forward { group, hash, syn } => {
                let group = if group > GROUP_BITS { GROUP_BITS } else { group };
                let (known, hash) = match hash {
                    Some(hash) => (KNOWN, hash as u64),
                    None => (0, 0),
                };
                let syn = if syn { SYN } else { 0 };
                3 | syn | known | (group as u64) << 8 | hash << 32
            }
            Self::Deliver(arrival) => arrival.pack(None),
            Self::Service(step, arrival) => arrival.pack(Some(step)),
        }
    }

    /// The reverse of [`Finding::pack`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
    pub(super) fn unpack(word: u64) -> Self {
        match word & KIND {
            0 => Self::Pass,
            1 => Self::Drop(DropReason::from_number((word >> 8) as u8)),
            2 => Self::Probe,
            3 => Self::Forward {
                group: (word >> 8) as u32 & GROUP_BITS,
                hash: (word & KNOWN != 0).then_some((word >> 32) as u32),
                syn: word & SYN != 0,
            },
            CHOOSE => Self::Service(ServiceStep::SelectBackend, DeliveryInfo::unpack(word)),
            TRANSLATE => Self::Service(ServiceStep::Dnat, DeliveryInfo::unpack(word)),
            DIRECT => Self::Service(ServiceStep::ClearNat, DeliveryInfo::unpack(word)),
            _ => Self::Deliver(DeliveryInfo::unpack(word)),
        }
    }

    /// The bits of a packed finding for [`crate::tables::Admission::rename`].
    #[inline(always)]
    pub(super) const fn renaming(rename: u32) -> u64 {
        rename as u64 & RENAMES
    }

    /// The [`Self::renaming`] bits of a packed finding.
    #[inline(always)]
    pub(super) const fn renames(word: u64) -> u64 {
        word & RENAMES
    }

    /// Of a packed finding: whether the source is to be replaced.
    #[inline(always)]
    pub(super) const fn renames_source(word: u64) -> bool {
        word & ALIAS_SOURCE as u64 != 0
    }

    /// Whether a packed finding is [`Finding::Service`].
    #[inline(always)]
    pub(super) const fn is_service(word: u64) -> bool {
        word & KIND >= CHOOSE
    }

    /// What a packed [`Finding::Service`] asks for.
    #[inline(always)]
    pub(super) const fn step(word: u64) -> Option<ServiceStep> {
        match word & KIND {
            CHOOSE => Some(ServiceStep::SelectBackend),
            TRANSLATE => Some(ServiceStep::Dnat),
            DIRECT => Some(ServiceStep::ClearNat),
            _ => None,
        }
    }

    /// The packed [`Finding::Here`] that is left of a packed [`Finding::Service`] which got what it needs.
    #[inline(always)]
    pub(super) const fn served(word: u64) -> u64 {
        word & !KIND | HERE
    }

    /// Whether the packet of a packed [`Finding::Service`] can open a connection.
    #[inline(always)]
    pub(super) const fn opens(word: u64) -> bool {
        word >> 32 != 0
    }
}

impl DeliveryInfo {
    /// As a packed finding, spelled out for those that find it.
    #[inline(always)]
    pub(super) const fn pack(self, step: Option<ServiceStep>) -> u64 {
        let kind = match step {
            None => HERE,
            Some(ServiceStep::SelectBackend) => CHOOSE,
            Some(ServiceStep::Dnat) => TRANSLATE,
            Some(ServiceStep::ClearNat) => DIRECT,
        };
        kind | (self.v6 as u64) << 8
            | (self.outer_tos as u64) << 16
            | (self.inner_tos as u64) << 24
            | (self.return_group as u64) << 32
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
    const fn unpack(word: u64) -> Self {
        Self {
            v6: (word >> 8) & 1 != 0,
            outer_tos: (word >> 16) as u8,
            inner_tos: (word >> 24) as u8,
            return_group: (word >> 32) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::maps::ALIAS_DESTINATION;

    fn arrivals() -> impl Strategy<Value = DeliveryInfo> {
        any::<(bool, u8, u8, u32)>().prop_map(|(v6, outer_tos, inner_tos, back)| DeliveryInfo {
            v6,
            outer_tos,
            inner_tos,
            return_group: back,
        })
    }

    fn findings() -> impl Strategy<Value = Decision> {
        prop_oneof![
            Just(Decision::Pass),
            prop::sample::select(DropReason::ALL.as_slice()).prop_map(Decision::Drop),
            Just(Decision::Probe),
            (0..=GROUP_BITS, any::<Option<u32>>(), any::<bool>())
                .prop_map(|(group, hash, syn)| Decision::Forward { group, hash, syn }),
            arrivals().prop_map(Decision::Deliver),
            (
                prop::sample::select(vec![
                    ServiceStep::SelectBackend,
                    ServiceStep::Dnat,
                    ServiceStep::ClearNat
                ]),
                arrivals()
            )
                .prop_map(|(step, arrival)| Decision::Service(step, arrival)),
        ]
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(finding in findings()) {
            prop_assert_eq!(Decision::unpack(finding.pack()), finding);
            for rename in [ALIAS_SOURCE, ALIAS_DESTINATION] {
                let word = finding.pack() | Decision::renaming(rename);
                prop_assert_eq!(Decision::unpack(word), finding);
                prop_assert_eq!(Decision::renames(finding.pack()), 0);
                prop_assert_eq!(Decision::renames_source(word), rename == ALIAS_SOURCE);
                prop_assert_eq!(Decision::renames(word), u64::from(rename));
            }
            let service = matches!(finding, Decision::Service(..));
            prop_assert_eq!(Decision::is_service(finding.pack()), service);
            if let Decision::Service(step, arrival) = finding {
                prop_assert_eq!(Decision::step(finding.pack()), Some(step));
                prop_assert_eq!(Decision::unpack(Decision::served(finding.pack())), Decision::Deliver(arrival));
                prop_assert_eq!(Decision::opens(finding.pack()), arrival.return_group != 0);
            }
        }
    }
}
