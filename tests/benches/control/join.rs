//! A member that leaves and rejoins: time to Ready, and to the first answered request.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt, api::ListParams};
use mc_api::{cluster_set::ClusterSet, member_cluster_announce::MemberClusterAnnounce};
use serde_json::json;

use crate::{
    Fixture,
    fixture::{Cluster, LEADER_NAMESPACE, MEMBER_NAMESPACE, NAMESPACE, error_text, wait_until},
    process::wait_answer,
};

/// Timeout of each step.
const DEADLINE: Duration = Duration::from_mins(2);

/// One leave and join; seconds until Ready and until the first answer.
pub(crate) async fn once(fixture: &Fixture) -> Result<(f64, f64)> {
    let sets: Api<ClusterSet> = fixture.east.api(MEMBER_NAMESPACE);
    let Some(set) = sets.list(&ListParams::default()).await?.items.pop() else {
        bail!("east is in no ClusterSet");
    };
    leave(fixture, &set).await?;
    let start = Instant::now();
    let spec = json!({ "spec": set.spec });
    fixture
        .east
        .apply::<ClusterSet>(MEMBER_NAMESPACE, &set.name_any(), spec)
        .await?;
    let ready = wait_until("the ClusterSet to be Ready", DEADLINE, async || {
        is_ready(&fixture.east, &set.name_any()).await
    });
    let answer = first_answer(fixture);
    let (ready, answer) = tokio::join!(async { ready.await.map(|()| start.elapsed()) }, answer);
    let answered = answer?.saturating_duration_since(start);
    Ok((ready?.as_secs_f64(), answered.as_secs_f64()))
}

async fn leave(fixture: &Fixture, set: &ClusterSet) -> Result<()> {
    fixture
        .east
        .delete::<ClusterSet>(MEMBER_NAMESPACE, &set.name_any())
        .await?;
    let announces: Api<MemberClusterAnnounce> = fixture.leader.api(LEADER_NAMESPACE);
    let announce = format!("member-announce-from-{}", set.spec.cluster_id);
    let services: Api<Service> = fixture.east.api(NAMESPACE);
    wait_until("east to have left", DEADLINE, async || {
        let announce = announces.get_opt(&announce).await.map_err(error_text)?;
        let service = services.get_opt("antrea-mc-join").await.map_err(error_text)?;
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
    let sets: Api<ClusterSet> = cluster.api(MEMBER_NAMESPACE);
    let status = sets.get(set).await.map_err(error_text)?.status;
    let conditions = status.map(|s| s.conditions).unwrap_or_default();
    if conditions
        .iter()
        .any(|c| c.type_ == "Ready" && c.status == "True")
    {
        return Ok(());
    }
    Err(format!("{conditions:?}"))
}

async fn first_answer(fixture: &Fixture) -> Result<Instant> {
    let ip = fixture.east.imported("join", DEADLINE).await?;
    let to: SocketAddr = format!("{ip}:80").parse().context("the address of a Service")?;
    wait_answer(fixture.client, to, "one".to_owned(), DEADLINE).await
}
