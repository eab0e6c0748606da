//! Object bodies of traces: few fields with few values, so that writers collide.

use mc_tests::rng::Rng;
use serde_json::{Map, Value, json};

use super::object_ref::{NAMESPACES, ObjectRef};

/// Label selectors of lists and watches.
pub(super) const SELECTORS: [&str; 2] = ["a=1", "b=1"];
/// Placeholder for the UID of the Namespace named after it.
pub(super) const UID_OF: &str = "uid-of:";
/// Transition time of conditions.
const TRANSITION_TIME: &str = "2026-01-01T00:00:00Z";

/// Kinds of traces; controllers write all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    ServiceExport,
    ServiceImport,
    ResourceExport,
    Service,
    EndpointSlice,
    Lease,
}

/// All kinds.
pub(super) const KINDS: [Kind; 6] = [
    Kind::ServiceExport,
    Kind::ServiceImport,
    Kind::ResourceExport,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Lease,
];

// === impl Kind ===

impl Kind {
    /// Group and version, as in `apiVersion`.
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::ServiceExport | Self::ServiceImport => "multicluster.x-k8s.io/v1beta1",
            Self::ResourceExport => "multicluster.crd.antrea.io/v1alpha1",
            Self::Service => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::Lease => "coordination.k8s.io/v1",
        }
    }

    /// Root path of the group version.
    pub(super) fn root(self) -> String {
        let begin = if self == Self::Service { "/api" } else { "/apis" };
        format!("{begin}/{}", self.version())
    }

    /// Plural name, as in paths.
    pub(super) fn plural(self) -> String {
        format!("{self:?}s").to_lowercase()
    }

    /// True if the leader cluster has no other objects of the kind.
    pub(super) fn is_used_by_traces_only(self) -> bool {
        matches!(self, Self::ServiceExport | Self::ServiceImport)
    }

    /// True for kinds with a CRD of this project; controllers also write their status.
    pub(super) fn is_custom_resource(self) -> bool {
        matches!(
            self,
            Self::ServiceExport | Self::ServiceImport | Self::ResourceExport
        )
    }
}

/// A complete object for create or replace.
pub(super) fn complete_object(rng: &mut Rng, object: &ObjectRef, invalid: bool) -> Value {
    let mut body = skeleton(rng, object, false);
    for (field, value) in content(rng, object.kind) {
        body[field] = value;
    }
    if object.kind.is_custom_resource() && rng.permille(200) {
        body["status"] = status(rng, object.kind);
    }
    if invalid {
        invalidate(rng, object.kind, &mut body);
    } else if object.kind.is_custom_resource() {
        add_unknown_field(rng, &mut body);
    }
    body
}

/// Sometimes adds a field that the schema does not declare.
fn add_unknown_field(rng: &mut Rng, body: &mut Value) {
    if rng.permille(50) {
        body["spec"]["mystery"] = json!({ "x": "1" });
    }
}

/// A partial object for server-side apply.
pub(super) fn partial_object(rng: &mut Rng, object: &ObjectRef) -> Value {
    let mut body = skeleton(rng, object, false);
    if object.kind.is_custom_resource()
        && let Some(metadata) = body["metadata"].as_object_mut()
    {
        // A real server keeps empty maps until the next write, visible only by its resource version.
        metadata.retain(|_, value| *value != json!({}) && *value != json!([]));
    }
    for (field, value) in content(rng, object.kind) {
        body[field] = value;
    }
    // Sometimes omits required fields, which then must exist already.
    if rng.permille(300) {
        for field in ["spec", "endpoints", "ports"] {
            body.as_object_mut().map(|b| b.remove(field));
        }
    }
    if rng.permille(100) && object.kind.is_custom_resource() {
        body["status"] = status(rng, object.kind);
    }
    if object.kind.is_custom_resource() {
        add_unknown_field(rng, &mut body);
    }
    body
}

/// A JSON merge patch.
pub(super) fn patch(rng: &mut Rng, object: &ObjectRef, of_status: bool) -> Value {
    if of_status {
        let mut patch = json!({ "status": status(rng, object.kind) });
        if rng.permille(200) {
            patch["spec"] = json!({ "exportedLabels": { "x": "9" } });
        }
        return patch;
    }
    let mut patch = json!({});
    if rng.permille(200) {
        patch["metadata"]["finalizers"] = finalizers(rng);
        return patch;
    }
    if rng.permille(700) {
        patch["metadata"] = metadata(rng, true);
    }
    if rng.permille(600) {
        for (field, value) in content(rng, object.kind) {
            patch[field] = value;
        }
    }
    if object.kind.is_custom_resource() && rng.permille(100) {
        patch["status"] = status(rng, object.kind);
    }
    patch
}

/// The object that ends a watch; it matches all selectors.
pub(super) fn final_object(object: &ObjectRef) -> Value {
    let mut rng = Rng::new(0);
    let mut body = skeleton(&mut rng, object, false);
    body["metadata"] = json!({ "name": object.name, "labels": { "a": "1", "b": "1" } });
    for (field, value) in content(&mut rng, object.kind) {
        body[field] = value;
    }
    body
}

fn skeleton(rng: &mut Rng, object: &ObjectRef, clears_fields: bool) -> Value {
    let mut body = json!({
        "apiVersion": object.kind.version(),
        "kind": format!("{:?}", object.kind),
        "metadata": metadata(rng, clears_fields),
    });
    body["metadata"]["name"] = json!(object.name);
    body
}

/// Random metadata; `clears_fields` also sets fields to null.
fn metadata(rng: &mut Rng, clears_fields: bool) -> Value {
    let mut metadata = Map::new();
    let mut map = |rng: &mut Rng, field: &str, keys: &[&str]| {
        if rng.permille(500) {
            return;
        }
        let mut values = Map::new();
        for key in keys {
            match rng.below(4) {
                0 => {}
                1 if clears_fields => drop(values.insert((*key).to_owned(), Value::Null)),
                n => drop(values.insert((*key).to_owned(), json!((1 + n % 2).to_string()))),
            }
        }
        metadata.insert(field.to_owned(), Value::Object(values));
    };
    map(rng, "labels", &["a", "b"]);
    map(rng, "annotations", &["mc.test/note"]);
    if rng.permille(300) {
        metadata.insert("finalizers".to_owned(), finalizers(rng));
    }
    if rng.permille(200) {
        let owners = NAMESPACES.iter().filter(|_| rng.permille(600));
        let owners = owners.map(|namespace| {
            json!({ "apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": format!("{UID_OF}{namespace}") })
        });
        metadata.insert("ownerReferences".to_owned(), owners.collect());
    }
    Value::Object(metadata)
}

fn finalizers(rng: &mut Rng) -> Value {
    let all = ["mc.test/hold", "mc.test/keep", "mc.test/stay"];
    let some = all.into_iter().filter(|_| rng.permille(400));
    let mut some: Vec<_> = some.collect();
    if rng.permille(300) {
        some.reverse();
    }
    json!(some)
}

fn ports(rng: &mut Rng, most: usize) -> Value {
    let all = [
        json!({ "name": "http", "port": 80, "protocol": "TCP" }),
        json!({ "name": "dns", "port": 53, "protocol": "UDP" }),
        json!({ "name": "https", "port": 443, "protocol": "TCP" }),
        json!({ "name": "web", "port": 80, "protocol": "TCP" }),
    ];
    let (first, step) = (rng.index(all.len()), *rng.pick(&[1, 3]));
    (0..=rng.index(most))
        .map(|n| all[(first + step * n) % all.len()].clone())
        .collect()
}

/// Everything but metadata and status.
fn content(rng: &mut Rng, kind: Kind) -> Vec<(&'static str, Value)> {
    let pair = |rng: &mut Rng| (1 + rng.below(2)).to_string();
    let spec = match kind {
        Kind::ServiceExport => {
            let mut spec = json!({});
            for field in ["exportedLabels", "exportedAnnotations"] {
                if rng.permille(600) {
                    spec[field] = json!({ "x": pair(rng) });
                }
                if rng.permille(300) {
                    spec[field]["y"] = json!(pair(rng));
                } else if rng.permille(100) {
                    spec[field] = json!({});
                }
            }
            spec
        }
        Kind::ServiceImport => {
            let ips = ["10.0.0.1", "10.0.0.2"].into_iter().filter(|_| rng.permille(500));
            let ips: Value = ips.collect();
            let type_ = *rng.pick(&["ClusterSetIP", "ClusterSetIP", "Headless"]);
            json!({ "type": type_, "ips": ips, "ports": ports(rng, 3) })
        }
        Kind::ResourceExport => {
            let name = *rng.pick(&["web", "api"]);
            let mut spec =
                json!({ "clusterID": "east", "kind": "Service", "namespace": "shop", "name": name });
            if rng.permille(600) {
                let ports = ports(rng, 3);
                spec["service"] = json!({ "serviceSpec": { "ports": ports } });
            }
            spec
        }
        Kind::Service => {
            // No selector: the cluster's own controllers would write slices.
            let mut spec = json!({ "ports": ports(rng, 3) });
            if rng.permille(200) {
                spec["publishNotReadyAddresses"] = json!(true);
            }
            if rng.permille(200) {
                spec["internalTrafficPolicy"] = json!(*rng.pick(&["Cluster", "Local"]));
            }
            spec
        }
        Kind::EndpointSlice => {
            let addresses = ["10.1.0.1", "10.1.0.2"].into_iter().filter(|_| rng.permille(600));
            let endpoints: Value = addresses
                .map(|a| json!({ "addresses": [a], "conditions": { "ready": true } }))
                .collect();
            return vec![
                ("addressType", json!("IPv4")),
                ("endpoints", endpoints),
                ("ports", ports(rng, 3)),
            ];
        }
        Kind::Lease => json!({ "holderIdentity": pair(rng), "leaseDurationSeconds": 15 }),
    };
    vec![("spec", spec)]
}

fn status(rng: &mut Rng, kind: Kind) -> Value {
    let types = ["Ready", "Valid"].into_iter().filter(|_| rng.permille(600));
    let conditions: Vec<_> = types.collect();
    let conditions: Value = conditions
        .into_iter()
        .map(|type_| {
            let status = *rng.pick(&["True", "False"]);
            json!({ "type": type_, "status": status, "reason": "Why", "message": "", "lastTransitionTime": TRANSITION_TIME })
        })
        .collect();
    let mut status = json!({ "conditions": conditions });
    if kind == Kind::ServiceImport && rng.permille(500) {
        status["clusters"] = json!([{ "cluster": "east" }]);
    }
    status
}

/// Makes an object invalid.
fn invalidate(rng: &mut Rng, kind: Kind, body: &mut Value) {
    if rng.permille(400) {
        body["metadata"]["labels"] = json!({ "a": "1".repeat(64) });
        return;
    }
    match kind {
        Kind::Service => {
            body["spec"]["ports"] = match rng.below(4) {
                0 => json!([]),
                1 => json!([{ "name": "a", "port": 80 }, { "name": "a", "port": 81 }]),
                2 => json!([{ "name": "a", "port": 80 }, { "name": "b", "port": 80 }]),
                _ => {
                    body["spec"]["clusterIP"] = json!("0.0.0.0");
                    json!([{ "port": 443 }])
                }
            }
        }
        Kind::ServiceImport => body["spec"]["ips"] = json!(["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        Kind::EndpointSlice => {
            let one = json!({ "addresses": ["10.1.0.1"] });
            body["endpoints"] = json!(vec![one; 1001]);
        }
        Kind::ServiceExport | Kind::ResourceExport => body["spec"] = json!("nothing"),
        Kind::Lease => body["metadata"]["labels"] = json!({ "a": "2".repeat(64) }),
    }
}
