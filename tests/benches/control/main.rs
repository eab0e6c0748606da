//! `cargo xtask bench --suite control`: what the control plane takes and how fast it is, on real API servers.
//!
//! Three clusters run and are joined (`MC_KUBECONFIG`); `report.json` goes to `MC_BENCH_OUT`. `MC_QUICK=1` asks only
//! whether everything works, `MC_ONLY` for some of the parts. The clusters are not fit for anything else afterwards.
#![expect(clippy::indexing_slicing, reason = "JSON objects are made by indexing them")]

mod bed;
mod bulk;
mod join;
mod members;
mod process;
#[path = "../../tests/reach/mod.rs"]
mod reach;
mod steer;

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use controller::api::service_export::ServiceExport;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use mc_tests::bench::sample::percentile;
use serde_json::{Value, json};

use bed::{Cluster, EXCHANGE, MEMBER, NAMESPACE};

/// What can be asked for.
const PARTS: [&str; 4] = ["join", "exports", "steer", "members"];

/// Everything the parts need.
pub(crate) struct Bed {
    pub(crate) leader: Cluster,
    pub(crate) east: Cluster,
    pub(crate) west: Cluster,
    /// A process in a Pod of east.
    pub(crate) client: u32,
    /// Addresses of two Pods of west that answer with `one` and `two`.
    pub(crate) one: String,
    pub(crate) two: String,
    /// The first three bytes of addresses of Pods on a Node of west.
    pub(crate) pods_of_west: String,
}

/// How much of each.
struct Amount {
    joins: u32,
    exports: usize,
    trials: u32,
    members: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    let amount = if env::var("MC_QUICK").is_ok_and(|quick| quick == "1") {
        Amount {
            joins: 1,
            exports: 20,
            trials: 4,
            members: 5,
        }
    } else {
        Amount {
            joins: 5,
            exports: 1000,
            trials: 100,
            members: 250,
        }
    };
    let wanted = parts(&env::var("MC_ONLY").unwrap_or_default())?;
    let bed = prepare().await.context("preparing")?;
    let mut report = json!({ "joins": amount.joins, "exports": amount.exports, "trials": amount.trials });
    for part in wanted {
        match part {
            "join" => joins(&bed, amount.joins, &mut report).await,
            "exports" => exports(&bed, amount.exports, &mut report).await,
            "steer" => steering(&bed, amount.trials, &mut report).await,
            _ => many(&bed, amount.members, &mut report).await,
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

/// The parts `list` names, all without names, in their order: each finds the clusters as those before it left them.
fn parts(list: &str) -> Result<Vec<&'static str>> {
    let asked: Vec<_> = list.split(',').filter(|part| !part.is_empty()).collect();
    if let Some(unknown) = asked.iter().find(|part| !PARTS.contains(part)) {
        bail!("unknown part {unknown:?}: there are {}", PARTS.join(", "));
    }
    Ok(PARTS
        .into_iter()
        .filter(|part| asked.is_empty() || asked.contains(part))
        .collect())
}

async fn prepare() -> Result<Bed> {
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
    let bed = Bed {
        leader,
        east,
        west,
        client,
        one,
        two,
        pods_of_west,
    };
    bed.west.service("join", &[(one_ip, "west-n2", true)]).await?;
    bed.west
        .apply::<ServiceExport>(NAMESPACE, "join", json!({}))
        .await?;
    bed.east
        .imported("join", std::time::Duration::from_mins(1))
        .await?;
    Ok(bed)
}

async fn joins(bed: &Bed, count: u32, report: &mut Value) -> Result<()> {
    let (mut ready, mut answered) = (vec![], vec![]);
    for _ in 0..count {
        let (one, other) = join::once(bed).await?;
        println!("join: Ready after {one:.2} s, answered after {other:.2} s");
        ready.push(one);
        answered.push(other);
    }
    report["join_to_ready_s"] = json!(percentile(ready.iter().copied(), 50));
    report["join_to_request_s"] = json!(percentile(answered.iter().copied(), 50));
    report["all_joins_s"] = json!({ "ready": ready, "request": answered });
    Ok(())
}

async fn exports(bed: &Bed, count: usize, report: &mut Value) -> Result<()> {
    bulk::serve(bed, count).await?;
    let lags = bulk::export(bed, count).await?;
    println!(
        "exports: {count} imported {:.2} s after the last of them was created ({:.1} s for all), all told after {:.1} s",
        lags.imported, lags.creating, lags.told
    );
    report["bulk_lag_s"] = json!(lags.imported);
    report["bulk_told_s"] = json!(lags.told);
    report["bulk_creating_s"] = json!(lags.creating);
    Ok(())
}

async fn steering(bed: &Bed, trials: u32, report: &mut Value) -> Result<()> {
    let steer = steer::ready(bed, trials).await?;
    report["steer_ms"] = figures(&steer);
    println!("steer: {}", report["steer_ms"]);
    let export = steer::exported(bed, trials.div_ceil(2)).await?;
    report["export_to_request_ms"] = figures(&export);
    println!("export to request: {}", report["export_to_request_ms"]);
    for (cluster, namespace) in [(&bed.leader, EXCHANGE), (&bed.east, MEMBER), (&bed.west, MEMBER)] {
        let (_, pid) = members::controller(cluster, namespace).await?;
        let usage = process::usage(pid)?;
        println!("{}: {usage:?}", cluster.name);
        report["rss_mib"][cluster.name] = json!(usage.rss_mib);
        report["peak_mib"][cluster.name] = json!(usage.peak_mib);
        report["cpu_s"][cluster.name] = json!(usage.cpu_s);
    }
    Ok(())
}

async fn many(bed: &Bed, members: usize, report: &mut Value) -> Result<()> {
    let outcome = members::run(bed, members).await?;
    report["members"] = json!(members);
    report["member_exports"] = json!(outcome.exports);
    report["member_imports"] = json!(outcome.imports);
    report["members_imported_s"] = json!(outcome.imported_s);
    report["leader_rss_mib"] = json!(outcome.usage.peak_mib.max(outcome.resynced.peak_mib));
    report["leader_cpu_s"] = json!(outcome.usage.cpu_s);
    report["resync_s"] = json!(outcome.resync_s);
    Ok(())
}

/// Median, 99th percentile and largest.
fn figures(of: &[f64]) -> Value {
    let at = |percent| percentile(of.iter().copied(), percent);
    json!({ "p50": at(50), "p99": at(99), "max": at(100) })
}
