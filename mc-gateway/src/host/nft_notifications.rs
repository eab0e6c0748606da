//! The kernel's notifications about the agent's nftables tables (`NFNLGRP_NFTABLES`).
//!
//! The socket is opened here because the connections of `rtnetlink` are of `NETLINK_ROUTE`; the messages are parsed
//! with the packet types of that crate.

use std::io;
use std::os::fd::OwnedFd;

use rtnetlink::packet_core::{NetlinkBuffer, NlasIterator};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::nftables::TABLES;

/// Bit of the multicast group `NFNLGRP_NFTABLES` (7, `linux/netfilter/nfnetlink.h`).
const GROUP: u32 = 1 << 6;
/// `NFNL_SUBSYS_NFTABLES`, the upper byte of the message type.
const SUBSYSTEM: u8 = 10;
/// Length of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// Length of `struct nfgenmsg`.
const FAMILY_HEADER_LEN: usize = 4;
/// The table's name in every message about a table, chain, rule, set or element (`NFTA_*_TABLE`).
const ATTRIBUTE_TABLE: u16 = 1;
/// `NFPROTO_INET`.
const FAMILY_INET: u8 = 1;
/// `NFPROTO_BRIDGE`.
const FAMILY_BRIDGE: u8 = 7;
/// Longer than a message of the kernel (`NLMSG_GOODSIZE`).
const BUFFER_LEN: usize = 32 * 1024;

/// A subscription.
#[derive(Debug)]
pub(super) struct NftNotifications {
    socket: AsyncFd<OwnedFd>,
}

impl NftNotifications {
    /// Subscribes; needs `CAP_NET_ADMIN`.
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
        // SAFETY: the socket owns its descriptor, keeps it and is dropped with the registration.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }
            .map_err(io::Error::from)?;
        Ok(Self { socket })
    }

    /// Waits for a change of a table, or for lost notifications.
    pub(super) async fn changed(&self) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let mut ready = self.socket.readable().await?;
            match recv(self.socket.get_ref(), &mut buffer, RecvFlags::empty()) {
                Ok((read, _)) if concerns_table(buffer.get(..read).unwrap_or_default()) => return Ok(()),
                // The receive buffer was full: notifications are lost.
                Err(Errno::NOBUFS) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether any message of a datagram is about a table of the agent.
fn concerns_table(mut datagram: &[u8]) -> bool {
    while let Ok(message) = NetlinkBuffer::new_checked(datagram) {
        if is_about_table(&message) {
            return true;
        }
        // The next message begins at a multiple of 4 bytes.
        let next = message
            .payload_length()
            .next_multiple_of(4)
            .saturating_add(HEADER_LEN);
        datagram = datagram.get(next..).unwrap_or_default();
    }
    false
}

fn is_about_table(message: &NetlinkBuffer<&[u8]>) -> bool {
    let Some((header, attributes)) = message.payload().split_first_chunk::<FAMILY_HEADER_LEN>() else {
        return false;
    };
    let family = match header[0] {
        FAMILY_INET => "inet",
        FAMILY_BRIDGE => "bridge",
        _ => return false,
    };
    let is_ours = |name: &[u8]| {
        let known = TABLES.iter().filter_map(|table| table.split_once(' '));
        // The name ends with NUL.
        known
            .filter(|(of_family, _)| *of_family == family)
            .any(|(_, table)| name.strip_suffix(&[0]) == Some(table.as_bytes()))
    };
    message.message_type().to_be_bytes()[0] == SUBSYSTEM
        && NlasIterator::new(attributes)
            .map_while(Result::ok)
            .find(|attribute| attribute.kind() == ATTRIBUTE_TABLE)
            .is_some_and(|attribute| is_ours(attribute.value()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message with the family and two attributes: flags (number 2), and the table.
    fn message(kind: u16, family: u8, table: &str) -> Vec<u8> {
        let mut text = table.as_bytes().to_vec();
        text.push(0);
        let mut body = vec![family, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 1];
        body.extend(u16::try_from(text.len() + 4).unwrap().to_ne_bytes());
        body.extend(ATTRIBUTE_TABLE.to_ne_bytes());
        body.extend(&text);
        let mut message = u32::try_from(body.len() + HEADER_LEN)
            .unwrap()
            .to_ne_bytes()
            .to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    #[test]
    fn messages_about_the_table_are_recognised() {
        let deleted = 0x0a02;
        assert!(concerns_table(&message(deleted, FAMILY_INET, "mc_gateway")));
        for family in [FAMILY_INET, FAMILY_BRIDGE] {
            assert!(concerns_table(&message(deleted, family, "mc_gateway_pods")));
        }
        for other in [
            message(deleted, FAMILY_INET, "mc_gateway2"),
            message(deleted, FAMILY_INET, "mc"),
            message(deleted, 2, "mc_gateway"),
            message(deleted, FAMILY_BRIDGE, "mc_gateway"),
            message(0x0102, FAMILY_INET, "mc_gateway"),
        ] {
            assert!(!concerns_table(&other));
            let both = [other, message(deleted, FAMILY_INET, "mc_gateway")].concat();
            assert!(concerns_table(&both), "any message of a datagram counts");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_result(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            concerns_table(&bytes);
        }

        #[test]
        fn a_truncated_message_has_a_result(len in 0_usize..60) {
            let whole = message(0x0a02, FAMILY_INET, "mc_gateway");
            concerns_table(&whole[..len.min(whole.len())]);
        }
    }
}
