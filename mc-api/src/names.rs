//! Names, labels, annotations and finalizers shared by the clusters of a set.

use crate::renamed_annotation::RenamedAnnotation;

/// The API group of Antrea Multi-cluster.
pub const GROUP: &str = "multicluster.crd.antrea.io";
/// The API group of the MCS API.
pub const MCS_GROUP: &str = "multicluster.x-k8s.io";

/// The field manager of this controller's writes.
pub const FIELD_MANAGER: &str = "mc-controller";

/// Default Namespace of the leader controller.
pub const LEADER_NAMESPACE: &str = "antrea-multicluster";
/// Default Namespace of the member controller and the gateways.
pub const MEMBER_NAMESPACE: &str = "kube-system";

/// The Namespace that each cluster has, and no other cluster with the same UID.
pub const SYSTEM_NAMESPACE: &str = "kube-system";

/// The Lease of the leader controllers of a cluster, in the Namespace of the exchanged objects.
pub const LEASE_LEADER: &str = "mc-controller-leader";
/// The Lease of the member controllers of a cluster, in their Namespace.
pub const LEASE_MEMBER: &str = "mc-controller-member";
/// The `ConfigMap` with a member's membership records.
pub const MEMBERSHIP_RECORDS: &str = "mc-gateway-memberships";
/// Superset, in the leader cluster: the `ConfigMap` that binds `ServiceAccount`s to cluster IDs.
pub const SERVICE_ACCOUNT_BINDINGS: &str = "antrea-mc-member-identities";
/// The admission policy of the leader cluster that restricts the tokens of members.
pub const MEMBER_TOKENS_POLICY: &str = "antrea-mc-membertokens";
/// The `ServiceAccount` of the default token in Antrea's manifests, which several clusters may use.
pub const ANTREA_SHARED_ACCOUNT: &str = "antrea-mc-member-access-sa";
/// Superset, the leader's `ConfigMap` with the prefixes of each cluster.
pub const PREFIX_OWNERS: &str = "mc-gateway-prefix-owners";

// Labels on a ResourceExport.

/// Name of the exported object.
pub const LABEL_SOURCE_NAME: &str = "sourceName";
/// Namespace of the exported object.
pub const LABEL_SOURCE_NAMESPACE: &str = "sourceNamespace";
/// The exporting cluster.
pub const LABEL_SOURCE_CLUSTER_ID: &str = "sourceClusterID";
/// Kind of the export.
pub const LABEL_SOURCE_KIND: &str = "sourceKind";
/// Superset, on a cluster's export of kind `ImportFailures`: the leader has processed all of the cluster's exports. The
/// value is the UID of the cluster's `MemberClusterAnnounce` at that time.
pub const LABEL_EXPORTS_COMPLETE: &str = "mc-gateway.io/exports-complete";

// Annotations.

/// On a Node: it may become a gateway. The value is ignored.
pub const ANNOTATION_GATEWAY: &str = "multicluster.antrea.io/gateway";
/// On a Node: the gateway IP.
pub const ANNOTATION_GATEWAY_IP: &str = "multicluster.antrea.io/gateway-ip";
/// Superset, on a Node: its share of the flows relative to the other gateways, 1 to 255.
pub const ANNOTATION_GATEWAY_WEIGHT: &str = "mc-gateway.io/gateway-weight";
/// Superset, on a `Gateway`: start of its drain period, RFC 3339.
pub const ANNOTATION_DRAINING_SINCE: &str = "mc-gateway.io/draining-since";
/// Superset, on a `Gateway`: it is the primary although another is older.
pub const ANNOTATION_PRIMARY: &str = "mc-gateway.io/primary";
/// On a Service: it is an import.
pub const ANNOTATION_IMPORTED_SERVICE: &str = "multicluster.antrea.io/imported-service";
/// Superset, on an imported Service, `ServiceImport`, `LabelIdentity` or `ClusterNetworkPolicy`: the Namespace of the
/// member controller that has made it.
pub const ANNOTATION_IMPORT_OWNER: &str = "mc-gateway.io/imported-by";
/// Superset, on a `ServiceImport`: the keys of the labels and annotations exported with the Service.
pub const ANNOTATION_EXPORTED_KEYS: &str = "mc-gateway.io/exported-keys";
/// On a `ServiceAccount` of the leader cluster: the ID of the only cluster that may use it. Superset, on a Namespace
/// with [`LABEL_MEMBER_NAMESPACE_OF`]: the ID of its member.
pub const ANNOTATION_CLUSTER_ID: &str = "multicluster.antrea.io/cluster-id";
/// On a `MemberClusterAnnounce`: the last heartbeat, RFC 3339.
pub const ANNOTATION_TOUCH_TS: &str = "touch-ts";
/// Superset, on the `ConfigMap` [`MEMBERSHIP_RECORDS`]: the time since which there is no `ClusterSet`, RFC 3339.
pub const ANNOTATION_WITHOUT_CLUSTER_SET_SINCE: &str = "mc-gateway.io/without-cluster-set-since";
/// Superset, on a member's `ClusterSet`: the time until which imports that the leader lacks may be deleted in any
/// number, RFC 3339.
pub const ANNOTATION_MASS_DELETION_UNTIL: &str = "mc-gateway.io/mass-deletion-until";
/// Superset, on a member's `ServiceAccount` in the leader cluster: the ranges that the member may announce, separated
/// by commas; no other cluster may.
pub const ANNOTATION_ALLOWED_CIDRS: &str = "mc-gateway.io/allowed-cidrs";
/// Superset, on a member's `ServiceAccount` in the leader cluster: the most Services that the member exports.
pub const ANNOTATION_MAX_SERVICES: &str = "mc-gateway.io/max-services";
/// The same for the addresses of its endpoints.
pub const ANNOTATION_MAX_ENDPOINTS: &str = "mc-gateway.io/max-endpoints";
/// The same for its label identities.
pub const ANNOTATION_MAX_LABEL_IDENTITIES: &str = "mc-gateway.io/max-label-identities";
/// The same for the prefixes of its network.
pub const ANNOTATION_MAX_PREFIXES: &str = "mc-gateway.io/max-prefixes";
/// The same for the bytes of its Services, endpoints and label identities.
pub const ANNOTATION_MAX_BYTES: &str = "mc-gateway.io/max-bytes";
/// Superset, on a `MemberClusterAnnounce`: the `ServiceAccount` that its member uses in the leader cluster.
pub const ANNOTATION_SERVICE_ACCOUNT: &str = "mc-gateway.io/service-account";
/// Superset, on a `MemberClusterAnnounce`: the UID of the Namespace [`SYSTEM_NAMESPACE`] of the cluster that writes it.
pub const ANNOTATION_CLUSTER_UID: &str = "mc-gateway.io/cluster-uid";
/// Superset, on a `MemberClusterAnnounce`: the random name of the run of a controller that writes
/// it, and the time in nanoseconds, separated by a slash.
pub const ANNOTATION_INSTANCE: &str = "mc-gateway.io/controller-instance";
/// Superset, on a `MemberClusterAnnounce`, written by the leader: the `ServiceAccount` that is bound to its cluster.
pub const ANNOTATION_BOUND_ACCOUNT: &str = "mc-gateway.io/bound-account";
/// Superset, in the leader cluster. On the `ConfigMap` [`SERVICE_ACCOUNT_BINDINGS`]: `accountBinding` of the leader's
/// configuration, for the admission policies. On a `ServiceAccount`: `Shared`, several clusters use it.
pub const ANNOTATION_ACCOUNT_BINDING: &str = "mc-gateway.io/account-binding";
/// Superset, on the leader's `ClusterSet`: the IDs of evicted clusters, separated by commas.
pub const ANNOTATION_EVICTED_CLUSTERS: &str = "mc-gateway.io/evicted-clusters";
/// On a `ClusterNetworkPolicy`: it is an import.
pub const ANNOTATION_IMPORTED_POLICY: &str = "multicluster.antrea.io/imported-acnp";
/// Superset, on an imported `ClusterNetworkPolicy`: hash of the spec as written.
pub const ANNOTATION_APPLIED_SPEC_HASH: RenamedAnnotation = RenamedAnnotation {
    key: "mc-gateway.io/applied-spec-hash",
    previous: "mc-gateway.io/applied",
};
/// Superset, on a `MemberClusterAnnounce`: reason of its rejection by the leader.
pub const ANNOTATION_REJECTED_REASON: RenamedAnnotation = RenamedAnnotation {
    key: "mc-gateway.io/rejected-reason",
    previous: "mc-gateway.io/refused",
};
/// Superset, on a `MemberClusterAnnounce`: when the leader found the member stale, by the leader's clock, and the last
/// heartbeat at that time.
pub const ANNOTATION_STALE_SINCE: RenamedAnnotation = RenamedAnnotation {
    key: "mc-gateway.io/stale-since",
    previous: "mc-gateway.io/silent-since",
};

// Finalizers.

/// On a `ResourceExport`.
pub const FINALIZER_RESOURCE_EXPORT: &str = "resourceexport.antrea.io/finalizer";
/// On a `ResourceExport` of old releases: recognised and removed, never set.
pub const FINALIZER_RESOURCE_EXPORT_LEGACY: &str = "resourceexport.finalizers.antrea.io";

// Objects in the leader cluster.

/// Superset, on a Namespace of the leader cluster: it is that of one member. The value is the Namespace of the leader;
/// the annotation [`ANNOTATION_CLUSTER_ID`] has the member's ID.
pub const LABEL_MEMBER_NAMESPACE_OF: &str = "mc-gateway.io/member-namespace-of";

// Objects created by a leader.

/// Superset, on a `ResourceExport`: a copy by the leader. The value is the Namespace of the original.
pub const LABEL_COPIED_FROM: &str = "mc-gateway.io/copied-from";

/// Superset, on a `ConfigMap` of the leader: the kind of its records.
pub const LABEL_RECORD: &str = "mc-gateway.io/record";
/// The value of [`LABEL_RECORD`] on the shards of the label ID store.
pub const RECORD_LABEL_IDENTITIES: &str = "label-identities";

// Objects created by a member.

/// Superset, on `ServiceImport`, `ClusterInfoImport` and `LabelIdentity`: created by this controller, which may delete
/// it.
pub const LABEL_APP_MANAGED_BY: &str = "app.kubernetes.io/managed-by";

// EndpointSlices.

/// On an `EndpointSlice`: the Service of its endpoints, as read by service proxies.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// On an `EndpointSlice`: its Service is headless.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
/// On an `EndpointSlice`: the controller that manages it.
pub const LABEL_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Kubernetes' value of [`LABEL_MANAGED_BY`] in slices that mirror an `Endpoints` object.
pub const MIRRORED_BY: &str = "endpointslicemirroring-controller.k8s.io";
/// Our value of [`LABEL_MANAGED_BY`] and [`LABEL_APP_MANAGED_BY`].
pub const MANAGED_BY: &str = "mc-controller.mc-gateway.io";
/// On an `EndpointSlice`: the Service of the ClusterSet.
pub const LABEL_MCS_SERVICE_NAME: &str = "multicluster.kubernetes.io/service-name";
/// On an `EndpointSlice`: the cluster of its endpoints.
pub const LABEL_MCS_SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";

/// Whether one cluster ID is another one with a dash and more behind it: names of `ResourceExport`s begin with the ID
/// of their cluster, and those of `a` and `a-b` can be equal.
#[must_use]
pub fn is_ambiguous(one: &str, other: &str) -> bool {
    let extends = |id: &str, short: &str| id.strip_prefix(short).is_some_and(|rest| rest.starts_with('-'));
    !one.is_empty() && !other.is_empty() && (extends(one, other) || extends(other, one))
}

/// The `MemberClusterAnnounce` of a cluster.
#[must_use]
pub fn member_announce(cluster_id: &str) -> String {
    format!("member-announce-from-{cluster_id}")
}

/// The `ServiceAccount` that may request short-lived tokens of `account`, and the Secret that they are bound to
/// (deploy/base/leader/admission.yaml).
#[must_use]
pub fn bootstrap_account(account: &str) -> String {
    format!("{account}-bootstrap")
}

/// The finalizer on the `MemberClusterAnnounce` of a cluster.
#[must_use]
pub fn member_announce_finalizer(cluster_id: &str) -> String {
    format!("memberclusterannounce.finalizer.antrea.io/{cluster_id}")
}

/// The `ResourceExport` of a Service's ports.
#[must_use]
pub fn service_export(cluster_id: &str, namespace: &str, name: &str) -> String {
    format!("{cluster_id}-{namespace}-{name}-service")
}

/// The `ResourceExport` of a Service's endpoints.
#[must_use]
pub fn endpoints_export(cluster_id: &str, namespace: &str, name: &str) -> String {
    format!("{cluster_id}-{namespace}-{name}-endpoints")
}

/// The `ResourceExport`, the `ResourceImport` and the `ClusterInfoImport` of a cluster's network.
#[must_use]
pub fn cluster_info(cluster_id: &str) -> String {
    format!("{cluster_id}-clusterinfo")
}

/// The `ResourceExport` of a label identity.
#[must_use]
pub fn label_identity_export(cluster_id: &str, hash: &str) -> String {
    format!("{cluster_id}-{hash}")
}

/// The `ResourceExport` with the imports that a cluster lacks.
#[must_use]
pub fn import_failures_export(cluster_id: &str) -> String {
    format!("{cluster_id}-importfailures")
}

/// The `ResourceExport` of the peers in a cluster's own policies.
#[must_use]
pub fn policy_selectors_export(cluster_id: &str) -> String {
    format!("{cluster_id}-policyselectors")
}

/// A shard of the leader's label ID store, a `ConfigMap`.
#[must_use]
pub fn label_id_shard(index: u32) -> String {
    format!("mc-gateway-label-identities-{index}")
}

/// The `ResourceImport` of a replicated `ClusterNetworkPolicy`.
#[must_use]
pub fn policy_import(name: &str) -> String {
    format!("{name}-antreaclusternetworkpolicy")
}

/// The `ClusterNetworkPolicy` created for an import.
#[must_use]
pub fn imported_policy(name: &str) -> String {
    format!("antrea-mc-{name}")
}

/// The name in the leader cluster of an imported policy.
#[must_use]
pub fn exported_policy(policy: &str) -> Option<&str> {
    policy.strip_prefix("antrea-mc-")
}

/// The `ResourceImport` of a Service.
#[must_use]
pub fn service_import(namespace: &str, name: &str) -> String {
    format!("{namespace}-{name}-service")
}

/// The `ResourceImport` of a Service's endpoints.
#[must_use]
pub fn endpoints_import(namespace: &str, name: &str) -> String {
    format!("{namespace}-{name}-endpoints")
}

/// The Service created for an import.
#[must_use]
pub fn imported_service(name: &str) -> String {
    format!("antrea-mc-{name}")
}

/// The exported Service of an imported one.
#[must_use]
pub fn exported_service(service: &str) -> Option<&str> {
    service.strip_prefix("antrea-mc-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_other_implementations() {
        assert_eq!(member_announce("east"), "member-announce-from-east");
        assert_eq!(
            member_announce_finalizer("east"),
            "memberclusterannounce.finalizer.antrea.io/east"
        );
        assert_eq!(service_export("east", "shop", "web"), "east-shop-web-service");
        assert_eq!(endpoints_export("east", "shop", "web"), "east-shop-web-endpoints");
        assert_eq!(cluster_info("east"), "east-clusterinfo");
        assert_eq!(
            label_identity_export("east", "c5d961e1f6175a5a"),
            "east-c5d961e1f6175a5a"
        );
        assert_eq!(policy_import("strict"), "strict-antreaclusternetworkpolicy");
        assert_eq!(imported_policy("strict"), "antrea-mc-strict");
        assert_eq!(service_import("shop", "web"), "shop-web-service");
        assert_eq!(endpoints_import("shop", "web"), "shop-web-endpoints");
        assert_eq!(imported_service("web"), "antrea-mc-web");
        assert_eq!(exported_service("antrea-mc-web"), Some("web"));
        assert_eq!(exported_service("web"), None);
    }

    #[test]
    fn ids_are_ambiguous_by_the_text_behind_a_dash() {
        for (one, other) in [("a", "a-b"), ("a-b", "a-b-c"), ("a", "a-")] {
            assert!(
                is_ambiguous(one, other) && is_ambiguous(other, one),
                "{one} {other}"
            );
        }
        for (one, other) in [
            ("a", "a"),
            ("a", "ab"),
            ("a-b", "a-c"),
            ("b", "a-b"),
            ("", "-a"),
            ("", ""),
        ] {
            assert!(
                !is_ambiguous(one, other) && !is_ambiguous(other, one),
                "{one} {other}"
            );
        }
    }
}
