//! Gateway faults and their repair.

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::{
    Topology,
    plan::{INTER_GATEWAY, Place, UNDERLAY},
};

/// A fault of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its underlay devices are down.
    LinkDown,
    /// A silent failure: the bridges no longer forward its frames, its agent is stopped.
    Freeze,
}

impl Topology {
    /// Makes a gateway fail; requires a topology with bridges (two gateways).
    pub fn inject_fault(&mut self, place: Place, fault: Fault) -> Result<()> {
        match fault {
            Fault::LinkDown => self.set_links(place, "down"),
            Fault::Freeze => {
                self.set_bridge_ports(place, "disabled")?;
                self.signal_agent(place, Signal::SIGSTOP)
            }
        }
    }

    /// Repairs a fault.
    pub fn clear_fault(&mut self, place: Place, fault: Fault) -> Result<()> {
        match fault {
            Fault::LinkDown => {
                self.set_links(place, "up")?;
                // The kernel removed the CNI's routes with the link.
                self.add_cni_routes(place.cluster())
            }
            Fault::Freeze => {
                self.signal_agent(place, Signal::SIGCONT)?;
                self.set_bridge_ports(place, "forwarding")
            }
        }
    }

    fn set_links(&self, place: Place, state: &str) -> Result<()> {
        let lines = [INTER_GATEWAY, UNDERLAY].map(|device| format!("link set {device} {state}"));
        self.netns(place).ip(&lines)?;
        Ok(())
    }

    fn set_bridge_ports(&self, place: Place, state: &str) -> Result<()> {
        let lan = self.lan.as_ref().context("topology has no bridges")?;
        for device in [INTER_GATEWAY, UNDERLAY] {
            let port = format!("{device}-{}", place.name());
            lan.run("bridge", ["link", "set", "dev", &port, "state", state])?;
        }
        Ok(())
    }
}
