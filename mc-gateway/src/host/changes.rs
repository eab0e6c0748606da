//! Notifications of the kernel about changes of the host's network, of the agent's nftables table and of IPsec
//! policies.

use std::io;

use futures::{StreamExt as _, future::pending};
use rtnetlink::packet_core::NetlinkPayload;
use rustix::io::Errno;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};
use tokio::sync::watch;
use tracing::warn;

use super::ipsec;
use super::nft_notifications::NftNotifications;
use super::watched::{Effect, Watched};

/// The part of the host that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostChange {
    /// Links, addresses, routes, rules, filters or qdiscs of the agent, or foreign routes next to the agent's.
    Network,
    /// Paths to other nodes may have changed.
    Paths,
    /// MAC addresses of neighbors on these paths.
    Neighbors,
    /// The agent's nftables table, by any program.
    Nftables,
    /// IPsec policies.
    Ipsec,
}

/// Subscriptions to changes of the host.
#[derive(Debug)]
pub struct HostChanges {
    network: Receiver<()>,
    paths: Receiver<()>,
    neighbors: Receiver<()>,
    nftables: Receiver<()>,
    ipsec: Receiver<()>,
}

impl HostChanges {
    /// Subscribes to the notifications. While `watched` is none, every change counts.
    pub fn subscribe(watched: watch::Receiver<Option<Watched>>) -> io::Result<Self> {
        let [network, paths, neighbors] = subscribe_network(watched)?;
        Ok(Self {
            network,
            paths,
            neighbors,
            nftables: subscribe_nftables(),
            ipsec: subscribe_ipsec(),
        })
    }

    /// Waits for a change. A subscription that the kernel has closed never returns: only the periodic resync remains.
    pub async fn changed(&mut self) -> HostChange {
        tokio::select! {
            () = next(&mut self.network) => HostChange::Network,
            () = next(&mut self.paths) => HostChange::Paths,
            () = next(&mut self.neighbors) => HostChange::Neighbors,
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

fn subscribe_network(watched: watch::Receiver<Option<Watched>>) -> io::Result<[Receiver<()>; 3]> {
    use rtnetlink::MulticastGroup::{
        Ipv4Ifaddr, Ipv4Route, Ipv4Rule, Ipv6Ifaddr, Ipv6Route, Ipv6Rule, Link, Neigh, Tc,
    };

    // Rules: policy routing. Neighbors: link addresses. TC: filters and qdiscs.
    let groups = [
        Link, Ipv4Ifaddr, Ipv4Route, Ipv6Ifaddr, Ipv6Route, Ipv4Rule, Ipv6Rule, Neigh, Tc,
    ];
    let (connection, handle, mut messages) = rtnetlink::new_multicast_connection(&groups)?;
    tokio::spawn(connection);
    let (network, network_receiver) = channel(1);
    let (paths, paths_receiver) = channel(1);
    let (neighbors, neighbors_receiver) = channel(1);
    tokio::spawn(async move {
        let _connected = handle;
        while let Some((message, _)) = messages.next().await {
            let effect = match (&message.payload, &*watched.borrow()) {
                (NetlinkPayload::InnerMessage(message), Some(watched)) => watched.effect(message),
                // Also an overrun: notifications are lost.
                _ => Effect::Paths,
            };
            let received = match effect {
                Effect::Unrelated => true,
                Effect::State => notify(&network),
                Effect::Paths => notify(&paths),
                Effect::Neighbors => notify(&neighbors),
            };
            if !received {
                break;
            }
        }
    });
    Ok([network_receiver, paths_receiver, neighbors_receiver])
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
