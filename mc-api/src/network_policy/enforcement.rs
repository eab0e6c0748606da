//! The enforcement of a policy, from its annotation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Annotation of a policy with the name of an [`EnforcementAction`]. The kinds of Antrea have no such field.
pub const ENFORCEMENT_ACTION: &str = "mc-gateway.io/enforcementAction";

/// The effect of a policy's rules on packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum EnforcementAction {
    /// They decide on packets.
    #[default]
    Enforce,
    /// They count the packets on which they would decide, and those that they would drop are logged. Packets pass or
    /// are dropped as without the policy.
    Audit,
}

// === impl EnforcementAction ===

impl EnforcementAction {
    /// The enforcement in the annotation of a policy's object, [`Self::Enforce`] without one. An unknown name is an
    /// error.
    pub(super) fn of_object(metadata: &ObjectMeta) -> Result<Self, &str> {
        let annotations = metadata.annotations.as_ref();
        match annotations.and_then(|all| all.get(ENFORCEMENT_ACTION)) {
            None => Ok(Self::Enforce),
            Some(name) => match name.as_str() {
                "Enforce" => Ok(Self::Enforce),
                "Audit" => Ok(Self::Audit),
                unknown => Err(unknown),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::{ObjectName, parse};
    use super::*;

    fn read(annotations: &[(&str, &str)]) -> (EnforcementAction, Option<String>) {
        let metadata = ObjectMeta {
            annotations: Some(
                annotations
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            ),
            ..ObjectMeta::default()
        };
        let (mut policy, _) = parse(ObjectName::cluster("web"), &Value::Null);
        let error = policy.read_annotation(&metadata);
        (policy.enforcement, error.map(|error| error.to_string()))
    }

    #[test]
    fn only_the_exact_name_turns_enforcement_off() {
        use EnforcementAction::{Audit, Enforce};
        assert_eq!(read(&[]), (Enforce, None));
        assert_eq!(read(&[("enforcementAction", "Audit")]), (Enforce, None));
        assert_eq!(read(&[(ENFORCEMENT_ACTION, "Enforce")]), (Enforce, None));
        assert_eq!(read(&[(ENFORCEMENT_ACTION, "Audit")]), (Audit, None));
        for wrong in ["audit", "", "Audit ", "Warn"] {
            let message = format!(
                "ClusterNetworkPolicy web: metadata.annotations[{ENFORCEMENT_ACTION}]: {wrong:?} is not Enforce or \
                 Audit, so the policy is enforced"
            );
            assert_eq!(
                read(&[(ENFORCEMENT_ACTION, wrong)]),
                (Enforce, Some(message)),
                "{wrong:?}"
            );
        }
    }
}
