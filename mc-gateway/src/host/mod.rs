//! State of the node outside the eBPF maps: devices, addresses, routes, nftables.

pub mod address;
pub mod aggregation;
pub mod changes;
pub mod conntrack;
pub mod features;
pub mod ipsec;
pub mod ipv6;
pub mod link;
pub mod neighbors;
mod nft_notifications;
pub mod nftables;
mod pod_links;
pub mod policy_routing;
pub mod route;
pub mod state;
pub mod tc_filter;
pub mod tunnel_device;
pub mod underlay;
pub mod veth;
pub mod watched;

use std::io;

use rustix::io::Errno;
use thiserror::Error;

/// `SO_MARK` of the sockets that send probes. nftables drops all other multi-cluster packets from sockets of this node.
/// Its bits are free in kube-proxy (0x4000, 0x8000), Calico (0xffff0000), Cilium (0x0f00) and the AWS VPC CNI (0x80).
pub const PROBE_MARK: u32 = 0x3063;

/// A failed operation on the host.
#[derive(Debug, Error)]
pub enum HostError {
    /// A netlink request failed.
    #[error("{operation}: {source}")]
    Netlink {
        /// The request.
        operation: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// `mc0` exists and is foreign.
    #[error(
        "device {name}: exists and is foreign (link group {group:#x}); remove it or set another name with --device"
    )]
    ForeignDevice {
        /// Its name.
        name: String,
        /// Its link group.
        group: u32,
    },
    /// `mc0` was removed meanwhile.
    #[error("device {name}: does not exist")]
    NoDevice {
        /// Its name.
        name: String,
    },
    /// The `nft` program.
    #[error(transparent)]
    Nft(#[from] nftables::NftError),
}

/// The netlink error as an error of the operating system.
pub(crate) fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

pub(crate) fn netlink(operation: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> HostError {
    let operation = operation.into();
    move |error| HostError::Netlink {
        operation,
        source: to_io(error),
    }
}

/// Whether the object does not exist.
pub(crate) fn is_missing(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else {
        return false;
    };
    let code = message.raw_code().saturating_neg();
    let missing = [Errno::NODEV, Errno::SRCH, Errno::NOENT];
    missing.iter().any(|errno| errno.raw_os_error() == code)
}

/// Opens a netlink connection, served by a background task.
pub fn connect() -> io::Result<rtnetlink::Handle> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(handle)
}
