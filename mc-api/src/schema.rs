//! Schemas and metadata of kinds, the parts of their CRDs. Kinds with top-level fields have no derive in kube:
//! `top_level` builds their CRDs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
    CustomResourceSubresources, CustomResourceValidation, JSONSchemaProps,
};
use kube::{
    Resource,
    core::{
        ObjectMeta,
        schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter},
    },
};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};

/// A printer column.
pub(crate) struct Column {
    name: &'static str,
    type_: &'static str,
    path: &'static str,
    description: Option<&'static str>,
}

/// CRD metadata of a kind with top-level fields.
pub(crate) struct TopLevelKind<'a> {
    pub(crate) doc: &'a str,
    pub(crate) columns: &'a [Column],
    pub(crate) status: bool,
    pub(crate) short_names: &'a [&'a str],
}

// === impl Column ===

impl Column {
    pub(crate) const fn string(name: &'static str, path: &'static str, description: &'static str) -> Self {
        Self {
            name,
            type_: "string",
            path,
            description: Some(description),
        }
    }

    pub(crate) const fn integer(name: &'static str, path: &'static str, description: &'static str) -> Self {
        Self {
            type_: "integer",
            ..Self::string(name, path, description)
        }
    }

    pub(crate) const fn number(name: &'static str, path: &'static str, description: &'static str) -> Self {
        Self {
            type_: "number",
            ..Self::string(name, path, description)
        }
    }

    pub(crate) const fn age() -> Self {
        Self {
            name: "Age",
            type_: "date",
            path: ".metadata.creationTimestamp",
            description: None,
        }
    }
}

/// The schemas of one version.
pub(crate) fn of_version<'a>(
    crd: &'a mut CustomResourceDefinition,
    version: &'a str,
) -> impl Iterator<Item = &'a mut JSONSchemaProps> {
    let versions = crd.spec.versions.iter_mut().filter(move |v| v.name == version);
    versions.filter_map(|v| v.schema.as_mut()?.open_api_v3_schema.as_mut())
}

/// Adds an older version with the same fields, for objects written with it.
pub(crate) fn serve_older_version(
    mut crd: CustomResourceDefinition,
    version: &str,
) -> CustomResourceDefinition {
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

/// The CRD of the namespaced kind `K` with the fields of `F` at the top level.
pub(crate) fn top_level<K, F>(about: &TopLevelKind<'_>) -> CustomResourceDefinition
where
    K: Resource<DynamicType = ()>,
    F: JsonSchema,
{
    definition::<K>(&Definition {
        scope: "Namespaced",
        short_names: about.short_names,
        columns: about.columns,
        status: about.status,
        schema: Some(schema_of::<F>(about.doc)),
    })
}

/// The parts of a CRD that its kind does not state.
pub(crate) struct Definition<'a> {
    /// `Namespaced` or `Cluster`.
    pub(crate) scope: &'a str,
    /// Short names for `kubectl`.
    pub(crate) short_names: &'a [&'a str],
    /// Columns of `kubectl get`.
    pub(crate) columns: &'a [Column],
    /// Whether it has the subresource `status`.
    pub(crate) status: bool,
    /// The schema of the whole object.
    pub(crate) schema: Option<JSONSchemaProps>,
}

/// The CRD of the kind `K` with one version.
pub(crate) fn definition<K: Resource<DynamicType = ()>>(about: &Definition<'_>) -> CustomResourceDefinition {
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
            scope: about.scope.to_owned(),
            versions: vec![CustomResourceDefinitionVersion {
                name: K::version(&()).into_owned(),
                served: true,
                storage: true,
                schema: Some(CustomResourceValidation {
                    open_api_v3_schema: about.schema.clone(),
                }),
                subresources: about.status.then(|| CustomResourceSubresources {
                    // The default is null, which means no subresource.
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

/// The column in a CRD.
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
    // A schema that fails to convert would be empty, and the API server would drop every field: the tests compare
    // the CRDs' fields with the types'.
    let mut schema: JSONSchemaProps =
        serde_json::from_value(generator.into_root_schema_for::<F>().to_value()).unwrap_or_default();
    schema.title = None;
    schema.description = Some(doc.to_owned());
    schema
}

/// An opaque object of another API, preserved as is.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of opaque objects of another API.
pub(crate) fn any_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "atomic",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// `metav1.Condition`s, one of each type.
pub(crate) fn standard_conditions(_: &mut SchemaGenerator) -> Schema {
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
