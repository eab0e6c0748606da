//! `cargo bench --bench agent`: CPU time and memory of the agent's pure stages in large ClusterSets.
//!
//! Each world is measured in a process of its own. `MC_ONLY` selects worlds. Not included: reading of objects, netlink,
//! nftables and system calls on maps.

mod policies;
mod world;

use std::env;
use std::fs;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use mc_gateway::desired::{DesiredCache, Established, LocalNode, compute};
use mc_gateway::objects::Objects;
use mc_gateway::peer_secret::PeerSecrets;
use mc_gateway::plan::{ObservedState, PlanCache, execute_in_memory, plan};
use mc_gateway::resolved::model::{connected_host, settings};
use mc_gateway::resolved::{ResolutionCache, Settings, resolve};
use mc_gateway::service_history::ServiceHistory;
use nix::time::{ClockId, clock_gettime};
use world::{CHANGES, OWN_NODE, SIZES, Size};

/// Variable with the name of the world that this process measures.
const WORLD: &str = "MC_AGENT_WORLD";
/// Repetitions of a change; the median is printed.
const REPETITIONS: u32 = 5;
/// Limits with policies in milliseconds: of the first reconcile, and of one after a change.
const POLICY_LIMITS: (f64, f64) = (2_000.0, 50.0);

fn main() -> Result<()> {
    if let Ok(name) = env::var(WORLD) {
        let size = SIZES.into_iter().find(|size| size.name == name);
        return measure(size.context("an unknown world")?);
    }
    let only = env::var("MC_ONLY").unwrap_or_default();
    println!("CPU time in ms: compute + resolve + plan = sum; memory of the process in MiB");
    for size in SIZES {
        if only.is_empty() || only.split(',').any(|name| name == size.name) {
            let status = Command::new(env::current_exe()?).env(WORLD, size.name).status()?;
            ensure!(status.success(), "world {}: {status}", size.name);
        }
    }
    Ok(())
}

/// CPU time of this thread in milliseconds.
fn cpu_ms() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    let seconds = u32::try_from(time.tv_sec())?;
    let nanos = u32::try_from(time.tv_nsec())?;
    Ok(f64::from(seconds) * 1e3 + f64::from(nanos) / 1e6)
}

/// Resident memory of this process in MiB, now (`VmRSS`) or at its peak (`VmHWM`).
fn memory_mib(key: &str) -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .context("status")?;
    let kib: u32 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse()?;
    Ok(f64::from(kib) / 1024.0)
}

/// CPU time of the stages of a reconcile in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    compute: f64,
    resolve: f64,
    plan: f64,
}

impl Times {
    fn sum(self) -> f64 {
        self.compute + self.resolve + self.plan
    }
}

/// The agent's memory between two reconciles, and the node.
struct Agent {
    me: LocalNode,
    secrets: PeerSecrets,
    history: ServiceHistory,
    desired: DesiredCache,
    resolutions: ResolutionCache,
    plans: PlanCache,
    node: ObservedState,
}

impl Agent {
    fn new() -> Self {
        let secrets = PeerSecrets::new([1; 32]);
        Self {
            me: LocalNode {
                node_name: OWN_NODE.to_owned(),
                cluster_id: Some("local".to_owned()),
                ..LocalNode::default()
            },
            secrets,
            history: ServiceHistory::default(),
            desired: DesiredCache::default(),
            resolutions: ResolutionCache::default(),
            plans: PlanCache::default(),
            node: ObservedState::default(),
        }
    }

    /// Reconciles the node; the first plan only creates the device.
    fn reconcile(&mut self, objects: &Objects) -> Result<Times> {
        let mut times = Times::default();
        let began = cpu_ms()?;
        let established = Established::new(self.me.cluster_id_key, self.node.prefixes.clone());
        let (mut desired, rejected) = compute(objects, &self.me, &established, &mut self.desired)?;
        ensure!(rejected.is_empty(), "{rejected:?}");
        if let Some(services) = &mut desired.services {
            self.history.record(&services.endpoints);
            let past = self.history.past_tables(services);
            Arc::make_mut(services).past = past;
        }
        times.compute = cpu_ms()? - began;
        self.secrets.retain(&desired.public_keys());
        let host = connected_host(&desired, world::own_addr());
        let mut cache = std::mem::take(&mut self.resolutions);
        for _ in 0..4 {
            let began = cpu_ms()?;
            let settings = Settings {
                has_tunnel_devices: true,
                ..settings(OWN_NODE, &self.secrets, &self.node.groups)
            };
            let resolution = resolve(&desired, &host, &settings, &mut cache);
            times.resolve += cpu_ms()? - began;
            let began = cpu_ms()?;
            let plan = plan(&self.node, &resolution.state, "mc0", &mut self.plans)?;
            times.plan += cpu_ms()? - began;
            if plan.actions.is_empty() {
                self.resolutions = cache;
                return Ok(times);
            }
            for action in plan.actions {
                execute_in_memory(&mut self.node, action);
            }
        }
        anyhow::bail!("not converged");
    }
}

/// Measures the first reconcile of a world and one after each kind of change.
fn measure(size: Size) -> Result<()> {
    let before = memory_mib("VmRSS:")?;
    let mut objects = world::objects(size);
    let with_objects = memory_mib("VmRSS:")?;
    let mut agent = Agent::new();
    let first = agent.reconcile(&objects)?;
    println!("\nworld {}: {size:?}", size.name);
    print_times("first", first);
    let (first_limit, change_limit) = if size.policies > 0 {
        POLICY_LIMITS
    } else {
        (f64::INFINITY, f64::INFINITY)
    };
    ensure!(first.sum() <= first_limit, "more than {first_limit} ms");
    for change in CHANGES {
        let mut all = Vec::new();
        for n in 0..REPETITIONS {
            if !change.apply(&mut objects, n)? {
                break;
            }
            all.push(agent.reconcile(&objects)?);
        }
        all.sort_by(|a, b| a.sum().total_cmp(&b.sum()));
        if let Some(median) = all.get(all.len() / 2) {
            print_times(&format!("{change:?}").to_lowercase(), *median);
            ensure!(median.sum() <= change_limit, "more than {change_limit} ms");
        }
    }
    println!(
        "  memory: {before:.1} before, {with_objects:.1} with objects, {:.1} now, {:.1} peak",
        memory_mib("VmRSS:")?,
        memory_mib("VmHWM:")?
    );
    Ok(())
}

fn print_times(name: &str, times: Times) {
    let Times {
        compute,
        resolve,
        plan,
    } = times;
    let sum = times.sum();
    println!("  {name:<9} {compute:9.2} + {resolve:8.2} + {plan:8.2} = {sum:9.2}");
}
