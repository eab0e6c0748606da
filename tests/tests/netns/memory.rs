//! Memory usage of an agent.

use std::{fmt::Write as _, fs, net::Ipv4Addr};

use mc_tests::{
    topology::{Cluster, Place},
    wait::wait_for,
};

use crate::fixture::{TIMEOUT, connected};

/// Additional clusters.
const CLUSTERS: u32 = 100;

/// First address of their Pod CIDRs.
const FIRST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);

/// The promised limits in MiB.
const LIMIT_10_000: u64 = 30;
const LIMIT_100_000: u64 = 60;

/// A manifest of the additional clusters, with `prefixes` prefixes in total: one Service CIDR and Pod CIDRs.
fn manifest(prefixes: u32) -> String {
    let each = prefixes / CLUSTERS;
    let mut text = String::new();
    for cluster in 0..CLUSTERS {
        write!(
            text,
            "---\napiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: ClusterInfoImport\nmetadata:\n  name: c{cluster}\n  \
             namespace: kube-system\nspec:\n  clusterID: c{cluster}\n  serviceCIDR: 172.16.{cluster}.0/24\n  \
             gatewayInfos: [{{gatewayIP: 198.51.100.{cluster}}}]\n  podCIDRs:\n"
        )
        .expect("text");
        for index in 0..each - 1 {
            let first = u32::from(FIRST) + (cluster * each + index) * 32;
            writeln!(text, "  - {}/27", Ipv4Addr::from(first)).expect("text");
        }
    }
    text
}

/// Announces the clusters and compares the memory of a gateway's agent with a limit.
fn check(name: &str, prefixes: u32, limit: u64) {
    let mut bed = connected(name);
    let before = resident_kib(bed.agent_pid(Place::GatewayEast).expect("a process"));
    // Gateways without a route would be omitted.
    bed.netns(Place::GatewayEast)
        .run(
            "ip",
            [
                "route",
                "add",
                "198.51.100.0/24",
                "via",
                &Cluster::West.gateway_net().addr().to_string(),
            ],
        )
        .expect("a route");
    let path = bed.manifests_dir(Cluster::East).join("many.yaml");
    fs::write(path, manifest(prefixes)).expect("manifests");
    wait_for("all prefixes on the gateway", TIMEOUT * 9, || {
        let log = bed
            .agent_log(Place::GatewayEast)
            .unwrap_or_else(|error| error.to_string());
        let last = log
            .lines()
            .rfind(|line| line.contains("datapath updated"))
            .map(str::to_owned);
        let count = last.as_deref().and_then(|line| {
            let (_, rest) = line.split_once("prefixes=")?;
            rest.split_whitespace().next()?.parse::<u32>().ok()
        });
        if count.is_some_and(|count| count >= prefixes) {
            return Ok(());
        }
        Err(format!("{last:?}, wanted prefixes={prefixes}"))
    })
    .expect("all prefixes");
    let pid = bed.agent_pid(Place::GatewayEast).expect("a process");
    let after = resident_kib(pid);
    println!(
        "agent with {prefixes} prefixes: {after} KiB resident ({before} KiB before), peak {} KiB",
        status_kib(pid, "VmHWM:")
    );
    assert!(
        after <= limit * 1024,
        "{after} KiB are more than {limit} MiB with {prefixes} prefixes"
    );
}

#[test]
fn ten_thousand_prefixes_fit_30_mib() {
    check("size", 10_000, LIMIT_10_000);
}

#[test]
fn a_hundred_thousand_prefixes_fit_60_mib() {
    check("size-100k", 100_000, LIMIT_100_000);
}

fn resident_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .expect(field);
    let kib = line.trim().strip_suffix(" kB").expect("KiB");
    kib.parse().expect("a number")
}
