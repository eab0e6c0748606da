//! Which Nodes are gateways, and what happens when that changes.

use std::panic::{UnwindSafe, catch_unwind, resume_unwind};

use mc_gateway_common::verdict::Path;

use crate::{
    clusters::{Cluster, EAST, LATER, SOON, WEST, counters},
    workload::{Client, Namespace},
};

/// Node number and weight.
type Weight = (u32, u64);

fn node(cluster: Cluster, number: u32) -> String {
    format!("{}-n{number}", cluster.0)
}

fn annotate(cluster: Cluster, number: u32, annotation: &str) {
    cluster.kubectl(&[
        "annotate",
        "node",
        &node(cluster, number),
        annotation,
        "--overwrite",
    ]);
}

fn be_gateway(cluster: Cluster, number: u32) {
    annotate(cluster, number, "multicluster.antrea.io/gateway=true");
}

fn be_no_gateway(cluster: Cluster, number: u32) {
    annotate(cluster, number, "multicluster.antrea.io/gateway-");
}

fn other(cluster: Cluster) -> Cluster {
    if cluster == EAST { WEST } else { EAST }
}

/// Waits until the Gateways of a cluster have these weights, and the other cluster was told so in this order.
fn wait_gateways(cluster: Cluster, expected: &[Weight]) {
    let mut wanted: Vec<_> = expected
        .iter()
        .map(|(number, weight)| (node(cluster, *number), *weight))
        .collect();
    wanted.sort();
    cluster.wait_for(&format!("Gateways {wanted:?}"), LATER, || {
        let mut seen: Vec<_> = cluster
            .list("kube-system", "gateway", "")
            .iter()
            .map(|gateway| {
                let name = gateway["metadata"]["name"].as_str().unwrap_or_default();
                (name.to_owned(), gateway["weight"].as_u64().unwrap_or(1))
            })
            .collect();
        seen.sort();
        if seen == wanted {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    });
    let wanted: Vec<_> = expected
        .iter()
        .map(|(number, weight)| (cluster.node_ip(&node(cluster, *number)), *weight))
        .collect();
    let import = format!("test-cluster-{}-clusterinfo", cluster.0);
    other(cluster).wait_for(&format!("{import} with {wanted:?}"), SOON, || {
        let object = other(cluster).get("kube-system", "clusterinfoimport", &import);
        let infos = object.map(|object| object["spec"]["gatewayInfos"].clone());
        let infos = infos.as_ref().and_then(|infos| infos.as_array());
        let seen: Vec<_> = infos
            .into_iter()
            .flatten()
            .map(|info| {
                let ip = info["gatewayIP"].as_str().unwrap_or_default();
                (ip.to_owned(), info["weight"].as_u64().unwrap_or(1))
            })
            .collect();
        if seen == wanted {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    });
}

/// Runs a test and cleans up, whatever happened.
fn finally(test: impl FnOnce() + UnwindSafe, clean_up: impl FnOnce()) {
    let result = catch_unwind(test);
    clean_up();
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// Makes the first Node of each member its only gateway again.
fn restore() {
    EAST.kubectl(&["uncordon", "east-n2"]);
    for cluster in [EAST, WEST] {
        be_gateway(cluster, 1);
        be_no_gateway(cluster, 2);
    }
    for cluster in [EAST, WEST] {
        wait_gateways(cluster, &[(1, 1)]);
    }
}

#[test]
fn moving_the_gateway_annotation_keeps_things_working() {
    let ns = Namespace::create("e2e-move");
    ns.serve(WEST, "west-n2", 1);
    let client = ns.client(EAST, "east-n2");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    client.get(&client.imported_url());
    let test = || {
        for cluster in [EAST, WEST] {
            be_gateway(cluster, 2);
            be_no_gateway(cluster, 1);
            wait_gateways(cluster, &[(2, 1), (1, 0)]);
            let answer = client.get(&client.imported_url());
            assert!(answer.starts_with("web-"), "{answer}");
        }
        for cluster in [EAST, WEST] {
            wait_gateways(cluster, &[(2, 1)]);
        }
        let answer = client.get(&client.imported_url());
        assert!(answer.starts_with("web-"), "{answer}");
    };
    finally(test, restore);
    client.get(&client.imported_url());
}

/// How many of the packets that reach the client came by way of the gateway on another Node.
fn share(client: &Client, at: &str, by_way_of: &str) -> f64 {
    let read = || {
        (
            counters(at).packets(Path::Deliver),
            counters(by_way_of).packets(Path::Transit),
        )
    };
    let before = read();
    client.get_many(&client.imported_url(), 200);
    let after = read();
    let (delivered, passed_on) = (after.0 - before.0, after.1 - before.1);
    println!("{at}: {delivered} packets, {passed_on} of them by way of {by_way_of}");
    #[expect(clippy::cast_precision_loss, reason = "a few thousand packets")]
    let share = passed_on as f64 / delivered as f64;
    share
}

#[test]
fn two_gateways_share_the_flows_and_one_goes_without_a_lost_request() {
    let ns = Namespace::create("e2e-two");
    ns.serve(WEST, "west-n2", 1);
    let first = ns.client_named(EAST, "east-n1", "first");
    let second = ns.client_named(EAST, "east-n2", "second");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    let test = || {
        be_gateway(EAST, 2);
        wait_gateways(EAST, &[(1, 1), (2, 1)]);
        for client in [&first, &second] {
            client.get(&client.imported_url());
        }
        // What comes back to one gateway's Pod chooses both: 200 flows are split evenly, give or take.
        for (client, at, by_way_of) in [(&first, "east-n1", "east-n2"), (&second, "east-n2", "east-n1")] {
            EAST.wait_for(&format!("flows by way of {by_way_of}"), SOON, || {
                let share = share(client, at, by_way_of);
                if (0.3..0.7).contains(&share) {
                    Ok(())
                } else {
                    Err(format!("{share:.2}"))
                }
            });
        }
        let streams = [&first, &second].map(|client| client.stream(&client.imported_url()));
        be_no_gateway(EAST, 2);
        wait_gateways(EAST, &[(1, 1), (2, 0)]);
        EAST.wait_for("no flow to choose what is being drained", SOON, || {
            let before = counters("east-n2").packets(Path::Transit);
            first.get_many(&first.imported_url(), 50);
            match counters("east-n2").packets(Path::Transit) - before {
                0 => Ok(()),
                packets => Err(format!("{packets} packets")),
            }
        });
        wait_gateways(EAST, &[(1, 1)]);
        // A Node that is no gateway any more sends by way of one.
        second.get_many(&second.imported_url(), 20);
        for stream in streams {
            stream.finish();
        }
    };
    finally(test, restore);
}

#[test]
fn a_cordoned_node_is_drained_and_comes_back() {
    let test = || {
        be_gateway(EAST, 2);
        wait_gateways(EAST, &[(1, 1), (2, 1)]);
        EAST.kubectl(&["cordon", "east-n2"]);
        wait_gateways(EAST, &[(1, 1), (2, 0)]);
        EAST.kubectl(&["uncordon", "east-n2"]);
        wait_gateways(EAST, &[(1, 1), (2, 1)]);
        annotate(EAST, 2, "mc-gateway.io/gateway-weight=3");
        wait_gateways(EAST, &[(1, 1), (2, 3)]);
        annotate(EAST, 2, "mc-gateway.io/gateway-weight-");
        wait_gateways(EAST, &[(1, 1), (2, 1)]);
    };
    finally(test, restore);
}

#[test]
fn one_of_two_is_gateway_in_standby_mode() {
    let ns = Namespace::create("e2e-standby");
    ns.serve(WEST, "west-n2", 1);
    let client = ns.client(EAST, "east-n2");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    let test = || {
        be_gateway(EAST, 2);
        wait_gateways(EAST, &[(1, 1), (2, 1)]);
        EAST.configure("gatewayMode", "ActiveStandby");
        wait_gateways(EAST, &[(1, 1), (2, 0)]);
        wait_gateways(EAST, &[(1, 1)]);
        client.get_many(&client.imported_url(), 20);
        be_no_gateway(EAST, 1);
        wait_gateways(EAST, &[(2, 1), (1, 0)]);
        client.get_many(&client.imported_url(), 20);
    };
    finally(test, || {
        EAST.configure("gatewayMode", "ActiveActive");
        restore();
    });
}
