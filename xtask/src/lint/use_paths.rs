//! Paths in a file that lead to other modules of its crate: `crate::`, `self::` and `super::`, in imports and in code.

use super::rust_source::{is_word, tokens};

/// The absolute paths (without `crate`) that a file refers to; `module` is the path of the file's own module.
pub(super) fn paths(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    // Inline modules around the current token, with the depth of braces they opened at.
    let (mut inline, mut depth) = (Vec::<(String, usize)>::new(), 0_usize);
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        match *token {
            "{" => {
                if let [.., "mod", name, _] = tokens.get(..=index).unwrap_or_default() {
                    inline.push(((*name).to_owned(), depth));
                }
                depth += 1;
            }
            "}" => {
                depth = depth.saturating_sub(1);
                inline.pop_if(|(_, opened)| *opened == depth);
            }
            "crate" | "self" | "super" if tokens.get(index + 1) == Some(&"::") => {
                let mut base: Vec<String> = Vec::new();
                if *token != "crate" {
                    base.extend(module.iter().cloned());
                    base.extend(inline.iter().map(|(name, _)| name.clone()));
                }
                index = tree(&tokens, index, base, &mut found);
                continue;
            }
            _ => {}
        }
        index += 1;
    }
    found
}

/// Reads a path or a tree of paths that begins at `index`; returns the index behind it.
fn tree(tokens: &[&str], mut index: usize, mut base: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    loop {
        match tokens.get(index).copied() {
            Some("crate" | "self") => {}
            Some("super") => {
                base.pop();
            }
            Some("{") => {
                index += 1;
                while !matches!(tokens.get(index), Some(&"}") | None) {
                    index = tree(tokens, index, base.clone(), found);
                    if tokens.get(index) == Some(&"as") {
                        index += 2;
                    }
                    if tokens.get(index) == Some(&",") {
                        index += 1;
                    } else if tokens.get(index) != Some(&"}") {
                        // Not a tree after all.
                        return index;
                    }
                }
                return index + 1;
            }
            Some(name) if name.starts_with(is_word) => base.push(name.to_owned()),
            _ => {
                found.push(base);
                return index + 1;
            }
        }
        index += 1;
        if tokens.get(index) == Some(&"::") {
            index += 1;
        } else {
            found.push(base);
            return index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<String> {
        let module = ["a".to_owned(), "b".to_owned()];
        paths(code, &module).iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn trees_are_expanded() {
        assert_eq!(
            found("use crate::{c::{self, D as E}, f::*};\nuse super::{g, super::h};\npub use self::i::J;\n"),
            ["c", "c::D", "f", "a::g", "h", "a::b::i::J"]
        );
    }

    #[test]
    fn paths_in_code_and_in_inline_modules_count() {
        assert_eq!(
            found("fn x() { crate::c::d(1); }\nmod k { fn y() { super::z(); } }\npub(crate) fn w(self) {}"),
            ["c::d", "a::b::z"]
        );
    }
}
