//! The CRDs of network policies (`crd.antrea.io`), for clusters without Antrea.
//!
//! The schemas describe the fields that this project enforces and preserve all others, so that the API server accepts
//! every policy of Antrea; an agent reports the fields that it does not enforce.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Resource;
use serde_json::{Map, Value, json};

use crate::{
    network_policy::{ClusterGroup, ClusterNetworkPolicy, NamespacedGroup, NetworkPolicy, Tier},
    schema::{Column, Definition, definition},
};

const CLUSTER: &str = "Cluster";
const NAMESPACED: &str = "Namespaced";

/// A kind of `crd.antrea.io`.
struct PolicyKind<'a> {
    doc: &'a str,
    scope: &'a str,
    short_names: &'a [&'a str],
    columns: &'a [Column],
    spec: Value,
    /// The schema of the status, for kinds with one.
    status: Option<Value>,
}

/// The CRDs, as generated.
pub(super) fn crds() -> Vec<CustomResourceDefinition> {
    const POLICY_COLUMNS: [Column; 5] = [
        Column::string("Tier", ".spec.tier", "Tier of the policy"),
        Column::number("Priority", ".spec.priority", "Order within the Tier"),
        Column::integer(
            "Desired Nodes",
            ".status.desiredNodesRealized",
            "Nodes with a Pod that the policy selects",
        ),
        Column::integer(
            "Current Nodes",
            ".status.currentNodesRealized",
            "Nodes that enforce the policy",
        ),
        Column::age(),
    ];
    vec![
        crd::<ClusterNetworkPolicy>(PolicyKind {
            doc: "A network policy for all namespaces of a cluster.",
            scope: CLUSTER,
            short_names: &["acnp"],
            columns: &POLICY_COLUMNS,
            spec: policy_spec(),
            status: Some(policy_status()),
        }),
        crd::<NetworkPolicy>(PolicyKind {
            doc: "A network policy of Antrea for the Pods of its namespace.",
            scope: NAMESPACED,
            short_names: &["annp", "anp"],
            columns: &POLICY_COLUMNS,
            spec: policy_spec(),
            status: Some(policy_status()),
        }),
        crd::<ClusterGroup>(PolicyKind {
            doc: "Pods or addresses, for ClusterNetworkPolicies.",
            scope: CLUSTER,
            short_names: &["cg"],
            columns: &[Column::age()],
            spec: group_spec(),
            status: Some(group_status()),
        }),
        crd::<NamespacedGroup>(PolicyKind {
            doc: "Pods or addresses, for NetworkPolicies of the same namespace.",
            scope: NAMESPACED,
            short_names: &["grp"],
            columns: &[Column::age()],
            spec: group_spec(),
            status: Some(group_status()),
        }),
        crd::<Tier>(PolicyKind {
            doc: "The precedence class of policies.",
            scope: CLUSTER,
            short_names: &["tr"],
            columns: &[
                Column::integer(
                    "Priority",
                    ".spec.priority",
                    "Order of the Tier, smaller numbers first",
                ),
                Column::age(),
            ],
            spec: required(
                &["priority"],
                open(
                    "Order of the Tier.",
                    json!({
                        "priority": {
                            "type": "integer", "format": "int32", "minimum": 0, "maximum": 255,
                            "description": "A smaller number is first. 0 and 255 are reserved.",
                        },
                        "description": text("Its purpose."),
                    }),
                ),
            ),
            status: None,
        }),
    ]
}

fn crd<K: Resource<DynamicType = ()>>(about: PolicyKind<'_>) -> CustomResourceDefinition {
    let status = about.status.is_some();
    let mut properties = Map::from_iter([("spec".to_owned(), about.spec)]);
    properties.extend(about.status.map(|status| ("status".to_owned(), status)));
    let schema = json!({
        "type": "object", "description": about.doc, "required": ["spec"], "properties": properties,
    });
    definition::<K>(&Definition {
        scope: about.scope,
        short_names: about.short_names,
        columns: about.columns,
        status,
        // The tests compare the fields: a schema that fails to convert would be empty.
        schema: serde_json::from_value(schema).ok(),
    })
}

/// An object with these properties, and others.
fn open(doc: &str, properties: Value) -> Value {
    let schema = json!({
        "type": "object", "description": doc, "x-kubernetes-preserve-unknown-fields": true,
    });
    match properties {
        Value::Object(properties) if !properties.is_empty() => joined(
            schema,
            Map::from_iter([("properties".to_owned(), properties.into())]).into(),
        ),
        _ => schema,
    }
}

/// The fields of both objects.
fn joined(one: Value, other: Value) -> Value {
    [one, other]
        .into_iter()
        .filter_map(|fields| match fields {
            Value::Object(fields) => Some(fields),
            _ => None,
        })
        .flatten()
        .collect()
}

fn required(fields: &[&str], schema: Value) -> Value {
    joined(schema, json!({ "required": fields }))
}

fn list(doc: &str, items: Value) -> Value {
    let schema = json!({ "type": "array", "description": doc });
    joined(schema, Map::from_iter([("items".to_owned(), items)]).into())
}

fn text(doc: &str) -> Value {
    json!({ "type": "string", "description": doc })
}

fn word(doc: &str, values: &[&str]) -> Value {
    json!({ "type": "string", "description": doc, "enum": values })
}

fn policy_spec() -> Value {
    required(
        &["priority"],
        open(
            "Rules and the Pods to which they apply.",
            json!({
                "tier": text("Tier of the policy; application if it is absent."),
                "priority": {
                    "type": "number", "format": "float", "minimum": 1.0, "maximum": 10_000.0,
                    "description": "Order within the Tier; a smaller number is first.",
                },
                "appliedTo": list("Pods to which rules without their own appliedTo apply.", applied_to()),
                "ingress": list("Rules for packets to the Pods; the first match decides.", rule("from")),
                "egress": list("Rules for packets from the Pods; the first match decides.", rule("to")),
            }),
        ),
    )
}

fn rule(peers: &str) -> Value {
    let properties = json!({
        "action": word("The action on matching packets; Deny is Drop.", &["Allow", "Drop", "Reject", "Pass", "Deny"]),
        "name": text("Name of the rule."),
        "ports": list("Destination ports; all if it is absent.", port()),
        "protocols": list("Protocols without ports.", open("A protocol.", json!({
            "icmp": open("ICMP messages.", json!({
                "icmpType": integer("Type of the messages; all if it is absent."),
                "icmpCode": integer("Code of the messages; all if it is absent."),
            })),
        }))),
        "appliedTo": list("Pods to which the rule applies.", applied_to()),
        "enableLogging": { "type": "boolean", "description": "Has no effect." },
        "logLabel": text("Has no effect."),
    });
    let mut fields = Map::from_iter([(peers.to_owned(), list("Peers; any if it is absent.", peer()))]);
    if peers == "to" {
        fields.insert("toServices".to_owned(), services());
    }
    required(&["action"], open("A rule.", joined(properties, fields.into())))
}

fn services() -> Value {
    list(
        "Services, by the addresses of which a Pod reaches them; excludes other peers and ports.",
        open(
            "A Service.",
            json!({
                "name": text("Its name."),
                "namespace": text("Its namespace; that of a NetworkPolicy if it is absent."),
                "scope": word(
                    "Cluster, a Service of this cluster, or ClusterSet, an exported Service of the ClusterSet.",
                    &["Cluster", "ClusterSet"],
                ),
            }),
        ),
    )
}

fn port() -> Value {
    open(
        "A port or a range of ports.",
        json!({
            "protocol": word("TCP if it is absent.", &["TCP", "UDP", "SCTP"]),
            "port": { "x-kubernetes-int-or-string": true, "description": "Number, or name of a container's port." },
            "endPort": integer("Last port of a range."),
        }),
    )
}

fn integer(doc: &str) -> Value {
    json!({ "type": "integer", "format": "int32", "description": doc })
}

fn applied_to() -> Value {
    let others = json!({
        "group": text("Name of a group, instead of selectors."),
        "serviceAccount": service_account(),
    });
    open("Pods of this cluster.", joined(selectors(), others))
}

fn service_account() -> Value {
    open(
        "ServiceAccount of Pods of this cluster, instead of selectors; in a ClusterNetworkPolicy only.",
        json!({ "name": text("Its name."), "namespace": text("Its namespace.") }),
    )
}

fn peer() -> Value {
    let others = json!({
        "group": text("Name of a group, instead of selectors."),
        "ipBlock": block(),
        "serviceAccount": service_account(),
        "scope": word("The clusters of the Pods.", &["Cluster", "ClusterSet"]),
        "namespaces": open(
            "Namespaces relative to that of the Pod to which the rule applies.",
            json!({
                "match": word("The same namespace.", &["Self"]),
                "sameLabels": list("Keys of labels that have the same value.", json!({ "type": "string" })),
            }),
        ),
    });
    open("The other side of the traffic.", joined(selectors(), others))
}

fn group_spec() -> Value {
    let others = json!({
        "ipBlocks": list("Addresses.", block()),
        "childGroups": list("Names of groups of the same kind.", json!({ "type": "string" })),
    });
    open("Members of the group.", joined(selectors(), others))
}

fn selectors() -> Value {
    json!({
        "podSelector": selector("Labels of Pods."),
        "namespaceSelector": selector("Labels of namespaces."),
    })
}

fn selector(doc: &str) -> Value {
    let requirement = json!({
        "key": text("Key of a label."),
        "operator": word("The comparison.", &["In", "NotIn", "Exists", "DoesNotExist"]),
        "values": list("Values, for In and NotIn.", json!({ "type": "string" })),
    });
    let requirement = required(&["key", "operator"], open("A requirement.", requirement));
    open(
        doc,
        json!({
            "matchLabels": {
                "type": "object", "description": "Required labels.",
                "additionalProperties": { "type": "string" },
            },
            "matchExpressions": list("Further requirements.", requirement),
        }),
    )
}

fn block() -> Value {
    required(
        &["cidr"],
        open(
            "Addresses of a prefix.",
            json!({
                "cidr": text("The prefix."),
                "except": list("Prefixes inside it that do not count.", json!({ "type": "string" })),
            }),
        ),
    )
}

fn group_status() -> Value {
    let condition = open(
        "An aspect of the group.",
        json!({
            "type": text("GroupMembersComputed."),
            "status": text("True, or False for a spec with an error or a child group that is missing."),
            "lastTransitionTime": transition_time("Last change of status."),
        }),
    );
    open(
        "Status of the group.",
        json!({ "conditions": list("Aspects of the group.", condition) }),
    )
}

fn transition_time(doc: &str) -> Value {
    json!({ "type": "string", "format": "date-time", "nullable": true, "description": doc })
}

fn policy_status() -> Value {
    let condition = open(
        "An aspect of the policy.",
        json!({
            "type": text("Realizable or RealizationFailure."),
            "status": text("True, False or Unknown."),
            "lastTransitionTime": transition_time("Last change of status or reason."),
            "reason": text("The cause in one word."),
            "message": text("Field, value, cause and Nodes."),
        }),
    );
    let count = |doc| json!({ "type": "integer", "format": "int64", "minimum": 0, "description": doc });
    let rule = open(
        "A rule.",
        json!({
            "name": text("Path of the rule, such as spec.ingress[0]."),
            "trafficStats": open(
                "Sums of the existing Nodes.",
                json!({
                    "packets": count("Packets; a super-packet counts once."),
                    "bytes": count("Bytes of these packets with the link-layer header."),
                }),
            ),
        }),
    );
    open(
        "Progress on the Nodes.",
        json!({
            "phase": text("Pending, Realizing, Realized or Failed."),
            "observedGeneration": {
                "type": "integer", "format": "int64", "description": "Generation of the spec that it refers to.",
            },
            "currentNodesRealized": integer("Nodes that enforce the policy."),
            "desiredNodesRealized": integer("Nodes with a Pod that the policy selects."),
            "conditions": list("Aspects of the policy.", condition),
            "ruleTrafficStats": list("Rules that have decided on packets, 1,000 at most.", rule),
            "trafficStatsTime": {
                "type": "string", "format": "date-time", "description": "Time at which ruleTrafficStats was written.",
            },
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every object without fixed fields preserves unknown ones.
    fn assert_open(schema: &Value, path: &str) {
        if schema["type"] == "object" && schema.get("additionalProperties").is_none() {
            assert_eq!(schema["x-kubernetes-preserve-unknown-fields"], true, "{path}");
        }
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            assert_open(inner, &format!("{path}.{name}"));
        }
        if let Some(items) = schema.get("items") {
            assert_open(items, &format!("{path}[]"));
        }
    }

    fn properties(crd: &CustomResourceDefinition) -> Value {
        let value = serde_json::to_value(crd).unwrap();
        let schema = value.pointer("/spec/versions/0/schema/openAPIV3Schema/properties");
        schema.unwrap().clone()
    }

    #[test]
    fn names_and_columns_are_those_of_antrea() {
        let all = crds();
        let names = all.iter().map(|crd| {
            let names = &crd.spec.names;
            let scope = crd.spec.scope.as_str();
            (
                crd.metadata.name.clone().unwrap(),
                scope,
                names.short_names.clone().unwrap().join(" "),
            )
        });
        let names: Vec<_> = names.collect();
        let names: Vec<_> = names
            .iter()
            .map(|(a, b, c)| (a.as_str(), *b, c.as_str()))
            .collect();
        assert_eq!(
            names,
            [
                ("clusternetworkpolicies.crd.antrea.io", "Cluster", "acnp"),
                ("networkpolicies.crd.antrea.io", "Namespaced", "annp anp"),
                ("clustergroups.crd.antrea.io", "Cluster", "cg"),
                ("groups.crd.antrea.io", "Namespaced", "grp"),
                ("tiers.crd.antrea.io", "Cluster", "tr"),
            ]
        );
        let columns = all[0].spec.versions[0]
            .additional_printer_columns
            .as_ref()
            .unwrap();
        let columns: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(
            columns,
            ["Tier", "Priority", "Desired Nodes", "Current Nodes", "Age"]
        );
    }

    #[test]
    fn unknown_fields_are_preserved_everywhere() {
        for crd in crds() {
            let properties = properties(&crd);
            for field in ["spec", "status"] {
                if let Some(schema) = properties.get(field) {
                    assert_open(schema, field);
                }
            }
        }
    }

    #[test]
    fn the_fields_of_rules_are_described() {
        let policy = properties(&crds()[0]);
        let from = "/spec/properties/ingress/items/properties/from/items/properties";
        for field in [
            "podSelector",
            "namespaceSelector",
            "namespaces",
            "ipBlock",
            "group",
            "scope",
        ] {
            assert!(policy.pointer(&format!("{from}/{field}")).is_some(), "{field}");
        }
        assert_eq!(
            policy.pointer("/status/properties/conditions/items/properties/lastTransitionTime/format"),
            Some(&json!("date-time"))
        );
        let stats = "/status/properties/ruleTrafficStats/items/properties/trafficStats/properties";
        for field in ["packets", "bytes"] {
            assert_eq!(
                policy.pointer(&format!("{stats}/{field}/format")),
                Some(&json!("int64")),
                "{field}"
            );
        }
        assert_eq!(
            policy.pointer("/status/properties/trafficStatsTime/format"),
            Some(&json!("date-time"))
        );
    }
}
