//! The devices that may lead to Pods: ends of veth pairs whose other end is in another network namespace.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use rtnetlink::Handle;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::{HostError, netlink};
use crate::resolved::PodLink;

/// The devices by index.
pub(super) async fn observe(handle: &Handle) -> Result<BTreeMap<u32, PodLink>, HostError> {
    let mut messages = handle.link().get().execute();
    let mut found = BTreeMap::new();
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        found.extend(parse(&message).map(|link| (message.header.index, link)));
    }
    Ok(found)
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
}
