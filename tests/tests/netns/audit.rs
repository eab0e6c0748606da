//! Audited network policies: packets pass as without them, and each one that a rule would drop is counted and logged.

use std::net::Ipv4Addr;

use mc_tests::{
    topology::{Cluster, Place},
    wait::wait_for,
};
use serde_json::json;

use crate::{
    fixture::wait_for_log,
    identities::{remove, write},
    observability::{inspect, row},
    pod_policies::{Bed, FAR, LOCAL, server, start},
    policies::{TIMEOUT, get_from, write_policy},
};

const AUDIT: &str = "annotations: {mc-gateway.io/enforcementAction: Audit}, ";

/// Writes the policy `clients-only`, which allows requests of clients in the own cluster and nothing else.
fn write_clients_only(bed: &Bed, annotations: &str) {
    let text = format!(
        "apiVersion: crd.antrea.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {{{annotations}name: clients-only}}\n\
         spec:\n  priority: 1\n  tier: securityops\n  appliedTo: [{{podSelector: {{matchLabels: {{app: server}}}}}}]\n  \
         ingress:\n  - action: Allow\n    from: [{{podSelector: {{matchLabels: {{app: client}}}}}}]\n  - action: Drop\n"
    );
    write(&bed.hosts, Cluster::West, "clients-only.yaml", &text);
}

/// Waits for the log line of a packet of `sender` that the last rule of the audited policy would drop.
fn wait_logged(bed: &mut Bed, program: &str, sender: &str) {
    let program = format!("program=\"{program}\"");
    let words = [
        "packet passes, an audited rule would drop it",
        "reason=\"audit\"",
        &program,
        "policy=\"ClusterNetworkPolicy clients-only\"",
        "rule=\"spec.ingress[1]\"",
        sender,
    ];
    wait_for_log(&mut bed.hosts, Place::NodeWest, &words);
}

/// Traces name the audited rule, and agree with the programs.
fn check_traces(bed: &Bed, server: Ipv4Addr) {
    let allowed = "ClusterNetworkPolicy clients-only spec.ingress[0] would decide: Allow (audit)";
    let dropped = "ClusterNetworkPolicy clients-only spec.ingress[1] would decide: Drop (audit)";
    for (sender, rule) in [(FAR, allowed), (LOCAL, dropped)] {
        let (sender, server) = (sender.to_string(), server.to_string());
        bed.check_trace(
            &[&sender, &server, "tcp:8080", "--from", "pod"],
            0,
            &[rule, "=> pass"],
        );
    }
}

#[test]
fn an_audited_policy_counts_and_logs_and_drops_nothing() {
    let mut bed = start("audit", false);
    let server = server();
    write_clients_only(&bed, AUDIT);
    wait_for("the audited rule counts requests that pass", TIMEOUT, || {
        get_from(&bed.hosts, &bed.local, server)?;
        let rules = inspect(&bed.hosts, Place::NodeWest, "rules");
        let mut counters = rules.as_array().into_iter().flatten();
        let counts =
            counters.any(|row| row["rule"] == "spec.ingress[1]" && row["packets"].as_u64() > Some(0));
        counts.then_some(()).ok_or_else(|| rules.to_string())
    })
    .expect("a counter");
    for (what, client) in bed.clients() {
        bed.wait_passing(client, server, what);
    }
    wait_logged(&mut bed, "to_pod", "src_pod=\"shop/local\"");
    wait_logged(&mut bed, "from_remote", "src_cluster=\"east\"");
    let rules = inspect(&bed.hosts, Place::NodeWest, "rules");
    for (rule, action) in [
        ("spec.ingress[0]", "Allow (audit)"),
        ("spec.ingress[1]", "Drop (audit)"),
    ] {
        let row = row(&rules, "rule", rule);
        assert_eq!(row["action"], json!(action));
        assert!(row["packets"].as_u64() > Some(0), "{rules}");
    }
    check_traces(&bed, server);
    // Another policy decides as without the audited one, which precedes it.
    let other = "  - action: Drop\n    from: [{podSelector: {matchLabels: {app: other}}}]\n";
    write_policy(&bed.hosts, Cluster::West, other);
    bed.wait_dropped(&bed.local, server, "policy", "the other policy drops");
    bed.wait_passing(&bed.far, server, "the other policy does not concern it");
    bed.wait_passing(
        bed.hosts.netns(Place::PodEast),
        server,
        "the other policy does not concern another cluster",
    );
    write_clients_only(&bed, "");
    bed.wait_dropped(
        bed.hosts.netns(Place::PodEast),
        server,
        "policy",
        "the policy is enforced",
    );
    remove(&bed.hosts, Cluster::West, "policy.yaml");
    bed.wait_dropped(&bed.local, server, "policy", "the policy is enforced alone");
    bed.wait_passing(&bed.far, server, "a client");
}
