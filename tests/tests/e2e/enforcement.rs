//! Network policies of the user guide, enforced on packets from another cluster and of the own one.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    address_groups::{ADDRESS_GROUP_SLICES, check_address_groups, check_group_traffic},
    bypassing_cni::check_bypassing_cni,
    cluster_policies::{check_isolation, check_services, delete_isolation},
    clusters::{Cluster, EAST, SHORT_TIMEOUT, WEST},
    egress_policies::check_egress,
    label_latency::check_label_latency,
    pod_start::check_pod_start,
    policies::{set_stretched_policy, wait_label_id},
    policy_actions::check_actions,
    selected_identities::check_selected_identities,
    workload::{Client, Namespace, in_parallel},
};

const ENFORCED: &str = "--policy-enforcement=all";

/// The same in a cluster without Antrea.
const AUTO: &str = "--policy-enforcement=auto";

/// The CRDs of policies, for clusters without Antrea.
const CRDS: &str = include_str!("../../../deploy/mc-gateway-policy-crds.yml");

pub(crate) const CLUSTER_POLICY: &str = "clusternetworkpolicies.crd.antrea.io";
const POLICY: &str = "networkpolicies.crd.antrea.io";
const CLUSTER_GROUP: &str = "clustergroups.crd.antrea.io";
const GROUP: &str = "groups.crd.antrea.io";

/// "Ingress Rule" of the user guide, the first example.
const DROP_TENANTS: &str = "apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata:
  name: drop-tenant-access-to-admin-namespace
spec:
  appliedTo:
  - namespaceSelector:
      matchLabels:
        role: admin
  priority: 1
  tier: securityops
  ingress:
  - action: Deny
    from:
    # Select all Pods in role=tenant Namespaces in the ClusterSet
    - scope: ClusterSet
      namespaceSelector:
        matchLabels:
          role: tenant
";

/// The second one.
const CLIENTS_ONLY: &str = "apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata:
  name: db-svc-allow-ingress-from-client-only
  namespace: prod-us-west
spec:
  appliedTo:
  - podSelector:
      matchLabels:
        app: db
  priority: 1
  tier: application
  ingress:
  - action: Allow
    from:
    # Select all Pods in Namespace \"prod-us-west\" from all clusters in the ClusterSet (if the
    # Namespace exists in that cluster) whose labels match app=client
    - scope: ClusterSet
      podSelector:
        matchLabels:
          app: client
  - action: Deny
";

/// A group of a group that does not exist yet, and a policy that applies to it.
const PARENT_GROUP: &str = "apiVersion: crd.antrea.io/v1beta1
kind: ClusterGroup
metadata: {name: e2e-databases}
spec: {childGroups: [e2e-db]}
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: e2e-by-group}
spec:
  priority: 1
  tier: securityops
  appliedTo:
  - group: e2e-databases
  ingress:
  - action: Drop
    from:
    - scope: ClusterSet
      namespaceSelector: {}
";

/// The Pods of the group above, and a Group of a Namespace.
const GROUPS: &str = "apiVersion: crd.antrea.io/v1beta1
kind: ClusterGroup
metadata: {name: e2e-db}
spec:
  podSelector: {matchLabels: {app: db}}
---
apiVersion: crd.antrea.io/v1beta1
kind: Group
metadata: {name: db, namespace: prod-us-west}
spec:
  podSelector: {matchLabels: {app: db}}
";

const GROUP_POLICY: &str = "apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: by-group, namespace: prod-us-west}
spec:
  priority: 1
  tier: application
  appliedTo:
  - group: db
  ingress:
  - action: Drop
    from:
    - scope: ClusterSet
      namespaceSelector: {}
";

/// A policy with a field that is not enforced.
const UNSUPPORTED: &str = "apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata:
  name: e2e-unsupported
spec:
  appliedTo:
  - namespaceSelector:
      matchLabels:
        role: admin
  priority: 2
  tier: securityops
  ingress:
  - action: Drop
    from:
    - fqdn: www.example.com
";

/// Longest time until packets are in a status: agents and the controller write counters alone once a minute.
const COUNTER_TIMEOUT: Duration = Duration::from_secs(150);

/// Waits until the status of a policy of west is as wanted; returns it.
pub(crate) fn wait_status(kind: &str, namespace: &str, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    wait_status_within(SHORT_TIMEOUT, kind, namespace, name, wanted)
}

fn wait_status_within(
    timeout: Duration,
    kind: &str,
    namespace: &str,
    name: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    WEST.wait_for(&format!("the status of {kind} {name}"), timeout, || {
        let policy = WEST.get(namespace, kind, name);
        let status = policy.map(|policy| policy["status"].clone()).unwrap_or_default();
        if wanted(&status) {
            Ok(status)
        } else {
            Err(status.to_string())
        }
    })
}

/// Whether all of this number of Nodes enforce the policy.
pub(crate) fn is_realized(status: &Value, nodes: u64) -> bool {
    status["phase"] == "Realized"
        && status["currentNodesRealized"] == nodes
        && status["desiredNodesRealized"] == nodes
}

/// Whether a rule has decided on packets.
fn has_counters(status: &Value, rule: &str) -> bool {
    let is_positive = |count: &Value| count.as_u64().is_some_and(|count| count > 0);
    let mut rules = status["ruleTrafficStats"].as_array().into_iter().flatten();
    let found = rules.find(|found| found["name"] == rule);
    let is_counted = found
        .map(|found| &found["trafficStats"])
        .is_some_and(|stats| is_positive(&stats["packets"]) && is_positive(&stats["bytes"]));
    is_counted && status["trafficStatsTime"].is_string()
}

fn check_unsupported_field() {
    WEST.apply(UNSUPPORTED);
    let status = wait_status(CLUSTER_POLICY, "", "e2e-unsupported", |status| {
        status["phase"] == "Failed"
    });
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let failure = conditions
        .iter()
        .find(|condition| condition["type"] == "RealizationFailure");
    let message = failure
        .and_then(|failure| failure["message"].as_str())
        .unwrap_or_default();
    for part in [
        "spec.ingress[0].from[0].fqdn: \"www.example.com\"",
        "west-n1",
        "west-n2",
    ] {
        assert!(message.contains(part), "{part:?} is not in {status}");
    }
    WEST.kubectl(&["delete", CLUSTER_POLICY, "e2e-unsupported"]);
}

/// A Pod of west that answers requests, by its first address.
pub(crate) fn server(ns: &Namespace, node: &str, name: &'static str) -> String {
    ns.pod(WEST, node, name, &["echo-server", "--port=8080"]);
    format!("http://{}:8080/", ns.pod_ip(WEST, &format!("app={name}")))
}

/// Whether a request is answered.
fn is_answered(client: Client, url: &str) -> bool {
    client.run(&["get", "--timeout", "1", url]).is_ok()
}

/// Waits until each client is answered by all servers, or by none; returns the time this took.
fn wait_answered(what: &str, clients: &[Client], urls: &[String], answered: bool) -> Duration {
    let start = Instant::now();
    WEST.wait_for(what, SHORT_TIMEOUT, || {
        let pairs = clients
            .iter()
            .flat_map(|client| urls.iter().map(move |url| (*client, url)));
        // A dropped request takes a second.
        let results = in_parallel(pairs.map(|(client, url)| {
            move || {
                let is_wrong = is_answered(client, url) != answered;
                is_wrong.then(|| format!("{} to {url}", client.ip()))
            }
        }));
        let wrong: Vec<String> = results.into_iter().flatten().collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(wrong.join(", "))
        }
    });
    println!("enforcement: {what} after {:?}", start.elapsed());
    start.elapsed()
}

pub(crate) fn label_namespace(cluster: Cluster, ns: &Namespace, label: &str) {
    cluster.kubectl(&["label", "namespace", ns.0, label, "--overwrite"]);
}

fn check_tenants() {
    let [tenant, admin, plain] = ["e2e-tenant", "e2e-admin", "e2e-plain"].map(Namespace::create);
    label_namespace(EAST, &tenant, "role=tenant");
    label_namespace(WEST, &admin, "role=admin");
    admin.servers(WEST, "west-n2", 1);
    // On the gateway and on a regular node, clients and servers alike.
    let urls = [
        server(&admin, "west-n1", "at-gateway"),
        format!("http://{}:8080/", admin.pod_ip(WEST, "app=web")),
    ];
    let tenants = [
        tenant.client(EAST, "east-n2"),
        tenant.client_named(EAST, "east-n1", "gateway-client"),
    ];
    let other = plain.client(EAST, "east-n2");
    let ns = format!("ns:kubernetes.io/metadata.name={},role=tenant", tenant.0);
    wait_label_id(WEST, &format!("{ns}&pod:app=client"));
    wait_label_id(WEST, &format!("{ns}&pod:app=gateway-client"));
    wait_answered("tenants reach servers without a policy", &tenants, &urls, true);
    // Requests that no policy concerns are answered all the time.
    let mut stream = other.stream(&urls[1]);
    WEST.apply(DROP_TENANTS);
    wait_answered("tenants are dropped", &tenants, &urls, false);
    wait_status(
        CLUSTER_POLICY,
        "",
        "drop-tenant-access-to-admin-namespace",
        |status| is_realized(status, 2),
    );
    check_bypassing_cni("drop-tenant-access-to-admin-namespace");
    wait_answered("tenants are dropped all the same", &tenants, &urls, false);
    label_namespace(EAST, &tenant, "role-");
    wait_answered(
        "clients in a Namespace without the label pass",
        &tenants,
        &urls,
        true,
    );
    label_namespace(EAST, &tenant, "role=tenant");
    wait_answered("tenants are dropped again", &tenants, &urls, false);
    label_namespace(WEST, &admin, "role-");
    wait_answered("the policy selects no server", &tenants, &urls, true);
    label_namespace(WEST, &admin, "role=admin");
    wait_answered("the policy selects the servers again", &tenants, &urls, false);
    stream.assert_running();
    check_group_traffic();
    WEST.set_agent_flag(ENFORCED, false);
    wait_answered("tenants pass while policies are off", &tenants, &urls, true);
    WEST.set_agent_flag(ENFORCED, true);
    wait_answered(
        "tenants are dropped while policies are on",
        &tenants,
        &urls,
        false,
    );
    stream.finish();
    WEST.kubectl(&["delete", CLUSTER_POLICY, "--all"]);
    wait_answered("tenants pass without the policy", &tenants, &urls, true);
}

/// The clients of a policy that lets some of them pass, and its server.
struct ClientsOnly {
    ns: Namespace,
    /// The Namespace of the last client.
    _elsewhere: Namespace,
    clients: [Client; 3],
    urls: [String; 1],
}

impl ClientsOnly {
    const POLICY: &'static str = "db-svc-allow-ingress-from-client-only";

    /// Checks the policy, which stays.
    fn check() -> Self {
        let ns = Namespace::create("prod-us-west");
        let elsewhere = Namespace::create("e2e-elsewhere");
        let urls = [server(&ns, "west-n2", "db")];
        let client = ns.client(EAST, "east-n2");
        let intruder = ns.client_named(EAST, "east-n2", "intruder");
        let stranger = elsewhere.client(EAST, "east-n2");
        let open = server(&ns, "west-n1", "open");
        check_pod_start("without a policy", &ns, &open);
        WEST.apply(CLIENTS_ONLY);
        wait_answered("others are dropped", &[intruder, stranger], &urls, false);
        wait_answered("clients of the Namespace pass", &[client], &urls, true);
        wait_status(POLICY, ns.0, Self::POLICY, |status| is_realized(status, 1));
        check_pod_start("with a policy for other Pods", &ns, &open);
        let label = |label| EAST.kubectl(&["label", "pod", "intruder", label, "--overwrite", "-n", ns.0]);
        label("app=client");
        wait_answered(
            "a Pod with the label of a client passes",
            &[intruder],
            &urls,
            true,
        );
        label("app=intruder");
        wait_answered("a Pod without it is dropped", &[intruder], &urls, false);
        check_label_latency(&ns, intruder, &urls[0]);
        check_audit(&ns, intruder, &urls);
        check_selected_identities(
            &ns,
            client,
            &urls[0],
            || drop(WEST.kubectl(&["delete", POLICY, "--all", "-n", ns.0])),
            || WEST.apply(CLIENTS_ONLY),
        );
        wait_answered("others are dropped again", &[intruder, stranger], &urls, false);
        Self {
            ns,
            _elsewhere: elsewhere,
            clients: [client, intruder, stranger],
            urls,
        }
    }

    /// Both rules have decided on packets, which its status shows.
    fn check_counters(&self) {
        wait_status_within(COUNTER_TIMEOUT, POLICY, self.ns.0, Self::POLICY, |status| {
            ["spec.ingress[0]", "spec.ingress[1]"]
                .iter()
                .all(|rule| has_counters(status, rule))
        });
    }

    /// Deletes the policy.
    fn finish(&self) {
        WEST.kubectl(&["delete", POLICY, "--all", "-n", self.ns.0]);
        wait_answered("all pass without the policy", &self.clients, &self.urls, true);
    }
}

/// While the policy is audited, the client that it drops passes, and the log of the server's agent names the rule.
fn check_audit(ns: &Namespace, client: Client, servers: &[String]) {
    let annotate = |annotation: &str| {
        WEST.kubectl(&[
            "annotate",
            POLICY,
            ClientsOnly::POLICY,
            annotation,
            "--overwrite",
            "-n",
            ns.0,
        ]);
    };
    annotate("mc-gateway.io/enforcementAction=Audit");
    wait_answered("a client of an audited policy passes", &[client], servers, true);
    let source = format!("src={}", client.ip());
    WEST.wait_for("the audited rule in the log", SHORT_TIMEOUT, || {
        let agents = ["logs", "-n", "kube-system", "-l", "app=mc-gateway", "--tail=-1"];
        let log = WEST.try_kubectl(&agents)?;
        let mut lines = log
            .lines()
            .filter(|line| line.contains("audited rule would drop"));
        let rule = "rule=\"spec.ingress[1]\"";
        if lines.any(|line| line.contains(&source) && line.contains(rule)) {
            Ok(())
        } else {
            Err(format!("no line with {source} and {rule}"))
        }
    });
    annotate("mc-gateway.io/enforcementAction-");
    wait_answered("it is dropped without the annotation", &[client], servers, false);
}

/// Policies apply to the members of groups, whose status is Antrea's.
fn check_groups(ns: &Namespace, clients: &[Client], servers: &[String]) {
    let is_computed = |status: &Value, wanted: &str| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut conditions = conditions.filter(|condition| condition["type"] == "GroupMembersComputed");
        conditions
            .any(|condition| condition["status"] == wanted && condition["lastTransitionTime"].is_string())
    };
    WEST.apply(PARENT_GROUP);
    wait_status(CLUSTER_GROUP, "", "e2e-databases", |status| {
        is_computed(status, "False")
    });
    WEST.wait_for("an Event about the group", SHORT_TIMEOUT, || {
        let events = WEST.list("", "events", "");
        let mut messages = events
            .iter()
            .filter_map(|event| event["note"].as_str().or(event["message"].as_str()));
        if messages.any(|message| message.contains("spec.childGroups: \"e2e-db\" does not exist")) {
            Ok(())
        } else {
            Err(format!("{} Events", events.len()))
        }
    });
    WEST.apply(GROUPS);
    for name in ["e2e-db", "e2e-databases"] {
        wait_status(CLUSTER_GROUP, "", name, |status| is_computed(status, "True"));
    }
    wait_status(GROUP, ns.0, "db", |status| is_computed(status, "True"));
    wait_answered("Pods of a group of groups are dropped", clients, servers, false);
    WEST.kubectl(&["delete", CLUSTER_POLICY, "e2e-by-group"]);
    wait_answered("all pass without the policy of the group", clients, servers, true);
    WEST.apply(GROUP_POLICY);
    wait_answered("Pods of a Group are dropped", clients, servers, false);
    WEST.kubectl(&["delete", POLICY, "by-group", "-n", ns.0]);
    WEST.kubectl(&["delete", CLUSTER_GROUP, "--all"]);
    WEST.kubectl(&["delete", GROUP, "--all", "-n", ns.0]);
    wait_answered("all pass without groups", clients, servers, true);
}

#[test]
fn policies_of_the_user_guide_are_enforced() {
    let result = std::panic::catch_unwind(|| {
        set_stretched_policy("true");
        WEST.apply(CRDS);
        WEST.set_agent_flag(ENFORCED, true);
        WEST.wait_for("the default Tiers", SHORT_TIMEOUT, || {
            let tiers = WEST.list("", "tiers.crd.antrea.io", "").len();
            if tiers == 6 {
                Ok(())
            } else {
                Err(format!("{tiers} Tiers"))
            }
        });
        check_address_groups();
        check_tenants();
        let clients_only = ClientsOnly::check();
        // Reports with counters are written with those about other policies.
        check_actions();
        check_unsupported_field();
        clients_only.check_counters();
        clients_only.finish();
        check_groups(&clients_only.ns, &clients_only.clients, &clients_only.urls);
        drop(clients_only);
        EAST.apply(CRDS);
        EAST.set_agent_flag(AUTO, true);
        check_services();
        check_egress();
        check_isolation();
    });
    delete_isolation();
    for (member, flag) in [(EAST, AUTO), (WEST, ENFORCED)] {
        member.set_agent_flag(flag, false);
    }
    for (member, node) in [
        (EAST, "east-n1"),
        (EAST, "east-n2"),
        (WEST, "west-n1"),
        (WEST, "west-n2"),
    ] {
        member.wait_gone("kube-system", "nodepolicystatuses", node, SHORT_TIMEOUT);
    }
    for member in [EAST, WEST] {
        member.wait_for("no AddressGroupSlices", SHORT_TIMEOUT, || {
            let slices = member.list("kube-system", ADDRESS_GROUP_SLICES, "");
            if slices.is_empty() {
                Ok(())
            } else {
                Err(format!("{slices:?}"))
            }
        });
    }
    for plural in [
        "clusternetworkpolicies",
        "networkpolicies",
        "clustergroups",
        "groups",
        "tiers",
    ] {
        let name = format!("{plural}.crd.antrea.io");
        for member in [EAST, WEST] {
            member.kubectl(&["delete", "crd", &name, "--ignore-not-found"]);
        }
    }
    set_stretched_policy("false");
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}
