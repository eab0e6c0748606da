//! `cargo xtask test --suite mutants`: seeded bugs that the tests must detect.
//!
//! Each of `tests/mutants/*.patch` is a bug of a class known from controllers and data paths, and names the test that
//! must fail with it. The patches are applied, one at a time, to a copy of the sources, so that the checkout never
//! changes. The copy has its own target directory, so that only changed crates are compiled. `MC_MUTANT=07,12` selects
//! mutants by parts of their names.

mod mutant;
pub(crate) mod sensitivity;
mod source_copy;

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use self::{
    mutant::{Mutant, TestSelection},
    source_copy::SourceCopy,
};
use crate::{
    build, cmd, ebpf,
    test_summary::{ResultReader, TestSummary},
};

/// Time limit of a test; a test that does not end has not failed.
const TEST_TIMEOUT: Duration = Duration::from_mins(5);
/// Time limit of the build, which compiles all dependencies the first time.
const BUILD_TIMEOUT: Duration = Duration::from_mins(30);
/// Exit code of [`cmd::cargo_within`] after a timeout.
const TIMEOUT_EXIT_CODE: i32 = 124;
/// Number of output lines in an error.
const MAX_SHOWN_LINES: usize = 40;

/// Result of a test on a seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detection {
    /// It failed.
    Caught,
    /// It passed.
    Missed,
}

/// Tries every mutant; the last line has the number of detected ones.
pub(crate) fn run(summary: &mut TestSummary) -> Result<()> {
    let start = Instant::now();
    let mutants = selected()?;
    let tree = source_copy()?;
    let tests: BTreeSet<_> = mutants.iter().map(|mutant| &mutant.test).collect();
    println!(
        "== mutants: {} selections of tests without a bug (the first run compiles all dependencies)",
        tests.len()
    );
    for test in tests {
        let verdict = verdict(&tree, test).with_context(|| format!("without a bug: {test}"))?;
        ensure!(verdict == Detection::Missed, "fails without a bug: {test}");
    }
    let mut caught = 0;
    for mutant in &mutants {
        let began = Instant::now();
        let result = test_mutant(&tree, mutant);
        tree.sync()?;
        let seconds = began.elapsed().as_secs_f32();
        caught += u32::from(matches!(result, Ok(Detection::Caught)));
        let outcome = match result {
            Ok(Detection::Caught) => Ok(()),
            Ok(Detection::Missed) => Err(anyhow::anyhow!(
                "undetected: {} (class: {}); {} passes",
                mutant.bug,
                mutant.class,
                mutant.test
            )),
            Err(error) => Err(error),
        };
        summary.step(&format!("{} is caught, {seconds:.0} s", mutant.name), outcome);
    }
    println!(
        "mutants: {} seeded, {caught} caught, {:.0} s",
        mutants.len(),
        start.elapsed().as_secs_f32()
    );
    Ok(())
}

/// Fails with every mutant that no longer applies to the sources or names a test that does not exist.
pub(crate) fn check() -> Result<()> {
    let defects: Vec<_> = defects()?.into_iter().flat_map(|(_, defects)| defects).collect();
    if defects.is_empty() {
        return Ok(());
    }
    bail!("{}", defects.join("\n"))
}

/// Prints every mutant with `ok` or its defects; fails if there are any.
pub(crate) fn list() -> Result<()> {
    let all = defects()?;
    for (mutant, defects) in &all {
        if defects.is_empty() {
            println!("ok: {}", mutant.name);
        }
        for defect in defects {
            println!("FAILED: {defect}");
        }
    }
    let broken = all.iter().filter(|(_, defects)| !defects.is_empty()).count();
    println!("mutants: {} seeded, {broken} to be remade", all.len());
    ensure!(broken == 0, "{broken} mutants have to be remade");
    Ok(())
}

/// Every mutant with the reasons why it cannot be tried.
fn defects() -> Result<Vec<(Mutant, Vec<String>)>> {
    let root = cmd::workspace();
    let sources = sources(&root)?;
    let mut all_defects = Vec::new();
    for mutant in all()? {
        let mut defects = Vec::new();
        let applied = cmd::capture(
            Command::new("git")
                .current_dir(&root)
                .args(["apply", "--check"])
                .arg(&mutant.patch),
        );
        if let Err(error) = applied {
            defects.push(format!("{}: does not apply: {error:#}", mutant.name));
        }
        for test in mutant.test.names() {
            let function = test.rsplit("::").next().unwrap_or(test);
            let definition = format!("fn {function}(");
            if !sources.iter().any(|text| text.contains(&definition)) {
                defects.push(format!("{}: no test {test}", mutant.name));
            }
        }
        all_defects.push((mutant, defects));
    }
    Ok(all_defects)
}

/// The mutants that `MC_MUTANT` names, or all.
fn selected() -> Result<Vec<Mutant>> {
    let only = env::var("MC_MUTANT").unwrap_or_default();
    let mut mutants = all()?;
    mutants.retain(|mutant| only.split(',').any(|part| mutant.name.contains(part)));
    ensure!(!mutants.is_empty(), "no mutant has a name with {only:?}");
    Ok(mutants)
}

fn source_copy() -> Result<SourceCopy> {
    let object = ebpf::build(&cmd::workspace())?.path;
    SourceCopy::new(&build::target_dir()?.join("mutants"), object)
}

/// All mutants, by name.
fn all() -> Result<Vec<Mutant>> {
    let dir = cmd::workspace().join("tests/mutants");
    let entries = fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
    let mut patches = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>>>()?;
    patches.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    patches.sort();
    patches.iter().map(|patch| Mutant::read(patch)).collect()
}

/// The texts of all Rust files.
fn sources(root: &Path) -> Result<Vec<String>> {
    let read = |file: String| {
        let path = root.join(file);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let files = cmd::workspace_files()?.into_iter();
    files
        .filter(|file| {
            Path::new(file)
                .extension()
                .is_some_and(|extension| extension == "rs")
        })
        .map(read)
        .collect()
}

fn test_mutant(tree: &SourceCopy, mutant: &Mutant) -> Result<Detection> {
    tree.apply(&mutant.patch)?;
    verdict(tree, &mutant.test)
}

/// Runs the tests on the sources in `tree`. A bug that does not compile and a test that does not end prove nothing.
fn verdict(run_tests: &SourceCopy, selection: &TestSelection) -> Result<Detection> {
    compile(run_tests.cargo(BUILD_TIMEOUT.as_secs()).args(selection.build()))?;
    let mut command = run_tests.cargo(TEST_TIMEOUT.as_secs());
    let ran = command
        .args(selection.run())
        .envs(selection.environment())
        .output()?;
    classify(&ran, selection)
}

/// Runs the build of tests.
fn compile(command: &mut Command) -> Result<()> {
    let built = command.output()?;
    ensure!(
        built.status.success(),
        "it does not compile:\n{}",
        last_lines(&built)
    );
    Ok(())
}

/// The results of the tests in the output of a test program.
fn results(text: &str) -> TestSummary {
    let mut results = ResultReader::default();
    for line in text.lines() {
        results.read_line(line);
    }
    results.summary()
}

fn classify(ran: &Output, selection: &TestSelection) -> Result<Detection> {
    if ran.status.code() == Some(TIMEOUT_EXIT_CODE) {
        bail!("the test does not end within {} s", TEST_TIMEOUT.as_secs());
    }
    let text = String::from_utf8_lossy(&ran.stdout);
    let failed = selection.names().any(|name| {
        let line = format!("test {name} ... FAILED");
        text.lines().any(|l| l == line)
    });
    match (ran.status.success(), failed, results(&text)) {
        (false, true, _) => Ok(Detection::Caught),
        (
            true,
            false,
            TestSummary {
                passed: 1..,
                failed: 0,
                ..
            },
        ) => Ok(Detection::Missed),
        (true, false, TestSummary { passed: 0, .. }) => bail!("the test does not exist or was skipped"),
        _ => bail!("the test neither passed nor failed:\n{}", last_lines(ran)),
    }
}

/// The last lines of a program's output.
fn last_lines(output: &Output) -> String {
    let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let text = text.concat();
    let lines: Vec<_> = text.lines().collect();
    let first = lines.len().saturating_sub(MAX_SHOWN_LINES);
    lines.get(first..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// The output of a program that ended with an exit code.
    pub(super) fn output(code: i32, stdout: &str) -> Output {
        Output {
            status: std::process::ExitStatus::from_raw(code << 8),
            stdout: stdout.as_bytes().to_vec(),
            stderr: vec![],
        }
    }

    #[test]
    fn only_a_failed_test_detects_a_bug() {
        let test: TestSelection = "cargo test -p p --lib -- --exact a::b".parse().unwrap();
        let verdict = |code, text: &str| classify(&output(code, text), &test).ok();
        let failed = "test a::b ... FAILED\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        let passed = "test a::b ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert_eq!(verdict(101, failed), Some(Detection::Caught));
        assert_eq!(verdict(0, passed), Some(Detection::Missed));
        // No such test, a crash, a timeout, another test.
        assert_eq!(
            verdict(0, "test result: ok. 0 passed; 0 failed; 0 ignored\n"),
            None
        );
        assert_eq!(verdict(101, "running 1 test\n"), None);
        assert_eq!(verdict(TIMEOUT_EXIT_CODE, failed), None);
        assert_eq!(verdict(101, &failed.replace("a::b", "a::c")), None);
    }
}
