//! The part of the host's network that the data path depends on: changes of the rest need no reconcile. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use tokio::sync::watch;

use super::state::HostState;
use super::{link, neighbors, pod_links, policy_routing, route, tunnel_device};
use crate::cidr::max_prefix_len;
use crate::resolved::{NeighborKey, Neighbors};
use crate::shared_set::SharedSet;

/// A change of the host's network, by the observations that it outdates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    /// None.
    Unrelated,
    /// Neighbors on paths to other nodes.
    Neighbors,
    /// The agent's own state, or foreign routes next to it.
    State,
    /// Paths to other nodes as well.
    Paths,
}

/// Devices, addresses and prefixes that the data path depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Name of `mc0`.
    pub device: String,
    /// Indexes of `mc0` and of the underlay devices.
    pub devices: BTreeSet<u32>,
    /// All devices count: an address of another node has no path yet.
    pub all_devices: bool,
    /// Underlay addresses of other nodes.
    pub addresses: BTreeSet<IpAddr>,
    /// Prefixes routed into `mc0`.
    pub prefixes: SharedSet<IpNet>,
    /// Neighbors on the paths to other nodes.
    pub neighbors: Neighbors,
    /// Devices of Pods and routes to them count.
    pub pod_links: bool,
}

impl Watched {
    /// Adds the devices of an observed host with these addresses of its own, and replaces the neighbors; returns
    /// whether devices or neighbors count that did not before.
    pub fn update(&mut self, host: &HostState, own: &[IpAddr]) -> bool {
        let underlay = &host.inputs.underlay;
        let paths = underlay.routes.values().map(|route| route.ifindex);
        let own = own.iter().filter_map(|addr| underlay.local_addrs.get(addr));
        let device = host.device.map(|device| device.ifindex);
        let before = (self.devices.len(), self.all_devices);
        self.devices
            .extend(paths.chain(own.map(|(index, _)| *index)).chain(device));
        self.all_devices = !underlay.unreachable.is_empty();
        let mut neighbors = underlay.neighbors.keys();
        let more_neighbors = neighbors.any(|key| !self.neighbors.contains_key(key));
        self.neighbors.clone_from(&underlay.neighbors);
        more_neighbors || (self.devices.len(), self.all_devices) > before
    }

    /// Publishes it for the filter of notifications.
    pub fn publish(&self, to: &watch::Sender<Option<Self>>) {
        to.send_if_modified(|published| {
            let changed = published.as_ref() != Some(self);
            if changed {
                *published = Some(self.clone());
            }
            changed
        });
    }

    /// The effect of a change that the kernel notifies.
    pub(super) fn effect(&self, message: &RouteNetlinkMessage) -> Effect {
        use RouteNetlinkMessage as M;
        match message {
            M::NewLink(link) | M::DelLink(link) => self.link(link),
            M::NewAddress(address) | M::DelAddress(address) => self.address(address),
            M::NewRoute(route) | M::DelRoute(route) => self.route(route),
            M::NewQueueDiscipline(tc)
            | M::DelQueueDiscipline(tc)
            | M::NewTrafficFilter(tc)
            | M::DelTrafficFilter(tc) => {
                if self.has_device(tc.header.index.cast_unsigned()) {
                    Effect::State
                } else {
                    Effect::Unrelated
                }
            }
            M::NewNeighbour(message) => neighbors::parse(message)
                .map_or(Effect::Unrelated, |(key, entry)| self.neighbor(key, entry.mac)),
            M::DelNeighbour(message) => {
                neighbors::parse(message).map_or(Effect::Unrelated, |(key, _)| self.neighbor(key, None))
            }
            _ => Effect::Paths,
        }
    }

    fn neighbor(&self, key: NeighborKey, mac: Option<[u8; 6]>) -> Effect {
        match self.neighbors.get(&key) {
            Some(known) if *known != mac => Effect::Neighbors,
            _ => Effect::Unrelated,
        }
    }

    fn has_device(&self, index: u32) -> bool {
        self.all_devices || self.devices.contains(&index)
    }

    fn link(&self, message: &LinkMessage) -> Effect {
        let ours = message.attributes.iter().any(|attribute| match attribute {
            LinkAttribute::IfName(name) => *name == self.device || *name == link::peer_name(&self.device),
            LinkAttribute::Group(group) => *group == link::LINK_GROUP,
            _ => false,
        });
        if ours || self.has_device(message.header.index) || tunnel_device::is_related(message) {
            Effect::Paths
        } else if self.pod_links && pod_links::is_pod_link(message) {
            Effect::State
        } else {
            Effect::Unrelated
        }
    }

    /// The kernel generates an IPv6 link-local address on every new device; no next hop has one.
    fn address(&self, message: &AddressMessage) -> Effect {
        let generated = message.attributes.iter().any(|attribute| {
            matches!(attribute, AddressAttribute::Address(IpAddr::V6(addr)) if addr.is_unicast_link_local())
        });
        if generated && !self.has_device(message.header.index) {
            Effect::Unrelated
        } else {
            Effect::Paths
        }
    }

    fn route(&self, message: &RouteMessage) -> Effect {
        let Some(net) = destination(message) else {
            return Effect::Paths;
        };
        if self
            .addresses
            .range(net.network()..=net.broadcast())
            .next()
            .is_some()
        {
            return Effect::Paths;
        }
        let mut table = u32::from(message.header.table);
        let mut through_device = false;
        let mut is_connected = self.pod_links;
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Table(number) => table = *number,
                RouteAttribute::Oif(index) => through_device |= self.devices.contains(index),
                RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => is_connected = false,
                _ => {}
            }
        }
        let to_pods = is_connected && table == u32::from(RouteHeader::RT_TABLE_MAIN);
        let ours = message.header.protocol == RouteProtocol::Other(route::PROTOCOL);
        if ours || table == policy_routing::TABLE || through_device || to_pods || self.overlaps_prefix(net) {
            Effect::State
        } else {
            Effect::Unrelated
        }
    }

    fn overlaps_prefix(&self, net: IpNet) -> bool {
        let last = IpNet::new_assert(net.broadcast(), max_prefix_len(net.addr()));
        let inside = self.prefixes.range(net..=last).next().is_some();
        let around = |len| IpNet::new(net.addr(), len).is_ok_and(|net| self.prefixes.contains(&net.trunc()));
        inside || (0..net.prefix_len()).any(around)
    }
}

/// Destination of a route; none of an unknown family.
fn destination(message: &RouteMessage) -> Option<IpNet> {
    let mut addr = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(to)) => addr = (*to).into(),
            RouteAttribute::Destination(RouteAddress::Inet6(to)) => addr = (*to).into(),
            _ => {}
        }
    }
    let net = IpNet::new(addr, message.header.destination_prefix_length).ok()?;
    Some(net.trunc())
}

#[cfg(test)]
mod tests {
    use rtnetlink::RouteMessageBuilder;
    use rtnetlink::packet_route::link::{InfoKind, LinkInfo};
    use rtnetlink::packet_route::neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
    };
    use rtnetlink::packet_route::rule::RuleMessage;
    use rtnetlink::packet_route::tc::TcMessage;

    use super::*;

    const MC0: u32 = 5;
    const UNDERLAY: u32 = 2;
    const POD: u32 = 77;
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn watched() -> Watched {
        Watched {
            device: "mc0".to_owned(),
            devices: [MC0, UNDERLAY].into(),
            all_devices: false,
            addresses: ["192.0.2.7", "2001:db8::7"]
                .map(|addr| addr.parse().unwrap())
                .into(),
            prefixes: ["10.2.0.0/16", "fd00:2::/48"]
                .map(|net| net.parse().unwrap())
                .into(),
            neighbors: [((UNDERLAY, "192.0.2.254".parse().unwrap()), Some(MAC))].into(),
            pod_links: false,
        }
    }

    fn link_message(index: u32, attribute: LinkAttribute) -> RouteNetlinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(attribute);
        RouteNetlinkMessage::NewLink(link)
    }

    fn named(index: u32, name: &str) -> RouteNetlinkMessage {
        link_message(index, LinkAttribute::IfName(name.to_owned()))
    }

    fn address(index: u32, addr: &str) -> RouteNetlinkMessage {
        let mut address = AddressMessage::default();
        address.header.index = index;
        address
            .attributes
            .push(AddressAttribute::Address(addr.parse().unwrap()));
        RouteNetlinkMessage::DelAddress(address)
    }

    fn route_message(net: &str, oif: u32) -> RouteMessage {
        let net: IpNet = net.parse().unwrap();
        match net {
            IpNet::V4(net) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(net.addr(), net.prefix_len())
                .output_interface(oif)
                .build(),
            IpNet::V6(net) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(net.addr(), net.prefix_len())
                .output_interface(oif)
                .build(),
        }
    }

    fn route(net: &str, oif: u32) -> Effect {
        watched().effect(&RouteNetlinkMessage::NewRoute(route_message(net, oif)))
    }

    #[test]
    fn devices_of_paths_and_own_addresses_count_from_then_on() {
        let mut watched = Watched::default();
        let mut host = HostState::default();
        assert!(!watched.update(&host, &[]));
        let own = IpAddr::from([192, 0, 2, 1]);
        let underlay = &mut host.inputs.underlay;
        underlay.local_addrs.insert(own, (UNDERLAY, "eth0".to_owned()));
        assert!(!watched.update(&host, &[]), "of no interest");
        assert!(watched.update(&host, &[own]));
        assert!(!watched.update(&host, &[own]));
        let other = IpAddr::from([192, 0, 2, 9]);
        host.inputs
            .underlay
            .unreachable
            .insert(other, "has no route".to_owned());
        assert!(watched.update(&host, &[own]) && watched.all_devices);
        host.inputs = crate::resolved::HostInputs::default();
        assert!(!watched.update(&host, &[own]) && !watched.all_devices);
        assert_eq!(
            watched.devices,
            [UNDERLAY].into(),
            "a device that is down may return"
        );
    }

    fn neighbor(index: u32, addr: [u8; 4], mac: Option<[u8; 6]>) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = index;
        message.header.state = NeighbourState::Stale;
        let to = NeighbourAddress::Inet(addr.into());
        message.attributes.push(NeighbourAttribute::Destination(to));
        let mac = mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        message.attributes.extend(mac);
        message
    }

    #[test]
    fn another_mac_address_of_a_router_matters_and_other_neighbors_do_not() {
        const ROUTER: [u8; 4] = [192, 0, 2, 254];
        let other = Some([2, 0, 0, 0, 0, 2]);
        for (index, addr, mac, effect) in [
            (UNDERLAY, ROUTER, Some(MAC), Effect::Unrelated),
            (UNDERLAY, ROUTER, other, Effect::Neighbors),
            (UNDERLAY, ROUTER, None, Effect::Neighbors),
            (POD, ROUTER, other, Effect::Unrelated),
            (UNDERLAY, [192, 0, 2, 9], other, Effect::Unrelated),
        ] {
            let message = RouteNetlinkMessage::NewNeighbour(neighbor(index, addr, mac));
            assert_eq!(watched().effect(&message), effect, "{message:?}");
        }
        let removed = RouteNetlinkMessage::DelNeighbour(neighbor(UNDERLAY, ROUTER, Some(MAC)));
        assert_eq!(watched().effect(&removed), Effect::Neighbors);
    }

    #[test]
    fn neighbors_of_new_paths_count_from_then_on() {
        let mut watched = Watched::default();
        let mut host = HostState::default();
        let to = IpAddr::from([192, 0, 2, 9]);
        host.inputs.underlay.neighbors.insert((UNDERLAY, to), None);
        assert!(watched.update(&host, &[]));
        assert_eq!(watched.neighbors, [((UNDERLAY, to), None)].into());
        host.inputs.underlay.neighbors.insert((UNDERLAY, to), Some(MAC));
        assert!(!watched.update(&host, &[]));
        assert_eq!(watched.neighbors, [((UNDERLAY, to), Some(MAC))].into());
    }

    #[test]
    fn a_new_pod_changes_nothing() {
        let tc = |index| {
            let mut tc = TcMessage::default();
            tc.header.index = index;
            tc
        };
        for message in [
            named(POD, "veth1234"),
            address(POD, "fe80::1"),
            RouteNetlinkMessage::NewQueueDiscipline(tc(77)),
            RouteNetlinkMessage::NewTrafficFilter(tc(77)),
        ] {
            assert_eq!(watched().effect(&message), Effect::Unrelated, "{message:?}");
        }
        for net in [
            "10.1.0.9/32",
            "192.0.2.8/32",
            "fe80::/64",
            "ff00::/8",
            "fd00:1::9/128",
        ] {
            assert_eq!(route(net, POD), Effect::Unrelated, "{net}");
        }
    }

    #[test]
    fn routes_that_contain_another_node_change_paths() {
        for net in [
            "0.0.0.0/0",
            "192.0.2.0/24",
            "192.0.2.7/32",
            "::/0",
            "2001:db8::/32",
        ] {
            assert_eq!(route(net, POD), Effect::Paths, "{net}");
        }
        let mut ours = route_message("192.0.2.0/24", MC0);
        ours.header.protocol = RouteProtocol::Other(route::PROTOCOL);
        assert_eq!(
            watched().effect(&RouteNetlinkMessage::NewRoute(ours)),
            Effect::Paths,
            "a loop"
        );
    }

    #[test]
    fn routes_near_those_of_the_agent_change_its_state() {
        for net in [
            "10.2.0.0/16",
            "10.2.3.0/24",
            "10.2.3.4/32",
            "10.0.0.0/8",
            "fd00::/16",
            "fd00:2::9/128",
        ] {
            assert_eq!(route(net, POD), Effect::State, "{net}");
        }
        assert_eq!(route("10.9.0.0/16", MC0), Effect::State, "through mc0");
        let mut ours = route_message("10.9.0.0/16", POD);
        ours.header.protocol = RouteProtocol::Other(route::PROTOCOL);
        assert_eq!(
            watched().effect(&RouteNetlinkMessage::DelRoute(ours)),
            Effect::State
        );
        let mut table = route_message("10.9.0.0/16", POD);
        table
            .attributes
            .push(RouteAttribute::Table(policy_routing::TABLE));
        assert_eq!(
            watched().effect(&RouteNetlinkMessage::DelRoute(table)),
            Effect::State
        );
    }

    #[test]
    fn devices_of_the_data_path_matter() {
        for message in [
            named(UNDERLAY, "renamed"),
            named(POD, "mc0"),
            named(POD, "mc0p"),
            link_message(POD, LinkAttribute::Group(link::LINK_GROUP)),
            link_message(
                POD,
                LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vxlan)]),
            ),
            named(POD, "cilium_host"),
            address(POD, "192.0.2.1"),
            address(POD, "2001:db8::1"),
            address(MC0, "fe80::1"),
            RouteNetlinkMessage::DelRule(RuleMessage::default()),
        ] {
            assert_eq!(watched().effect(&message), Effect::Paths, "{message:?}");
        }
        let mut filter = TcMessage::default();
        filter.header.index = 2;
        let message = RouteNetlinkMessage::DelTrafficFilter(filter);
        assert_eq!(watched().effect(&message), Effect::State);
        // A node without a path may get one by any device.
        let incomplete = Watched {
            all_devices: true,
            ..watched()
        };
        assert_eq!(incomplete.effect(&named(POD, "eth9")), Effect::Paths);
    }
}
