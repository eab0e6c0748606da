//! Budget of verified instructions by program and kernel: counts may fall, not rise.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail};

/// Allowed excess over the recorded count, in percent.
const TOLERANCE_PERCENT: u32 = 5;
/// Limit for every program and kernel. The verifier rejects a program at a million, and is slow long before.
const MAX_INSNS: u32 = 50_000;

const HEADER: &str = "# Verified instructions by kernel and program (bpf_prog_info.verified_insns).\n\
                    # `cargo xtask matrix` fails if a count is more than 5 % higher, or above 50000; `--update` records the counts.\n";

/// Counts by program.
pub(super) type InsnCounts = BTreeMap<String, u32>;

/// The recorded counts, by kernel series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InsnBudget {
    kernels: BTreeMap<String, InsnCounts>,
}

impl InsnBudget {
    /// Reads the file; an absent file is an empty budget.
    pub(super) fn read(path: &Path) -> Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let kernels = toml::from_str(text).context("expected [\"kernel\"] with program = count")?;
        Ok(Self { kernels })
    }

    /// Replaces the counts of a kernel.
    pub(super) fn set(&mut self, kernel: &str, counts: &InsnCounts) {
        self.kernels.insert(kernel.to_owned(), counts.clone());
    }

    /// Writes the file.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = format!("{HEADER}\n{}", toml::to_string(&self.kernels)?);
        fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Fails if a program exceeds the limit for all programs.
    pub(super) fn check_maximum(kernel: &str, measured: &InsnCounts) -> Result<()> {
        for (program, count) in measured {
            if *count > MAX_INSNS {
                bail!("{program} has {count} verified instructions on {kernel}, more than {MAX_INSNS}");
            }
        }
        Ok(())
    }

    /// Fails if a program exceeds its recorded count.
    pub(super) fn check(&self, kernel: &str, measured: &InsnCounts) -> Result<()> {
        let Some(recorded) = self.kernels.get(kernel) else {
            println!(
                "{kernel}: no recorded counts; `cargo xtask matrix --kernel {kernel} --update` records them"
            );
            return Ok(());
        };
        for (program, count) in measured {
            let Some(known) = recorded.get(program) else {
                bail!("{program} has no recorded count on {kernel}: run with --update");
            };
            let most = known.saturating_add(known / (100 / TOLERANCE_PERCENT));
            if *count > most {
                bail!(
                    "{program} has {count} verified instructions on {kernel}, {known} are recorded; \
                     simplify it, or run with --update"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(n: u32) -> InsnCounts {
        [("to_remote".to_owned(), n)].into()
    }

    #[test]
    fn five_percent_more_passes_and_one_instruction_more_fails() {
        let budget = InsnBudget::parse("# c\n[\"6.1\"]\nto_remote = 1000\n").unwrap();
        budget.check("6.1", &counts(1050)).unwrap();
        budget.check("6.12", &counts(9999)).unwrap();
        let error = budget.check("6.1", &counts(1051)).unwrap_err().to_string();
        assert!(error.contains("to_remote has 1051"), "{error}");
    }

    #[test]
    fn the_limit_holds_for_any_recorded_count() {
        InsnBudget::check_maximum("6.1", &counts(MAX_INSNS)).unwrap();
        let error = InsnBudget::check_maximum("6.1", &counts(MAX_INSNS + 1)).unwrap_err();
        assert!(error.to_string().contains("more than 50000"), "{error}");
    }

    #[test]
    fn a_written_budget_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("budget.toml");
        assert_eq!(InsnBudget::read(&path).unwrap(), InsnBudget::default());
        let mut budget = InsnBudget::default();
        budget.set("6.1", &counts(5));
        budget.set("6.12", &counts(6));
        budget.write(&path).unwrap();
        assert_eq!(InsnBudget::read(&path).unwrap(), budget);
        assert!(InsnBudget::parse("to_remote = 1").is_err());
    }
}
