use serde_json::{Value, json};

use super::*;

fn schema(crd: &CustomResourceDefinition) -> Value {
    let v = serde_json::to_value(crd).unwrap();
    v.pointer("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap()
        .clone()
}

#[test]
fn names_columns_and_labels_match_antrea() {
    let mut seen = vec![];
    for crd in leader().into_iter().chain(member()) {
        assert_eq!(crd.metadata.labels.as_ref().unwrap()["app"], "antrea");
        let version = &crd.spec.versions[0];
        assert_eq!(
            version
                .additional_printer_columns
                .as_ref()
                .unwrap()
                .last()
                .unwrap()
                .name,
            "Age"
        );
        seen.push((
            crd.metadata.name.unwrap(),
            version.name.clone(),
            version.subresources.is_some(),
        ));
    }
    seen.sort();
    seen.dedup();
    let got: Vec<_> = seen
        .iter()
        .map(|(n, v, s)| (n.as_str(), v.as_str(), *s))
        .collect();
    assert_eq!(
        got,
        [
            ("addressgroupslices.mc-gateway.io", "v1alpha1", false),
            ("clusterclaims.multicluster.crd.antrea.io", "v1alpha2", false),
            ("clusterinfoimports.multicluster.crd.antrea.io", "v1alpha1", true),
            ("clustersets.multicluster.crd.antrea.io", "v1alpha2", true),
            ("gateways.multicluster.crd.antrea.io", "v1alpha1", true),
            ("labelidentities.multicluster.crd.antrea.io", "v1alpha1", false),
            (
                "memberclusterannounces.multicluster.crd.antrea.io",
                "v1alpha1",
                false
            ),
            ("nodekeys.mc-gateway.io", "v1alpha1", false),
            ("nodepolicystatuses.mc-gateway.io", "v1alpha1", false),
            ("nodereachabilities.mc-gateway.io", "v1alpha1", false),
            ("resourceexports.multicluster.crd.antrea.io", "v1alpha1", true),
            ("resourceimports.multicluster.crd.antrea.io", "v1alpha1", true),
            ("serviceexports.multicluster.x-k8s.io", "v1beta1", true),
            ("serviceimports.multicluster.x-k8s.io", "v1beta1", true),
        ]
    );
}

/// `gateways` and `gtw` are names of the Gateway API.
#[test]
fn gateways_have_a_short_name_of_their_own() {
    let names = Gateway::crd().spec.names;
    assert_eq!(names.short_names.as_deref(), Some(&["mcgw".to_owned()][..]));
}

#[test]
fn top_level_kinds_describe_their_fields() {
    let gateway = schema(&Gateway::crd());
    for field in ["gatewayIP", "internalIP", "serviceCIDR", "weight", "wireGuard"] {
        assert!(
            gateway.pointer(&format!("/properties/{field}")).is_some(),
            "{field}: {gateway}"
        );
    }
    let announce = schema(&MemberClusterAnnounce::crd());
    for field in ["clusterID", "clusterSetID", "leaderClusterID"] {
        assert!(
            announce.pointer(&format!("/properties/{field}")).is_some(),
            "{field}: {announce}"
        );
    }
    assert!(
        schema(&ServiceExport::crd())
            .pointer("/properties/status/properties/conditions")
            .is_some()
    );
}

#[test]
fn the_mcs_kinds_have_two_versions_with_the_same_fields() {
    for crd in [ServiceExport::crd(), ServiceImport::crd()] {
        let crd = serve_older_version(crd, "v1alpha1");
        let versions: Vec<_> = crd
            .spec
            .versions
            .iter()
            .map(|v| (v.name.as_str(), v.served, v.storage))
            .collect();
        assert_eq!(versions, [("v1beta1", true, true), ("v1alpha1", true, false)]);
        let [beta, alpha] = &crd.spec.versions[..] else {
            panic!("{versions:?}")
        };
        assert_eq!(beta.schema, alpha.schema);
    }
}

#[test]
fn schemas_have_no_defaults() {
    for crd in leader().into_iter().chain(member()).chain(policy()) {
        assert!(
            !schema(&crd).to_string().contains("\"default\":"),
            "{:?}",
            crd.metadata.name
        );
    }
}

#[test]
fn resource_import_keeps_the_casing_of_antrea() {
    let import = schema(&ResourceImport::crd());
    let properties = import.pointer("/properties/spec/properties").unwrap();
    for field in [
        "clusterinfo",
        "clusternetworkpolicy",
        "externalentity",
        "serviceImport",
        "labelIdentity",
    ] {
        assert!(properties.get(field).is_some(), "{field}: {properties}");
    }
    assert_eq!(properties.pointer("/clusterID/type").unwrap(), "array");
}

#[test]
fn a_label_identity_is_cluster_scoped_and_its_id_has_limits() {
    let crd = LabelIdentity::crd();
    assert_eq!(crd.spec.scope, "Cluster");
    let id = schema(&crd).pointer("/properties/spec/properties/id").cloned();
    let id = id.unwrap();
    assert_eq!(
        (id["minimum"].as_f64(), id["maximum"].as_f64()),
        (Some(1.0), Some(16_777_214.0))
    );
    let payload = |crd: &CustomResourceDefinition| {
        let schema = schema(crd);
        schema
            .pointer("/properties/spec/properties/labelIdentity")
            .unwrap()
            .clone()
    };
    for (payload, field) in [
        (payload(&ResourceExport::crd()), "normalizedLabel"),
        (payload(&ResourceImport::crd()), "label"),
    ] {
        assert_eq!(payload["x-kubernetes-preserve-unknown-fields"], true);
        assert_eq!(payload["properties"][field]["type"], "string");
    }
    let spec = schema(&crd).pointer("/properties/spec/properties").cloned();
    for clusters in [
        &spec.unwrap()["clusters"],
        &payload(&ResourceImport::crd())["properties"]["clusters"],
    ] {
        assert_eq!(clusters["maxItems"], crate::label_identity::MAX_CLUSTERS);
        assert_eq!(
            clusters["items"],
            json!({ "type": "string", "minLength": 1 }),
            "{clusters}"
        );
        assert_eq!(clusters["x-kubernetes-list-type"], "atomic");
    }
}

#[test]
fn a_cluster_set_requires_one_leader_and_in_v1alpha2_its_id() {
    let crd = ClusterSet::versioned_crd();
    for (version, required) in [
        ("v1alpha2", json!(["clusterID", "leaders"])),
        ("v1alpha1", json!(["leaders"])),
    ] {
        let spec = spec_of(&crd, version);
        assert_eq!(spec["required"], required, "{version}");
        assert_eq!(spec.pointer("/properties/leaders/maxItems").unwrap(), 1);
        assert_eq!(spec.pointer("/properties/leaders/minItems").unwrap(), 1);
        assert_eq!(spec["x-kubernetes-validations"].as_array().unwrap().len(), 2);
    }
}

fn spec_of(crd: &CustomResourceDefinition, version: &str) -> Value {
    let found = crd.spec.versions.iter().find(|v| v.name == version).unwrap();
    let schema = serde_json::to_value(&found.schema).unwrap();
    schema
        .pointer("/openAPIV3Schema/properties/spec")
        .unwrap()
        .clone()
}

#[test]
fn the_stored_version_has_the_fields_of_the_older_one() {
    let fields = |spec: &Value, at: &str| -> Vec<String> {
        let properties = spec.pointer(at).unwrap().as_object().unwrap();
        properties.keys().cloned().collect()
    };
    let crd = ClusterSet::versioned_crd();
    let (newer, older) = (spec_of(&crd, "v1alpha2"), spec_of(&crd, "v1alpha1"));
    assert_eq!(newer["properties"], older["properties"]);
    assert_eq!(
        fields(&newer, "/properties"),
        ["clusterID", "leaders", "members", "namespace"]
    );
    for list in ["leaders", "members"] {
        assert_eq!(
            fields(&newer, &format!("/properties/{list}/items/properties")),
            ["clusterID", "secret", "server", "serviceAccount"]
        );
    }
    let claim = ClusterClaim::crd();
    let versions: Vec<_> = claim
        .spec
        .versions
        .iter()
        .map(|v| {
            let schema = v.schema.clone().unwrap().open_api_v3_schema.unwrap();
            let fields: Vec<_> = schema.properties.unwrap().into_keys().collect();
            assert_eq!(fields, ["name", "value"]);
            (v.name.as_str(), v.served, v.storage, schema.required.unwrap())
        })
        .collect();
    assert_eq!(
        versions,
        [
            ("v1alpha2", true, true, vec!["value".to_owned()]),
            (
                "v1alpha1",
                true,
                false,
                vec!["name".to_owned(), "value".to_owned()]
            ),
        ]
    );
}
