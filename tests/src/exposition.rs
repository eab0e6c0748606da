//! Reads the Prometheus text exposition format and checks it as strictly as `promtool check metrics` does. Pure.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};

/// Metrics by name and labels as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    /// `name{labels}` to value.
    pub samples: BTreeMap<String, f64>,
    /// Family to type.
    pub families: BTreeMap<String, String>,
}

impl Exposition {
    /// Parses and checks: every sample belongs to the family before it, which has HELP and TYPE once;
    /// counters end in `_total`, nothing else does; no sample twice; histograms are cumulative and end in
    /// `+Inf`, which equals their count; base units only.
    pub fn parse(text: &str) -> Result<Self> {
        ensure!(text.ends_with('\n'), "the last line has no end");
        let mut found = Self::default();
        let mut helped = BTreeSet::new();
        let mut family = String::new();
        let mut last_bucket: Option<(String, f64)> = None;
        for line in text.lines() {
            let line_of = || format!("`{line}`");
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').with_context(line_of)?;
                ensure!(help.ends_with('.'), "{}: the help is no sentence", line_of());
                ensure!(helped.insert(name.to_owned()), "{}: twice", line_of());
                name.clone_into(&mut family);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').with_context(line_of)?;
                ensure!(name == family, "{}: no HELP before it", line_of());
                check_name(name, kind).with_context(line_of)?;
                let twice = found.families.insert(name.to_owned(), kind.to_owned());
                ensure!(twice.is_none(), "{}: twice", line_of());
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
                ensure!(known, "{}: is not of family {family}", line_of());
                check_labels(key).with_context(line_of)?;
                last_bucket = buckets(key, value, last_bucket).with_context(line_of)?;
                ensure!(
                    found.samples.insert(key.to_owned(), value).is_none(),
                    "{}: twice",
                    line_of()
                );
            }
        }
        Ok(found)
    }

    /// The sum of all samples of a name whose labels contain every one of the words.
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
        (kind == "counter") == name.ends_with("_total"),
        "`_total` is for counters, and every counter has it"
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
    let labels = labels.strip_suffix("\"}").context("labels without an end")?;
    let mut names = BTreeSet::new();
    for pair in labels.split("\",") {
        let (name, _) = pair.split_once("=\"").context("a label without a value")?;
        ensure!(names.insert(name), "label {name} twice");
    }
    Ok(())
}

/// Follows the buckets of one histogram.
fn buckets(key: &str, value: f64, last: Option<(String, f64)>) -> Result<Option<(String, f64)>> {
    let bucket = key.split_once(",le=\"").or_else(|| key.split_once("{le=\""));
    if let Some((series, bound)) = bucket {
        if let Some((before, count)) = &last
            && before == series
        {
            ensure!(value >= *count, "buckets are not cumulative");
        }
        let ended = bound.starts_with("+Inf");
        return Ok(Some((
            if ended {
                "+Inf".to_owned()
            } else {
                series.to_owned()
            },
            value,
        )));
    }
    if key.split('{').next().is_some_and(|name| name.ends_with("_count")) {
        match last {
            Some((series, count)) if series == "+Inf" => {
                ensure!((count - value).abs() < 0.5, "the count is not the +Inf bucket");
            }
            _ => bail!("a histogram without +Inf"),
        }
        return Ok(None);
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_total All.\n# TYPE a_total counter\na_total{x=\"1\"} 3\na_total{x=\"2\"} 4\n\
        # HELP t_seconds Times.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"0.5\"} 1\n\
        t_seconds_bucket{le=\"+Inf\"} 2\nt_seconds_sum 1.5\nt_seconds_count 2\n";

    #[test]
    fn sums_by_labels() {
        let found = Exposition::parse(GOOD).unwrap();
        assert!((found.sum("a_total", &[]) - 7.0).abs() < 0.1);
        assert!((found.sum("a_total", &["x=\"2\""]) - 4.0).abs() < 0.1);
    }

    #[test]
    fn mistakes_are_found() {
        for (from, to, why) in [
            ("a_total{x=\"2\"}", "a_total{x=\"1\"}", "twice"),
            ("a_total", "a", "`_total`"),
            ("t_seconds", "t_ms", "base unit"),
            ("le=\"0.5\"} 1", "le=\"0.5\"} 9", "cumulative"),
            ("_count 2", "_count 3", "+Inf bucket"),
            ("# HELP t_seconds Times.\n", "", "no HELP"),
            ("{x=\"1\"}", "{x=\"1\",x=\"2\"}", "twice"),
        ] {
            let error = Exposition::parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(format!("{error:#}").contains(why), "{to}: {error:#}");
        }
    }
}
