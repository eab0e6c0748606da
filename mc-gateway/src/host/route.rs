//! The agent's routes into `mc0`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{HostError, is_missing, netlink};
use crate::resolved::RouteKey;

/// Routing protocol of the agent's routes (`ip route show proto 109`).
pub const PROTOCOL: u8 = 109;

/// Metrics of the IPv4 routes, the preferred one first. The default metric is 0.
const V4_METRICS: [u32; 2] = [0, 1];

/// Metrics of the IPv6 routes. The default metric is 1024 (`IP6_RT_PRIO_USER`).
const V6_METRICS: [u32; 2] = [1023, 1024];

/// Routes of the main table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// The agent's routes into the device, each with its source address.
    pub ours: BTreeMap<RouteKey, Option<IpAddr>>,
    /// Foreign routes with a metric of the agent's, each with protocol and device.
    pub foreign: BTreeMap<IpNet, String>,
    /// Destinations of all foreign routes.
    pub foreign_destinations: BTreeSet<IpNet>,
    /// Foreign routes without a gateway, each with the index of its device.
    pub connected: BTreeSet<(IpNet, u32)>,
}

/// Reads the main table of both families. `ifindex` is the index of `mc0`, 0 if missing.
pub async fn observe(handle: &Handle, ifindex: u32) -> Result<Routes, HostError> {
    let mut routes = Routes::default();
    for all in [
        RouteMessageBuilder::<Ipv4Addr>::new().build(),
        RouteMessageBuilder::<Ipv6Addr>::new().build(),
    ] {
        let mut messages = handle.route().get(all).execute();
        while let Some(message) = messages.try_next().await.map_err(netlink("list routes"))? {
            let Some(listed) = parse(&message) else {
                continue;
            };
            let ours = message.header.protocol == RouteProtocol::Other(PROTOCOL);
            let key = listed.key();
            if !ours {
                routes.foreign_destinations.insert(listed.net);
                let device = listed.oif.filter(|_| !listed.has_gateway);
                routes.connected.extend(device.map(|index| (listed.net, index)));
            }
            let Some(key) = key else { continue };
            if ours && listed.oif == Some(ifindex) {
                routes.ours.insert(key, listed.source);
            } else if !ours {
                let owner = format!(
                    "{:?}, device index {}",
                    message.header.protocol,
                    listed.oif.unwrap_or_default()
                );
                routes.foreign.insert(key.net, owner);
            }
        }
    }
    Ok(routes)
}

/// A parsed route of the main table.
#[derive(Debug, PartialEq, Eq)]
struct ParsedRoute {
    net: IpNet,
    metric: u32,
    source: Option<IpAddr>,
    oif: Option<u32>,
    has_gateway: bool,
}

impl ParsedRoute {
    /// The route of the agent with this metric, if any.
    fn key(&self) -> Option<RouteKey> {
        let [preferred, other] = metrics(self.net);
        [preferred, other].contains(&self.metric).then_some(RouteKey {
            net: self.net,
            preferred: self.metric == preferred,
        })
    }
}

const fn metrics(net: IpNet) -> [u32; 2] {
    match net {
        IpNet::V4(_) => V4_METRICS,
        IpNet::V6(_) => V6_METRICS,
    }
}

/// Parses a route of the main table. Path MTUs and redirects that the kernel has learned are listed as well, but are no
/// routes.
fn parse(message: &RouteMessage) -> Option<ParsedRoute> {
    let header = &message.header;
    if header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut destination = match header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let mut oif = None;
    let mut source = None;
    let mut table = u32::from(header.table);
    let mut metric = 0;
    let mut has_gateway = false;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(addr)) => destination = (*addr).into(),
            RouteAttribute::Destination(RouteAddress::Inet6(addr)) => destination = (*addr).into(),
            RouteAttribute::PrefSource(RouteAddress::Inet(addr)) => source = Some((*addr).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(addr)) => source = Some((*addr).into()),
            RouteAttribute::Oif(index) => oif = Some(*index),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => has_gateway = true,
            _ => {}
        }
    }
    let net = IpNet::new(destination, header.destination_prefix_length).ok()?;
    (table == u32::from(RouteHeader::RT_TABLE_MAIN)).then_some(ParsedRoute {
        net: net.trunc(),
        metric,
        source,
        oif,
        has_gateway,
    })
}

fn message(key: RouteKey, source: Option<IpAddr>, ifindex: u32) -> RouteMessage {
    let len = key.net.prefix_len();
    let mut message = match key.net.network() {
        IpAddr::V4(addr) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(addr, len)
            .scope(RouteScope::Link)
            .output_interface(ifindex)
            .build(),
        IpAddr::V6(addr) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(addr, len)
            .output_interface(ifindex)
            .build(),
    };
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    let [preferred, other] = metrics(key.net);
    let metric = if key.preferred { preferred } else { other };
    message.attributes.push(RouteAttribute::Priority(metric));
    message.attributes.extend(source.map(|addr| {
        RouteAttribute::PrefSource(match addr {
            IpAddr::V4(addr) => RouteAddress::Inet(addr),
            IpAddr::V6(addr) => RouteAddress::Inet6(addr),
        })
    }));
    message
}

/// Adds or replaces the route of `key` into the device; `source` is the default source address.
pub async fn set(
    handle: &Handle,
    key: RouteKey,
    source: Option<IpAddr>,
    ifindex: u32,
) -> Result<(), HostError> {
    handle
        .route()
        .add(message(key, source, ifindex))
        .replace()
        .execute()
        .await
        .map_err(netlink(format!("set route {}", key.net)))
}

/// Removes the route of `key`, if present.
pub async fn delete(handle: &Handle, key: RouteKey, ifindex: u32) -> Result<(), HostError> {
    match handle.route().del(message(key, None, ifindex)).execute().await {
        Err(error) if !is_missing(&error) => Err(netlink(format!("delete route {}", key.net))(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(net: &str, preferred: bool) -> RouteKey {
        let net = net.parse().unwrap();
        RouteKey { net, preferred }
    }

    #[test]
    fn routes_of_both_families_are_parsed() {
        for (net, source) in [
            ("10.2.0.0/16", "10.1.1.1"),
            ("fd00:2::/48", "fd00:1::1"),
            ("fd00:2::7/128", "fd00:1::1"),
        ] {
            for (preferred, source) in [(false, None), (true, Some(source.parse().unwrap())), (true, None)] {
                let key = key(net, preferred);
                let mut listed = message(key, source, 7);
                // The kernel lists no metric where it is 0.
                let metric = RouteAttribute::Priority(0);
                listed.attributes.retain(|attribute| *attribute != metric);
                let parsed = parse(&listed).unwrap();
                assert_eq!(
                    (parsed.key(), parsed.source, parsed.oif),
                    (Some(key), source, Some(7))
                );
            }
        }
    }

    #[test]
    fn a_route_of_another_metric_does_not_collide() {
        for (net, metric) in [("10.2.0.0/16", 100), ("fd00:2::/48", 256), ("fd00:2::/48", 0)] {
            let mut listed = message(key(net, false), None, 7);
            listed.attributes.pop();
            listed.attributes.push(RouteAttribute::Priority(metric));
            let parsed = parse(&listed).unwrap();
            assert_eq!(parsed.net.to_string(), net);
            assert_eq!(parsed.key(), None, "{net} {metric}");
        }
    }

    #[test]
    fn a_learned_path_mtu_is_no_route() {
        let mut listed = message(key("10.2.0.7/32", true), None, 7);
        assert!(parse(&listed).is_some());
        listed.header.flags |= RouteFlags::Cloned;
        assert_eq!(parse(&listed), None);
    }

    #[test]
    fn routes_of_other_tables_are_ignored() {
        let mut listed = message(key("10.2.0.0/16", true), None, 7);
        listed.header.table = 255;
        assert_eq!(parse(&listed), None);
    }
}
