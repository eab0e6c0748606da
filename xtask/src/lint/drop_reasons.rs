//! `cargo xtask drop-reasons`: the tables of drop reasons in the docs, generated from the enum `DropReason`.
//!
//! The source is parsed as text, since xtask must not depend on the crates it builds. The first paragraph of a
//! variant's doc comment is its meaning, the second one advice for the operator.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use crate::cmd;

const SOURCE: &str = "mc-gateway-common/src/verdict.rs";
const BEGIN: &str = "<!-- drop-reasons -->\n";
const END: &str = "<!-- /drop-reasons -->";

/// A file with the table, and whether the table has the advice.
const FILES: [(&str, bool); 2] = [("README.md", false), ("docs/metrics.md", true)];

/// One variant of the enum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reason {
    variant: String,
    number: u8,
    /// Value of the metric label `reason`.
    name: String,
    meaning: String,
    advice: String,
}

/// Writes the tables.
pub(crate) fn write() -> Result<()> {
    for (file, text) in generate()? {
        let path = cmd::workspace().join(file);
        fs::write(&path, text).with_context(|| file.to_owned())?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Fails with the files whose table differs from the enum.
pub(super) fn check() -> Result<()> {
    let mut stale = Vec::new();
    for (file, text) in generate()? {
        if fs::read_to_string(cmd::workspace().join(file)).context(file)? != text {
            stale.push(file);
        }
    }
    ensure!(
        stale.is_empty(),
        "run `cargo xtask drop-reasons`: {} differ",
        stale.join(", ")
    );
    Ok(())
}

/// The files with their new contents.
fn generate() -> Result<Vec<(&'static str, String)>> {
    let root = cmd::workspace();
    let source = fs::read_to_string(root.join(SOURCE)).context(SOURCE)?;
    let reasons = parse(&source).context(SOURCE)?;
    let mut files = Vec::new();
    for (file, with_advice) in FILES {
        let text = fs::read_to_string(root.join(file)).context(file)?;
        files.push((file, replace(&text, &table(&reasons, with_advice)).context(file)?));
    }
    Ok(files)
}

fn parse(source: &str) -> Result<Vec<Reason>> {
    let (_, rest) = source
        .split_once("pub enum DropReason {\n")
        .context("no enum DropReason")?;
    let (body, rest) = rest.split_once("\n}").context("unclosed enum DropReason")?;
    let (mut reasons, mut paragraphs) = (Vec::new(), vec![String::new()]);
    for line in body.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            match (doc.trim(), paragraphs.last_mut()) {
                ("", _) => paragraphs.push(String::new()),
                (doc, Some(paragraph)) if !paragraph.is_empty() => *paragraph = format!("{paragraph} {doc}"),
                (doc, Some(paragraph)) => doc.clone_into(paragraph),
                (_, None) => {}
            }
        } else if let Some((variant, number)) = line.trim_end_matches(',').split_once(" = ") {
            let mut paragraphs = std::mem::replace(&mut paragraphs, vec![String::new()]).into_iter();
            reasons.push(Reason {
                variant: variant.to_owned(),
                number: number
                    .parse()
                    .with_context(|| format!("{variant}: number {number:?}"))?,
                name: name(rest, variant)?,
                meaning: paragraphs.next().unwrap_or_default(),
                advice: paragraphs.collect::<Vec<_>>().join(" "),
            });
        } else if !line.is_empty() {
            bail!("expected `Variant = number`, found {line:?}");
        }
    }
    ensure!(!reasons.is_empty(), "no variants");
    ensure!(
        reasons.is_sorted_by(|a, b| a.number < b.number),
        "numbers are not ascending"
    );
    Ok(reasons)
}

/// The string that the first `Self::Variant => "…"` behind the enum returns.
fn name(source: &str, variant: &str) -> Result<String> {
    let (_, rest) = source
        .split_once(&format!("Self::{variant} => \""))
        .with_context(|| format!("{variant} has no name"))?;
    let (name, _) = rest
        .split_once('"')
        .with_context(|| format!("{variant}: unclosed name"))?;
    Ok(name.to_owned())
}

fn table(reasons: &[Reason], with_advice: bool) -> String {
    let mut table = if with_advice {
        "| number | reason | meaning | what to do |\n|---:|---|---|---|\n".to_owned()
    } else {
        "| number | reason | meaning |\n|---:|---|---|\n".to_owned()
    };
    for reason in reasons {
        let cell = |text: &str| text.replace('|', "\\|");
        let row = [
            "",
            &reason.number.to_string(),
            &format!("`{}`", reason.name),
            &cell(&reason.meaning),
        ];
        table.push_str(row.join(" | ").trim_start());
        if with_advice {
            table.push_str(" | ");
            table.push_str(&cell(&reason.advice));
        }
        table.push_str(" |\n");
    }
    table
}

fn replace(text: &str, table: &str) -> Result<String> {
    let (before, rest) = text
        .split_once(BEGIN)
        .with_context(|| format!("no line {}", BEGIN.trim()))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("no {END} after {}", BEGIN.trim()))?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENUM: &str = "\
pub enum DropReason {
    /// Neither an IPv4
    /// nor an IPv6 packet.
    ///
    /// Harmless.
    NotIp = 2,
    /// No route.
    NoRoute = 4,
}
impl DropReason {
    pub const ALL: [Self; 2] = [Self::NotIp, Self::NoRoute];
    const fn name(self) -> &'static str {
        match self {
            Self::NotIp => \"not-ip\",
            Self::NoRoute => \"no-route\",
        }
    }
}
";

    #[test]
    fn the_tables_have_number_name_meaning_and_advice() {
        let reasons = parse(ENUM).unwrap();
        assert_eq!(
            table(&reasons, true),
            "| number | reason | meaning | what to do |\n|---:|---|---|---|\n\
             | 2 | `not-ip` | Neither an IPv4 nor an IPv6 packet. | Harmless. |\n| 4 | `no-route` | No route. |  |\n"
        );
        assert!(table(&reasons, false).ends_with(
            "| 2 | `not-ip` | Neither an IPv4 nor an IPv6 packet. |\n| 4 | `no-route` | No route. |\n"
        ));
    }

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let text = format!("a\n{BEGIN}old\n{END}\nb\n");
        let new = replace(&text, "new\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}new\n{END}\nb\n"));
        assert!(replace("a\n", "new\n").is_err());
    }

    #[test]
    fn every_reason_of_the_project_is_read() {
        let source = fs::read_to_string(cmd::workspace().join(SOURCE)).unwrap();
        let reasons = parse(&source).unwrap();
        assert!(reasons.len() > 20, "{}", reasons.len());
        assert!(
            reasons
                .iter()
                .all(|reason| !reason.name.is_empty() && !reason.meaning.is_empty()),
            "{reasons:?}"
        );
    }
}
