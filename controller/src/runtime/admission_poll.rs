//! The admission policies that restrict the writes of members, read by name at intervals.
//!
//! Instead of a watch: API servers before Kubernetes 1.30 do not serve the kinds, and few objects change seldom.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, Client, Resource};
use mc_api::names;
use mc_kube::{AbortOnDrop, WatchContext, error_chain};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::debug;

use crate::snapshot::MemberPolicies;

/// The time between two reads.
const PERIOD: Duration = Duration::from_secs(15);
/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The names of the policies and of their bindings for the common Namespace (deploy/base/leader/admission.yaml).
const POLICIES: [&str; 3] = [
    "antrea-mc-memberclusterannounces",
    "antrea-mc-resourceexports",
    names::MEMBER_TOKENS_POLICY,
];
/// The action of a binding by which a policy refuses requests.
const DENY: &str = "Deny";

/// The state of the policies.
pub(super) struct AdmissionPoll {
    state: watch::Receiver<MemberPolicies>,
    _task: AbortOnDrop,
}

// === impl AdmissionPoll ===

impl AdmissionPoll {
    /// Reads the policies from now on, and notifies of changes. While they cannot be read, the last state remains. With
    /// `separate`, the Namespace of a leader, they are in force in the Namespaces of single members as well.
    pub(super) fn new(context: &WatchContext, separate: Option<&str>) -> Self {
        let (sender, state) = watch::channel(MemberPolicies::Unknown);
        let (client, changed) = (context.client.clone(), context.changed.clone());
        let bindings = bindings(separate);
        let task = AbortOnDrop::spawn(async move {
            loop {
                match read(&client, &bindings).await {
                    Ok(new) => {
                        let is_changed = sender.send_if_modified(|old| {
                            let differs = *old != new;
                            *old = new;
                            differs
                        });
                        if is_changed {
                            changed.notify_one();
                        }
                    }
                    Err(error) => debug!("admission policies not read: {error}"),
                }
                sleep(PERIOD).await;
            }
        });
        Self { state, _task: task }
    }

    /// The state when the policies were last read.
    pub(super) fn state(&self) -> MemberPolicies {
        self.state.borrow().clone()
    }
}

/// The names of the policies with those of their bindings (`deploy/base/leader_isolation/admission.yaml`).
fn bindings(separate: Option<&str>) -> Vec<(&'static str, String)> {
    let common = POLICIES.map(|policy| (policy, policy.to_owned()));
    let separate = separate.map(|leader| POLICIES.map(|policy| (policy, format!("{policy}-{leader}"))));
    common.into_iter().chain(separate.into_iter().flatten()).collect()
}

async fn read(client: &Client, bindings: &[(&str, String)]) -> Result<MemberPolicies, String> {
    for (name, binding) in bindings {
        let policy = get::<ValidatingAdmissionPolicy>(client, name).await?;
        let found = get::<ValidatingAdmissionPolicyBinding>(client, binding).await?;
        let denies = found.is_some_and(|binding| denies(&binding, name));
        if policy.is_none() || !denies {
            return Ok(MemberPolicies::Missing {
                name: binding.clone(),
            });
        }
    }
    Ok(MemberPolicies::Installed)
}

/// Whether a binding makes the policy of this name refuse requests.
fn denies(binding: &ValidatingAdmissionPolicyBinding, policy: &str) -> bool {
    let spec = binding.spec.as_ref();
    let actions = spec.and_then(|spec| spec.validation_actions.as_ref());
    binding.meta().deletion_timestamp.is_none()
        && spec.and_then(|spec| spec.policy_name.as_deref()) == Some(policy)
        && actions.is_some_and(|actions| actions.iter().any(|action| action == DENY))
}

/// The object, if it exists and the API server serves its kind.
async fn get<K>(client: &Client, name: &str) -> Result<Option<K>, String>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let found = timeout(REQUEST_TIMEOUT, Api::<K>::all(client.clone()).get_opt(name)).await;
    found
        .map_err(|_| format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))?
        .map_err(|error| error_chain(&error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_namespaces_of_members_have_bindings_of_their_own() {
        let names = |separate| -> Vec<_> {
            let bindings = bindings(separate).into_iter();
            bindings
                .map(|(policy, binding)| format!("{policy} {binding}"))
                .collect()
        };
        assert_eq!(names(None).len(), 3);
        let names = names(Some("mc"));
        assert_eq!(names.len(), 6);
        assert_eq!(names[4], "antrea-mc-resourceexports antrea-mc-resourceexports-mc");
    }

    #[test]
    fn a_binding_that_audits_only_restricts_nothing() {
        for (actions, policy, expected) in [
            (json!(["Deny"]), "p", true),
            (json!(["Audit", "Deny"]), "p", true),
            (json!(["Audit"]), "p", false),
            (json!([]), "p", false),
            (json!(["Deny"]), "other", false),
        ] {
            let binding = json!({
                "metadata": { "name": "p" }, "spec": { "policyName": policy, "validationActions": actions },
            });
            let binding = serde_json::from_value(binding).unwrap();
            assert_eq!(denies(&binding, "p"), expected, "{actions} {policy}");
        }
    }
}
