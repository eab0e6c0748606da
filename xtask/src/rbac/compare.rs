//! Comparison of grants and usage.
//!
//! Pure. Guarantees: every use without a grant, unexpected denial and unused grant is reported once.

use std::{collections::BTreeSet, fmt};

use super::{
    audit_usage::Usage,
    grant::{Grant, Role, Scope},
};

/// A grant that may be unused, and the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exemption {
    pub(crate) role: Role,
    pub(crate) group: &'static str,
    pub(crate) resources: &'static [&'static str],
    pub(crate) verbs: &'static [&'static str],
    pub(crate) reason: &'static str,
}

/// Accounts whose requests may be denied, and the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedDenial {
    pub(crate) account_namespace: &'static str,
    pub(crate) reason: &'static str,
}

/// An API server reads roles shortly after it begins to serve, and tests restart some.
const API_SERVER_STARTING: &str = "granted: the API server had not read the roles yet";

/// Result of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) granted: usize,
    pub(crate) used: usize,
    pub(crate) exempted: usize,
    /// Expected denials with their reasons.
    pub(crate) expected_denials: BTreeSet<String>,
    /// Violations of least privilege.
    pub(crate) violations: BTreeSet<String>,
}

// === impl Excuse ===

impl Exemption {
    fn covers(&self, grant: &Grant) -> bool {
        self.role == grant.role
            && self.group == grant.group
            && self.resources.contains(&grant.resource.as_str())
            && self.verbs.contains(&grant.verb.as_str())
    }
}

// === impl Comparison ===

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            granted,
            used,
            exempted,
            ..
        } = self;
        write!(f, "rbac: {granted} grants, {used} used, {exempted} exempted")
    }
}

/// Compares grants with uses.
pub(crate) fn compare(
    grants: &BTreeSet<Grant>,
    uses: &BTreeSet<Usage>,
    exemptions: &[Exemption],
    expected: &[ExpectedDenial],
) -> Comparison {
    let (mut wrong, mut meant) = (BTreeSet::new(), BTreeSet::new());
    let mut needed: BTreeSet<&Grant> = BTreeSet::new();
    for one in uses {
        if let Some(refused) = &one.denied {
            let exemption = expected
                .iter()
                .find(|denial| denial.account_namespace == one.account_namespace);
            let granted = refused.by_roles && grants.iter().any(|grant| covers(grant, one));
            match exemption
                .map(|exemption| exemption.reason)
                .or(granted.then_some(API_SERVER_STARTING))
            {
                Some(why) => meant.insert(format!("{}: {why}", required_grant(one))),
                None => wrong.insert(format!("denied: {}: {}", required_grant(one), refused.message)),
            };
            continue;
        }
        // Discovery is granted to every account.
        if one.resource.is_empty() {
            continue;
        }
        // A use covered by a narrow grant does not justify a wider one.
        let narrowest = grants
            .iter()
            .filter(|grant| covers(grant, one))
            .min_by_key(|grant| (grant.name.is_empty(), grant.scope));
        match narrowest {
            Some(grant) => {
                needed.insert(grant);
            }
            None => {
                wrong.insert(format!("used but not granted: {}", required_grant(one)));
            }
        }
    }
    let mut exempted = 0;
    for grant in grants.iter().filter(|grant| !needed.contains(grant)) {
        if exemptions.iter().any(|exemption| exemption.covers(grant)) {
            exempted += 1;
        } else {
            wrong.insert(format!("granted but never used: {grant}"));
        }
    }
    for exemption in exemptions {
        for resource in exemption.resources {
            for verb in exemption.verbs {
                let granted = grants.iter().any(|grant| {
                    exemption.covers(grant) && grant.resource == *resource && grant.verb == *verb
                });
                if !granted {
                    wrong.insert(format!(
                        "exempted but not granted: {}: {verb} {resource} ({})",
                        exemption.role, exemption.reason
                    ));
                }
            }
        }
    }
    Comparison {
        granted: grants.len(),
        used: needed.len(),
        exempted,
        expected_denials: meant,
        violations: wrong,
    }
}

fn covers(grant: &Grant, one: &Usage) -> bool {
    (grant.role, &grant.group, &grant.resource, &grant.verb)
        == (one.role, &one.group, &one.resource, &one.verb)
        && (grant.scope == Scope::All || one.scope == Scope::Own)
        && (grant.name.is_empty() || grant.name == one.name)
}

/// The grant that a use requires.
fn required_grant(one: &Usage) -> Grant {
    Grant {
        role: one.role,
        group: one.group.clone(),
        resource: one.resource.clone(),
        verb: one.verb.clone(),
        scope: one.scope,
        name: one.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::audit_usage::Denial, *};

    fn grant(resource: &str, verb: &str, scope: Scope, name: &str) -> Grant {
        Grant {
            role: Role::Member,
            group: String::new(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            scope,
            name: name.to_owned(),
        }
    }

    fn using(resource: &str, verb: &str, scope: Scope) -> Usage {
        Usage {
            role: Role::Member,
            account_namespace: "kube-system".to_owned(),
            group: String::new(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            scope,
            name: String::new(),
            denied: None,
        }
    }

    fn pods() -> (BTreeSet<Grant>, BTreeSet<Usage>) {
        let verbs = ["list", "watch"];
        (
            verbs.map(|verb| grant("pods", verb, Scope::All, "")).into(),
            verbs.map(|verb| using("pods", verb, Scope::All)).into(),
        )
    }

    fn exemption(verbs: &'static [&'static str]) -> Exemption {
        Exemption {
            role: Role::Member,
            group: "",
            resources: &["pods"],
            verbs,
            reason: "rare",
        }
    }

    #[test]
    fn a_used_grant_is_no_violation() {
        let (grants, uses) = pods();
        let same = compare(&grants, &uses, &[], &[]);
        assert_eq!(same.to_string(), "rbac: 2 grants, 2 used, 0 exempted");
        assert_eq!(same.violations, BTreeSet::new());
    }

    #[test]
    fn a_grant_too_many_is_reported_unless_exempted() {
        let (mut grants, uses) = pods();
        grants.insert(grant("pods", "get", Scope::All, ""));
        let found = compare(&grants, &uses, &[], &[]);
        assert_eq!(
            found.violations,
            ["granted but never used: member controller: get pods everywhere".to_owned()].into()
        );
        let found = compare(&grants, &uses, &[exemption(&["get"])], &[]);
        assert_eq!(found.to_string(), "rbac: 3 grants, 2 used, 1 exempted");
        assert_eq!(found.violations, BTreeSet::new());
    }

    #[test]
    fn a_missing_grant_is_reported() {
        let (grants, mut uses) = pods();
        uses.insert(using("secrets", "get", Scope::Own));
        let found = compare(&grants, &uses, &[], &[]);
        assert_eq!(
            found.violations,
            ["used but not granted: member controller: get secrets in its Namespace".to_owned()].into()
        );
    }

    #[test]
    fn an_exemption_without_a_grant_is_reported() {
        let (grants, uses) = pods();
        let found = compare(&grants, &uses, &[exemption(&["list", "delete"])], &[]);
        assert_eq!(
            found.violations,
            ["exempted but not granted: member controller: delete pods (rare)".to_owned()].into()
        );
    }

    #[test]
    fn a_denial_is_reported_unless_it_is_expected() {
        let (grants, mut uses) = pods();
        let refused = Usage {
            denied: Some(Denial {
                by_roles: true,
                message: "no".to_owned(),
            }),
            ..using("secrets", "list", Scope::All)
        };
        uses.insert(refused);
        let found = compare(&grants, &uses, &[], &[]);
        assert_eq!(
            found.violations,
            ["denied: member controller: list secrets everywhere: no".to_owned()].into()
        );
        let meant = ExpectedDenial {
            account_namespace: "kube-system",
            reason: "",
        };
        assert_eq!(compare(&grants, &uses, &[], &[meant]).violations, BTreeSet::new());
    }

    #[test]
    fn a_denial_of_a_granted_request_by_roles_is_expected() {
        let (grants, mut uses) = pods();
        let refused = |by_roles| Usage {
            denied: Some(Denial {
                by_roles,
                message: "no".to_owned(),
            }),
            ..using("pods", "list", Scope::All)
        };
        uses.insert(refused(true));
        let found = compare(&grants, &uses, &[], &[]);
        assert_eq!(
            (found.violations.len(), found.expected_denials.len()),
            (0, 1),
            "{found:?}"
        );
        uses.insert(refused(false));
        assert_eq!(compare(&grants, &uses, &[], &[]).violations.len(), 1);
    }

    #[test]
    fn a_narrow_grant_covers_no_wider_use() {
        let narrow = grant("pods", "list", Scope::Own, "");
        let wide = grant("pods", "list", Scope::All, "");
        let everywhere = [using("pods", "list", Scope::All)].into();
        let found = compare(&[narrow.clone()].into(), &everywhere, &[], &[]);
        assert_eq!(found.violations.len(), 2, "{:?}", found.violations);
        let own = [using("pods", "list", Scope::Own)].into();
        let found = compare(&[narrow, wide].into(), &own, &[], &[]);
        assert_eq!(
            found.violations,
            ["granted but never used: member controller: list pods everywhere".to_owned()].into()
        );
        let named = grant("leases", "get", Scope::Own, "one");
        let other = Usage {
            name: "other".to_owned(),
            ..using("leases", "get", Scope::Own)
        };
        assert_eq!(
            compare(&[named].into(), &[other].into(), &[], &[])
                .violations
                .len(),
            2
        );
    }
}
