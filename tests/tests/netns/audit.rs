//! Audited network policies: packets pass as without them, and each one that a rule would drop is counted and logged.

use std::net::Ipv4Addr;

use mc_tests::{
    netns::Netns,
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};
use serde_json::json;

use crate::{
    fixture::wait_for_log,
    identities::{remove, write, write_pod},
    observability::{inspect, row},
    pod_policies::{Bed, FAR, LOCAL, server, start},
    policies::{TIMEOUT, enforcing, get_from, manifest, wait_dropped, wait_passing, write_policy},
};

const AUDIT: &str = "{mc-gateway.io/enforcementAction: Audit}";

/// Writes a policy for the server in west.
fn write_for_server(bed: &Topology, name: &str, annotations: &str, ingress: &str) {
    let text = manifest(name, annotations, "server", "ingress", ingress);
    write(bed, Cluster::West, &format!("{name}.yaml"), &text);
}

/// Writes the policy `clients-only`, which allows requests of clients in the own cluster and nothing else.
fn write_clients_only(bed: &Bed, annotations: &str) {
    let rules =
        "  - action: Allow\n    from: [{podSelector: {matchLabels: {app: client}}}]\n  - action: Drop\n";
    write_for_server(&bed.hosts, "clients-only", annotations, rules);
}

/// Waits until a rule has counted packets of requests that pass.
fn wait_rule_counted(bed: &Topology, client: &Netns, rule: &str) {
    wait_for("the audited rule counts requests that pass", TIMEOUT, || {
        get_from(bed, client, server())?;
        let rules = inspect(bed, Place::NodeWest, "rules");
        let mut counters = rules.as_array().into_iter().flatten();
        let counts = counters.any(|row| row["rule"] == rule && row["packets"].as_u64() > Some(0));
        counts.then_some(()).ok_or_else(|| rules.to_string())
    })
    .expect("a counter");
}

/// Waits for the log line of a packet of `sender` that a rule of an audited policy would drop.
fn wait_logged(bed: &mut Topology, program: &str, (policy, rule): (&str, &str), sender: &str) {
    let program = format!("program=\"{program}\"");
    let words = [
        "packet passes, an audited rule would drop it",
        "reason=\"audit\"",
        &program,
        &format!("policy=\"ClusterNetworkPolicy {policy}\""),
        &format!("rule=\"{rule}\""),
        sender,
    ];
    wait_for_log(bed, Place::NodeWest, &words);
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
    wait_rule_counted(&bed.hosts, &bed.local, "spec.ingress[1]");
    for (what, client) in bed.clients() {
        bed.wait_passing(client, server, what);
    }
    let last = ("clients-only", "spec.ingress[1]");
    wait_logged(&mut bed.hosts, "to_pod", last, "src_pod=\"shop/local\"");
    wait_logged(&mut bed.hosts, "from_remote", last, "src_cluster=\"east\"");
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
    write_clients_only(&bed, "{}");
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

/// A rule with peers by labels in other clusters has senders of unknown identity dropped, also if it allows packets.
/// While such a rule was audited, they passed without a trace in counters and log.
#[test]
fn audited_peers_by_labels_count_and_log_unknown_senders() {
    let (mut bed, _server) = enforcing("unknown-audit");
    let rules =
        "  - action: Allow\n    from: [{scope: ClusterSet, podSelector: {matchLabels: {app: other}}}]\n";
    write_for_server(&bed, "others", AUDIT, rules);
    wait_passing(&bed, "a known sender");
    let unknown = "spec.ingress[0] unknown senders";
    write_pod(&bed, Cluster::East, "without-a-number", "Running");
    wait_rule_counted(&bed, bed.netns(Place::PodEast), unknown);
    let counted = inspect(&bed, Place::NodeWest, "rules");
    assert_eq!(row(&counted, "rule", unknown)["action"], json!("Drop (audit)"));
    wait_logged(
        &mut bed,
        "from_remote",
        ("others", unknown),
        "src_cluster=\"east\"",
    );
    write_for_server(&bed, "others", "{}", rules);
    wait_dropped(&bed, "identity-unknown", "the policy is enforced");
    write_pod(&bed, Cluster::East, "client", "Running");
    wait_passing(&bed, "a known sender that no rule matches");
    let enforced = inspect(&bed, Place::NodeWest, "rules").to_string();
    assert!(!enforced.contains("unknown senders"), "{enforced}");
}
