//! A member with a Namespace of its own in the leader cluster (`isolation: Namespace`): it works as the others do, and
//! neither reads the exports of the other.

use http::Method;
use mc_api::names::member_announce;
use serde_json::{Value, json};

use crate::{
    account_binding::export,
    api::{connect_as, send, wait},
    clusters::{EAST, LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, MEMBER_NAMESPACE, SHORT_TIMEOUT, WEST},
    faults::member_condition,
    isolation::announce,
    trust::{create_account, delete_in_leader},
    workload::Namespace,
};

/// West's Namespace in the leader cluster, and its account there.
const NAMESPACE: &str = "member-west";
const ACCOUNT: &str = "member";
const SECRET: &str = "member-west-separate";
const WEST_ID: &str = "test-cluster-west";
const EAST_ID: &str = "test-cluster-east";
/// An account of the common Namespace without a cluster ID.
const THIEF: &str = "e2e-separate-thief";
const ISOLATION: &str = include_str!("../../../deploy/mc-gateway-leader-isolation.yml");
const TEMPLATE: &str = include_str!("../../../deploy/mc-gateway-member-namespace.yml");
const API: &str = "/apis/multicluster.crd.antrea.io/v1alpha1/namespaces";

/// West with its own Namespace; drop moves it back.
struct Separate {
    /// West's ClusterSet before.
    set: Value,
}

impl Separate {
    /// By the documented steps.
    fn west() -> Self {
        let separate = Self {
            set: WEST.member_cluster_set(),
        };
        LEADER.apply(ISOLATION);
        LEADER.configure_in(LEADER_NAMESPACE, "isolation", "Namespace");
        let namespace = TEMPLATE.replace("member-east", NAMESPACE);
        LEADER.apply(&namespace.replace(EAST_ID, WEST_ID));
        wait_bound(true);
        let data = LEADER.wait_for("the token", SHORT_TIMEOUT, || {
            let secret = LEADER
                .get(NAMESPACE, "secret", "member-token")
                .unwrap_or_default();
            let data = secret["data"].clone();
            data["token"].is_string().then_some(data).ok_or(String::new())
        });
        let copy = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": SECRET, "namespace": MEMBER_NAMESPACE },
            "data": { "ca.crt": data["ca.crt"], "token": data["token"] },
        });
        WEST.apply(&copy.to_string());
        let mut set = separate.set.clone();
        set["spec"]["namespace"] = json!(NAMESPACE);
        set["spec"]["leaders"][0]["secret"] = json!(SECRET);
        WEST.apply(&set.to_string());
        separate
    }

    /// Moves west back; the Namespace ends with an export in it that the leader has to release.
    fn undo(&self) -> Result<(), String> {
        WEST.try_kubectl_stdin(&["apply", "-f", "-"], &self.set.to_string())?;
        let patient = |what: &str, probe: &dyn Fn() -> Result<(), String>| {
            mc_tests::wait::wait_for(what, LONG_TIMEOUT, probe).map_err(|error| format!("{error:#}"))
        };
        patient("west has left its Namespace", &|| {
            let left = LEADER.get(NAMESPACE, "memberclusterannounces", &member_announce(WEST_ID));
            left.map_or(Ok(()), |announce| Err(announce.to_string()))
        })?;
        let leftover = within(export(WEST_ID), NAMESPACE).to_string();
        LEADER.try_kubectl_stdin(&["apply", "-f", "-"], &leftover)?;
        LEADER.try_kubectl(&["delete", "namespace", NAMESPACE, "--timeout=60s"])?;
        patient("west is a member", &|| match member_condition(WEST) {
            ready if ready == "True Connected" => Ok(()),
            other => Err(other),
        })?;
        LEADER.configure_in(LEADER_NAMESPACE, "isolation", "Common");
        LEADER.try_kubectl_stdin(&["delete", "--ignore-not-found", "-f", "-"], ISOLATION)?;
        WEST.try_kubectl(&[
            "-n",
            MEMBER_NAMESPACE,
            "delete",
            "secret",
            SECRET,
            "--ignore-not-found",
        ])?;
        Ok(())
    }
}

impl Drop for Separate {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            if std::thread::panicking() {
                println!("west: {error}");
            } else {
                panic!("west: {error}");
            }
        }
    }
}

/// Waits until the admission policies know whether west's Namespace is that of a member.
fn wait_bound(wanted: bool) {
    LEADER.wait_for("the binding of the Namespace", SHORT_TIMEOUT, || {
        let map = LEADER.get(LEADER_NAMESPACE, "configmap", "antrea-mc-member-identities");
        let data = map.unwrap_or_default()["data"].clone();
        if (data["_member-west"] == WEST_ID) == wanted {
            Ok(())
        } else {
            Err(data.to_string())
        }
    });
}

fn within(mut object: Value, namespace: &str) -> Value {
    object["metadata"]["namespace"] = json!(namespace);
    object
}

/// A request to the leader cluster as one of its accounts; returns status code and answer.
fn request(
    account: (&str, &str),
    method: Method,
    (namespace, path): (&str, &str),
    body: Option<&Value>,
) -> (u16, String) {
    let body = body.map(|body| ("application/json", body.clone()));
    let path = format!("{API}/{namespace}/{path}");
    let (code, answer) = wait(async {
        let client = connect_as(LEADER, Some(account)).await;
        send(&client, method, &path, body).await
    });
    (code, answer.to_string())
}

/// Neither side reads the other.
fn assert_unreadable() {
    let (west, east) = ((NAMESPACE, ACCOUNT), (LEADER_NAMESPACE, "member-east"));
    let mut refused = 0;
    for (account, namespace) in [(west, LEADER_NAMESPACE), (east, NAMESPACE)] {
        for path in [
            "resourceexports",
            "resourceimports",
            "memberclusterannounces",
            "resourceexports/test-cluster-east-clusterinfo",
            "resourceexports/test-cluster-west-clusterinfo",
        ] {
            let (code, answer) = request(account, Method::GET, (namespace, path), None);
            assert_eq!(code, 403, "{account:?} {namespace}/{path}: {answer}");
            refused += 1;
        }
    }
    for (account, namespace) in [(west, NAMESPACE), (east, LEADER_NAMESPACE)] {
        let (code, answer) = request(account, Method::GET, (namespace, "resourceexports"), None);
        assert_eq!(code, 200, "{answer}");
    }
    println!("isolation: {refused} reads of another member's objects were refused");
}

/// The account of the Namespace writes for west alone, and no other account does.
fn assert_unwritable() {
    let (west, thief) = ((NAMESPACE, ACCOUNT), (LEADER_NAMESPACE, THIEF));
    let exports = "resourceexports?dryRun=All";
    let announces = "memberclusterannounces?dryRun=All";
    let foreign = "is bound to another ServiceAccount than e2e-separate-thief";
    let mut copy = within(export(WEST_ID), NAMESPACE);
    copy["metadata"]["labels"]["mc-gateway.io/copied-from"] = json!(LEADER_NAMESPACE);
    let attempts = [
        (
            west,
            exports,
            within(export(EAST_ID), NAMESPACE),
            "spec.clusterID: must be test-cluster-west",
        ),
        (
            west,
            exports,
            within(export("test-cluster-new"), NAMESPACE),
            "spec.clusterID: must be test-cluster-west",
        ),
        (
            west,
            announces,
            within(announce(EAST_ID), NAMESPACE),
            "clusterID: must be test-cluster-west",
        ),
        (
            west,
            announces,
            within(announce("test-cluster-new"), NAMESPACE),
            "clusterID: must be test-cluster-west",
        ),
        (
            west,
            exports,
            within(export(WEST_ID), LEADER_NAMESPACE),
            "forbidden",
        ),
        (thief, exports, within(export(WEST_ID), LEADER_NAMESPACE), foreign),
        (
            thief,
            announces,
            within(announce(WEST_ID), LEADER_NAMESPACE),
            foreign,
        ),
        (thief, exports, within(export(WEST_ID), NAMESPACE), "forbidden"),
        (west, exports, copy, "only the leader writes copies"),
    ];
    let count = attempts.len();
    for (account, path, object, reason) in attempts {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let (code, answer) = request(account, Method::POST, (namespace, path), Some(&object));
        assert!(
            (code == 403 || code == 422) && answer.contains(reason),
            "{account:?} {namespace}/{path}: {code} {answer}"
        );
    }
    let own = within(export(WEST_ID), NAMESPACE);
    let (code, answer) = request(west, Method::POST, (NAMESPACE, exports), Some(&own));
    assert_eq!(code, 201, "{answer}");
    println!("isolation: {count} writes for another member were refused");
}

/// A quota on the Namespace withdraws the export of west, and its end brings it back.
fn assert_restricted(ns: &Namespace) {
    let annotate = |value: &str| {
        let annotation = format!("mc-gateway.io/max-services{value}");
        LEADER.kubectl(&["annotate", "namespace", NAMESPACE, &annotation]);
    };
    annotate("=0");
    ns.wait_imported(EAST, 1);
    let name = format!("{WEST_ID}-{}-web-service", ns.0);
    let export = LEADER
        .get(NAMESPACE, "resourceexports", &name)
        .unwrap_or_default();
    let status = export["status"].to_string();
    let reason = "quota of 0 Services (annotation mc-gateway.io/max-services of its Namespace)";
    assert!(status.contains(reason), "{status}");
    LEADER.wait_for("an Event on the export", SHORT_TIMEOUT, || {
        let events = LEADER.list(NAMESPACE, "events", "");
        let mut messages = events.iter().map(|event| event["message"].to_string());
        let found = messages.any(|message| message.contains(reason));
        found
            .then_some(())
            .ok_or(format!("{} other Events", events.len()))
    });
    annotate("-");
    ns.wait_imported(EAST, 2);
}

#[test]
fn a_member_with_a_namespace_of_its_own_works_and_neither_reads_the_other() {
    let ns = Namespace::create("e2e-separate");
    create_account(THIEF, &json!({}));
    ns.serve(WEST, "west-n1", 1);
    ns.serve(EAST, "east-n1", 1);
    let (from_west, from_east) = (ns.client(WEST, "west-n2"), ns.client(EAST, "east-n2"));
    ns.export(WEST);
    let endpoints = ns.wait_imported(EAST, 1);
    let separate = Separate::west();
    WEST.wait_for(
        "west is a member in its Namespace",
        LONG_TIMEOUT,
        || match LEADER.get(NAMESPACE, "memberclusterannounces", &member_announce(WEST_ID)) {
            Some(announce) if announce["metadata"]["finalizers"].is_array() => Ok(()),
            other => Err(format!("{other:?}")),
        },
    );
    let old = member_announce(WEST_ID);
    LEADER.wait_gone(LEADER_NAMESPACE, "memberclusterannounces", &old, LONG_TIMEOUT);
    LEADER.wait_for("no export of west remains there", SHORT_TIMEOUT, || {
        let left = LEADER.list(
            LEADER_NAMESPACE,
            "resourceexports",
            "sourceClusterID=test-cluster-west",
        );
        let is_copy = |export: &Value| export["metadata"]["labels"]["mc-gateway.io/copied-from"].is_string();
        let left: Vec<_> = left.iter().filter(|export| !is_copy(export)).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    WEST.wait_for("the former membership has ended", LONG_TIMEOUT, || {
        let record = WEST.get(MEMBER_NAMESPACE, "configmap", "mc-gateway-memberships");
        let data = record.unwrap_or_default()["data"].clone();
        match data.as_object().map(|data| data.keys().collect::<Vec<_>>()) {
            Some(keys) if keys.len() == 1 && keys[0].ends_with(NAMESPACE) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });

    // Both directions work, with exports of either.
    assert_eq!(ns.wait_imported(EAST, 1), endpoints);
    let answer = from_east.get(&from_east.imported_url());
    println!("from east: {answer}");
    ns.export(EAST);
    ns.wait_imported(WEST, 2);
    ns.wait_imported(EAST, 2);
    from_west.get(&from_west.imported_url());
    assert_restricted(&ns);
    ns.unexport(WEST);
    let of_east = ns.wait_imported(WEST, 1);
    assert!(of_east.is_disjoint(&endpoints), "{of_east:?}");
    ns.wait_imported(EAST, 1);
    from_west.get(&from_west.imported_url());

    // Each reads the failed imports of the other, as a copy of the leader.
    for (namespace, id, origin) in [
        (NAMESPACE, EAST_ID, LEADER_NAMESPACE),
        (LEADER_NAMESPACE, WEST_ID, NAMESPACE),
    ] {
        let name = format!("{id}-importfailures");
        LEADER.wait_for(&format!("a copy of {name}"), SHORT_TIMEOUT, || {
            let copy = LEADER
                .get(namespace, "resourceexports", &name)
                .unwrap_or_default();
            match &copy["metadata"]["labels"]["mc-gateway.io/copied-from"] {
                from if from == origin => Ok(()),
                other => Err(other.to_string()),
            }
        });
    }
    assert_unreadable();
    assert_unwritable();
    drop(separate);
    wait_bound(false);
    delete_in_leader(&[&["rolebinding", THIEF], &["serviceaccount", THIEF]]);
    ns.export(WEST);
    ns.wait_imported(EAST, 2);
}
