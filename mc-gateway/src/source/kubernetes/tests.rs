//! The source at a simulated API server whose kinds appear, disappear and fail.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use clap::Parser as _;
use http::{Request, Response, Uri};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;

use super::*;
use crate::config::Cli;
use crate::desired::selects_pods;
use crate::policy::Mode;

const POLICY_KINDS: [&str; 5] = [
    "clusternetworkpolicies",
    "networkpolicies",
    "clustergroups",
    "groups",
    "tiers",
];
const CONTROLLERS: &str = "antreacontrollerinfos";
const AGENTS: &str = "antreaagentinfos";
const NOT_FOUND: u16 = 404;
/// Longer than any delay between two requests.
const LONG: Duration = Duration::from_mins(3);

/// The answer to requests for a kind.
#[derive(Clone, PartialEq)]
enum Answer {
    Items(Vec<Value>),
    Code(u16),
}

#[derive(Default)]
struct State {
    /// Other kinds have no objects.
    kinds: BTreeMap<&'static str, Answer>,
    /// Number of changes of a kind, its resource version.
    versions: BTreeMap<&'static str, u32>,
    /// Kinds that are not served although they have objects.
    hidden: BTreeSet<&'static str>,
    /// Kinds that are served in a version the agent does not read.
    other_version: BTreeSet<&'static str>,
    discovery_fails: bool,
    /// The field selector of the last list of Pods.
    pod_selector: Option<String>,
    lists: BTreeMap<String, u32>,
    /// Number of requests for discovery.
    discoveries: u32,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

impl Server {
    fn set(&self, kind: &'static str, answer: Answer) {
        let mut state = self.0.lock().unwrap();
        state.kinds.insert(kind, answer);
        *state.versions.entry(kind).or_default() += 1;
    }

    fn hide(&self, kind: &'static str, hidden: bool) {
        let kinds = &mut self.0.lock().unwrap().hidden;
        if hidden {
            kinds.insert(kind);
        } else {
            kinds.remove(kind);
        }
    }

    fn lists(&self, kind: &str) -> u32 {
        self.0
            .lock()
            .unwrap()
            .lists
            .get(kind)
            .copied()
            .unwrap_or_default()
    }

    fn answer(&self, kind: &str) -> Answer {
        let state = self.0.lock().unwrap();
        if state.hidden.contains(kind) {
            return Answer::Code(NOT_FOUND);
        }
        let known = state.kinds.get(kind).cloned();
        known.unwrap_or(Answer::Items(Vec::new()))
    }

    fn version(&self, kind: &str) -> String {
        let version = self.0.lock().unwrap().versions.get(kind).copied();
        version.unwrap_or_default().saturating_add(1).to_string()
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.respond(request.uri().clone()).await) }
        });
        Client::new(service, "default")
    }

    async fn respond(&self, uri: Uri) -> Response<Body> {
        let path = uri.path();
        let kind = path.rsplit('/').next().unwrap_or_default();
        if path == "/apis" || path == "/apis/crd.antrea.io/v1beta1" || path == "/apis/crd.antrea.io/v1alpha1"
        {
            return self.discover(path);
        }
        if path == "/apis/mc-gateway.io/v1alpha1" {
            return success(&resources(path, &[SLICES]));
        }
        if let Some(version) = watched_version(&uri) {
            // The watch ends once there are other objects.
            while self.version(kind) == version && self.answer(kind) != Answer::Code(NOT_FOUND) {
                sleep(Duration::from_millis(100)).await;
            }
            return failure(match self.answer(kind) {
                Answer::Items(_) => 410,
                Answer::Code(code) => code,
            });
        }
        {
            let mut state = self.0.lock().unwrap();
            *state.lists.entry(kind.to_owned()).or_default() += 1;
            if kind == "pods" {
                state.pod_selector = field_selector(&uri);
            }
        }
        match self.answer(kind) {
            Answer::Code(code) => failure(code),
            Answer::Items(mut items) => {
                let selector = field_selector(&uri).unwrap_or_default();
                if let Some(node) = selector.strip_prefix("spec.nodeName=") {
                    items.retain(|pod| pod["spec"]["nodeName"] == node);
                }
                success(&json!({
                    "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": self.version(kind) }, "items": items,
                }))
            }
        }
    }

    fn discover(&self, path: &str) -> Response<Body> {
        let mut state = self.0.lock().unwrap();
        state.discoveries += 1;
        if state.discovery_fails {
            return failure(503);
        }
        let served = POLICY_KINDS.into_iter().chain([CONTROLLERS, AGENTS]);
        let served = served.filter(|kind| {
            state.kinds.get(kind) != Some(&Answer::Code(NOT_FOUND)) && !state.hidden.contains(kind)
        });
        let versions = [
            ("v1beta1", served.collect::<Vec<_>>()),
            ("v1alpha1", state.other_version.iter().copied().collect()),
        ];
        let versions = versions.into_iter().filter(|(_, kinds)| !kinds.is_empty());
        if path == "/apis" {
            let versions: Vec<_> = versions
                .map(|(version, _)| json!({ "groupVersion": format!("{GROUP}/{version}"), "version": version }))
                .collect();
            let mut groups = Vec::new();
            if !versions.is_empty() {
                groups.push(json!({ "name": GROUP, "versions": versions }));
            }
            if matches!(state.kinds.get(SLICES), Some(Answer::Items(_))) {
                let version = json!({ "groupVersion": "mc-gateway.io/v1alpha1", "version": "v1alpha1" });
                groups.push(json!({ "name": "mc-gateway.io", "versions": [version] }));
            }
            return success(&json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }));
        }
        let Some((version, kinds)) = versions.into_iter().find(|(version, _)| path.ends_with(version)) else {
            return failure(NOT_FOUND);
        };
        success(&resources(&format!("/apis/{GROUP}/{version}"), &kinds))
    }
}

/// The resources of a version of a group.
fn resources(path: &str, kinds: &[&str]) -> Value {
    let resources: Vec<_> = kinds
        .iter()
        .map(|kind| {
            json!({ "name": kind, "singularName": "", "namespaced": false, "kind": "K", "verbs": ["list"] })
        })
        .collect();
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": path.trim_start_matches("/apis/"),
        "resources": resources,
    })
}

/// The resource version from which a request watches.
fn watched_version(uri: &Uri) -> Option<&str> {
    let query = uri.query()?;
    query.split('&').find(|one| *one == "watch=true")?;
    query
        .split('&')
        .find_map(|one| one.strip_prefix("resourceVersion="))
}

/// The field selector of a request, its operators decoded.
fn field_selector(uri: &Uri) -> Option<String> {
    let selector = uri
        .query()?
        .split('&')
        .find_map(|one| one.strip_prefix("fieldSelector="))?;
    let decoded = [("%3D", "="), ("%21", "!"), ("%2C", ",")];
    Some(
        decoded
            .iter()
            .fold(selector.to_owned(), |text, (from, to)| text.replace(from, to)),
    )
}

fn success(body: &Value) -> Response<Body> {
    Response::new(Body::from(body.to_string().into_bytes()))
}

fn failure(code: u16) -> Response<Body> {
    // For an unknown path API servers answer plain text.
    let body = if code == NOT_FOUND {
        "404 page not found\n".to_owned()
    } else {
        json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "failure", "reason": "Failure",
            "code": code,
        })
        .to_string()
    };
    let mut response = Response::new(Body::from(body.into_bytes()));
    *response.status_mut() = code.try_into().unwrap();
    response
}

fn named(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

fn tier(name: &str) -> Answer {
    Answer::Items(vec![
        json!({ "metadata": { "name": name }, "spec": { "priority": 5 } }),
    ])
}

// === One watch ===

fn watch_tiers(server: &Server) -> BoxStream<'static, WatchEvent> {
    watch_optional(
        "Tier",
        Api::<Tier>::all(server.client()),
        watcher::Config::default(),
        "n1",
        &Arc::new(AbsentKinds::new(server.client(), GROUP, "n1")),
        policy_objects::tier,
        ObjectEvent::Tier,
    )
}

/// The number of Tiers in the next complete list, and the errors before it; fails after [`LONG`].
async fn next_list(events: &mut BoxStream<'static, WatchEvent>) -> (usize, Vec<String>) {
    let (mut tiers, mut errors) = (0, Vec::new());
    let list = async {
        loop {
            match events.next().await.unwrap().1 {
                Ok(ObjectEvent::Tier(watcher::Event::Init)) => tiers = 0,
                Ok(ObjectEvent::Tier(watcher::Event::InitApply(_))) => tiers += 1,
                Ok(ObjectEvent::Tier(watcher::Event::InitDone)) => return,
                Ok(other) => panic!("{other:?}"),
                Err(error) => errors.push(error),
            }
        }
    };
    let listed = timeout(LONG, list).await;
    assert!(listed.is_ok(), "no list; {errors:?}");
    (tiers, errors)
}

#[tokio::test(start_paused = true)]
async fn an_absent_kind_has_an_empty_list_after_its_absence_is_confirmed() {
    let server = Server::default();
    server.set("tiers", Answer::Code(NOT_FOUND));
    let start = Instant::now();
    assert_eq!(next_list(&mut watch_tiers(&server)).await, (0, vec![]));
    assert_eq!(server.lists("tiers"), 2);
    assert!(start.elapsed() >= Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn absent_kinds_share_a_request_every_half_minute() {
    let server = Server::default();
    absent_kinds(&server);
    let mut receiver = start_agent(&server, "auto");
    wait_mode(&mut receiver, Mode::All).await;
    let before = server.0.lock().unwrap().discoveries;
    sleep(Duration::from_hours(1)).await;
    let after = server.0.lock().unwrap().discoveries;
    assert!(
        (60..125).contains(&(after - before)),
        "{before} and {after} requests"
    );
    for kind in POLICY_KINDS.into_iter().chain([CONTROLLERS, AGENTS]) {
        assert_eq!(server.lists(kind), 2, "{kind}");
    }
}

/// Kinds of a group are served one after the other, and one of them in another version.
#[tokio::test(start_paused = true)]
async fn each_absent_kind_is_listed_once_it_is_served() {
    let server = Server::default();
    server.set("tiers", Answer::Code(NOT_FOUND));
    let mut events = watch_tiers(&server);
    assert_eq!(next_list(&mut events).await, (0, vec![]));
    server.0.lock().unwrap().discovery_fails = true;
    let failed = timeout(LONG, events.next()).await.unwrap().unwrap().1;
    assert!(failed.unwrap_err().starts_with("discovery: "));
    {
        let mut state = server.0.lock().unwrap();
        state.discovery_fails = false;
        state.other_version = ["tiers"].into();
    }
    // Its objects exist, and the agent does not see them.
    let failed = timeout(LONG, async {
        loop {
            if let Err(error) = events.next().await.unwrap().1 {
                return error;
            }
        }
    });
    let error = failed.await.unwrap();
    assert!(error.contains("404"), "{error}");
    server.set("tiers", tier("a"));
    let (tiers, _) = next_list(&mut events).await;
    assert_eq!(tiers, 1);
}

#[tokio::test(start_paused = true)]
async fn other_failures_are_no_empty_list() {
    for (code, other_version, discovery_fails) in [
        (403, false, false),
        (500, false, false),
        (503, false, false),
        (NOT_FOUND, true, false),
        (NOT_FOUND, false, true),
    ] {
        let server = Server::default();
        server.set("tiers", Answer::Code(code));
        server.0.lock().unwrap().other_version = other_version.then_some("tiers").into_iter().collect();
        server.0.lock().unwrap().discovery_fails = discovery_fails;
        let mut events = watch_tiers(&server);
        let mut errors = 0;
        let polled = async {
            while let Some((_, event)) = events.next().await {
                match event {
                    Ok(ObjectEvent::Tier(watcher::Event::Init)) => {}
                    Ok(other) => panic!("{code}: {other:?}"),
                    Err(_) => errors += 1,
                }
            }
        };
        let _unlimited = timeout(LONG, polled).await;
        assert!(
            errors > 1,
            "{code}, other version {other_version}: {errors} errors"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_wrong_answer_of_an_api_server_that_starts_is_no_absence() {
    let server = Server::default();
    server.set("tiers", Answer::Code(NOT_FOUND));
    let mut events = watch_tiers(&server);
    let starting = server.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(1)).await;
        starting.set("tiers", tier("a"));
    });
    assert_eq!(next_list(&mut events).await, (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn objects_are_listed_once_the_kind_is_served_and_gone_with_it() {
    let server = Server::default();
    server.set("tiers", Answer::Code(NOT_FOUND));
    let mut events = watch_tiers(&server);
    assert_eq!(next_list(&mut events).await, (0, vec![]));
    server.set("tiers", tier("a"));
    assert_eq!(next_list(&mut events).await, (1, vec![]));
    server.hide("tiers", true);
    assert_eq!(next_list(&mut events).await, (0, vec![]));
    // A watch from the version of the first list would not list the object that still exists.
    server.hide("tiers", false);
    assert_eq!(next_list(&mut events).await, (1, vec![]));
}

// === All watches ===

fn start_agent(server: &Server, enforcement: &str) -> Receiver {
    server.set("nodes", Answer::Items(vec![named("n1")]));
    let args = [
        "mc-gateway",
        "--node-name",
        "n1",
        "--policy-enforcement",
        enforcement,
    ];
    let config = Config::try_from(Cli::try_parse_from(args).unwrap().run).unwrap();
    watch_all(server.client(), "kube-system", &config)
}

/// Waits until objects with this mode are published.
async fn wait_mode(receiver: &mut Receiver, mode: Mode) -> Arc<Objects> {
    let wanted = |objects: &Option<Arc<Objects>>| {
        let mode_now = objects.as_ref().map(|objects| objects.policy_mode);
        mode_now == Some(Some(mode))
    };
    let found = timeout(LONG, receiver.wait_for(wanted)).await;
    let found = found.unwrap_or_else(|_| panic!("no objects with {mode:?}"));
    found.unwrap().clone().unwrap()
}

fn absent_kinds(server: &Server) {
    for kind in POLICY_KINDS.into_iter().chain([CONTROLLERS, AGENTS]) {
        server.set(kind, Answer::Code(NOT_FOUND));
    }
}

#[tokio::test(start_paused = true)]
async fn agents_work_in_a_cluster_without_the_crds_of_antrea() {
    for enforcement in ["all", "auto"] {
        let server = Server::default();
        absent_kinds(&server);
        let mut receiver = start_agent(&server, enforcement);
        let objects = wait_mode(&mut receiver, Mode::All).await;
        assert_eq!(objects.nodes.len(), 1);
        assert!(objects.policies.policies.is_empty());
        // The CRD is installed.
        let policy = json!({ "metadata": { "name": "p" }, "spec": { "priority": 1 } });
        server.set("clusternetworkpolicies", Answer::Items(vec![policy]));
        let has_policy = |objects: &Option<Arc<Objects>>| {
            objects
                .as_ref()
                .is_some_and(|objects| objects.policies.policies.len() == 1)
        };
        let found = timeout(LONG, receiver.wait_for(has_policy)).await;
        assert!(found.is_ok(), "{enforcement}: the policy was not published");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_look_for_antrea_publishes_nothing() {
    let server = Server::default();
    server.set(AGENTS, Answer::Items(vec![named("n1")]));
    server.set(CONTROLLERS, Answer::Code(403));
    let mut receiver = start_agent(&server, "auto");
    let published = timeout(LONG, receiver.changed()).await;
    assert!(published.is_err(), "{:?}", receiver.borrow());
    // It publishes once it has the permission.
    server.set(CONTROLLERS, Answer::Items(vec![named("antrea-controller")]));
    wait_mode(&mut receiver, Mode::ClusterSetOnly).await;
    // A failure later keeps the mode.
    server.set(CONTROLLERS, Answer::Code(403));
    sleep(LONG).await;
    wait_mode(&mut receiver, Mode::ClusterSetOnly).await;
}

/// A rule that drops would lack the senders on other Nodes.
#[tokio::test(start_paused = true)]
async fn all_rules_are_enforced_only_with_the_pods_of_all_nodes() {
    let pod = |node: &str| {
        json!({
            "metadata": { "name": node, "namespace": "shop", "labels": { "app": "web" } },
            "spec": { "nodeName": node }, "status": { "phase": "Running", "podIP": "10.9.0.1" },
        })
    };
    let server = Server::default();
    server.set(AGENTS, Answer::Items(vec![named("n1")]));
    server.set(CONTROLLERS, Answer::Items(vec![named("antrea-controller")]));
    server.set("pods", Answer::Items(vec![pod("n1")]));
    server.set("clusternetworkpolicies", policy("web"));
    let mut receiver = start_agent(&server, "auto");
    wait_mode(&mut receiver, Mode::ClusterSetOnly).await;
    server.set("pods", Answer::Code(503));
    server.set(CONTROLLERS, Answer::Items(vec![]));
    sleep(LONG).await;
    let mode = receiver.borrow().as_ref().map(|objects| objects.policy_mode);
    assert_eq!(
        mode,
        Some(Some(Mode::ClusterSetOnly)),
        "the Pods are not listed yet"
    );
    server.set("pods", Answer::Items(vec![pod("n1"), pod("n2")]));
    let objects = wait_mode(&mut receiver, Mode::All).await;
    let labels: Vec<_> = objects.pods.iter().map(|pod| &*pod.labels).collect();
    assert_eq!(labels, ["app=web", "app=web"]);
    // Antrea is installed.
    server.set(CONTROLLERS, Answer::Items(vec![named("antrea-controller")]));
    wait_mode(&mut receiver, Mode::ClusterSetOnly).await;
}

/// Antrea's controller runs before its agents do.
#[tokio::test(start_paused = true)]
async fn rules_are_left_to_antrea_node_by_node() {
    let server = Server::default();
    absent_kinds(&server);
    let mut receiver = start_agent(&server, "auto");
    wait_mode(&mut receiver, Mode::All).await;
    server.set(CONTROLLERS, Answer::Items(vec![named("antrea-controller")]));
    server.set(AGENTS, Answer::Items(vec![named("n2")]));
    sleep(LONG).await;
    wait_mode(&mut receiver, Mode::All).await;
    server.set(AGENTS, Answer::Items(vec![named("n1"), named("n2")]));
    wait_mode(&mut receiver, Mode::ClusterSetOnly).await;
    // The agent's object remains when the permission to read it is lost.
    server.set(AGENTS, Answer::Code(403));
    sleep(LONG).await;
    wait_mode(&mut receiver, Mode::ClusterSetOnly).await;
    server.set(AGENTS, Answer::Code(NOT_FOUND));
    wait_mode(&mut receiver, Mode::All).await;
}

/// A gateway that had needed all Pods for policies watched them, with their labels, until it restarted.
#[tokio::test(start_paused = true)]
async fn a_gateway_watches_all_pods_only_while_policies_require_them() {
    let server = Server::default();
    absent_kinds(&server);
    let gateway =
        json!({ "metadata": { "name": "n1" }, "gatewayIP": "192.0.2.1", "internalIP": "192.0.2.1" });
    server.set("gateways", Answer::Items(vec![gateway]));
    server.set("clusternetworkpolicies", policy("web"));
    let mut receiver = start_agent(&server, "auto");
    let node = json!({ "metadata": { "name": "n1" }, "spec": { "podCIDRs": ["10.9.0.0/24"] } });
    server.set("nodes", Answer::Items(vec![node]));
    let pods = |server: &Server| server.0.lock().unwrap().pod_selector.clone();
    wait_mode(&mut receiver, Mode::All).await;
    assert_eq!(
        pods(&server).as_deref(),
        Some("status.phase!=Succeeded,status.phase!=Failed")
    );
    server.set(CONTROLLERS, Answer::Items(vec![named("antrea-controller")]));
    server.set(AGENTS, Answer::Items(vec![named("n1")]));
    wait_mode(&mut receiver, Mode::ClusterSetOnly).await;
    assert_eq!(pods(&server).as_deref(), Some("spec.nodeName=n1"));
}

// === Address groups ===

const SLICES: &str = "addressgroupslices";
const ALL_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";
const OWN_PODS: &str = "spec.nodeName=n1";

fn slice(name: &str, spec: &Value) -> Value {
    json!({ "metadata": { "name": name }, "spec": spec })
}

fn group(address: &str) -> Value {
    let group = json!({ "namespace": "shop", "labels": { "app": "web" }, "addresses": [address] });
    slice("pods-1", &json!({ "revision": 1, "groups": [group] }))
}

fn complete() -> Value {
    slice("complete", &json!({ "revision": 1, "complete": true }))
}

/// A policy for the Pods with this label.
fn policy(app: &str) -> Answer {
    let spec = json!({
        "priority": 1, "appliedTo": [{ "podSelector": { "matchLabels": { "app": app } } }],
        "ingress": [{ "action": "Drop" }],
    });
    Answer::Items(vec![json!({ "metadata": { "name": "drop" }, "spec": spec })])
}

/// An agent of Node n1 that enforces all rules, in a cluster with a Pod on n1, which a policy selects, and one on n2.
fn start_with_pods(server: &Server) -> Receiver {
    server.set("clusternetworkpolicies", policy("web"));
    start_with_policies(server)
}

/// As [`start_with_pods`], with the policies of the server.
fn start_with_policies(server: &Server) -> Receiver {
    let pod = |node: &str, address: &str| {
        json!({
            "metadata": { "name": node, "namespace": "shop", "labels": { "app": "web" } },
            "spec": { "nodeName": node }, "status": { "phase": "Running", "podIP": address },
        })
    };
    server.set(
        "pods",
        Answer::Items(vec![pod("n1", "10.9.0.1"), pod("n2", "10.9.0.2")]),
    );
    start_agent(server, "all")
}

/// Waits until the agent lists these Pods and publishes objects for which `wanted` holds. The objects published before
/// have the peer on n2, too: as a Pod or as a group.
async fn wait_pods(
    server: &Server,
    receiver: &mut Receiver,
    selector: &str,
    wanted: impl Fn(&Objects) -> bool,
) {
    let is_wanted = |objects: &Option<Arc<Objects>>| {
        let Some(objects) = objects.as_deref() else {
            return false;
        };
        let mut peers = objects.pods.iter().chain(&objects.address_groups);
        let has_peer = peers.any(|pod| &*pod.labels == "app=web" && pod.node != "n1");
        assert!(has_peer, "{objects:?}");
        let selected = server.0.lock().unwrap().pod_selector.clone();
        selected.as_deref() == Some(selector) && wanted(objects)
    };
    let found = timeout(LONG, receiver.wait_for(is_wanted)).await;
    found
        .unwrap_or_else(|_| panic!("no such objects, with Pods {selector}"))
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn complete_address_groups_replace_the_pods_of_other_nodes() {
    let server = Server::default();
    server.set(SLICES, Answer::Items(vec![group("10.9.0.2"), complete()]));
    let mut receiver = start_with_pods(&server);
    wait_pods(&server, &mut receiver, OWN_PODS, |objects| {
        objects.address_groups.len() == 1
    })
    .await;
    assert_eq!(
        server.lists("pods"),
        1,
        "an agent that starts does not list the Pods of other Nodes"
    );
    server.set(SLICES, Answer::Items(vec![group("10.9.0.3"), complete()]));
    wait_pods(&server, &mut receiver, OWN_PODS, |objects| {
        objects
            .address_groups
            .iter()
            .any(|group| group.ips == ["10.9.0.3"])
    })
    .await;
}

/// Every agent got the groups, also on a Node without a Pod that any policy selects.
#[tokio::test(start_paused = true)]
async fn address_groups_are_watched_once_a_policy_selects_a_pod_of_the_node() {
    let server = Server::default();
    server.set(SLICES, Answer::Items(vec![group("10.9.0.2"), complete()]));
    server.set("clusternetworkpolicies", policy("db"));
    let mut receiver = start_with_policies(&server);
    let policies = |objects: &Option<Arc<Objects>>| {
        objects
            .as_ref()
            .map_or(0, |objects| objects.policies.policies.len())
    };
    let found = timeout(LONG, receiver.wait_for(|objects| policies(objects) == 1)).await;
    let objects = found.unwrap().unwrap().clone().unwrap();
    assert_eq!((objects.pods.len(), objects.address_groups.len()), (1, 0));
    sleep(LONG).await;
    assert_eq!(server.lists(SLICES), 0);
    // Objects with the policy, and without the peer, would let the rule lack it.
    server.set("clusternetworkpolicies", policy("web"));
    let selects = |objects: &Option<Arc<Objects>>| {
        let objects = objects.as_ref().unwrap();
        let selects = selects_pods(&objects.policies, &[], &objects.pods);
        assert_eq!(objects.address_groups.len(), usize::from(selects), "{objects:?}");
        selects
    };
    timeout(LONG, receiver.wait_for(selects)).await.unwrap().unwrap();
    // They stay: another Pod of the Node may be selected soon.
    server.set("clusternetworkpolicies", policy("db"));
    sleep(LONG).await;
    assert_eq!(receiver.borrow().as_ref().unwrap().address_groups.len(), 1);
}

/// A gateway closes Services that its service proxy serves while a policy selects their Pods, on any Node.
#[tokio::test(start_paused = true)]
async fn a_gateway_watches_address_groups_while_there_are_policies() {
    let server = Server::default();
    server.set(SLICES, Answer::Items(vec![group("10.9.0.2"), complete()]));
    let gateway =
        json!({ "metadata": { "name": "n1" }, "gatewayIP": "192.0.2.1", "internalIP": "192.0.2.1" });
    server.set("gateways", Answer::Items(vec![gateway]));
    let node = json!({ "metadata": { "name": "n1" }, "spec": { "podCIDRs": ["10.9.0.0/24"] } });
    server.set("clusternetworkpolicies", policy("db"));
    let mut receiver = start_with_policies(&server);
    server.set("nodes", Answer::Items(vec![node]));
    wait_pods(&server, &mut receiver, OWN_PODS, |objects| {
        objects.address_groups.len() == 1
    })
    .await;
}

/// Half of the groups would let a rule that drops lack its peers.
#[tokio::test(start_paused = true)]
async fn pods_of_other_nodes_are_watched_until_the_address_groups_are_complete() {
    let server = Server::default();
    server.set(SLICES, Answer::Items(vec![group("10.9.0.9")]));
    let mut receiver = start_with_pods(&server);
    wait_pods(&server, &mut receiver, ALL_PODS, |objects| {
        objects.pods.len() == 2 && objects.address_groups.is_empty()
    })
    .await;
    server.set(SLICES, Answer::Items(vec![group("10.9.0.2"), complete()]));
    wait_pods(&server, &mut receiver, OWN_PODS, |objects| {
        objects.address_groups.len() == 1
    })
    .await;
    // The controller withdraws the groups.
    server.set(SLICES, Answer::Items(vec![group("10.9.0.2")]));
    wait_pods(&server, &mut receiver, ALL_PODS, |objects| {
        objects.pods.len() == 2 && objects.address_groups.is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_read_address_groups_watches_all_pods() {
    for answer in [Answer::Code(403), Answer::Code(NOT_FOUND)] {
        let server = Server::default();
        server.set(SLICES, answer);
        let mut receiver = start_with_pods(&server);
        wait_pods(&server, &mut receiver, ALL_PODS, |objects| {
            objects.pods.len() == 2
        })
        .await;
        server.set(SLICES, Answer::Items(vec![group("10.9.0.2"), complete()]));
        wait_pods(&server, &mut receiver, OWN_PODS, |objects| {
            objects.address_groups.len() == 1
        })
        .await;
    }
}
