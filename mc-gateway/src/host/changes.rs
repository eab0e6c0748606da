//! Notifications of the kernel about changes of the host's network, of the agent's nftables table and of IPsec
//! policies.

use std::io;

use futures::{StreamExt as _, future::pending};
use rustix::io::Errno;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};
use tracing::warn;

use super::ipsec;
use super::nft_notifications::NftNotifications;

/// The part of the host that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostChange {
    /// Links, addresses, routes, rules, filters or qdiscs.
    Network,
    /// The agent's nftables table, by any program.
    Nftables,
    /// IPsec policies.
    Ipsec,
}

/// Subscriptions to changes of the host.
#[derive(Debug)]
pub struct HostChanges {
    network: Receiver<()>,
    nftables: Receiver<()>,
    ipsec: Receiver<()>,
}

impl HostChanges {
    /// Subscribes to the notifications.
    pub fn subscribe() -> io::Result<Self> {
        Ok(Self {
            network: subscribe_network()?,
            nftables: subscribe_nftables(),
            ipsec: subscribe_ipsec(),
        })
    }

    /// Waits for a change. A subscription that the kernel has closed never returns: only the periodic resync remains.
    pub async fn changed(&mut self) -> HostChange {
        tokio::select! {
            () = next(&mut self.network) => HostChange::Network,
            () = next(&mut self.nftables) => HostChange::Nftables,
            () = next(&mut self.ipsec) => HostChange::Ipsec,
        }
    }
}

async fn next(receiver: &mut Receiver<()>) {
    if receiver.recv().await.is_none() {
        pending::<()>().await;
    }
}

/// Whether a receiver is left. One pending notification covers any number of changes: the receiver reads everything.
fn notify(sender: &Sender<()>) -> bool {
    !matches!(sender.try_send(()), Err(TrySendError::Closed(())))
}

fn subscribe_network() -> io::Result<Receiver<()>> {
    use rtnetlink::MulticastGroup::{Ipv4Ifaddr, Ipv4Route, Ipv4Rule, Ipv6Ifaddr, Ipv6Route, Link, Tc};

    let groups = [
        Link, Ipv4Ifaddr, Ipv4Route, Ipv6Ifaddr, Ipv6Route, // Policy routing.
        Ipv4Rule,  // Filters and qdiscs.
        Tc,
    ];
    let (connection, handle, mut messages) = rtnetlink::new_multicast_connection(&groups)?;
    tokio::spawn(connection);
    let (sender, receiver) = channel(1);
    tokio::spawn(async move {
        let _connected = handle;
        while messages.next().await.is_some() && notify(&sender) {}
    });
    Ok(receiver)
}

/// Without the notifications the periodic resync remains.
fn subscribe_nftables() -> Receiver<()> {
    let (sender, receiver) = channel(1);
    tokio::spawn(async move {
        let ended = async {
            let notifications = NftNotifications::open()?;
            loop {
                notifications.changed().await?;
                if !notify(&sender) {
                    return Ok::<(), io::Error>(());
                }
            }
        };
        if let Err(error) = ended.await {
            warn!(%error, "no nftables notifications: foreign changes are found by the resync only");
        }
    });
    receiver
}

/// Without the notifications the periodic resync remains. A kernel without IPsec has none.
fn subscribe_ipsec() -> Receiver<()> {
    let (sender, receiver) = channel(1);
    tokio::spawn(async move {
        match ipsec::notifications() {
            Ok(mut notifications) => while notifications.next().await.is_some() && notify(&sender) {},
            Err(error) if error.raw_os_error() == Some(Errno::PROTONOSUPPORT.raw_os_error()) => {}
            Err(error) => {
                warn!(%error, "no notifications of IPsec policies: changes are found by the resync only");
            }
        }
    });
    receiver
}
