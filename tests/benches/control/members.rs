//! Many members of one leader: announces and exports with the members' accounts, without running members.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::{Api, ResourceExt, api::ListParams};
use mc_api::{
    member_cluster_announce::MemberClusterAnnounce, names, resource_export::ResourceExport,
    resource_import::ResourceImport,
};
use mc_tests::process::find_pod_process;
use serde_json::{Value, json};

use crate::{
    Fixture,
    fixture::{Cluster, LEADER_NAMESPACE, error_text, wait_until},
    process::{self, Usage},
};

/// Services per member; every second name is shared by all members.
const SERVICES: usize = 20;
/// Concurrent requests.
const WIDTH: usize = 8;
const DEADLINE: Duration = Duration::from_mins(15);
/// A Namespace that real members do not have, so that only the leader processes the exports.
const EXPORT_NAMESPACE: &str = "bench-elsewhere";

/// Result of the section.
pub(crate) struct Outcome {
    /// Seconds from the first export to the last import.
    pub(crate) imported_s: f64,
    /// Exports, and the imports merged from them.
    pub(crate) exports: usize,
    pub(crate) imports: u64,
    /// Resource use of the leader's controller.
    pub(crate) usage: Usage,
    /// Seconds from the start of a new leader process until it has imported the exports made in between.
    pub(crate) resync_s: f64,
    /// Its resource use at that time.
    pub(crate) resynced: Usage,
}

fn id(member: usize) -> String {
    format!("bench{member:03}")
}

/// Pod and PID of a controller.
pub(crate) async fn controller(cluster: &Cluster, namespace: &str) -> Result<(String, u32)> {
    let pods: Api<Pod> = cluster.api(namespace);
    let params = ListParams::default().labels("component=antrea-mc-controller");
    wait_until("the controller's process", DEADLINE, async || {
        let list = pods.list(&params).await.map_err(error_text)?;
        let alive = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        let names: Vec<_> = list
            .items
            .iter()
            .filter(alive)
            .map(ResourceExt::name_any)
            .collect();
        names
            .iter()
            .find_map(|pod| Some((pod.clone(), find_pod_process("mc-controller", "POD_NAME", pod)?)))
            .ok_or_else(|| format!("Pods {names:?}"))
    })
    .await
}

/// Runs the section with `members` members.
pub(crate) async fn run(fixture: &Fixture, members: usize) -> Result<Outcome> {
    announce(fixture, members).await?;
    let (pod, pid) = controller(&fixture.leader, LEADER_NAMESPACE).await?;
    let before = fixture.leader.count::<ResourceImport>(LEADER_NAMESPACE).await?;
    let shared = SERVICES / 2;
    // Two imports per Service; shared ones are merged into one pair.
    let wanted = u64::try_from(2 * (shared + members * (SERVICES - shared)))?;
    let start = Instant::now();
    stream::iter((0..members).flat_map(|m| (0..SERVICES).map(move |s| (m, s))))
        .map(|(member, service)| export(fixture, member, service))
        .buffer_unordered(WIDTH)
        .try_collect::<Vec<_>>()
        .await?;
    imports(fixture, before + wanted).await?;
    let imported_s = start.elapsed().as_secs_f64();
    let usage = process::usage(pid)?;
    // One more export while no leader runs.
    fixture.leader.delete::<Pod>(LEADER_NAMESPACE, &pod).await?;
    wait_until("the end of the leader", DEADLINE, async || {
        process::usage(pid).map_or(Ok(()), |_| Err("it runs".to_owned()))
    })
    .await?;
    export(fixture, 0, SERVICES).await?;
    imports(fixture, before + wanted + 2).await?;
    let (_, pid) = controller(&fixture.leader, LEADER_NAMESPACE).await?;
    let resynced = process::usage(pid)?;
    Ok(Outcome {
        imported_s,
        exports: 2 * members * SERVICES,
        imports: wanted,
        usage,
        resync_s: process::uptime()? - resynced.since,
        resynced,
    })
}

async fn imports(fixture: &Fixture, wanted: u64) -> Result<()> {
    wait_until("the leader's imports", DEADLINE, async || {
        match fixture
            .leader
            .count::<ResourceImport>(LEADER_NAMESPACE)
            .await
            .map_err(error_text)?
        {
            imports if imports >= wanted => Ok(()),
            imports => Err(format!("{imports} of {wanted}")),
        }
    })
    .await
}

async fn announce(fixture: &Fixture, members: usize) -> Result<()> {
    for member in 0..members {
        let account = json!({ "metadata": { "annotations": { names::ANNOTATION_CLUSTER_ID: id(member) } } });
        fixture
            .leader
            .apply::<ServiceAccount>(LEADER_NAMESPACE, &id(member), account)
            .await?;
    }
    role(fixture).await?;
    let last = id(members.saturating_sub(1));
    let maps: Api<ConfigMap> = fixture.leader.api(LEADER_NAMESPACE);
    wait_until("the members' ServiceAccounts to be known", DEADLINE, async || {
        let map = maps
            .get_opt(names::SERVICE_ACCOUNT_BINDINGS)
            .await
            .map_err(error_text)?;
        let known = map.and_then(|m| m.data).unwrap_or_default();
        known
            .contains_key(&last)
            .then_some(())
            .ok_or_else(|| format!("{} of them", known.len()))
    })
    .await?;
    let announces: Api<MemberClusterAnnounce> = fixture.leader.api(LEADER_NAMESPACE);
    let Some(model) = announces.list(&ListParams::default()).await?.items.pop() else {
        anyhow::bail!("no member is announced");
    };
    for member in 0..members {
        let id = id(member);
        let as_member = Cluster::connect_as("leader", Some((LEADER_NAMESPACE, &id))).await?;
        let announce = json!({
            "metadata": { "annotations": { "touch-ts": format!("bench-{member}") } },
            "clusterID": id, "clusterSetID": model.cluster_set_id, "leaderClusterID": model.leader_cluster_id,
        });
        // The admission policies see new accounts shortly after the ConfigMap lists them.
        wait_until(
            &format!("the announce of {id}"),
            Duration::from_secs(30),
            async || {
                let made = as_member
                    .apply::<MemberClusterAnnounce>(
                        LEADER_NAMESPACE,
                        &names::member_announce(&id),
                        announce.clone(),
                    )
                    .await;
                made.map(drop).map_err(|error| format!("{error:#}"))
            },
        )
        .await?;
    }
    Ok(())
}

/// Grants the members' Role to all accounts of the Namespace.
async fn role(fixture: &Fixture) -> Result<()> {
    let binding = json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "antrea-mc-member-cluster-role" },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": format!("system:serviceaccounts:{LEADER_NAMESPACE}"),
        }],
    });
    fixture
        .leader
        .apply::<k8s_openapi::api::rbac::v1::RoleBinding>(LEADER_NAMESPACE, "bench-members", binding)
        .await?;
    Ok(())
}

async fn export(fixture: &Fixture, member: usize, service: usize) -> Result<()> {
    let id = id(member);
    let name = if service.is_multiple_of(2) && service < SERVICES {
        format!("shared{service:02}")
    } else {
        format!("{id}-own{service:02}")
    };
    let port = json!([{ "name": "http", "port": 80, "protocol": "TCP" }]);
    let ip = format!("10.{}.{}.{}", 64 + member / 256, member % 256, service + 1);
    let payloads: [(&str, String, Value); 2] = [
        (
            "Service",
            names::service_export(&id, EXPORT_NAMESPACE, &name),
            json!({ "service": { "serviceSpec": { "ports": port } } }),
        ),
        (
            "Endpoints",
            names::endpoints_export(&id, EXPORT_NAMESPACE, &name),
            json!({ "endpoints": { "subsets": [{ "addresses": [{ "ip": ip }], "ports": port }] } }),
        ),
    ];
    for (kind, export, payload) in payloads {
        let mut spec = json!({ "clusterID": id, "name": name, "namespace": EXPORT_NAMESPACE, "kind": kind });
        for (key, value) in payload.as_object().context("a payload")? {
            spec[key] = value.clone();
        }
        let object = json!({
            "metadata": {
                "finalizers": [names::FINALIZER_RESOURCE_EXPORT],
                "labels": {
                    names::LABEL_SOURCE_KIND: kind, names::LABEL_SOURCE_CLUSTER_ID: id,
                    names::LABEL_SOURCE_NAME: name, names::LABEL_SOURCE_NAMESPACE: EXPORT_NAMESPACE,
                },
            },
            "spec": spec,
        });
        fixture
            .leader
            .apply::<ResourceExport>(LEADER_NAMESPACE, &export, object)
            .await?;
    }
    Ok(())
}
