//! `cargo xtask bench --suite control`: resource use and latency of the control plane on real API servers.
//!
//! Three joined clusters run (`MC_KUBECONFIG`); `report.json` is written to `MC_BENCH_OUT`. `MC_QUICK=1` is a smoke
//! test, `MC_ONLY` selects sections. The clusters cannot be used for anything else afterwards.
#![expect(clippy::indexing_slicing, reason = "JSON objects are made by indexing them")]

mod bulk_export;
mod endpoint_latency;
mod fixture;
mod join;
mod members;
mod process;

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use fixture::{Cluster, LEADER_NAMESPACE, MEMBER_NAMESPACE, NAMESPACE};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use mc_api::service_export::ServiceExport;
use mc_tests::bench::sample::percentile;
use serde_json::{Value, json};

/// All sections.
const SECTIONS: [&str; 4] = ["join", "exports", "steer", "members"];

/// Clusters and Pods of all sections.
pub(crate) struct Fixture {
    pub(crate) leader: Cluster,
    pub(crate) east: Cluster,
    pub(crate) west: Cluster,
    /// PID of a client Pod in east.
    pub(crate) client: u32,
    /// Addresses of two Pods of west that answer `one` and `two`.
    pub(crate) one: String,
    pub(crate) two: String,
    /// First three bytes of the Pod addresses on a Node of west.
    pub(crate) pods_of_west: String,
}

/// Repetitions and object counts.
struct Sizes {
    joins: u32,
    exports: usize,
    trials: u32,
    members: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    let sizes = if env::var("MC_QUICK").is_ok_and(|quick| quick == "1") {
        Sizes {
            joins: 1,
            exports: 20,
            trials: 4,
            members: 5,
        }
    } else {
        Sizes {
            joins: 5,
            exports: 1000,
            trials: 100,
            members: 250,
        }
    };
    let wanted = select_sections(&env::var("MC_ONLY").unwrap_or_default())?;
    let fixture = prepare().await.context("preparing")?;
    let mut report = json!({ "joins": sizes.joins, "exports": sizes.exports, "trials": sizes.trials });
    for part in wanted {
        match part {
            "join" => joins(&fixture, sizes.joins, &mut report).await,
            "exports" => exports(&fixture, sizes.exports, &mut report).await,
            "steer" => steering(&fixture, sizes.trials, &mut report).await,
            _ => run_members(&fixture, sizes.members, &mut report).await,
        }
        .context(part)?;
    }
    let out = PathBuf::from(env::var_os("MC_BENCH_OUT").context("MC_BENCH_OUT is not set")?);
    fs::create_dir_all(&out)?;
    let path = out.join("report.json");
    fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")?;
    println!("{report:#}\n{}", path.display());
    Ok(())
}

/// The selected sections (all if empty) in their fixed order: each depends on the state the previous ones left.
fn select_sections(list: &str) -> Result<Vec<&'static str>> {
    let selected: Vec<_> = list.split(',').filter(|part| !part.is_empty()).collect();
    if let Some(unknown) = selected.iter().find(|part| !SECTIONS.contains(part)) {
        bail!("unknown part {unknown:?}: there are {}", SECTIONS.join(", "));
    }
    Ok(SECTIONS
        .into_iter()
        .filter(|part| selected.is_empty() || selected.contains(part))
        .collect())
}

async fn prepare() -> Result<Fixture> {
    let leader = Cluster::connect("leader").await?;
    let east = Cluster::connect("east").await?;
    let west = Cluster::connect("west").await?;
    for member in [&east, &west] {
        member.namespace(NAMESPACE).await?;
    }
    let serve = |name| ["echo-server", "--port=8080", name];
    let (one, _) = west.pod("west-n2", "bench-one", &serve("--name=one")).await?;
    let (two, _) = west.pod("west-n2", "bench-two", &serve("--name=two")).await?;
    let (_, client) = east.pod("east-n2", "bench-client", &["pause"]).await?;
    let nodes: Api<Node> = Api::all(west.client.clone());
    let range = nodes.get("west-n2").await?.spec.and_then(|s| s.pod_cidr);
    let range = range.context("west-n2 has no Pod CIDR")?;
    let (pods_of_west, _) = range.rsplit_once('.').context("an IPv4 Pod CIDR")?;
    let (one_ip, pods_of_west) = (one.clone(), pods_of_west.to_owned());
    let fixture = Fixture {
        leader,
        east,
        west,
        client,
        one,
        two,
        pods_of_west,
    };
    fixture.west.service("join", &[(one_ip, "west-n2", true)]).await?;
    fixture
        .west
        .apply::<ServiceExport>(NAMESPACE, "join", json!({}))
        .await?;
    fixture
        .east
        .imported("join", std::time::Duration::from_mins(1))
        .await?;
    Ok(fixture)
}

async fn joins(fixture: &Fixture, count: u32, report: &mut Value) -> Result<()> {
    let (mut ready, mut answered) = (vec![], vec![]);
    for _ in 0..count {
        let (one, other) = join::once(fixture).await?;
        println!("join: Ready after {one:.2} s, answered after {other:.2} s");
        ready.push(one);
        answered.push(other);
    }
    report["join_to_ready_s"] = json!(percentile(ready.iter().copied(), 50));
    report["join_to_request_s"] = json!(percentile(answered.iter().copied(), 50));
    report["all_joins_s"] = json!({ "ready": ready, "request": answered });
    Ok(())
}

async fn exports(fixture: &Fixture, count: usize, report: &mut Value) -> Result<()> {
    bulk_export::serve(fixture, count).await?;
    let lags = bulk_export::export(fixture, count).await?;
    println!(
        "exports: {count} imported {:.2} s after the last of them was created ({:.1} s for all), all conditions written after {:.1} s",
        lags.imported, lags.creating, lags.written
    );
    report["bulk_lag_s"] = json!(lags.imported);
    report["bulk_conditions_s"] = json!(lags.written);
    report["bulk_creating_s"] = json!(lags.creating);
    Ok(())
}

async fn steering(fixture: &Fixture, trials: u32, report: &mut Value) -> Result<()> {
    let steer = endpoint_latency::ready(fixture, trials).await?;
    report["steer_ms"] = figures(&steer);
    println!("steer: {}", report["steer_ms"]);
    let export = endpoint_latency::exported(fixture, trials.div_ceil(2)).await?;
    report["export_to_request_ms"] = figures(&export);
    println!("export to request: {}", report["export_to_request_ms"]);
    for (cluster, namespace) in [
        (&fixture.leader, LEADER_NAMESPACE),
        (&fixture.east, MEMBER_NAMESPACE),
        (&fixture.west, MEMBER_NAMESPACE),
    ] {
        let (_, pid) = members::controller(cluster, namespace).await?;
        let usage = process::usage(pid)?;
        println!("{}: {usage:?}", cluster.name);
        report["rss_mib"][cluster.name] = json!(usage.rss_mib);
        report["peak_mib"][cluster.name] = json!(usage.peak_mib);
        report["cpu_s"][cluster.name] = json!(usage.cpu_s);
    }
    Ok(())
}

async fn run_members(fixture: &Fixture, members: usize, report: &mut Value) -> Result<()> {
    let outcome = members::run(fixture, members).await?;
    report["members"] = json!(members);
    report["member_exports"] = json!(outcome.exports);
    report["member_imports"] = json!(outcome.imports);
    report["members_imported_s"] = json!(outcome.imported_s);
    report["leader_rss_mib"] = json!(outcome.usage.peak_mib.max(outcome.resynced.peak_mib));
    report["leader_cpu_s"] = json!(outcome.usage.cpu_s);
    report["resync_s"] = json!(outcome.resync_s);
    Ok(())
}

/// Median, 99th percentile and maximum.
fn figures(of: &[f64]) -> Value {
    let at = |percent| percentile(of.iter().copied(), percent);
    json!({ "p50": at(50), "p99": at(99), "max": at(100) })
}
