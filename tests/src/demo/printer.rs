//! Output of the demo: numbered steps, results and verbatim text.

use std::io::{self, IsTerminal as _};

use crate::outln;

/// Column of results.
const RESULT: usize = 38;

/// Prints the walkthrough to stdout.
#[derive(Debug)]
pub(super) struct Printer {
    step: u32,
    bold: bool,
    /// The last output was verbatim; a blank line follows it.
    after_verbatim: bool,
}

impl Default for Printer {
    fn default() -> Self {
        Self {
            step: 0,
            bold: io::stdout().is_terminal(),
            after_verbatim: false,
        }
    }
}

// === impl Voice ===

impl Printer {
    /// A heading.
    pub(super) fn title(&mut self, text: &str) {
        self.after_verbatim = false;
        outln!("\n{}", self.bold(text));
    }

    /// The heading of the next numbered step.
    pub(super) fn step(&mut self, text: &str) {
        self.step += 1;
        self.title(&format!("{}. {text}", self.step));
    }

    /// Lines of text.
    pub(super) fn text(&mut self, lines: &[&str]) {
        self.separate();
        for line in lines {
            outln!("   {line}");
        }
    }

    /// An action and its result.
    pub(super) fn result(&mut self, action: &str, result: &str) {
        self.separate();
        outln!("   {action:<RESULT$} {result}");
    }

    /// Verbatim text: output of another program, or a diagram.
    pub(super) fn verbatim(&mut self, text: &str) {
        outln!();
        for line in text.trim_end().lines() {
            outln!("{}", format!("     {line}").trim_end());
        }
        self.after_verbatim = true;
    }

    fn separate(&mut self) {
        if self.after_verbatim {
            outln!();
        }
        self.after_verbatim = false;
    }

    fn bold(&self, text: &str) -> String {
        if self.bold {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
