//! nftables rules of a service proxy in the layout of kube-proxy's nftables mode: one verdict map over all Services,
//! a chain per Service and a chain per endpoint.

use std::{fmt::Write as _, net::Ipv4Addr};

use crate::topology::Cluster;

/// Name of the table.
pub(super) const TABLE: &str = "be_services";
/// Number of Services in the case `plain-services`.
pub(super) const SERVICES: u32 = 1000;
/// Endpoints per Service.
const ENDPOINTS: u32 = 3;
/// Port of the Services and of their endpoints.
const PORT: u16 = 80;
const TARGET_PORT: u16 = 8080;

/// The rule set of a node in a cluster with this many Services.
///
/// A packet of an established connection passes only the hooks and connection tracking; the first packet of a
/// connection is looked up among the Services and then among those without endpoints.
pub(super) fn rules(cluster: Cluster, services: u32) -> String {
    let mut text = format!("table ip {TABLE} {{\n");
    let pods = cluster.pod_cidr();
    let numbers = || 0..services;
    let service_ip = |service: u32| nth(cluster.service_cidr().network(), service + 1);
    let endpoint_ip = |service, endpoint| nth(pods.network(), 0x8000 + service * ENDPOINTS + endpoint);
    let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");

    // Infallible, here and below.
    let addresses = list(&mut numbers().map(|service| service_ip(service).to_string()));
    let by_port = list(&mut numbers().map(|service| {
        format!(
            "{} . tcp . {PORT} : goto {}",
            service_ip(service),
            service_chain(service)
        )
    }));
    let _ok = write!(
        text,
        "    set cluster-ips {{ type ipv4_addr; elements = {{ {addresses} }} }}
    set nodeport-ips {{ type ipv4_addr; }}
    map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
    map firewall-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
    map service-nodeports {{ type inet_proto . inet_service : verdict; }}
"
    );
    for service in numbers() {
        for endpoint in 0..ENDPOINTS {
            let address = endpoint_ip(service, endpoint);
            let _ok = write!(
                text,
                "    chain {} {{
        ip saddr {address} jump mark-for-masquerade
        meta l4proto tcp dnat to {address}:{TARGET_PORT}
    }}
",
                endpoint_chain(service, endpoint)
            );
        }
        let endpoints = list(
            &mut (0..ENDPOINTS)
                .map(|endpoint| format!("{endpoint} : goto {}", endpoint_chain(service, endpoint))),
        );
        let _ok = write!(
            text,
            "    chain {} {{
        ip daddr {} tcp dport {PORT} ip saddr != {pods} jump mark-for-masquerade
        numgen random mod {ENDPOINTS} vmap {{ {endpoints} }}
    }}
",
            service_chain(service),
            service_ip(service)
        );
    }
    let _ok = write!(
        text,
        "    map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; elements = {{ {by_port} }} }}
    chain services {{
        ip daddr . meta l4proto . th dport vmap @service-ips
        ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
    }}
    chain mark-for-masquerade {{ meta mark set meta mark or 0x4000; }}
    chain masquerading {{
        meta mark and 0x4000 == 0 return
        meta mark set meta mark xor 0x4000
        masquerade fully-random
    }}
    chain service-endpoints-check {{ ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
    chain firewall-check {{ ip daddr . meta l4proto . th dport vmap @firewall-ips; }}
    chain cluster-ips-check {{ ip daddr @cluster-ips reject; }}
    chain filter-prerouting {{
        type filter hook prerouting priority dstnat - 10; policy accept;
        ct state new jump firewall-check
    }}
    chain filter-input {{
        type filter hook input priority filter; policy accept;
        ct state new jump service-endpoints-check
    }}
    chain filter-forward {{
        type filter hook forward priority filter; policy accept;
        ct state new jump service-endpoints-check
        ct state new jump cluster-ips-check
    }}
    chain filter-output {{
        type filter hook output priority filter; policy accept;
        ct state new jump service-endpoints-check
        ct state new jump firewall-check
    }}
    chain nat-prerouting {{ type nat hook prerouting priority dstnat; policy accept; jump services; }}
    chain nat-output {{ type nat hook output priority -100; policy accept; jump services; }}
    chain nat-postrouting {{ type nat hook postrouting priority srcnat; policy accept; jump masquerading; }}
}}
"
    );
    text
}

fn service_chain(service: u32) -> String {
    format!("service-{:08X}-shop/item-{service}/tcp/http", fake_hash(service))
}

fn endpoint_chain(service: u32, endpoint: u32) -> String {
    let digest = fake_hash(service * ENDPOINTS + endpoint + 1);
    format!("endpoint-{digest:08X}-shop/item-{service}/tcp/http__{endpoint}")
}

/// A number in place of the hash in kube-proxy's chain names.
fn fake_hash(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1) ^ 0x5bd1_e995
}

/// The address at an offset from another one.
fn nth(network: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(network).wrapping_add(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_and_endpoint_has_a_chain_and_a_map_entry() {
        let text = rules(Cluster::East, 5);
        assert_eq!(text.matches("    chain service-").count(), 5 + 1);
        assert_eq!(
            text.matches("    chain endpoint-").count(),
            5 * usize::try_from(ENDPOINTS).unwrap()
        );
        for service in 0..5 {
            let goto = format!(". tcp . 80 : goto {}", service_chain(service));
            assert_eq!(text.matches(&goto).count(), 1, "{goto}");
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    #[test]
    fn chain_names_are_unique() {
        let names: std::collections::BTreeSet<String> = (0..SERVICES)
            .flat_map(|service| (0..ENDPOINTS).map(move |endpoint| endpoint_chain(service, endpoint)))
            .chain((0..SERVICES).map(service_chain))
            .collect();
        assert_eq!(names.len(), usize::try_from(SERVICES * (ENDPOINTS + 1)).unwrap());
    }

    #[test]
    fn no_service_or_endpoint_uses_an_address_of_the_topology() {
        for cluster in Cluster::ALL {
            let text = rules(cluster, SERVICES);
            assert!(!text.contains(&format!("dnat to {}:", cluster.pod_ip())));
            assert!(!text.contains(&format!(" {} . tcp", cluster.pod_ip())));
        }
    }
}
