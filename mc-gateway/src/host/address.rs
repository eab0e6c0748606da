//! Addresses of `mc0`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo,
};
use rtnetlink::{AddressMessageBuilder, Handle};
use rustix::io::Errno;

use super::{HostError, is_missing, netlink};
use crate::cidr::max_prefix_len;

/// Infinite lifetime (`INFINITY_LIFE_TIME`).
const FOREVER: u32 = u32::MAX;

/// Adds an address that can be used explicitly, but is never selected by the kernel.
///
/// The kernel selects an IPv4 address of link scope only for destinations on the link, and a deprecated IPv6 address
/// only without another (RFC 6724 section 5, rule 3). Otherwise the node could use this address towards its own Pods,
/// and network policies that allow the node would not match it.
pub async fn add(handle: &Handle, addr: IpAddr, ifindex: u32) -> Result<(), HostError> {
    let mut request = handle
        .address()
        .add(ifindex, addr, max_prefix_len(addr))
        .replace();
    *request.message_mut() = message(addr, ifindex);
    let added = request.execute().await;
    added.map_err(netlink(format!("add address {addr} to device {ifindex}")))
}

/// Removes the address, if present.
pub async fn remove(handle: &Handle, addr: IpAddr, ifindex: u32) -> Result<(), HostError> {
    match handle.address().del(message(addr, ifindex)).execute().await {
        Err(error) if !is_missing(&error) && !is_no_address(&error) => Err(netlink(format!(
            "remove address {addr} from device {ifindex}"
        ))(error)),
        _ => Ok(()),
    }
}

fn is_no_address(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else {
        return false;
    };
    message.raw_code().saturating_neg() == Errno::ADDRNOTAVAIL.raw_os_error()
}

fn message(addr: IpAddr, ifindex: u32) -> AddressMessage {
    let len = max_prefix_len(addr);
    match addr {
        IpAddr::V4(addr) => {
            let builder = AddressMessageBuilder::<Ipv4Addr>::new().index(ifindex);
            let mut message = builder.address(addr, len).build();
            message.header.scope = AddressScope::Link;
            message
        }
        IpAddr::V6(addr) => {
            let builder = AddressMessageBuilder::<Ipv6Addr>::new().index(ifindex);
            let mut message = builder.address(addr, len).build();
            // The device has no neighbours: no duplicate address detection, and no route to the prefix.
            let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
            message.attributes.push(AddressAttribute::Flags(flags));
            let mut lifetime = CacheInfo::default();
            lifetime.ifa_preferred = 0;
            lifetime.ifa_valid = FOREVER;
            message.attributes.push(AddressAttribute::CacheInfo(lifetime));
            message
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_never_selects_the_address() {
        let v4 = message([10, 1, 1, 0].into(), 7);
        assert_eq!((v4.header.prefix_len, v4.header.scope), (32, AddressScope::Link));
        let v6 = message("fd00:1::".parse().unwrap(), 7);
        assert_eq!((v6.header.prefix_len, v6.header.index), (128, 7));
        let lifetime = v6.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::CacheInfo(lifetime) => Some((lifetime.ifa_preferred, lifetime.ifa_valid)),
            _ => None,
        });
        assert_eq!(lifetime, Some((0, FOREVER)));
    }
}
