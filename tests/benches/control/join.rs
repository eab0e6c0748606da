//! A member that leaves and joins again: until it is Ready, and until a first request from it is answered.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use controller::api::{cluster_set::ClusterSet, member_cluster_announce::MemberClusterAnnounce};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;

use crate::{
    Bed,
    bed::{Cluster, EXCHANGE, MEMBER, NAMESPACE, said, until},
    process::asked,
};

/// For anything of this.
const DEADLINE: Duration = Duration::from_mins(2);

/// One leave and one join; seconds until Ready and until the first answer.
pub(crate) async fn once(bed: &Bed) -> Result<(f64, f64)> {
    let sets: Api<ClusterSet> = bed.east.api(MEMBER);
    let Some(set) = sets.list(&ListParams::default()).await?.items.pop() else {
        bail!("east is in no ClusterSet");
    };
    leave(bed, &set).await?;
    let start = Instant::now();
    let spec = json!({ "spec": set.spec });
    bed.east
        .apply::<ClusterSet>(MEMBER, &set.name_any(), spec)
        .await?;
    let ready = until("the ClusterSet to be Ready", DEADLINE, async || {
        is_ready(&bed.east, &set.name_any()).await
    });
    let answer = first_answer(bed);
    let (ready, answer) = tokio::join!(async { ready.await.map(|()| start.elapsed()) }, answer);
    let answered = answer?.saturating_duration_since(start);
    Ok((ready?.as_secs_f64(), answered.as_secs_f64()))
}

async fn leave(bed: &Bed, set: &ClusterSet) -> Result<()> {
    bed.east.delete::<ClusterSet>(MEMBER, &set.name_any()).await?;
    let announces: Api<MemberClusterAnnounce> = bed.leader.api(EXCHANGE);
    let announce = format!("member-announce-from-{}", set.spec.cluster_id);
    let services: Api<Service> = bed.east.api(NAMESPACE);
    until("east to have left", DEADLINE, async || {
        let announce = announces.get_opt(&announce).await.map_err(said)?;
        let service = services.get_opt("antrea-mc-join").await.map_err(said)?;
        match (announce, service) {
            (None, None) => Ok(()),
            (announce, service) => Err(format!(
                "announce: {}, imported Service: {}",
                announce.is_some(),
                service.is_some()
            )),
        }
    })
    .await
}

async fn is_ready(cluster: &Cluster, set: &str) -> Result<(), String> {
    let sets: Api<ClusterSet> = cluster.api(MEMBER);
    let status = sets.get(set).await.map_err(said)?.status;
    let conditions = status.map(|s| s.conditions).unwrap_or_default();
    if conditions
        .iter()
        .any(|c| c.type_ == "Ready" && c.status == "True")
    {
        return Ok(());
    }
    Err(format!("{conditions:?}"))
}

async fn first_answer(bed: &Bed) -> Result<Instant> {
    let ip = bed.east.imported("join", DEADLINE).await?;
    let to: SocketAddr = format!("{ip}:80").parse().context("the address of a Service")?;
    asked(bed.client, to, "one".to_owned(), DEADLINE).await
}
