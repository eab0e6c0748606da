//! The host's routes to other nodes, as the kernel selects them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{HostError, is_missing, neighbors, netlink, to_io};
use crate::cidr::max_prefix_len;
use crate::resolved::{Neighbors, Underlay, UnderlayRoute};

#[derive(Clone, Debug)]
struct Link {
    name: String,
    address: Option<[u8; 6]>,
    mtu: u32,
    up: bool,
    /// Type of a device whose frames have no Ethernet header.
    without_ethernet: Option<String>,
    bridge: bool,
}

/// Routes to other nodes, and neighbors on them, that are known already.
/// [`HostChange::Paths`](super::changes::HostChange::Paths) outdates them.
#[derive(Debug, Default)]
pub struct KnownPaths {
    routes: BTreeMap<IpAddr, UnderlayRoute>,
    /// Empty while they are unknown.
    neighbors: Neighbors,
}

impl KnownPaths {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.routes.clear();
        self.neighbors.clear();
    }

    /// Forgets the neighbors, which [`HostChange::Neighbors`](super::changes::HostChange::Neighbors) outdates.
    pub fn clear_neighbors(&mut self) {
        self.neighbors.clear();
    }
}

/// Looks up the route to each of `addresses` that is not known; routes through the device `mc0` are invalid.
pub async fn observe(
    handle: &Handle,
    addresses: &BTreeSet<IpAddr>,
    mc0: &str,
    known: &mut KnownPaths,
) -> Result<Underlay, HostError> {
    let links = links(handle).await?;
    let mut underlay = own_addresses(handle, &links, mc0).await?;
    known.routes.retain(|addr, _| addresses.contains(addr));
    underlay.routes.clone_from(&known.routes);
    for addr in addresses.iter().filter(|addr| !known.routes.contains_key(addr)) {
        match route_to(handle, *addr, &links, mc0).await? {
            Ok(path) => {
                underlay.routes.insert(*addr, path);
            }
            Err(why) => {
                underlay.unreachable.insert(*addr, why);
            }
        }
    }
    known.routes.clone_from(&underlay.routes);
    let wanted = underlay.neighbors_on_routes();
    if !known.neighbors.keys().eq(&wanted) {
        (known.neighbors, _) = neighbors::observe(handle, wanted).await?;
    }
    underlay.neighbors.clone_from(&known.neighbors);
    Ok(underlay)
}

async fn links(handle: &Handle) -> Result<BTreeMap<u32, Link>, HostError> {
    let mut messages = handle.link().get().execute();
    let mut links = BTreeMap::new();
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        let mut link = Link {
            name: String::new(),
            address: None,
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            without_ethernet: without_ethernet(message.header.link_layer_type, &message.attributes),
            bridge: kind(&message.attributes) == Some(&InfoKind::Bridge),
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(address) => link.address = address.as_slice().try_into().ok(),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                _ => {}
            }
        }
        links.insert(message.header.index, link);
    }
    Ok(links)
}

/// The type of a device whose frames have no Ethernet header, such as `tun`, `wireguard`, `ipip` and `ppp`. Frames of
/// the loopback device have one.
fn without_ethernet(layer: LinkLayerType, attributes: &[LinkAttribute]) -> Option<String> {
    if matches!(layer, LinkLayerType::Ether | LinkLayerType::Loopback) {
        return None;
    }
    Some(kind(attributes).map_or_else(|| layer.to_string(), ToString::to_string))
}

/// The kind of a device; those of hardware drivers have none.
fn kind(attributes: &[LinkAttribute]) -> Option<&InfoKind> {
    let infos = attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    infos.into_iter().flatten().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    })
}

/// The addresses of this host, without routes.
async fn own_addresses(
    handle: &Handle,
    links: &BTreeMap<u32, Link>,
    mc0: &str,
) -> Result<Underlay, HostError> {
    let mut messages = handle.address().get().execute();
    let types = links
        .iter()
        .filter_map(|(index, link)| Some((*index, link.without_ethernet.clone()?)));
    let mut underlay = Underlay {
        without_ethernet: types.collect(),
        ..Underlay::default()
    };
    while let Some(message) = messages.try_next().await.map_err(netlink("list addresses"))? {
        let index = message.header.index;
        let Some(link) = links.get(&index) else { continue };
        if let Some((addr, tentative)) = own_address(&message) {
            if link.name == mc0 {
                // Addresses generated by the kernel have the prefix length of the link.
                if message.header.prefix_len == max_prefix_len(addr) {
                    underlay.mc0_addrs.insert(addr);
                }
                continue;
            }
            underlay.local_addrs.insert(addr, (index, link.name.clone()));
            if link.bridge {
                underlay.bridge_addrs.insert(addr);
            }
            if tentative {
                underlay.tentative.insert(addr);
            }
        }
    }
    Ok(underlay)
}

/// The usable address in `message`, and whether it is tentative.
fn own_address(message: &AddressMessage) -> Option<(IpAddr, bool)> {
    let mut flags = message.header.flags.bits().into();
    let mut local = None;
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(addr) => local = Some(*addr),
            AddressAttribute::Address(addr) => address = Some(*addr),
            AddressAttribute::Flags(all) => flags = all.bits(),
            _ => {}
        }
    }
    // A duplicate address (RFC 4862 section 5.4.5) is unusable.
    if flags & AddressFlags::Dadfailed.bits() != 0 {
        return None;
    }
    let tentative = flags & AddressFlags::Tentative.bits() != 0;
    // On a point-to-point link IFA_ADDRESS is the peer's address; otherwise IPv6 has only this attribute.
    let addr = local.or(address.filter(IpAddr::is_ipv6))?;
    Some((addr, tentative))
}

/// The route to `addr`, or the reason why there is none.
async fn route_to(
    handle: &Handle,
    addr: IpAddr,
    links: &BTreeMap<u32, Link>,
    mc0: &str,
) -> Result<Result<UnderlayRoute, String>, HostError> {
    let answer = handle.route().get(request(addr)).execute().try_next().await;
    match answer {
        Ok(Some(message)) => {
            let mut path = parse_route(addr, &message, links, mc0);
            if let Ok(found) = &mut path
                && found.neighbor != Some(addr)
                && has_multiple_next_hops(handle, addr).await
            {
                found.neighbor = None;
            }
            Ok(path)
        }
        Ok(None) => Ok(Err("has no route".to_owned())),
        Err(rtnetlink::Error::RequestFailed) => {
            Err(netlink("look up a route")(rtnetlink::Error::RequestFailed))
        }
        Err(error) if is_missing(&error) => Ok(Err("has no route".to_owned())),
        Err(error) => Ok(Err(format!("has no route: {}", to_io(error)))),
    }
}

fn request(addr: IpAddr) -> RouteMessage {
    match addr {
        IpAddr::V4(addr) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(addr, 32)
            .build(),
        IpAddr::V6(addr) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(addr, 128)
            .build(),
    }
}

/// Whether the route to `addr` has several next hops. A lookup returns one of them; only the FIB entry
/// (`RTM_F_FIB_MATCH`, Linux 4.4) has all. Without it, one is assumed.
async fn has_multiple_next_hops(handle: &Handle, addr: IpAddr) -> bool {
    let mut request = request(addr);
    request.header.flags |= RouteFlags::FibMatch;
    let answer = handle.route().get(request).execute().try_next().await;
    answer.is_ok_and(|route| route.is_some_and(|route| is_multipath(&route)))
}

fn is_multipath(route: &RouteMessage) -> bool {
    let several =
        |attribute: &RouteAttribute| matches!(attribute, RouteAttribute::MultiPath(hops) if hops.len() > 1);
    route.attributes.iter().any(several)
}

fn parse_route(
    addr: IpAddr,
    message: &RouteMessage,
    links: &BTreeMap<u32, Link>,
    mc0: &str,
) -> Result<UnderlayRoute, String> {
    if message.header.kind == RouteType::Local {
        return Err("is an address of this host".to_owned());
    }
    if message.header.kind != RouteType::Unicast {
        return Err(format!("has a route of type {:?}", message.header.kind));
    }
    let mut oif = None;
    let mut source = None;
    let mut mtu = None;
    let mut via = Some(addr);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(router))
            | RouteAttribute::Via(RouteVia::Inet(router)) => via = Some((*router).into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(router))
            | RouteAttribute::Via(RouteVia::Inet6(router)) => via = Some((*router).into()),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => via = None,
            RouteAttribute::Oif(index) => oif = Some(*index),
            RouteAttribute::PrefSource(RouteAddress::Inet(addr)) => source = Some((*addr).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(addr)) => source = Some((*addr).into()),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let ifindex = oif.ok_or("has a route without a device")?;
    let link = links
        .get(&ifindex)
        .ok_or("has a route through a removed device")?;
    if link.name == mc0 {
        return Err(format!("has a route through {mc0} itself, a routing loop"));
    }
    if !link.up {
        return Err(format!("has a route through {}, which is down", link.name));
    }
    Ok(UnderlayRoute {
        ifindex,
        device: link.name.clone(),
        link_address: link.address,
        source: source.ok_or("has a route without a source address")?,
        mtu: mtu
            .filter(|mtu| *mtu != 0)
            .map_or(link.mtu, |mtu| mtu.min(link.mtu)),
        neighbor: via,
    })
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::route::RouteNextHop;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));

    fn links() -> BTreeMap<u32, Link> {
        let link = |name: &str, up| Link {
            name: name.into(),
            address: None,
            mtu: 1500,
            up,
            without_ethernet: None,
            bridge: false,
        };
        [
            (2, link("eth0", true)),
            (3, link("mc0", true)),
            (4, link("eth1", false)),
        ]
        .into()
    }

    fn route(kind: RouteType, oif: u32) -> RouteMessage {
        let mut message = RouteMessageBuilder::<Ipv4Addr>::new()
            .output_interface(oif)
            .pref_source([192, 0, 2, 1].into())
            .kind(kind)
            .build();
        message
            .attributes
            .push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400)]));
        message
    }

    #[test]
    fn a_route_has_device_source_and_mtu() {
        let path = parse_route(PEER, &route(RouteType::Unicast, 2), &links(), "mc0").unwrap();
        assert_eq!((path.ifindex, path.device.as_str(), path.mtu), (2, "eth0", 1400));
        assert_eq!(path.source, IpAddr::from([192, 0, 2, 1]));
    }

    #[test]
    fn devices_without_an_ethernet_header_are_named_by_their_type() {
        let kind = |kind| vec![LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])];
        let vlan = kind(InfoKind::Vlan);
        assert_eq!(without_ethernet(LinkLayerType::Ether, &vlan), None);
        assert_eq!(without_ethernet(LinkLayerType::Ether, &[]), None);
        assert_eq!(without_ethernet(LinkLayerType::Loopback, &[]), None);
        for (layer, kind, name) in [
            (LinkLayerType::None, kind(InfoKind::Wireguard), "wireguard"),
            (LinkLayerType::None, kind(InfoKind::Tun), "tun"),
            (LinkLayerType::Tunnel, kind(InfoKind::IpIp), "ipip"),
            (LinkLayerType::Ppp, vec![], "PPP"),
            (LinkLayerType::Infiniband, vec![], "INFINIBAND"),
        ] {
            assert_eq!(without_ethernet(layer, &kind).as_deref(), Some(name));
        }
    }

    #[test]
    fn the_neighbor_is_the_router_or_the_address_itself() {
        let via = |attribute: Option<RouteAttribute>| {
            let mut route = route(RouteType::Unicast, 2);
            route.attributes.extend(attribute);
            parse_route(PEER, &route, &links(), "mc0").unwrap().neighbor
        };
        assert_eq!(via(None), Some(PEER));
        let router: Ipv4Addr = [192, 0, 2, 254].into();
        assert_eq!(
            via(Some(RouteAttribute::Gateway(router.into()))),
            Some(router.into())
        );
        let router: Ipv6Addr = "fe80::1".parse().unwrap();
        assert_eq!(via(Some(RouteAttribute::Via(router.into()))), Some(router.into()));
    }

    #[test]
    fn routes_with_several_routers_are_multipath() {
        let mut route = route(RouteType::Unicast, 2);
        assert!(!is_multipath(&route));
        route
            .attributes
            .push(RouteAttribute::MultiPath(vec![RouteNextHop::default()]));
        assert!(!is_multipath(&route));
        let two = vec![RouteNextHop::default(), RouteNextHop::default()];
        route.attributes.push(RouteAttribute::MultiPath(two));
        assert!(is_multipath(&route));
    }

    #[test]
    fn unusable_routes_are_rejected() {
        let rejected = |kind, oif| parse_route(PEER, &route(kind, oif), &links(), "mc0").unwrap_err();
        assert!(rejected(RouteType::Unicast, 3).contains("loop"));
        assert!(rejected(RouteType::Unicast, 4).contains("down"));
        assert!(rejected(RouteType::Unicast, 9).contains("removed"));
        assert!(rejected(RouteType::Local, 2).contains("this host"));
        assert!(rejected(RouteType::BlackHole, 2).contains("BlackHole"));
    }
}
