//! Network policies on packets to the Pods of a node.

use mc_gateway_common::abi::IDENTITY_HOST;
use mc_gateway_common::abi::policy::{
    DIMENSION_ADDRESS, DIMENSION_IDENTITY, MAX_POLICY_RULES, NO_RULES, POD_DROPS_UNKNOWN, PolicyPod,
    RULE_ALLOW, RULE_DROP, unselected_number,
};
use mc_gateway_common::packet::ip;
use serde_json::json;

use super::identities::{DB, WEB, identity, pod, with_identities};
use super::*;
use crate::cidr::to_abi_addr;
use crate::desired::node_policies::NodePolicies;
use crate::identity_objects::IdentityInfo;
use crate::policy::Mode;
use crate::policy_objects;
use crate::policy_tables::PolicyTables;
use crate::service_objects::{EndpointInfo, ExportedService, ServiceInfo, ServicePort, SliceInfo, SlicePort};

pub(super) fn policy(
    name: &str,
    spec: serde_json::Value,
) -> Arc<policy_objects::Parsed<mc_api::network_policy::Policy>> {
    let object = mc_api::network_policy::ClusterNetworkPolicy {
        metadata: kube::core::ObjectMeta {
            name: Some(name.into()),
            ..Default::default()
        },
        spec,
        ..Default::default()
    };
    policy_objects::cluster_network_policy(&object)
}

/// Web on node b may be reached by db of any cluster, and by nothing else.
pub(super) fn web_policy() -> serde_json::Value {
    json!({
        "priority": 1, "tier": "securityops",
        "appliedTo": [{"podSelector": {"matchLabels": {"app": "web"}}}],
        "ingress": [
            {"action": "Allow", "from": [{"scope": "ClusterSet", "podSelector": {"matchLabels": {"app": "db"}}}],
             "ports": [{"protocol": "TCP", "port": 80}]},
            {"action": "Drop"},
        ],
    })
}

pub(super) fn exported(label: &str, id: u32, clusters: &[&str]) -> Arc<IdentityInfo> {
    let mut info = IdentityInfo::clone(&identity(label, id));
    info.clusters = Some(clusters.iter().map(ToString::to_string).collect());
    info.into()
}

pub(super) fn with_policy(spec: serde_json::Value) -> Objects {
    let identities = vec![exported(WEB, 7, &["east"]), exported(DB, 9, &["east", "west"])];
    let pods = vec![
        pod("db", "b", "10.1.1.6", "app=db"),
        pod("web", "b", "10.1.1.5", "app=web"),
    ];
    let mut objects = with_identities(identities, pods);
    objects.policies.policies = vec![policy("web", spec)];
    objects
}

pub(super) fn enforced(node: &str, objects: &Objects, mode: Option<Mode>) -> (NodePolicies, Vec<String>) {
    let me = LocalNode {
        node_name: node.into(),
        cluster_id: Some("east".into()),
        ..LocalNode::default()
    };
    let mut objects = objects.clone();
    objects.policy_mode = mode;
    let (desired, rejected) = first(&objects, &me).unwrap();
    (
        desired.policies,
        rejected.iter().map(ToString::to_string).collect(),
    )
}

#[test]
fn a_node_has_the_rules_of_its_own_pods() {
    let objects = with_policy(web_policy());
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(rejected.is_empty(), "{rejected:?}");
    let tables = &policies.tables;
    let web = to_abi_addr("10.1.1.5".parse().unwrap());
    assert_eq!(tables.pods.keys().collect::<Vec<_>>(), [&web]);
    assert_eq!(tables.pods[&web].flags, POD_DROPS_UNKNOWN);
    assert_eq!(policies.pods.len(), 2, "every Pod of the node is known");
    let db = to_abi_addr("10.1.1.6".parse().unwrap());
    assert_eq!(tables.unselected, BTreeSet::from([db]));
    let slots: Vec<_> = tables.unselected_slots.iter().collect();
    assert_eq!(slots, [(&unselected_number(&db), &db)]);
    let class = tables.identities[&9].class;
    let allowed = tables.rules.iter().filter(|(_, rule)| rule.action == RULE_ALLOW);
    let allowed: BTreeSet<_> = allowed
        .map(|(key, _)| {
            (
                key.peer.dimension,
                key.peer.class,
                key.peer.proto,
                key.port,
                key.bits,
            )
        })
        .collect();
    // Pods with that label in other clusters, and in the own one.
    let local = tables.address_classes[&(128, to_abi_addr("10.1.1.6".parse().unwrap()))];
    assert_eq!(
        allowed,
        BTreeSet::from([
            (DIMENSION_IDENTITY, class, ip::TCP, 80, 16),
            (DIMENSION_ADDRESS, local, ip::TCP, 80, 16)
        ])
    );
    assert!(tables.rules.values().any(|rule| rule.action == RULE_DROP));
    let (elsewhere, _) = enforced("a", &objects, Some(Mode::All));
    assert!(elsewhere.tables.is_empty(), "no Pod is selected there");
    assert!(
        policies.guards_pods() && elsewhere.guards_pods(),
        "a new Pod may be selected"
    );
}

#[test]
fn an_identity_is_that_of_the_clusters_that_export_it() {
    let mut objects = with_policy(web_policy());
    let (policies, _) = enforced("b", &objects, Some(Mode::All));
    let west_exports = |tables: &PolicyTables, number| {
        let identity = tables.identities[&number];
        tables.exporters.contains(&(identity.exporters, id("west")))
    };
    assert!(west_exports(&policies.tables, 9) && west_exports(&policies.tables, IDENTITY_HOST));
    assert!(!west_exports(&policies.tables, 7), "west does not export it");
    // An Antrea leader does not name the clusters.
    let known = objects.identities.as_mut().unwrap();
    known.identities = vec![identity(WEB, 7), identity(DB, 9)];
    let (policies, _) = enforced("b", &objects, Some(Mode::All));
    assert!(west_exports(&policies.tables, 7));
    // A cluster that exports nothing has no hosts either.
    let known = objects.identities.as_mut().unwrap();
    known.identities = vec![exported(WEB, 7, &["east"]), exported(DB, 9, &[])];
    let (policies, _) = enforced("b", &objects, Some(Mode::All));
    assert!(!west_exports(&policies.tables, IDENTITY_HOST));
}

#[test]
fn policies_are_enforced_as_configured() {
    let objects = with_policy(web_policy());
    let (off, rejected) = enforced("b", &objects, None);
    assert_eq!((off, rejected), (NodePolicies::default(), vec![]));
    let (stretched, errors) = enforced("b", &objects, Some(Mode::ClusterSetOnly));
    let shadowed = "ClusterNetworkPolicy web: spec.ingress[0]: \"Allow\" is shadowed: Antrea, which does not know the labels of \
                    senders in other clusters, drops their packets by ClusterNetworkPolicy web spec.ingress[1]";
    assert_eq!(errors, [shadowed]);
    let report = serde_json::to_value(&*stretched.report.clone().unwrap()).unwrap();
    assert_eq!(
        report["policies"][0]["errors"][0]["field"], "spec.ingress[0]",
        "{report}"
    );
    let actions: BTreeSet<u32> = stretched.tables.rules.values().map(|rule| rule.action).collect();
    assert_eq!(actions, BTreeSet::from([RULE_ALLOW]), "Antrea drops the rest");
    assert!(!stretched.guards_pods(), "Antrea guards the Pods");
    let (none, _) = enforced(
        "b",
        &with_policy(json!({"priority": 1, "tier": "securityops"})),
        Some(Mode::All),
    );
    assert!(!none.guards_pods(), "no rule");
}

/// The mode of `auto` changes while the agent runs.
#[test]
fn a_change_of_the_mode_alone_compiles_the_policies_again() {
    let mut objects = with_policy(web_policy());
    let me = LocalNode {
        node_name: "b".into(),
        cluster_id: Some("east".into()),
        ..LocalNode::default()
    };
    for pods in [objects.pods.clone(), Vec::new()] {
        objects.pods = pods;
        let mut cache = DesiredCache::default();
        for mode in [
            Some(Mode::All),
            Some(Mode::ClusterSetOnly),
            None,
            Some(Mode::ClusterSetOnly),
            Some(Mode::All),
        ] {
            objects.policy_mode = mode;
            let (desired, _) = compute(&objects, &me, &Established::default(), &mut cache).unwrap();
            // The report names the mode, also without a Pod.
            assert_eq!(desired.policies, enforced("b", &objects, mode).0, "{mode:?}");
        }
    }
}

/// The controllers write counters of rules into the status about once a minute, and every agent receives the policy.
#[test]
fn a_change_of_the_status_alone_compiles_nothing() {
    let with_status = |packets: u64| {
        let object = mc_api::network_policy::ClusterNetworkPolicy {
            metadata: kube::core::ObjectMeta {
                name: Some("web".into()),
                generation: Some(1),
                resource_version: Some(packets.to_string()),
                ..Default::default()
            },
            spec: web_policy(),
            status: json!({"ruleTrafficStats": [{"name": "spec.ingress[1]", "trafficStats": {"packets": packets}}]}),
            ..Default::default()
        };
        let mut objects = with_policy(web_policy());
        objects.policy_mode = Some(Mode::All);
        objects.policies.policies = vec![policy_objects::cluster_network_policy(&object)];
        objects
    };
    let (objects, changed) = (with_status(1), with_status(2));
    assert_eq!(objects, changed, "equal objects lead to no reconcile");
    assert!(!recompiles(&objects, &changed));
    let mut other = changed.clone();
    other.policies.policies.clear();
    assert!(recompiles(&objects, &other));
}

/// A change in another cluster recompiled 1,000 policies.
#[test]
fn a_prefix_of_another_cluster_recompiles_only_rules_that_it_concerns() {
    for (mode, concerned) in [(Mode::All, false), (Mode::ClusterSetOnly, true)] {
        let mut objects = with_policy(web_policy());
        objects.policy_mode = Some(mode);
        let mut changed = objects.clone();
        let remote = Arc::make_mut(changed.remotes.first_mut().expect("a cluster"));
        remote.pod_cidrs = vec!["10.77.0.0/16".to_owned()];
        assert_ne!(objects, changed);
        assert_eq!(recompiles(&objects, &changed), concerned, "{mode:?}");
    }
}

/// Whether policies are compiled again for changed objects.
fn recompiles(objects: &Objects, changed: &Objects) -> bool {
    let me = LocalNode {
        node_name: "b".into(),
        cluster_id: Some("east".into()),
        ..LocalNode::default()
    };
    let mut cache = DesiredCache::default();
    let mut tables = |objects: &Objects| {
        let (desired, _) = compute(objects, &me, &Established::default(), &mut cache).unwrap();
        desired.policies.tables
    };
    let compiled = tables(objects);
    assert!(!compiled.is_empty());
    !Arc::ptr_eq(&compiled, &tables(changed))
}

#[test]
fn an_invalid_field_is_reported_and_other_policies_are_enforced() {
    let mut objects = with_policy(web_policy());
    let spec = json!({
        "priority": 1, "tier": "securityops", "appliedTo": [{"podSelector": {}}],
        "ingress": [{"action": "Alow"}],
    });
    objects.policies.policies.insert(0, policy("bad", spec));
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(
        rejected
            .iter()
            .any(|error| error.contains("ClusterNetworkPolicy bad: spec.ingress[0].action: \"Alow\"")),
        "{rejected:?}"
    );
    let (without, _) = enforced("b", &with_policy(web_policy()), Some(Mode::All));
    assert_eq!(policies.tables.pods.len(), without.tables.pods.len());
}

/// Its replies to datagrams were dropped: nothing recorded the flows of packets to it.
#[test]
fn flows_to_a_pod_with_rules_for_egress_alone_are_recorded() {
    let objects = with_policy(json!({
        "priority": 1, "appliedTo": [{"podSelector": {"matchLabels": {"app": "web"}}}],
        "egress": [{"action": "Drop"}],
    }));
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(rejected.is_empty(), "{rejected:?}");
    let tables = &policies.tables;
    let web = to_abi_addr("10.1.1.5".parse().unwrap());
    assert_eq!(tables.egress_pods.keys().collect::<Vec<_>>(), [&web]);
    let without_rules = PolicyPod {
        instance: 0,
        set: NO_RULES,
        enforced: NO_RULES,
        flags: 0,
    };
    assert_eq!(tables.pods, [(web, without_rules)].into());
    assert!(tables.rules.keys().all(|key| key.peer.set != NO_RULES));
}

/// Endpoints count regardless of their conditions, and by protocol and name of the port.
#[test]
fn a_service_is_dropped_by_an_endpoint_that_a_rule_selects() {
    let mut objects = with_policy(json!({
        "priority": 1, "appliedTo": [{"podSelector": {"matchLabels": {"app": "web"}}}],
        "egress": [{"action": "Drop", "to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}],
    }));
    let service = |name: &str, ip: &str| ServiceInfo {
        namespace: "shop".into(),
        name: name.into(),
        cluster_ips: vec![ip.into()],
        ports: vec![ServicePort {
            name: "sql".into(),
            port: 5432,
            protocol: "TCP".into(),
            node_port: None,
        }],
        ..ServiceInfo::default()
    };
    let slice = |service: &str, port: &str, protocol: &str, ip: &str| SliceInfo {
        namespace: "shop".into(),
        name: format!("{service}-1"),
        service: service.into(),
        ports: vec![SlicePort {
            name: port.into(),
            port: Some(15432),
            protocol: protocol.into(),
        }],
        endpoints: vec![EndpointInfo {
            addresses: vec![ip.into(), "db.example.com".into()],
            ..EndpointInfo::default()
        }],
    };
    let services = [
        service("db", "10.96.0.1"),
        service("other-port", "10.96.0.2"),
        service("other-protocol", "10.96.0.3"),
        service("other-pod", "10.96.0.4"),
        service("without-endpoints", "10.96.0.5"),
        ServiceInfo {
            external_ips: vec!["198.51.100.7".into()],
            ..service("external", "10.96.0.6")
        },
        ServiceInfo {
            cluster_ips: Vec::new(),
            ..service("headless", "")
        },
    ];
    let slices = [
        slice("db", "sql", "TCP", "10.1.1.6"),
        slice("other-port", "metrics", "TCP", "10.1.1.6"),
        slice("other-protocol", "sql", "UDP", "10.1.1.6"),
        slice("other-pod", "sql", "TCP", "10.1.1.5"),
        slice("external", "sql", "TCP", "10.1.1.6"),
    ];
    objects.policies.add_services(&services, &slices);
    assert_eq!(objects.policies.services.len(), 6);
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(rejected.is_empty(), "{rejected:?}");
    let class = |ip: &str| {
        let addr = to_abi_addr(ip.parse().unwrap());
        policies
            .tables
            .address_classes
            .iter()
            .find_map(|((_, of), class)| (*of == addr).then_some(*class))
    };
    assert_eq!(policies.tables.address_classes.len(), 4);
    let (of_service, of_pod) = (class("10.96.0.1").unwrap(), class("10.1.1.6").unwrap());
    for ip in ["10.96.0.6", "198.51.100.7"] {
        assert_eq!(
            class(ip),
            Some(of_service),
            "{ip}: an external address of a Service"
        );
    }
    let of_class = |wanted| {
        let rules = policies.tables.rules.iter();
        let rules =
            rules.filter(move |(key, _)| key.peer.class == wanted && key.peer.dimension == DIMENSION_ADDRESS);
        rules
            .map(|(key, rule)| (key.peer.proto, key.port, key.bits, rule.action))
            .collect::<Vec<_>>()
    };
    assert_eq!(of_class(of_service), [(ip::TCP, 5432, 16, RULE_DROP)]);
    assert!(of_class(of_pod).contains(&(ip::TCP, 0, 0, RULE_DROP)));
}

/// A policy for the Pods of a selector, with more rules than a half of the map holds; adds the identities of its peers.
pub(super) fn large(objects: &mut Objects, pod_selector: &serde_json::Value) -> serde_json::Value {
    let apps = 0..100;
    let known = &mut objects.identities.as_mut().unwrap().identities;
    known.extend(apps.clone().map(|n| {
        let label = format!("ns:kubernetes.io/metadata.name=shop&pod:app=a{n}");
        exported(&label, 1000 + n, &["west"])
    }));
    let peers: Vec<_> = apps
        .map(|n| json!({"scope": "ClusterSet", "podSelector": {"matchLabels": {"app": format!("a{n}")}}}))
        .collect();
    let ports: Vec<_> = (1..=MAX_POLICY_RULES / 200)
        .map(|odd| json!({"protocol": "TCP", "port": 2 * odd + 1}))
        .collect();
    json!({
        "priority": 2, "appliedTo": [{"podSelector": pod_selector}],
        "ingress": [{"action": "Drop", "ports": ports}, {"action": "Drop", "from": peers}],
    })
}

/// A policy that decides on no packet would have closed the Pods of the others.
#[test]
fn audited_policies_that_do_not_fit_are_left_out() {
    let annotated = |objects: &mut Objects, name: &str, spec| {
        let mut audited = policy_objects::Parsed::clone(&policy(name, spec));
        audited.object.enforcement = mc_api::network_policy::EnforcementAction::Audit;
        objects.policies.policies.push(audited.into());
    };
    let mut objects = with_policy(web_policy());
    objects.policies.policies.clear();
    annotated(&mut objects, "small", web_policy());
    let (audited, _) = enforced("b", &objects, Some(Mode::All));
    assert!(
        audited.polices_devices() && !audited.guards_pods(),
        "nothing is dropped"
    );
    let mut objects = with_policy(web_policy());
    annotated(&mut objects, "small", web_policy());
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(rejected.is_empty(), "{rejected:?}");
    let web = to_abi_addr("10.1.1.5".parse().unwrap());
    let pod = policies.tables.pods[&web];
    assert!(pod.enforced != pod.set && pod.enforced != NO_RULES && pod.flags == POD_DROPS_UNKNOWN);

    let spec = large(&mut objects, &json!({}));
    let mut without = objects.clone();
    without.policies.policies.truncate(2);
    let (without, _) = enforced("b", &without, Some(Mode::All));
    annotated(&mut objects, "large", spec);
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert_eq!(policies.tables, without.tables, "all others");
    let [error] = &rejected[..] else {
        panic!("{rejected:?}")
    };
    let start = "ClusterNetworkPolicy large: metadata.annotations[mc-gateway.io/enforcementAction]: \"Audit\" has no \
                 effect: map mc_policy_rules would have ";
    assert!(error.starts_with(start), "{error}");
}

/// The service proxy of a gateway makes the gateway the sender, whose labels no rule matches.
#[test]
fn a_service_of_the_service_proxy_is_closed_while_a_policy_protects_its_pod() {
    let ports = |protocol: &str, number: i32| ServicePort {
        name: "sql".into(),
        port: number,
        protocol: protocol.into(),
        node_port: None,
    };
    let exported = |name: &str, protocol: &str, ip: &str, pod: &str| ExportedService {
        service: ServiceInfo {
            namespace: "shop".into(),
            name: name.into(),
            cluster_ips: vec![ip.into()],
            ports: vec![ports(protocol, 5432)],
            ..ServiceInfo::default()
        },
        slices: vec![SliceInfo {
            namespace: "shop".into(),
            name: format!("{name}-1"),
            service: name.into(),
            ports: vec![SlicePort {
                name: "sql".into(),
                port: Some(15432),
                protocol: protocol.into(),
            }],
            endpoints: vec![EndpointInfo {
                addresses: vec![pod.into()],
                ready: true,
                ..EndpointInfo::default()
            }],
        }],
    };
    let mut objects = with_policy(web_policy());
    objects.policy_mode = Some(Mode::All);
    objects.services = Some(vec![
        exported("db", "SCTP", "10.96.0.1", "10.1.1.6"),
        exported("web", "SCTP", "10.96.0.2", "10.1.1.5"),
        exported("translated", "TCP", "10.96.0.3", "10.1.1.5"),
        exported("unknown", "SCTP", "10.96.0.4", "10.1.1.99"),
        exported("outside", "SCTP", "10.96.0.5", "198.51.100.1"),
    ]);
    let read = |node: &str, objects: &Objects| {
        let me = LocalNode {
            node_name: node.into(),
            cluster_id: Some("east".into()),
            ..LocalNode::default()
        };
        let (desired, rejected) = first(objects, &me).unwrap();
        let services = desired.services.unwrap();
        let lost = services
            .services
            .iter()
            .filter(|(_, service)| service.identity_lost);
        let lost: Vec<String> = lost
            .map(|(key, _)| IpAddr::from(key.addr).to_canonical().to_string())
            .collect();
        let closed = rejected.iter().map(ToString::to_string);
        (
            lost,
            closed
                .filter(|text| text.contains("identity-lost"))
                .collect::<Vec<_>>(),
        )
    };
    let (lost, closed) = read("a", &objects);
    assert_eq!(lost, ["10.96.0.2", "10.96.0.4"]);
    assert_eq!(
        closed,
        [
            "Service shop/unknown: spec.ports[sql]: \"SCTP 5432\" is closed to other clusters (identity-lost): the service \
             proxy would hide their senders from the policies for its Pod 10.1.1.99",
            "Service shop/web: spec.ports[sql]: \"SCTP 5432\" is closed to other clusters (identity-lost): the service \
             proxy would hide their senders from the policies for its Pod 10.1.1.5"
        ]
    );
    assert_eq!(
        read("b", &objects).0,
        [""; 0],
        "a regular Node selects no backend"
    );
    objects.policies.policies.clear();
    assert_eq!(read("a", &objects), (vec![], vec![]), "without a policy");
}
