//! Our routes into `mc0`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use futures::TryStreamExt as _;
use ipnet::Ipv4Net;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{HostError, is_missing, netlink};

/// Routing protocol number that marks a route as ours (`ip route show proto 109`).
pub const PROTOCOL: u8 = 109;

/// The main table's IPv4 routes, as far as we care.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Ours into the device that was asked for.
    pub ours: BTreeSet<Ipv4Net>,
    /// Somebody else's that would collide with one of ours, and whose they are.
    pub foreign: BTreeMap<Ipv4Net, String>,
}

/// Reads the main table. `ifindex` is the index of `mc0`, 0 while there is none.
pub async fn observe(handle: &Handle, ifindex: u32) -> Result<Routes, HostError> {
    let all = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let mut messages = handle.route().get(all).execute();
    let mut routes = Routes::default();
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
    Ok(routes)
}

/// Prefix and device of a route of the main table with the metric ours have.
fn parse(message: &RouteMessage) -> Option<(Ipv4Net, Option<u32>)> {
    let header = &message.header;
    let mut destination = Ipv4Addr::UNSPECIFIED;
    let mut oif = None;
    let mut table = u32::from(header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(addr)) => destination = *addr,
            RouteAttribute::Oif(index) => oif = Some(*index),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(metric) if *metric != 0 => return None,
            _ => {}
        }
    }
    if header.address_family != super::INET || table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return None;
    }
    let net = Ipv4Net::new(destination, header.destination_prefix_length).ok()?;
    Some((net, oif))
}

fn message(net: Ipv4Net, ifindex: u32) -> RouteMessage {
    RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(net.network(), net.prefix_len())
        .output_interface(ifindex)
        .scope(RouteScope::Link)
        .protocol(RouteProtocol::Other(PROTOCOL))
        .build()
}

/// Routes `net` into the device.
pub async fn add(handle: &Handle, net: Ipv4Net, ifindex: u32) -> Result<(), HostError> {
    handle
        .route()
        .add(message(net, ifindex))
        .execute()
        .await
        .map_err(netlink(format!("add route {net}")))
}

/// Removes our route to `net`, if it is there.
pub async fn delete(handle: &Handle, net: Ipv4Net, ifindex: u32) -> Result<(), HostError> {
    match handle.route().del(message(net, ifindex)).execute().await {
        Err(error) if !is_missing(&error) => Err(netlink(format!("delete route {net}"))(error)),
        _ => Ok(()),
    }
}
