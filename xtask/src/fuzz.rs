//! `cargo xtask test --suite fuzz`: every target under libFuzzer, beginning with the kept corpus.
//!
//! `libfuzzer-sys` contains libFuzzer as C++ source, and stable rustc has the coverage pass: neither a nightly
//! toolchain nor clang nor an installed fuzzer is needed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail};

use crate::{build, cmd, setup};

/// Packages that compile libFuzzer.
const PACKAGES: &[&str] = &["g++"];
/// Targets and their share of the time, more for packet handling than for objects written by hand.
const TARGETS: [(&str, u32); 9] = [
    ("to_remote", 2),
    ("from_underlay", 3),
    ("too_big", 2),
    ("services", 2),
    ("liveness", 1),
    ("manifests", 1),
    ("cluster_info", 1),
    ("cidr", 1),
    ("sample", 1),
];
/// Seconds of one share, in the gate and with `--long`.
const SHARE: u32 = 4;
const LONG_SHARE: u32 = 120;
/// Fewest executions per second of a target, in total over its time; fewer mean that it hardly ran.
const MIN_RATE: u64 = 100;
/// Longest input in bytes; frames get longer by a number in the input.
const MAX_LEN: u32 = 2_048;

/// Figures of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FuzzStats {
    executions: u64,
    edges: u64,
}

/// Replays the corpus and fuzzes; the last line has the figures.
pub(crate) fn run(long: bool) -> Result<()> {
    setup::ensure_packages("the fuzz targets", PACKAGES)?;
    let seed = seed()?;
    let programs = build()?;
    let work = build::target_dir()?.join("fuzz");
    let share = if long { LONG_SHARE } else { SHARE };
    println!("== fuzz: {share} s a share, seed {seed}");
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let mut waiting = TARGETS.iter();
    let mut running: Vec<FuzzProcess> = Vec::new();
    let (mut all, mut failed) = (FuzzStats::default(), Vec::new());
    loop {
        while running.len() < workers
            && let Some((name, shares)) = waiting.next()
        {
            running.push(FuzzProcess::start(&programs, &work, name, share * shares, seed)?);
        }
        if running.is_empty() {
            break;
        }
        let mut one = running.remove(0);
        match one.wait() {
            Ok(figures) => {
                println!(
                    "{}: {} executions, {} edges",
                    one.name, figures.executions, figures.edges
                );
                all.executions += figures.executions;
                all.edges += figures.edges;
            }
            Err(error) => failed.push(format!("{}: {error:#}", one.name)),
        }
    }
    let kept = TARGETS
        .iter()
        .map(|(name, _)| count_files(&corpus(name)))
        .sum::<Result<usize>>()?;
    println!(
        "fuzz: {} executions of {} targets, {kept} kept inputs, {} edges covered, {} crashes, seed {seed}",
        all.executions,
        TARGETS.len(),
        all.edges,
        failed.len()
    );
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{}", failed.join("; "))
}

/// The seed in `MC_SEED`, or a new one for every run.
fn seed() -> Result<u32> {
    if let Ok(seed) = std::env::var("MC_SEED") {
        return seed
            .parse()
            .with_context(|| format!("MC_SEED: {seed:?} is no number"));
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock")?;
    // libFuzzer chooses its own seed for 0.
    Ok(now.subsec_nanos().max(1))
}

/// Builds the targets: the usual selection of packages, so that dependencies are compiled once, but with
/// coverage counters in our own crates.
fn build() -> Result<PathBuf> {
    let mut command = cmd::cargo();
    command
        .args(["build", "--quiet", "--locked", "--release"])
        .args(["--features", "mc-fuzz/libfuzzer"])
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            cmd::workspace().join("tests/fuzz/instrument.sh"),
        );
    for (name, _) in TARGETS {
        command.args(["--bin", name]);
    }
    cmd::inherit(&mut command).context("building the fuzz targets")?;
    Ok(build::target_dir()?.join("release"))
}

/// The inputs a target keeps in the repository.
fn corpus(name: &str) -> PathBuf {
    cmd::workspace().join("tests/fuzz/corpus").join(name)
}

fn count_files(dir: &Path) -> Result<usize> {
    Ok(fs::read_dir(dir)
        .with_context(|| dir.display().to_string())?
        .count())
}

/// A running target.
struct FuzzProcess {
    name: &'static str,
    seconds: u32,
    child: Child,
    log: PathBuf,
}

impl FuzzProcess {
    fn start(programs: &Path, work: &Path, name: &'static str, seconds: u32, seed: u32) -> Result<Self> {
        // New inputs have a directory of their own: the corpus in the repository changes by hand only.
        let found = work.join("found").join(name);
        let crashes = work.join("crashes");
        for dir in [&found, &crashes] {
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        let log = work.join(format!("{name}.log"));
        let out = fs::File::create(&log).with_context(|| log.display().to_string())?;
        let child = Command::new(programs.join(name))
            .arg(&found)
            .arg(corpus(name))
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={MAX_LEN}"))
            .arg(format!("-seed={seed}"))
            .arg(format!("-artifact_prefix={}/{name}-", crashes.display()))
            .args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name,
            seconds,
            child,
            log,
        })
    }

    /// Waits for the process; the error of a crash has the last lines of its log.
    fn wait(&mut self) -> Result<FuzzStats> {
        let status = self.child.wait().context("waiting")?;
        let text = fs::read(&self.log).with_context(|| self.log.display().to_string())?;
        let text = String::from_utf8_lossy(&text);
        if !status.success() {
            let lines: Vec<_> = text.lines().collect();
            let last = lines.get(lines.len().saturating_sub(30)..).unwrap_or_default();
            bail!("{status}\n{}", last.join("\n"));
        }
        let figures = parse_stats(&text);
        let floor = MIN_RATE * u64::from(self.seconds);
        if figures.executions < floor {
            bail!(
                "{} executions in {} s are fewer than {floor}",
                figures.executions,
                self.seconds
            );
        }
        Ok(figures)
    }
}

/// Executions and edges in libFuzzer's log.
fn parse_stats(log: &str) -> FuzzStats {
    let mut figures = FuzzStats::default();
    for line in log.lines() {
        let mut words = line.split_whitespace();
        if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
            figures.executions = count.trim().parse().unwrap_or(0);
        } else if words.any(|word| word == "cov:") {
            figures.edges = words
                .next()
                .and_then(|count| count.parse().ok())
                .unwrap_or(figures.edges);
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_and_edges_are_parsed() {
        let log = "#2\tINITED cov: 12 ft: 20 corp: 3/9b exec/s: 0 rss: 27Mb\n\
                   #4096\tpulse  cov: 61 ft: 80 corp: 9/99b lim: 8 exec/s: 2048 rss: 30Mb\n\
                   Done 5000 runs in 4 second(s)\nstat::number_of_executed_units: 5000\n";
        assert_eq!(
            parse_stats(log),
            FuzzStats {
                executions: 5_000,
                edges: 61
            }
        );
        assert_eq!(parse_stats(""), FuzzStats::default());
    }
}
