//! Classification result of a packet, before any byte changes.

use crate::{
    abi::MAX_NEXT_HOP_GROUPS,
    maps::{ALIAS_MASK, ALIAS_SOURCE, SOURCE_MASK},
    packed::impl_bits,
    verdict::DropReason,
};

/// The classification result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Not multi-cluster traffic: left untouched for other programs.
    Pass,
    /// Multi-cluster traffic that is not acceptable.
    Drop(DropReason),
    /// A probe, or the reply to one.
    Probe,
    /// The packet is ready to be sent back to the gateway: the backend on this node does not have its connection.
    Returned,
    /// To a next hop of a group, selected by a hash.
    Forward {
        /// Slot of the group.
        group: u32,
        /// Hash of the flow; `None` if a second read of the packet is necessary.
        hash: Option<u32>,
        /// The packet may open a connection.
        syn: bool,
    },
    /// Into this node's stack.
    Deliver(DeliveryInfo),
    /// Into this node's stack or to the next hop, after Service processing.
    Service(ServiceStep, DeliveryInfo),
}

/// Service processing of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceStep {
    /// This gateway selects the Pod.
    SelectBackend,
    /// A gateway of this cluster has selected a Pod of this node.
    Dnat,
    /// The destination is the Pod address of a Service backend: the flow uses no Service address any more.
    ClearNat,
}

/// Properties of a packet for delivery on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryInfo {
    /// The inner packet is IPv6.
    pub(crate) v6: bool,
    /// DSCP and ECN of the outer header.
    pub(crate) outer_tos: u8,
    /// DSCP and ECN of the inner header.
    pub(crate) inner_tos: u8,
    /// Slot of the group of the return path if the packet may open a connection, else 0.
    pub(crate) return_group: u32,
    /// 1 if policies decide on the packet, else 0.
    pub(crate) policy: u32,
}

/// A `Decision` in one word, with the alias to rewrite beside it.
///
/// A BPF subprogram can return a word. A decision in memory has padding, which the verifier rejects, and the kernel
/// rejects the BTF of most Rust enums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PackedDecision(u64);

impl_bits!(PackedDecision, u64);

/// Kinds of a packed decision. From [`SELECT_BACKEND`] on, the decision is a [`Decision::Service`].
const KIND_MASK: u64 = 7;
const PASS: u64 = 0;
const DROP: u64 = 1;
const PROBE: u64 = 2;
const FORWARD: u64 = 3;
const DELIVER: u64 = 4;
const SELECT_BACKEND: u64 = 5;
const DNAT: u64 = 6;
const CLEAR_NAT: u64 = 7;

/// Bits of the alias to rewrite, beside any kind.
const ALIAS: u64 = ALIAS_MASK as u64;
/// Flags of [`Decision::Forward`].
const BACKEND: u64 = 1 << 5;
const SYN: u64 = 1 << 6;
const HAS_HASH: u64 = 1 << 7;
const _: () = assert!(ALIAS & (KIND_MASK | BACKEND | SYN | HAS_HASH) == 0 && ALIAS < 1 << 8);

/// Flag of a [`PROBE`], which has no fields: the decision is a [`Decision::Returned`].
const RETURN: u64 = 1 << 8;

/// Fields of [`Decision::Drop`] and [`Decision::Forward`].
const REASON_SHIFT: u32 = 8;
const GROUP_SHIFT: u32 = 8;
const HASH_SHIFT: u32 = 32;
/// Largest group slot; larger ones are packed as this one, which is no slot of any map.
const GROUP_MASK: u32 = 0xffff;
/// The [`crate::maps::EgressRoute::source`] of a [`Decision::Forward`].
const SOURCE_SHIFT: u32 = 22;
const _: () = assert!((GROUP_MASK << GROUP_SHIFT) & SOURCE_MASK << SOURCE_SHIFT == 0);
const _: () = assert!((SOURCE_MASK << SOURCE_SHIFT) >> SOURCE_SHIFT == SOURCE_MASK);
const _: () = assert!(MAX_NEXT_HOP_GROUPS <= GROUP_MASK);

/// Fields of [`DeliveryInfo`].
const V6_SHIFT: u32 = 8;
const POLICY_SHIFT: u32 = 9;
const OUTER_TOS_SHIFT: u32 = 16;
const INNER_TOS_SHIFT: u32 = 24;
const RETURN_GROUP_SHIFT: u32 = 32;

impl PackedDecision {
    pub(crate) const PASS: Self = Self(PASS);
    pub(crate) const PROBE: Self = Self(PROBE);
    pub(crate) const RETURNED: Self = Self(PROBE | RETURN);

    /// A [`Decision::Drop`].
    #[inline(always)]
    pub(crate) const fn drop(reason: DropReason) -> Self {
        Self(DROP | (reason as u64) << REASON_SHIFT)
    }

    /// A [`Decision::Forward`].
    #[inline(always)]
    pub(crate) const fn forward(group: u32, hash: Option<u32>, syn: bool) -> Self {
        let group = if group > GROUP_MASK { GROUP_MASK } else { group };
        let (has_hash, hash) = match hash {
            Some(hash) => (HAS_HASH, hash as u64),
            None => (0, 0),
        };
        let syn = if syn { SYN } else { 0 };
        Self(FORWARD | syn | has_hash | (group as u64) << GROUP_SHIFT | hash << HASH_SHIFT)
    }

    /// A [`Decision::Service`] with a step, else a [`Decision::Deliver`].
    #[inline(always)]
    pub(crate) const fn deliver(info: DeliveryInfo, step: Option<ServiceStep>) -> Self {
        let kind = match step {
            None => DELIVER,
            Some(ServiceStep::SelectBackend) => SELECT_BACKEND,
            Some(ServiceStep::Dnat) => DNAT,
            Some(ServiceStep::ClearNat) => CLEAR_NAT,
        };
        Self(
            kind | (info.v6 as u64) << V6_SHIFT
                | ((info.policy & 1) as u64) << POLICY_SHIFT
                | (info.outer_tos as u64) << OUTER_TOS_SHIFT
                | (info.inner_tos as u64) << INNER_TOS_SHIFT
                | (info.return_group as u64) << RETURN_GROUP_SHIFT,
        )
    }

    /// The decision without the alias.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
    pub(crate) fn unpack(self) -> Decision {
        let word = self.0;
        match word & KIND_MASK {
            PASS => Decision::Pass,
            DROP => Decision::Drop(DropReason::from_number((word >> REASON_SHIFT) as u8)),
            PROBE if word & RETURN != 0 => Decision::Returned,
            PROBE => Decision::Probe,
            FORWARD => Decision::Forward {
                group: (word >> GROUP_SHIFT) as u32 & GROUP_MASK,
                hash: (word & HAS_HASH != 0).then_some((word >> HASH_SHIFT) as u32),
                syn: word & SYN != 0,
            },
            SELECT_BACKEND => Decision::Service(ServiceStep::SelectBackend, self.info()),
            DNAT => Decision::Service(ServiceStep::Dnat, self.info()),
            CLEAR_NAT => Decision::Service(ServiceStep::ClearNat, self.info()),
            _ => Decision::Deliver(self.info()),
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
    const fn info(self) -> DeliveryInfo {
        DeliveryInfo {
            v6: (self.0 >> V6_SHIFT) & 1 != 0,
            outer_tos: (self.0 >> OUTER_TOS_SHIFT) as u8,
            inner_tos: (self.0 >> INNER_TOS_SHIFT) as u8,
            return_group: (self.0 >> RETURN_GROUP_SHIFT) as u32,
            policy: (self.0 >> POLICY_SHIFT) as u32 & 1,
        }
    }

    /// This decision with the alias to rewrite, as in [`crate::maps::Admission::alias`].
    #[inline(always)]
    pub(crate) const fn with_alias(self, alias: u32) -> Self {
        Self(self.0 | alias as u64 & ALIAS)
    }

    /// This decision with the alias of `other`.
    #[inline(always)]
    pub(crate) const fn with_alias_of(self, other: Self) -> Self {
        Self(self.0 | other.0 & ALIAS)
    }

    /// This [`Decision::Forward`] with [`crate::maps::EgressRoute::source`].
    #[inline(always)]
    pub(crate) const fn with_source(self, source: u32) -> Self {
        Self(self.0 | ((source & SOURCE_MASK) << SOURCE_SHIFT) as u64)
    }

    /// The [`crate::maps::EgressRoute::source`] of a [`Decision::Forward`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a field of a word")]
    pub(crate) const fn source(self) -> u32 {
        (self.0 >> SOURCE_SHIFT) as u32 & SOURCE_MASK
    }

    /// This [`Decision::Forward`] of a packet with a backend ID in its inner source MAC address.
    #[inline(always)]
    pub(crate) const fn with_backend(self) -> Self {
        Self(self.0 | BACKEND)
    }

    /// All ones if the packet of a [`Decision::Forward`] has a backend ID in its inner source MAC address, else 0: the
    /// verifier would follow both values of a flag through the rest of the program.
    #[inline(always)]
    pub(crate) const fn backend_mask(self) -> u64 {
        ((self.0 / BACKEND) & 1).wrapping_neg()
    }

    /// Whether an address must be rewritten.
    #[inline(always)]
    pub(crate) const fn has_alias(self) -> bool {
        self.0 & ALIAS != 0
    }

    /// Whether the source address must be rewritten.
    #[inline(always)]
    pub(crate) const fn has_source_alias(self) -> bool {
        self.0 & ALIAS_SOURCE as u64 != 0
    }

    /// Whether this is a [`Decision::Service`].
    #[inline(always)]
    pub(crate) const fn is_service(self) -> bool {
        self.0 & KIND_MASK >= SELECT_BACKEND
    }

    /// The step of a [`Decision::Service`].
    #[inline(always)]
    pub(crate) const fn service_step(self) -> Option<ServiceStep> {
        match self.0 & KIND_MASK {
            SELECT_BACKEND => Some(ServiceStep::SelectBackend),
            DNAT => Some(ServiceStep::Dnat),
            CLEAR_NAT => Some(ServiceStep::ClearNat),
            _ => None,
        }
    }

    /// The [`Decision::Deliver`] that remains of a [`Decision::Service`] after its step.
    #[inline(always)]
    pub(crate) const fn without_service_step(self) -> Self {
        Self(self.0 & !KIND_MASK | DELIVER)
    }

    /// Delivery into the stack, for a service proxy that changes the destination: no policy selects a Pod behind it.
    #[inline(always)]
    pub(crate) const fn into_service_proxy(self) -> Self {
        Self(self.without_service_step().0 & !(1 << POLICY_SHIFT))
    }

    /// Whether the packet of a [`Decision::Service`] may open a connection.
    #[inline(always)]
    pub(crate) const fn may_open_connection(self) -> bool {
        self.0 >> RETURN_GROUP_SHIFT != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::maps::{ALIAS_DESTINATION, SOURCE_BACKEND, SOURCE_OWN};

    fn pack(decision: Decision) -> PackedDecision {
        match decision {
            Decision::Pass => PackedDecision::PASS,
            Decision::Drop(reason) => PackedDecision::drop(reason),
            Decision::Probe => PackedDecision::PROBE,
            Decision::Returned => PackedDecision::RETURNED,
            Decision::Forward { group, hash, syn } => PackedDecision::forward(group, hash, syn),
            Decision::Deliver(info) => PackedDecision::deliver(info, None),
            Decision::Service(step, info) => PackedDecision::deliver(info, Some(step)),
        }
    }

    fn delivery_info() -> impl Strategy<Value = DeliveryInfo> {
        (any::<(bool, u8, u8, u32)>(), 0..=1_u32).prop_map(
            |((v6, outer_tos, inner_tos, return_group), policy)| DeliveryInfo {
                v6,
                outer_tos,
                inner_tos,
                return_group,
                policy,
            },
        )
    }

    fn decisions() -> impl Strategy<Value = Decision> {
        prop_oneof![
            Just(Decision::Pass),
            prop::sample::select(DropReason::ALL.as_slice()).prop_map(Decision::Drop),
            Just(Decision::Probe),
            Just(Decision::Returned),
            (0..=GROUP_MASK, any::<Option<u32>>(), any::<bool>())
                .prop_map(|(group, hash, syn)| Decision::Forward { group, hash, syn }),
            delivery_info().prop_map(Decision::Deliver),
            (
                prop::sample::select(vec![
                    ServiceStep::SelectBackend,
                    ServiceStep::Dnat,
                    ServiceStep::ClearNat
                ]),
                delivery_info()
            )
                .prop_map(|(step, info)| Decision::Service(step, info)),
        ]
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(decision in decisions()) {
            let packed = pack(decision);
            prop_assert_eq!(packed.unpack(), decision);
            prop_assert!(!packed.has_alias());
            for alias in [ALIAS_SOURCE, ALIAS_DESTINATION] {
                let aliased = packed.with_alias(alias);
                prop_assert_eq!(aliased.unpack(), decision);
                prop_assert!(aliased.has_alias());
                prop_assert_eq!(aliased.has_source_alias(), alias == ALIAS_SOURCE);
                prop_assert_eq!(packed.with_alias_of(aliased), aliased);
            }
            if matches!(decision, Decision::Forward { .. }) {
                for source in [0, SOURCE_OWN, SOURCE_BACKEND, SOURCE_MASK] {
                    let marked = packed.with_source(source);
                    prop_assert_eq!(marked.unpack(), decision);
                    prop_assert_eq!(marked.source(), source);
                    prop_assert!(!marked.has_alias());
                }
            }
            let service = matches!(decision, Decision::Service(..));
            prop_assert_eq!(packed.is_service(), service);
            if let Decision::Service(step, info) = decision {
                prop_assert_eq!(packed.service_step(), Some(step));
                prop_assert_eq!(packed.without_service_step().unpack(), Decision::Deliver(info));
                let proxied = Decision::Deliver(DeliveryInfo { policy: 0, ..info });
                prop_assert_eq!(packed.into_service_proxy().unpack(), proxied);
                prop_assert_eq!(packed.may_open_connection(), info.return_group != 0);
            }
        }
    }
}
