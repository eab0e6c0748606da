//! Devices that are ends of veth pairs.

use std::collections::BTreeSet;

use futures::TryStreamExt as _;
use rtnetlink::Handle;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::{HostError, netlink};

/// Indexes of the ends of veth pairs.
pub async fn observe(handle: &Handle) -> Result<BTreeSet<u32>, HostError> {
    let mut messages = handle.link().get().execute();
    let mut found = BTreeSet::new();
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        if is_veth(&message) {
            found.insert(message.header.index);
        }
    }
    Ok(found)
}

fn is_veth(message: &LinkMessage) -> bool {
    message.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_link_of_that_kind_is_a_veth() {
        let mut message = LinkMessage::default();
        assert!(!is_veth(&message));
        for (kind, expected) in [(InfoKind::Veth, true), (InfoKind::Vlan, false)] {
            message.attributes = vec![LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])];
            assert_eq!(is_veth(&message), expected);
        }
    }
}
