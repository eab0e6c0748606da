//! Links between nodes.

use anyhow::Result;

use super::nic_pair::NicPair;
use crate::netns::Netns;

/// Kind of the links between nodes. All but [`Self::Nics`] are veth pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Super-packets cross the link, as between containers on one host.
    #[default]
    Veth,
    /// No super-packet crosses the link: senders segment, and receivers aggregate (GRO), as network cards do.
    WireLike,
    /// [`Self::WireLike`], and senders complete checksums and write VLAN tags into frames, as XDP programs need it.
    WireLikeForXdp,
    /// Pairs of network devices, which `MC_NIC_PAIRS` names ([`NicPair`]). The devices keep the offloads that their
    /// drivers have, except that receivers aggregate (GRO) and leave VLAN tags in frames, as XDP programs need it.
    Nics,
}

impl Links {
    /// These links with what XDP programs need.
    pub(super) const fn for_xdp(self) -> Self {
        match self {
            Self::Veth | Self::WireLike | Self::WireLikeForXdp => Self::WireLikeForXdp,
            Self::Nics => Self::Nics,
        }
    }

    /// Connects two nodes; `device` is the name of both ends.
    pub(super) fn connect(self, one: &Netns, other: &Netns, device: &str) -> Result<()> {
        if self == Self::Nics {
            NicPair::connect(one, other, device)?;
        } else {
            one.veth(device, other, device)?;
        }
        for netns in [one, other] {
            self.set_offloads(netns, device)?;
        }
        Ok(())
    }

    /// Sets the offloads of one end of a link.
    pub(super) fn set_offloads(self, netns: &Netns, device: &str) -> Result<()> {
        let settings: &[&str] = match self {
            Self::Veth => return Ok(()),
            Self::WireLike => &["tso", "off", "gso", "off", "gro", "on"],
            Self::WireLikeForXdp => &[
                "tso", "off", "gso", "off", "gro", "on", "tx", "off", "txvlan", "off", "rxvlan", "off",
            ],
            Self::Nics => &["gro", "on", "rxvlan", "off"],
        };
        netns.run("ethtool", ["-K", device].iter().chain(settings))?;
        Ok(())
    }
}
