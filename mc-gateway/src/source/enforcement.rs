//! The mode of network policies in a cluster. Pure.

use crate::config::PolicyEnforcement;
use crate::policy::Mode;

/// The rules to enforce, none with `off`; `has_antrea`: Antrea enforces policies on the Node.
#[must_use]
pub(super) fn mode(enforcement: PolicyEnforcement, has_antrea: bool) -> Option<Mode> {
    match (enforcement, has_antrea) {
        (PolicyEnforcement::Off, _) => None,
        (PolicyEnforcement::ClusterSetOnly, _) | (PolicyEnforcement::Auto, true) => {
            Some(Mode::ClusterSetOnly)
        }
        (PolicyEnforcement::All, _) | (PolicyEnforcement::Auto, false) => Some(Mode::All),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_auto_depends_on_antrea() {
        for (enforcement, with_antrea, without) in [
            (PolicyEnforcement::Off, None, None),
            (
                PolicyEnforcement::ClusterSetOnly,
                Some(Mode::ClusterSetOnly),
                Some(Mode::ClusterSetOnly),
            ),
            (PolicyEnforcement::All, Some(Mode::All), Some(Mode::All)),
            (
                PolicyEnforcement::Auto,
                Some(Mode::ClusterSetOnly),
                Some(Mode::All),
            ),
        ] {
            assert_eq!(
                mode(enforcement, true),
                with_antrea,
                "{enforcement:?} with Antrea"
            );
            assert_eq!(
                mode(enforcement, false),
                without,
                "{enforcement:?} without Antrea"
            );
        }
    }
}
