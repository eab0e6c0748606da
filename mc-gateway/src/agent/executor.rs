//! Executes the actions of a plan: netlink, nftables, programs and maps.

use thiserror::Error;
use tracing::debug;

use super::AgentError;
use super::reconcile::Agent;
use crate::apply::Executor;
use crate::error_chain;
use crate::host::{HostError, address, link, nftables, policy_routing, route};
use crate::plan::{Action, InstalledGuard};

impl Executor for Agent {
    type Error = ErrorChain;

    async fn execute(&mut self, action: &Action) -> Result<(), ErrorChain> {
        self.execute_action(action)
            .await
            .map_err(|error| ErrorChain(error_chain(&error)))
    }
}

/// An error with its causes, as text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub(super) struct ErrorChain(String);

/// Whether an action may change routes to other nodes.
fn changes_routing(action: &Action) -> bool {
    matches!(
        action,
        Action::CreateDevice { .. }
            | Action::DeleteDevice
            | Action::SetDevice { .. }
            | Action::SetAddress { .. }
            | Action::SetReturnRoutes { .. }
            | Action::SetRoute { .. }
    )
}

impl Agent {
    /// Current index of `mc0`.
    async fn mc0_index(&self) -> Result<u32, HostError> {
        let name = &self.config.paths.device;
        let device = link::observe(&self.handle, name).await?;
        device
            .map(|device| device.ifindex)
            .ok_or(HostError::NoDevice { name: name.clone() })
    }

    /// Executes one action.
    async fn execute_action(&mut self, action: &Action) -> Result<(), AgentError> {
        if !matches!(action, Action::SetPrefix { .. } | Action::SetPeer { .. }) {
            self.maps.bump_epoch()?;
        }
        if changes_routing(action) {
            self.known_paths.clear();
        }
        let name = self.config.paths.device.as_str();
        match action {
            Action::CreateDevice { mtu } => link::create(&self.handle, name, *mtu).await?,
            Action::DeleteDevice => {
                link::delete(&self.handle, name).await?;
            }
            Action::SetDevice { to: (mtu, up), .. } => link::set(&self.handle, name, *mtu, *up).await?,
            Action::SetAddress { addr, to } => {
                let mc0 = self.mc0_index().await?;
                if *to {
                    address::add(&self.handle, *addr, mc0).await?;
                } else {
                    address::remove(&self.handle, *addr, mc0).await?;
                }
            }
            Action::SetNextHop { slot, to, .. } => self.maps.set_next_hop(*slot, **to)?,
            Action::SetGroup { slot, to, .. } => self.maps.set_group(*slot, **to)?,
            Action::SetPolicies { to, .. } => self.maps.set_policies(to)?,
            Action::SetPeer { addr, to, .. } => self.maps.set_peer(*addr, to.as_deref().copied())?,
            Action::SetConfig { to, .. } => self.maps.set_config(**to)?,
            Action::Service(action) => self.maps.set_service(action)?,
            Action::SetPrefix { key, to, .. } => self.maps.set_prefix(*key, *to)?,
            Action::Attach { hook, ifindex, from } => {
                if let Err(error) = self.datapath.attach(hook, *ifindex, *from) {
                    // The Pod of a device may end at any time.
                    if link::has_index(&self.handle, &hook.device, *ifindex).await? {
                        return Err(error.into());
                    }
                    debug!(device = hook.device, %error, "device removed before its program was attached");
                }
            }
            Action::Detach { hook, .. } => self.datapath.detach(hook)?,
            Action::SetNftables { to, .. } => {
                match to {
                    Some(rules) => nftables::write(rules, name).await.map_err(HostError::from)?,
                    None => nftables::remove().await.map_err(HostError::from)?,
                }
                self.nftables = to.as_deref().cloned();
                self.nft_listing = nftables::read().await.map_err(HostError::from)?;
            }
            Action::SetPodGuard { to, .. } => {
                let guard = to.as_deref();
                nftables::pod_guard::write(guard).await.map_err(HostError::from)?;
                self.pod_guard = InstalledGuard::of(guard);
                let listing = nftables::pod_guard::read().await;
                self.guard_listing = Some(listing.map_err(HostError::from)?);
            }
            Action::SetReturnRoutes { from, to } => {
                policy_routing::replace(&self.handle, name, self.mc0_index().await?, from, to).await?;
            }
            Action::SetRoute {
                key,
                to: Some(source),
                ..
            } => route::set(&self.handle, *key, *source, self.mc0_index().await?).await?,
            Action::SetRoute { key, to: None, .. } => {
                route::delete(&self.handle, *key, self.mc0_index().await?).await?;
            }
        }
        Ok(())
    }
}
