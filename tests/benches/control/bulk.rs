//! Many exports at once: how long after the last one the other cluster has all of them.

use std::time::{Duration, Instant};

use anyhow::Result;
use controller::api::{
    resource_export::ResourceExport, service_export::ServiceExport, service_import::ServiceImport,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    Bed,
    bed::{Cluster, EXCHANGE, Kind, NAMESPACE, said, until},
};

/// Requests under way at a time.
const WIDTH: usize = 8;
/// For all of it.
const DEADLINE: Duration = Duration::from_mins(5);
/// Between two looks at all of them.
const LOOK: Duration = Duration::from_secs(1);
/// Endpoints of each Service.
pub(crate) const ENDPOINTS: usize = 5;

fn name(n: usize) -> String {
    format!("bulk-{n:04}")
}

/// `count` Services of west with endpoints nobody listens at.
pub(crate) async fn serve(bed: &Bed, count: usize) -> Result<()> {
    stream::iter((0..count).map(Ok))
        .try_for_each_concurrent(WIDTH, |n| async move {
            let endpoints: Vec<_> = (0..ENDPOINTS)
                .map(|e| {
                    let number = n * ENDPOINTS + e;
                    let ip = format!("{}.{}", bed.pods_of_west, 2 + number % 250);
                    (ip, "west-n2", true)
                })
                .collect();
            bed.west.service(&name(n), &endpoints).await
        })
        .await
}

/// Seconds, the first two from the last export on.
pub(crate) struct Lags {
    /// Until all are imported.
    pub(crate) imported: f64,
    /// Until everybody has been told.
    pub(crate) told: f64,
    /// What creating them took.
    pub(crate) creating: f64,
}

/// Exports all of them, and waits until nothing is left to do.
pub(crate) async fn export(bed: &Bed, count: usize) -> Result<Lags> {
    let before = bed.east.count::<ServiceImport>(NAMESPACE).await?;
    let start = Instant::now();
    stream::iter(0..count)
        .map(|n| async move {
            bed.west
                .apply::<ServiceExport>(NAMESPACE, &name(n), json!({}))
                .await
        })
        .buffer_unordered(WIDTH)
        .try_collect::<Vec<_>>()
        .await?;
    let (created, last) = (start.elapsed(), Instant::now());
    let wanted = before + u64::try_from(count)?;
    until("all imports", DEADLINE, async || {
        let imports = bed.east.count::<ServiceImport>(NAMESPACE).await;
        match imports.map_err(said)? {
            imports if imports >= wanted => Ok(()),
            imports => Err(format!("{imports} of {wanted}")),
        }
    })
    .await?;
    let imported = last.elapsed();
    told::<ServiceImport>(&bed.east, NAMESPACE, "Ready", count).await?;
    told::<ServiceImport>(&bed.west, NAMESPACE, "Ready", count).await?;
    told::<ResourceExport>(&bed.leader, EXCHANGE, "Succeeded", 2 * count).await?;
    told::<ServiceExport>(&bed.west, NAMESPACE, "Ready", count).await?;
    Ok(Lags {
        imported: imported.as_secs_f64(),
        told: last.elapsed().as_secs_f64(),
        creating: created.as_secs_f64(),
    })
}

/// Waits until at least `count` have the condition.
async fn told<K: Kind>(cluster: &Cluster, namespace: &str, condition: &str, count: usize) -> Result<()> {
    until("all told", DEADLINE, async || {
        sleep(LOOK).await;
        match cluster
            .count_with::<K>(namespace, condition)
            .await
            .map_err(said)?
        {
            told if told >= count => Ok(()),
            told => Err(format!("{told} of {count}")),
        }
    })
    .await
}
