//! Admission of encapsulated packets: the inner addresses must match the outer source.

use crate::{
    abi::{
        ACTION_DELIVER, ACTION_FORWARD, ACTION_REPLY, ACTION_SERVICE, CLUSTER_LOCAL, MacMatch, PEER_ANTREA,
        PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY, PEER_UNKEYED, PREFIX_ALIAS,
        PREFIX_BACKENDS, PREFIX_HOST_SNAT, PREFIX_POLICY, Peer, Prefix, SourceMac,
    },
    maps::{ALIAS_DESTINATION, ALIAS_SOURCE, Admission, AdmissionKey, Maps, PackedAdmission},
    verdict::DropReason,
};

/// Admission of packets with these addresses.
#[inline(always)]
pub fn admission<M: Maps>(maps: &M, key: &AdmissionKey) -> PackedAdmission {
    match evaluate_admission(maps, key) {
        Ok(admission) => PackedAdmission::admitted(admission),
        Err(reason) => PackedAdmission::rejected(reason),
    }
}

#[inline(always)]
fn evaluate_admission<M: Maps>(maps: &M, key: &AdmissionKey) -> Result<Admission, DropReason> {
    let peer = maps.peer(key.peer).ok_or(DropReason::UnknownPeer)?;
    let authentication = authenticate(peer, SourceMac::from_bits(key.source_mac))?;
    // An Antrea gateway sends for its clients: the alias of the gateway is the source to check.
    let for_clients = peer.flags & PEER_ANTREA != 0 && key.src == key.peer && key.peer.is_v4();
    let src = if for_clients { peer.alias() } else { key.src };
    let src = maps.prefix(src, peer.cluster).ok_or(DropReason::InnerSource)?;
    let dst = maps.prefix(key.dst, CLUSTER_LOCAL).ok_or(DropReason::NoRoute)?;
    // A gateway selects backends of Services only.
    if authentication == Authentication::Backend && dst.action != ACTION_SERVICE {
        return Err(DropReason::PeerSecret);
    }
    admit(peer, SourceMac::from_bits(key.source_mac), &src, &dst)?;
    Ok(Admission {
        action: if dst.flags & PREFIX_HOST_SNAT == 0 {
            dst.action
        } else {
            ACTION_DELIVER
        },
        alias: if for_clients {
            ALIAS_SOURCE
        } else if dst.flags & PREFIX_ALIAS != 0 {
            ALIAS_DESTINATION
        } else {
            0
        },
        group: dst.group,
        return_group: if src.action == ACTION_FORWARD {
            src.group
        } else {
            0
        },
        peer_flags: peer.flags,
        has_backends: dst.flags & PREFIX_BACKENDS != 0,
        policy: (dst.flags / PREFIX_POLICY) & 1,
        traffic: peer.stats,
    })
}

/// Outcome of the check of an inner source MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Authentication {
    /// The address has the secret of the peer, or the peer needs none.
    Secret,
    /// The address has the secret combined with a backend ID: it is right if such a backend exists on this node, or
    /// on the peer that returns the packet.
    Backend,
}

/// Checks the inner source MAC address of a packet from a peer.
#[inline(always)]
fn authenticate(peer: &Peer, mac: SourceMac) -> Result<Authentication, DropReason> {
    if peer.flags & PEER_UNKEYED != 0 {
        return Ok(Authentication::Secret);
    }
    let expected = peer.expected_mac(mac).ok_or(DropReason::PeerSecret)?;
    match mac.compare(expected) {
        MacMatch::Equal => Ok(Authentication::Secret),
        MacMatch::Backend(_) if peer.flags & PEER_LOCAL_GATEWAY != 0 || is_returned(peer, mac) => {
            Ok(Authentication::Backend)
        }
        MacMatch::Backend(_) | MacMatch::Different => Err(DropReason::PeerSecret),
    }
}

/// Whether a packet that no prefix concerns, such as a probe, is from the peer.
#[inline(always)]
pub(super) fn is_authentic(peer: &Peer, mac: SourceMac) -> bool {
    authenticate(peer, mac) == Ok(Authentication::Secret)
}

/// Whether a Node of this cluster returns a packet that a gateway has sent to one of its backends.
#[inline(always)]
const fn is_returned(peer: &Peer, mac: SourceMac) -> bool {
    peer.flags & PEER_LOCAL_NODE != 0 && mac.has_return_mark()
}

/// Checks whether a peer may send from `src` to `dst`: the inner addresses must match the outer source.
#[inline(always)]
fn admit(peer: &Peer, mac: SourceMac, src: &Prefix, dst: &Prefix) -> Result<(), DropReason> {
    if peer.flags & PEER_REMOTE_GATEWAY != 0 {
        if peer.cluster == CLUSTER_LOCAL || src.cluster != peer.cluster {
            return Err(DropReason::InnerSource);
        }
        // A gateway of another cluster must not use this cluster for transit.
        let here = dst.cluster == CLUSTER_LOCAL
            && match dst.action {
                ACTION_DELIVER | ACTION_FORWARD | ACTION_SERVICE => true,
                ACTION_REPLY => peer.flags & PEER_ANTREA != 0,
                _ => false,
            };
        return if here { Ok(()) } else { Err(DropReason::NoRoute) };
    }
    if src.cluster == CLUSTER_LOCAL {
        // The source of a node is one of its own Pods, or a Service with such a Pod as backend.
        // Prefixes without a group, as this gateway's own Pods, belong to no peer without one.
        let own = peer.group != 0 && src.group == peer.group || src.action == ACTION_SERVICE;
        let from_node = peer.flags & PEER_LOCAL_NODE != 0 && own && src.action != ACTION_REPLY;
        if !from_node {
            return Err(DropReason::InnerSource);
        }
        let away = dst.cluster != CLUSTER_LOCAL && dst.action == ACTION_FORWARD;
        return if away { Ok(()) } else { Err(DropReason::NoRoute) };
    }
    // The Service step compares a returned packet with the flow.
    let returned = is_returned(peer, mac) && dst.action == ACTION_SERVICE;
    if peer.flags & PEER_LOCAL_GATEWAY == 0 && !returned {
        return Err(DropReason::InnerSource);
    }
    // A gateway forwards packets from other clusters only to the destination node, which prevents loops.
    let mine = dst.cluster == CLUSTER_LOCAL && matches!(dst.action, ACTION_DELIVER | ACTION_SERVICE);
    if mine { Ok(()) } else { Err(DropReason::NoRoute) }
}
