//! The node's side: everything outside the eBPF maps that the data path needs.

pub mod address;
pub mod conntrack;
pub mod ipv6;
pub mod link;
pub mod nftables;
pub mod policy_routing;
pub mod route;
pub mod state;
pub mod tc_filter;
pub mod underlay;

use std::io;

use thiserror::Error;

/// Why the host did not do what it was asked.
#[derive(Debug, Error)]
pub enum HostError {
    /// The kernel refused a netlink request.
    #[error("{what}: {source}")]
    Netlink {
        /// What was asked.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// `mc0` exists and is somebody else's.
    #[error(
        "device {name}: exists already and is not ours (link group {group:#x}); remove it or choose another name with --device"
    )]
    ForeignDevice {
        /// Its name.
        name: String,
        /// Its link group.
        group: u32,
    },
    /// `mc0` vanished between two steps.
    #[error("device {name}: does not exist")]
    NoDevice {
        /// Its name.
        name: String,
    },
    /// The `nft` program.
    #[error(transparent)]
    Nft(#[from] nftables::NftError),
}

/// The netlink error behind `error`, as the operating system's own.
pub(crate) fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

pub(crate) fn netlink(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> HostError {
    let what = what.into();
    move |error| HostError::Netlink {
        what,
        source: to_io(error),
    }
}

/// Whether the kernel said that the thing is not there.
pub(crate) fn is_missing(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else {
        return false;
    };
    let code = message.raw_code().saturating_neg();
    [libc::ENODEV, libc::ESRCH, libc::ENOENT].contains(&code)
}

/// A netlink connection to the kernel, served by a task of its own.
pub fn connect() -> io::Result<rtnetlink::Handle> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(handle)
}

/// Tells that links, addresses or routes of the host changed.
#[derive(Debug)]
pub struct HostChanges {
    receiver: tokio::sync::mpsc::Receiver<()>,
}

impl HostChanges {
    /// Subscribes.
    pub fn subscribe() -> io::Result<Self> {
        use futures::StreamExt as _;
        use rtnetlink::MulticastGroup::{Ipv4Ifaddr, Ipv4Route, Ipv6Ifaddr, Ipv6Route, Link};

        let groups = [Link, Ipv4Ifaddr, Ipv4Route, Ipv6Ifaddr, Ipv6Route];
        let (connection, handle, mut messages) = rtnetlink::new_multicast_connection(&groups)?;
        tokio::spawn(connection);
        // One waiting notification stands for any number of changes: who reads it looks at everything.
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let _connected = handle;
            while messages.next().await.is_some() {
                if let Err(tokio::sync::mpsc::error::TrySendError::Closed(())) = sender.try_send(()) {
                    break;
                }
            }
        });
        Ok(Self { receiver })
    }

    /// Waits for a change. Never returns once the kernel closed the subscription: the periodic look at
    /// everything then has to do.
    pub async fn changed(&mut self) {
        if self.receiver.recv().await.is_none() {
            futures::future::pending::<()>().await;
        }
    }
}
