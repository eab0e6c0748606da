use serde_json::json;

use super::*;

fn parse(file: serde_json::Value) -> Result<Config, ConfigError> {
    serde_json::from_value::<MultiClusterConfig>(file)
        .unwrap()
        .try_into()
}

#[test]
fn the_documented_file_is_accepted_and_canonicalized() {
    let config = parse(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
        "kind": "MultiClusterConfig",
        "health": { "healthProbeBindAddress": "127.0.0.1:8090" },
        "metrics": { "bindAddress": ":8080" },
        "webhook": { "port": 9443 },
        "podCIDRs": ["10.10.1.1/16", ""],
        "serviceCIDR": "",
        "additionalEndpointCIDRs": ["192.0.2.0/24"],
        "acceptedCIDRs": ["10.0.0.0/8"],
        "namespacePolicy": "Strict",
        "allowedNamespaces": ["shop", "team-*"],
        "endpointIPType": "PodIP",
        "gatewayIPPrecedence": "public",
        "gatewayMode": "ActiveStandby",
        "gatewayDrainPeriod": "1m30s",
        "withdrawAfter": "0s",
        "enableStretchedNetworkPolicy": true,
        "labelIdentityExcludedLabels": ["pod-template-hash", "batch.kubernetes.io/*"],
        "labelIdentityExport": "Selected",
        "labelIdentityQuarantine": "5m",
        "accountBinding": "Required",
        "isolation": "Namespace",
        "staleMemberPolicy": "Remove",
        "staleMemberTimeout": "36h",
    }))
    .unwrap();
    assert_eq!(config.health_addresses, ["127.0.0.1:8090".parse().unwrap()]);
    assert_eq!(
        config.metrics_addresses,
        ["[::]:8080".parse().unwrap(), "0.0.0.0:8080".parse().unwrap()]
    );
    assert_eq!(config.pod_cidrs, ["10.10.0.0/16".parse().unwrap()]);
    assert_eq!(config.service_cidrs, []);
    assert_eq!(
        config.additional_endpoint_cidrs,
        ["192.0.2.0/24".parse().unwrap()]
    );
    assert_eq!(config.accepted_cidrs, ["10.0.0.0/8".parse().unwrap()]);
    assert!(config.namespace_policy.allows("team-a", "mc"));
    assert!(!config.namespace_policy.allows("team", "mc"));
    assert_eq!(config.endpoint_ip_type, EndpointIpType::PodIp);
    assert_eq!(config.gateway_ip_precedence, GatewayIpPrecedence::External);
    assert_eq!(config.gateway_mode, GatewayMode::ActiveStandby);
    assert_eq!(config.drain_period, SignedDuration::from_secs(90));
    assert_eq!(config.withdraw_after, SignedDuration::ZERO);
    assert!(
        config.stretched_network_policy && config.excluded_labels.excludes("batch.kubernetes.io/job-name")
    );
    assert_eq!(config.identity_export, IdentityExport::Selected);
    assert_eq!(config.quarantine, SignedDuration::from_mins(5));
    assert_eq!(config.account_binding, AccountBinding::Required);
    assert_eq!(config.isolation, Isolation::Namespace);
    assert_eq!(config.stale_member_policy, StaleMemberPolicy::Remove);
    assert_eq!(config.stale_member_timeout, SignedDuration::from_hours(36));
    assert_eq!(parse(json!({})).unwrap(), Config::default());
}

#[test]
fn probes_are_served_by_default_and_metrics_are_not() {
    let at = |file| {
        let config = parse(file).unwrap();
        (config.health_addresses.len(), config.metrics_addresses.len())
    };
    assert_eq!(at(json!({})), (2, 0));
    let empty = json!({ "health": { "healthProbeBindAddress": "" }, "metrics": { "bindAddress": "" } });
    assert_eq!(at(empty), (2, 0));
    let off = json!({ "health": { "healthProbeBindAddress": "0" }, "metrics": { "bindAddress": "0" } });
    assert_eq!(at(off), (0, 0));
    let both = json!({ "health": {}, "metrics": { "bindAddress": "[::1]:9090", "secureServing": true } });
    assert_eq!(at(both), (2, 1));
}

#[test]
fn a_dual_stack_cluster_has_two_service_cidrs() {
    let config = parse(json!({ "serviceCIDR": "10.96.0.0/16, fd00:96::1/112" })).unwrap();
    let cidrs: Vec<_> = config.service_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(cidrs, ["10.96.0.0/16", "fd00:96::/112"]);
}

#[test]
fn an_unknown_isolation_is_reported() {
    let error = parse(json!({ "isolation": "namespace" })).unwrap_err();
    let message = "isolation: \"namespace\" is not one of Common, Namespace";
    assert!(error.to_string().contains(message), "{error}");
}

#[test]
fn an_unknown_account_binding_is_reported() {
    let error = parse(json!({ "accountBinding": "onFirstUse" })).unwrap_err();
    let message = "accountBinding: \"onFirstUse\" is not one of OnFirstUse, Required, Shared";
    assert_eq!(error.to_string(), message);
}

#[test]
fn a_bad_value_is_reported_with_its_field() {
    for (file, message) in [
        (
            json!({"serviceCIDR": "10.96.0.0"}),
            "serviceCIDR: \"10.96.0.0\" is not a CIDR",
        ),
        (
            json!({"serviceCIDR": "10.96.0.0/16, 10.97.0.0/16"}),
            "serviceCIDR: \"10.96.0.0/16, 10.97.0.0/16\" is more than one CIDR of an IP family",
        ),
        (
            json!({"podCIDRs": ["10.0.0.0/8", "x"]}),
            "podCIDRs[1]: \"x\" is not a CIDR",
        ),
        (
            json!({"additionalEndpointCIDRs": ["192.0.2.0/24", "192.0.2.1"]}),
            "additionalEndpointCIDRs[1]: \"192.0.2.1\" is not a CIDR",
        ),
        (
            json!({"acceptedCIDRs": ["everything"]}),
            "acceptedCIDRs[0]: \"everything\" is not a CIDR",
        ),
        (
            json!({"podCIDRs": ["::ffff:10.0.0.0/104"]}),
            "podCIDRs[0]: \"::ffff:10.0.0.0/104\" is an IPv4-mapped",
        ),
        (
            json!({"endpointIPType": "NodeIP"}),
            "endpointIPType: \"NodeIP\" is not one of ClusterIP, PodIP",
        ),
        (
            json!({"gatewayIPPrecedence": "both"}),
            "gatewayIPPrecedence: \"both\" is not one of",
        ),
        (
            json!({"gatewayMode": "activeactive"}),
            "gatewayMode: \"activeactive\" is not one of ActiveActive, ActiveStandby",
        ),
        (
            json!({"gatewayDrainPeriod": "30"}),
            "gatewayDrainPeriod: \"30\" is not a duration such as",
        ),
        (
            json!({"withdrawAfter": "5"}),
            "withdrawAfter: \"5\" is not a duration such as",
        ),
        (
            json!({"withdrawAfter": "-5m"}),
            "withdrawAfter: \"-5m\" is not a duration such as",
        ),
        (
            json!({"gatewayDrainPeriod": "-1s"}),
            "gatewayDrainPeriod: \"-1s\" is not a duration such as",
        ),
        (
            json!({"labelIdentityExport": "Some"}),
            "labelIdentityExport: \"Some\" is not one of All, Selected",
        ),
        (
            json!({"labelIdentityExcludedLabels": ["app", "a b"]}),
            "labelIdentityExcludedLabels[1]: \"a b\" is not a label key",
        ),
        (
            json!({"labelIdentityQuarantine": "soon"}),
            "labelIdentityQuarantine: \"soon\" is not a duration such as",
        ),
        (
            json!({"labelIdentityQuarantine": "59s"}),
            "labelIdentityQuarantine: \"59s\" is shorter than 1m",
        ),
        (
            json!({"metrics": {"bindAddress": "8080"}}),
            "metrics.bindAddress: \"8080\" is not an address and port such as",
        ),
        (
            json!({"staleMemberPolicy": "remove"}),
            "staleMemberPolicy: \"remove\" is not one of Keep, Remove",
        ),
        (
            json!({"staleMemberTimeout": "a day"}),
            "staleMemberTimeout: \"a day\" is not a duration such as",
        ),
        (
            json!({"staleMemberTimeout": "-24h"}),
            "staleMemberTimeout: \"-24h\" is not a duration such as",
        ),
        (
            json!({"staleMemberTimeout": "30s"}),
            "staleMemberTimeout: \"30s\" is shorter than 1m",
        ),
        (
            json!({"kind": "ConfigMap"}),
            "kind: \"ConfigMap\" instead of \"MultiClusterConfig\"",
        ),
    ] {
        let error = parse(file).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn a_value_of_another_type_is_reported_with_its_key() {
    for (text, key) in [
        (
            "enableStretchedNetworkPolicy: perhaps",
            "enableStretchedNetworkPolicy",
        ),
        ("labelIdentityExcludedLabels: app", "labelIdentityExcludedLabels"),
        (
            "health: {healthProbeBindAddress: [8080]}",
            "health.healthProbeBindAddress",
        ),
        ("metrics: everywhere", "metrics"),
    ] {
        let error = serde_yaml_ng::from_str::<MultiClusterConfig>(text).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}
