//! The tracked files, and the limits on their length and width.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{report, rust_source};
use crate::cmd;

/// Longest Rust file without its tests; a longer one usually has a second subject.
const MAX_LINES: usize = 500;
/// Longest Rust file with its tests, and longest file of tests.
const MAX_LINES_WITH_TESTS: usize = 800;
/// Widest line of comments and Markdown; tables, URLs and code blocks are exempt. Rust code is left to rustfmt, which
/// breaks neither literals nor macro bodies.
const MAX_WIDTH: usize = 120;

/// A tracked text file.
pub(super) struct TextFile {
    /// Path from the workspace root.
    pub(super) path: String,
    pub(super) text: String,
}

/// The files that git tracks or would track, of the given extensions.
pub(super) fn tracked(extensions: &[&str]) -> Result<Vec<TextFile>> {
    let root = cmd::workspace();
    let mut files = Vec::new();
    for path in cmd::workspace_files()? {
        let extension = Path::new(&path)
            .extension()
            .and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| extensions.contains(&extension)) {
            let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
            files.push(TextFile { path, text });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

/// Fails with every file that is too long and every line that is too wide.
pub(super) fn check() -> Result<()> {
    let mut findings = Vec::new();
    for TextFile { path, text } in tracked(&["rs", "md"])? {
        findings.extend(too_wide(&path, &text));
        if is_rust(&path) {
            findings.extend(too_long(&path, &text));
        }
    }
    report(&findings)
}

/// Whether the file is Rust source.
pub(super) fn is_rust(path: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "rs")
}

/// Whether the file consists of tests or benchmarks.
pub(super) fn is_test(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
}

fn too_long(path: &str, text: &str) -> Option<String> {
    let total = text.lines().count();
    let own = rust_source::without_test_modules(text).lines().count();
    if own > MAX_LINES && !is_test(path) {
        return Some(format!(
            "{path}: {own} lines without tests, at most {MAX_LINES} are allowed"
        ));
    }
    (total > MAX_LINES_WITH_TESTS)
        .then(|| format!("{path}: {total} lines, at most {MAX_LINES_WITH_TESTS} are allowed"))
}

fn too_wide(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<(usize, &str)> = if is_rust(path) {
        let comments = |line: &str| line.trim_start().starts_with("//");
        (1..)
            .zip(text.lines())
            .filter(|(_, line)| comments(line))
            .collect()
    } else {
        outside_code(text)
    };
    lines
        .into_iter()
        .filter(|(_, line)| line.chars().count() > MAX_WIDTH)
        .filter(|(_, line)| !line.trim_start().starts_with('|') && !line.contains("://"))
        .map(|(number, line)| {
            let width = line.chars().count();
            format!("{path}:{number}: {width} characters, at most {MAX_WIDTH} are allowed")
        })
        .collect()
}

/// The lines of a Markdown file outside of code blocks, with their numbers.
pub(super) fn outside_code(text: &str) -> Vec<(usize, &str)> {
    let mut code = false;
    let lines = (1..).zip(text.lines());
    lines
        .filter(|(_, line)| {
            let fence = line.trim_start().starts_with("```");
            code ^= fence;
            !code && !fence
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_do_not_count_as_length() {
        let text = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            "x\n".repeat(500),
            "y\n".repeat(100)
        );
        assert_eq!(too_long("a/src/b.rs", &text), None);
        let long = format!("x\n{text}");
        assert!(
            too_long("a/src/b.rs", &long)
                .unwrap()
                .contains("501 lines without tests")
        );
        assert_eq!(too_long("tests/tests/b.rs", &long), None);
        assert!(too_long("tests/tests/b.rs", &"x\n".repeat(801)).is_some());
    }

    #[test]
    fn tables_urls_diagrams_and_strings_may_be_wide() {
        let wide = "x".repeat(121);
        assert!(too_wide("a.md", &format!("```\n{wide}\n```\n")).is_empty());
        assert!(too_wide("a.rs", &format!("f(\"{wide}\");\n")).is_empty());
        assert_eq!(too_wide("a.rs", &format!("// \"{wide}\"\n")).len(), 1);
        let text = format!("{wide}\n| {wide}\nhttps://{wide}\n```\n{wide}\n```\n");
        assert_eq!(
            too_wide("a.md", &text),
            ["a.md:1: 121 characters, at most 120 are allowed"]
        );
        let rust = format!("let x = \"{wide}\";\n    // {wide}\n");
        assert_eq!(too_wide("a.rs", &rust).len(), 1);
    }
}
