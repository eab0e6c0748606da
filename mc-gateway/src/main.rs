//! The `mc-gateway` binary: command line, log, exit code.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use mc_gateway::config::{Cli, Command, Config, LogFormat, Paths, TraceArgs};
use mc_gateway::trace::packet::TraceFlow;
use mc_gateway::trace::{self, TraceResult};
use mc_gateway::{EBPF_OBJECT, agent, cleanup, inspect, peer_secret};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mc-gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    match cli.command.unwrap_or(Command::Run(Box::new(cli.run))) {
        Command::Run(args) => {
            log_to_stderr(args.log_format);
            let config = Config::try_from(*args)?;
            let read =
                |path: &PathBuf| fs::read(path).with_context(|| format!("--program-log {}", path.display()));
            let logging = config.program_log.as_ref().map(read).transpose()?;
            runtime.block_on(agent::run(config, logging.as_deref().unwrap_or(EBPF_OBJECT)))?;
        }
        Command::Cleanup(args) => {
            log_to_stderr(LogFormat::Text);
            let paths = Paths::try_from(args.paths)?;
            runtime.block_on(cleanup::cleanup(&paths))?;
        }
        Command::Inspect(args) => {
            log_to_stderr(LogFormat::Text);
            let paths = Paths::try_from(args.paths)?;
            let text = runtime.block_on(inspect::inspect(&paths, &args.sections, args.output))?;
            print(&text)?;
        }
        Command::PublicKey(args) => {
            let secrets = peer_secret::load_or_create(&args.key_file)?;
            print(&format!("{}\n", secrets.public_key()))?;
        }
        Command::Trace(args) => return Ok(run_trace(args)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a trace; the exit code is the fate of the packet.
fn run_trace(args: TraceArgs) -> ExitCode {
    /// Exit code of an unknown result.
    const EXIT_UNKNOWN: u8 = 2;
    let flow = TraceFlow {
        src: args.src,
        dst: args.dst,
        protocol: args.protocol,
        identity: args.identity,
    };
    let report = Paths::try_from(args.paths)
        .map_err(anyhow::Error::from)
        .and_then(|paths| Ok(trace::trace(&paths, &flow, &args.from)?))
        .and_then(|report| print(&report.text).map(|()| report));
    match report {
        Ok(report) => match report.result {
            TraceResult::Forwarded => ExitCode::SUCCESS,
            TraceResult::Dropped => ExitCode::FAILURE,
            TraceResult::Unknown => ExitCode::from(EXIT_UNKNOWN),
        },
        Err(error) => {
            eprintln!("mc-gateway: {error:#}");
            ExitCode::from(EXIT_UNKNOWN)
        }
    }
}

/// Prints to standard output; a closed pipe is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("print"),
        _ => Ok(()),
    }
}

/// Logs to standard error, filtered by `RUST_LOG`; by default `info` of this crate. Connection errors of the Kubernetes
/// client are part of its messages.
fn log_to_stderr(format: LogFormat) {
    let default = "warn,kube_client=off,mc_gateway=info,drops=info,programs=info".to_owned();
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
