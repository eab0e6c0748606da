//! Policies of the user guide on packets between Pods of one cluster, and on those that Pods send: the isolation of
//! Namespaces, replicated from the leader, and egress to a multi-cluster Service.

use std::{collections::BTreeMap, time::Instant};

use crate::{
    clusters::{Cluster, EAST, LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, SHORT_TIMEOUT, WEST},
    policies::POLICIES,
    workload::{Client, Namespace, in_parallel},
};

/// Clients whose requests run at the same time.
const PARALLEL: usize = 9;
/// Names of the Pods of a Namespace, and the places of their Nodes in the list of a cluster's Nodes.
const PODS: [(&str, usize); 3] = [("a", 0), ("b", 1), ("c", 1)];

/// "ClusterNetworkPolicy Replication" of the user guide. `scope` is a line of each peer: the example has none.
fn isolation(scope: &str) -> String {
    format!(
        "apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ResourceExport
metadata:
  name: strict-namespace-isolation-for-test-clusterset
  namespace: {LEADER_NAMESPACE}
spec:
  kind: AntreaClusterNetworkPolicy
  name: strict-namespace-isolation
  clusterNetworkPolicy:
    priority: 1
    tier: securityops
    appliedTo:
      - namespaceSelector: {{}} # Selects all Namespaces in the member cluster
    ingress:
      - action: Pass
        from:
          - namespaces:
              match: Self # Skip drop rule for traffic from Pods in the same Namespace
{scope}          - podSelector:
              matchLabels:
                k8s-app: kube-dns # Skip drop rule for traffic from the core-dns components
{scope}      - action: Drop
        from:
          - namespaceSelector: {{}} # Drop from Pods from all other Namespaces
{scope}"
    )
}

/// Pods of one `ServiceAccount` are reached by those of another one only.
const ACCOUNT_ONLY: &str = "apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata:
  name: e2e-account-only
spec:
  priority: 1
  tier: securityops
  appliedTo:
    - serviceAccount: {name: default, namespace: e2e-iso-b}
  ingress:
    - action: Allow
      from:
        - serviceAccount: {name: default, namespace: e2e-iso-a}
    - action: Drop
";

/// A Pod of the matrix, which is client and server.
#[derive(Clone)]
struct Member {
    cluster: Cluster,
    namespace: &'static str,
    client: Client,
    ip: String,
}

impl Member {
    fn name(&self) -> String {
        format!("{}/{}", self.cluster.0, self.client.full_name())
    }

    /// The addresses that answer a request of this Pod, each within a second.
    fn answering(&self, all: &[Self]) -> Result<Vec<String>, String> {
        let list: Vec<&str> = all.iter().map(|other| other.ip.as_str()).collect();
        let script = format!(
            "for ip in {}; do ( /usr/bin/mc-traffic get --timeout 1 http://$ip:8080/ >/dev/null 2>&1 && echo $ip ) & done; \
             wait",
            list.join(" ")
        );
        let answers = self.client.shell(&script)?;
        Ok(answers.lines().map(str::to_owned).collect())
    }
}

/// Three Pods in each of three Namespaces of both clusters, on gateways and regular Nodes.
fn members(namespaces: &[Namespace; 3]) -> Vec<Member> {
    let clusters = [(EAST, ["east-n1", "east-n2"]), (WEST, ["west-n1", "west-n2"])];
    let pods = clusters.into_iter().flat_map(|(cluster, nodes)| {
        namespaces
            .iter()
            .flat_map(move |ns| PODS.map(|(name, node)| (cluster, ns, name, nodes[node])))
    });
    in_parallel(pods.map(|(cluster, ns, name, node)| {
        move || {
            let client = ns.client_serving(cluster, node, name);
            let ip = client.ip();
            Member {
                cluster,
                namespace: ns.0,
                client,
                ip,
            }
        }
    }))
}

/// The pairs of client and server whose result is not the expected one.
fn wrong_pairs(members: &[Member], expected: fn(&Member, &Member) -> bool) -> Vec<String> {
    let by_ip: BTreeMap<&str, &Member> = members
        .iter()
        .map(|member| (member.ip.as_str(), member))
        .collect();
    let mut wrong = Vec::new();
    for clients in members.chunks(PARALLEL) {
        let found = in_parallel(clients.iter().map(|client| move || client.answering(members)));
        for (client, answering) in clients.iter().zip(found) {
            let answering = answering.unwrap_or_else(|error| vec![error]);
            wrong.extend(
                answering
                    .iter()
                    .filter(|ip| !by_ip.contains_key(ip.as_str()))
                    .cloned(),
            );
            for server in members.iter().filter(|server| server.ip != client.ip) {
                let answered = answering.contains(&server.ip);
                if answered != expected(client, server) {
                    wrong.push(format!("{} to {}: {answered}", client.name(), server.name()));
                }
            }
        }
    }
    wrong
}

fn wait_matrix(what: &str, members: &[Member], expected: fn(&Member, &Member) -> bool) {
    let start = Instant::now();
    WEST.wait_for(what, LONG_TIMEOUT, || {
        let wrong = wrong_pairs(members, expected);
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "{} of {} pairs: {wrong:?}",
                wrong.len(),
                members.len() * (members.len() - 1)
            ))
        }
    });
    println!("enforcement: {what} after {:?}", start.elapsed());
}

/// Deletes the replicated policy, if it exists.
pub(crate) fn delete_isolation() {
    LEADER.kubectl(&[
        "delete",
        "resourceexport",
        "strict-namespace-isolation-for-test-clusterset",
        "-n",
        LEADER_NAMESPACE,
        "--ignore-not-found",
    ]);
}

/// Without a scope the policy isolates the Namespaces of each cluster, and the other cluster is no peer; with the scope
/// of the ClusterSet a Namespace is isolated from those of other names in all clusters.
pub(crate) fn check_isolation() {
    let namespaces = ["e2e-iso-a", "e2e-iso-b", "e2e-iso-c"].map(Namespace::create);
    let members = members(&namespaces);
    wait_matrix("all pairs without a policy", &members, |_, _| true);
    LEADER.apply(&isolation(""));
    wait_matrix("the isolation of each cluster", &members, |client, server| {
        client.cluster != server.cluster || client.namespace == server.namespace
    });
    LEADER.apply(&isolation("            scope: ClusterSet\n"));
    wait_matrix("the isolation in the ClusterSet", &members, |client, server| {
        client.namespace == server.namespace
    });
    delete_isolation();
    for member in [EAST, WEST] {
        member.wait_gone(
            "",
            POLICIES,
            "antrea-mc-strict-namespace-isolation",
            SHORT_TIMEOUT,
        );
    }
    WEST.apply(ACCOUNT_ONLY);
    wait_matrix("one account of the own cluster", &members, |client, server| {
        (server.cluster, server.namespace) != (WEST, "e2e-iso-b")
            || (client.cluster, client.namespace) == (WEST, "e2e-iso-a")
    });
    WEST.kubectl(&["delete", POLICIES, "e2e-account-only"]);
    wait_matrix("all pairs after the policies", &members, |_, _| true);
}

/// "Egress Rule to Multi-cluster Service" of the user guide; the Namespace of the example has no valid name.
fn drop_to_service(namespace: &str, name: &str, scope: &str) -> String {
    format!(
        "apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata:
  name: acnp-drop-tenant-to-secured-mc-service
spec:
  priority: 1
  tier: securityops
  appliedTo:
    - podSelector:
        matchLabels:
          role: tenant
  egress:
    - action: Drop
      toServices:
        - name: {name}
          namespace: {namespace}
{scope}"
    )
}

/// Pods with a label do not reach an imported Service, by both names of the user guide.
pub(crate) fn check_services() {
    let ns = Namespace::create("e2e-secured");
    ns.serve(WEST, "west-n2", 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    // On a regular Node and on a gateway.
    let pods = [
        ("east-n2", "client"),
        ("east-n1", "gateway-client"),
        ("east-n2", "other"),
    ];
    let created = in_parallel(pods.map(|(node, name)| {
        let ns = &ns;
        move || ns.client_named(EAST, node, name)
    }));
    let [ref clients @ .., other] = created[..] else {
        unreachable!("a client for each name")
    };
    let url = other.imported_url();
    for client in &created {
        client.get(&url);
    }
    let label = |label: &str| {
        for pod in ["client", "gateway-client"] {
            EAST.kubectl(&["label", "pod", pod, label, "--overwrite", "-n", ns.0]);
        }
    };
    let wait = |what: &str, answered: bool| {
        EAST.wait_for(what, SHORT_TIMEOUT, || {
            let requests = clients.iter().map(|client| {
                let args = ["get", "--timeout", "1", &url];
                move || client.run(&args).is_ok()
            });
            let found = in_parallel(requests);
            if found.iter().all(|found| *found == answered) {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        });
    };
    let mut stream = other.stream(&url);
    label("role=tenant");
    for (name, scope) in [("web", "          scope: ClusterSet\n"), ("antrea-mc-web", "")] {
        EAST.apply(&drop_to_service(ns.0, name, scope));
        wait(&format!("tenants are dropped on their way to {name}"), false);
        label("role=guest");
        wait("Pods without the label reach the Service", true);
        label("role=tenant");
        wait("tenants are dropped again", false);
        EAST.kubectl(&["delete", POLICIES, "acnp-drop-tenant-to-secured-mc-service"]);
        wait("tenants reach the Service without the policy", true);
    }
    stream.assert_running();
    stream.finish();
}
