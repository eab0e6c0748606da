//! `NodeKey`: the public key of a Node's agent, which the agent creates once. Superset: Antrea has no such kind.
//!
//! The key is immutable, and agents may create `NodeKey`s but neither change nor delete them: no Node can replace an
//! established key of another. The object is owned by its Node, so that Kubernetes deletes it with the Node, and one
//! for a Node that does not exist.

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, ValidationRule},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{CustomResource, CustomResourceExt as _, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The public key of a Node's agent. The object has the Node's name.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "mc-gateway.io",
    version = "v1alpha1",
    kind = "NodeKey",
    plural = "nodekeys",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    doc = "The public key of the gateway agent of a Node. Packets between Nodes have a secret derived from it.",
    printcolumn = r#"{"name":"Public Key","type":"string","jsonPath":".spec.publicKey","description":"X25519 public key"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeKeySpec {
    /// X25519 public key in base64. Immutable: delete the object to replace it.
    pub public_key: String,
}

// === impl NodeKey ===

impl NodeKey {
    /// The object for a Node with this UID.
    #[must_use]
    pub fn of_node(node: &str, uid: &str, public_key: String) -> Self {
        owned_by_node(Self::new(node, NodeKeySpec { public_key }), node, uid)
    }

    /// Whether the Node of the same name owns the object.
    #[must_use]
    pub fn is_owned_by_node(&self) -> bool {
        let name = self.metadata.name.as_deref();
        let mut owners = self.metadata.owner_references.iter().flatten();
        owners.any(|owner| owner.kind == "Node" && Some(owner.name.as_str()) == name)
    }

    /// The CRD, with an immutable spec.
    #[must_use]
    pub fn immutable_crd() -> CustomResourceDefinition {
        let mut crd = Self::crd();
        let schemas = crd
            .spec
            .versions
            .iter_mut()
            .filter_map(|version| version.schema.as_mut());
        let specs = schemas
            .filter_map(|schema| schema.open_api_v3_schema.as_mut())
            .filter_map(|schema| schema.properties.as_mut()?.get_mut("spec"));
        for spec in specs {
            spec.x_kubernetes_validations = Some(vec![ValidationRule {
                rule: "self == oldSelf".to_owned(),
                message: Some("a public key is immutable: delete the NodeKey to replace it".to_owned()),
                ..ValidationRule::default()
            }]);
        }
        crd
    }
}

/// An object with the Node of this name and UID as its owner.
pub(crate) fn owned_by_node<K: Resource>(mut object: K, node: &str, uid: &str) -> K {
    object.meta_mut().owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }]);
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_belongs_to_the_node_of_its_name() {
        let mut key = NodeKey::of_node("east-n1", "1-2-3", "key".to_owned());
        assert!(key.is_owned_by_node());
        key.metadata.name = Some("east-n2".to_owned());
        assert!(!key.is_owned_by_node());
        key.metadata.owner_references = None;
        assert!(!key.is_owned_by_node());
    }

    #[test]
    fn the_spec_is_immutable() {
        let crd = serde_json::to_value(NodeKey::immutable_crd()).unwrap();
        let rules =
            crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations");
        assert_eq!(rules.unwrap()[0]["rule"], "self == oldSelf");
    }
}
