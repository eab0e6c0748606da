//! The XDP program on underlay devices, best effort: without it `from_underlay` forwards the same packets.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::abi::CONFIG_GATEWAY;

use super::AgentError;
use super::reconcile::Agent;
use crate::aggregation::Aggregation;
use crate::config::TransitPolicy;
use crate::error_chain;
use crate::host::features::Features;
use crate::host::veth;
use crate::resolved::ResolvedState;
use crate::transit::{DeviceTraits, TcReason, Transit};

impl Agent {
    /// Attaches the program to the devices that gain from it, and detaches it from all others. A device whose driver
    /// has rejected the program is left alone until it has another index: an attempt may reset its queues.
    pub(super) async fn update_transit(
        &mut self,
        state: &ResolvedState,
        features: &BTreeMap<String, Features>,
        aggregation: &BTreeMap<String, Aggregation>,
    ) -> Result<(), AgentError> {
        let gateway = state.flags & CONFIG_GATEWAY != 0;
        let veths = if gateway && self.config.transit != TransitPolicy::Never {
            veth::observe(&self.handle).await?
        } else {
            BTreeSet::new()
        };
        let attached = self.datapath.transit_devices()?;
        let mut chosen = BTreeMap::new();
        for (device, ifindex) in &state.devices {
            let traits = DeviceTraits {
                veth: veths.contains(ifindex),
                // Unknown features may include it.
                strips_tags: features.get(device).is_none_or(|features| features.strips_tags),
                aggregates: aggregation.get(device).is_some_and(Aggregation::is_active),
            };
            let mut transit = Transit::choose(self.config.transit, gateway, &traits);
            if transit == Transit::Xdp
                && let Some((_, error)) = self.transit_rejected.get(device).filter(|(at, _)| at == ifindex)
            {
                transit = Transit::Tc(TcReason::Rejected(error.clone()));
            }
            chosen.insert(device.clone(), (*ifindex, transit));
        }
        for device in attached.keys() {
            if !matches!(chosen.get(device), Some((_, Transit::Xdp))) {
                self.datapath.detach_transit(device)?;
            }
        }
        for (device, (ifindex, transit)) in &mut chosen {
            let from = attached.get(device).copied();
            let done = from.is_some_and(|from| from.current && from.ifindex == *ifindex);
            if *transit != Transit::Xdp || done {
                continue;
            }
            if let Err(error) = self.datapath.attach_transit(device, *ifindex, from) {
                let error = error_chain(&error);
                // An earlier agent's program must not outlive its maps.
                self.datapath.detach_transit(device)?;
                self.transit_rejected
                    .insert(device.clone(), (*ifindex, error.clone()));
                *transit = Transit::Tc(TcReason::Rejected(error));
            }
        }
        let chosen = chosen.into_iter().map(|(device, (_, transit))| (device, transit));
        let chosen: BTreeMap<String, Transit> = chosen.collect();
        self.log.transit(&chosen);
        self.metrics.state().transit = chosen;
        Ok(())
    }
}
