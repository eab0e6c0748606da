//! Gateway selection, and changes of it.

use std::panic::{UnwindSafe, catch_unwind, resume_unwind};

use mc_gateway_common::verdict::Outcome;

use crate::{
    clusters::{Cluster, EAST, LONG_TIMEOUT, SHORT_TIMEOUT, WEST, counters},
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

fn mark_gateway(cluster: Cluster, number: u32) {
    annotate(cluster, number, "multicluster.antrea.io/gateway=true");
}

fn unmark_gateway(cluster: Cluster, number: u32) {
    annotate(cluster, number, "multicluster.antrea.io/gateway-");
}

fn other(cluster: Cluster) -> Cluster {
    if cluster == EAST { WEST } else { EAST }
}

/// Waits until a cluster's Gateways have these weights, and the other cluster's import lists them in this order.
fn wait_gateways(cluster: Cluster, expected: &[Weight]) {
    let mut wanted: Vec<_> = expected
        .iter()
        .map(|(number, weight)| (node(cluster, *number), *weight))
        .collect();
    wanted.sort();
    cluster.wait_for(&format!("Gateways {wanted:?}"), LONG_TIMEOUT, || {
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
    other(cluster).wait_for(&format!("{import} with {wanted:?}"), SHORT_TIMEOUT, || {
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

/// Runs a test and cleans up even if it panics.
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
        mark_gateway(cluster, 1);
        unmark_gateway(cluster, 2);
    }
    for cluster in [EAST, WEST] {
        wait_gateways(cluster, &[(1, 1)]);
    }
}

#[test]
fn moving_the_gateway_annotation_keeps_traffic_flowing() {
    let ns = Namespace::create("e2e-move");
    ns.serve(WEST, "west-n2", 1);
    let client = ns.client(EAST, "east-n2");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    client.get(&client.imported_url());
    let test = || {
        for cluster in [EAST, WEST] {
            mark_gateway(cluster, 2);
            unmark_gateway(cluster, 1);
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

/// Share of the packets to the client that the gateway on another Node forwards.
fn transit_share(client: &Client, at: &str, via: &str) -> f64 {
    let read = || {
        (
            counters(at).packets(Outcome::Deliver),
            counters(via).packets(Outcome::Transit),
        )
    };
    let before = read();
    client.get_many(&client.imported_url(), 200);
    let after = read();
    let (delivered, passed_on) = (after.0 - before.0, after.1 - before.1);
    println!("{at}: {delivered} packets, {passed_on} of them via {via}");
    #[expect(clippy::cast_precision_loss, reason = "a few thousand packets")]
    let share = passed_on as f64 / delivered as f64;
    share
}

#[test]
fn two_gateways_share_flows_and_one_drains_without_a_lost_request() {
    let ns = Namespace::create("e2e-two");
    ns.serve(WEST, "west-n2", 1);
    let first = ns.client_named(EAST, "east-n1", "first");
    let second = ns.client_named(EAST, "east-n2", "second");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    let test = || {
        mark_gateway(EAST, 2);
        wait_gateways(EAST, &[(1, 1), (2, 1)]);
        for client in [&first, &second] {
            client.get(&client.imported_url());
        }
        // Replies to a Pod on one gateway Node use both gateways.
        for (client, at, via) in [(&first, "east-n1", "east-n2"), (&second, "east-n2", "east-n1")] {
            EAST.wait_for(&format!("flows via {via}"), SHORT_TIMEOUT, || {
                let share = transit_share(client, at, via);
                if share > 0.0 {
                    Ok(())
                } else {
                    Err("none".to_owned())
                }
            });
            // One sample: the standard deviation of 200 even choices is 0.035.
            let share = transit_share(client, at, via);
            assert!((0.3..0.7).contains(&share), "{at}: share of {via} is {share:.2}");
        }
        let streams = [&first, &second].map(|client| client.stream(&client.imported_url()));
        unmark_gateway(EAST, 2);
        wait_gateways(EAST, &[(1, 1), (2, 0)]);
        EAST.wait_for("no flow through the draining gateway", SHORT_TIMEOUT, || {
            let before = counters("east-n2").packets(Outcome::Transit);
            first.get_many(&first.imported_url(), 50);
            match counters("east-n2").packets(Outcome::Transit) - before {
                0 => Ok(()),
                packets => Err(format!("{packets} packets")),
            }
        });
        wait_gateways(EAST, &[(1, 1)]);
        // A former gateway Node sends through the remaining gateway.
        second.get_many(&second.imported_url(), 20);
        for stream in streams {
            stream.finish();
        }
    };
    finally(test, restore);
}

#[test]
fn a_cordoned_node_is_drained_until_it_is_uncordoned() {
    let test = || {
        mark_gateway(EAST, 2);
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
fn standby_mode_keeps_one_of_two_gateways_active() {
    let ns = Namespace::create("e2e-standby");
    ns.serve(WEST, "west-n2", 1);
    let client = ns.client(EAST, "east-n2");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    let test = || {
        mark_gateway(EAST, 2);
        wait_gateways(EAST, &[(1, 1), (2, 1)]);
        EAST.configure("gatewayMode", "ActiveStandby");
        wait_gateways(EAST, &[(1, 1), (2, 0)]);
        wait_gateways(EAST, &[(1, 1)]);
        client.get_many(&client.imported_url(), 20);
        unmark_gateway(EAST, 1);
        wait_gateways(EAST, &[(2, 1), (1, 0)]);
        client.get_many(&client.imported_url(), 20);
    };
    finally(test, || {
        EAST.configure("gatewayMode", "ActiveActive");
        restore();
    });
}
