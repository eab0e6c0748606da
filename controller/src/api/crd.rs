//! The CRDs, made from the Rust types.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
    CustomResourceSubresources, CustomResourceValidation, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::{
    CustomResourceExt, Resource,
    core::{
        ObjectMeta,
        schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter},
    },
};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};

use super::{
    cluster_claim::ClusterClaim, cluster_info::ClusterInfoImport, cluster_set::ClusterSet, gateway::Gateway,
    label_identity::LabelIdentity, member_cluster_announce::MemberClusterAnnounce,
    resource_export::ResourceExport, resource_import::ResourceImport, service_export::ServiceExport,
    service_import::ServiceImport,
};

/// The CRDs a leader cluster needs.
#[must_use]
pub fn leader() -> Vec<CustomResourceDefinition> {
    [
        ClusterClaim::crd(),
        ClusterSet::definition(),
        MemberClusterAnnounce::crd(),
        ResourceExport::crd(),
        ResourceImport::crd(),
    ]
    .map(finish)
    .into()
}

/// The CRDs a member cluster needs.
#[must_use]
pub fn member() -> Vec<CustomResourceDefinition> {
    [
        ClusterClaim::crd(),
        ClusterInfoImport::crd(),
        ClusterSet::definition(),
        Gateway::crd(),
        LabelIdentity::crd(),
        also_served(ServiceExport::crd(), "v1alpha1"),
        also_served(ServiceImport::crd(), "v1alpha1"),
    ]
    .map(finish)
    .into()
}

/// A printer column.
pub(super) struct Column {
    name: &'static str,
    type_: &'static str,
    path: &'static str,
    description: Option<&'static str>,
}

/// What the CRD of a kind with top-level fields has beyond its schema.
pub(super) struct TopLevel<'a> {
    pub(super) doc: &'a str,
    pub(super) columns: &'a [Column],
    pub(super) status: bool,
    pub(super) short_names: &'a [&'a str],
}

// === impl Column ===

impl Column {
    pub(super) const fn string(name: &'static str, path: &'static str, description: &'static str) -> Self {
        Self {
            name,
            type_: "string",
            path,
            description: Some(description),
        }
    }

    pub(super) const fn integer(name: &'static str, path: &'static str, description: &'static str) -> Self {
        Self {
            type_: "integer",
            ..Self::string(name, path, description)
        }
    }

    pub(super) const fn age() -> Self {
        Self {
            name: "Age",
            type_: "date",
            path: ".metadata.creationTimestamp",
            description: None,
        }
    }
}

/// Adds the label (that of the derive macro would go onto the objects, too) and takes the defaults away: they are
/// those of our reader, and the API server must not write them into anybody's object.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    crd.metadata.labels = Some([("app".to_owned(), "antrea".to_owned())].into());
    let schemas = crd.spec.versions.iter_mut().filter_map(|v| v.schema.as_mut());
    schemas
        .filter_map(|s| s.open_api_v3_schema.as_mut())
        .for_each(forget_defaults);
    crd
}

/// The schemas of one version.
pub(super) fn schemas<'a>(
    crd: &'a mut CustomResourceDefinition,
    version: &'a str,
) -> impl Iterator<Item = &'a mut JSONSchemaProps> {
    let versions = crd.spec.versions.iter_mut().filter(move |v| v.name == version);
    versions.filter_map(|v| v.schema.as_mut()?.open_api_v3_schema.as_mut())
}

/// The same fields under an older version, for those who wrote their objects with that.
pub(super) fn also_served(mut crd: CustomResourceDefinition, version: &str) -> CustomResourceDefinition {
    let older: Vec<_> = crd
        .spec
        .versions
        .iter()
        .map(|newest| CustomResourceDefinitionVersion {
            name: version.to_owned(),
            storage: false,
            ..newest.clone()
        })
        .collect();
    crd.spec.versions.extend(older);
    crd
}

fn forget_defaults(schema: &mut JSONSchemaProps) {
    schema.default = None;
    schema
        .properties
        .iter_mut()
        .flat_map(BTreeMap::values_mut)
        .for_each(forget_defaults);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        forget_defaults(items);
    }
}

/// The CRD of namespaced kind `K`, whose top-level fields are those of `F`.
pub(super) fn top_level<K, F>(about: &TopLevel<'_>) -> CustomResourceDefinition
where
    K: Resource<DynamicType = ()>,
    F: JsonSchema,
{
    let kind = K::kind(&()).into_owned();
    let plural = K::plural(&()).into_owned();
    let group = K::group(&()).into_owned();
    CustomResourceDefinition {
        metadata: ObjectMeta {
            name: Some(format!("{plural}.{group}")),
            ..ObjectMeta::default()
        },
        spec: CustomResourceDefinitionSpec {
            group,
            names: CustomResourceDefinitionNames {
                singular: Some(kind.to_lowercase()),
                list_kind: None,
                short_names: (!about.short_names.is_empty())
                    .then(|| about.short_names.iter().map(|s| (*s).to_owned()).collect()),
                kind,
                plural,
                categories: None,
            },
            scope: "Namespaced".to_owned(),
            versions: vec![CustomResourceDefinitionVersion {
                name: K::version(&()).into_owned(),
                served: true,
                storage: true,
                schema: Some(CustomResourceValidation {
                    open_api_v3_schema: Some(schema_of::<F>(about.doc)),
                }),
                subresources: about.status.then(|| CustomResourceSubresources {
                    // Its default is null, which means none.
                    status: Some(CustomResourceSubresourceStatus(serde_json::json!({}))),
                    scale: None,
                }),
                additional_printer_columns: Some(about.columns.iter().map(printer_column).collect()),
                ..CustomResourceDefinitionVersion::default()
            }],
            ..CustomResourceDefinitionSpec::default()
        },
        status: None,
    }
}

fn printer_column(column: &Column) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        name: column.name.to_owned(),
        type_: column.type_.to_owned(),
        json_path: column.path.to_owned(),
        description: column.description.map(str::to_owned),
        ..CustomResourceColumnDefinition::default()
    }
}

fn schema_of<F: JsonSchema>(doc: &str) -> JSONSchemaProps {
    let settings = SchemaSettings::openapi3().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let generator = settings
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator();
    // A schema that does not fit would be empty, and the API server would drop every field: the
    // tests below hold each CRD's fields against the type's.
    let mut schema: JSONSchemaProps =
        serde_json::from_value(generator.into_root_schema_for::<F>().to_value()).unwrap_or_default();
    schema.title = None;
    schema.description = Some(doc.to_owned());
    schema
}

/// An object whose content is another API's business: kept as it is.
pub(super) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of objects whose content is another API's business.
pub(super) fn any_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "atomic",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// Conditions in the manner of `metav1.Condition`, one for each type.
pub(super) fn standard_conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": { "type": "string", "maxLength": 316 },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": { "type": "string", "maxLength": 32768 },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn schema(crd: &CustomResourceDefinition) -> Value {
        let v = serde_json::to_value(crd).unwrap();
        v.pointer("/spec/versions/0/schema/openAPIV3Schema")
            .unwrap()
            .clone()
    }

    #[test]
    fn names_columns_and_labels_are_those_users_know() {
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
                ("resourceexports.multicluster.crd.antrea.io", "v1alpha1", true),
                ("resourceimports.multicluster.crd.antrea.io", "v1alpha1", true),
                ("serviceexports.multicluster.x-k8s.io", "v1beta1", true),
                ("serviceimports.multicluster.x-k8s.io", "v1beta1", true),
            ]
        );
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
            let crd = also_served(crd, "v1alpha1");
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
    fn the_api_server_writes_no_defaults() {
        for crd in leader().into_iter().chain(member()) {
            assert!(
                !schema(&crd).to_string().contains("\"default\":"),
                "{:?}",
                crd.metadata.name
            );
        }
    }

    #[test]
    fn resource_import_keeps_the_odd_casing() {
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
    fn a_label_identity_belongs_to_the_cluster_and_its_number_has_limits() {
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
    }

    #[test]
    fn a_cluster_set_needs_one_leader_and_in_its_newer_form_its_id() {
        let crd = ClusterSet::definition();
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
    fn older_forms_keep_their_fields_in_the_version_that_is_stored() {
        let fields = |spec: &Value, at: &str| -> Vec<String> {
            let properties = spec.pointer(at).unwrap().as_object().unwrap();
            properties.keys().cloned().collect()
        };
        let crd = ClusterSet::definition();
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
}
