//! What the tests do not show to be needed, each with its reason.

use super::{
    compare::{Excuse, Refusal},
    grant::Role,
};

/// Grants that no test uses.
pub(crate) const GRANTS: &[Excuse] = &[
    Excuse {
        role: Role::Leader,
        group: "multicluster.crd.antrea.io",
        resources: &["memberclusterannounces"],
        verbs: &["delete"],
        why: "`staleMemberPolicy: Remove` takes minutes: tested with `--long` only",
    },
    Excuse {
        role: Role::Access,
        group: "multicluster.crd.antrea.io",
        resources: &["memberclusterannounces", "resourceexports"],
        verbs: &["update"],
        why: "members with Antrea's controller replace what they write",
    },
    Excuse {
        role: Role::Access,
        group: "multicluster.crd.antrea.io",
        resources: &[
            "resourceexports",
            "resourceimports",
            "memberclusterannounces/status",
            "resourceimports/status",
        ],
        verbs: &["get"],
        why: "members with Antrea's controller read one object at a time",
    },
    Excuse {
        role: Role::Access,
        group: "multicluster.crd.antrea.io",
        resources: &["resourceexports/status"],
        verbs: &["get", "patch", "update"],
        why: "members with Antrea's controller write the status of what they export",
    },
];

/// Requests that a test means to be refused.
pub(crate) const REFUSALS: &[Refusal] = &[Refusal {
    account_namespace: "antrea-mcs-ns",
    why: "a test ends this leader by deleting its Namespace: the roles go before those who have them",
}];
