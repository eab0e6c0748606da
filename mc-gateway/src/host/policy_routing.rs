//! The way replies of clusters with Antrea gateways take, once this host has given them their clients' addresses
//! back: through the tunnel to the client's Node, as all that comes from other clusters does, instead of the
//! CNI's way, on which strict reverse-path filtering of that Node would drop them.
//!
//! `ip rule` leads what comes in through `mc0` from such a cluster to a table of our own, in which everything
//! goes out of `mc0` again but what is for this Node's Pods. What stands for clients of Antrea gateways stays
//! with the main table: those connections are the service proxy's of this host.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt as _;
use ipnet::{IpNet, Ipv4Net};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use tracing::debug;

use super::link::{self, LINK_GROUP};
use super::route::PROTOCOL;
use super::{HostError, is_missing, netlink};
use crate::desired::AntreaInterop;

/// Number of our table: that of our link group, which nobody else has either.
const TABLE: u32 = LINK_GROUP;
/// Priority of the rules that lead there.
const TUNNEL_PRIORITY: u32 = 10_901;
/// Priority of those that lead past it.
const BYPASS_PRIORITY: u32 = 10_900;

/// Rules and routes; by default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReturnRoutes {
    /// Where replies come from.
    pub prefixes: BTreeSet<Ipv4Net>,
    /// What is in these ranges and no reply.
    pub aliases: BTreeSet<Ipv4Addr>,
    /// This Node's own Pods.
    pub local_prefixes: BTreeSet<Ipv4Net>,
    /// Whether all else goes out of `mc0`.
    pub default_route: bool,
}

impl ReturnRoutes {
    /// What a gateway needs that serves such clusters.
    #[must_use]
    pub fn new(antrea: &AntreaInterop) -> Self {
        if antrea.source.is_none() || antrea.prefixes.is_empty() {
            return Self::default();
        }
        let v4 = |nets: &BTreeSet<IpNet>| {
            nets.iter()
                .filter_map(|net| match net {
                    IpNet::V4(net) => Some(*net),
                    IpNet::V6(_) => None,
                })
                .collect()
        };
        Self {
            prefixes: v4(&antrea.prefixes),
            aliases: antrea.aliases.clone(),
            local_prefixes: v4(&antrea.local_prefixes),
            default_route: true,
        }
    }

    fn rules(&self) -> BTreeSet<(u32, Ipv4Net)> {
        let past = self
            .aliases
            .iter()
            .map(|alias| (BYPASS_PRIORITY, Ipv4Net::from(*alias)));
        past.chain(self.prefixes.iter().map(|net| (TUNNEL_PRIORITY, *net)))
            .collect()
    }

    /// The routes by prefix, and whether each leads out of `mc0`.
    fn routes(&self) -> BTreeSet<(Ipv4Net, bool)> {
        let all = self.default_route.then(|| (Ipv4Net::default(), true));
        self.local_prefixes
            .iter()
            .map(|net| (*net, false))
            .chain(all)
            .collect()
    }

    fn add_rule(&mut self, (priority, net): (u32, Ipv4Net)) {
        if priority == BYPASS_PRIORITY {
            self.aliases.insert(net.addr());
        } else {
            self.prefixes.insert(net);
        }
    }

    fn add_route(&mut self, (net, tunnel): (Ipv4Net, bool)) {
        if tunnel {
            self.default_route = true;
        } else {
            self.local_prefixes.insert(net);
        }
    }
}

/// What is there. `ifindex` is the index of `mc0`, 0 while there is none.
pub async fn observe(handle: &Handle, device: &str, ifindex: u32) -> Result<ReturnRoutes, HostError> {
    let mut found = ReturnRoutes::default();
    let mut rules = handle.rule().get(IpVersion::V4).execute();
    while let Some(message) = rules.try_next().await.map_err(netlink("list rules"))? {
        if let Some(listed) = parse_rule(&message, device) {
            found.add_rule(listed);
        }
    }
    let all = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let mut routes = handle.route().get(all).execute();
    while let Some(message) = routes.try_next().await.map_err(netlink("list routes"))? {
        if let Some(listed) = parse_route(&message, ifindex) {
            found.add_route(listed);
        }
    }
    Ok(found)
}

/// Makes `to` of `from`. When that fails, what was done is taken back as far as possible.
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
        // The first error is the one to be told.
        debug!(%error, "not taken back");
    }
    result
}

/// Removes all of it.
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
    // Routes exist before a rule leads to them, and an exception before what it is one of.
    for route in to.routes().difference(&from.routes()) {
        let message = route_message(*route, ifindex);
        let added = handle.route().add(message).replace().execute().await;
        added.map_err(netlink(format!("add route {} of table {TABLE}", route.0)))?;
    }
    for rule in to.rules().difference(&from.rules()) {
        let mut request = handle.rule().add();
        *request.message_mut() = rule_message(*rule, device);
        match request.execute().await {
            Err(error) if !already_exists(&error) => {
                return Err(netlink(format!("add rule for {}", rule.1))(error));
            }
            _ => {}
        }
    }
    // In the reverse order.
    let gone: BTreeSet<_> = from.rules().difference(&to.rules()).copied().collect();
    for rule in gone.iter().rev() {
        match handle.rule().del(rule_message(*rule, device)).execute().await {
            Err(error) if !is_missing(&error) => {
                return Err(netlink(format!("delete rule for {}", rule.1))(error));
            }
            _ => {}
        }
    }
    for route in from.routes().difference(&to.routes()) {
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
    message.raw_code().saturating_neg() == libc::EEXIST
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

/// One of our rules.
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
    let known = ours && here && [BYPASS_PRIORITY, TUNNEL_PRIORITY].contains(&priority);
    let net = Ipv4Net::new(source.filter(|_| known)?, message.header.src_len).ok()?;
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

/// One of our routes; one out of another device is none.
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
    fn what_was_written_is_known_again() {
        let written = way_back();
        let mut found = ReturnRoutes::default();
        for rule in written.rules() {
            let message = rule_message(rule, "mc0");
            assert_eq!(parse_rule(&message, "mc1"), None, "another device's");
            found.add_rule(parse_rule(&message, "mc0").unwrap());
        }
        for route in written.routes() {
            found.add_route(parse_route(&route_message(route, 7), 7).unwrap());
        }
        assert_eq!(found, written);
        assert_eq!((found.rules().len(), found.routes().len()), (3, 2));
        let all = (Ipv4Net::default(), true);
        assert_eq!(parse_route(&route_message(all, 7), 8), None, "mc0 was made anew");
    }

    #[test]
    fn other_peoples_rules_and_routes_are_left_alone() {
        let mut rule = rule_message((TUNNEL_PRIORITY, Ipv4Net::default()), "mc0");
        rule.attributes
            .retain(|attribute| !matches!(attribute, RuleAttribute::Protocol(_)));
        assert_eq!(parse_rule(&rule, "mc0"), None);
        let mut route = route_message((Ipv4Net::default(), true), 7);
        route.header.protocol = RouteProtocol::Static;
        assert_eq!(parse_route(&route, 7), None);
    }

    #[test]
    fn without_such_a_cluster_there_is_nothing() {
        assert_eq!(
            ReturnRoutes::new(&AntreaInterop::default()),
            ReturnRoutes::default()
        );
        assert!(ReturnRoutes::default().rules().is_empty() && ReturnRoutes::default().routes().is_empty());
    }
}
