//! Each action of a rule with each kind of selector, for clients of both clusters on both kinds of Nodes.

use std::time::Instant;

use crate::{
    clusters::{EAST, SHORT_TIMEOUT, WEST},
    enforcement::{CLUSTER_POLICY, label_namespace, server},
    policies::wait_label_id,
    workload::{Client, Namespace, in_parallel},
};

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// The connection is refused at once.
    Refused,
    /// No answer within the time-out.
    Silence,
}

/// A client with the results of the selectors.
struct Peer {
    client: Client,
    has_label: bool,
    is_in_namespace: bool,
}

/// The peers that rules select.
#[derive(Clone, Copy, Debug)]
enum Selector {
    Pod,
    Namespace,
    Both,
}

impl Selector {
    fn yaml(self) -> &'static str {
        match self {
            Self::Pod => "podSelector: {matchLabels: {app: actor}}",
            Self::Namespace => "namespaceSelector: {matchLabels: {team: acting}}",
            Self::Both => {
                "podSelector: {matchLabels: {app: actor}}, namespaceSelector: {matchLabels: {team: acting}}"
            }
        }
    }

    fn selects(self, peer: &Peer) -> bool {
        match self {
            Self::Pod => peer.has_label,
            Self::Namespace => peer.is_in_namespace,
            Self::Both => peer.has_label && peer.is_in_namespace,
        }
    }
}

/// A rule with an action for the selected peers; behind those that let packets pass, a rule that drops all others.
fn policy(action: &str, selector: Selector, last: &str) -> String {
    format!(
        "apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {{name: e2e-action}}
spec:
  priority: 1
  tier: securityops
  appliedTo:
  - namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: e2e-acted}}}}
  ingress:
  - action: {action}
    from: [{{scope: ClusterSet, {}}}]
{last}",
        selector.yaml()
    )
}

const DROP_ALL: &str = "  - action: Drop\n";

fn fate(client: Client, url: &str) -> Fate {
    match client.run(&["get", "--timeout", "1", url]) {
        Ok(_) => Fate::Answered,
        Err(error) if error.contains("refused") => Fate::Refused,
        Err(_) => Fate::Silence,
    }
}

/// Waits until each request has the expected fate. The requests of a round run at the same time: dropped ones take a
/// second.
fn wait_fates(what: &str, peers: &[Peer], urls: &[String], expected: impl Fn(&Peer) -> Fate) {
    let start = Instant::now();
    WEST.wait_for(what, SHORT_TIMEOUT, || {
        let pairs = peers
            .iter()
            .flat_map(|peer| urls.iter().map(move |url| (peer, url)));
        let results = in_parallel(pairs.map(|(peer, url)| {
            let expected = expected(peer);
            move || {
                let found = fate(peer.client, url);
                (found != expected).then(|| {
                    format!(
                        "{} to {url}: {found:?}, not {expected:?}",
                        peer.client.full_name()
                    )
                })
            }
        }));
        let wrong: Vec<String> = results.into_iter().flatten().collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(wrong.join("; "))
        }
    });
    println!("enforcement: {what} after {:?}", start.elapsed());
}

/// Policies of west with servers there, on the gateway and on a regular Node.
pub(crate) fn check_actions() {
    let [acted, acting, idle] = ["e2e-acted", "e2e-acting", "e2e-idle"].map(Namespace::create);
    for cluster in [EAST, WEST] {
        label_namespace(cluster, &acting, "team=acting");
    }
    let servers = [("west-n1", "first"), ("west-n2", "second")];
    let urls = in_parallel(servers.map(|(node, name)| {
        let acted = &acted;
        move || server(acted, node, name)
    }));
    let clients = [
        (&acting, EAST, "east-n2", "actor"),
        (&acting, WEST, "west-n2", "actor"),
        (&acting, EAST, "east-n1", "other"),
        (&acting, WEST, "west-n1", "other"),
        (&idle, EAST, "east-n1", "actor"),
        (&idle, WEST, "west-n1", "actor"),
    ];
    let mut peers = in_parallel(clients.map(|(ns, cluster, node, app)| {
        move || Peer {
            client: ns.client_named(cluster, node, app),
            has_label: app == "actor",
            is_in_namespace: ns.0 == "e2e-acting",
        }
    }));
    for (namespace, app) in [
        ("e2e-acting,team=acting", "actor"),
        ("e2e-acting,team=acting", "other"),
        ("e2e-idle", "actor"),
    ] {
        wait_label_id(
            WEST,
            &format!("ns:kubernetes.io/metadata.name={namespace}&pod:app={app}"),
        );
    }
    wait_fates("requests are answered without a policy", &peers, &urls, |_| {
        Fate::Answered
    });
    for selector in [Selector::Pod, Selector::Namespace, Selector::Both] {
        for (action, last, of_selected, of_others) in [
            ("Drop", "", Fate::Silence, Fate::Answered),
            ("Allow", DROP_ALL, Fate::Answered, Fate::Silence),
            ("Reject", "", Fate::Refused, Fate::Answered),
            ("Pass", DROP_ALL, Fate::Answered, Fate::Silence),
        ] {
            WEST.apply(&policy(action, selector, last));
            let expected = |peer: &Peer| {
                if selector.selects(peer) {
                    of_selected
                } else {
                    of_others
                }
            };
            wait_fates(&format!("{action} by {selector:?}"), &peers, &urls, expected);
        }
    }

    // A rule is appended and removed.
    WEST.apply(&policy("Allow", Selector::Both, ""));
    wait_fates("an Allow alone drops nothing", &peers, &urls, |_| Fate::Answered);
    let append = r#"[{"op": "add", "path": "/spec/ingress/-", "value": {"action": "Drop"}}]"#;
    let remove = r#"[{"op": "remove", "path": "/spec/ingress/1"}]"#;
    let patch = |patch| {
        WEST.kubectl(&["patch", CLUSTER_POLICY, "e2e-action", "--type=json", "-p", patch]);
    };
    patch(append);
    let selected = |peer: &Peer| {
        if Selector::Both.selects(peer) {
            Fate::Answered
        } else {
            Fate::Silence
        }
    };
    wait_fates("the appended rule drops others", &peers, &urls, selected);
    patch(remove);
    wait_fates("others pass without it", &peers, &urls, |_| Fate::Answered);

    // The labels of a Pod and of a Namespace change the verdict on it, both ways.
    patch(append);
    wait_fates("others are dropped", &peers, &urls, selected);
    for (label, index) in [("app=actor", 2), ("app=other", 2)] {
        let peer = &mut peers[index];
        peer.has_label = label == "app=actor";
        EAST.kubectl(&["label", "pod", "other", label, "--overwrite", "-n", acting.0]);
        wait_fates(&format!("the Pod has {label}"), &peers, &urls, selected);
    }
    for label in ["team=acting", "team-"] {
        for cluster in [EAST, WEST] {
            label_namespace(cluster, &idle, label);
        }
        for peer in &mut peers[4..] {
            peer.is_in_namespace = label == "team=acting";
        }
        wait_fates(&format!("the Namespace has {label}"), &peers, &urls, selected);
    }
    WEST.kubectl(&["delete", CLUSTER_POLICY, "e2e-action"]);
    wait_fates("all pass without the policy", &peers, &urls, |_| Fate::Answered);
}
