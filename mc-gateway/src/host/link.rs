//! `mc0`: the device that packets to other clusters are routed to.

use std::fs;

use futures::TryStreamExt as _;
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InetDevConf, LinkAttribute, LinkFlags, LinkMessage,
};
use rtnetlink::{Handle, LinkDummy, LinkMessageBuilder, LinkUnspec, LinkVeth};
use tracing::debug;

use super::{HostError, is_missing, netlink};
use crate::plan::Device;

/// Link group of the agent's device ("mcg" in ASCII): set in the request that creates the device, so that no crash
/// leaves it without.
pub const LINK_GROUP: u32 = 0x006d_6367;

/// Name of the other end if `mc0` is a veth.
pub(super) fn peer_name(name: &str) -> String {
    // Device names have at most 15 bytes.
    let mut peer: String = name.chars().take(14).collect();
    peer.push('p');
    peer
}

/// Observes `mc0`; a foreign device is an error.
pub async fn observe(handle: &Handle, name: &str) -> Result<Option<Device>, HostError> {
    let Some(message) = find(handle, name).await? else {
        return Ok(None);
    };
    let mut device = Device {
        ifindex: message.header.index,
        mac: [0; 6],
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        configured: is_configured(message.header.flags),
        loose_rp_filter: false,
    };
    let mut group = 0;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(mac) => device.mac = mac.as_slice().try_into().unwrap_or_default(),
            LinkAttribute::Mtu(mtu) => device.mtu = *mtu,
            LinkAttribute::Group(value) => group = *value,
            LinkAttribute::AfSpecUnspec(families) => {
                device.configured &= !generates_ipv6_addresses(families);
                device.loose_rp_filter = has_loose_rp_filter(families);
            }
            _ => {}
        }
    }
    if group != LINK_GROUP {
        return Err(HostError::ForeignDevice {
            name: name.to_owned(),
            group,
        });
    }
    Ok(Some(device))
}

/// Name of the device in a message.
pub(super) fn name(message: &LinkMessage) -> Option<&str> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// Whether the other end of the device is up, and the device has neither ARP nor multicast.
fn is_configured(flags: LinkFlags) -> bool {
    flags.contains(LinkFlags::LowerUp | LinkFlags::Noarp) && !flags.contains(LinkFlags::Multicast)
}

/// Whether the kernel generates IPv6 addresses on the device. A device without IPv6 has no such setting.
fn generates_ipv6_addresses(families: &[AfSpecUnspec]) -> bool {
    families.iter().any(|family| match family {
        AfSpecUnspec::Inet6(settings) => settings.iter().any(
            |setting| matches!(setting, AfSpecInet6::AddrGenMode(mode) if *mode != In6AddrGenMode::None),
        ),
        _ => false,
    })
}

/// Whether the reverse-path filter of the device is in loose mode.
fn has_loose_rp_filter(families: &[AfSpecUnspec]) -> bool {
    families.iter().any(|family| match family {
        AfSpecUnspec::Inet(settings) => settings.iter().any(
            |setting| matches!(setting, AfSpecInet::DevConf(settings) if settings.rp_filter == LOOSE_RP_FILTER),
        ),
        _ => false,
    })
}

async fn find(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, HostError> {
    let request = handle.link().get().match_name(name.to_owned());
    match request.execute().try_next().await {
        Ok(message) => Ok(message),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(netlink(format!("look up device {name}"))(error)),
    }
}

/// Whether a device with this name and index exists.
pub async fn has_index(handle: &Handle, name: &str, ifindex: u32) -> Result<bool, HostError> {
    let found = find(handle, name).await?;
    Ok(found.is_some_and(|message| message.header.index == ifindex))
}

/// MTU of a new device: too small for IPv6, so that the kernel does not enable IPv6 before multicast is off (with
/// multicast, a router would announce its groups).
const MTU_WITHOUT_IPV6: u32 = 1000;

/// Creates `mc0`, down: a `dummy` if the kernel supports it, else one end of a veth pair.
pub async fn create(handle: &Handle, name: &str, mtu: u32) -> Result<(), HostError> {
    delete_renamed(handle).await?;
    add(handle, name).await?;
    let finished = configure(handle, name, mtu).await;
    if finished.is_err() {
        // A failed action must not have changed anything.
        delete(handle, name).await?;
    }
    finished
}

/// Removes devices of the link group: another program has renamed `mc0`, and the name of its other end is in use.
async fn delete_renamed(handle: &Handle) -> Result<(), HostError> {
    let mut messages = handle.link().get().execute();
    let mut renamed = Vec::new();
    while let Some(message) = messages.try_next().await.map_err(netlink("list devices"))? {
        if message.attributes.contains(&LinkAttribute::Group(LINK_GROUP)) {
            renamed.push(message.header.index);
        }
    }
    for index in renamed {
        match handle.link().del(index).execute().await {
            Err(error) if !is_missing(&error) => {
                return Err(netlink(format!("delete renamed device {index}"))(error));
            }
            _ => {}
        }
    }
    Ok(())
}

async fn configure(handle: &Handle, name: &str, mtu: u32) -> Result<(), HostError> {
    let Some(message) = find(handle, name).await? else {
        return Err(HostError::NoDevice {
            name: name.to_owned(),
        });
    };
    let index = message.header.index;
    let mut silent = LinkUnspec::new_with_index(index).build();
    silent.header.change_mask |= LinkFlags::Multicast;
    let whole = LinkUnspec::new_with_index(index).mtu(mtu).build();
    for change in [silent, whole] {
        let set = handle.link().set(change).execute().await;
        set.map_err(netlink(format!("set device {name}")))?;
    }
    Ok(())
}

async fn add(handle: &Handle, name: &str) -> Result<(), HostError> {
    let mtu = MTU_WITHOUT_IPV6;
    let dummy = LinkDummy::new(name)
        .arp(false)
        .mtu(mtu)
        .link_group(LINK_GROUP)
        .build();
    let Err(error) = handle.link().add(dummy).execute().await else {
        return Ok(());
    };
    debug!(%error, "no dummy device; using veth");
    let veth = LinkVeth::new(name, &peer_name(name))
        .arp(false)
        .mtu(mtu)
        .link_group(LINK_GROUP)
        .build();
    handle
        .link()
        .add(veth)
        .execute()
        .await
        .map_err(netlink(format!("create device {name} (dummy and veth)")))
}

/// Sets MTU and state of `mc0` and of its other end.
pub async fn set(handle: &Handle, name: &str, mtu: u32, up: bool) -> Result<(), HostError> {
    let Some(message) = find(handle, name).await? else {
        return Err(HostError::NoDevice {
            name: name.to_owned(),
        });
    };
    disable_ipv6_autoconf(handle, message.header.index).await;
    let with = |index: u32| {
        let builder = LinkUnspec::new_with_index(index).mtu(mtu).arp(false);
        let mut message = if up { builder.up() } else { builder.down() }.build();
        message.header.change_mask |= LinkFlags::Multicast;
        message
    };
    let peer = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    });
    if let Some(peer) = peer.filter(|index| *index != 0) {
        disable_ipv6_autoconf(handle, peer).await;
        handle
            .link()
            .set(with(peer))
            .execute()
            .await
            .map_err(netlink(format!("set the peer of device {name}")))?;
    }
    handle
        .link()
        .set(with(message.header.index))
        .execute()
        .await
        .map_err(netlink(format!("set device {name}")))
}

/// Disables IPv6 address generation on the device, best effort: without a link-local address the kernel performs no
/// duplicate address detection and solicits no routers. On a NOARP device it resolves no neighbours either.
async fn disable_ipv6_autoconf(handle: &Handle, index: u32) {
    let none = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    let message = LinkMessageBuilder::<LinkUnspec>::default()
        .index(index)
        .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![none])]))
        .build();
    if let Err(error) = handle.link().set(message).execute().await {
        debug!(%error, "IPv6 address generation not disabled");
    }
}

/// `rp_filter` of the loose mode of RFC 3704.
const LOOSE_RP_FILTER: i32 = 2;

/// Accepts packets on `mc0` whose source the host reaches through another device: local nodes send them to other
/// clusters through this host. Loose mode of RFC 3704: the source must be reachable.
pub async fn set_loose_rp_filter(handle: &Handle, name: &str, index: u32) -> Result<(), HostError> {
    let mut settings = InetDevConf::default();
    settings.rp_filter = LOOSE_RP_FILTER;
    let message = LinkMessageBuilder::<LinkUnspec>::default()
        .index(index)
        .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![
            AfSpecInet::DevConfRequest(settings),
        ])]))
        .build();
    let set = handle.link().set(message).execute().await;
    set.map_err(netlink(format!("set rp_filter of device {name}")))
}

/// The setting `rp_filter` of the device, read from this network namespace; none without the device.
#[must_use]
pub fn read_rp_filter(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter")).ok()
}

/// Removes `mc0` unless foreign; whether it existed.
pub async fn delete(handle: &Handle, name: &str) -> Result<bool, HostError> {
    let Some(device) = observe(handle, name).await? else {
        return Ok(false);
    };
    match handle.link().del(device.ifindex).execute().await {
        Ok(()) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(netlink(format!("delete device {name}"))(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_other_settings_is_not_configured() {
        let all = LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Noarp | LinkFlags::Running;
        assert!(is_configured(all));
        for missing in [LinkFlags::LowerUp, LinkFlags::Noarp] {
            assert!(!is_configured(all - missing), "{missing:?}");
        }
        assert!(!is_configured(all | LinkFlags::Multicast));
    }

    #[test]
    fn settings_of_a_device_are_parsed() {
        let ipv6 = |mode| vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(mode)])];
        assert!(!generates_ipv6_addresses(&[]));
        assert!(!generates_ipv6_addresses(&ipv6(In6AddrGenMode::None)));
        assert!(generates_ipv6_addresses(&ipv6(In6AddrGenMode::Eui64)));
        for (rp_filter, loose) in [(0, false), (1, false), (2, true)] {
            let mut settings = InetDevConf::default();
            settings.rp_filter = rp_filter;
            let families = [AfSpecUnspec::Inet(vec![AfSpecInet::DevConf(settings)])];
            assert_eq!(has_loose_rp_filter(&families), loose, "{rp_filter}");
        }
    }

    #[test]
    fn peer_names_fit_into_a_device_name() {
        assert_eq!(peer_name("mc0"), "mc0p");
        assert_eq!(peer_name("abcdefghijklmno").len(), 15);
    }
}
