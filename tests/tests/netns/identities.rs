//! Label identities in packets: from the labels of a Pod to the VNI on the wire.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    time::Duration,
};

use mc_gateway_common::abi::IDENTITY_UNKNOWN;
use mc_tests::{
    capture::{Capture, Direction},
    decode::{Frame, Ip},
    topology::{Cluster, Place, Topology},
    wait::wait_for,
};

use crate::fixture::connected;

/// Number of the client's label, of that of the server, and of the client's after a change.
pub(crate) const CLIENT: u32 = 0x0001_2345;
pub(crate) const SERVER: u32 = 7;
pub(crate) const OTHER: u32 = 0x0001_cdef;
/// A new state reaches the packets within this time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The manifest of the identity of Pods with a label that clusters export.
fn identity(app: &str, id: u32, clusters: &str) -> String {
    let label = format!("ns:kubernetes.io/metadata.name=shop&pod:app={app}");
    let digest = mc_api::label_identity::digest(&label);
    format!(
        "---\napiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: LabelIdentity\nmetadata: {{name: {}}}\n\
         spec: {{label: \"{label}\", id: {id}, clusters: {clusters}}}\n",
        mc_api::label_identity::object_name(&digest)
    )
}

/// The clusters of the tests, as `clusters` of an identity.
pub(crate) const BOTH: &str = "[east, west]";

/// Writes the identities to the manifests of both clusters; `exporters` export that of `other`.
pub(crate) fn write_identities(bed: &Topology, exporters: &str) {
    let text = [
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n".to_owned(),
        identity("client", CLIENT, BOTH),
        identity("server", SERVER, BOTH),
        identity("other", OTHER, exporters),
    ]
    .concat();
    for cluster in Cluster::ALL {
        write(bed, cluster, "identities.yaml", &text);
    }
}

/// Writes the Pod of a cluster with a label; it runs in a phase.
pub(crate) fn write_pod(bed: &Topology, cluster: Cluster, app: &str, phase: &str) {
    let text = pod_manifest("p", cluster.node(), &[cluster.pod_ip().into()], app, phase);
    write(bed, cluster, "pod.yaml", &text);
}

/// The manifest of a Pod with a label on a node.
pub(crate) fn pod_manifest(name: &str, node: Place, ips: &[IpAddr], app: &str, phase: &str) -> String {
    let ips: Vec<_> = ips.iter().map(|ip| format!("{{ip: \"{ip}\"}}")).collect();
    let ips = ips.join(", ");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}\n\
         spec: {{nodeName: {}, containers: []}}\nstatus: {{phase: {phase}, podIPs: [{ips}]}}\n",
        node.name()
    )
}

/// Replaces a manifest in one step.
pub(crate) fn write(bed: &Topology, cluster: Cluster, name: &str, text: &str) {
    let directory = bed.manifests_dir(cluster);
    let new = directory.join(format!(".{name}.new"));
    fs::write(&new, text).expect("a manifest");
    fs::rename(&new, directory.join(name)).expect("a manifest");
}

/// Removes a manifest of a cluster.
pub(crate) fn remove(bed: &Topology, cluster: Cluster, name: &str) {
    fs::remove_file(bed.manifests_dir(cluster).join(name)).expect(name);
}

/// The inner packets of a request to the server from `client`, with their VNIs, at a place of the underlay.
fn request_at(bed: &Topology, place: Place, client: Place) -> Vec<(Ip, u32)> {
    let file = bed.directory().join("identities.pcap");
    let device = place.underlay_devices()[0];
    let netns = bed.netns(place);
    let capture =
        Capture::start(bed.traffic(), netns, device, Direction::Both, None, &file).expect("a capture");
    let url = format!("http://{}:8080/", Cluster::West.pod_ip());
    bed.traffic().get(bed.netns(client), &url).expect("an answer");
    let frames = capture.finish().expect("frames");
    let frames = frames.iter().filter_map(|bytes| Frame::decode(bytes));
    frames
        .filter_map(|frame| frame.inner_with_vni().map(|(inner, vni)| (inner.clone(), vni)))
        .collect()
}

/// The VNIs of the packets of a request between the Pods, by sender, at a place of the underlay.
fn identities_at(bed: &Topology, place: Place) -> BTreeMap<IpAddr, BTreeSet<u32>> {
    let mut seen: BTreeMap<IpAddr, BTreeSet<u32>> = BTreeMap::new();
    for (inner, vni) in request_at(bed, place, Place::PodEast) {
        seen.entry(inner.from).or_default().insert(vni);
    }
    seen
}

/// Waits until all packets of client and server have these VNIs.
fn wait_identities(bed: &Topology, place: Place, client: u32, server: u32) {
    let expected = [(Cluster::East, client), (Cluster::West, server)]
        .map(|(cluster, vni)| (IpAddr::from(cluster.pod_ip()), BTreeSet::from([vni])));
    let expected = BTreeMap::from(expected);
    let name = format!("VNIs {client:#x} and {server:#x} at {}", place.name());
    wait_for(&name, TIMEOUT, || {
        let seen = identities_at(bed, place);
        if seen == expected {
            Ok(())
        } else {
            Err(format!("{seen:x?}"))
        }
    })
    .expect("the identities");
}

#[test]
fn packets_carry_the_identity_of_their_pod_through_both_gateways() {
    let bed = connected("identity");
    let west = bed.netns(Place::PodWest);
    let _server = bed
        .traffic()
        .echo_server(west, "pod-west", 8080)
        .expect("a server");
    wait_identities(&bed, Place::GatewayEast, 0, 0);

    write_identities(&bed, BOTH);
    wait_identities(&bed, Place::GatewayEast, IDENTITY_UNKNOWN, IDENTITY_UNKNOWN);
    write_pod(&bed, Cluster::East, "client", "Running");
    write_pod(&bed, Cluster::West, "server", "Running");
    // The identity is the same on every leg.
    for place in [
        Place::NodeEast,
        Place::GatewayEast,
        Place::GatewayWest,
        Place::NodeWest,
    ] {
        wait_identities(&bed, place, CLIENT, SERVER);
    }
    write_pod(&bed, Cluster::East, "other", "Running");
    wait_identities(&bed, Place::GatewayEast, OTHER, SERVER);
    write_pod(&bed, Cluster::East, "without-a-number", "Running");
    wait_identities(&bed, Place::GatewayEast, IDENTITY_UNKNOWN, SERVER);
    write_pod(&bed, Cluster::East, "client", "Running");
    wait_identities(&bed, Place::GatewayEast, CLIENT, SERVER);
    // The identity ends with the Pod: another one may get the address.
    write_pod(&bed, Cluster::East, "client", "Succeeded");
    wait_identities(&bed, Place::GatewayEast, IDENTITY_UNKNOWN, SERVER);
    // Without stretched policies the cluster has no identities.
    for cluster in Cluster::ALL {
        remove(&bed, cluster, "identities.yaml");
    }
    wait_identities(&bed, Place::GatewayEast, 0, 0);
}

#[test]
fn the_node_itself_is_a_host() {
    let bed = connected("identity-host");
    let west = bed.netns(Place::PodWest);
    let _server = bed
        .traffic()
        .echo_server(west, "pod-west", 8080)
        .expect("a server");
    write_identities(&bed, BOTH);
    wait_identities(&bed, Place::GatewayEast, IDENTITY_UNKNOWN, IDENTITY_UNKNOWN);
    let packets = request_at(&bed, Place::GatewayEast, Place::NodeEast).into_iter();
    let server = IpAddr::from(Cluster::West.pod_ip());
    let of_host: BTreeSet<u32> = packets
        .filter(|(inner, _)| inner.to == server)
        .map(|(_, vni)| vni)
        .collect();
    assert_eq!(of_host, BTreeSet::from([0]));
}
