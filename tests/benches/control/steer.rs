//! From an endpoint that becomes ready in one cluster to a request of another cluster that it answers.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use controller::api::service_export::ServiceExport;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use serde_json::json;

use crate::{
    Bed,
    bed::{NAMESPACE, said, until},
    process::asked,
};

const DEADLINE: Duration = Duration::from_mins(1);

fn endpoints(bed: &Bed, one: bool) -> [(String, &'static str, bool); 2] {
    [
        (bed.one.clone(), "west-n2", one),
        (bed.two.clone(), "west-n2", !one),
    ]
}

/// Milliseconds from the change of the ready endpoint of an exported Service to the first answer of it, `trials` times.
pub(crate) async fn ready(bed: &Bed, trials: u32) -> Result<Vec<f64>> {
    bed.west.service("steer", &endpoints(bed, true)).await?;
    bed.west
        .apply::<ServiceExport>(NAMESPACE, "steer", json!({}))
        .await?;
    let ip = bed.east.imported("steer", DEADLINE).await?;
    let to: SocketAddr = format!("{ip}:80").parse().context("the address of a Service")?;
    asked(bed.client, to, "one".to_owned(), DEADLINE).await?;
    let mut took = vec![];
    for trial in 0..trials {
        let one = trial % 2 == 1;
        let wanted = if one { "one" } else { "two" }.to_owned();
        let answer = tokio::spawn(asked(bed.client, to, wanted, DEADLINE));
        let start = Instant::now();
        bed.west.endpoints("steer", &endpoints(bed, one)).await?;
        took.push(millis(answer.await??.saturating_duration_since(start)));
    }
    Ok(took)
}

/// The same for a Service that had no ready endpoint, and was therefore not exported.
pub(crate) async fn exported(bed: &Bed, trials: u32) -> Result<Vec<f64>> {
    let none = |ready| [(bed.one.clone(), "west-n2", ready)];
    bed.west.service("rise", &none(false)).await?;
    bed.west
        .apply::<ServiceExport>(NAMESPACE, "rise", json!({}))
        .await?;
    let services: Api<Service> = bed.east.api(NAMESPACE);
    let mut took = vec![];
    for _ in 0..trials {
        let start = Instant::now();
        bed.west.endpoints("rise", &none(true)).await?;
        let ip = bed.east.imported("rise", DEADLINE).await?;
        let to: SocketAddr = format!("{ip}:80").parse().context("the address of a Service")?;
        let answer = asked(bed.client, to, "one".to_owned(), DEADLINE).await?;
        took.push(millis(answer.saturating_duration_since(start)));
        bed.west.endpoints("rise", &none(false)).await?;
        until("the import to be gone", DEADLINE, async || {
            match services.get_opt("antrea-mc-rise").await.map_err(said)? {
                None => Ok(()),
                Some(_) => Err("it is there".to_owned()),
            }
        })
        .await?;
    }
    Ok(took)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
