//! Whether the kernel joins received tunnel packets to super-packets. Pure.
//!
//! It does so behind a device with generic receive offload (GRO) while a tunnel device has a socket on the port
//! (`udp_gro_receive`, `net/ipv4/udp_offload.c`). Without it the programs run once for each packet of MTU size.

use std::fmt;

/// Aggregation of tunnel packets from an underlay device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregation {
    /// Tunnel devices with a socket on the port: the agent's or those of a CNI.
    pub sockets: Vec<String>,
    /// State of GRO (`ethtool -k`, `rx-gro`); none if the kernel does not report it.
    pub gro: Option<bool>,
}

impl Aggregation {
    /// Whether the kernel aggregates. A device that does not report its GRO has it: the kernel's default.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.sockets.is_empty() && self.gro != Some(false)
    }
}

impl fmt::Display for Aggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sockets.is_empty() {
            return f.write_str("no: no tunnel device has a socket on the port");
        }
        if self.gro == Some(false) {
            return f.write_str("no: generic receive offload is off (ethtool -K DEVICE gro on)");
        }
        write!(f, "yes: socket of {}", self.sockets.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_and_gro_are_both_needed() {
        let with = |sockets: &[&str], gro| Aggregation {
            sockets: sockets.iter().map(ToString::to_string).collect(),
            gro,
        };
        for (aggregation, active, text) in [
            (with(&["mc0t"], Some(true)), true, "yes: socket of mc0t"),
            (with(&["mc0t", "mc0t6"], None), true, "yes: socket of mc0t, mc0t6"),
            (
                with(&["genev_sys_6081"], Some(false)),
                false,
                "no: generic receive offload is off (ethtool -K DEVICE gro on)",
            ),
            (
                with(&[], Some(true)),
                false,
                "no: no tunnel device has a socket on the port",
            ),
        ] {
            assert_eq!(
                (aggregation.is_active(), aggregation.to_string().as_str()),
                (active, text)
            );
        }
    }
}
