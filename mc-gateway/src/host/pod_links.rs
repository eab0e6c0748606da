//! The devices that may lead to Pods: ends of veth pairs whose other end is in another network namespace.

use std::collections::BTreeSet;

use futures::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::Handle;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::{HostError, link, netlink};
use crate::cni::bypasses_pod_devices;
use crate::resolved::{PodLink, PodLinks};

/// The devices, with the foreign routes of the main table that have no gateway.
pub(super) async fn observe(handle: &Handle, routes: BTreeSet<(IpNet, u32)>) -> Result<PodLinks, HostError> {
    let mut messages = handle.link().get().execute();
    let mut found = PodLinks {
        routes,
        ..PodLinks::default()
    };
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        let index = message.header.index;
        found.links.extend(parse(&message).map(|link| (index, link)));
        found
            .bridges
            .extend(bridge_name(&message).map(|name| (index, name)));
        // The first one by name, for a stable text.
        let bypassing = found.bypassed_by.into_iter().chain(bypassing_device(&message));
        found.bypassed_by = bypassing.min();
    }
    Ok(found)
}

/// The name of a device of a CNI that may deliver packets past the devices of Pods.
fn bypassing_device(message: &LinkMessage) -> Option<String> {
    let name = link::name(message).filter(|name| bypasses_pod_devices(name));
    name.map(str::to_owned)
}

/// The name of a bridge.
fn bridge_name(message: &LinkMessage) -> Option<String> {
    let mut attributes = message.attributes.iter();
    let is_bridge = attributes.any(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.contains(&LinkInfo::Kind(InfoKind::Bridge)),
        _ => false,
    });
    link::name(message).filter(|_| is_bridge).map(str::to_owned)
}

/// Whether a device may lead to a Pod.
pub(super) fn is_pod_link(message: &LinkMessage) -> bool {
    parse(message).is_some()
}

fn parse(message: &LinkMessage) -> Option<PodLink> {
    let mut link = PodLink::default();
    let (mut is_veth, mut leads_out) = (false, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Controller(index) => link.bridge = Some(*index),
            LinkAttribute::LinkInfo(infos) => is_veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
            LinkAttribute::LinkNetNsId(_) => leads_out = true,
            _ => {}
        }
    }
    (is_veth && leads_out).then_some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_veth_into_another_namespace_may_lead_to_a_pod() {
        let of = |kind, leads_out: bool| {
            let mut message = LinkMessage::default();
            message.attributes = vec![
                LinkAttribute::IfName("veth7".to_owned()),
                LinkAttribute::Controller(5),
                LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]),
            ];
            if leads_out {
                message.attributes.push(LinkAttribute::LinkNetNsId(0));
            }
            parse(&message)
        };
        let found = PodLink {
            name: "veth7".to_owned(),
            bridge: Some(5),
        };
        assert_eq!(of(InfoKind::Veth, true), Some(found));
        assert_eq!(of(InfoKind::Veth, false), None, "both ends are on the host");
        assert_eq!(of(InfoKind::Vlan, true), None);
    }

    #[test]
    fn bridges_have_names() {
        let of = |kind| {
            let mut message = LinkMessage::default();
            let info = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]);
            message.attributes = vec![LinkAttribute::IfName("cni0".to_owned()), info];
            bridge_name(&message)
        };
        assert_eq!(of(InfoKind::Bridge), Some("cni0".to_owned()));
        assert_eq!(of(InfoKind::Veth), None);
    }
}
