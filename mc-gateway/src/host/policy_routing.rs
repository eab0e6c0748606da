//! Policy routing of replies from clusters with Antrea gateways.
//!
//! After this host has restored the addresses of the clients, such replies are sent through the tunnel to the client's
//! Node, as all packets from other clusters are. On the CNI's route, strict reverse-path filtering of that Node would
//! drop them.
//!
//! A rule selects the agent's table for packets from such a cluster that arrive on `mc0`. The table routes everything
//! into `mc0` except packets to this Node's Pods. Aliases of Antrea gateways stay with the main table: their
//! connections belong to the service proxy of this host.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt as _;
use ipnet::Ipv4Net;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use rustix::io::Errno;
use tracing::debug;

use super::link::{self, LINK_GROUP};
use super::route::PROTOCOL;
use super::{HostError, is_missing, netlink};
use crate::resolved::ReturnRoutes;

/// Number of the routing table: that of the link group.
pub(super) const TABLE: u32 = LINK_GROUP;
/// Priority of the rules that select the table.
const TUNNEL_PRIORITY: u32 = 10_901;
/// Priority of the rules that bypass it.
const BYPASS_PRIORITY: u32 = 10_900;

/// The rules by priority and source.
fn rules(wanted: &ReturnRoutes) -> BTreeSet<(u32, Ipv4Net)> {
    let bypass = wanted
        .aliases
        .iter()
        .map(|alias| (BYPASS_PRIORITY, Ipv4Net::from(*alias)));
    let tunnel = wanted.prefixes.iter().map(|net| (TUNNEL_PRIORITY, *net));
    bypass.chain(tunnel).collect()
}

/// The routes by prefix, and whether each has `mc0` as output device.
fn routes(wanted: &ReturnRoutes) -> BTreeSet<(Ipv4Net, bool)> {
    let default = wanted.default_route.then(|| (Ipv4Net::default(), true));
    wanted
        .local_prefixes
        .iter()
        .map(|net| (*net, false))
        .chain(default)
        .collect()
}

fn add_rule(found: &mut ReturnRoutes, (priority, net): (u32, Ipv4Net)) {
    if priority == BYPASS_PRIORITY {
        found.aliases.insert(net.addr());
    } else {
        found.prefixes.insert(net);
    }
}

fn add_route(found: &mut ReturnRoutes, (net, tunnel): (Ipv4Net, bool)) {
    if tunnel {
        found.default_route = true;
    } else {
        found.local_prefixes.insert(net);
    }
}

/// Observes rules and routes. `ifindex` is the index of `mc0`, 0 if missing.
pub async fn observe(handle: &Handle, device: &str, ifindex: u32) -> Result<ReturnRoutes, HostError> {
    let mut found = ReturnRoutes::default();
    let mut messages = handle.rule().get(IpVersion::V4).execute();
    while let Some(message) = messages.try_next().await.map_err(netlink("list rules"))? {
        if let Some(listed) = parse_rule(&message, device) {
            add_rule(&mut found, listed);
        }
    }
    let all = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let mut messages = handle.route().get(all).execute();
    while let Some(message) = messages.try_next().await.map_err(netlink("list routes"))? {
        if let Some(listed) = parse_route(&message, ifindex) {
            add_route(&mut found, listed);
        }
    }
    Ok(found)
}

/// Replaces `from` by `to`. On failure the changes made are reverted as far as possible.
pub async fn replace(
    handle: &Handle,
    device: &str,
    ifindex: u32,
    from: &ReturnRoutes,
    to: &ReturnRoutes,
) -> Result<(), HostError> {
    let result = apply_diff(handle, device, ifindex, from, to).await;
    if result.is_err()
        && let Err(error) = apply_diff(handle, device, ifindex, to, from).await
    {
        // The first error is returned.
        debug!(%error, "return routes not reverted");
    }
    result
}

/// Removes all rules and routes.
pub async fn remove(handle: &Handle, device: &str) -> Result<(), HostError> {
    let found = observe(handle, device, 0).await?;
    apply_diff(handle, device, 0, &found, &ReturnRoutes::default()).await
}

async fn apply_diff(
    handle: &Handle,
    device: &str,
    ifindex: u32,
    from: &ReturnRoutes,
    to: &ReturnRoutes,
) -> Result<(), HostError> {
    if to.default_route {
        link::set_loose_rp_filter(handle, device, ifindex).await?;
    }
    // Routes are added before the rules that select them, and exceptions before the rules they bypass.
    for route in routes(to).difference(&routes(from)) {
        let message = route_message(*route, ifindex);
        let added = handle.route().add(message).replace().execute().await;
        added.map_err(netlink(format!("add route {} of table {TABLE}", route.0)))?;
    }
    for rule in rules(to).difference(&rules(from)) {
        let mut request = handle.rule().add();
        *request.message_mut() = rule_message(*rule, device);
        match request.execute().await {
            Err(error) if !already_exists(&error) => {
                return Err(netlink(format!("add rule for {}", rule.1))(error));
            }
            _ => {}
        }
    }
    // Removal in reverse order.
    let removed: BTreeSet<_> = rules(from).difference(&rules(to)).copied().collect();
    for rule in removed.iter().rev() {
        match handle.rule().del(rule_message(*rule, device)).execute().await {
            Err(error) if !is_missing(&error) => {
                return Err(netlink(format!("delete rule for {}", rule.1))(error));
            }
            _ => {}
        }
    }
    for route in routes(from).difference(&routes(to)) {
        match handle.route().del(route_message(*route, ifindex)).execute().await {
            Err(error) if !is_missing(&error) => {
                return Err(netlink(format!("delete route {} of table {TABLE}", route.0))(
                    error,
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn already_exists(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else {
        return false;
    };
    message.raw_code().saturating_neg() == Errno::EXIST.raw_os_error()
}

fn rule_message((priority, net): (u32, Ipv4Net), device: &str) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.src_len = net.prefix_len();
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Source(net.network().into()),
        RuleAttribute::Iifname(device.to_owned()),
        RuleAttribute::Priority(priority),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    if priority == BYPASS_PRIORITY {
        message.header.table = RouteHeader::RT_TABLE_MAIN;
    } else {
        message.attributes.push(RuleAttribute::Table(TABLE));
    }
    message
}

/// Parses a rule of the agent.
fn parse_rule(message: &RuleMessage, device: &str) -> Option<(u32, Ipv4Net)> {
    let mut source = None;
    let mut priority = 0;
    let (mut ours, mut here) = (false, false);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Source(IpAddr::V4(addr)) => source = Some(*addr),
            RuleAttribute::Iifname(name) => here = name == device,
            RuleAttribute::Priority(number) => priority = *number,
            RuleAttribute::Protocol(protocol) => ours = *protocol == RouteProtocol::Other(PROTOCOL),
            _ => {}
        }
    }
    let matches = ours && here && [BYPASS_PRIORITY, TUNNEL_PRIORITY].contains(&priority);
    let net = Ipv4Net::new(source.filter(|_| matches)?, message.header.src_len).ok()?;
    Some((priority, net))
}

fn route_message((net, tunnel): (Ipv4Net, bool), ifindex: u32) -> RouteMessage {
    let builder = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(net.network(), net.prefix_len())
        .table_id(TABLE);
    let mut message = if tunnel {
        builder.scope(RouteScope::Link).output_interface(ifindex).build()
    } else {
        builder.kind(RouteType::Throw).build()
    };
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message
}

/// Parses a route of the agent; one with another output device is foreign.
fn parse_route(message: &RouteMessage, ifindex: u32) -> Option<(Ipv4Net, bool)> {
    let header = &message.header;
    let mut destination = Ipv4Addr::UNSPECIFIED;
    let mut table = u32::from(header.table);
    let mut oif = 0;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(addr)) => destination = *addr,
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Oif(index) => oif = *index,
            _ => {}
        }
    }
    if table != TABLE || header.protocol != RouteProtocol::Other(PROTOCOL) {
        return None;
    }
    let net = Ipv4Net::new(destination, header.destination_prefix_length).ok()?;
    match header.kind {
        RouteType::Throw => Some((net, false)),
        RouteType::Unicast if net == Ipv4Net::default() && oif == ifindex => Some((net, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::AntreaInterop;

    fn nets<T: std::str::FromStr<Err: std::fmt::Debug> + Ord, const N: usize>(
        texts: [&str; N],
    ) -> BTreeSet<T> {
        texts.map(|text| text.parse().unwrap()).into()
    }

    fn way_back() -> ReturnRoutes {
        ReturnRoutes::new(&AntreaInterop {
            prefixes: nets(["10.96.0.0/16", "10.2.0.0/16", "fd00:2::/48"]),
            aliases: nets(["10.96.0.0"]),
            source: Some([192, 0, 2, 1].into()),
            local_prefixes: nets(["10.1.1.0/24", "fd00:1::/64"]),
        })
    }

    #[test]
    fn written_rules_and_routes_are_parsed() {
        let written = way_back();
        let mut found = ReturnRoutes::default();
        for rule in rules(&written) {
            let message = rule_message(rule, "mc0");
            assert_eq!(parse_rule(&message, "mc1"), None, "another device's");
            add_rule(&mut found, parse_rule(&message, "mc0").unwrap());
        }
        for route in routes(&written) {
            add_route(&mut found, parse_route(&route_message(route, 7), 7).unwrap());
        }
        assert_eq!(found, written);
        assert_eq!((rules(&found).len(), routes(&found).len()), (3, 2));
        let all = (Ipv4Net::default(), true);
        assert_eq!(parse_route(&route_message(all, 7), 8), None, "mc0 was recreated");
    }

    #[test]
    fn foreign_rules_and_routes_are_ignored() {
        let mut rule = rule_message((TUNNEL_PRIORITY, Ipv4Net::default()), "mc0");
        rule.attributes
            .retain(|attribute| !matches!(attribute, RuleAttribute::Protocol(_)));
        assert_eq!(parse_rule(&rule, "mc0"), None);
        let mut route = route_message((Ipv4Net::default(), true), 7);
        route.header.protocol = RouteProtocol::Static;
        assert_eq!(parse_route(&route, 7), None);
    }

    #[test]
    fn no_antrea_cluster_has_no_rules_or_routes() {
        assert_eq!(
            ReturnRoutes::new(&AntreaInterop::default()),
            ReturnRoutes::default()
        );
        assert!(rules(&ReturnRoutes::default()).is_empty() && routes(&ReturnRoutes::default()).is_empty());
    }
}
