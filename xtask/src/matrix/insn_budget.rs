//! Instructions the verifier walked per program and kernel: they may fall, not rise.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, bail};

/// How far above the recorded count a measured one may be, in percent.
const TOLERANCE_PERCENT: u32 = 5;
/// What no program may take on any kernel: the verifier gives up at a million, and loads slowly long before.
const MAX_INSNS: u32 = 50_000;

const HEADER: &str = "# Instructions the verifier walked to accept a program, by kernel (bpf_prog_info.verified_insns).\n\
                    # `cargo xtask matrix` fails where one is more than 5 % above, or above 50000; `--update` writes what it measures.\n";

/// Counts by program.
pub(super) type InsnCounts = BTreeMap<String, u32>;

/// The recorded counts, by kernel series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InsnBudget {
    kernels: BTreeMap<String, InsnCounts>,
}

impl InsnBudget {
    /// Reads the file; one that is missing records nothing.
    pub(super) fn read(path: &Path) -> Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// Reads the two forms of lines the file has: `["kernel"]` and `program = count`.
    fn parse(text: &str) -> Result<Self> {
        let mut ratchet = Self::default();
        let mut kernel = None;
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix("[\"").and_then(|rest| rest.strip_suffix("\"]")) {
                kernel = Some(ratchet.kernels.entry(name.to_owned()).or_default());
                continue;
            }
            let entry = line
                .split_once('=')
                .and_then(|(program, count)| Some((program.trim().to_owned(), count.trim().parse().ok()?)));
            match (&mut kernel, entry) {
                (Some(counts), Some((program, count))) => counts.insert(program, count),
                _ => bail!("cannot read the line {line:?}"),
            };
        }
        Ok(ratchet)
    }

    /// Replaces the counts of a kernel.
    pub(super) fn set(&mut self, kernel: &str, counts: &InsnCounts) {
        self.kernels.insert(kernel.to_owned(), counts.clone());
    }

    /// Writes the file.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut text = HEADER.to_owned();
        for (kernel, counts) in &self.kernels {
            write!(text, "\n[\"{kernel}\"]\n")?;
            for (program, count) in counts {
                writeln!(text, "{program} = {count}")?;
            }
        }
        fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Fails where a program takes more than any may.
    pub(super) fn check_maximum(kernel: &str, measured: &InsnCounts) -> Result<()> {
        for (program, count) in measured {
            if *count > MAX_INSNS {
                bail!("{program} takes {count} verified instructions on {kernel}, more than {MAX_INSNS}");
            }
        }
        Ok(())
    }

    /// Fails where a program takes more than it did.
    pub(super) fn check(&self, kernel: &str, measured: &InsnCounts) -> Result<()> {
        let Some(recorded) = self.kernels.get(kernel) else {
            println!(
                "{kernel}: no counts are recorded; `cargo xtask matrix --kernel {kernel} --update` does"
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
                    "{program} takes {count} verified instructions on {kernel}, recorded are {known}; make it simpler, or run with --update"
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
    fn a_twentieth_more_passes_and_the_next_does_not() {
        let ratchet = InsnBudget::parse("# c\n[\"6.1\"]\nto_remote = 1000\n").unwrap();
        ratchet.check("6.1", &counts(1050)).unwrap();
        ratchet.check("6.12", &counts(9999)).unwrap();
        let error = ratchet.check("6.1", &counts(1051)).unwrap_err().to_string();
        assert!(error.contains("to_remote takes 1051"), "{error}");
    }

    #[test]
    fn the_ceiling_holds_whatever_is_recorded() {
        InsnBudget::check_maximum("6.1", &counts(MAX_INSNS)).unwrap();
        let error = InsnBudget::check_maximum("6.1", &counts(MAX_INSNS + 1)).unwrap_err();
        assert!(error.to_string().contains("more than 50000"), "{error}");
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ratchet.toml");
        assert_eq!(InsnBudget::read(&path).unwrap(), InsnBudget::default());
        let mut ratchet = InsnBudget::default();
        ratchet.set("6.1", &counts(5));
        ratchet.set("6.12", &counts(6));
        ratchet.write(&path).unwrap();
        assert_eq!(InsnBudget::read(&path).unwrap(), ratchet);
        assert!(InsnBudget::parse("to_remote = 1").is_err());
    }
}
