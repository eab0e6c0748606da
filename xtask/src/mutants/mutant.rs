//! A seeded bug: its description, class, test and patch.

use std::{
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, Error, Result, bail, ensure};

/// A bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mutant {
    /// The name of its file.
    pub(super) name: String,
    /// Its description.
    pub(super) bug: String,
    /// Its class.
    pub(super) class: String,
    /// The tests that must fail.
    pub(super) test: TestSelection,
    /// Whether it is one of those that measure the simulation.
    pub(super) measures_sim: bool,
    /// Its file.
    pub(super) patch: PathBuf,
}

/// Tests: `[NAME=VALUE…] cargo test … -- --exact TEST…`, as a person would type it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TestSelection {
    environment: Vec<(String, String)>,
    /// Arguments of cargo.
    cargo: Vec<String>,
    /// Arguments of the test program.
    program: Vec<String>,
}

// === impl Mutant ===

impl Mutant {
    /// Reads its file: lines `Bug:`, `Class:`, `Test:` and perhaps `Sim: yes`, then the patch.
    pub(super) fn read(patch: &Path) -> Result<Self> {
        let text = fs::read_to_string(patch).with_context(|| patch.display().to_string())?;
        Self::parse(patch, &text).with_context(|| patch.display().to_string())
    }

    fn parse(patch: &Path, text: &str) -> Result<Self> {
        let header = || text.lines().take_while(|line| !line.starts_with("--- "));
        let line = |key: &str| {
            let mut found = header().filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            match (found.next(), found.next()) {
                (Some(value), None) if !value.trim().is_empty() => Ok(value.trim()),
                _ => bail!("expected one line \"{key}: …\" before the patch"),
            }
        };
        Ok(Self {
            name: patch
                .file_stem()
                .and_then(OsStr::to_str)
                .unwrap_or_default()
                .to_owned(),
            bug: line("Bug")?.to_owned(),
            class: line("Class")?.to_owned(),
            test: line("Test")?.parse()?,
            measures_sim: header().any(|line| line == "Sim: yes"),
            patch: patch.to_owned(),
        })
    }
}

// === impl Selection ===

impl TestSelection {
    /// The names of the tests.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let words = self.program.iter().map(String::as_str);
        words.filter(|word| !word.starts_with('-'))
    }

    /// Environment variables.
    pub(super) fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Arguments of cargo that build the tests.
    pub(super) fn build(&self) -> impl Iterator<Item = &str> {
        let words = self.cargo.iter().map(String::as_str);
        words.chain(["--locked", "--quiet", "--no-run"])
    }

    /// Arguments of cargo that run the tests.
    pub(super) fn run(&self) -> impl Iterator<Item = &str> {
        let words = self.cargo.iter().map(String::as_str);
        words
            .chain(["--locked", "--"])
            .chain(self.program.iter().map(String::as_str))
    }
}

impl FromStr for TestSelection {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut selection = Self::default();
        let mut words = text.split_whitespace().peekable();
        while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
            selection.environment.push((name.to_owned(), value.to_owned()));
            words.next();
        }
        ensure!(words.next() == Some("cargo"), "{text:?}: no cargo");
        let mut words = words.map(str::to_owned);
        selection.cargo = words.by_ref().take_while(|word| word != "--").collect();
        selection.program = words.collect();
        ensure!(
            selection.cargo.first().is_some_and(|word| word == "test"),
            "{text:?}: not \"cargo test\""
        );
        // Without it every test whose name contains this one would run.
        ensure!(
            selection.program.iter().any(|word| word == "--exact"),
            "{text:?}: not \"-- --exact TEST…\""
        );
        ensure!(selection.names().next().is_some(), "{text:?} names no test");
        Ok(selection)
    }
}

impl fmt::Display for TestSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={value} ")?;
        }
        write!(f, "cargo {} -- {}", self.cargo.join(" "), self.program.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "MC_SIM_SEEDS=40 cargo test -p mc-tests --test sim -- --exact seeds";

    #[test]
    fn a_header_has_every_field_once() {
        let good =
            format!("Bug: deletes\nClass: silence\nTest: {TEST}\n\n--- a/x\n+++ b/x\nBug: of the patch\n");
        let path = Path::new("tests/mutants/01-silence.patch");
        let mutant = Mutant::parse(path, &good).unwrap();
        assert_eq!((&*mutant.name, &*mutant.bug), ("01-silence", "deletes"));
        for bad in [
            good.replace("Class: silence\n", ""),
            good.replace("Class: silence", "Class: "),
            format!("Bug: twice\n{good}"),
            good.replace("cargo test", "cargo bench"),
            good.replace("--exact ", ""),
            good.replace(" seeds", ""),
        ] {
            assert!(Mutant::parse(path, &bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_selection_is_built_and_run_as_it_is_written() {
        let selection: TestSelection = TEST.parse().unwrap();
        assert_eq!(selection.to_string(), TEST);
        assert_eq!(
            selection.build().collect::<Vec<_>>().join(" "),
            "test -p mc-tests --test sim --locked --quiet --no-run"
        );
        assert_eq!(
            selection.run().collect::<Vec<_>>().join(" "),
            "test -p mc-tests --test sim --locked -- --exact seeds"
        );
        assert_eq!(
            selection.environment().collect::<Vec<_>>(),
            [("MC_SIM_SEEDS", "40")]
        );
    }
}
