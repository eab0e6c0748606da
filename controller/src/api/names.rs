//! Every name, label, annotation and finalizer that clusters agree on.

/// The group of the kinds Antrea Multi-cluster defines.
pub const GROUP: &str = "multicluster.crd.antrea.io";
/// The group of the MCS API.
pub const MCS_GROUP: &str = "multicluster.x-k8s.io";

/// The field manager of everything this controller writes.
pub const FIELD_MANAGER: &str = "mc-controller";

/// Where the leader controller runs unless told otherwise.
pub const LEADER_NAMESPACE: &str = "antrea-multicluster";
/// Where member controller and gateways run unless told otherwise.
pub const MEMBER_NAMESPACE: &str = "kube-system";

/// The Lease of the leader controllers of a cluster, in the Namespace of the exchanged objects.
pub const LEASE_LEADER: &str = "mc-controller-leader";
/// The Lease of the member controllers of a cluster, in their Namespace.
pub const LEASE_MEMBER: &str = "mc-controller-member";
/// The `ConfigMap` of a member's memberships.
pub const MEMBERSHIPS: &str = "mc-gateway-memberships";
/// Superset, in the leader cluster: the `ConfigMap` that says which `ServiceAccount` is which cluster.
pub const MEMBER_IDENTITIES: &str = "antrea-mc-member-identities";

// Labels on a ResourceExport.

/// Name of the exported object.
pub const LABEL_SOURCE_NAME: &str = "sourceName";
/// Namespace of the exported object.
pub const LABEL_SOURCE_NAMESPACE: &str = "sourceNamespace";
/// The exporting cluster.
pub const LABEL_SOURCE_CLUSTER_ID: &str = "sourceClusterID";
/// Kind of the export.
pub const LABEL_SOURCE_KIND: &str = "sourceKind";

// Annotations.

/// On a Node: it may become gateway. Its presence counts, not its value.
pub const ANNOTATION_GATEWAY: &str = "multicluster.antrea.io/gateway";
/// On a Node: the address other clusters send to.
pub const ANNOTATION_GATEWAY_IP: &str = "multicluster.antrea.io/gateway-ip";
/// Superset, on a Node: its share of the flows next to the other gateways', 1 to 255.
pub const ANNOTATION_GATEWAY_WEIGHT: &str = "mc-gateway.io/gateway-weight";
/// Superset, on a `Gateway`: since when it is being drained, RFC 3339.
pub const ANNOTATION_DRAINING_SINCE: &str = "mc-gateway.io/draining-since";
/// On a Gateway: other clusters are told of it first, although it is not the oldest.
pub const ANNOTATION_PRIMARY: &str = "mc-gateway.io/primary";
/// On a Service: it was imported.
pub const ANNOTATION_IMPORTED_SERVICE: &str = "multicluster.antrea.io/imported-service";
/// Superset, on a `ServiceImport`: the keys of the labels and annotations that were exported with the Service.
pub const ANNOTATION_EXPORTED_KEYS: &str = "mc-gateway.io/exported-keys";
/// On a `ServiceAccount` of the leader cluster: the one cluster that may use it.
pub const ANNOTATION_CLUSTER_ID: &str = "multicluster.antrea.io/cluster-id";
/// On a `MemberClusterAnnounce`: when the member was last alive, RFC 3339.
pub const ANNOTATION_TOUCH_TS: &str = "touch-ts";
/// On a `ClusterNetworkPolicy`: it was imported.
pub const ANNOTATION_IMPORTED_POLICY: &str = "multicluster.antrea.io/imported-acnp";
/// Superset, on an imported `ClusterNetworkPolicy`: fingerprint of the spec it was written with.
pub const ANNOTATION_APPLIED: &str = "mc-gateway.io/applied";
/// Superset, on a `MemberClusterAnnounce`: why the leader does not accept it.
pub const ANNOTATION_REFUSED: &str = "mc-gateway.io/refused";
/// Superset, on a `MemberClusterAnnounce`: since when nothing was heard of the member, by the leader's clock, and the
/// heartbeat that was the last one then.
pub const ANNOTATION_SILENT_SINCE: &str = "mc-gateway.io/silent-since";

// Finalizers.

/// On a `ResourceExport`.
pub const FINALIZER_RESOURCE_EXPORT: &str = "resourceexport.antrea.io/finalizer";
/// On a `ResourceExport` of old releases; recognised and removed, never set.
pub const FINALIZER_RESOURCE_EXPORT_LEGACY: &str = "resourceexport.finalizers.antrea.io";

// Objects a leader makes.

/// Superset, on a `ConfigMap` of the leader: what it records.
pub const LABEL_RECORD: &str = "mc-gateway.io/record";
/// The value of [`LABEL_RECORD`] of those that say which label has which number.
pub const RECORD_LABEL_IDENTITIES: &str = "label-identities";

// Objects a member makes.

/// Superset, on `ServiceImport`, `ClusterInfoImport` and `LabelIdentity`: this controller made it and may delete it.
pub const LABEL_MADE_BY: &str = "app.kubernetes.io/managed-by";

// EndpointSlices.

/// On an `EndpointSlice`: the Service whose endpoints it holds; what a service proxy reads.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// On an `EndpointSlice`: its Service has no address.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
/// On an `EndpointSlice`: who keeps it.
pub const LABEL_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Our value of [`LABEL_MANAGED_BY`] and [`LABEL_MADE_BY`].
pub const MANAGED_BY: &str = "mc-controller.mc-gateway.io";
/// On an `EndpointSlice`: the Service of the set.
pub const LABEL_MCS_SERVICE_NAME: &str = "multicluster.kubernetes.io/service-name";
/// On an `EndpointSlice`: the cluster whose endpoints it holds.
pub const LABEL_MCS_SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";

/// The `MemberClusterAnnounce` of a cluster.
#[must_use]
pub fn member_announce(cluster_id: &str) -> String {
    format!("member-announce-from-{cluster_id}")
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

/// A `ConfigMap` of the leader that says which label has which number.
#[must_use]
pub fn label_record(part: u32) -> String {
    format!("mc-gateway-label-identities-{part}")
}

/// The `ResourceImport` of a replicated `ClusterNetworkPolicy`.
#[must_use]
pub fn policy_import(name: &str) -> String {
    format!("{name}-antreaclusternetworkpolicy")
}

/// The `ClusterNetworkPolicy` a member makes of an import.
#[must_use]
pub fn imported_policy(name: &str) -> String {
    format!("antrea-mc-{name}")
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

/// The Service a member makes of an import.
#[must_use]
pub fn imported_service(name: &str) -> String {
    format!("antrea-mc-{name}")
}

/// The Service of the set an imported Service stands for.
#[must_use]
pub fn imported_from(service: &str) -> Option<&str> {
    service.strip_prefix("antrea-mc-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_other_implementations_derive() {
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
        assert_eq!(imported_from("antrea-mc-web"), Some("web"));
        assert_eq!(imported_from("web"), None);
    }
}
