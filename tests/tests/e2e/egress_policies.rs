//! Egress rules with Pods of the own cluster as peers: by address, and behind Services.

use crate::{
    clusters::{EAST, SHORT_TIMEOUT},
    policies::POLICIES,
    workload::{Client, Namespace, in_parallel},
};

const POLICY: &str = "e2e-egress";

/// Clients reach web servers and DNS, and nothing else. `app` labels the servers.
fn only_to(namespace: &str, app: &str) -> String {
    format!(
        "apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {{name: {POLICY}}}
spec:
  priority: 1
  tier: securityops
  appliedTo:
    - namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
      podSelector: {{matchLabels: {{role: client}}}}
  egress:
    - action: Allow
      to:
        - namespaces: {{match: Self}}
          podSelector: {{matchLabels: {{app: {app}}}}}
      ports: [{{protocol: TCP, port: 8080}}]
    - action: Allow
      to:
        - namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: kube-system}}}}
          podSelector: {{matchLabels: {{k8s-app: kube-dns}}}}
      ports: [{{protocol: UDP, port: dns}}]
    - action: Drop
"
    )
}

/// Whether a name of the Service is found, requests to it and to its Pod are answered, and those to another Pod.
type Seen = (bool, bool, bool, bool);

fn seen(client: &Client, namespace: &str, urls: &[String; 3]) -> Seen {
    let name = format!("web.{namespace}.svc.cluster.local.");
    let is_found = client
        .lookup("a", &name, 1)
        .and_then(|answer| answer.only_addresses())
        .is_ok_and(|addresses| !addresses.is_empty());
    let requests = urls
        .iter()
        .map(|url| move || client.run(&["get", "--timeout", "1", url]).is_ok());
    let [service, pod, other] = in_parallel(requests)[..] else {
        unreachable!("a result for each request")
    };
    (is_found, service, pod, other)
}

/// A strict Namespace, with clients on a gateway and on a regular Node; labels change the verdict both ways.
pub(crate) fn check_egress() {
    let ns = Namespace::create_in("e2e-egress", &[EAST]);
    ns.serve(EAST, "east-n2", 1);
    let other = ns.client_serving(EAST, "east-n1", "db");
    let clients = in_parallel(
        [("east-n2", "client"), ("east-n1", "gateway-client")].map(|(node, name)| {
            let ns = &ns;
            move || ns.client_named(EAST, node, name)
        }),
    );
    let service = EAST.kubectl(&[
        "get",
        "service",
        "web",
        "-n",
        ns.0,
        "-o",
        "jsonpath={.spec.clusterIP}",
    ]);
    let urls = [
        format!("http://{service}:80/"),
        format!("http://{}:8080/", ns.pod_ip(EAST, "app=web")),
        format!("http://{}:8080/", other.ip()),
    ];
    let wait = |what: &str, expected: Seen| {
        EAST.wait_for(what, SHORT_TIMEOUT, || {
            let all = in_parallel(clients.iter().map(|client| || seen(client, ns.0, &urls)));
            if all == [expected; 2] {
                Ok(())
            } else {
                Err(format!("{all:?}"))
            }
        });
    };
    wait("all destinations without a policy", (true, true, true, true));
    for client in ["client", "gateway-client"] {
        EAST.kubectl(&["label", "pod", client, "role=client", "-n", ns.0]);
    }
    EAST.apply(&only_to(ns.0, "web"));
    wait("the Service, its Pod and DNS", (true, true, true, false));
    EAST.apply(&only_to(ns.0, "db"));
    wait("the other Pod and DNS", (true, false, false, true));
    EAST.apply(&only_to(ns.0, "web"));
    wait("the Service, its Pod and DNS again", (true, true, true, false));
    let label = |label: &str| EAST.kubectl(&["label", "pod", "db", label, "--overwrite", "-n", ns.0]);
    label("app=web");
    wait("another Pod of the Service", (true, true, true, true));
    label("app=db");
    wait("no longer a Pod of the Service", (true, true, true, false));
    EAST.kubectl(&["delete", POLICIES, POLICY]);
    wait("all destinations after the policy", (true, true, true, true));
}
