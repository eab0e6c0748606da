//! Properties of underlay devices that decide about XDP.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use rtnetlink::Handle;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::{HostError, features, is_missing, netlink};
use crate::transit::DeviceTraits;

/// Properties of `devices`, given by name and index, without aggregation.
pub async fn observe(
    handle: &Handle,
    devices: &BTreeMap<String, u32>,
) -> Result<BTreeMap<String, DeviceTraits>, HostError> {
    let mut found = BTreeMap::new();
    for (device, ifindex) in devices {
        let mut messages = handle.link().get().match_index(*ifindex).execute();
        let message = match messages.try_next().await {
            Err(error) if is_missing(&error) => continue,
            result => result.map_err(netlink(format!("look up device {device}")))?,
        };
        let features = features::observe(device).await;
        let traits = DeviceTraits {
            veth: message.is_none_or(|message| is_veth(&message)),
            // Unknown features may include it.
            strips_tags: features.is_none_or(|features| features.strips_tags),
            aggregates: false,
        };
        found.insert(device.clone(), traits);
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
