//! Cluster IDs of `ServiceAccount`s by their first use.

use kube::ResourceExt;
use mc_api::config::AccountBinding;
use serde_json::{Value, json};

use super::*;
use crate::plan::WriteOp;

/// The announce of a joining cluster that uses `account`.
fn joins(cluster: &str, account: &str) -> MemberClusterAnnounce {
    let mut announce = announce(cluster, "set", "north");
    let annotations = announce.metadata.annotations.get_or_insert_default();
    annotations.insert(names::ANNOTATION_SERVICE_ACCOUNT.to_owned(), account.to_owned());
    announce
}

fn is_accepted(snapshot: &LeaderSnapshot, cluster: &str) -> bool {
    let announce = &snapshot.announces[&NamespacedName::new(NS, names::member_announce(cluster))];
    announce
        .finalizers()
        .contains(&names::member_announce_finalizer(cluster))
}

#[test]
fn an_account_belongs_to_the_first_cluster_that_joins_with_it() {
    let mut snapshot = without_members();
    account(&mut snapshot, "member-east", None);
    insert(&mut snapshot.announces, joins("east", "member-east"));
    // A cluster is accepted after its binding is recorded.
    reconcile(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({ "member-east": "east" }));
    assert!(!is_accepted(&snapshot, "east"));
    settle(&mut snapshot);
    assert!(is_accepted(&snapshot, "east"));
    // Where no admission policy refuses it, the second one is accepted without a binding.
    insert(&mut snapshot.announces, joins("west", "member-east"));
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({ "member-east": "east" }));
    assert!(is_accepted(&snapshot, "west"));
    let events = make_plan(&mut snapshot).warning_events;
    let messages: Vec<_> = events
        .iter()
        .map(|e| (e.reason.as_str(), e.message.as_str()))
        .collect();
    assert_eq!(
        messages,
        [(
            "AccountBound",
            "ServiceAccount \"member-east\" may write for cluster \"east\" only, which joined with it first; its \
             annotation multicluster.antrea.io/cluster-id confirms that"
        )]
    );
    // The annotation ends the Event.
    account(
        &mut snapshot,
        "member-east",
        Some((names::ANNOTATION_CLUSTER_ID, "east")),
    );
    settle(&mut snapshot);
    assert_eq!(make_plan(&mut snapshot).warning_events, []);
}

#[test]
fn a_binding_by_first_use_outlasts_its_member_and_its_account() {
    let mut snapshot = without_members();
    account(&mut snapshot, "member-east", None);
    account(&mut snapshot, "mallory", None);
    insert(&mut snapshot.announces, joins("east", "member-east"));
    settle(&mut snapshot);
    let announce = NamespacedName::new(NS, names::member_announce("east"));
    delete(&mut snapshot.announces, &announce);
    insert(&mut snapshot.announces, joins("east2", "member-east"));
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({ "member-east": "east" }));
    // A list from an old state lacks the account.
    delete(
        &mut snapshot.service_accounts,
        &NamespacedName::new(NS, "member-east"),
    );
    insert(&mut snapshot.announces, joins("east", "mallory"));
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({ "member-east": "east" }));
    // An administrator assigns the ID.
    account(
        &mut snapshot,
        "member-east-2",
        Some((names::ANNOTATION_CLUSTER_ID, "east")),
    );
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({ "member-east-2": "east" }));
}

#[test]
fn a_lost_binding_returns_from_the_accepted_announce() {
    let mut snapshot = without_members();
    account(&mut snapshot, "member-east", None);
    account(&mut snapshot, "mallory", None);
    insert(&mut snapshot.announces, joins("east", "member-east"));
    settle(&mut snapshot);
    snapshot.service_account_bindings = ObjectMap::default();
    // A newcomer that is older, by a clock that was set back, does not get the ID.
    let mut newcomer = joins("south", "member-east");
    newcomer.metadata.creation_timestamp = None;
    insert(&mut snapshot.announces, newcomer);
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({ "member-east": "east" }));
}

#[test]
fn a_binding_is_written_to_the_version_that_was_read() {
    let mut snapshot = without_members();
    account(&mut snapshot, "member-east", None);
    insert(&mut snapshot.announces, joins("east", "member-east"));
    let op = |writes: &[Write]| {
        let to_bindings = |write: &&Write| write.target.name == names::SERVICE_ACCOUNT_BINDINGS;
        writes.iter().find(to_bindings).map(|write| write.op.clone())
    };
    assert!(matches!(op(&reconcile(&mut snapshot)), Some(WriteOp::Create(_))));
    let map = snapshot.service_account_bindings.values().next().unwrap();
    let mut map = map.as_ref().clone();
    map.metadata.resource_version = Some("7".to_owned());
    insert(&mut snapshot.service_account_bindings, map);
    account(
        &mut snapshot,
        "member-west",
        Some((names::ANNOTATION_CLUSTER_ID, "west")),
    );
    let Some(WriteOp::Patch(patch)) = op(&make_plan(&mut snapshot).writes) else {
        panic!("no patch")
    };
    assert_eq!(patch.value()["metadata"]["resourceVersion"], "7");
}

#[test]
fn required_keeps_bindings_and_makes_none() {
    let mut snapshot = without_members();
    account(&mut snapshot, "member-east", None);
    account(&mut snapshot, "member-west", None);
    insert(&mut snapshot.announces, joins("east", "member-east"));
    settle(&mut snapshot);
    snapshot.config.account_binding = AccountBinding::Required;
    insert(&mut snapshot.announces, joins("west", "member-west"));
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({ "member-east": "east" }));
    snapshot.config.account_binding = AccountBinding::Shared;
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({}));
}

#[test]
fn a_statement_of_an_accepted_cluster_binds_nothing() {
    let mut snapshot = without_members();
    account(&mut snapshot, "mallory", None);
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    settle(&mut snapshot);
    let mut stolen = joins("east", "mallory");
    stolen.metadata.finalizers = Some(vec![names::member_announce_finalizer("east")]);
    insert(&mut snapshot.announces, stolen);
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({}));
}

#[test]
fn an_administrator_binds_before_any_first_use() {
    let mut snapshot = without_members();
    account(
        &mut snapshot,
        "member-east",
        Some((names::ANNOTATION_CLUSTER_ID, "east")),
    );
    account(&mut snapshot, "mallory", None);
    insert(&mut snapshot.announces, joins("east", "mallory"));
    settle(&mut snapshot);
    assert_eq!(bound(&snapshot), json!({ "member-east": "east" }));
    // Also where the account had the ID by its first use.
    insert(&mut snapshot.announces, joins("west", "mallory"));
    settle(&mut snapshot);
    assert_eq!(
        bound(&snapshot),
        json!({ "member-east": "east", "mallory": "west" })
    );
    account(
        &mut snapshot,
        "member-west",
        Some((names::ANNOTATION_CLUSTER_ID, "west")),
    );
    settle(&mut snapshot);
    assert_eq!(
        bound(&snapshot),
        json!({ "member-east": "east", "member-west": "west" })
    );
}

#[test]
fn shared_accounts_and_other_modes_bind_nothing() {
    let shared = Some((names::ANNOTATION_ACCOUNT_BINDING, "Shared"));
    for (mode, name, annotation) in [
        (AccountBinding::OnFirstUse, "members", shared),
        (AccountBinding::OnFirstUse, "antrea-mc-member-access-sa", None),
        (AccountBinding::Shared, "members", None),
        (AccountBinding::Required, "members", None),
    ] {
        let mut snapshot = without_members();
        snapshot.config.account_binding = mode;
        account(&mut snapshot, name, annotation);
        insert(&mut snapshot.announces, joins("east", name));
        settle(&mut snapshot);
        assert_eq!(bound(&snapshot), json!({}), "{mode:?} {name}");
        assert!(is_accepted(&snapshot, "east"), "{mode:?} {name}");
        let map = snapshot.service_account_bindings.values().next().unwrap();
        assert_eq!(
            map.annotations()[names::ANNOTATION_ACCOUNT_BINDING],
            mode.as_str()
        );
    }
    let mut snapshot = without_members();
    let bad = Some((names::ANNOTATION_ACCOUNT_BINDING, "shared"));
    account(&mut snapshot, "members", bad);
    assert_issue(
        &mut snapshot,
        "ServiceAccount members: annotation mc-gateway.io/account-binding: \"shared\" is not Shared; ignored",
    );
}

#[test]
fn a_cluster_is_accepted_once_its_account_is_known() {
    let mut snapshot = without_members();
    insert(&mut snapshot.announces, joins("east", "member-east"));
    settle(&mut snapshot);
    assert!(!is_accepted(&snapshot, "east"));
    assert_issue(&mut snapshot, "there is no ServiceAccount \"member-east\" yet");
    account(&mut snapshot, "member-east", None);
    settle(&mut snapshot);
    assert!(is_accepted(&snapshot, "east"));
}

#[test]
fn an_account_gets_no_id_that_extends_the_id_of_a_member() {
    for (member, newcomer) in [("east", "east-1"), ("east-1", "east")] {
        let mut snapshot = without_members();
        insert(&mut snapshot.announces, accepted(member));
        for (name, id) in [("newcomer", newcomer), ("other", "eastern")] {
            account(&mut snapshot, name, Some((names::ANNOTATION_CLUSTER_ID, id)));
        }
        settle(&mut snapshot);
        // A member without a bound account keeps no account of an administrator from writing.
        assert_eq!(
            bound(&snapshot),
            json!({ "newcomer": newcomer, "other": "eastern" })
        );
        account(
            &mut snapshot,
            "member",
            Some((names::ANNOTATION_CLUSTER_ID, member)),
        );
        settle(&mut snapshot);
        assert_eq!(
            bound(&snapshot),
            json!({ "member": member, "newcomer": "", "other": "eastern" })
        );
        assert_issue(
            &mut snapshot,
            &format!(
                "cluster ID {newcomer:?} and that of member {member:?} differ by something behind a dash"
            ),
        );
    }
}

#[test]
fn a_leader_without_admission_policies_reports_that() {
    let mut snapshot = leader_snapshot();
    let restricted = |snapshot: &LeaderSnapshot| {
        let set = snapshot.cluster_sets.values().next().unwrap();
        let conditions = &set.status.as_ref().unwrap().conditions;
        let restricted = conditions.iter().find(|c| c.type_ == "MembersRestricted");
        restricted.map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
    };
    snapshot.member_policies = MemberPolicies::Unknown;
    settle(&mut snapshot);
    assert_eq!(restricted(&snapshot), None);
    snapshot.member_policies = MemberPolicies::Missing {
        name: "antrea-mc-resourceexports".to_owned(),
    };
    settle(&mut snapshot);
    let (status, reason, message) = restricted(&snapshot).unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "PoliciesMissing"));
    assert!(
        message.contains("antrea-mc-resourceexports is not in force"),
        "{message}"
    );
    let plan = make_plan(&mut snapshot);
    assert_eq!(plan.warning_events.len(), 1, "{:?}", plan.warning_events);
    // The members are as ready as before.
    let set = snapshot.cluster_sets.values().next().unwrap();
    assert_eq!(set.status.as_ref().unwrap().conditions[0].status, "True");
    snapshot.member_policies = MemberPolicies::Missing {
        name: format!("{}-{NS}", names::MEMBER_TOKENS_POLICY),
    };
    settle(&mut snapshot);
    let (status, _, message) = restricted(&snapshot).unwrap();
    assert_eq!(status, "False");
    assert!(message.contains("tokens that outlast its Secret"), "{message}");
    snapshot.member_policies = MemberPolicies::Installed;
    settle(&mut snapshot);
    assert_eq!(restricted(&snapshot).unwrap().0, "True");
}

proptest! {
    /// Any history of announces, accounts and restarts: an account has one ID, an ID one account, and a binding
    /// changes only with its account or an annotation.
    #[test]
    fn a_first_use_is_never_displaced(
        steps in proptest::collection::vec((0..3_u8, 0..3_usize, 0..3_usize), 1..24),
    ) {
        const ACCOUNTS: [&str; 3] = ["a", "b", "c"];
        const CLUSTERS: [&str; 3] = ["east", "west", "south"];
        let mut snapshot = without_members();
        for name in ACCOUNTS {
            account(&mut snapshot, name, None);
        }
        settle(&mut snapshot);
        let mut before = bound(&snapshot);
        for (step, account, cluster) in steps {
            let (account, cluster) = (ACCOUNTS[account], CLUSTERS[cluster]);
            let announce = NamespacedName::new(NS, names::member_announce(cluster));
            match step {
                0 => delete(&mut snapshot.announces, &announce),
                _ => insert(&mut snapshot.announces, joins(cluster, account)),
            }
            settle(&mut snapshot);
            let after = bound(&snapshot);
            for (account, id) in before.as_object().unwrap() {
                prop_assert_eq!(&after[account], id);
            }
            let ids: BTreeSet<_> = after.as_object().unwrap().values().map(Value::to_string).collect();
            prop_assert_eq!(ids.len(), after.as_object().unwrap().len());
            before = after;
        }
    }
}
