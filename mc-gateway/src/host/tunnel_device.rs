//! The agent's tunnel devices on the host.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use mc_gateway_common::packet::tunnel::VNI_KERNEL_DECAP;
use rtnetlink::packet_route::link::{
    InfoData, InfoGeneve, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::{Handle, LinkGeneve, LinkUnspec, LinkVxlan};

use super::{HostError, is_missing, netlink};
use crate::cni;
use crate::tunnel_device::{TunnelDevice, TunnelKind};

/// Link group of the devices ("mct" in ASCII): set in the request that creates them. `mc0` has another one.
const LINK_GROUP: u32 = 0x006d_6374;

/// MTU of the devices, which receive packets of any size: too small for IPv6, which the kernel thus does not enable.
const MTU: u32 = 1000;

/// State of a tunnel device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelLink {
    /// Index.
    pub ifindex: u32,
    /// Settings; none if they are not the agent's.
    pub kind: Option<TunnelKind>,
    /// Administratively up: its socket is open.
    pub up: bool,
}

/// Tunnel devices of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelLinks {
    /// Those of the agent by name.
    pub own: BTreeMap<String, TunnelLink>,
    /// A device of a CNI that opens a socket which no other device can share ([`cni::has_exclusive_socket`]).
    pub exclusive_cni: Option<String>,
}

/// Lists the tunnel devices.
pub async fn observe(handle: &Handle) -> Result<TunnelLinks, HostError> {
    let mut messages = handle.link().get().execute();
    let mut links = TunnelLinks::default();
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        links.own.extend(parse(&message));
        links.exclusive_cni = links.exclusive_cni.or_else(|| exclusive_cni(&message));
    }
    Ok(links)
}

/// Whether a link is a tunnel device, of the agent or of another program, or one of a CNI that cannot share a socket.
pub(super) fn is_related(message: &LinkMessage) -> bool {
    let is_tunnel = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::Group(group) => *group == LINK_GROUP,
        LinkAttribute::LinkInfo(infos) => infos
            .iter()
            .any(|info| matches!(info, LinkInfo::Kind(InfoKind::Vxlan | InfoKind::Geneve))),
        _ => false,
    };
    message.attributes.iter().any(is_tunnel) || exclusive_cni(message).is_some()
}

/// Name of a device of a CNI that cannot share a tunnel socket.
fn exclusive_cni(message: &LinkMessage) -> Option<String> {
    let (mut name, mut kind) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text),
            LinkAttribute::LinkInfo(infos) => {
                kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let name = name?;
    cni::has_exclusive_socket(name, kind.as_deref().unwrap_or_default()).then(|| name.clone())
}

/// The agent's tunnel device in a message.
fn parse(message: &LinkMessage) -> Option<(String, TunnelLink)> {
    let mut name = None;
    let mut ours = false;
    let mut kind = None;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::Group(group) => ours = *group == LINK_GROUP,
            LinkAttribute::LinkInfo(infos) => {
                kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Data(InfoData::Vxlan(settings)) => vxlan(settings),
                    LinkInfo::Data(InfoData::Geneve(settings)) => geneve(settings),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let name = name.filter(|_| ours)?;
    // The kernel does not list the unspecified local address, which alone makes a device one for IPv6.
    if let Some(TunnelKind::Vxlan { v6, .. }) = &mut kind {
        *v6 = name.ends_with('6');
    }
    let link = TunnelLink {
        ifindex: message.header.index,
        kind,
        up: message.header.flags.contains(LinkFlags::Up),
    };
    Some((name, link))
}

fn vxlan(settings: &[InfoVxlan]) -> Option<TunnelKind> {
    let port = settings.iter().find_map(|setting| match setting {
        InfoVxlan::Port(port) => Some(*port),
        _ => None,
    })?;
    settings
        .contains(&InfoVxlan::Id(VNI_KERNEL_DECAP))
        .then(|| TunnelKind::Vxlan {
            port,
            v6: false,
            zero_checksum: settings.contains(&InfoVxlan::UDPZeroCsumRX(true)),
        })
}

fn geneve(settings: &[InfoGeneve]) -> Option<TunnelKind> {
    let port = settings.iter().find_map(|setting| match setting {
        InfoGeneve::Port(port) => Some(*port),
        _ => None,
    })?;
    settings
        .contains(&InfoGeneve::CollectMetadata)
        .then_some(TunnelKind::Geneve { port })
}

/// Creates a device, down: its socket opens only after a program is attached.
pub async fn create(handle: &Handle, device: &TunnelDevice) -> Result<(), HostError> {
    let name = device.name.as_str();
    let message = match device.kind {
        TunnelKind::Vxlan {
            port,
            v6,
            zero_checksum,
        } => {
            let builder = LinkVxlan::new(name, VNI_KERNEL_DECAP).port(port).learning(false);
            let builder = if v6 {
                builder.local6(std::net::Ipv6Addr::UNSPECIFIED)
            } else {
                builder
            };
            let builder = if zero_checksum {
                builder.udp_zero_csum6_rx(true)
            } else {
                builder
            };
            builder.arp(false).mtu(MTU).link_group(LINK_GROUP).build()
        }
        TunnelKind::Geneve { port } => rtnetlink::LinkMessageBuilder::<LinkGeneve>::new(name)
            .port(port)
            .collect_metadata()
            .udp_zero_csum6_rx(true)
            .arp(false)
            .mtu(MTU)
            .link_group(LINK_GROUP)
            .build(),
    };
    let added = handle.link().add(message).execute().await;
    added.map_err(netlink(format!("create tunnel device {name}")))
}

/// Sets a device up: the kernel opens its socket.
pub async fn set_up(handle: &Handle, name: &str, ifindex: u32) -> Result<(), HostError> {
    let mut message = LinkUnspec::new_with_index(ifindex).up().build();
    message.header.change_mask |= LinkFlags::Multicast;
    let set = handle.link().set(message).execute().await;
    set.map_err(netlink(format!("set tunnel device {name} up")))
}

/// Removes a device.
pub async fn delete(handle: &Handle, name: &str, ifindex: u32) -> Result<(), HostError> {
    match handle.link().del(ifindex).execute().await {
        Err(error) if !is_missing(&error) => Err(netlink(format!("delete tunnel device {name}"))(error)),
        _ => Ok(()),
    }
}

/// Removes all tunnel devices of the agent; returns their names.
pub async fn delete_all(handle: &Handle) -> Result<Vec<String>, HostError> {
    let links = observe(handle).await?.own;
    for (name, link) in &links {
        delete(handle, name, link.ifindex).await?;
    }
    Ok(links.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(name: &str, group: u32, data: InfoData) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Group(group),
            LinkAttribute::LinkInfo(vec![LinkInfo::Data(data)]),
        ];
        message
    }

    #[test]
    fn devices_of_the_group_are_recognised_with_their_settings() {
        let own = || {
            InfoData::Vxlan(vec![
                InfoVxlan::Id(VNI_KERNEL_DECAP),
                InfoVxlan::Port(4789),
                InfoVxlan::UDPZeroCsumRX(false),
            ])
        };
        let (name, link) = parse(&message("mc0t6", LINK_GROUP, own())).unwrap();
        let kind = TunnelKind::Vxlan {
            port: 4789,
            v6: true,
            zero_checksum: false,
        };
        assert_eq!((name.as_str(), link.kind, link.up), ("mc0t6", Some(kind), false));
        assert_eq!(parse(&message("vxlan.calico", 0, own())), None);
        let foreign = InfoData::Vxlan(vec![InfoVxlan::Id(1), InfoVxlan::Port(4789)]);
        assert_eq!(parse(&message("mc0t", LINK_GROUP, foreign)).unwrap().1.kind, None);
        let geneve = InfoData::Geneve(vec![InfoGeneve::Port(6081), InfoGeneve::CollectMetadata]);
        let kind = parse(&message("mc0t", LINK_GROUP, geneve)).unwrap().1.kind;
        assert_eq!(kind, Some(TunnelKind::Geneve { port: 6081 }));
    }
}
