//! The tables of the Pod guard: packets and frames of this node's Pod ranges are dropped unless the agent has seen the
//! Pod.
//!
//! The table of the family `inet` filters packets that are routed, that of the family `bridge` frames between the ports
//! of a bridge, and between these and the node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::nets::{FAMILIES, join_addrs, join_nets};
use super::{Chain, Listing, NamedSet, NftError, Table, check_status, delete, read_table, run};
use crate::resolved::{BridgeGuard, PodGuard};

/// Family and name of the table for packets.
pub(super) const INET_TABLE: &str = "inet mc_gateway_pods";
/// Family and name of the table for frames.
pub(super) const BRIDGE_TABLE: &str = "bridge mc_gateway_pods";

/// Reason of packets of Pods that the agent has not seen.
pub(super) const POD_GUARD: &str = "pod-guard";

/// Chain of all packets that are dropped.
const UNSEEN: &str = "unseen";

/// A table that `nft -c` accepts if the kernel filters the frames of bridges: since Linux 5.16 it rejects a table of an
/// unsupported family, earlier ones a chain.
const BRIDGE_CHECK: &str = "table bridge mc_gateway_check {\n\tchain forward {\n\t\ttype filter hook forward priority filter\n\t}\n}\n";

/// The tables as `nft` lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardListing {
    inet: Option<Listing>,
    bridge: Option<Listing>,
}

impl GuardListing {
    /// Whether no table exists.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.inet.is_none() && self.bridge.is_none()
    }

    /// Whether an agent has written the tables for `guard`.
    #[must_use]
    pub fn is_of(&self, guard: &PodGuard) -> bool {
        let bridge = match (&self.bridge, &guard.bridge) {
            (Some(listing), Some(bridge)) => listing.is_table(&bridge_table(guard, bridge)),
            (None, None) => true,
            _ => false,
        };
        let inet = self.inet.as_ref();
        bridge && inet.is_some_and(|listing| listing.is_table(&inet_table(guard)))
    }
}

/// Reads the tables.
pub async fn read() -> Result<GuardListing, NftError> {
    Ok(GuardListing {
        inet: read_table(INET_TABLE).await?,
        bridge: read_table(BRIDGE_TABLE).await?,
    })
}

/// Replaces the tables in one transaction, or removes them.
pub async fn write(guard: Option<&PodGuard>) -> Result<(), NftError> {
    // A kernel without the family rejects any command for it.
    let has_bridge =
        guard.is_some_and(|guard| guard.bridge.is_some()) || read_table(BRIDGE_TABLE).await?.is_some();
    check_status(&run(&["-f", "-"], &script(guard, has_bridge)).await?)
}

/// Reason why the kernel cannot filter the frames of bridges, if so.
pub async fn bridge_filter_unavailable() -> Result<Option<String>, NftError> {
    match check_status(&run(&["-c", "-f", "-"], BRIDGE_CHECK).await?) {
        Err(NftError::Failed { message }) => Ok(Some(message.lines().next().unwrap_or_default().to_owned())),
        other => other.map(|()| None),
    }
}

/// The script that replaces or removes the tables; that of the family `bridge` only if `has_bridge`.
#[must_use]
fn script(guard: Option<&PodGuard>, has_bridge: bool) -> String {
    let mut script = delete(INET_TABLE);
    if has_bridge {
        script += &delete(BRIDGE_TABLE);
    }
    if let Some(guard) = guard {
        script += &inet_table(guard).script();
        if let Some(bridge) = &guard.bridge {
            script += &bridge_table(guard, bridge).script();
        }
    }
    script
}

fn inet_table(guard: &PodGuard) -> Table {
    let (mut sets, mut forward, mut input) = (Vec::new(), Vec::new(), Vec::new());
    for (family, v6) in FAMILIES {
        let ranges = join_nets(&guard.ranges, v6);
        if ranges.is_empty() {
            continue;
        }
        let pods = guard.pods.iter().filter(|(_, addr)| addr.is_ipv6() == v6);
        sets.push(NamedSet {
            name: format!("pods_{family}"),
            kind: if v6 {
                "ifname . ipv6_addr"
            } else {
                "ifname . ipv4_addr"
            },
            elements: pods
                .map(|(device, addr)| format!("\"{device}\" . {addr}"))
                .collect(),
        });
        sets.push(addresses("without_device", family, v6, &guard.without_device));
        let unseen = |device: &str, field: &str| {
            format!(
                "{family} {field} {{ {ranges} }} {family} {field} != @without_device_{family} \
                 {device} . {family} {field} != @pods_{family} goto {UNSEEN}"
            )
        };
        forward.extend([unseen("iifname", "saddr"), unseen("oifname", "daddr")]);
        let services = join_nets(&guard.service_cidrs, v6);
        if !services.is_empty() {
            // A service proxy in the kernel (IPVS) receives such a packet and sends it on without forwarding it.
            input.push(format!(
                "{family} daddr {{ {services} }} {}",
                unseen("iifname", "saddr")
            ));
        }
    }
    table(
        INET_TABLE,
        sets,
        vec![
            // Behind the chains of service proxies, as the filters of the other table.
            Chain::filter("forward", "forward priority filter + 10", forward),
            Chain::filter("input", "input priority filter + 10", input),
        ],
    )
}

fn bridge_table(guard: &PodGuard, bridge: &BridgeGuard) -> Table {
    let ports = bridge.ports.iter();
    let mut sets = vec![NamedSet {
        name: "ports".to_owned(),
        kind: "ifname",
        elements: ports.map(|port| format!("\"{port}\"")).collect(),
    }];
    let (mut forward, mut input, mut output) = (Vec::new(), Vec::new(), Vec::new());
    for (family, v6) in FAMILIES {
        let ranges = join_nets(&guard.ranges, v6);
        if ranges.is_empty() {
            continue;
        }
        if v6 {
            // Neighbor Discovery, as ARP in IPv4 (RFC 4861 section 4).
            let neighbor_discovery = "icmpv6 type { 133, 134, 135, 136, 137 } accept";
            for chain in [&mut forward, &mut input, &mut output] {
                chain.push(neighbor_discovery.to_owned());
            }
        }
        let behind_devices = guard.pods.iter().map(|(_, addr)| *addr);
        let known = behind_devices
            .chain(guard.without_device.iter().copied())
            .collect();
        sets.push(addresses("pods", family, v6, &known));
        sets.push(addresses("without_device", family, v6, &guard.without_device));
        // The rules for packets with an address in the ranges, at an unknown port and of an unknown Pod.
        let unseen = |field: &str, port: &str, exception: &str| {
            let start = format!("{family} {field} {{ {ranges} }} {exception}");
            [
                format!("{start}{port} != @ports {family} {field} != @without_device_{family} goto {UNSEEN}"),
                format!("{start}{family} {field} != @pods_{family} goto {UNSEEN}"),
            ]
        };
        forward.extend(unseen("saddr", "iifname", ""));
        forward.extend(unseen("daddr", "oifname", ""));
        let except_own = |field: &str| not_own(&bridge.own, family, v6, field);
        input.extend(unseen("saddr", "iifname", &except_own("daddr")));
        output.extend(unseen("daddr", "oifname", &except_own("saddr")));
    }
    let chains = [("forward", forward), ("input", input), ("output", output)];
    let chains =
        chains.map(|(hook, rules)| Chain::filter(hook, &format!("{hook} priority filter + 10"), rules));
    table(BRIDGE_TABLE, sets, chains.into())
}

/// A table with the chain that drops.
fn table(name: &'static str, sets: Vec<NamedSet>, mut chains: Vec<Chain>) -> Table {
    chains.retain(|chain| !chain.rules.is_empty());
    chains.push(Chain {
        name: UNSEEN,
        hook: String::new(),
        rules: vec![format!("counter drop comment \"{POD_GUARD}\"")],
    });
    Table { name, sets, chains }
}

/// A set of the addresses of one family.
fn addresses(name: &str, family: &str, v6: bool, addrs: &BTreeSet<IpAddr>) -> NamedSet {
    let addrs = addrs.iter().filter(|addr| addr.is_ipv6() == v6);
    NamedSet {
        name: format!("{name}_{family}"),
        kind: if v6 { "ipv6_addr" } else { "ipv4_addr" },
        elements: addrs.map(ToString::to_string).collect(),
    }
}

/// Matches packets whose other address is not one of the node itself. A link-local address in a frame between the node
/// and a port is the node's.
fn not_own(own: &BTreeSet<IpAddr>, family: &str, v6: bool, field: &str) -> String {
    let mut own = join_addrs(own, v6);
    if v6 {
        own = [own.as_str(), "fe80::/10"]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join(", ");
    }
    if own.is_empty() {
        return String::new();
    }
    format!("{family} {field} != {{ {own} }} ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolved::PlainName;

    fn name(device: &str) -> PlainName {
        PlainName::new(device).unwrap()
    }

    fn pod(device: &str, addr: &str) -> (PlainName, IpAddr) {
        (name(device), addr.parse().unwrap())
    }

    fn routed() -> PodGuard {
        PodGuard {
            ranges: ["10.1.1.0/24".parse().unwrap()].into(),
            pods: [pod("cali7", "10.1.1.7"), pod("cali8", "10.1.1.8")].into(),
            ..PodGuard::default()
        }
    }

    /// A dual-stack node with Pods on a bridge, one without a device, and Service CIDRs.
    fn bridged() -> PodGuard {
        PodGuard {
            ranges: ["10.1.1.0/24".parse().unwrap(), "fd00:1:1::/64".parse().unwrap()].into(),
            pods: [pod("cni0", "10.1.1.7"), pod("cni0", "fd00:1:1::7")].into(),
            without_device: ["10.1.1.9".parse().unwrap()].into(),
            service_cidrs: ["10.96.0.0/16".parse().unwrap()].into(),
            bridge: Some(BridgeGuard {
                ports: ["veth7", "veth8"].map(name).into(),
                own: ["10.1.1.1".parse().unwrap(), "fd00:1:1::1".parse().unwrap()].into(),
            }),
        }
    }

    /// The text without the fingerprints.
    fn without_marks(script: &str) -> String {
        let lines = script
            .lines()
            .map(|line| match line.split_once(" comment \"mc-gateway ") {
                Some((rule, _)) => format!("{rule} MARK\n"),
                None => format!("{line}\n"),
            });
        lines.collect()
    }

    #[test]
    fn routed_pods_are_known_by_device_and_address() {
        let expected = "\
add table inet mc_gateway_pods
delete table inet mc_gateway_pods
table inet mc_gateway_pods {
	set pods_ip {
		type ifname . ipv4_addr
		elements = { \"cali7\" . 10.1.1.7, \"cali8\" . 10.1.1.8 }
	}
	set without_device_ip {
		type ipv4_addr
	}
	chain forward {
		type filter hook forward priority filter + 10; policy accept;
		ip saddr { 10.1.1.0/24 } ip saddr != @without_device_ip iifname . ip saddr != @pods_ip goto unseen MARK
		ip daddr { 10.1.1.0/24 } ip daddr != @without_device_ip oifname . ip daddr != @pods_ip goto unseen
	}
	chain unseen {
		counter drop comment \"pod-guard\"
	}
}
";
        assert_eq!(without_marks(&script(Some(&routed()), false)), expected);
    }

    #[test]
    fn bridged_pods_are_known_by_port_and_address() {
        let expected = "\
add table inet mc_gateway_pods
delete table inet mc_gateway_pods
add table bridge mc_gateway_pods
delete table bridge mc_gateway_pods
table inet mc_gateway_pods {
	set pods_ip {
		type ifname . ipv4_addr
		elements = { \"cni0\" . 10.1.1.7 }
	}
	set without_device_ip {
		type ipv4_addr
		elements = { 10.1.1.9 }
	}
	set pods_ip6 {
		type ifname . ipv6_addr
		elements = { \"cni0\" . fd00:1:1::7 }
	}
	set without_device_ip6 {
		type ipv6_addr
	}
	chain forward {
		type filter hook forward priority filter + 10; policy accept;
		ip saddr { 10.1.1.0/24 } ip saddr != @without_device_ip iifname . ip saddr != @pods_ip goto unseen MARK
		ip daddr { 10.1.1.0/24 } ip daddr != @without_device_ip oifname . ip daddr != @pods_ip goto unseen
		ip6 saddr { fd00:1:1::/64 } ip6 saddr != @without_device_ip6 iifname . ip6 saddr != @pods_ip6 goto unseen
		ip6 daddr { fd00:1:1::/64 } ip6 daddr != @without_device_ip6 oifname . ip6 daddr != @pods_ip6 goto unseen
	}
	chain input {
		type filter hook input priority filter + 10; policy accept;
		ip daddr { 10.96.0.0/16 } ip saddr { 10.1.1.0/24 } ip saddr != @without_device_ip iifname . ip saddr != @pods_ip goto unseen
	}
	chain unseen {
		counter drop comment \"pod-guard\"
	}
}
table bridge mc_gateway_pods {
	set ports {
		type ifname
		elements = { \"veth7\", \"veth8\" }
	}
	set pods_ip {
		type ipv4_addr
		elements = { 10.1.1.7, 10.1.1.9 }
	}
	set without_device_ip {
		type ipv4_addr
		elements = { 10.1.1.9 }
	}
	set pods_ip6 {
		type ipv6_addr
		elements = { fd00:1:1::7 }
	}
	set without_device_ip6 {
		type ipv6_addr
	}
	chain forward {
		type filter hook forward priority filter + 10; policy accept;
		ip saddr { 10.1.1.0/24 } iifname != @ports ip saddr != @without_device_ip goto unseen MARK
		ip saddr { 10.1.1.0/24 } ip saddr != @pods_ip goto unseen
		ip daddr { 10.1.1.0/24 } oifname != @ports ip daddr != @without_device_ip goto unseen
		ip daddr { 10.1.1.0/24 } ip daddr != @pods_ip goto unseen
		icmpv6 type { 133, 134, 135, 136, 137 } accept
		ip6 saddr { fd00:1:1::/64 } iifname != @ports ip6 saddr != @without_device_ip6 goto unseen
		ip6 saddr { fd00:1:1::/64 } ip6 saddr != @pods_ip6 goto unseen
		ip6 daddr { fd00:1:1::/64 } oifname != @ports ip6 daddr != @without_device_ip6 goto unseen
		ip6 daddr { fd00:1:1::/64 } ip6 daddr != @pods_ip6 goto unseen
	}
	chain input {
		type filter hook input priority filter + 10; policy accept;
		ip saddr { 10.1.1.0/24 } ip daddr != { 10.1.1.1 } iifname != @ports ip saddr != @without_device_ip goto unseen
		ip saddr { 10.1.1.0/24 } ip daddr != { 10.1.1.1 } ip saddr != @pods_ip goto unseen
		icmpv6 type { 133, 134, 135, 136, 137 } accept
		ip6 saddr { fd00:1:1::/64 } ip6 daddr != { fd00:1:1::1, fe80::/10 } iifname != @ports ip6 saddr != @without_device_ip6 goto unseen
		ip6 saddr { fd00:1:1::/64 } ip6 daddr != { fd00:1:1::1, fe80::/10 } ip6 saddr != @pods_ip6 goto unseen
	}
	chain output {
		type filter hook output priority filter + 10; policy accept;
		ip daddr { 10.1.1.0/24 } ip saddr != { 10.1.1.1 } oifname != @ports ip daddr != @without_device_ip goto unseen
		ip daddr { 10.1.1.0/24 } ip saddr != { 10.1.1.1 } ip daddr != @pods_ip goto unseen
		icmpv6 type { 133, 134, 135, 136, 137 } accept
		ip6 daddr { fd00:1:1::/64 } ip6 saddr != { fd00:1:1::1, fe80::/10 } oifname != @ports ip6 daddr != @without_device_ip6 goto unseen
		ip6 daddr { fd00:1:1::/64 } ip6 saddr != { fd00:1:1::1, fe80::/10 } ip6 daddr != @pods_ip6 goto unseen
	}
	chain unseen {
		counter drop comment \"pod-guard\"
	}
}
";
        assert_eq!(without_marks(&script(Some(&bridged()), true)), expected);
    }

    #[test]
    fn a_removed_bridge_table_is_in_the_same_transaction() {
        let text = script(Some(&routed()), true);
        assert!(text.contains("delete table bridge mc_gateway_pods\n"));
        assert!(!text.contains("\ntable bridge"));
        let removed = "add table inet mc_gateway_pods\ndelete table inet mc_gateway_pods\n";
        assert_eq!(script(None, false), removed);
    }

    #[test]
    fn the_fingerprint_depends_on_the_sets() {
        let mark = |guard: &PodGuard| inet_table(guard).fingerprint();
        let mut changed = routed();
        changed.pods.insert(pod("cali9", "10.1.1.9"));
        assert_ne!(mark(&changed), mark(&routed()));
        assert_eq!(mark(&routed()), mark(&routed()));
    }

    #[test]
    fn tables_are_identified_by_fingerprint_rules_and_elements() {
        let guard = routed();
        let listing = |elements: usize, rules: usize| {
            let mark = inet_table(&guard).fingerprint();
            let elements = vec!["{\"concat\":[\"cali7\",\"10.1.1.7\"]}"; elements].join(",");
            let rules = vec![format!("{{\"rule\":{{\"comment\":\"{mark}\"}}}}"); rules].join(",");
            let text = format!("{{\"nftables\":[{{\"set\":{{\"elem\":[{elements}]}}}},{rules}]}}");
            GuardListing {
                inet: Listing::parse(&text),
                bridge: None,
            }
        };
        assert!(listing(2, 3).is_of(&guard));
        assert!(!listing(1, 3).is_of(&guard), "an element is missing");
        assert!(!listing(2, 4).is_of(&guard), "a foreign rule");
        assert!(!listing(2, 3).is_of(&bridged()));
        assert!(!GuardListing::default().is_of(&guard));
        assert!(GuardListing::default().is_absent() && !listing(2, 3).is_absent());
    }
}
