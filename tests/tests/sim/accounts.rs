//! ServiceAccounts of the members in the leader cluster, without a cluster ID: each is bound by its first use.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use mc_api::names;
use mc_test_kit::fake_apiserver::store::{Change, Store};
use serde_json::{Map, Value, json};

use crate::{
    invariants::{antrea, core, text},
    simulation::{LEADER_NAMESPACE, Simulation},
};

/// The account of a member.
fn account(server: usize) -> String {
    format!("member-{server}")
}

/// A token of a member's account; `text` distinguishes it from others.
pub(crate) fn token(server: usize, text: &str) -> String {
    let subject = format!("system:serviceaccount:{LEADER_NAMESPACE}:{}", account(server));
    let claims = json!({ "sub": subject, "jti": format!("{text}-{server}") });
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

impl Simulation {
    /// Creates the account of a member.
    pub(crate) fn create_account(&mut self, server: usize) {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account(server) },
        });
        self.write_as_user(0, &core("serviceaccounts"), LEADER_NAMESPACE, &account);
    }
}

/// The bindings of accounts, without those of Namespaces.
fn accounts_of(map: Option<&Value>) -> Map<String, Value> {
    let data = map.and_then(|map| map["data"].as_object().cloned());
    let bindings = data.unwrap_or_default().into_iter();
    bindings.filter(|(key, _)| !key.starts_with(['_', '-'])).collect()
}

/// The rule for writes of the leader to the bindings: no account loses its ID or gets another one.
pub(crate) fn check_bindings(change: &Change, found: &mut Vec<String>) {
    if change.resource.1 != "configmaps" || change.key.1 != names::SERVICE_ACCOUNT_BINDINGS {
        return;
    }
    let Some(old) = &change.old else { return };
    let bindings = |value: &Value| accounts_of(Some(value));
    let new = bindings(&change.new.value);
    if change.deleted
        || bindings(&old.value)
            .iter()
            .any(|(account, id)| new.get(account) != Some(id))
    {
        found.push("binding-displaced".to_owned());
    }
}

/// The differences after convergence: each member states its account, which has one ID, and no two have the same.
pub(crate) fn differences(leader: &Store) -> Vec<String> {
    let key = (
        LEADER_NAMESPACE.to_owned(),
        names::SERVICE_ACCOUNT_BINDINGS.to_owned(),
    );
    let map = leader.get(&core("configmaps"), &key);
    let bindings = accounts_of(map.map(|map| &map.value));
    let mut found = vec![];
    let ids: BTreeSet<_> = bindings.values().map(text).collect();
    if ids.len() != bindings.len() {
        found.push(format!("bindings with one cluster ID: {bindings:?}"));
    }
    let announces = leader.all(&antrea("memberclusterannounces"));
    let announces = announces.filter(|(key, _)| key.0 == LEADER_NAMESPACE);
    for (_, announce) in announces.filter(|(_, announce)| !announce.is_terminating()) {
        let stated = announce.annotation(names::ANNOTATION_SERVICE_ACCOUNT);
        if stated.is_none_or(|account| !bindings.contains_key(account)) {
            let id = text(&announce.value["clusterID"]);
            found.push(format!(
                "cluster {id} states account {stated:?}, which has no ID: {bindings:?}"
            ));
        }
    }
    found
}
