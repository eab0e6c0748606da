//! `mc-controller`: the leader and member controllers, and their CRDs.
#![forbid(unsafe_code)]

mod cli;
mod crds;
mod elected;
mod log;

use std::{process::ExitCode, sync::Arc};

use clap::Parser;
use controller::{
    metrics::Role,
    runtime::{self, env::SystemEnvironment},
};
use mc_api::names;
use mc_kube::Multiplexing;

use self::cli::{Cli, Command, Crds};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mc-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Leader(args) => {
            let (config, metrics) = args.prepare(Role::Leader)?;
            let client = args.client(Multiplexing::Shared).await?;
            let namespace = args.namespace_or(names::LEADER_NAMESPACE);
            let election = args.election(&namespace, names::LEASE_LEADER, &metrics).await?;
            elected::run(election, |fence| {
                let env = Arc::new(SystemEnvironment);
                runtime::leader::run(client, namespace, config, fence, env, metrics)
            })
            .await
        }
        Command::Member(args) => {
            let (config, metrics) = args.prepare(Role::Member)?;
            let client = args.client(Multiplexing::Shared).await?;
            let namespace = args.namespace_or(names::MEMBER_NAMESPACE);
            let election = args.election(&namespace, names::LEASE_MEMBER, &metrics).await?;
            elected::run(election, |fence| {
                let env = Arc::new(SystemEnvironment);
                runtime::member::run(client, namespace, config, fence, env, metrics)
            })
            .await
        }
        Command::Crds(Crds { out: Some(dir), .. }) => crds::write(&dir),
        Command::Crds(Crds { check: Some(dir), .. }) => crds::check(&dir),
        Command::Crds(_) => Ok(()),
    }
}
