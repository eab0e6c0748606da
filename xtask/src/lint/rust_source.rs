//! Rust source, split into code and prose without a full parser.

/// One line of a file: its code without comments and string contents, and its comments and strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) code: String,
    pub(super) prose: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    /// Depth of nesting.
    BlockComment(u32),
    Text,
    /// Number of `#`.
    RawText(usize),
}

/// Splits each line. Of literals only the quotes stay in the code.
pub(super) fn split(source: &str) -> Vec<Line> {
    let chars: Vec<char> = source.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let (mut lines, mut line, mut state) = (Vec::new(), Line::default(), State::Code);
    let mut index = 0;
    while index < chars.len() {
        let (char, next) = (at(index), at(index + 1));
        if char == '\n' {
            lines.push(std::mem::take(&mut line));
            if state == State::LineComment {
                state = State::Code;
            }
            index += 1;
            continue;
        }
        let mut used = 1;
        match state {
            State::Code => match (char, next) {
                ('/', '/') => (state, used) = (State::LineComment, 2),
                ('/', '*') => (state, used) = (State::BlockComment(1), 2),
                ('"', _) => {
                    line.code.push('"');
                    line.prose.push(' ');
                    state = State::Text;
                }
                ('r', '"' | '#')
                    if !is_word(at(index.wrapping_sub(1))) || at(index.wrapping_sub(1)) == 'b' =>
                {
                    let hashes = chars
                        .iter()
                        .skip(index + 1)
                        .take_while(|char| **char == '#')
                        .count();
                    if at(index + 1 + hashes) == '"' {
                        line.code.push('"');
                        (state, used) = (State::RawText(hashes), hashes + 2);
                    } else {
                        line.code.push(char);
                    }
                }
                // A character, not a lifetime.
                ('\'', '\\') => {
                    let length = (index + 3..index + 12).find(|end| at(*end) == '\'');
                    used = length.map_or(1, |end| end + 1 - index);
                }
                ('\'', _) if at(index + 2) == '\'' => used = 3,
                _ => line.code.push(char),
            },
            State::LineComment => line.prose.push(char),
            State::BlockComment(depth) => match (char, next) {
                ('*', '/') => {
                    used = 2;
                    state = match depth {
                        1 => State::Code,
                        deeper => State::BlockComment(deeper - 1),
                    };
                }
                ('/', '*') => (state, used) = (State::BlockComment(depth + 1), 2),
                _ => line.prose.push(char),
            },
            State::Text => match char {
                '\\' if next != '\n' => used = 2,
                '"' => {
                    line.code.push('"');
                    line.prose.push(' ');
                    state = State::Code;
                }
                _ => line.prose.push(char),
            },
            State::RawText(hashes) => {
                if char == '"' && (index + 1..=index + hashes).all(|index| at(index) == '#') {
                    line.code.push('"');
                    (state, used) = (State::Code, hashes + 1);
                } else {
                    line.prose.push(char);
                }
            }
        }
        index += used;
    }
    if line != Line::default() {
        lines.push(line);
    }
    lines
}

/// Whether a character is part of an identifier.
pub(super) fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Identifiers and the punctuation between them.
pub(super) fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) {
            rest.find(|char| !is_word(char)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// The code of a file without comments, literals and modules under `#[cfg(test)]`.
pub(super) fn code(source: &str) -> String {
    let lines: Vec<_> = split(&without_test_modules(source))
        .into_iter()
        .map(|line| line.code)
        .collect();
    lines.join("\n")
}

/// The source without inline modules under `#[cfg(test)]`. Relies on rustfmt: such a module ends at the first closing
/// brace with the indentation of its `mod`.
pub(super) fn without_test_modules(source: &str) -> String {
    let mut kept = String::new();
    let mut lines = source.lines().peekable();
    while let Some(line) = lines.next() {
        let indentation = line.len() - line.trim_start().len();
        let opens = |line: &str| line.trim_start().starts_with("mod ") && line.ends_with('{');
        if line.trim_start() == "#[cfg(test)]" && lines.peek().is_some_and(|next| opens(next)) {
            let end = format!("{:indentation$}}}", "");
            for inner in lines.by_ref() {
                if inner == end {
                    break;
                }
            }
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_prose_are_separated() {
        let source = "let x = \"a // b\"; // why\nlet y = r#\"c \"d\"\"#; /* e */ f('\"', '\\'', 'z, &'a str)\n/// doc\n";
        let lines = split(source);
        assert_eq!(lines[0].code, "let x = \"\"; ");
        assert_eq!(lines[0].prose, " a // b  why");
        assert_eq!(lines[1].code, "let y = \"\";  f(, , 'z, &'a str)");
        assert_eq!(lines[1].prose, "c \"d\" e ");
        assert_eq!(lines[2].prose, "/ doc");
        assert_eq!(
            tokens("use a::{b, c};"),
            ["use", "a", "::", "{", "b", ",", "c", "}", ";"]
        );
    }

    #[test]
    fn test_modules_are_left_out() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {}\n";
        assert_eq!(without_test_modules(source), "fn a() {}\nfn c() {}\n");
    }
}
