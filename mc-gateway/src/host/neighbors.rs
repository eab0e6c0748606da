//! The kernel's neighbor tables: entries on the routes to other nodes, and limits.

use std::collections::BTreeSet;
use std::fs;

use futures::TryStreamExt as _;
use rtnetlink::Handle;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};

use super::{HostError, netlink};
use crate::resolved::{NeighborKey, NeighborLimits, Neighbors};

/// An entry of a neighbor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// MAC address; none while the kernel resolves it.
    pub(super) mac: Option<[u8; 6]>,
    /// Whether the kernel waits for a packet before it confirms the address.
    idle: bool,
}

/// The wanted neighbors, and the idle ones among them: the kernel confirms these once it is requested, and resolves
/// others for the first packet to them.
pub async fn observe(
    handle: &Handle,
    wanted: BTreeSet<NeighborKey>,
) -> Result<(Neighbors, BTreeSet<NeighborKey>), HostError> {
    let mut neighbors: Neighbors = wanted.into_iter().map(|key| (key, None)).collect();
    let mut idle = BTreeSet::new();
    if neighbors.is_empty() {
        return Ok((neighbors, idle));
    }
    let mut messages = handle.neighbours().get().execute();
    while let Some(message) = messages.try_next().await.map_err(netlink("list neighbors"))? {
        let Some((key, entry)) = parse(&message) else {
            continue;
        };
        let Some(mac) = neighbors.get_mut(&key) else {
            continue;
        };
        *mac = entry.mac;
        if entry.idle {
            idle.insert(key);
        }
    }
    Ok((neighbors, idle))
}

/// Requests the kernel to confirm an idle neighbor, as a packet to it does (`NTF_USE`). An entry that an administrator
/// has made permanent would lose that state; it is never idle.
pub async fn confirm(handle: &Handle, (ifindex, addr): NeighborKey) -> Result<(), HostError> {
    let request = handle
        .neighbours()
        .add(ifindex, addr)
        .state(NeighbourState::None)
        .flags(NeighbourFlags::Use)
        .replace();
    request
        .execute()
        .await
        .map_err(netlink(format!("confirm neighbor {addr}")))
}

/// The entry in a message; none of another table.
pub(super) fn parse(message: &NeighbourMessage) -> Option<(NeighborKey, Entry)> {
    use NeighbourState as S;

    let mut addr = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(to)) => addr = Some((*to).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(to)) => addr = Some((*to).into()),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }
    let state = message.header.state;
    let valid = matches!(
        state,
        S::Reachable | S::Stale | S::Delay | S::Probe | S::Permanent | S::Noarp
    );
    let entry = Entry {
        mac: mac.filter(|mac| valid && *mac != [0; 6]),
        idle: state == S::Stale,
    };
    Some(((message.header.ifindex, addr?), entry))
}

/// Reads the limits. They are settings of the whole host and absent in other network namespaces than the first one.
#[must_use]
pub fn limits() -> NeighborLimits {
    let read = |family: &str| {
        let path = format!("/proc/sys/net/{family}/neigh/default/gc_thresh3");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    NeighborLimits {
        v4: read("ipv4"),
        v6: read("ipv6"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn message(state: NeighbourState, mac: Option<&[u8]>) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 2;
        message.header.state = state;
        message
            .attributes
            .push(NeighbourAttribute::Destination(NeighbourAddress::Inet(
                Ipv4Addr::new(192, 0, 2, 7),
            )));
        if let Some(mac) = mac {
            message
                .attributes
                .push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        }
        message
    }

    fn entry(state: NeighbourState, mac: Option<&[u8]>) -> Entry {
        let (key, entry) = parse(&message(state, mac)).unwrap();
        assert_eq!(key, (2, Ipv4Addr::new(192, 0, 2, 7).into()));
        entry
    }

    #[test]
    fn an_entry_has_a_mac_address_in_the_states_in_which_the_kernel_sends() {
        use NeighbourState as S;
        for state in [S::Reachable, S::Stale, S::Delay, S::Probe, S::Permanent, S::Noarp] {
            assert_eq!(entry(state, Some(&MAC)).mac, Some(MAC), "{state:?}");
        }
        for state in [S::Incomplete, S::Failed, S::None, S::Other(3)] {
            assert_eq!(entry(state, Some(&MAC)).mac, None, "{state:?}");
        }
        assert_eq!(entry(S::Reachable, None).mac, None);
        assert_eq!(entry(S::Reachable, Some(&[1; 20])).mac, None, "InfiniBand");
        assert_eq!(entry(S::Noarp, Some(&[0; 6])).mac, None);
    }

    #[test]
    fn permanent_entries_and_unresolved_ones_are_not_idle() {
        use NeighbourState as S;
        assert!(entry(S::Stale, Some(&MAC)).idle);
        for state in [
            S::Failed,
            S::None,
            S::Reachable,
            S::Delay,
            S::Probe,
            S::Permanent,
            S::Noarp,
            S::Incomplete,
            S::Other(0x90),
        ] {
            assert!(!entry(state, Some(&MAC)).idle, "{state:?}");
        }
    }

    #[test]
    fn an_entry_without_an_address_is_of_another_table() {
        assert_eq!(parse(&NeighbourMessage::default()), None);
    }
}
