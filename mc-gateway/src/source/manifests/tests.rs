//! Objects of files, kept objects of invalid files, and error texts.

use std::collections::BTreeMap;
use std::fs;

use super::parse::{ObjectKey, parse};
use super::*;

const GATEWAY: &str = "apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: Gateway\nmetadata: {name: a}\n\
                       gatewayIP: 203.0.113.1\ninternalIP: 192.0.2.1\nserviceCIDR: 10.96.0.0/16\n";
const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDR: 10.1.0.0/24}\n";
const REMOTE: &str = "apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: ClusterInfoImport\n\
                      metadata: {name: west-clusterinfo}\nspec:\n  clusterID: west\n  serviceCIDR: 10.97.0.0/16\n  \
                      gatewayInfos: [{gatewayIP: 203.0.113.9}]\n  podCIDRs: [10.2.0.0/16]\n";

fn texts(files: &[(&str, &str)]) -> BTreeMap<PathBuf, Result<String, String>> {
    let entry = |(file, text): &(&str, &str)| (PathBuf::from(file), Ok((*text).to_owned()));
    files.iter().map(entry).collect()
}

fn errors(directory: &mut ManifestStore, files: &[(&str, &str)]) -> Vec<String> {
    let (errors, _) = directory.update(texts(files));
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn unchanged_objects_of_a_changed_file_are_those_in_memory() {
    let mut directory = ManifestStore::default();
    let pod = |name: &str, ip: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{nodeName: a}}\nstatus: {{podIP: {ip}}}\n"
        )
    };
    let [before, after] = ["10.1.0.2", "10.1.0.3"].map(|ip| {
        let text = [pod("x", "10.1.0.1"), pod("y", ip)].join("---\n");
        assert_eq!(errors(&mut directory, &[("a.yaml", &text)]), [""; 0]);
        directory.objects().0.pods
    });
    assert!(Arc::ptr_eq(&before[0], &after[0]), "the Pod x");
    assert_eq!((&*before[1].ips[0], &*after[1].ips[0]), ("10.1.0.2", "10.1.0.3"));
}

#[test]
fn documents_json_and_lists_are_parsed() {
    let list = format!(
        "{{\"kind\": \"List\", \"items\": [{}]}}",
        "{\"kind\": \"Node\", \"apiVersion\": \"v1\", \"metadata\": {\"name\": \"b\"}}"
    );
    let mut directory = ManifestStore::default();
    let all = format!("---\n{NODE}---\n{GATEWAY}---\n---\n{REMOTE}");
    assert_eq!(
        errors(&mut directory, &[("a.yaml", &all), ("b.json", &list)]),
        Vec::<String>::new()
    );
    let (objects, errors) = directory.objects();
    assert_eq!(errors, []);
    assert_eq!(objects.nodes.len(), 2);
    assert_eq!(objects.gateways[0].gateway_ip, "203.0.113.1");
    assert_eq!(objects.remotes[0].cluster_id, "west");
    assert_eq!(objects.remotes[0].gateways[0].ip, "203.0.113.9");
}

#[test]
fn other_kinds_are_ignored_and_listed() {
    let parsed = parse("kind: ClusterSet\napiVersion: multicluster.crd.antrea.io/v1alpha2\n");
    assert_eq!(parsed.errors, []);
    assert_eq!(
        parsed.ignored,
        ["ClusterSet (multicluster.crd.antrea.io/v1alpha2)".to_owned()].into()
    );
}

#[test]
fn malformed_yaml_is_reported_with_its_position_and_keeps_the_last_state() {
    let mut directory = ManifestStore::default();
    let good = format!("{NODE}---\n{REMOTE}");
    assert_eq!(errors(&mut directory, &[("a.yaml", &good)]), Vec::<String>::new());
    let before = directory.objects();
    let bad = format!("{NODE}---\nkind: ClusterInfoImport\n  spec: [\n");
    let errors = errors(&mut directory, &[("a.yaml", &bad)]);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("a.yaml: document 2: malformed YAML: "),
        "{errors:?}"
    );
    assert!(errors[0].contains("line"), "{errors:?}");
    assert_eq!(directory.objects(), before);
}

#[test]
fn an_invalid_value_is_reported_and_keeps_the_previous_object() {
    let mut directory = ManifestStore::default();
    errors(&mut directory, &[("a.yaml", &format!("{NODE}---\n{REMOTE}"))]);
    let bad = REMOTE.replace("podCIDRs: [10.2.0.0/16]", "podCIDRs: {a: 7}");
    let changed = NODE.replace("10.1.0.0/24", "10.1.7.0/24");
    let errors = errors(&mut directory, &[("a.yaml", &format!("{changed}---\n{bad}"))]);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with(
            "a.yaml: document 2: ClusterInfoImport west-clusterinfo: spec.podCIDRs: invalid type: map"
        ),
        "{errors:?}"
    );
    let (objects, _) = directory.objects();
    assert_eq!(objects.remotes[0].pod_cidrs, ["10.2.0.0/16"]);
    assert_eq!(
        objects.nodes[0].pod_cidrs,
        ["10.1.7.0/24"],
        "the good document counts"
    );
}

#[test]
fn objects_removed_from_a_valid_file_are_removed() {
    let mut directory = ManifestStore::default();
    errors(
        &mut directory,
        &[("a.yaml", &format!("{NODE}---\n{REMOTE}")), ("b.yaml", GATEWAY)],
    );
    errors(&mut directory, &[("a.yaml", NODE)]);
    let (objects, _) = directory.objects();
    assert_eq!(
        (objects.nodes.len(), objects.remotes.len(), objects.gateways.len()),
        (1, 0, 0)
    );
}

#[test]
fn documents_without_kind_or_name_are_reported() {
    let mut directory = ManifestStore::default();
    let errors = errors(
        &mut directory,
        &[("a.yaml", "foo: bar\n---\nkind: Node\napiVersion: v1\n")],
    );
    assert_eq!(
        errors,
        [
            "a.yaml: document 1: kind: \"\" is missing: not a Kubernetes object",
            "a.yaml: document 2: Node: metadata.name: \"\" is missing"
        ]
    );
}

#[test]
fn of_two_objects_with_one_name_the_first_file_wins() {
    let mut directory = ManifestStore::default();
    let other = NODE.replace("10.1.0.0/24", "10.9.0.0/24");
    errors(&mut directory, &[("a.yaml", NODE), ("b.yaml", &other)]);
    let (objects, errors) = directory.objects();
    assert_eq!(objects.nodes.len(), 1);
    assert_eq!(objects.nodes[0].pod_cidrs, ["10.1.0.0/24"]);
    assert_eq!(errors[0].to_string(), "b.yaml: Node a: is already in a.yaml");
}

#[test]
fn only_visible_yaml_and_json_files_are_read() {
    for good in ["a.yaml", "a.yml", "a.json", "A.YAML"] {
        assert!(is_manifest(Path::new(good)), "{good}");
    }
    for other in ["a.txt", ".a.yaml", "a.yaml~", "yaml", "..data"] {
        assert!(!is_manifest(Path::new(other)), "{other}");
    }
}

#[tokio::test]
async fn a_changed_file_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), NODE).unwrap();
    let mut receiver = start(dir.path(), Some(Mode::All)).unwrap();
    assert_eq!(receiver.borrow_and_update().as_ref().unwrap().nodes.len(), 1);
    fs::write(dir.path().join("b.yaml"), REMOTE).unwrap();
    let changed = timeout(Duration::from_secs(10), receiver.changed()).await;
    assert!(changed.is_ok(), "no change seen");
    let objects = receiver.borrow_and_update().clone().unwrap();
    assert_eq!((objects.remotes.len(), objects.policy_mode), (1, Some(Mode::All)));
    fs::remove_file(dir.path().join("b.yaml")).unwrap();
    timeout(Duration::from_secs(10), receiver.changed())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(receiver.borrow().as_ref().unwrap().remotes.len(), 0);
}

#[test]
fn a_missing_directory_is_reported() {
    let error = start(Path::new("/does/not/exist"), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--manifests /does/not/exist: cannot be watched"
    );
}

#[test]
fn pods_are_keyed_by_namespace_and_name() {
    let pod = |namespace: &str, ip: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: {namespace}}}\nspec: {{nodeName: a}}\nstatus: {{podIP: {ip}}}\n"
        )
    };
    let parsed = parse(&format!(
        "{}---\n{}",
        pod("one", "10.9.0.1"),
        pod("two", "10.9.0.2")
    ));
    assert_eq!(parsed.errors, []);
    let keys: Vec<ObjectKey> = parsed.objects.iter().map(Object::key).collect();
    assert_eq!(keys, [("Pod", "one/p".to_owned()), ("Pod", "two/p".to_owned())]);
    let broken = parse(&pod("one", "[1]"));
    assert!(
        broken.invalid.contains(&("Pod", "one/p".to_owned())),
        "{broken:?}"
    );
}
