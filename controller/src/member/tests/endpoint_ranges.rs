//! Imported endpoints outside the ranges of their cluster (finding S2).

use super::*;
use crate::snapshot::{fake::delete, get};

/// Service `web` of cluster `west`, which announces Services 10.40.0.0/16 and Pods 10.41.0.0/16, and of `south`, which
/// announces nothing.
fn imported(west: &[&str], south: &[&str]) -> MemberSnapshot {
    let mut snapshot = snapshot();
    insert(&mut snapshot.nodes, candidate("node-a", true, "172.18.0.1"));
    insert(&mut leader(&mut snapshot).imports, network());
    import(&mut snapshot, west, south);
    snapshot
}

fn network() -> ResourceImport {
    let mut info = import_info("west", "10.40.0.0/16", &["172.19.0.1"]);
    let content = info.spec.cluster_info.as_mut().unwrap();
    content.pod_cidrs = vec!["10.41.0.0/16".to_owned()];
    info
}

fn import(snapshot: &mut MemberSnapshot, west: &[&str], south: &[&str]) {
    let clusters = [("west", west), ("south", south)].map(|(cluster, ips)| {
        let ips = ips.iter().map(|&ip| ip.to_owned());
        (cluster, ips.collect())
    });
    insert(&mut leader(snapshot).imports, import_service("shop", "web"));
    insert(
        &mut leader(snapshot).imports,
        import_endpoints("shop", "web", &clusters),
    );
    settle(snapshot);
}

#[test]
fn endpoints_outside_the_ranges_of_their_cluster_are_left_out() {
    let west = ["10.40.0.5", "10.41.3.3", "10.50.0.1", "172.19.0.1"];
    let south = ["10.60.0.1", "10.41.3.3"];
    let snapshot = imported(&west, &south);
    let ips = imported_ips(&snapshot);
    assert_eq!(ips["west"], ["10.40.0.5", "10.41.3.3"]);
    assert_eq!(ips["south"], ["10.60.0.1"]);
    let plan = plan(&snapshot);
    assert_issue(
        &plan,
        "endpoint of cluster \"west\": 10.50.0.1 is outside the Service and Pod CIDRs that cluster \"west\" \
         announces; left out, and 1 more addresses",
    );
    assert_issue(
        &plan,
        "endpoint of cluster \"south\": 10.41.3.3 is in 10.41.0.0/16 of cluster \"west\"; left out",
    );
}

#[test]
fn no_cluster_exports_addresses_of_this_one() {
    let mut snapshot = imported(&["10.40.0.5"], &["10.60.0.1"]);
    // A Service, a Pod and a Node of this cluster; with a range that west announces, too.
    let mut wide = network();
    let content = wide.spec.cluster_info.as_mut().unwrap();
    let ours = ["10.20.0.0/16", "10.11.0.0/16", "172.18.0.0/16"].map(str::to_owned);
    content.pod_cidrs.extend(ours);
    insert(&mut leader(&mut snapshot).imports, wide);
    for ip in ["10.20.0.1", "10.11.6.4", "172.18.0.1", "127.0.0.1"] {
        import(&mut snapshot, &[ip], &["10.60.0.1", ip]);
        let ips = imported_ips(&snapshot);
        assert_eq!(ips.get("west"), None, "{ip}");
        assert_eq!(ips["south"], ["10.60.0.1"], "{ip}");
        let imports = get(&snapshot.service_imports, "shop", "web").unwrap();
        let clusters = imports.status.clone().unwrap_or_default().clusters;
        assert_eq!(clusters.len(), 1, "{ip}: {clusters:?}");
    }
    snapshot.config.additional_endpoint_cidrs = vec!["0.0.0.0/0".parse().unwrap()];
    import(&mut snapshot, &["172.18.0.1", "192.0.2.1"], &["10.60.0.1"]);
    assert_eq!(imported_ips(&snapshot)["west"], ["192.0.2.1"]);
}

/// The ranges of a cluster stay while a replaced leader does not offer them yet.
#[test]
fn ranges_outlast_the_leaders_copy() {
    let mut snapshot = imported(&["10.40.0.5"], &["10.60.0.1"]);
    let until = snapshot.now + SignedDuration::from_secs(60);
    leader(&mut snapshot).suppress_deletions_until = Some(until);
    let key = NamespacedName::from(&network().metadata);
    delete(&mut leader(&mut snapshot).imports, &key);
    import(&mut snapshot, &["10.40.0.5"], &["10.41.0.1"]);
    // No deletion of the earlier endpoint either.
    assert_eq!(imported_ips(&snapshot)["south"], ["10.60.0.1"]);
}

#[test]
fn prefixes_and_endpoints_outside_the_accepted_ranges_are_left_out() {
    let mut snapshot = imported(&["10.40.0.5", "10.41.3.3"], &["10.60.0.1"]);
    snapshot.config.accepted_cidrs = vec!["10.40.0.0/15".parse().unwrap()];
    let mut wide = network();
    let content = wide.spec.cluster_info.as_mut().unwrap();
    content.pod_cidrs.push("10.42.0.0/16".to_owned());
    insert(&mut leader(&mut snapshot).imports, wide);
    settle(&mut snapshot);
    let info = &snapshot.cluster_infos.values().next().unwrap().spec;
    assert_eq!(
        (info.service_cidr.as_str(), &info.pod_cidrs[..]),
        ("10.40.0.0/16", &["10.41.0.0/16".to_owned()][..])
    );
    let ips = imported_ips(&snapshot);
    assert_eq!(ips["west"], ["10.40.0.5", "10.41.3.3"]);
    assert_eq!(ips.get("south"), None);
    let plan = plan(&snapshot);
    assert_issue(
        &plan,
        "10.42.0.0/16 is outside acceptedCIDRs of this cluster's configuration; left out",
    );
    assert_issue(
        &plan,
        "10.60.0.1 is outside acceptedCIDRs of this cluster's configuration",
    );
    let ready = |snapshot: &MemberSnapshot| {
        let import = snapshot.cluster_infos.values().next().unwrap();
        let ready = import.status.as_ref().unwrap().conditions[0].clone();
        (ready.status, ready.reason)
    };
    assert_eq!(
        ready(&snapshot),
        ("False".to_owned(), "PrefixNotAccepted".to_owned())
    );
    snapshot.config.accepted_cidrs = vec![];
    settle(&mut snapshot);
    assert_eq!(ready(&snapshot), ("True".to_owned(), "Accepted".to_owned()));
    snapshot.config.accepted_cidrs = vec!["10.41.0.0/16".parse().unwrap()];
    settle(&mut snapshot);
    assert_eq!(
        snapshot.cluster_infos.values().next().unwrap().spec.service_cidr,
        ""
    );
    assert_eq!(imported_ips(&snapshot)["west"], ["10.41.3.3"]);
}
