//! How the host reaches the other nodes: asked of the kernel, never decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{HostError, is_missing, netlink, to_io};
use crate::cidr::max_prefix_len;
use crate::resolved::{Underlay, UnderlayRoute};

#[derive(Clone, Debug)]
struct LinkInfo {
    name: String,
    mtu: u32,
    up: bool,
}

/// Looks up the path to each of `addresses`; paths through the device `mc0` do not count.
pub async fn observe(
    handle: &Handle,
    addresses: &BTreeSet<IpAddr>,
    mc0: &str,
) -> Result<Underlay, HostError> {
    let links = links(handle).await?;
    let mut underlay = own_addresses(handle, &links, mc0).await?;
    for addr in addresses {
        match route_to(handle, *addr, &links, mc0).await? {
            Ok(path) => {
                underlay.routes.insert(*addr, path);
            }
            Err(why) => {
                underlay.unreachable.insert(*addr, why);
            }
        }
    }
    Ok(underlay)
}

async fn links(handle: &Handle) -> Result<BTreeMap<u32, LinkInfo>, HostError> {
    let mut messages = handle.link().get().execute();
    let mut links = BTreeMap::new();
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        let mut link = LinkInfo {
            name: String::new(),
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                _ => {}
            }
        }
        links.insert(message.header.index, link);
    }
    Ok(links)
}

/// The addresses of this host, without any paths.
async fn own_addresses(
    handle: &Handle,
    links: &BTreeMap<u32, LinkInfo>,
    mc0: &str,
) -> Result<Underlay, HostError> {
    let mut messages = handle.address().get().execute();
    let mut underlay = Underlay::default();
    while let Some(message) = messages.try_next().await.map_err(netlink("list addresses"))? {
        let index = message.header.index;
        let Some(link) = links.get(&index) else { continue };
        if let Some((addr, tentative)) = own_address(&message) {
            if link.name == mc0 {
                // The kernel's own are of the link only.
                if message.header.prefix_len == max_prefix_len(addr) {
                    underlay.mc0_addrs.insert(addr);
                }
                continue;
            }
            underlay.local_addrs.insert(addr, (index, link.name.clone()));
            if tentative {
                underlay.tentative.insert(addr);
            }
        }
    }
    Ok(underlay)
}

/// The address this host has by `message`, if it can be used, and whether that is not certain yet.
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
    // Somebody else on the link has it as well (RFC 4862 section 5.4.5): nothing sent to it is for us.
    if flags & AddressFlags::Dadfailed.bits() != 0 {
        return None;
    }
    let tentative = flags & AddressFlags::Tentative.bits() != 0;
    // On a point-to-point link IFA_ADDRESS is the other end's; otherwise IPv6 has only that one.
    let addr = local.or(address.filter(IpAddr::is_ipv6))?;
    Some((addr, tentative))
}

/// The path to `addr`, or why there is none.
async fn route_to(
    handle: &Handle,
    addr: IpAddr,
    links: &BTreeMap<u32, LinkInfo>,
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

/// Whether the route to `addr` leads over several routers. What a look-up answers is one of them; the route
/// itself has to be asked for (`RTM_F_FIB_MATCH`, Linux 4.4). Where it is not to be had, it is one.
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
    links: &BTreeMap<u32, LinkInfo>,
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
        .ok_or("has a route through a device that just vanished")?;
    if link.name == mc0 {
        return Err(format!(
            "has a route through {mc0} itself, which would send packets in circles"
        ));
    }
    if !link.up {
        return Err(format!("has a route through {}, which is down", link.name));
    }
    Ok(UnderlayRoute {
        ifindex,
        device: link.name.clone(),
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

    fn links() -> BTreeMap<u32, LinkInfo> {
        let link = |name: &str, up| LinkInfo {
            name: name.into(),
            mtu: 1500,
            up,
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
    fn the_route_says_device_source_and_mtu() {
        let path = parse_route(PEER, &route(RouteType::Unicast, 2), &links(), "mc0").unwrap();
        assert_eq!((path.ifindex, path.device.as_str(), path.mtu), (2, "eth0", 1400));
        assert_eq!(path.source, IpAddr::from([192, 0, 2, 1]));
    }

    #[test]
    fn packets_go_to_the_router_or_to_the_address_itself() {
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
    fn several_routers_are_a_choice() {
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
    fn paths_that_would_not_work_are_refused() {
        let refused = |kind, oif| parse_route(PEER, &route(kind, oif), &links(), "mc0").unwrap_err();
        assert!(refused(RouteType::Unicast, 3).contains("in circles"));
        assert!(refused(RouteType::Unicast, 4).contains("down"));
        assert!(refused(RouteType::Unicast, 9).contains("vanished"));
        assert!(refused(RouteType::Local, 2).contains("this host"));
        assert!(refused(RouteType::BlackHole, 2).contains("BlackHole"));
    }
}
