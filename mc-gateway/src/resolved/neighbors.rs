//! Neighbors that the data path needs, compared with the limits of the kernel's neighbor tables. Pure.

use super::Underlay;
use crate::objects::FieldError;

/// Largest number of entries of the neighbor tables (`gc_thresh3`); none if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighborLimits {
    /// IPv4.
    pub v4: Option<u32>,
    /// IPv6.
    pub v6: Option<u32>,
}

/// Issues of limits below the number of neighbors towards next hops and peers: the kernel drops packets to those
/// without an entry.
pub(super) fn issues(underlay: &Underlay, limits: NeighborLimits, node_name: &str) -> Vec<FieldError> {
    let neighbors = underlay.neighbors_on_routes();
    let check = |family, is_ipv6, limit: Option<u32>| {
        let of_family = neighbors.iter().filter(|(_, addr)| addr.is_ipv6() == is_ipv6);
        let needed = u32::try_from(of_family.count()).unwrap_or(u32::MAX);
        let limit = limit.filter(|limit| *limit < needed)?;
        Some(FieldError {
            object: format!("Node {node_name}"),
            field: format!("net.{family}.neigh.default.gc_thresh3"),
            value: limit.to_string(),
            reason: format!(
                "is below the {needed} neighbors of next hops and peers: the kernel drops packets to those without an \
                 entry; set it to at least {}, since Pods and other hosts have entries as well",
                needed.saturating_mul(2)
            ),
        })
    };
    let v4 = check("ipv4", false, limits.v4);
    v4.into_iter().chain(check("ipv6", true, limits.v6)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::resolved::UnderlayRoute;

    fn underlay(neighbors: &[&str]) -> Underlay {
        let routes = (1_u32..).zip(neighbors).map(|(number, neighbor)| {
            let route = UnderlayRoute {
                ifindex: 2,
                device: "eth0".into(),
                link_address: None,
                source: [192, 0, 2, 1].into(),
                mtu: 1500,
                neighbor: neighbor.parse().ok(),
            };
            (IpAddr::from(number.to_be_bytes()), route)
        });
        Underlay {
            routes: routes.collect(),
            ..Underlay::default()
        }
    }

    fn texts(neighbors: &[&str], v4: Option<u32>, v6: Option<u32>) -> Vec<String> {
        let issues = issues(&underlay(neighbors), NeighborLimits { v4, v6 }, "n1");
        issues.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_limit_below_the_number_of_neighbors_is_reported() {
        let neighbors = ["192.0.2.7", "192.0.2.8", "192.0.2.9", "fe80::1", "fe80::2"];
        let reported = texts(&neighbors, Some(2), Some(1));
        assert!(
            reported[0].starts_with(
                "Node n1: net.ipv4.neigh.default.gc_thresh3: \"2\" is below the 3 neighbors of next hops and peers"
            ) && reported[0].contains("at least 6"),
            "{reported:?}"
        );
        assert!(
            reported[1].starts_with("Node n1: net.ipv6.neigh.default.gc_thresh3: \"1\" is below the 2"),
            "{reported:?}"
        );
        assert_eq!(texts(&neighbors, Some(3), Some(2)), Vec::<String>::new());
    }

    #[test]
    fn one_router_is_one_neighbor() {
        let routers = ["192.0.2.254"; 5];
        assert_eq!(texts(&routers, Some(1), Some(0)), Vec::<String>::new());
    }

    #[test]
    fn an_unknown_limit_and_an_unknown_neighbor_are_no_issues() {
        assert_eq!(texts(&["192.0.2.7", "fe80::1"], None, None), Vec::<String>::new());
        assert_eq!(texts(&["multipath"], Some(0), Some(0)), Vec::<String>::new());
    }
}
