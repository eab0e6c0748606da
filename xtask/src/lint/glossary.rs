//! Retired names and phrases of `docs/glossary-retired.toml`, with their replacements.
//!
//! A name counts where it is defined (`fn`, `struct`, `mod` …), so that names of std and of other crates do not. A
//! phrase counts in comments, strings and Markdown, also across a line break, and in names of functions, with spaces in
//! place of underscores. Text in backticks is a name and no phrase.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::{
    files::{self, TextFile, is_rust},
    report, rust_source,
};
use crate::cmd;

const FILE: &str = "docs/glossary-retired.toml";
/// Keywords that precede the name they define.
const DEFINING: [&str; 10] = [
    "fn",
    "struct",
    "enum",
    "union",
    "trait",
    "type",
    "const",
    "static",
    "mod",
    "macro_rules",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Retired {
    /// By directory: the retired name and its replacement.
    names: BTreeMap<String, BTreeMap<String, String>>,
    phrase: Vec<Phrase>,
    /// Files in which phrases do not count.
    exempt: Vec<String>,
}

/// Phrases with a common replacement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Phrase {
    /// Lower case.
    words: Vec<String>,
    /// Replacement.
    r#use: String,
    /// Where the phrases are retired.
    #[serde(default = "all_places")]
    places: Vec<Place>,
}

/// A kind of text.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Place {
    /// Markdown.
    Docs,
    /// Comments and strings of Rust.
    Comments,
    /// Names of functions, among them tests.
    Functions,
}

fn all_places() -> Vec<Place> {
    vec![Place::Docs, Place::Comments, Place::Functions]
}

/// Fails with every use of a retired name or phrase.
pub(super) fn check() -> Result<()> {
    let text = fs::read_to_string(cmd::workspace().join(FILE)).context(FILE)?;
    let retired: Retired = toml::from_str(&text).context(FILE)?;
    let mut findings = Vec::new();
    for file in files::tracked(&["md", "rs"])? {
        findings.extend(check_file(&retired, &file));
    }
    report(&findings)
}

fn check_file(retired: &Retired, file: &TextFile) -> Vec<String> {
    let TextFile { path, text } = file;
    let mut findings = Vec::new();
    let mut functions = Vec::new();
    let (place, prose): (_, Vec<String>) = if is_rust(path) {
        let lines = rust_source::split(text);
        for (number, line) in (1..).zip(&lines) {
            for (name, replacement) in retired_names(retired, path, &line.code) {
                findings.push(format!("{path}:{number}: `{name}`: use `{replacement}`"));
            }
            functions.push(function_words(&line.code));
        }
        (
            Place::Comments,
            lines.iter().map(|line| normalize(&line.prose)).collect(),
        )
    } else {
        (Place::Docs, text.lines().map(normalize).collect())
    };
    if retired.exempt.iter().any(|exempt| path.starts_with(exempt)) {
        return findings;
    }
    for (place, lines) in [(place, prose), (Place::Functions, functions)] {
        for (index, line) in lines.iter().enumerate() {
            let next = match place {
                Place::Functions => "",
                Place::Docs | Place::Comments => lines.get(index + 1).map_or("", String::as_str),
            };
            for phrase in retired
                .phrase
                .iter()
                .filter(|phrase| phrase.places.contains(&place))
            {
                for words in phrase.words.iter().filter(|words| starts_in(line, next, words)) {
                    let number = index + 1;
                    findings.push(format!("{path}:{number}: \"{words}\": use {}", phrase.r#use));
                }
            }
        }
    }
    findings
}

/// The name of the function that a line of code defines, as words; empty without one.
fn function_words(code: &str) -> String {
    let tokens = rust_source::tokens(code);
    let name = tokens.windows(2).find_map(|tokens| match *tokens {
        ["fn", name] => Some(name),
        _ => None,
    });
    name.map(|name| name.replace('_', " ").trim().to_lowercase())
        .unwrap_or_default()
}

/// The retired names that a line of code defines.
fn retired_names<'a>(retired: &'a Retired, path: &str, code: &str) -> Vec<(&'a str, &'a str)> {
    let tokens = rust_source::tokens(code);
    let defined = tokens.windows(3).filter_map(|tokens| match *tokens {
        ["macro_rules", "!", name] => Some(name),
        [keyword, name, _] if DEFINING.contains(&keyword) => Some(name),
        _ => None,
    });
    let directories = retired
        .names
        .iter()
        .filter(|(directory, _)| path.starts_with(&format!("{directory}/")));
    let names: Vec<_> = directories.flat_map(|(_, names)| names).collect();
    defined
        .filter_map(|defined| names.iter().find(|(name, _)| *name == defined))
        .map(|(name, replacement)| (name.as_str(), replacement.as_str()))
        .collect()
}

/// Lower-case words with single spaces; comment markers and text in backticks are dropped.
fn normalize(line: &str) -> String {
    let text = without_code(line);
    let words: Vec<_> = text
        .split_whitespace()
        .map(|word| word.trim_start_matches(['/', '!']))
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ").to_lowercase()
}

/// The line with empty backticks in place of code; code that ends in another line stays.
fn without_code(line: &str) -> String {
    let parts: Vec<_> = line.split('`').collect();
    let last = parts.len() - 1;
    let kept = parts.iter().enumerate().map(|(index, part)| {
        let is_code = index % 2 == 1 && index < last;
        if is_code { "" } else { part }
    });
    kept.collect::<Vec<_>>().join("`")
}

/// Whether the words begin in `line` and end there or in `next`.
fn starts_in(line: &str, next: &str, words: &str) -> bool {
    if line.is_empty() {
        return false;
    }
    let text = format!("{line} {next}");
    text.match_indices(words).any(|(start, _)| {
        let whole = |char: Option<char>| !char.is_some_and(|char| rust_source::is_word(char) || char == '-');
        let before = text.get(..start).and_then(|text| text.chars().next_back());
        let after = text
            .get(start + words.len()..)
            .and_then(|text| text.chars().next());
        start < line.len() && whole(before) && whole(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let retired = toml::from_str(
            "exempt = [\"CHANGELOG.md\"]\n\
             [names.controller]\nGoodbye = \"Deregistration\"\ntake = \"assign\"\n\
             [[phrase]]\nwords = [\"is told\"]\nuse = \"receives\"\n\
             [[phrase]]\nwords = [\"whom\"]\nuse = \"a noun\"\nplaces = [\"docs\"]\n",
        )
        .unwrap();
        let (path, text) = (path.to_owned(), text.to_owned());
        check_file(&retired, &TextFile { path, text })
    }

    #[test]
    fn names_count_where_they_are_defined() {
        let code = "struct Goodbye;\nfn f(x: Option<u8>) { x.take(); }\nfn take() {}\n// fn take\n";
        assert_eq!(
            findings("controller/src/a.rs", code),
            [
                "controller/src/a.rs:1: `Goodbye`: use `Deregistration`",
                "controller/src/a.rs:3: `take`: use `assign`"
            ]
        );
        assert!(findings("xtask/src/a.rs", code).is_empty());
    }

    #[test]
    fn phrases_count_in_prose_and_across_lines() {
        let source = "/// The leader is\n/// told. Whom?\nlet is = told;\nbail!(\"Nobody is told\");\n";
        assert_eq!(
            findings("xtask/src/a.rs", source),
            [
                "xtask/src/a.rs:1: \"is told\": use receives",
                "xtask/src/a.rs:4: \"is told\": use receives"
            ]
        );
        assert_eq!(findings("docs/a.md", "Whom, and whomever\n").len(), 1);
        assert!(findings("CHANGELOG.md", "it is told\n").is_empty());
    }

    #[test]
    fn phrases_count_in_names_of_functions_and_not_in_code() {
        assert_eq!(
            findings("xtask/src/a.rs", "fn a_peer_is_told() {}\nlet is_told = 1;\n"),
            ["xtask/src/a.rs:1: \"is told\": use receives"]
        );
        assert!(findings("docs/a.md", "result `is told`, is `x` told\n").is_empty());
        assert_eq!(findings("docs/a.md", "it is told `where\n").len(), 1);
    }
}
