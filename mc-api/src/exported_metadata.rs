//! Labels and annotations of exports that are exchanged between clusters.
//!
//! Controllers of an importing cluster act on keys of their own domain: a label of a deployment tool hands the object
//! over to it, an annotation of a load balancer changes the network. Another cluster must not choose their values.

use std::collections::BTreeMap;

/// Domains of Kubernetes, of service proxies, load balancers, policy engines and deployment tools. Their subdomains
/// are reserved, too.
const RESERVED_DOMAINS: [&str; 29] = [
    "amazonaws.com",
    "antrea.io",
    "argoproj.io",
    "azure.com",
    "cattle.io",
    "cert-manager.io",
    "cilium.io",
    "crossplane.io",
    "fluxcd.io",
    "getambassador.io",
    "google.com",
    "hashicorp.com",
    "helm.sh",
    "istio.io",
    "k14s.io",
    "k8s.io",
    "konghq.com",
    "kubernetes.io",
    "kyverno.io",
    "linkerd.io",
    "mc-gateway.io",
    "metallb.io",
    "nginx.org",
    "openshift.io",
    "projectcalico.org",
    "submariner.io",
    "traefik.io",
    "universe.tf",
    "x-k8s.io",
];
/// The one prefix of a reserved domain for keys that describe an application (Kubernetes' recommended labels).
const RECOMMENDED_LABELS: &str = "app.kubernetes.io";

/// Whether a key is exchanged: not one of a reserved domain.
#[must_use]
pub fn is_exchanged(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        return true;
    };
    let prefix = prefix.to_ascii_lowercase();
    let is_in = |domain: &&str| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    // Keys such as io.cilium/global-service have the parts in reverse order.
    let reversed: Vec<_> = prefix.rsplit('.').collect();
    let is_reversed = |domain: &&str| {
        let domain: Vec<_> = domain.split('.').collect();
        reversed.ends_with(&domain)
    };
    prefix == RECOMMENDED_LABELS
        || !RESERVED_DOMAINS
            .iter()
            .any(|domain| is_in(domain) || is_reversed(domain))
}

/// The exchanged labels or annotations.
#[must_use]
pub fn exchanged(metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    metadata
        .iter()
        .filter(|(key, _)| is_exchanged(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_of_applications_are_exchanged() {
        for key in [
            "team",
            "app.kubernetes.io/name",
            "app.kubernetes.io/part-of",
            "example.com/note",
            "my-k8s.io/x",
            "notcilium.io/x",
            "kubernetes.io.example.com/x",
        ] {
            assert!(is_exchanged(key), "{key}");
        }
    }

    #[test]
    fn keys_of_controllers_are_not_exchanged() {
        for key in [
            "service.kubernetes.io/topology-mode",
            "kubernetes.io/service-name",
            "endpointslice.kubernetes.io/managed-by",
            "service.cilium.io/global",
            "io.cilium/global-service",
            "argocd.argoproj.io/instance",
            "Argocd.ArgoProj.io/instance",
            "meta.helm.sh/release-name",
            "kustomize.toolkit.fluxcd.io/name",
            "multicluster.x-k8s.io/service-name",
            "multicluster.antrea.io/imported-service",
            "metallb.universe.tf/address-pool",
            "service.beta.kubernetes.io/aws-load-balancer-type",
            "sub.app.kubernetes.io/x",
        ] {
            assert!(!is_exchanged(key), "{key}");
        }
    }

    #[test]
    fn the_domains_are_sorted_and_occur_once() {
        assert!(RESERVED_DOMAINS.is_sorted());
        assert!(
            RESERVED_DOMAINS
                .windows(2)
                .all(|pair| pair.first() != pair.last())
        );
    }

    proptest! {
        /// A subdomain of a reserved domain is reserved.
        #[test]
        fn subdomains_are_reserved(sub in "[a-z]{1,8}", domain in 0..RESERVED_DOMAINS.len(), name in "[a-z]{1,8}") {
            let domain = RESERVED_DOMAINS[domain];
            prop_assume!(format!("{sub}.{domain}") != RECOMMENDED_LABELS);
            let key = format!("{sub}.{domain}/{name}");
            prop_assert!(!is_exchanged(&key), "{key}");
        }

        /// Nothing panics, and filtered metadata is not filtered further.
        #[test]
        fn filtering_is_idempotent(metadata in proptest::collection::btree_map(".{0,20}", ".{0,5}", 0..5)) {
            let once = exchanged(&metadata);
            prop_assert_eq!(exchanged(&once), once.clone());
        }
    }
}
