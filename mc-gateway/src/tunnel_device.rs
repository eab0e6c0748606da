//! The agent's tunnel devices. Pure.
//!
//! The kernel joins tunnel packets of one flow (GRO), and network cards compute their checksums, only where a tunnel
//! socket listens on the port. A tunnel device of the agent opens that socket; it sends nothing. Super-packets are also
//! decapsulated by it (`mc_gateway_common::pipeline`, module `kernel_decap`).

use std::net::IpAddr;

use crate::config::{EncapFormat, Tunnel, TunnelDevicePolicy};

/// A tunnel device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TunnelDevice {
    /// Name.
    pub name: String,
    /// Settings.
    pub kind: TunnelKind,
}

/// Settings of a tunnel device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TunnelKind {
    /// A VXLAN device with a VNI of its own: it shares the socket with the VXLAN devices of a CNI on the same port.
    Vxlan {
        /// UDP port.
        port: u16,
        /// Outer IP version: IPv6, else IPv4.
        v6: bool,
        /// Accepts packets without a UDP checksum over IPv6. Devices with another setting cannot share the socket.
        zero_checksum: bool,
    },
    /// A Geneve device in external mode: the only one on its port. The kernel gives a device that is not in external
    /// mode the packets of one remote address only.
    Geneve {
        /// UDP port.
        port: u16,
    },
}

/// The tunnel devices of a node with these `addresses` of other nodes; `mc0` is the name of the device.
///
/// [`TunnelDevicePolicy::Auto`] creates none beside a device `exclusive_cni` ([`crate::cni::has_exclusive_socket`]):
/// the agent's device would keep that CNI from the port.
#[must_use]
pub fn tunnel_devices(
    policy: TunnelDevicePolicy,
    tunnel: Tunnel,
    mc0: &str,
    exclusive_cni: Option<&str>,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Vec<TunnelDevice> {
    let always = match policy {
        TunnelDevicePolicy::Never => return Vec::new(),
        TunnelDevicePolicy::Auto if exclusive_cni.is_some() => return Vec::new(),
        TunnelDevicePolicy::Auto => false,
        TunnelDevicePolicy::Always => true,
    };
    let port = tunnel.port;
    let (mut v4, mut v6) = (false, false);
    for address in addresses {
        v4 |= address.is_ipv4();
        v6 |= address.is_ipv6();
    }
    match tunnel.format {
        EncapFormat::Geneve if v4 || v6 => vec![TunnelDevice {
            name: device_name(mc0, false),
            kind: TunnelKind::Geneve { port },
        }],
        EncapFormat::Geneve => Vec::new(),
        EncapFormat::Vxlan => {
            let device = |v6| TunnelDevice {
                name: device_name(mc0, v6),
                kind: TunnelKind::Vxlan {
                    port,
                    v6,
                    zero_checksum: v6 && always,
                },
            };
            [(v4, false), (v6, true)]
                .into_iter()
                .filter(|(used, _)| *used)
                .map(|(_, v6)| device(v6))
                .collect()
        }
    }
}

/// Name of the tunnel device for IPv4 or for both versions (`mc0t`), or for IPv6 (`mc0t6`).
fn device_name(mc0: &str, v6: bool) -> String {
    // Device names have at most 15 bytes.
    let stem: String = mc0.chars().take(13).collect();
    if v6 {
        format!("{stem}t6")
    } else {
        format!("{stem}t")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dscp;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    fn names_beside(
        exclusive_cni: Option<&str>,
        policy: TunnelDevicePolicy,
        format: EncapFormat,
        addresses: &[IpAddr],
    ) -> Vec<String> {
        let tunnel = Tunnel {
            format,
            port: format.default_port(),
            udp_checksum: false,
            dscp: Dscp::Inherit,
            hop_limit: 64,
        };
        tunnel_devices(policy, tunnel, "mc0", exclusive_cni, addresses.iter().copied())
            .into_iter()
            .map(|device| device.name)
            .collect()
    }

    fn names(policy: TunnelDevicePolicy, format: EncapFormat, addresses: &[IpAddr]) -> Vec<String> {
        names_beside(None, policy, format, addresses)
    }

    #[test]
    fn vxlan_has_a_device_for_each_outer_version() {
        use TunnelDevicePolicy::{Always, Auto, Never};
        for policy in [Auto, Always] {
            assert_eq!(names(policy, EncapFormat::Vxlan, &[V4]), ["mc0t"]);
            assert_eq!(names(policy, EncapFormat::Vxlan, &[V6]), ["mc0t6"]);
            assert_eq!(names(policy, EncapFormat::Vxlan, &[V6, V4]), ["mc0t", "mc0t6"]);
        }
        assert!(names(Never, EncapFormat::Vxlan, &[V4, V6]).is_empty());
        assert!(names(Auto, EncapFormat::Vxlan, &[]).is_empty());
    }

    #[test]
    fn geneve_has_one_device_for_both_outer_versions() {
        use TunnelDevicePolicy::{Always, Auto, Never};
        for policy in [Auto, Always] {
            assert_eq!(names(policy, EncapFormat::Geneve, &[V4, V6]), ["mc0t"]);
            assert!(names(policy, EncapFormat::Geneve, &[]).is_empty());
        }
        assert!(names(Never, EncapFormat::Geneve, &[V4]).is_empty());
    }

    #[test]
    fn only_always_creates_a_device_beside_a_cni_that_cannot_share_the_port() {
        use TunnelDevicePolicy::{Always, Auto};
        for format in [EncapFormat::Geneve, EncapFormat::Vxlan] {
            let beside = Some("antrea-gw0");
            assert!(names_beside(beside, Auto, format, &[V4]).is_empty());
            assert_eq!(names_beside(beside, Always, format, &[V4]), ["mc0t"]);
        }
    }

    #[test]
    fn names_fit_into_a_device_name() {
        assert_eq!(device_name("abcdefghijklmno", true).len(), 15);
    }
}
