//! Import cycles between the files of a crate.
//!
//! An edge leads from a file to a file it imports from. Imports of a module from its own ancestors do not count: a
//! directory is one unit, and its `mod.rs` holds the types its files share. Every other cycle is refused, unless
//! `xtask/module-cycles.toml` lists its files with a reason. A listed cycle may shrink, not grow.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::{
    files::{self, TextFile},
    report, rust_source, use_paths,
};
use crate::cmd;

const ALLOWLIST: &str = "xtask/module-cycles.toml";
/// Directories with sources of a crate.
const CRATES: [&str; 9] = [
    "controller/src",
    "mc-api/src",
    "mc-gateway/src",
    "mc-gateway-common/src",
    "mc-gateway-ebpf/src",
    "mc-kube/src",
    "mc-metrics/src",
    "tests/src",
    "xtask/src",
];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowlist {
    #[serde(default)]
    cycle: Vec<Allowed>,
}

/// A cycle that may stay.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    files: BTreeSet<String>,
    reason: String,
}

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Fails with every cycle that is not listed, and with every listed one that does not exist.
pub(super) fn check() -> Result<()> {
    let text = fs::read_to_string(cmd::workspace().join(ALLOWLIST)).context(ALLOWLIST)?;
    let allowlist: Allowlist = toml::from_str(&text).context(ALLOWLIST)?;
    let sources = files::tracked(&["rs"])?;
    let mut found = Vec::new();
    for directory in CRATES {
        found.extend(cycles(&graph(&sources, directory)));
    }
    report(&compare(&found, &allowlist.cycle))
}

fn compare(found: &[BTreeSet<String>], allowed: &[Allowed]) -> Vec<String> {
    let names = |files: &BTreeSet<String>| files.iter().cloned().collect::<Vec<_>>().join(", ");
    let new = found
        .iter()
        .filter(|files| !allowed.iter().any(|allowed| allowed.files.is_superset(files)))
        .map(|files| format!("import cycle: {}", names(files)));
    let stale = allowed
        .iter()
        .filter(|allowed| !found.iter().any(|files| allowed.files.is_superset(files)))
        .map(|allowed| format!("{ALLOWLIST}: no such cycle: {}", names(&allowed.files)));
    let unexplained = allowed
        .iter()
        .filter(|allowed| allowed.reason.len() < 10)
        .map(|allowed| format!("{ALLOWLIST}: no reason: {}", names(&allowed.files)));
    new.chain(stale).chain(unexplained).collect()
}

/// The imports between the files below `directory`.
fn graph(sources: &[TextFile], directory: &str) -> Graph {
    let files: BTreeMap<Vec<String>, &TextFile> = sources
        .iter()
        .filter_map(|file| {
            let path = file.path.strip_prefix(directory)?.strip_prefix('/')?;
            (!files::is_test(path)).then(|| (module_path(path), file))
        })
        .collect();
    let mut graph = Graph::new();
    for (module, file) in &files {
        let imports = graph.entry(file.path.clone()).or_default();
        for path in use_paths::paths(&rust_source::code(&file.text), module) {
            // The longest part of the path that is a file; the rest is an item.
            let target = (0..=path.len()).rev().find_map(|length| {
                let (target, other) = files.get_key_value(path.get(..length)?)?;
                (!module.starts_with(target)).then_some(other)
            });
            imports.extend(target.map(|other| other.path.clone()));
        }
    }
    graph
}

/// The module that a file below `src` is.
fn module_path(path: &str) -> Vec<String> {
    let mut parts: Vec<String> = path
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if parts.last().is_some_and(|last| last == "mod") || parts == ["lib"] || parts == ["main"] {
        parts.pop();
    }
    parts
}

/// The strongly connected components with more than one file.
fn cycles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reachable: BTreeMap<_, _> = graph.keys().map(|file| (file, reachable(graph, file))).collect();
    let mut cycles: Vec<BTreeSet<String>> = Vec::new();
    for (file, targets) in &reachable {
        let cycle: BTreeSet<String> = targets
            .iter()
            .filter(|target| {
                reachable
                    .get(target)
                    .is_some_and(|back| back.contains(file.as_str()))
            })
            .cloned()
            .collect();
        if cycle.len() > 1 && !cycles.contains(&cycle) {
            cycles.push(cycle);
        }
    }
    cycles
}

fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(file) = waiting.pop() {
        for target in graph.get(file).into_iter().flatten() {
            if seen.insert(target.clone()) {
                waiting.push(target);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| TextFile {
                path: format!("x/src/{path}"),
                text: (*text).to_owned(),
            })
            .collect();
        let found = cycles(&graph(&sources, "x/src"));
        found
            .into_iter()
            .map(|cycle| cycle.into_iter().collect())
            .collect()
    }

    #[test]
    fn siblings_that_import_each_other_are_a_cycle() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "#[cfg(test)]\nmod tests {\n}\nuse super::a;"),
        ];
        assert_eq!(cycles_of(&files), [["x/src/a.rs", "x/src/b.rs"]]);
    }

    #[test]
    fn a_module_may_import_from_its_ancestors() {
        let files = [
            ("lib.rs", "pub use self::a::A;"),
            ("a/mod.rs", "use self::b::B;"),
            ("a/b.rs", "use super::A;\nuse crate::Z;"),
        ];
        assert!(cycles_of(&files).is_empty());
    }

    #[test]
    fn a_cycle_through_a_parent_of_another_directory_is_found() {
        let files = [
            ("a/mod.rs", "pub use self::b::B;"),
            ("a/b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::a::B;"),
        ];
        assert_eq!(
            cycles_of(&files),
            [["x/src/a/b.rs", "x/src/a/mod.rs", "x/src/c.rs"]]
        );
    }

    #[test]
    fn listed_cycles_pass_and_stale_ones_fail() {
        let cycle: BTreeSet<String> = ["a.rs".to_owned(), "b.rs".to_owned()].into();
        let allowed = [Allowed {
            files: cycle.clone(),
            reason: "one state machine in two files".to_owned(),
        }];
        assert!(compare(std::slice::from_ref(&cycle), &allowed).is_empty());
        assert_eq!(compare(&[cycle], &[]), ["import cycle: a.rs, b.rs"]);
        assert_eq!(compare(&[], &allowed).len(), 1);
    }
}
