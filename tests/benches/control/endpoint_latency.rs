//! Latency from an endpoint's readiness in one cluster to a request it answers from another.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, api::DeleteParams};
use mc_api::service_export::ServiceExport;
use serde_json::json;

use crate::{
    Fixture,
    fixture::{NAMESPACE, error_text, wait_until},
    process::wait_answer,
};

const DEADLINE: Duration = Duration::from_mins(1);

fn endpoints(fixture: &Fixture, one: bool) -> [(String, &'static str, bool); 2] {
    [
        (fixture.one.clone(), "west-n2", one),
        (fixture.two.clone(), "west-n2", !one),
    ]
}

/// Milliseconds from a change of the ready endpoint of an exported Service to its first answer, `trials` times.
pub(crate) async fn ready(fixture: &Fixture, trials: u32) -> Result<Vec<f64>> {
    fixture.west.service("steer", &endpoints(fixture, true)).await?;
    fixture
        .west
        .apply::<ServiceExport>(NAMESPACE, "steer", json!({}))
        .await?;
    let ip = fixture.east.imported("steer", DEADLINE).await?;
    let to: SocketAddr = format!("{ip}:80").parse().context("the address of a Service")?;
    wait_answer(fixture.client, to, "one".to_owned(), DEADLINE).await?;
    let mut took = vec![];
    for trial in 0..trials {
        let one = trial % 2 == 1;
        let wanted = if one { "one" } else { "two" }.to_owned();
        let answer = tokio::spawn(wait_answer(fixture.client, to, wanted, DEADLINE));
        let start = Instant::now();
        fixture.west.endpoints("steer", &endpoints(fixture, one)).await?;
        took.push(millis(answer.await??.saturating_duration_since(start)));
    }
    Ok(took)
}

/// The same for a Service without a ready endpoint, which was not exported before.
pub(crate) async fn exported(fixture: &Fixture, trials: u32) -> Result<Vec<f64>> {
    let none = |ready| [(fixture.one.clone(), "west-n2", ready)];
    fixture.west.service("rise", &none(false)).await?;
    let services: Api<Service> = fixture.east.api(NAMESPACE);
    let exports: Api<ServiceExport> = fixture.west.api(NAMESPACE);
    let mut took = vec![];
    for _ in 0..trials {
        fixture
            .west
            .apply::<ServiceExport>(NAMESPACE, "rise", json!({}))
            .await?;
        let start = Instant::now();
        fixture.west.endpoints("rise", &none(true)).await?;
        let ip = fixture.east.imported("rise", DEADLINE).await?;
        let to: SocketAddr = format!("{ip}:80").parse().context("the address of a Service")?;
        let answer = wait_answer(fixture.client, to, "one".to_owned(), DEADLINE).await?;
        took.push(millis(answer.saturating_duration_since(start)));
        // Without endpoints alone the Service would remain exported for `withdrawAfter`.
        exports.delete("rise", &DeleteParams::default()).await?;
        fixture.west.endpoints("rise", &none(false)).await?;
        wait_until("the removal of the import", DEADLINE, async || {
            match services.get_opt("antrea-mc-rise").await.map_err(error_text)? {
                None => Ok(()),
                Some(_) => Err("it exists".to_owned()),
            }
        })
        .await?;
    }
    Ok(took)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
