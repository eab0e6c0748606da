//! `cargo xtask demo`: traffic between two clusters, without Kubernetes by default, on real clusters with a flag.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{
    build,
    cluster::{self, Kubectl},
    setup,
    wait::{Poll, wait_for},
};

/// Options of the demo.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent command-line flags")]
pub(crate) struct DemoArgs {
    /// Run on three real Kubernetes clusters.
    #[arg(long)]
    kubernetes: bool,
    /// IPv6 addresses for Pods and nodes, instead of IPv4.
    #[arg(long, conflicts_with = "kubernetes")]
    ipv6: bool,
    /// Keep everything running, and print commands to try.
    #[arg(long)]
    keep: bool,
    /// Remove the leftovers of an earlier `--keep`.
    #[arg(long, conflicts_with_all = ["keep", "kubernetes", "ipv6"])]
    remove: bool,
}

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    if args.kubernetes {
        return kubernetes(args.keep);
    }
    let flags: Vec<String> = [
        ("--ipv6", args.ipv6),
        ("--keep", args.keep),
        ("--remove", args.remove),
    ]
    .into_iter()
    .filter(|(_, given)| *given)
    .map(|(flag, _)| flag.to_owned())
    .collect();
    build::run_program("the demo", "mc-demo", &flags)
}

const WORKLOAD: &str = include_str!("demo/workload.yaml");
const EXPORT: &str = include_str!("demo/export.yaml");
/// Time limit of a single step.
const DEADLINE: Duration = Duration::from_mins(2);

fn kubernetes(keep: bool) -> Result<()> {
    setup::require_root("the demo")?;
    setup::ensure_packages("the demo", build::PACKAGES)?;
    let kubeconfig = cluster::up_installed(cluster::Configuration::default())?;
    let shown = Walkthrough {
        kubectl: cluster::kubectl()?,
        kubeconfig,
    }
    .run();
    if keep {
        println!("\nThe clusters stay up. Try:");
        println!("  export KUBECONFIG=$(cargo xtask cluster kubeconfig)");
        println!("  kubectl --context east get clusterset,gateway,clusterinfoimport -n kube-system");
        println!("  kubectl --context leader get resourceexport,resourceimport -n antrea-multicluster");
        println!(
            "  cargo xtask cluster enter east-n1 -- bpftool map dump pinned /sys/fs/bpf/mc-gateway/east-n1/maps-v9/mc_prefixes"
        );
        println!("  cargo xtask cluster down");
        return shown;
    }
    shown.and(cluster::down())
}

/// The demo on running clusters.
struct Walkthrough {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
}

impl Walkthrough {
    fn run(&self) -> Result<()> {
        println!(
            "\n1. West runs two web servers on its regular node west-n2; east runs a client on its regular node east-n2."
        );
        for context in ["west", "east"] {
            self.kubectl(
                context,
                &[
                    "label",
                    "node",
                    &format!("{context}-n2"),
                    "multicluster-demo=true",
                    "--overwrite",
                ],
            )?;
            self.apply(context, WORKLOAD)?;
        }
        self.kubectl("east", &["scale", "deployment/web", "--replicas=0"])?;
        self.kubectl("west", &["rollout", "status", "deployment/web", "--timeout=120s"])?;
        self.kubectl(
            "east",
            &["wait", "--for=condition=Ready", "pod/client", "--timeout=120s"],
        )?;

        println!("\n2. West exports the Service:\n");
        print!("{EXPORT}");
        let start = Instant::now();
        self.apply("west", EXPORT)?;
        let address = wait_for("the imported Service in east", DEADLINE, || {
            Ok(poll_output(|| {
                self.kubectl(
                    "east",
                    &[
                        "get",
                        "service",
                        "antrea-mc-web",
                        "-o",
                        "jsonpath={.spec.clusterIP}",
                    ],
                )
            }))
        })?;
        println!(
            "\n   Imported into east after {:.1} s as antrea-mc-web, {address}.",
            start.elapsed().as_secs_f32()
        );

        println!("\n3. The client sends four requests:\n");
        let url = format!("http://{address}/");
        wait_for("an answer", DEADLINE, || Ok(poll_output(|| self.get(&url, 1))))?;
        print!("{}", self.get(&url, 4)?);

        self.show_state(&url)
    }

    /// Objects and maps, and traffic while no agent runs.
    fn show_state(&self, url: &str) -> Result<()> {
        println!("\n4. Objects of the leader, and the gateways:\n");
        print!(
            "{}",
            self.kubectl(
                "leader",
                &[
                    "get",
                    "resourceexport,resourceimport",
                    "-n",
                    "antrea-multicluster"
                ]
            )?
        );
        for context in ["east", "west"] {
            print!(
                "\n{context}:\n{}",
                self.kubectl(
                    context,
                    &["get", "gateway,clusterinfoimport", "-n", "kube-system"]
                )?
            );
        }

        println!(
            "\n5. Packets forwarded by east's gateway, counted by its eBPF programs (map mc_outcomes, key 1):\n"
        );
        let map = "/sys/fs/bpf/mc-gateway/east-n1/maps-v9/mc_outcomes";
        cluster::on_node(
            "east-n1",
            &[
                "bpftool", "map", "lookup", "pinned", map, "key", "1", "0", "0", "0",
            ],
        )?;

        println!(
            "\n6. All agents of both clusters are deleted; the programs stay attached and keep forwarding:\n"
        );
        for context in ["east", "west"] {
            self.kubectl(
                context,
                &[
                    "delete",
                    "pods",
                    "-n",
                    "kube-system",
                    "-l",
                    "app=mc-gateway",
                    "--wait=false",
                ],
            )?;
        }
        let answers = self.get(url, 20)?;
        println!("   {} of 20 requests answered.", answers.lines().count());
        if answers.lines().count() != 20 {
            bail!("requests were lost while no agent ran");
        }
        Ok(())
    }

    fn cluster(&self, context: &str) -> Kubectl {
        Kubectl::new(&self.kubectl, &self.kubeconfig, context)
    }

    fn kubectl(&self, context: &str, args: &[&str]) -> Result<String> {
        self.cluster(context).output(args)
    }

    fn apply(&self, context: &str, yaml: &str) -> Result<()> {
        self.cluster(context)
            .output_with_input(&["apply", "-f", "-"], yaml)
            .map(drop)
    }

    fn get(&self, url: &str, count: u32) -> Result<String> {
        let count = count.to_string();
        self.kubectl(
            "east",
            &[
                "exec",
                "client",
                "--",
                "/usr/bin/mc-traffic",
                "get",
                url,
                "--count",
                &count,
            ],
        )
    }
}

/// Maps errors and empty output to pending.
fn poll_output(look: impl FnOnce() -> Result<String>) -> Poll<String> {
    match look() {
        Ok(answer) if answer.is_empty() => Poll::Pending("nothing".to_owned()),
        Ok(answer) => Poll::Ready(answer),
        Err(error) => Poll::Pending(format!("{error:#}")),
    }
}
