//! Routes of packets that this node sends: the destination must be routed to another cluster, and the source must be an
//! address of this node.
//!
//! The gateway that receives the packet cannot check the source within this cluster: to it, all prefixes of this
//! cluster belong to the same peer.

use crate::{
    abi::{
        ACTION_DELIVER, ACTION_FORWARD, ACTION_REPLY, ACTION_SERVICE, CLUSTER_LOCAL, IDENTITY_HOST,
        PREFIX_ALIAS, PREFIX_BACKENDS, PREFIX_HOST_SNAT, PREFIX_POLICY, PREFIX_RETURN_ROUTE, Prefix,
    },
    maps::{
        ALIAS_DESTINATION, EgressKey, EgressRoute, Maps, PackedEgressRoute, SOURCE_BACKEND, SOURCE_OWN,
        SOURCE_POLICY,
    },
    verdict::DropReason,
};

/// Flags of the prefixes and aliases of clusters with Antrea gateways.
const ANTREA: u32 = PREFIX_HOST_SNAT | PREFIX_ALIAS;

/// Route of packets with these addresses.
#[inline(always)]
pub fn egress_route<M: Maps>(maps: &M, key: &EgressKey) -> PackedEgressRoute {
    let Some(dst) = maps.prefix(key.dst, CLUSTER_LOCAL) else {
        return PackedEgressRoute::rejected(DropReason::NoRoute);
    };
    let local = dst.cluster == CLUSTER_LOCAL && dst.flags & PREFIX_RETURN_ROUTE == 0;
    if dst.action != ACTION_FORWARD || local {
        return PackedEgressRoute::rejected(DropReason::NoRoute);
    }
    let (source, identity) = match maps.prefix(key.src, CLUSTER_LOCAL) {
        Some(src) => (source_bits(&src, &dst), src.identity),
        None => (0, IDENTITY_HOST),
    };
    PackedEgressRoute::new(EgressRoute {
        group: dst.group,
        alias: if dst.flags & PREFIX_ALIAS == 0 {
            0
        } else {
            ALIAS_DESTINATION
        },
        source,
        identity,
    })
}

/// [`EgressRoute::source`] of a source and a destination with these prefixes.
#[inline(always)]
const fn source_bits(src: &Prefix, dst: &Prefix) -> u32 {
    let own = if may_send(src, dst) { SOURCE_OWN } else { 0 };
    let backend = if src.flags & PREFIX_BACKENDS == 0 {
        0
    } else {
        SOURCE_BACKEND
    };
    let policy = if src.flags & PREFIX_POLICY == 0 {
        0
    } else {
        SOURCE_POLICY
    };
    own | backend | policy
}

/// Whether this node may send from an address of the prefix `src` to the prefix `dst`.
#[inline(always)]
#[must_use]
pub const fn may_send(src: &Prefix, dst: &Prefix) -> bool {
    if dst.cluster == CLUSTER_LOCAL {
        // A reply of a cluster with an Antrea gateway, whose destination this node's stack has translated back. The
        // other node accepts sources of other clusters only.
        return src.cluster != CLUSTER_LOCAL && src.flags & ANTREA != 0;
    }
    src.cluster == CLUSTER_LOCAL
        && match src.action {
            // Service addresses: the service proxy's replies of Pods on any node.
            ACTION_DELIVER | ACTION_SERVICE => true,
            ACTION_REPLY => dst.flags & ANTREA != 0,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEST: u64 = 7;

    const fn prefix(cluster: u64, action: u32, flags: u32) -> Prefix {
        Prefix {
            cluster,
            group: 0,
            action,
            flags,
            identity: 0,
        }
    }

    /// Every combination of cluster, action and flags of both prefixes, against the rule in words.
    #[test]
    fn sources_of_other_nodes_and_clusters_are_rejected() {
        let remote = prefix(WEST, ACTION_FORWARD, 0);
        for action in 0..8 {
            for flags in 0..16 {
                let src = prefix(CLUSTER_LOCAL, action, flags);
                let own = matches!(action, ACTION_DELIVER | ACTION_SERVICE);
                assert_eq!(may_send(&src, &remote), own, "{src:?}");
                let foreign = prefix(WEST, action, flags);
                assert!(!may_send(&foreign, &remote), "{foreign:?}");
            }
        }
    }

    #[test]
    fn the_gateway_ip_is_a_source_towards_antrea_gateways_only() {
        let gateway_ip = prefix(CLUSTER_LOCAL, ACTION_REPLY, 0);
        for flags in 0..16 {
            let dst = prefix(WEST, ACTION_FORWARD, flags);
            assert_eq!(may_send(&gateway_ip, &dst), flags & ANTREA != 0, "{dst:?}");
        }
    }

    #[test]
    fn nodes_of_this_cluster_get_replies_of_antrea_clusters_only() {
        let node = prefix(CLUSTER_LOCAL, ACTION_FORWARD, PREFIX_RETURN_ROUTE);
        for action in 0..8 {
            for flags in 0..16 {
                assert!(!may_send(&prefix(CLUSTER_LOCAL, action, flags), &node));
                let src = prefix(WEST, action, flags);
                assert_eq!(may_send(&src, &node), flags & ANTREA != 0, "{src:?}");
            }
        }
    }
}
