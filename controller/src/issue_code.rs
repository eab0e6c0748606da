//! The stable codes of issues in the logs of controllers: messages may change, codes do not.

/// Declares the codes with their text in the log.
macro_rules! issue_codes {
    ($($(#[$doc:meta])* $code:ident,)*) => {
        /// The code of an issue, in the field `code` of its log lines. `docs/metrics.md` explains each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum IssueCode {
            $($(#[$doc])* $code,)*
        }

        impl IssueCode {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$code,)*];

            /// The text in the log.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => stringify!($code),)* }
            }
        }
    };
}

issue_codes! {
    /// A member names a `ServiceAccount` that does not exist.
    AccountMissing,
    /// The IDs of two clusters differ by something behind a dash only.
    AmbiguousClusterId,
    /// A `ClusterClaim` contradicts the `ClusterSet`.
    ClaimMismatch,
    /// A member has no `ClusterSet`; its imports are kept for a while.
    ClusterSetMissing,
    /// Imports that the leader's list lacks are kept.
    DeletionsHeld,
    /// A former membership is not deregistered yet.
    DeregistrationPending,
    /// The leader does not distribute a `ResourceExport`.
    ExportRefused,
    /// A candidate does not become a gateway, or without its weight.
    GatewayCandidateUnfit,
    /// A gateway is removed after its drain period.
    GatewayDraining,
    /// A Service is not imported, or in part.
    ImportFailed,
    /// An annotation has an invalid value.
    InvalidAnnotation,
    /// A field of the leader's `ClusterSet` has an invalid value.
    InvalidClusterSet,
    /// A `ConfigMap` in which a controller records its decisions has invalid content.
    InvalidRecord,
    /// The report of another cluster cannot be read.
    InvalidReport,
    /// The configuration of the leader no longer includes the Namespaces of its members.
    IsolationLost,
    /// No ID is free for a label.
    LabelIdsExhausted,
    /// The cluster's API server does not serve label identities.
    LabelKindMissing,
    /// Pods have labels that cannot be exported.
    LabelNotExported,
    /// A label identity is not imported, or its import is corrected.
    LabelNotImported,
    /// Members export label identities, and the leader does not exchange them.
    LabelsDisabled,
    /// A Namespace of the leader cluster is not that of a member, although it has the label for that.
    MemberNamespaceRefused,
    /// The leader has rejected a member.
    MemberRefused,
    /// The leader has removed a silent member.
    MemberRemoved,
    /// An object of another kind has the name of an import.
    NameTaken,
    /// A network of another cluster has prefixes or gateways that cannot be used.
    NetworkUnusable,
    /// Exports of a cluster that is no member are ignored.
    NotAMember,
    /// The member is not ready.
    NotReady,
    /// The leader lacks admission policies for members.
    PoliciesMissing,
    /// The cluster's API server does not serve replicated policies.
    PolicyKindMissing,
    /// A replicated policy is not imported.
    PolicyNotImported,
    /// The leader does not distribute all prefixes of this cluster.
    PrefixesRefused,
    /// Exports of a member beyond its quota are ignored.
    QuotaExceeded,
    /// A second `ClusterSet` in the Namespace is ignored.
    SecondClusterSet,
    /// The Service CIDR of this cluster is unknown: nothing is exported or withdrawn.
    ServiceCidrUnknown,
    /// More candidates than a cluster may have gateways.
    TooManyGateways,
    /// The import of a label does not name all clusters that export it.
    TooManyLabelClusters,
    /// An object cannot be decoded; objects made from it are kept.
    Undecodable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        let documents = include_str!("../../docs/metrics.md");
        for code in IssueCode::ALL {
            let row = format!("| `{}` |", code.as_str());
            assert!(documents.contains(&row), "docs/metrics.md lacks {row}");
        }
    }
}
