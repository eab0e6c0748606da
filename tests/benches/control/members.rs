//! Many members against one leader: their announces and exports are written as theirs, nothing runs behind them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use controller::api::{
    member_cluster_announce::MemberClusterAnnounce, names, resource_export::ResourceExport,
    resource_import::ResourceImport,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::{Api, ResourceExt, api::ListParams};
use mc_tests::process::of_pod;
use serde_json::{Value, json};

use crate::{
    Bed,
    bed::{Cluster, EXCHANGE, said, until},
    process::{self, Usage},
};

/// Services each member exports; of every second one all members say the same name.
const SERVICES: usize = 20;
/// Requests under way at a time.
const WIDTH: usize = 8;
const DEADLINE: Duration = Duration::from_mins(15);
/// Exports are made where real members have no Namespace of that name, so that only the leader has work with them.
const ELSEWHERE: &str = "bench-elsewhere";

/// What came of it.
pub(crate) struct Outcome {
    /// Seconds from the first export until every import was there.
    pub(crate) imported_s: f64,
    /// Exports, and imports made of them.
    pub(crate) exports: usize,
    pub(crate) imports: u64,
    /// Of the leader's controller, all that while.
    pub(crate) usage: Usage,
    /// Seconds from the start of another leader's process until it has imported what was exported meanwhile.
    pub(crate) resync_s: f64,
    /// Its memory then.
    pub(crate) resynced: Usage,
}

fn id(member: usize) -> String {
    format!("bench{member:03}")
}

/// The leader's process now.
pub(crate) async fn controller(cluster: &Cluster, namespace: &str) -> Result<(String, u32)> {
    let pods: Api<Pod> = cluster.api(namespace);
    let params = ListParams::default().labels("component=antrea-mc-controller");
    until("the controller's process", DEADLINE, async || {
        let list = pods.list(&params).await.map_err(said)?;
        let alive = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        let names: Vec<_> = list
            .items
            .iter()
            .filter(alive)
            .map(ResourceExt::name_any)
            .collect();
        names
            .iter()
            .find_map(|pod| Some((pod.clone(), of_pod("mc-controller", "POD_NAME", pod)?)))
            .ok_or_else(|| format!("Pods {names:?}"))
    })
    .await
}

/// `members` of them.
pub(crate) async fn run(bed: &Bed, members: usize) -> Result<Outcome> {
    announce(bed, members).await?;
    let (pod, pid) = controller(&bed.leader, EXCHANGE).await?;
    let before = bed.leader.count::<ResourceImport>(EXCHANGE).await?;
    let shared = SERVICES / 2;
    // A Service makes two imports, and what all members export makes them once.
    let wanted = u64::try_from(2 * (shared + members * (SERVICES - shared)))?;
    let start = Instant::now();
    stream::iter((0..members).flat_map(|m| (0..SERVICES).map(move |s| (m, s))))
        .map(|(member, service)| export(bed, member, service))
        .buffer_unordered(WIDTH)
        .try_collect::<Vec<_>>()
        .await?;
    imports(bed, before + wanted).await?;
    let imported_s = start.elapsed().as_secs_f64();
    let usage = process::usage(pid)?;
    // One more while no leader runs.
    bed.leader.delete::<Pod>(EXCHANGE, &pod).await?;
    until("the end of the leader", DEADLINE, async || {
        process::usage(pid).map_or(Ok(()), |_| Err("it runs".to_owned()))
    })
    .await?;
    export(bed, 0, SERVICES).await?;
    imports(bed, before + wanted + 2).await?;
    let (_, pid) = controller(&bed.leader, EXCHANGE).await?;
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

async fn imports(bed: &Bed, wanted: u64) -> Result<()> {
    until("the leader's imports", DEADLINE, async || {
        match bed.leader.count::<ResourceImport>(EXCHANGE).await.map_err(said)? {
            imports if imports >= wanted => Ok(()),
            imports => Err(format!("{imports} of {wanted}")),
        }
    })
    .await
}

async fn announce(bed: &Bed, members: usize) -> Result<()> {
    for member in 0..members {
        let account = json!({ "metadata": { "annotations": { names::ANNOTATION_CLUSTER_ID: id(member) } } });
        bed.leader
            .apply::<ServiceAccount>(EXCHANGE, &id(member), account)
            .await?;
    }
    role(bed).await?;
    let last = id(members.saturating_sub(1));
    let maps: Api<ConfigMap> = bed.leader.api(EXCHANGE);
    until("the members' ServiceAccounts to be known", DEADLINE, async || {
        let map = maps.get_opt(names::MEMBER_IDENTITIES).await.map_err(said)?;
        let known = map.and_then(|m| m.data).unwrap_or_default();
        known
            .contains_key(&last)
            .then_some(())
            .ok_or_else(|| format!("{} of them", known.len()))
    })
    .await?;
    let announces: Api<MemberClusterAnnounce> = bed.leader.api(EXCHANGE);
    let Some(model) = announces.list(&ListParams::default()).await?.items.pop() else {
        anyhow::bail!("nobody is a member");
    };
    for member in 0..members {
        let id = id(member);
        let as_member = Cluster::connect_as("leader", Some((EXCHANGE, &id))).await?;
        let announce = json!({
            "metadata": { "annotations": { "touch-ts": format!("bench-{member}") } },
            "clusterID": id, "clusterSetID": model.cluster_set_id, "leaderClusterID": model.leader_cluster_id,
        });
        // The policies see new accounts a moment later than the ConfigMap shows them.
        until(
            &format!("the announce of {id}"),
            Duration::from_secs(30),
            async || {
                let made = as_member
                    .apply::<MemberClusterAnnounce>(EXCHANGE, &names::member_announce(&id), announce.clone())
                    .await;
                made.map(drop).map_err(|error| format!("{error:#}"))
            },
        )
        .await?;
    }
    Ok(())
}

/// What members may do, for all accounts of the Namespace.
async fn role(bed: &Bed) -> Result<()> {
    let binding = json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "antrea-mc-member-cluster-role" },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": format!("system:serviceaccounts:{EXCHANGE}"),
        }],
    });
    bed.leader
        .apply::<k8s_openapi::api::rbac::v1::RoleBinding>(EXCHANGE, "bench-members", binding)
        .await?;
    Ok(())
}

async fn export(bed: &Bed, member: usize, service: usize) -> Result<()> {
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
            names::service_export(&id, ELSEWHERE, &name),
            json!({ "service": { "serviceSpec": { "ports": port } } }),
        ),
        (
            "Endpoints",
            names::endpoints_export(&id, ELSEWHERE, &name),
            json!({ "endpoints": { "subsets": [{ "addresses": [{ "ip": ip }], "ports": port }] } }),
        ),
    ];
    for (kind, export, payload) in payloads {
        let mut spec = json!({ "clusterID": id, "name": name, "namespace": ELSEWHERE, "kind": kind });
        for (key, value) in payload.as_object().context("a payload")? {
            spec[key] = value.clone();
        }
        let object = json!({
            "metadata": {
                "finalizers": [names::FINALIZER_RESOURCE_EXPORT],
                "labels": {
                    names::LABEL_SOURCE_KIND: kind, names::LABEL_SOURCE_CLUSTER_ID: id,
                    names::LABEL_SOURCE_NAME: name, names::LABEL_SOURCE_NAMESPACE: ELSEWHERE,
                },
            },
            "spec": spec,
        });
        bed.leader
            .apply::<ResourceExport>(EXCHANGE, &export, object)
            .await?;
    }
    Ok(())
}
