//! Ways a gateway goes, and how it comes back.

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::{
    Topology,
    plan::{BETWEEN, Place, UNDERLAY},
};

/// What happens to a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its underlay devices go down.
    LinkDown,
    /// Everything stops without a sign: the bridges no longer pass its frames, its agent is stopped.
    Freeze,
}

impl Topology {
    /// Makes a gateway fail; the nodes have to be joined by bridges (two gateways).
    pub fn break_gateway(&mut self, place: Place, fault: Fault) -> Result<()> {
        match fault {
            Fault::LinkDown => self.links(place, "down"),
            Fault::Freeze => {
                self.ports(place, "disabled")?;
                self.signal_agent(place, Signal::SIGSTOP)
            }
        }
    }

    /// Undoes it.
    pub fn heal_gateway(&mut self, place: Place, fault: Fault) -> Result<()> {
        match fault {
            Fault::LinkDown => {
                self.links(place, "up")?;
                // The kernel has forgotten the CNI's routes.
                self.cluster_routes(place.cluster())
            }
            Fault::Freeze => {
                self.signal_agent(place, Signal::SIGCONT)?;
                self.ports(place, "forwarding")
            }
        }
    }

    fn links(&self, place: Place, state: &str) -> Result<()> {
        let lines = [BETWEEN, UNDERLAY].map(|device| format!("link set {device} {state}"));
        self.netns(place).ip(&lines)?;
        Ok(())
    }

    fn ports(&self, place: Place, state: &str) -> Result<()> {
        let lan = self.lan.as_ref().context("there are no bridges")?;
        for device in [BETWEEN, UNDERLAY] {
            let port = format!("{device}-{}", place.name());
            lan.run("bridge", ["link", "set", "dev", &port, "state", state])?;
        }
        Ok(())
    }
}
