//! Our routes into `mc0`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{HostError, is_missing, netlink};

/// Routing protocol number that marks a route as ours (`ip route show proto 109`).
pub const PROTOCOL: u8 = 109;

/// Metric the kernel gives an IPv6 route that names none (`IP6_RT_PRIO_USER`); IPv4's is 0.
const V6_METRIC: u32 = 1024;

/// The main table's routes, as far as we care.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Ours into the device that was asked for.
    pub ours: BTreeSet<IpNet>,
    /// Somebody else's that would collide with one of ours, and whose they are.
    pub foreign: BTreeMap<IpNet, String>,
}

/// Reads the main table of both families. `ifindex` is the index of `mc0`, 0 while there is none.
pub async fn observe(handle: &Handle, ifindex: u32) -> Result<Routes, HostError> {
    let mut routes = Routes::default();
    for all in [
        RouteMessageBuilder::<Ipv4Addr>::new().build(),
        RouteMessageBuilder::<Ipv6Addr>::new().build(),
    ] {
        let mut messages = handle.route().get(all).execute();
        while let Some(message) = messages.try_next().await.map_err(netlink("list routes"))? {
            let Some((net, oif)) = parse(&message) else {
                continue;
            };
            let ours = message.header.protocol == RouteProtocol::Other(PROTOCOL);
            if ours && oif == Some(ifindex) {
                routes.ours.insert(net);
            } else if !ours {
                let whose = format!(
                    "{:?}, device index {}",
                    message.header.protocol,
                    oif.unwrap_or_default()
                );
                routes.foreign.insert(net, whose);
            }
        }
    }
    Ok(routes)
}

/// Prefix and device of a route of the main table with the metric ours have.
fn parse(message: &RouteMessage) -> Option<(IpNet, Option<u32>)> {
    let header = &message.header;
    let (mut destination, our_metric) = match header.address_family {
        AddressFamily::Inet => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        AddressFamily::Inet6 => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), V6_METRIC),
        _ => return None,
    };
    let mut oif = None;
    let mut table = u32::from(header.table);
    let mut metric = 0;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(addr)) => destination = (*addr).into(),
            RouteAttribute::Destination(RouteAddress::Inet6(addr)) => destination = (*addr).into(),
            RouteAttribute::Oif(index) => oif = Some(*index),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            _ => {}
        }
    }
    if metric != our_metric || table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return None;
    }
    let net = IpNet::new(destination, header.destination_prefix_length).ok()?;
    Some((net, oif))
}

fn message(net: IpNet, ifindex: u32) -> RouteMessage {
    let len = net.prefix_len();
    let mut message = match net.network() {
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
    message
}

/// Routes `net` into the device.
pub async fn add(handle: &Handle, net: IpNet, ifindex: u32) -> Result<(), HostError> {
    handle
        .route()
        .add(message(net, ifindex))
        .execute()
        .await
        .map_err(netlink(format!("add route {net}")))
}

/// Removes our route to `net`, if it is there.
pub async fn delete(handle: &Handle, net: IpNet, ifindex: u32) -> Result<(), HostError> {
    match handle.route().del(message(net, ifindex)).execute().await {
        Err(error) if !is_missing(&error) => Err(netlink(format!("delete route {net}"))(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel lists a route: with its metric.
    fn listed(net: &str, metric: Option<u32>) -> RouteMessage {
        let mut message = message(net.parse().unwrap(), 7);
        message.attributes.extend(metric.map(RouteAttribute::Priority));
        message
    }

    #[test]
    fn routes_of_both_families_are_known_again() {
        for (net, metric) in [
            ("10.2.0.0/16", None),
            ("fd00:2::/48", Some(V6_METRIC)),
            ("fd00:2::7/128", Some(V6_METRIC)),
        ] {
            let parsed = parse(&listed(net, metric));
            assert_eq!(parsed, Some((net.parse().unwrap(), Some(7))), "{net}");
        }
    }

    #[test]
    fn a_route_of_another_metric_does_not_collide() {
        for (net, metric) in [
            ("10.2.0.0/16", Some(100)),
            ("fd00:2::/48", Some(256)),
            ("fd00:2::/48", None),
        ] {
            assert_eq!(parse(&listed(net, metric)), None, "{net} {metric:?}");
        }
    }
}
