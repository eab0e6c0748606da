//! The status of network policies, and default Tiers.

use mc_api::{
    network_policy::{
        ClusterNetworkPolicy, DEFAULT_TIERS, NetworkPolicy, NetworkPolicyStatus, PolicyKind as _, Tier,
    },
    node_policy_status::{
        Enforcement, FieldReport, MAX_ALL_RULES, MAX_COUNT, MAX_RULE_NAME, NodePolicyStatusSpec,
        PolicyReport, RuleReport, observed_policies,
    },
};
use proptest::prelude::*;

use super::*;
use crate::{member::policy_status, plan::Kind};

/// Nodes a, b, c; no policies, no reports, no Tiers.
fn enforcing() -> MemberSnapshot {
    let mut snapshot = snapshot();
    snapshot.policies = OptionalKind::Present(ObjectMap::default());
    snapshot.network_policies = OptionalKind::Present(ObjectMap::default());
    snapshot.node_policy_statuses = OptionalKind::Present(ObjectMap::default());
    snapshot.tiers = OptionalKind::Present(ObjectMap::default());
    for name in ["a", "b", "c"] {
        let node = json!({ "metadata": { "name": name, "uid": format!("uid-{name}") } });
        insert(&mut snapshot.nodes, object::<Node>(node));
    }
    settle(&mut snapshot);
    snapshot
}

fn add_policy(snapshot: &mut MemberSnapshot, name: &str, generation: i64, spec: &Value) {
    let policy: ClusterNetworkPolicy = object(json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "generation": generation },
        "spec": spec,
        "status": policy(snapshot, name).map_or(Value::Null, |old| old.status.clone()),
    }));
    insert(present(&mut snapshot.policies), policy);
}

fn policy(snapshot: &MemberSnapshot, name: &str) -> Option<Arc<ClusterNetworkPolicy>> {
    snapshot
        .policies
        .objects()?
        .get(&NamespacedName::new("", name))
        .cloned()
}

fn status(snapshot: &MemberSnapshot, name: &str) -> NetworkPolicyStatus {
    policy(snapshot, name).unwrap().status()
}

fn counts(snapshot: &MemberSnapshot, name: &str) -> (String, i32, i32) {
    let status = status(snapshot, name);
    (
        status.phase,
        status.current_nodes_realized,
        status.desired_nodes_realized,
    )
}

fn error(value: &str) -> FieldReport {
    FieldReport {
        field: "spec.ingress[0].from[0].fqdn".to_owned(),
        value: value.to_owned(),
        reason: "is not supported".to_owned(),
    }
}

fn entry(name: &str, generation: i64, selects_pods: bool, errors: Vec<FieldReport>) -> PolicyReport {
    PolicyReport {
        kind: "ClusterNetworkPolicy".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        generation,
        selects_pods,
        errors,
        ..PolicyReport::default()
    }
}

/// The report of a Node that has applied the policies as they are.
fn report(snapshot: &mut MemberSnapshot, node: &str, policies: Vec<PolicyReport>) {
    let all = snapshot.policies.objects().unwrap().values();
    let list: Vec<_> = all
        .map(|p| (p.uid().unwrap(), p.metadata.generation.unwrap()))
        .collect();
    let observed = observed_policies(list.iter().map(|(uid, generation)| (uid.as_str(), *generation)));
    insert_report(
        snapshot,
        node,
        NodePolicyStatusSpec::bounded(Enforcement::All, observed, policies),
    );
}

fn spec() -> Value {
    json!({ "priority": 1, "ingress": [{ "action": "Drop", "from": [{ "scope": "ClusterSet", "podSelector": {} }] }] })
}

#[test]
fn a_policy_is_realized_once_every_node_has_applied_it() {
    let mut snapshot = enforcing();
    for node in ["a", "b", "c"] {
        report(&mut snapshot, node, vec![]);
    }
    add_policy(&mut snapshot, "web", 1, &spec());
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Pending".to_owned(), 0, 0));
    report(&mut snapshot, "a", vec![entry("web", 1, true, vec![])]);
    settle(&mut snapshot);
    assert_eq!(
        counts(&snapshot, "web"),
        ("Realizing".to_owned(), 1, 1),
        "b and c are behind"
    );
    report(&mut snapshot, "b", vec![entry("web", 1, true, vec![])]);
    report(&mut snapshot, "c", vec![]);
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Realized".to_owned(), 2, 2));
    // The spec changes.
    add_policy(&mut snapshot, "web", 2, &spec());
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Pending".to_owned(), 0, 2));
    assert_eq!(status(&snapshot, "web").observed_generation, 2);
    for node in ["a", "b"] {
        report(&mut snapshot, node, vec![entry("web", 2, true, vec![])]);
    }
    report(&mut snapshot, "c", vec![]);
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Realized".to_owned(), 2, 2));
}

#[test]
fn a_policy_that_selects_no_pod_is_realized_on_no_node() {
    let mut snapshot = enforcing();
    add_policy(&mut snapshot, "web", 1, &spec());
    report(&mut snapshot, "a", vec![]);
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Realized".to_owned(), 0, 0));
}

#[test]
fn another_policy_does_not_revoke_the_phase() {
    let mut snapshot = enforcing();
    add_policy(&mut snapshot, "web", 1, &spec());
    report(&mut snapshot, "a", vec![entry("web", 1, true, vec![])]);
    settle(&mut snapshot);
    add_policy(&mut snapshot, "db", 1, &spec());
    let writes = reconcile(&mut snapshot);
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(counts(&snapshot, "web").0, "Realized");
    assert_eq!(counts(&snapshot, "db").0, "Pending");
}

#[test]
fn a_phase_of_antrea_does_not_count() {
    let mut snapshot = enforcing();
    report(&mut snapshot, "a", vec![]);
    add_policy(&mut snapshot, "web", 1, &spec());
    let mut antrea = ClusterNetworkPolicy::clone(&policy(&snapshot, "web").unwrap());
    antrea.status = json!({ "phase": "Realized", "observedGeneration": 1 });
    insert(present(&mut snapshot.policies), antrea);
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Pending".to_owned(), 0, 0));
}

#[test]
fn errors_have_field_value_and_node() {
    let mut snapshot = enforcing();
    add_policy(&mut snapshot, "web", 1, &spec());
    for node in ["a", "b"] {
        report(
            &mut snapshot,
            node,
            vec![entry("web", 1, node == "a", vec![error("example.com")])],
        );
    }
    report(&mut snapshot, "c", vec![entry("web", 1, true, vec![])]);
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Failed".to_owned(), 1, 2));
    let conditions = status(&snapshot, "web").conditions;
    let [realizable, failure] = &conditions[..] else {
        panic!("{conditions:?}")
    };
    assert_eq!(
        (realizable.type_.as_str(), realizable.status.as_str()),
        ("Realizable", "True")
    );
    assert_eq!(
        (failure.type_.as_str(), failure.status.as_str()),
        ("RealizationFailure", "True")
    );
    assert_eq!(
        failure.message,
        "Failed Nodes count 2: spec.ingress[0].from[0].fqdn: \"example.com\" is not supported (Nodes a, b)"
    );
    // The transition time is that of the first failure.
    let since = failure.last_transition_time.clone();
    advance(&mut snapshot, 60);
    settle(&mut snapshot);
    assert_eq!(status(&snapshot, "web").conditions[1].last_transition_time, since);
    report(&mut snapshot, "b", vec![entry("web", 1, true, vec![])]);
    settle(&mut snapshot);
    let conditions = status(&snapshot, "web").conditions;
    assert!(conditions[1].message.ends_with("(Node a)"), "{conditions:?}");
    assert_eq!(conditions[1].last_transition_time, since);
    report(&mut snapshot, "a", vec![entry("web", 1, true, vec![])]);
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Realized".to_owned(), 3, 3));
    assert_eq!(status(&snapshot, "web").conditions.len(), 1);
}

#[test]
fn many_errors_and_nodes_are_counted() {
    let mut snapshot = enforcing();
    add_policy(&mut snapshot, "web", 1, &spec());
    for number in 0..20 {
        let name = format!("n{number:02}");
        let node = json!({ "metadata": { "name": name, "uid": format!("uid-{name}") } });
        insert(&mut snapshot.nodes, object::<Node>(node));
        let errors = (0..15).map(|number| error(&format!("{number:02}"))).collect();
        report(&mut snapshot, &name, vec![entry("web", 1, true, errors)]);
    }
    settle(&mut snapshot);
    let message = status(&snapshot, "web").conditions[1].message.clone();
    assert!(message.starts_with("Failed Nodes count 20: "), "{message}");
    assert!(message.contains("(Nodes n00, n01, n02 and 17 more)"), "{message}");
    assert!(message.ends_with("; 5 more errors"), "{message}");
}

#[test]
fn reports_of_deleted_and_replaced_nodes_do_not_count() {
    let mut snapshot = enforcing();
    add_policy(&mut snapshot, "web", 1, &spec());
    for node in ["a", "gone"] {
        report(&mut snapshot, node, vec![entry("web", 1, true, vec![])]);
    }
    let replaced = json!({ "metadata": { "name": "b", "uid": "another" } });
    report(&mut snapshot, "b", vec![entry("web", 1, true, vec![])]);
    insert(&mut snapshot.nodes, object::<Node>(replaced));
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Realized".to_owned(), 1, 1));
}

#[test]
fn antrea_owns_the_status_while_nodes_enforce_stretched_rules_only() {
    let mut snapshot = enforcing();
    let local =
        json!({ "priority": 1, "ingress": [{ "action": "Drop", "from": [{ "fqdn": "example.com" }] }] });
    add_policy(&mut snapshot, "web", 1, &spec());
    add_policy(&mut snapshot, "own", 1, &local);
    let policies = vec![
        entry("own", 1, true, vec![error("example.com")]),
        entry("web", 1, true, vec![error("x")]),
    ];
    for node in ["a", "b"] {
        let spec =
            NodePolicyStatusSpec::bounded(Enforcement::ClusterSetOnly, String::new(), policies.clone());
        insert_report(&mut snapshot, node, spec);
    }
    let plan = plan(&snapshot);
    assert!(plan.writes.is_empty(), "{:?}", plan.writes);
    let [event] = &plan.warning_events[..] else {
        panic!("{:?}", plan.warning_events)
    };
    assert_eq!(
        (event.object.kind, event.object.name.as_str()),
        (Kind::ClusterNetworkPolicy, "web")
    );
    assert_eq!(
        event.message,
        "spec.ingress[0].from[0].fqdn: \"x\" is not supported"
    );
}

/// A Node that was down since Antrea was absent had the controller write statuses beside Antrea's controller.
#[test]
fn antrea_owns_the_status_while_one_node_leaves_rules_to_it() {
    let mut snapshot = enforcing();
    add_policy(&mut snapshot, "web", 1, &spec());
    report(&mut snapshot, "a", vec![entry("web", 1, true, vec![])]);
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Realized".to_owned(), 1, 1));
    let stretched = |snapshot: &mut MemberSnapshot, node| {
        let spec = NodePolicyStatusSpec::bounded(Enforcement::ClusterSetOnly, String::new(), vec![]);
        insert_report(snapshot, node, spec);
    };
    stretched(&mut snapshot, "b");
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Pending".to_owned(), 0, 0));
    let mut antrea = ClusterNetworkPolicy::clone(&policy(&snapshot, "web").unwrap());
    antrea.status = json!({ "phase": "Realized", "observedGeneration": 1, "currentNodesRealized": 3 });
    insert(present(&mut snapshot.policies), antrea);
    Arc::make_mut(present(&mut snapshot.tiers)).clear();
    assert!(
        reconcile(&mut snapshot).is_empty(),
        "the report of Node a remains"
    );
    // A report of a Node that no longer exists does not count.
    stretched(&mut snapshot, "gone");
    Arc::make_mut(&mut snapshot.nodes).remove(&NamespacedName::new("", "b"));
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Realized".to_owned(), 1, 1));
    assert!(!present(&mut snapshot.tiers).is_empty());
}

#[test]
fn a_status_is_reset_when_no_node_enforces_policies() {
    let mut snapshot = enforcing();
    add_policy(&mut snapshot, "web", 1, &spec());
    report(&mut snapshot, "a", vec![entry("web", 1, true, vec![])]);
    settle(&mut snapshot);
    snapshot.node_policy_statuses = OptionalKind::Pending;
    assert!(reconcile(&mut snapshot).is_empty(), "reports are not known yet");
    snapshot.node_policy_statuses = OptionalKind::Present(ObjectMap::default());
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Pending".to_owned(), 0, 0));
    assert!(status(&snapshot, "web").conditions.is_empty());
    // A status of Antrea stays.
    let mut antrea = ClusterNetworkPolicy::clone(&policy(&snapshot, "web").unwrap());
    antrea.status =
        json!({ "phase": "Realized", "conditions": [{ "type": "Realizable", "status": "True" }] });
    insert(present(&mut snapshot.policies), antrea);
    assert!(reconcile(&mut snapshot).is_empty());
}

#[test]
fn policies_of_namespaces_have_a_status() {
    let mut snapshot = enforcing();
    let policy: NetworkPolicy = object(json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 1 }, "spec": spec(),
    }));
    insert(present(&mut snapshot.network_policies), policy);
    report(&mut snapshot, "a", vec![]);
    settle(&mut snapshot);
    let policies = snapshot.network_policies.objects().unwrap();
    let status = policies[&NamespacedName::new("shop", "web")].status();
    assert_eq!(status.phase, "Pending", "the report is older than the policy");
}

#[test]
fn default_tiers_are_created_once_policies_are_enforced() {
    let mut snapshot = enforcing();
    let own: Tier = object(json!({ "metadata": { "name": "platform" }, "spec": { "priority": 7 } }));
    insert(present(&mut snapshot.tiers), own);
    settle(&mut snapshot);
    assert_eq!(present(&mut snapshot.tiers).len(), 1);
    report(&mut snapshot, "a", vec![]);
    settle(&mut snapshot);
    let found: Vec<_> = present(&mut snapshot.tiers)
        .values()
        .map(|tier| (tier.name_any(), tier.spec["priority"].as_u64().unwrap()))
        .collect();
    let mut expected: Vec<_> = DEFAULT_TIERS
        .map(|(name, p)| (name.to_owned(), u64::from(p)))
        .into();
    expected.sort();
    expected
        .iter_mut()
        .filter(|(name, _)| name == "platform")
        .for_each(|(_, p)| *p = 7);
    assert_eq!(found, expected);
}

#[test]
fn a_cluster_without_the_kinds_gets_nothing() {
    let mut snapshot = enforcing();
    report(&mut snapshot, "a", vec![entry("web", 1, true, vec![])]);
    snapshot.policies = OptionalKind::Absent;
    snapshot.network_policies = OptionalKind::Absent;
    snapshot.tiers = OptionalKind::Absent;
    assert!(reconcile(&mut snapshot).is_empty());
}

/// The report of a Node about the policy `web` with these counters of packets, of 74 bytes each.
fn report_counters(snapshot: &mut MemberSnapshot, node: &str, generation: i64, rules: &[(&str, u64)]) {
    let mut web = entry("web", generation, true, vec![]);
    web.rules = rules
        .iter()
        .map(|(name, packets)| RuleReport::new(name, *packets, packets.saturating_mul(74)))
        .collect();
    report(snapshot, node, vec![web]);
}

/// Names and packets of the rules in the status of the policy `web`.
fn counters(snapshot: &MemberSnapshot) -> Vec<(String, u64)> {
    let stats = status(snapshot, "web").rule_traffic_stats;
    stats
        .into_iter()
        .map(|rule| (rule.name, rule.traffic_stats.packets))
        .collect()
}

fn named(rules: &[(&str, u64)]) -> Vec<(String, u64)> {
    rules
        .iter()
        .map(|(name, packets)| ((*name).to_owned(), *packets))
        .collect()
}

/// The policy `web`, realized on Node a with a packet of one rule.
fn counted() -> MemberSnapshot {
    let mut snapshot = enforcing();
    add_policy(&mut snapshot, "web", 1, &spec());
    report_counters(&mut snapshot, "a", 1, &[("spec.ingress[0]", 1)]);
    settle(&mut snapshot);
    assert_eq!(counters(&snapshot), named(&[("spec.ingress[0]", 1)]));
    assert_eq!(
        status(&snapshot, "web").traffic_stats_time.as_deref(),
        Some("2026-01-01T12:00:00Z")
    );
    snapshot
}

/// Reconciles; the number of writes of policies.
fn policy_writes(snapshot: &mut MemberSnapshot) -> usize {
    let writes = reconcile(snapshot);
    let of_policies = writes
        .iter()
        .filter(|write| write.target.kind == Kind::ClusterNetworkPolicy);
    of_policies.count()
}

#[test]
fn counters_are_the_sums_of_the_existing_nodes() {
    let mut snapshot = counted();
    report_counters(
        &mut snapshot,
        "b",
        1,
        &[("spec.ingress[1]", 5), ("spec.ingress[0]", 2)],
    );
    // Reports of another generation and of a Node that does not exist do not count.
    report_counters(&mut snapshot, "c", 2, &[("spec.ingress[0]", 100)]);
    report_counters(&mut snapshot, "gone", 1, &[("spec.ingress[0]", 100)]);
    settle(&mut snapshot);
    assert_eq!(
        counters(&snapshot),
        named(&[("spec.ingress[0]", 3), ("spec.ingress[1]", 5)])
    );
    assert_eq!(
        status(&snapshot, "web").rule_traffic_stats[0].traffic_stats.bytes,
        3 * 74
    );
    // A deleted Node lowers them, which is a change of the count of Nodes as well.
    Arc::make_mut(&mut snapshot.nodes).remove(&NamespacedName::new("", "b"));
    settle(&mut snapshot);
    assert_eq!(counters(&snapshot), named(&[("spec.ingress[0]", 1)]));
    // A new spec has other rules.
    add_policy(&mut snapshot, "web", 2, &spec());
    settle(&mut snapshot);
    assert_eq!(counters(&snapshot), named(&[("spec.ingress[0]", 100)]), "of c");
}

#[test]
fn counters_are_bounded() {
    let mut snapshot = counted();
    let many = |prefix: &str| PolicyReport {
        rules: (0..MAX_ALL_RULES)
            .map(|number| RuleReport::new(&format!("{prefix}{number:04}"), u64::MAX, u64::MAX))
            .collect(),
        ..entry("web", 1, true, vec![])
    };
    for node in ["a", "b"] {
        report(&mut snapshot, node, vec![many("a")]);
    }
    report(&mut snapshot, "c", vec![many("b")]);
    settle(&mut snapshot);
    let stats = status(&snapshot, "web").rule_traffic_stats;
    assert_eq!(stats.len(), MAX_ALL_RULES);
    let first = &stats[0];
    assert_eq!(
        (
            first.name.as_str(),
            first.traffic_stats.packets,
            first.traffic_stats.bytes
        ),
        ("a0000", MAX_COUNT, MAX_COUNT)
    );
    // Another writer than an agent: a long name.
    let mut forged = entry("web", 1, true, vec![]);
    forged.rules = vec![RuleReport::new(&"x".repeat(MAX_RULE_NAME + 1), 1, 74)];
    for node in ["a", "b", "c"] {
        insert_report(
            &mut snapshot,
            node,
            NodePolicyStatusSpec {
                enforcement: Enforcement::All,
                policies: vec![forged.clone()],
                ..NodePolicyStatusSpec::default()
            },
        );
    }
    advance(&mut snapshot, 60);
    settle(&mut snapshot);
    assert_eq!(counters(&snapshot), []);
}

/// Each write of a status is an event for every Node.
#[test]
fn counters_alone_are_written_once_in_an_interval() {
    let mut snapshot = counted();
    let mut writes = 0;
    for second in 1_i64..=180 {
        advance(&mut snapshot, 1);
        report_counters(
            &mut snapshot,
            "a",
            1,
            &[("spec.ingress[0]", 1 + second.unsigned_abs())],
        );
        let mut of_policies = Plan::default();
        policy_status::plan(&snapshot, &mut of_policies);
        let due = of_policies.next_requeue;
        let is_write = policy_writes(&mut snapshot) == 1;
        assert_eq!(is_write, second % 60 == 0, "{second}");
        let next = NOW.parse::<jiff::Timestamp>().unwrap() + SignedDuration::from_secs(second / 60 * 60 + 60);
        assert!(is_write || due == Some(next), "{due:?} is not {next}");
        writes += usize::from(is_write);
    }
    assert_eq!(writes, 3);
    assert_eq!(counters(&snapshot), named(&[("spec.ingress[0]", 181)]));
    advance(&mut snapshot, 600);
    assert_eq!(policy_writes(&mut snapshot), 0, "no counter has changed");
}

#[test]
fn other_changes_are_written_at_once_with_the_newest_counters() {
    let mut snapshot = counted();
    advance(&mut snapshot, 5);
    report_counters(&mut snapshot, "a", 1, &[("spec.ingress[0]", 7)]);
    assert!(reconcile(&mut snapshot).is_empty(), "the counters wait");
    report_counters(&mut snapshot, "b", 1, &[("spec.ingress[0]", 2)]);
    settle(&mut snapshot);
    assert_eq!(counts(&snapshot, "web"), ("Realized".to_owned(), 2, 2));
    assert_eq!(counters(&snapshot), named(&[("spec.ingress[0]", 9)]));
    assert_eq!(
        status(&snapshot, "web").traffic_stats_time.as_deref(),
        Some("2026-01-01T12:00:05Z")
    );
}

#[test]
fn the_interval_grows_with_the_cluster() {
    let mut snapshot = counted();
    for number in 0..1_000 {
        let node = json!({ "metadata": { "name": format!("n{number}"), "uid": format!("uid-n{number}") } });
        insert(&mut snapshot.nodes, object::<Node>(node));
    }
    for number in 0..99 {
        add_policy(&mut snapshot, &format!("p{number}"), 1, &spec());
    }
    settle(&mut snapshot);
    report_counters(&mut snapshot, "a", 1, &[("spec.ingress[0]", 7)]);
    // 100 policies and 1,003 Nodes.
    for (seconds, packets) in [(60, 1), (40, 1), (1, 7)] {
        advance(&mut snapshot, seconds);
        settle(&mut snapshot);
        assert_eq!(counters(&snapshot), named(&[("spec.ingress[0]", packets)]));
    }
}

/// Antrea's CRD has no such fields, and its API server prunes them.
#[test]
fn an_api_server_that_prunes_counters_gets_a_write_per_interval() {
    let prune = |snapshot: &mut MemberSnapshot| {
        let mut web = ClusterNetworkPolicy::clone(&policy(snapshot, "web").unwrap());
        let fields = web.status.as_object_mut().unwrap();
        fields.remove("ruleTrafficStats").unwrap();
        fields.remove("trafficStatsTime").unwrap();
        insert(present(&mut snapshot.policies), web);
    };
    let mut snapshot = counted();
    prune(&mut snapshot);
    let mut writes = Vec::new();
    for second in 1..=130 {
        advance(&mut snapshot, 1);
        if policy_writes(&mut snapshot) > 0 {
            prune(&mut snapshot);
            writes.push(second);
        }
    }
    assert_eq!(writes, [60, 120]);
    // Another replica has no memory.
    snapshot.status_times = StatusTimes::default();
    assert_eq!(policy_writes(&mut snapshot), 1);
    prune(&mut snapshot);
    assert_eq!(policy_writes(&mut snapshot), 0);
}

#[test]
fn another_replica_keeps_the_pace() {
    let mut snapshot = counted();
    snapshot.status_times = StatusTimes::default();
    report_counters(&mut snapshot, "a", 1, &[("spec.ingress[0]", 7)]);
    advance(&mut snapshot, 59);
    assert_eq!(policy_writes(&mut snapshot), 0);
    // The clock of the replica is behind that of its predecessor.
    advance(&mut snapshot, -120);
    settle(&mut snapshot);
    assert_eq!(counters(&snapshot), named(&[("spec.ingress[0]", 7)]));
}

#[test]
fn counters_end_with_the_enforcement_by_agents() {
    let mut snapshot = counted();
    snapshot.node_policy_statuses = OptionalKind::Present(ObjectMap::default());
    settle(&mut snapshot);
    let status = policy(&snapshot, "web").unwrap().status.clone();
    assert_eq!(status["ruleTrafficStats"], json!([]));
    assert_eq!(status.get("trafficStatsTime"), None);
}

/// Policy, generation, whether it selects Pods, number of errors, and packets of a rule.
fn entries() -> impl Strategy<Value = Vec<(usize, i64, bool, usize, u64)>> {
    let entry = (0_usize..4, 1_i64..3, any::<bool>(), 0_usize..3, 0_u64..3);
    proptest::collection::vec(entry, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A plan leaves nothing to write, counts are consistent, and a policy is Realized only without errors.
    #[test]
    fn statuses_are_stable_and_consistent(
        generations in proptest::collection::vec(1_i64..3, 0..4),
        reports in proptest::collection::vec(
            (0_usize..3, entries(), any::<bool>()),
            0..6,
        ),
    ) {
        let mut snapshot = enforcing();
        for (index, generation) in generations.iter().enumerate() {
            add_policy(&mut snapshot, &format!("p{index}"), *generation, &spec());
        }
        for (node, entries, is_current) in reports {
            let mut policies: Vec<_> = entries
                .into_iter()
                .map(|(index, generation, selects, errors, packets)| {
                    let errors = (0..errors).map(|number| error(&number.to_string())).collect();
                    let mut entry = entry(&format!("p{index}"), generation, selects, errors);
                    entry.rules = vec![RuleReport::new("spec.ingress[0]", packets, 74 * packets)];
                    entry
                })
                .collect();
            policies.sort_by(|a, b| a.name.cmp(&b.name));
            policies.dedup_by(|a, b| a.name == b.name);
            let node = ["a", "b", "c"][node];
            if is_current {
                report(&mut snapshot, node, policies);
            } else {
                let spec = NodePolicyStatusSpec::bounded(Enforcement::All, "old".to_owned(), policies);
                insert_report(&mut snapshot, node, spec);
            }
            reconcile(&mut snapshot);
            advance(&mut snapshot, 1);
            let again: Vec<_> = reconcile(&mut snapshot);
            prop_assert!(again.is_empty(), "{again:?}");
            for (index, generation) in generations.iter().enumerate() {
                let status = status(&snapshot, &format!("p{index}"));
                let (current, desired) = (status.current_nodes_realized, status.desired_nodes_realized);
                prop_assert_eq!(status.observed_generation, *generation);
                prop_assert!(0 <= current && current <= desired && desired <= 3);
                let has_failure = status.conditions.len() == 2;
                prop_assert!(status.phase != "Realized" || (current == desired && !has_failure), "{:?}", status);
                prop_assert!(status.phase != "Failed" || has_failure, "{:?}", status);
            }
        }
    }
}
