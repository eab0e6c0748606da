//! Frames sent byte for byte, with VLAN tags and header fields that no socket writes.

use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, ensure};
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
    },
};

use crate::netns::Netns;

/// Sends frames, Ethernet header first, out of a device inside a namespace.
pub fn inject(netns: &Netns, device: &str, frames: &[Vec<u8>]) -> Result<()> {
    netns.enter(|| {
        let to = link_address(device)?;
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthAll,
        )
        .context("cannot open a packet socket (CAP_NET_RAW is needed)")?;
        for frame in frames {
            let sent = sendto(socket.as_raw_fd(), frame, &to, MsgFlags::empty())
                .with_context(|| format!("cannot send on {device}"))?;
            ensure!(
                sent == frame.len(),
                "{sent} of {} bytes sent on {device}",
                frame.len()
            );
        }
        Ok(())
    })
}

/// MAC address of a device inside a namespace.
pub fn mac_address(netns: &Netns, device: &str) -> Result<[u8; 6]> {
    netns
        .enter(|| link_address(device))?
        .addr()
        .with_context(|| format!("{device} has no MAC address"))
}

/// Index and MAC address of a device, as packet sockets use them.
pub fn link_address(device: &str) -> Result<LinkAddr> {
    getifaddrs()?
        .filter(|interface| interface.interface_name == device)
        .find_map(|interface| {
            interface
                .address
                .as_ref()
                .and_then(SockaddrStorage::as_link_addr)
                .copied()
        })
        .with_context(|| format!("no device {device}"))
}
