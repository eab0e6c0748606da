//! Exemptions from the comparison of grants and usage, each with its reason.

use super::{
    compare::{Exemption, ExpectedDenial},
    grant::Role,
};

/// Grants that no test uses.
pub(crate) const EXEMPTIONS: &[Exemption] = &[
    Exemption {
        role: Role::Leader,
        group: "multicluster.crd.antrea.io",
        resources: &["memberclusterannounces"],
        verbs: &["delete"],
        reason: "`staleMemberPolicy: Remove` takes minutes: tested with `--long` only",
    },
    Exemption {
        role: Role::MemberAccess,
        group: "multicluster.crd.antrea.io",
        resources: &["memberclusterannounces", "resourceexports"],
        verbs: &["update"],
        reason: "members with Antrea's controller replace their own objects",
    },
    Exemption {
        role: Role::MemberAccess,
        group: "multicluster.crd.antrea.io",
        resources: &[
            "resourceexports",
            "resourceimports",
            "memberclusterannounces/status",
            "resourceimports/status",
        ],
        verbs: &["get"],
        reason: "members with Antrea's controller read one object at a time",
    },
    Exemption {
        role: Role::MemberAccess,
        group: "multicluster.crd.antrea.io",
        resources: &["resourceexports/status"],
        verbs: &["get", "patch", "update"],
        reason: "members with Antrea's controller write the status of their exports",
    },
    Exemption {
        role: Role::Gateway,
        group: "crd.antrea.io",
        resources: &["antreaagentinfos", "antreacontrollerinfos"],
        verbs: &["watch"],
        reason: "no test cluster has Antrea's controller or agents, whose kinds gateway agents list",
    },
];

/// Requests that a test expects to be denied.
pub(crate) const EXPECTED_DENIALS: &[ExpectedDenial] = &[ExpectedDenial {
    account_namespace: "antrea-mcs-ns",
    reason: "a test deletes this leader's Namespace, and the roles are deleted before the accounts",
}];
