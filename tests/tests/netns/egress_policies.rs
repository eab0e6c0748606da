//! Egress rules with Pods of the own cluster as peers, at the devices of the Pods that send.

use std::net::Ipv4Addr;

use mc_tests::{
    topology::{Cluster, Place},
    wait::wait_for,
};

use crate::{
    identities::{write, write_pod},
    pod_policies::{Bed, FAR, LOCAL, SERVICE, server, start},
    policies::{PORT, TIMEOUT, get_url, wait_dropped_at, write_egress_policy},
};

/// An address of the Service outside of the cluster.
const EXTERNAL: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 80);

/// The port of the Service at the addresses of Nodes.
const NODE_PORT: u16 = 30_080;

/// A Service at the server's port, whose Pods have these addresses.
fn write_service(bed: &Bed, pods: &[Ipv4Addr]) {
    let endpoints: Vec<String> = pods
        .iter()
        .map(|ip| format!("{{addresses: [\"{ip}\"], conditions: {{ready: true}}}}"))
        .collect();
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{clusterIPs: [{SERVICE}], externalIPs: [{EXTERNAL}], ports: [{{port: {PORT}, protocol: TCP, \
         nodePort: {NODE_PORT}}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         ports: [{{port: {PORT}, protocol: TCP, name: \"\"}}]\nendpoints: [{}]\n",
        endpoints.join(", ")
    );
    write(&bed.hosts, Cluster::West, "service.yaml", &text);
}

/// Rules for the Pod on the server's node.
fn write_egress(bed: &Bed, rules: &str) {
    write_egress_policy(&bed.hosts, Cluster::West, "other", rules);
}

const TO_SERVERS: &str = "to: [{podSelector: {matchLabels: {app: server}}}]";

#[test]
fn egress_rules_select_pods_by_labels_also_behind_a_service() {
    let bed = start("pod-eglabel", false);
    let server = server();
    let node = Cluster::West.node_net().addr();
    let get_node_port = || get_url(&bed.hosts, &bed.local, &format!("http://{node}:{NODE_PORT}/"));
    let wait_node_port = |what| wait_for(what, TIMEOUT, get_node_port).expect("an answer");
    write_service(&bed, &[server]);
    // The service proxy of the nodes.
    bed.hosts
        .netns(Place::NodeWest)
        .nft(&format!(
            "table ip proxy {{ chain prerouting {{ type nat hook prerouting priority dstnat; ip daddr {{ {SERVICE}, {EXTERNAL} }} dnat to \
             {server}; ip daddr {node} tcp dport {NODE_PORT} dnat to {server}:{PORT}; }}\n}}\n"
        ))
        .expect("a rule");
    let far = bed.serve(&bed.far, "far");
    bed.wait_passing(&bed.local, SERVICE, "the Service without a policy");
    bed.wait_passing(&bed.local, EXTERNAL, "its external address without a policy");
    wait_node_port("the node port passes without a policy");

    write_egress(&bed, &format!("  - action: Drop\n    {TO_SERVERS}\n"));
    bed.wait_dropped(&bed.local, server, "policy", "a Pod of the rule");
    bed.wait_dropped(&bed.local, SERVICE, "policy", "a Service of such a Pod");
    bed.wait_dropped(&bed.local, EXTERNAL, "policy", "its external address");
    wait_dropped_at(
        &bed.hosts,
        Place::NodeWest,
        "policy",
        "its node port",
        get_node_port,
    );
    bed.wait_passing(&bed.local, FAR, "another Pod");
    write_pod(&bed.hosts, Cluster::West, "unselected", "Running");
    bed.wait_passing(&bed.local, SERVICE, "the Service of a Pod without the label");
    bed.wait_passing(&bed.local, server, "a Pod without the label");
    write_pod(&bed.hosts, Cluster::West, "server", "Running");
    bed.wait_dropped(&bed.local, SERVICE, "policy", "the label again");

    write_egress(
        &bed,
        &format!(
            "  - action: Allow\n    {TO_SERVERS}\n    ports: [{{protocol: TCP, port: {PORT}}}]\n  - action: Reject\n"
        ),
    );
    bed.wait_passing(&bed.local, server, "a Pod that the rule allows");
    bed.wait_passing(&bed.local, SERVICE, "a Service whose only Pod the rule allows");
    bed.wait_passing(&bed.local, EXTERNAL, "its external address");
    wait_node_port("the node port of a Service whose only Pod the rule allows");
    bed.wait_refused(&bed.local, FAR, "another Pod");
    write_service(&bed, &[server, FAR]);
    bed.wait_refused(&bed.local, SERVICE, "a Service with another Pod");
    bed.wait_passing(&bed.local, server, "the Pod itself");
    bed.write_pod("far", Place::GatewayWest, FAR, "server");
    bed.wait_passing(&bed.local, SERVICE, "a Service whose Pods the rule allows");
    bed.wait_passing(&bed.local, FAR, "the other Pod");
    // Replies of a Pod with such rules pass.
    let ping = bed.hosts.traffic().ping(&bed.far, LOCAL, 3);
    assert_eq!(ping.expect("ping").received, 3, "replies of the Pod");
    drop(far);

    let block =
        format!("  - action: Allow\n    to: [{{ipBlock: {{cidr: {SERVICE}/32}}}}]\n  - action: Drop\n");
    write_egress(&bed, &block);
    bed.wait_dropped(&bed.local, server, "policy", "a Pod of the Service");
    bed.wait_dropped(&bed.local, SERVICE, "policy", "a Service by its address");
    let nodes = format!("  - action: Allow\n    to: [{{ipBlock: {{cidr: {node}/32}}}}]\n  - action: Drop\n");
    write_egress(&bed, &nodes);
    let ping = || {
        bed.hosts
            .traffic()
            .ping(&bed.local, node, 1)
            .map_err(|error| format!("{error:#}"))
    };
    let answered = || {
        ping().and_then(|report| {
            (report.received == 1)
                .then_some(())
                .ok_or_else(|| "no answer".into())
        })
    };
    wait_for("the Node itself is allowed", TIMEOUT, answered).expect("an answer");
    wait_dropped_at(
        &bed.hosts,
        Place::NodeWest,
        "policy",
        "a node port at its address",
        get_node_port,
    );
    let name = "  - action: Allow\n    toServices: [{name: web, namespace: shop}]\n  - action: Drop\n";
    write_egress(&bed, name);
    bed.wait_passing(&bed.local, SERVICE, "a Service by its name");
    wait_node_port("the node port of a Service by its name");
    bed.wait_dropped(&bed.local, server, "policy", "a Pod of the named Service");
}
