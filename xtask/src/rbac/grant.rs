//! Grants of the roles in `deploy/`: one verb on one resource each.

use std::{collections::BTreeSet, fmt};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize as _;
use serde_json::Value;

/// The component that a role belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// The leader's controller.
    Leader,
    /// A member's controller, in its own cluster.
    Member,
    /// A member, in the leader's cluster.
    MemberAccess,
    /// The gateway agent.
    Gateway,
}

/// Scope of a grant, the narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// In the Namespace of the ServiceAccount.
    Own,
    /// Everywhere.
    All,
}

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    pub(crate) role: Role,
    pub(crate) group: String,
    /// With its subresource: `clustersets/status`.
    pub(crate) resource: String,
    pub(crate) verb: String,
    pub(crate) scope: Scope,
    /// Name of the only object; empty for any.
    pub(crate) name: String,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader controller",
            Self::Member => "member controller",
            Self::MemberAccess => "member in the leader cluster",
            Self::Gateway => "gateway agent",
        })
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            role,
            group,
            resource,
            verb,
            scope,
            name,
        } = self;
        write!(f, "{role}: {verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if !name.is_empty() {
            write!(f, " {name:?}")?;
        }
        f.write_str(match scope {
            Scope::Own => " in its Namespace",
            Scope::All => " everywhere",
        })
    }
}

/// The grants of all Roles and `ClusterRole`s in some YAML.
pub(crate) fn parse(role: Role, yaml: &str) -> Result<BTreeSet<Grant>> {
    let mut grants = BTreeSet::new();
    for document in serde_yaml_ng::Deserializer::from_str(yaml) {
        let object = Value::deserialize(document).context("YAML")?;
        let scope = match object.get("kind").and_then(Value::as_str) {
            Some("Role") => Scope::Own,
            Some("ClusterRole") => Scope::All,
            _ => continue,
        };
        let rules = object.get("rules").and_then(Value::as_array);
        for rule in rules.into_iter().flatten() {
            add_rule(role, scope, rule, &mut grants)?;
        }
    }
    Ok(grants)
}

fn add_rule(component: Role, scope: Scope, rule: &Value, grants: &mut BTreeSet<Grant>) -> Result<()> {
    let words = |key: &str| -> Result<Vec<String>> {
        let list = rule
            .get(key)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let words: Vec<String> = list
            .iter()
            .filter_map(|word| word.as_str().map(str::to_owned))
            .collect();
        if words.iter().any(|word| word.contains('*')) {
            bail!("{component}: wildcard in rule {rule}");
        }
        Ok(words)
    };
    let (groups, resources, verbs) = (words("apiGroups")?, words("resources")?, words("verbs")?);
    if groups.is_empty() || resources.is_empty() || verbs.is_empty() {
        bail!("{component}: rule without groups, resources or verbs: {rule}");
    }
    let mut names = words("resourceNames")?;
    if names.is_empty() {
        names.push(String::new());
    }
    for group in &groups {
        for resource in &resources {
            for verb in &verbs {
                for name in &names {
                    grants.insert(Grant {
                        role: component,
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        scope,
                        name: name.clone(),
                    });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "\
kind: ClusterRole
rules:
- {apiGroups: [\"\", apps], resources: [pods], verbs: [list, watch]}
---
kind: RoleBinding
roleRef: {name: x}
---
kind: Role
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [one], verbs: [get]}
";

    #[test]
    fn a_rule_is_split_into_grants() {
        let grants: Vec<String> = parse(Role::Leader, YAML)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            grants,
            [
                "leader controller: list pods everywhere",
                "leader controller: watch pods everywhere",
                "leader controller: list pods.apps everywhere",
                "leader controller: watch pods.apps everywhere",
                "leader controller: get leases.coordination.k8s.io \"one\" in its Namespace",
            ]
        );
    }

    #[test]
    fn wildcards_are_rejected() {
        let yaml = YAML.replace("[list, watch]", "[\"*\"]");
        let error = parse(Role::Leader, &yaml).unwrap_err().to_string();
        assert!(error.contains("wildcard"), "{error}");
    }
}
