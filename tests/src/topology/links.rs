//! Links between nodes.

use anyhow::Result;

use crate::netns::Netns;

/// Kind of the links between nodes, all of which are veth pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Super-packets cross the link, as between containers on one host.
    #[default]
    Veth,
    /// No super-packet crosses the link: senders segment, and receivers aggregate (GRO), as network cards do.
    WireLike,
    /// [`Self::WireLike`], and senders complete checksums and write VLAN tags into frames, as XDP programs need it.
    WireLikeForXdp,
}

impl Links {
    /// Sets the offloads of one end of a link.
    pub(super) fn set_offloads(self, netns: &Netns, device: &str) -> Result<()> {
        if self != Self::Veth {
            netns.run("ethtool", ["-K", device, "tso", "off", "gso", "off", "gro", "on"])?;
        }
        if self == Self::WireLikeForXdp {
            let off = ["-K", device, "tx", "off", "txvlan", "off", "rxvlan", "off"];
            netns.run("ethtool", off)?;
        }
        Ok(())
    }
}
