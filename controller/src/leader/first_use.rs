//! Trust on first use: a `ServiceAccount` without a cluster ID belongs to the first cluster that joins with it.
//!
//! No object shows the account that wrote it, so members state theirs on their announce, and the admission policy
//! compares the statement with the account of the request. Members of Antrea state none.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use mc_api::{config::AccountBinding, member_cluster_announce::MemberClusterAnnounce, names, validation};

use super::{
    account_bindings::{self, AccountBindings},
    members,
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// The reason of Events on the announce of a cluster with such an account.
pub(super) const ACCOUNT_BOUND: &str = "AccountBound";

/// The bindings of accounts without one by an administrator (`explicit`). An ID that an administrator has bound is
/// bound to no other account.
///
/// A recorded binding also outlasts its account: a list of ServiceAccounts that an API server answers from an old state
/// lacks accounts, and another one must not take their IDs.
pub(super) fn bindings(
    snapshot: &LeaderSnapshot,
    explicit: &BTreeMap<String, String>,
    open: &BTreeSet<String>,
    plan: &mut Plan,
) -> AccountBindings {
    let mut first_use = AccountBindings::default();
    let mut taken: BTreeSet<&str> = explicit.values().map(String::as_str).collect();
    let mode = snapshot.config.account_binding;
    let exists = |account: &str| get(&snapshot.service_accounts, &snapshot.namespace, account).is_some();
    let records = account_bindings::recorded(&snapshot.service_account_bindings, &snapshot.namespace);
    for (account, id) in records.filter(|(key, _)| account_bindings::is_account(key)) {
        let is_absent = !exists(account);
        let is_kept = open.contains(account) && mode != AccountBinding::Shared || is_absent;
        let may_write_nothing = is_absent && id.is_empty();
        if is_kept && (may_write_nothing || validation::dns_label(id, 63).is_ok() && taken.insert(id)) {
            first_use.ids.insert(account.to_owned(), id.to_owned());
        }
    }
    // A recorded binding of the cluster of a Namespace remains; no account is bound to this cluster any more.
    let namespaces = snapshot.member_namespaces.members.values();
    taken.extend(namespaces.map(|member| member.cluster_id.as_str()));
    let candidates = match mode {
        AccountBinding::OnFirstUse => candidates(snapshot),
        AccountBinding::Required | AccountBinding::Shared => vec![],
    };
    for (account, announce) in candidates {
        let id = announce.cluster_id.as_str();
        if !exists(account) {
            plan.issue(
                IssueCode::AccountMissing,
                format!("MemberClusterAnnounce {}", announce.name_any()),
                format!("there is no ServiceAccount {account:?} yet, which it names; not accepted"),
            );
            first_use.unrecorded.insert(id.to_owned());
        } else if open.contains(account) && !first_use.ids.contains_key(account) && taken.insert(id) {
            first_use.ids.insert(account.to_owned(), id.to_owned());
            first_use.unrecorded.insert(id.to_owned());
        }
    }
    for (account, id) in &first_use.ids {
        let of_cluster = |announce: &&MemberClusterAnnounce| announce.cluster_id == *id;
        let announces = snapshot.announces.values().map(AsRef::as_ref);
        if let Some(announce) = announces
            .filter(|a| a.metadata.deletion_timestamp.is_none())
            .find(of_cluster)
        {
            plan.warning_event(
                ApiServer::Local,
                announce,
                ACCOUNT_BOUND,
                format!(
                    "ServiceAccount {account:?} may write for cluster {id:?} only, which joined with it first; its \
                     annotation {} confirms that",
                    names::ANNOTATION_CLUSTER_ID
                ),
            );
        }
    }
    first_use
}

/// The accounts of clusters: of accepted ones the account that the leader has bound before, should the record lack it,
/// then of joining ones the account that they state, the oldest first. A later statement binds nothing: another account
/// could have written it while the cluster had none.
fn candidates(snapshot: &LeaderSnapshot) -> Vec<(&str, &MemberClusterAnnounce)> {
    let acceptable = members::accepted_announces(snapshot, members::current_cluster_set(snapshot));
    let mut candidates: Vec<_> = acceptable
        .filter(|announce| snapshot.is_in_common(announce))
        .filter_map(|announce| {
            let key = if members::is_admitted(announce) {
                names::ANNOTATION_BOUND_ACCOUNT
            } else {
                names::ANNOTATION_SERVICE_ACCOUNT
            };
            let account = announce.annotations().get(key)?;
            Some((account.as_str(), announce))
        })
        .collect();
    candidates.sort_by_key(|(_, announce)| {
        (
            !members::is_admitted(announce),
            announce.creation_timestamp(),
            announce.name_any(),
        )
    });
    candidates
}
