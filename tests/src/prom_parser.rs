//! Parser of the `OpenMetrics` text format, as strict as `promtool check metrics`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};

/// The samples of one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    /// Values by `name{labels}`.
    pub samples: BTreeMap<String, f64>,
    /// Types by family; the name of a counter includes `_total`.
    pub families: BTreeMap<String, String>,
}

impl Exposition {
    /// Parses and checks a scrape: every sample belongs to the preceding family, which has HELP and TYPE once;
    /// samples of counters, and no other names, end in `_total`; samples are unique; histograms are cumulative and
    /// end in `+Inf`, which equals their count; units are base units; the last line is `# EOF`.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.strip_suffix("# EOF\n").context("no EOF line at the end")?;
        let mut found = Self::default();
        let mut helped = BTreeSet::new();
        let mut family = String::new();
        let mut histogram = OpenHistogram::default();
        for line in text.lines() {
            let line_of = || format!("`{line}`");
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').with_context(line_of)?;
                ensure!(help.ends_with('.'), "{}: help is not a sentence", line_of());
                ensure!(helped.insert(name.to_owned()), "{}: duplicate", line_of());
                name.clone_into(&mut family);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').with_context(line_of)?;
                ensure!(name == family, "{}: no HELP line", line_of());
                check_name(name, kind).with_context(line_of)?;
                family.push_str(if kind == "counter" { "_total" } else { "" });
                let twice = found.families.insert(family.clone(), kind.to_owned());
                ensure!(twice.is_none(), "{}: duplicate", line_of());
            } else {
                let (key, value) = line.rsplit_once(' ').with_context(line_of)?;
                let value: f64 = value.parse().with_context(line_of)?;
                let kind = found.families.get(&family).with_context(line_of)?;
                let name = key.split('{').next().unwrap_or_default();
                let suffix = name.strip_prefix(family.as_str()).with_context(line_of)?;
                let known = match kind.as_str() {
                    "histogram" => matches!(suffix, "_bucket" | "_sum" | "_count"),
                    _ => suffix.is_empty(),
                };
                ensure!(known, "{}: not in family {family}", line_of());
                check_labels(key).with_context(line_of)?;
                histogram.check(kind, key, value).with_context(line_of)?;
                ensure!(
                    found.samples.insert(key.to_owned(), value).is_none(),
                    "{}: duplicate",
                    line_of()
                );
            }
        }
        ensure!(histogram.series.is_none(), "histogram without +Inf");
        Ok(found)
    }

    /// Sum of all samples of a name with labels that contain every word.
    #[must_use]
    pub fn sum(&self, name: &str, words: &[&str]) -> f64 {
        let of_name = self
            .samples
            .iter()
            .filter(|(key, _)| key.split('{').next() == Some(name));
        of_name
            .filter(|(key, _)| words.iter().all(|word| key.contains(word)))
            .map(|(_, value)| value)
            .sum()
    }
}

fn check_name(name: &str, kind: &str) -> Result<()> {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    ensure!(name.chars().all(word), "not in snake case");
    ensure!(
        !name.ends_with("_total"),
        "`_total` is the suffix of a counter's samples"
    );
    let units = [
        "ms",
        "us",
        "ns",
        "milliseconds",
        "microseconds",
        "kib",
        "kilobytes",
        "percent",
    ];
    if let Some(unit) = name.split('_').find(|word| units.contains(word)) {
        bail!("{unit} is not a base unit");
    }
    ensure!(
        matches!(kind, "counter" | "gauge" | "histogram"),
        "unknown type {kind}"
    );
    Ok(())
}

fn check_labels(key: &str) -> Result<()> {
    let Some((_, labels)) = key.split_once('{') else {
        return Ok(());
    };
    let labels = labels.strip_suffix("\"}").context("unterminated labels")?;
    let mut names = BTreeSet::new();
    for pair in labels.split("\",") {
        let (name, _) = pair.split_once("=\"").context("label without value")?;
        ensure!(is_label_name(name), "invalid label name {name:?}");
        ensure!(names.insert(name), "duplicate label {name}");
    }
    Ok(())
}

/// Whether a text matches `[a-zA-Z_][a-zA-Z0-9_]*` (Prometheus data model).
fn is_label_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A histogram series between its count and its last bucket.
#[derive(Debug, Default)]
struct OpenHistogram {
    /// Count of the series and value of its previous bucket.
    series: Option<(f64, f64)>,
}

impl OpenHistogram {
    /// Checks a sample against the previous one.
    fn check(&mut self, kind: &str, key: &str, value: f64) -> Result<()> {
        let name = key.split('{').next().unwrap_or_default();
        if let Some((_, bound)) = key.split_once("{le=\"") {
            let (count, previous) = self.series.context("bucket without count")?;
            ensure!(value >= previous, "buckets are not cumulative");
            self.series = Some((count, value));
            if bound.starts_with("+Inf") {
                ensure!((count - value).abs() < 0.5, "count differs from the +Inf bucket");
                self.series = None;
            }
            return Ok(());
        }
        ensure!(self.series.is_none(), "histogram without +Inf");
        if kind == "histogram" && name.ends_with("_count") {
            self.series = Some((value, 0.0));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a All.\n# TYPE a counter\na_total{x=\"1\"} 3\na_total{x=\"2\"} 4\n\
        # HELP t_seconds Times.\n# TYPE t_seconds histogram\nt_seconds_sum 1.5\nt_seconds_count 2\n\
        t_seconds_bucket{le=\"0.5\"} 1\nt_seconds_bucket{le=\"+Inf\"} 2\n# EOF\n";

    #[test]
    fn sums_by_labels() {
        let found = Exposition::parse(GOOD).unwrap();
        assert!((found.sum("a_total", &[]) - 7.0).abs() < 0.1);
        assert!((found.sum("a_total", &["x=\"2\""]) - 4.0).abs() < 0.1);
    }

    #[test]
    fn invalid_scrapes_are_rejected() {
        for (from, to, why) in [
            ("a_total{x=\"2\"}", "a_total{x=\"1\"}", "duplicate"),
            (
                "HELP a All.\n# TYPE a ",
                "HELP a_total All.\n# TYPE a_total ",
                "`_total`",
            ),
            ("t_seconds", "t_ms", "base unit"),
            ("le=\"0.5\"} 1", "le=\"0.5\"} 9", "cumulative"),
            ("_count 2", "_count 3", "+Inf bucket"),
            ("# HELP t_seconds Times.\n", "", "no HELP"),
            ("{x=\"1\"}", "{x=\"1\",x=\"2\"}", "duplicate"),
            // A label of next hops was written so after a rename.
            ("{x=\"1\"}", "{next hop=\"1\"}", "label name"),
        ] {
            let error = Exposition::parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(format!("{error:#}").contains(why), "{to}: {error:#}");
        }
    }
}
