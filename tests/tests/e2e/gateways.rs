//! Which Node is the gateway, and what happens when that changes.

use crate::{
    clusters::{Cluster, EAST, SOON, WEST},
    workload::Namespace,
};

fn wait_gateway(cluster: Cluster, node: &str) {
    cluster.wait_for(&format!("Gateway {node}, and no other"), SOON, || {
        let seen = cluster.kubectl(&[
            "get",
            "gateway",
            "-n",
            "kube-system",
            "-o",
            "jsonpath={.items[*].metadata.name}",
        ]);
        if seen == node { Ok(()) } else { Err(seen) }
    });
}

fn move_gateway(cluster: Cluster, from: &str, to: &str) {
    cluster.kubectl(&[
        "annotate",
        "node",
        to,
        "multicluster.antrea.io/gateway=true",
        "--overwrite",
    ]);
    cluster.kubectl(&["annotate", "node", from, "multicluster.antrea.io/gateway-"]);
    wait_gateway(cluster, to);
}

#[test]
fn moving_the_gateway_annotation_keeps_things_working() {
    let ns = Namespace::create("e2e-move");
    ns.serve(WEST, "west-n2", 1);
    let client = ns.client(EAST, "east-n2");
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    client.get(&client.imported_url());
    let result = std::panic::catch_unwind(|| {
        for (cluster, other, import) in [
            (EAST, WEST, "test-cluster-east-clusterinfo"),
            (WEST, EAST, "test-cluster-west-clusterinfo"),
        ] {
            let (first, second) = (format!("{}-n1", cluster.0), format!("{}-n2", cluster.0));
            move_gateway(cluster, &first, &second);
            let address = cluster.node_ip(&second);
            other.wait_for(&format!("{import} with {address}"), SOON, || {
                let path = "jsonpath={.spec.gatewayInfos[*].gatewayIP}";
                let seen = other.kubectl(&[
                    "get",
                    "clusterinfoimport",
                    import,
                    "-n",
                    "kube-system",
                    "-o",
                    path,
                ]);
                if seen == address { Ok(()) } else { Err(seen) }
            });
            let answer = client.get(&client.imported_url());
            assert!(answer.starts_with("web-"), "{answer}");
        }
    });
    for cluster in [EAST, WEST] {
        move_gateway(
            cluster,
            &format!("{}-n2", cluster.0),
            &format!("{}-n1", cluster.0),
        );
    }
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
    client.get(&client.imported_url());
}
