//! Memory usage of an agent.

use std::{fmt::Write as _, fs};

use mc_tests::{
    topology::{Cluster, Place},
    wait::wait_for,
};

use crate::fixture::{TIMEOUT, connected};

/// Additional clusters, and Pod CIDRs of each: 10,000 prefixes with the Service CIDRs.
const CLUSTERS: u32 = 100;
const PREFIXES: u32 = 99;
/// The promised limit of 30 MiB.
const MAX_RSS_KIB: u64 = 30 * 1024;

#[test]
fn ten_thousand_prefixes_fit_30_mib() {
    let mut bed = connected("size");
    let before = resident_kib(bed.agent_pid(Place::GatewayEast).expect("a process"));
    let mut text = String::new();
    for cluster in 0..CLUSTERS {
        write!(
            text,
            "---\napiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: ClusterInfoImport\nmetadata:\n  name: c{cluster}\n  \
             namespace: kube-system\nspec:\n  clusterID: c{cluster}\n  serviceCIDR: 172.16.{cluster}.0/24\n  \
             gatewayInfos: [{{gatewayIP: 198.51.100.{cluster}}}]\n  podCIDRs:\n"
        )
        .expect("text");
        for prefix in 0..PREFIXES {
            writeln!(
                text,
                "  - 100.{}.{}.0/24",
                64 + cluster / 2,
                cluster % 2 * 128 + prefix
            )
            .expect("text");
        }
    }
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
    fs::write(bed.manifests_dir(Cluster::East).join("many.yaml"), text).expect("manifests");
    let wanted = format!("prefixes={}", 10_000);
    wait_for("10,000 prefixes on the gateway", TIMEOUT * 9, || {
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
        if count.is_some_and(|count| count >= 10_000) {
            return Ok(());
        }
        Err(format!("{last:?}, wanted {wanted}"))
    })
    .expect("all prefixes");
    let pid = bed.agent_pid(Place::GatewayEast).expect("a process");
    let after = resident_kib(pid);
    println!(
        "agent with 10,000 prefixes: {} KiB resident ({before} KiB before), peak {} KiB",
        after,
        status_kib(pid, "VmHWM:")
    );
    assert!(after <= MAX_RSS_KIB, "{after} KiB are more than {MAX_RSS_KIB}");
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
