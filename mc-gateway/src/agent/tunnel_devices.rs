//! The agent's tunnel devices, best effort: without them packets are forwarded one by one instead of in super-packets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rustix::io::Errno;
use tracing::info;

use super::AgentError;
use super::reconcile::Agent;
use crate::aggregation::Aggregation;
use crate::config::Tunnel;
use crate::desired::DesiredState;
use crate::error_chain;
use crate::host::features::Features;
use crate::host::{HostError, aggregation, tunnel_device};
use crate::objects::FieldError;
use crate::tunnel_device::{TunnelDevice, TunnelKind, tunnel_devices};

impl Agent {
    /// Removes the tunnel devices that this node does not need or that have other settings, and creates missing ones.
    /// Returns the needed devices, and the refused ones as issues.
    pub(super) async fn create_tunnel_devices(
        &self,
        desired: &DesiredState,
    ) -> Result<(Vec<TunnelDevice>, Vec<FieldError>), AgentError> {
        let next_hops = desired.next_hops.values().map(|next_hop| next_hop.addr);
        let addresses = next_hops.chain(desired.peers.keys().copied());
        let addresses = addresses.map(|address: IpAddr| address.to_canonical());
        let found = tunnel_device::observe(&self.handle).await?;
        let needed = tunnel_devices(
            self.config.tunnel_devices,
            self.config.tunnel,
            &self.config.paths.device,
            found.exclusive_cni.as_deref(),
            addresses,
        );
        let mut links = found.own;
        let fits = |name: &str, kind| {
            let mut same = needed.iter().filter(|device| device.name == name);
            same.any(|device| Some(device.kind) == kind)
        };
        for (name, link) in &links {
            if !fits(name, link.kind) {
                tunnel_device::delete(&self.handle, name, link.ifindex).await?;
                info!(device = %name, "tunnel device removed");
            }
        }
        links.retain(|name, link| fits(name, link.kind));
        let mut issues = Vec::new();
        for device in needed.iter().filter(|device| !links.contains_key(&device.name)) {
            if let Err(error) = tunnel_device::create(&self.handle, device).await {
                issues.push(self.tunnel_issue(&device.name, creation_error(device, &error)));
            }
        }
        Ok((needed, issues))
    }

    /// Sets the tunnel devices up whose program is attached. Returns whether one came up, and the refused ones as
    /// issues: another device or program has the port.
    pub(super) async fn open_tunnel_devices(&self) -> Result<(bool, Vec<FieldError>), AgentError> {
        let (mut opened, mut issues) = (false, Vec::new());
        for (name, link) in tunnel_device::observe(&self.handle).await?.own {
            if link.up {
                continue;
            }
            match tunnel_device::set_up(&self.handle, &name, link.ifindex).await {
                Ok(()) => opened = true,
                Err(error) => issues.push(self.tunnel_issue(&name, error_chain(&error))),
            }
        }
        Ok((opened, issues))
    }

    /// Observes the aggregation of tunnel packets on the underlay devices, also for the log and the metrics.
    pub(super) async fn observe_aggregation(
        &mut self,
        devices: &BTreeMap<String, u32>,
        features: &BTreeMap<String, Features>,
    ) -> Result<BTreeMap<String, Aggregation>, AgentError> {
        let Tunnel { format, port, .. } = self.config.tunnel;
        let found = aggregation::observe(&self.handle, devices.keys(), features, format, port).await?;
        self.log.aggregation(&found);
        self.metrics.state().aggregation.clone_from(&found);
        Ok(found)
    }

    fn tunnel_issue(&self, device: &str, reason: String) -> FieldError {
        FieldError {
            object: format!("Node {}", self.config.node_name),
            field: "tunnel device".to_owned(),
            value: device.to_owned(),
            reason,
        }
    }
}

/// The error, with a remedy if the kernel lacks Geneve.
fn creation_error(device: &TunnelDevice, error: &HostError) -> String {
    let text = error_chain(error);
    match (device.kind, error) {
        (TunnelKind::Geneve { .. }, HostError::Netlink { source, .. })
            if source.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) =>
        {
            format!("{text}; this kernel has no Geneve, --format vxlan on all Nodes is faster with it")
        }
        _ => text,
    }
}
