//! Bulk export: delay between the last export and the last import.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use mc_api::{resource_export::ResourceExport, service_export::ServiceExport, service_import::ServiceImport};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    Fixture,
    fixture::{Cluster, Kind, LEADER_NAMESPACE, NAMESPACE, error_text, wait_until},
};

/// Concurrent requests.
const WIDTH: usize = 8;
/// Timeout of the section.
const DEADLINE: Duration = Duration::from_mins(5);
/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Endpoints of each Service.
pub(crate) const ENDPOINTS: usize = 5;

fn name(n: usize) -> String {
    format!("bulk-{n:04}")
}

/// `count` Services of west with endpoints that do not answer.
pub(crate) async fn serve(fixture: &Fixture, count: usize) -> Result<()> {
    stream::iter((0..count).map(Ok))
        .try_for_each_concurrent(WIDTH, |n| async move {
            let endpoints: Vec<_> = (0..ENDPOINTS)
                .map(|e| {
                    let number = n * ENDPOINTS + e;
                    let ip = format!("{}.{}", fixture.pods_of_west, 2 + number % 250);
                    (ip, "west-n2", true)
                })
                .collect();
            fixture.west.service(&name(n), &endpoints).await
        })
        .await
}

/// Seconds; the first two are measured from the last export.
pub(crate) struct Lags {
    /// Until all imports exist.
    pub(crate) imported: f64,
    /// Until all conditions are written.
    pub(crate) written: f64,
    /// Duration of the creation.
    pub(crate) creating: f64,
}

/// Exports all Services and waits until all conditions are written.
pub(crate) async fn export(fixture: &Fixture, count: usize) -> Result<Lags> {
    let before = fixture.east.count::<ServiceImport>(NAMESPACE).await?;
    let start = Instant::now();
    stream::iter(0..count)
        .map(|n| async move {
            fixture
                .west
                .apply::<ServiceExport>(NAMESPACE, &name(n), json!({}))
                .await
        })
        .buffer_unordered(WIDTH)
        .try_collect::<Vec<_>>()
        .await?;
    let (created, last) = (start.elapsed(), Instant::now());
    let wanted = before + u64::try_from(count)?;
    wait_until("all imports", DEADLINE, async || {
        let imports = fixture.east.count::<ServiceImport>(NAMESPACE).await;
        match imports.map_err(error_text)? {
            imports if imports >= wanted => Ok(()),
            imports => Err(format!("{imports} of {wanted}")),
        }
    })
    .await?;
    let imported = last.elapsed();
    wait_condition::<ServiceImport>(&fixture.east, NAMESPACE, "Ready", count).await?;
    wait_condition::<ServiceImport>(&fixture.west, NAMESPACE, "Ready", count).await?;
    wait_condition::<ResourceExport>(&fixture.leader, LEADER_NAMESPACE, "Succeeded", 2 * count).await?;
    wait_condition::<ServiceExport>(&fixture.west, NAMESPACE, "Ready", count).await?;
    Ok(Lags {
        imported: imported.as_secs_f64(),
        written: last.elapsed().as_secs_f64(),
        creating: created.as_secs_f64(),
    })
}

/// Waits until at least `count` objects have the condition.
async fn wait_condition<K: Kind>(
    cluster: &Cluster,
    namespace: &str,
    condition: &str,
    count: usize,
) -> Result<()> {
    wait_until("all conditions", DEADLINE, async || {
        sleep(POLL_INTERVAL).await;
        match cluster
            .count_with::<K>(namespace, condition)
            .await
            .map_err(error_text)?
        {
            written if written >= count => Ok(()),
            written => Err(format!("{written} of {count}")),
        }
    })
    .await
}
