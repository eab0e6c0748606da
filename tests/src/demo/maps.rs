//! Output of `bpftool map dump`, compacted to fit a screen.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::process::run;

/// Maximum number of lines per map.
const MAX_LINES: usize = 24;

/// Dumps a pinned map, with each key and each value on one line.
pub(super) fn dump(pin: &Path) -> Result<String> {
    let printed = run(Command::new("bpftool").args(["map", "dump", "pinned"]).arg(pin))?;
    Ok(shorten(&join_lines(&printed)))
}

/// Joins the lines of everything nested deeper than an entry.
fn join_lines(text: &str) -> String {
    /// Nesting depth of an entry in the list of entries.
    const ENTRY: usize = 2;
    let mut joined = String::with_capacity(text.len());
    let mut depth = 0usize;
    for line in text.lines() {
        let inside = depth > ENTRY;
        let opened = line.matches(['{', '[']).count();
        depth = (depth + opened).saturating_sub(line.matches(['}', ']']).count());
        if inside {
            let needs_space =
                joined.ends_with(',') && !line.trim_start().starts_with(|c: char| c.is_ascii_digit());
            joined.push_str(if needs_space { " " } else { "" });
            joined.push_str(line.trim());
        } else {
            // Half of bpftool's indentation.
            let indentation = line.len() - line.trim_start().len();
            joined.extend(std::iter::repeat_n(' ', indentation / 2));
            joined.push_str(line.trim());
        }
        if depth <= ENTRY {
            joined.push('\n');
        }
    }
    joined
}

/// The first lines, and the number of omitted ones.
fn shorten(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    match lines.get(..MAX_LINES) {
        Some(first) if lines.len() > MAX_LINES => {
            format!("{}\n... {} more lines", first.join("\n"), lines.len() - MAX_LINES)
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_and_each_value_is_on_one_line() {
        let printed = "[{\n        \"key\": {\n            \"len\": 120,\n            \"data\": [0,1,\n                2\n            ]\n        },\n        \"value\": {\n            \"a\": 1,\n            \"b\": 2\n        }\n    },{\n        \"key\": 3,\n        \"value\": 4\n    }\n]\n";
        let expected = "[{\n    \"key\": {\"len\": 120, \"data\": [0,1,2]},\n    \"value\": {\"a\": 1, \"b\": 2}\n  },{\n    \"key\": 3,\n    \"value\": 4\n  }\n]\n";
        assert_eq!(join_lines(printed), expected);
    }

    #[test]
    fn a_long_dump_states_the_number_of_omitted_lines() {
        let long = "line\n".repeat(MAX_LINES + 5);
        assert!(shorten(&long).ends_with("... 5 more lines"));
        assert_eq!(shorten("short\n"), "short\n");
    }
}
