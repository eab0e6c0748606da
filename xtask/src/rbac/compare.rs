//! What is granted against what is used.
//!
//! Pure. Guarantees: whatever was used without a grant, refused without a reason or granted in vain is named, once.

use std::{collections::BTreeSet, fmt};

use super::{
    audit_usage::Usage,
    grant::{Grant, Role, Scope},
};

/// A grant that may go unused, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exemption {
    pub(crate) role: Role,
    pub(crate) group: &'static str,
    pub(crate) resources: &'static [&'static str],
    pub(crate) verbs: &'static [&'static str],
    pub(crate) reason: &'static str,
}

/// Accounts whose requests may be refused, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedDenial {
    pub(crate) account_namespace: &'static str,
    pub(crate) reason: &'static str,
}

/// Roles are read a moment after an API server begins to answer, and tests kill some.
const API_SERVER_STARTING: &str = "granted, so the API server had not read the roles yet";

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) granted: usize,
    pub(crate) used: usize,
    pub(crate) exempted: usize,
    /// What was refused as it should, and why.
    pub(crate) expected_denials: BTreeSet<String>,
    /// What does not fit, each named.
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
            exempted: excused,
            ..
        } = self;
        write!(f, "rbac: {granted} grants, {used} used, {excused} excused")
    }
}

/// Compares grants with uses.
pub(crate) fn compare(
    grants: &BTreeSet<Grant>,
    uses: &BTreeSet<Usage>,
    excuses: &[Exemption],
    refusals: &[ExpectedDenial],
) -> Comparison {
    let (mut wrong, mut meant) = (BTreeSet::new(), BTreeSet::new());
    let mut needed: BTreeSet<&Grant> = BTreeSet::new();
    for one in uses {
        if let Some(refused) = &one.denied {
            let excuse = refusals
                .iter()
                .find(|refusal| refusal.account_namespace == one.account_namespace);
            let granted = refused.by_roles && grants.iter().any(|grant| covers(grant, one));
            match excuse
                .map(|excuse| excuse.reason)
                .or(granted.then_some(API_SERVER_STARTING))
            {
                Some(why) => meant.insert(format!("{}: {why}", required_grant(one))),
                None => wrong.insert(format!("refused: {}: {}", required_grant(one), refused.message)),
            };
            continue;
        }
        // Everybody may ask which kinds there are.
        if one.resource.is_empty() {
            continue;
        }
        // What a narrower grant covers does not speak for a wider one.
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
    let mut forgiven = 0;
    for grant in grants.iter().filter(|grant| !needed.contains(grant)) {
        if excuses.iter().any(|excuse| excuse.covers(grant)) {
            forgiven += 1;
        } else {
            wrong.insert(format!("granted but never used: {grant}"));
        }
    }
    for excuse in excuses {
        for resource in excuse.resources {
            for verb in excuse.verbs {
                let granted = grants
                    .iter()
                    .any(|grant| excuse.covers(grant) && grant.resource == *resource && grant.verb == *verb);
                if !granted {
                    wrong.insert(format!(
                        "excused but not granted: {}: {verb} {resource} ({})",
                        excuse.role, excuse.reason
                    ));
                }
            }
        }
    }
    Comparison {
        granted: grants.len(),
        used: needed.len(),
        exempted: forgiven,
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

/// The use as the grant it takes.
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

    fn excuse(verbs: &'static [&'static str]) -> Exemption {
        Exemption {
            role: Role::Member,
            group: "",
            resources: &["pods"],
            verbs,
            reason: "rare",
        }
    }

    #[test]
    fn what_is_granted_and_used_is_right() {
        let (grants, uses) = pods();
        let same = compare(&grants, &uses, &[], &[]);
        assert_eq!(same.to_string(), "rbac: 2 grants, 2 used, 0 excused");
        assert_eq!(same.violations, BTreeSet::new());
    }

    #[test]
    fn a_grant_too_many_is_named_unless_it_is_excused() {
        let (mut grants, uses) = pods();
        grants.insert(grant("pods", "get", Scope::All, ""));
        let found = compare(&grants, &uses, &[], &[]);
        assert_eq!(
            found.violations,
            ["granted but never used: member controller: get pods everywhere".to_owned()].into()
        );
        let excused = compare(&grants, &uses, &[excuse(&["get"])], &[]);
        assert_eq!(excused.to_string(), "rbac: 3 grants, 2 used, 1 excused");
        assert_eq!(excused.violations, BTreeSet::new());
    }

    #[test]
    fn a_grant_too_few_is_named() {
        let (grants, mut uses) = pods();
        uses.insert(using("secrets", "get", Scope::Own));
        let found = compare(&grants, &uses, &[], &[]);
        assert_eq!(
            found.violations,
            ["used but not granted: member controller: get secrets in its Namespace".to_owned()].into()
        );
    }

    #[test]
    fn an_excuse_for_nothing_is_named() {
        let (grants, uses) = pods();
        let found = compare(&grants, &uses, &[excuse(&["list", "delete"])], &[]);
        assert_eq!(
            found.violations,
            ["excused but not granted: member controller: delete pods (rare)".to_owned()].into()
        );
    }

    #[test]
    fn a_refusal_is_named_and_uses_nothing_unless_it_was_meant() {
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
            ["refused: member controller: list secrets everywhere: no".to_owned()].into()
        );
        let meant = ExpectedDenial {
            account_namespace: "kube-system",
            reason: "",
        };
        assert_eq!(compare(&grants, &uses, &[], &[meant]).violations, BTreeSet::new());
    }

    #[test]
    fn a_refusal_of_what_is_granted_is_an_api_server_that_starts_unless_admission_refused_it() {
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
    fn a_narrow_grant_does_not_cover_more_and_speaks_for_no_wider_one() {
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
