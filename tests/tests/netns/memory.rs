//! Memory usage of an agent.

use std::{fmt::Write as _, fs, net::Ipv4Addr};

use mc_api::address_group_slice::MAX_ADDRESSES;
use mc_tests::{
    topology::{Cluster, Place, Topology, Variant},
    wait::wait_for,
};

use crate::{
    fixture::{TIMEOUT, connected, options},
    identities::write,
    observability::{inspect, metrics},
    policies::enforce,
};

/// Additional clusters.
const CLUSTERS: u32 = 100;

/// First address of their Pod CIDRs.
const FIRST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);

/// The promised limits in MiB.
const LIMIT_10_000: u64 = 30;
const LIMIT_100_000: u64 = 60;

/// A manifest of the additional clusters, with `prefixes` prefixes in total: one Service CIDR and Pod CIDRs.
fn manifest(prefixes: u32) -> String {
    let each = prefixes / CLUSTERS;
    let mut text = String::new();
    for cluster in 0..CLUSTERS {
        write!(
            text,
            "---\napiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: ClusterInfoImport\nmetadata:\n  name: c{cluster}\n  \
             namespace: kube-system\nspec:\n  clusterID: c{cluster}\n  serviceCIDR: 172.16.{cluster}.0/24\n  \
             gatewayInfos: [{{gatewayIP: 198.51.100.{cluster}}}]\n  podCIDRs:\n"
        )
        .expect("text");
        for index in 0..each - 1 {
            let first = u32::from(FIRST) + (cluster * each + index) * 32;
            writeln!(text, "  - {}/27", Ipv4Addr::from(first)).expect("text");
        }
    }
    text
}

/// Announces the clusters and compares the memory of a gateway's agent with a limit.
fn check(name: &str, prefixes: u32, limit: u64) {
    let mut bed = connected(name);
    let before = resident_kib(bed.agent_pid(Place::GatewayEast).expect("a process"));
    // Gateways without a route would be omitted.
    bed.netns(Place::GatewayEast)
        .run(
            "ip",
            [
                "route",
                "add",
                "198.51.100.0/24",
                "via",
                &Cluster::West.gateway_net().addr().to_string(),
            ],
        )
        .expect("a route");
    let path = bed.manifests_dir(Cluster::East).join("many.yaml");
    fs::write(path, manifest(prefixes)).expect("manifests");
    wait_for("all prefixes on the gateway", TIMEOUT * 9, || {
        let log = bed
            .agent_log(Place::GatewayEast)
            .unwrap_or_else(|error| error.to_string());
        let last = log
            .lines()
            .rfind(|line| line.contains("datapath updated"))
            .map(str::to_owned);
        let count = last.as_deref().and_then(|line| {
            let (_, rest) = line.split_once("prefixes=")?;
            rest.split_whitespace().next()?.parse::<u32>().ok()
        });
        if count.is_some_and(|count| count >= prefixes) {
            return Ok(());
        }
        Err(format!("{last:?}, wanted prefixes={prefixes}"))
    })
    .expect("all prefixes");
    let pid = bed.agent_pid(Place::GatewayEast).expect("a process");
    let after = resident_kib(pid);
    println!(
        "agent with {prefixes} prefixes: {after} KiB resident ({before} KiB before), peak {} KiB",
        status_kib(pid, "VmHWM:")
    );
    assert!(
        after <= limit * 1024,
        "{after} KiB are more than {limit} MiB with {prefixes} prefixes"
    );
}

#[test]
fn ten_thousand_prefixes_fit_30_mib() {
    check("size-10k", 10_000, LIMIT_10_000);
}

#[test]
fn a_hundred_thousand_prefixes_fit_60_mib() {
    check("size-100k", 100_000, LIMIT_100_000);
}

/// Objects of a cluster with policies.
const POLICIES: u32 = 1_000;
const IDENTITIES: u32 = 10_000;
const PODS: u32 = 10_000;
/// Pods of the Node, the default limit of a kubelet.
const NODE_PODS: u32 = 110;
const NAMESPACES: u32 = 100;
/// The limit of resident memory after a resync in MiB, 3 above the measured value.
const LIMIT_RESIDENT: u64 = 48;
/// The promised limit at any time in MiB, 4 above the measured peak.
const LIMIT_POLICIES: u64 = 60;

/// A Pod whose number determines its Namespace and labels; they repeat after [`PODS`] numbers.
fn pod_object(number: u32, node: &str, ip: Ipv4Addr) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, namespace: n{}, labels: {}}}\n\
         spec: {{nodeName: {node}, containers: []}}\nstatus: {{phase: Running, podIPs: [{{ip: {ip}}}]}}\n",
        number % NAMESPACES,
        pod_labels(number),
    )
}

fn pod_labels(number: u32) -> String {
    let (app, version) = (number / NAMESPACES % 10, number / NAMESPACES / 10 % 10);
    format!("{{app: a{app}, version: v{version}}}")
}

/// The address of a Pod of another Node.
fn other_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 12, 16, 0)) + number)
}

/// The objects with the Pods of other Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherPods {
    /// Pods.
    Objects,
    /// The controller's slices.
    AddressGroups,
}

/// The slices with the addresses of Pods of other Nodes; each Pod is a group, because no two have the same labels.
fn slices() -> Vec<String> {
    let pods: Vec<u32> = (NODE_PODS..PODS).collect();
    let slices = pods.chunks(MAX_ADDRESSES).zip(1..).map(|(pods, revision)| {
        let mut text = format!(
            "apiVersion: mc-gateway.io/v1alpha1\nkind: AddressGroupSlice\nmetadata: {{name: pods-{revision}}}\n\
             spec:\n  revision: {revision}\n  groups:\n"
        );
        for pod in pods {
            let (namespace, labels) = (pod % NAMESPACES, pod_labels(*pod));
            let address = other_address(*pod);
            writeln!(
                text,
                "  - {{namespace: n{namespace}, labels: {labels}, serviceAccount: default, addresses: [{address}]}}"
            )
            .expect("text");
        }
        text
    });
    let complete = "apiVersion: mc-gateway.io/v1alpha1\nkind: AddressGroupSlice\nmetadata: {name: complete}\n\
                    spec: {revision: 1, complete: true}\n";
    slices.chain([complete.to_owned()]).collect()
}

/// Namespaces, Pods (unless slices have them), identities of another cluster, and policies for both directions that
/// select ten Pods each.
fn objects_of_policies(others: OtherPods) -> Vec<String> {
    let mut objects = Vec::new();
    for namespace in 0..NAMESPACES {
        objects.push(format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: n{namespace}, labels: {{team: t{}}}}}\n",
            namespace % 7
        ));
    }
    for pod in 0..NODE_PODS {
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 12, 1, 10)) + pod);
        objects.push(pod_object(pod, "node-west", ip));
    }
    if others == OtherPods::Objects {
        objects.extend((NODE_PODS..PODS).map(|pod| pod_object(pod, "elsewhere", other_address(pod))));
    }
    for id in 1..=IDENTITIES {
        let label = format!(
            "ns:kubernetes.io/metadata.name=n{},team=t{}&pod:app=a{},version=v{}",
            id % NAMESPACES,
            id % NAMESPACES % 7,
            id / NAMESPACES % 10,
            id / NAMESPACES / 10
        );
        let digest = mc_api::label_identity::digest(&label);
        let name = mc_api::label_identity::object_name(&digest);
        objects.push(format!(
            "apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: LabelIdentity\nmetadata: {{name: {name}}}\n\
             spec: {{label: \"{label}\", id: {id}, clusters: [east]}}\n"
        ));
    }
    for policy in 0..POLICIES {
        let (namespace, app) = (policy % NAMESPACES, policy / NAMESPACES);
        objects.push(format!(
            "apiVersion: crd.antrea.io/v1beta1\nkind: NetworkPolicy\nmetadata: {{name: p{policy}, namespace: n{namespace}}}\n\
             spec:\n  priority: {}\n  appliedTo: [{{podSelector: {{matchLabels: {{app: a{app}}}}}}}]\n  ingress:\n  \
             - action: Allow\n    from: [{{scope: ClusterSet, podSelector: {{matchLabels: {{version: v{app}}}}}}}]\n    \
             ports: [{{port: {}, endPort: {}}}]\n  - action: Drop\n    from: [{{scope: ClusterSet, namespaceSelector: {{}}}}]\n  \
             egress:\n  - action: Drop\n    to: [{{namespaceSelector: {{matchLabels: {{team: t{}}}}}}}]\n",
            1 + app,
            8000 + app,
            8100 + policy,
            namespace % 7
        ));
    }
    objects
}

#[test]
fn a_thousand_policies_and_ten_thousand_identities_fit_60_mib() {
    check_policies("size-pol", OtherPods::Objects);
}

#[test]
fn ten_thousand_pods_in_address_groups_fit_60_mib() {
    check_policies("size-groups", OtherPods::AddressGroups);
}

fn check_policies(name: &str, others: OtherPods) {
    let mut options = options(name);
    enforce(&mut options);
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    let before = resident_kib(bed.agent_pid(Place::NodeWest).expect("a process"));
    let slices = match others {
        OtherPods::Objects => Vec::new(),
        OtherPods::AddressGroups => slices(),
    };
    let objects = objects_of_policies(others);
    // The parser of a file needs memory for all of its objects: 200, or slices with 200 Pods.
    for (number, objects) in objects.chunks(200).chain(slices.chunks(2)).enumerate() {
        let name = format!("policies-{number}.yaml");
        write(&bed, Cluster::West, &name, &objects.join("---\n"));
    }
    let pid = bed.agent_pid(Place::NodeWest).expect("a process");
    let selected = |pods: u32| {
        let rows = usize::try_from(pods * 2).expect("few");
        wait_for("rules of all Pods", TIMEOUT * 9, || {
            let found = inspect(&bed, Place::NodeWest, "policies")
                .as_array()
                .map_or(0, Vec::len);
            if found == rows {
                Ok(())
            } else {
                Err(format!("{found} of {rows}"))
            }
        })
        .expect("rules");
    };
    selected(NODE_PODS);
    let compiled = status_kib(pid, "VmHWM:");
    // Each change compiles all policies while the maps have the tables of the last two.
    for pod in 0..2 {
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 12, 1, 10)) + NODE_PODS + pod);
        let object = pod_object(PODS + pod, "node-west", ip);
        write(&bed, Cluster::West, &format!("new-{pod}.yaml"), &object);
        selected(NODE_PODS + pod + 1);
    }
    let changed = status_kib(pid, "VmHWM:");
    let addresses = metrics(&bed, Place::NodeWest).sum("mcgateway_map_entries", &["map=\"mc_addr_classes\""]);
    assert!(
        addresses >= f64::from(PODS),
        "{addresses} addresses of {PODS} Pods are in mc_addr_classes"
    );
    // A resync reads the maps, and returns the memory of the compilation.
    let after = wait_for("a resync", TIMEOUT * 4, || {
        let after = resident_kib(pid);
        if after <= LIMIT_RESIDENT * 1024 {
            Ok(after)
        } else {
            Err(format!("{after} KiB are more than {LIMIT_RESIDENT} MiB"))
        }
    })
    .expect("a small process");
    // The kernel reads the peak from counters of each CPU, without waiting for them.
    let peak = status_kib(pid, "VmHWM:").max(changed).max(compiled);
    println!(
        "agent with {POLICIES} policies, {IDENTITIES} identities and {PODS} Pods ({others:?}): {after} KiB resident after a resync \
         ({before} KiB without objects), peak {compiled} KiB, with two changes {peak} KiB"
    );
    assert!(
        peak <= LIMIT_POLICIES * 1024,
        "a peak of {peak} KiB is more than {LIMIT_POLICIES} MiB with {POLICIES} policies"
    );
    check_restart(&mut bed);
}

/// Restarts the agent, which reads the rules in the maps and compiles them, and compares its peak with the limit.
fn check_restart(bed: &mut Topology) {
    bed.stop_agent(Place::NodeWest).expect("a stop");
    bed.start_agent(Place::NodeWest).expect("a start");
    let pid = bed.agent_pid(Place::NodeWest).expect("a process");
    let peak = status_kib(pid, "VmHWM:");
    println!("the restarted agent: peak {peak} KiB");
    assert!(
        peak <= LIMIT_POLICIES * 1024,
        "a peak of {peak} KiB after a restart is more than {LIMIT_POLICIES} MiB"
    );
}

fn resident_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .expect(field);
    let kib = line.trim().strip_suffix(" kB").expect("KiB");
    kib.parse().expect("a number")
}
