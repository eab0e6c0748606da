//! Maps as `bpftool map dump` prints them, made to fit a screen.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::process::run;

/// Most lines shown of one map.
const LINES: usize = 24;

/// What `bpftool` prints of a pinned map, with arrays of numbers on one line each.
pub(super) fn dump(pin: &Path) -> Result<String> {
    let printed = run(Command::new("bpftool").args(["map", "dump", "pinned"]).arg(pin))?;
    Ok(shorten(&join_arrays(&printed)))
}

/// Puts what is between `[` and `]` on one line.
fn join_arrays(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    let mut depth = 0usize;
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '[' => {
                // The outermost bracket encloses all entries, whose own lines stay as they are.
                if depth > 0 || !is_outermost(text, at) {
                    depth += 1;
                }
                joined.push('[');
            }
            ']' => {
                depth = depth.saturating_sub(1);
                joined.push(']');
            }
            '\n' if depth > 0 => while characters.next_if(|(_, next)| next.is_whitespace()).is_some() {},
            ' ' if depth > 0 => {}
            other => joined.push(other),
        }
    }
    joined
}

/// Whether a bracket is the first thing on a page.
fn is_outermost(text: &str, at: usize) -> bool {
    text.get(..at).is_some_and(|before| before.trim().is_empty())
}

/// The first lines, and how many follow.
fn shorten(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    match lines.get(..LINES) {
        Some(first) if lines.len() > LINES => {
            format!("{}\n... {} more lines", first.join("\n"), lines.len() - LINES)
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_share_a_line_and_entries_do_not() {
        let printed = "[{\n        \"key\": {\n            \"data\": [0,1,\n                2\n            ]\n        }\n    }\n]\n";
        let expected = "[{\n        \"key\": {\n            \"data\": [0,1,2]\n        }\n    }\n]\n";
        assert_eq!(join_arrays(printed), expected);
    }

    #[test]
    fn long_dump_says_how_much_is_missing() {
        let long = "line\n".repeat(LINES + 5);
        assert!(shorten(&long).ends_with("... 5 more lines"));
        assert_eq!(shorten("short\n"), "short\n");
    }
}
