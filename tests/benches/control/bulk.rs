//! Many exports at once: how long after the last one the other cluster has all of them.

use std::time::{Duration, Instant};

use anyhow::Result;
use controller::api::{service_export::ServiceExport, service_import::ServiceImport};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;

use crate::{
    Bed,
    bed::{NAMESPACE, said, until},
};

/// Requests under way at a time.
const WIDTH: usize = 8;
/// For all of it.
const DEADLINE: Duration = Duration::from_mins(5);
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

/// Exports all of them; seconds from the last export until all are imported, and what creating them took.
pub(crate) async fn export(bed: &Bed, count: usize) -> Result<(f64, f64)> {
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
    Ok((last.elapsed().as_secs_f64(), created.as_secs_f64()))
}
