//! The host's IPsec policies.
//!
//! Messages are those of `netlink-packet-xfrm`, over the connections of `netlink-proto` that `rtnetlink` uses. The
//! crate `xfrmnetlink` would need a second version of `netlink-proto`.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use futures::{Stream, StreamExt as _};
use ipnet::IpNet;
use netlink_packet_xfrm::constants::{
    AF_INET, AF_INET6, XFRM_POLICY_BLOCK, XFRM_POLICY_FWD, XFRM_POLICY_IN, XFRM_POLICY_OUT,
    XFRM_POLICY_TYPE_SUB,
};
use netlink_packet_xfrm::policy::{DefaultMessage, DelGetMessage, ModifyMessage};
use netlink_packet_xfrm::{Address, XfrmAttrs, XfrmMessage};
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::proto::{ConnectionHandle, new_connection};
use rtnetlink::sys::protocols::NETLINK_XFRM;
use rtnetlink::sys::{AsyncSocket as _, SocketAddr};
use rustix::io::Errno;

use super::HostError;
use crate::resolved::{IpsecPolicies, IpsecPolicy, PolicyDirection, PortSelector};

/// Bit of the multicast group `XFRMNLGRP_POLICY` (4, `linux/xfrm.h`).
const GROUP_POLICY: u32 = 1 << 3;
/// `XFRM_USERPOLICY_BLOCK` (`linux/xfrm.h`).
const DEFAULT_BLOCK: u8 = 1;

/// Reads all policies; none on a kernel without IPsec.
pub async fn observe() -> Result<IpsecPolicies, HostError> {
    let (connection, handle, _) = match new_connection(NETLINK_XFRM) {
        Ok(opened) => opened,
        Err(error) if error.raw_os_error() == Some(Errno::PROTONOSUPPORT.raw_os_error()) => {
            return Ok(IpsecPolicies::default());
        }
        Err(error) => return Err(failed(error)),
    };
    tokio::spawn(connection);
    let list = XfrmMessage::GetPolicy(DelGetMessage::default());
    let messages = request(&handle, list, NLM_F_DUMP).await.map_err(failed)?;
    let policies = messages.iter().filter_map(|message| match message {
        XfrmMessage::AddPolicy(policy) => to_policy(policy),
        _ => None,
    });
    let policies = policies.collect();
    let get_default = XfrmMessage::GetPolicyDefault(DefaultMessage::default());
    let defaults = match request(&handle, get_default, 0).await {
        Ok(messages) => messages,
        // Before Linux 5.15 there is no such setting.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    Ok(IpsecPolicies::new(policies, blocked_by_default(&defaults)))
}

/// An item for each change of a policy.
pub(super) fn notifications() -> io::Result<impl Stream<Item = ()> + Unpin> {
    let (mut connection, handle, messages) = new_connection::<XfrmMessage>(NETLINK_XFRM)?;
    connection
        .socket_mut()
        .socket_mut()
        .bind(&SocketAddr::new(0, GROUP_POLICY))?;
    tokio::spawn(connection);
    // The connection ends with its last handle.
    Ok(messages.map(move |_| {
        let _connected = &handle;
    }))
}

fn failed(source: io::Error) -> HostError {
    HostError::Netlink {
        operation: "list IPsec policies".to_owned(),
        source,
    }
}

/// The answers to a request, up to its end.
async fn request(
    handle: &ConnectionHandle<XfrmMessage>,
    message: XfrmMessage,
    flags: u16,
) -> io::Result<Vec<XfrmMessage>> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | flags;
    let answers = handle
        .request(message, SocketAddr::new(0, 0))
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut answers = std::pin::pin!(answers);
    let mut messages = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer.payload {
            NetlinkPayload::InnerMessage(message) => messages.push(message),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            _ => {}
        }
    }
    Ok(messages)
}

/// A policy for encapsulated packets; none for one of a single socket, and for packets with a mark or an interface ID
/// (`xfrm` interfaces), which encapsulated packets have not.
fn to_policy(message: &ModifyMessage) -> Option<IpsecPolicy> {
    let info = &message.user_policy_info;
    let direction = match info.direction {
        XFRM_POLICY_IN => PolicyDirection::In,
        XFRM_POLICY_OUT => PolicyDirection::Out,
        XFRM_POLICY_FWD => PolicyDirection::Forward,
        // Policies of sockets have larger numbers.
        _ => return None,
    };
    let (mut sub, mut transforms) = (false, false);
    for attribute in &message.nlas {
        match attribute {
            XfrmAttrs::Mark(mark) if mark.value != 0 => return None,
            XfrmAttrs::IfId(id) if *id != 0 => return None,
            XfrmAttrs::PolicyType(kind) => sub = kind.ptype == XFRM_POLICY_TYPE_SUB,
            XfrmAttrs::Template(templates) => transforms = !templates.is_empty(),
            _ => {}
        }
    }
    let selector = &info.selector;
    Some(IpsecPolicy {
        direction,
        src: net(selector.family, &selector.saddr, selector.prefixlen_s)?,
        dst: net(selector.family, &selector.daddr, selector.prefixlen_d)?,
        proto: selector.proto,
        src_ports: PortSelector {
            port: selector.sport,
            mask: selector.sport_mask,
        },
        dst_ports: PortSelector {
            port: selector.dport,
            mask: selector.dport_mask,
        },
        ifindex: selector.ifindex.cast_unsigned(),
        priority: info.priority,
        sub,
        protects: transforms || info.action == XFRM_POLICY_BLOCK,
    })
}

fn net(family: u16, address: &Address, prefix_len: u8) -> Option<IpNet> {
    let address = match family {
        AF_INET => IpAddr::V4(address.to_ipv4()),
        AF_INET6 => IpAddr::V6(address.to_ipv6()),
        _ => return None,
    };
    IpNet::new(address, prefix_len).ok()
}

fn blocked_by_default(messages: &[XfrmMessage]) -> BTreeSet<PolicyDirection> {
    let defaults = messages.iter().filter_map(|message| match message {
        XfrmMessage::GetPolicyDefault(message) => Some(message.user_policy),
        _ => None,
    });
    let directions = defaults.flat_map(|defaults| {
        [
            (PolicyDirection::In, defaults.input),
            (PolicyDirection::Forward, defaults.forward),
            (PolicyDirection::Out, defaults.output),
        ]
    });
    directions
        .filter(|(_, action)| *action == DEFAULT_BLOCK)
        .map(|(direction, _)| direction)
        .collect()
}

#[cfg(test)]
mod tests {
    use netlink_packet_xfrm::{Mark, Selector, UserPolicyInfo, UserPolicyType, UserTemplate};

    use super::*;

    fn message(nlas: Vec<XfrmAttrs>) -> ModifyMessage {
        let mut selector = Selector {
            dport: 6081,
            dport_mask: 0xffff,
            proto: 17,
            ..Selector::default()
        };
        selector.source_prefix(&[192, 0, 2, 1].into(), 32);
        selector.destination_prefix(&[198, 51, 100, 0].into(), 24);
        let user_policy_info = UserPolicyInfo {
            selector,
            priority: 7,
            direction: XFRM_POLICY_OUT,
            ..UserPolicyInfo::default()
        };
        ModifyMessage {
            user_policy_info,
            nlas,
        }
    }

    #[test]
    fn policies_of_the_kernel_are_read() {
        let allowed = to_policy(&message(vec![])).unwrap();
        let text = "src 192.0.2.1/32 dst 198.51.100.0/24 proto 17 dport 6081 dir out priority 7";
        assert_eq!((allowed.to_string().as_str(), allowed.protects), (text, false));
        let transformed = message(vec![XfrmAttrs::Template(vec![UserTemplate::default()])]);
        assert!(to_policy(&transformed).unwrap().protects);
        let mut blocked = message(vec![]);
        blocked.user_policy_info.action = XFRM_POLICY_BLOCK;
        assert!(to_policy(&blocked).unwrap().protects);
        let sub = UserPolicyType {
            ptype: XFRM_POLICY_TYPE_SUB,
            ..UserPolicyType::default()
        };
        assert!(to_policy(&message(vec![XfrmAttrs::PolicyType(sub)])).unwrap().sub);
    }

    #[test]
    fn policies_that_no_encapsulated_packet_meets_are_left_out() {
        let mark = Mark { value: 7, mask: 7 };
        assert_eq!(to_policy(&message(vec![XfrmAttrs::Mark(mark)])), None);
        assert_eq!(to_policy(&message(vec![XfrmAttrs::IfId(3)])), None);
        let unmarked = Mark { value: 0, mask: 7 };
        assert!(to_policy(&message(vec![XfrmAttrs::Mark(unmarked)])).is_some());
        let mut of_socket = message(vec![]);
        of_socket.user_policy_info.direction = 4;
        assert_eq!(to_policy(&of_socket), None);
    }

    #[test]
    fn blocking_defaults_are_read() {
        let mut defaults = DefaultMessage::default();
        defaults.user_policy.input = DEFAULT_BLOCK;
        let message = [XfrmMessage::GetPolicyDefault(defaults)];
        assert_eq!(blocked_by_default(&message), [PolicyDirection::In].into());
        assert_eq!(blocked_by_default(&[]), BTreeSet::new());
    }
}
