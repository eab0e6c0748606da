//! Relative links of Markdown files: the file and the heading exist.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Result;

use super::{
    files::{self, TextFile, outside_code},
    report,
};
use crate::cmd;

/// Fails with every link that leads nowhere.
pub(super) fn check() -> Result<()> {
    let root = cmd::workspace();
    let mut findings = Vec::new();
    for TextFile { path, text } in files::tracked(&["md"])? {
        let directory = root.join(Path::new(&path).parent().unwrap_or(Path::new("")));
        for (number, target) in links(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() {
                root.join(&path)
            } else {
                directory.join(file)
            };
            if !linked.exists() {
                findings.push(format!("{path}:{number}: no file {file}"));
            } else if !anchor.is_empty()
                && linked.extension().is_some_and(|extension| extension == "md")
                && !anchors(&fs::read_to_string(&linked)?).contains(&anchor.to_owned())
            {
                findings.push(format!("{path}:{number}: no heading #{anchor} in {file}"));
            }
        }
    }
    report(&findings)
}

/// Targets of inline links outside of code, with their line numbers.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in outside_code(text) {
        for (start, _) in line.match_indices("](") {
            let rest = line.get(start + 2..).unwrap_or_default();
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            if !target.is_empty() {
                found.push((number, target));
            }
        }
    }
    found
}

/// The anchors of a file's headings, as GitHub derives them.
fn anchors(text: &str) -> Vec<String> {
    let mut counts = BTreeMap::<String, u32>::new();
    let mut anchors = Vec::new();
    for (_, line) in outside_code(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let anchor: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'))
            .map(|char| if char == ' ' { '-' } else { char })
            .collect();
        let count = counts.entry(anchor.clone()).or_default();
        anchors.push(if *count == 0 {
            anchor
        } else {
            format!("{anchor}-{count}")
        });
        *count += 1;
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_outside_of_code_are_found() {
        let text = "[a](b.md#c) and [d](https://e)\n```\n[no](x)\n```\n![f](g.svg \"title\")\n";
        assert_eq!(links(text), [(1, "b.md#c"), (1, "https://e"), (5, "g.svg")]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# Drop reasons\n## `mc_drops`: the map\n## Drop reasons\n#no heading\n";
        assert_eq!(
            anchors(text),
            ["drop-reasons", "mc_drops-the-map", "drop-reasons-1"]
        );
    }
}
