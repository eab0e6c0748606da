//! Requests of the project's ServiceAccounts in an audit log.

use std::{collections::BTreeSet, io::BufRead};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::grant::{Role, Scope};

/// A request: one verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Usage {
    pub(crate) role: Role,
    /// Of the account: `antrea-multicluster`.
    pub(crate) account_namespace: String,
    pub(crate) group: String,
    /// With its subresource; empty for discovery.
    pub(crate) resource: String,
    pub(crate) verb: String,
    /// Whether in the account's own Namespace.
    pub(crate) scope: Scope,
    /// Name of the object, only for resources that are granted by name.
    pub(crate) name: String,
    /// Reason of a denial.
    pub(crate) denied: Option<Denial>,
}

/// A denied request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Denial {
    /// Whether the authorizer denied it; otherwise admission did.
    pub(crate) by_roles: bool,
    /// The API server's message.
    pub(crate) message: String,
}

/// Resources that are granted by name.
const NAMED_RESOURCES: [&str; 4] = [
    "configmaps",
    "leases",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];

/// In the API server's reason to allow a request: a Role of a test.
const ROLE_OF_TEST: &str = " of Role \"e2e-";

/// Reads a log. A last line that is cut off (the API server was killed) is left out, others are errors.
pub(crate) fn read(log: impl BufRead, uses: &mut BTreeSet<Usage>) -> Result<()> {
    let mut broken = None;
    for line in log.split(b'\n') {
        let line = line.context("reading")?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice::<Value>(&line) {
            Ok(event) => uses.extend(parse_event(&event)),
            Err(error) => broken = Some((String::from_utf8_lossy(&line).into_owned(), error)),
        }
    }
    // Each kill of the API server may leave one; the next line is complete.
    if let Some((line, error)) = broken.filter(|(line, _)| line.trim_end().ends_with('}')) {
        return Err(error).with_context(|| line);
    }
    Ok(())
}

/// The requests of an event: a server-side apply that creates needs to be allowed to create as well.
fn parse_event(event: &Value) -> Vec<Usage> {
    let text = |pointer: &str| {
        let value = event.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let Some((role, account_namespace)) = parse_account(&text("/user/username")) else {
        return Vec::new();
    };
    // A test gives the previous release what its own manifests grant.
    if text("/annotations/authorization.k8s.io~1reason").contains(ROLE_OF_TEST) {
        return Vec::new();
    }
    let code = event
        .pointer("/responseStatus/code")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let forbidden = text("/annotations/authorization.k8s.io~1decision") == "forbid";
    let message = text("/responseStatus/message");
    // Namespaces end while requests are on their way into them.
    let ending = message.contains("is being terminated");
    let refused = (forbidden || (code == 403 && !ending)).then_some(Denial {
        by_roles: forbidden,
        message,
    });
    let (resource, subresource) = (text("/objectRef/resource"), text("/objectRef/subresource"));
    let named = NAMED_RESOURCES.contains(&resource.as_str());
    let resource = if subresource.is_empty() {
        resource
    } else {
        format!("{resource}/{subresource}")
    };
    let scope = if text("/objectRef/namespace") == account_namespace {
        Scope::Own
    } else {
        Scope::All
    };
    let one = Usage {
        role,
        account_namespace,
        group: text("/objectRef/apiGroup"),
        resource,
        verb: text("/verb"),
        scope,
        name: if named {
            text("/objectRef/name")
        } else {
            String::new()
        },
        denied: refused,
    };
    let creates = one.verb == "patch" && code == 201;
    let mut all = vec![one.clone()];
    all.extend(creates.then(|| Usage {
        verb: "create".to_owned(),
        ..one
    }));
    all
}

/// Role and Namespace of a ServiceAccount.
fn parse_account(user: &str) -> Option<(Role, String)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let role = match (namespace, name) {
        ("kube-system", "antrea-mc-controller") => Role::Member,
        ("kube-system", "mc-gateway") => Role::Gateway,
        ("kube-system", _) => return None,
        (_, "antrea-mc-controller") => Role::Leader,
        // Administrators write the Roles of bootstrap accounts.
        (_, account) if account.ends_with("-bootstrap") => return None,
        _ => Role::MemberAccess,
    };
    Some((role, namespace.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(user: &str, verb: &str, code: u16) -> Value {
        json!({
            "kind": "Event", "stage": "ResponseComplete", "verb": verb,
            "user": {"username": format!("system:serviceaccount:{user}")},
            "objectRef": {
                "resource": "resourceexports", "namespace": "antrea-multicluster", "name": "x",
                "apiGroup": "multicluster.crd.antrea.io", "subresource": "status",
            },
            "responseStatus": {"code": code, "message": "because"},
            "annotations": {"authorization.k8s.io/decision": "allow"},
        })
    }

    fn verbs(event: &Value) -> Vec<String> {
        parse_event(event).into_iter().map(|one| one.verb).collect()
    }

    #[test]
    fn accounts_have_their_roles() {
        let role = |user: &str| {
            parse_event(&event(user, "get", 200))
                .first()
                .map(|one| (one.role, one.scope))
        };
        assert_eq!(
            role("antrea-multicluster:antrea-mc-controller"),
            Some((Role::Leader, Scope::Own))
        );
        assert_eq!(
            role("antrea-multicluster:member-east"),
            Some((Role::MemberAccess, Scope::Own))
        );
        assert_eq!(
            role("kube-system:antrea-mc-controller"),
            Some((Role::Member, Scope::All))
        );
        assert_eq!(role("kube-system:mc-gateway"), Some((Role::Gateway, Scope::All)));
        assert_eq!(role("kube-system:coredns"), None);
        assert_eq!(role("antrea-multicluster:member-east-bootstrap"), None);
    }

    #[test]
    fn an_apply_that_creates_is_a_creation_too() {
        let user = "antrea-multicluster:member-east";
        assert_eq!(verbs(&event(user, "patch", 200)), ["patch"]);
        assert_eq!(verbs(&event(user, "patch", 201)), ["patch", "create"]);
    }

    #[test]
    fn denials_of_authorizer_and_admission_are_recognised() {
        let user = "antrea-multicluster:member-east";
        let refused = |event: &Value| parse_event(event).pop().and_then(|one| one.denied);
        assert_eq!(refused(&event(user, "patch", 404)), None);
        let because = |by_roles| {
            Some(Denial {
                by_roles,
                message: "because".to_owned(),
            })
        };
        let mut event_403 = event(user, "patch", 403);
        assert_eq!(refused(&event_403), because(false));
        event_403["annotations"]["authorization.k8s.io/decision"] = json!("forbid");
        assert_eq!(refused(&event_403), because(true));
        let mut ending = event(user, "create", 403);
        ending["responseStatus"]["message"] = json!("namespace x because it is being terminated");
        assert_eq!(refused(&ending), None);
        ending["annotations"]["authorization.k8s.io/decision"] = json!("forbid");
        assert!(refused(&ending).is_some());
    }

    #[test]
    fn requests_that_a_role_of_a_test_allows_are_left_out() {
        let mut event = event("kube-system:antrea-mc-controller", "list", 200);
        for (role, requests) in [("antrea-mc-controller-role", 1), ("e2e-skew-secrets", 0)] {
            let reason = format!(
                "RBAC: allowed by RoleBinding \"x/kube-system\" of Role \"{role}\" to ServiceAccount \"y\""
            );
            event["annotations"]["authorization.k8s.io/reason"] = json!(reason);
            assert_eq!(parse_event(&event).len(), requests, "{role}");
        }
    }

    #[test]
    fn a_line_that_was_cut_off_is_left_out() {
        let line = event("antrea-multicluster:member-east", "get", 200).to_string();
        let mut uses = BTreeSet::new();
        read(format!("{line}\n{}", &line[..40]).as_bytes(), &mut uses).unwrap();
        assert_eq!(uses.len(), 1);
        assert!(read("{x}\n".as_bytes(), &mut uses).is_err());
    }
}
