//! `mc-gateway`: flags, log, exit code.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use mc_gateway::config::{Cli, Command, Config, LogFormat, Place};
use mc_gateway::{EBPF_OBJECT, agent, cleanup};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mc-gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    match cli.command.unwrap_or(Command::Run(cli.run)) {
        Command::Run(args) => {
            log_to_stderr(args.log_format);
            let config = Config::try_from(args)?;
            Ok(runtime.block_on(agent::run(config, EBPF_OBJECT))?)
        }
        Command::Cleanup(args) => {
            log_to_stderr(LogFormat::Text);
            let place = Place::try_from(args.place)?;
            Ok(runtime.block_on(cleanup::cleanup(&place))?)
        }
    }
}

/// `RUST_LOG` chooses what is logged; by default `info` of ours. What the Kubernetes client says about
/// broken connections is in our own messages.
fn log_to_stderr(format: LogFormat) {
    let default = "warn,kube_client=off,mc_gateway=info".to_owned();
    let wanted = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let filter = EnvFilter::new(wanted.unwrap_or(default));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().init(),
    }
}
