//! How the demo speaks: numbered steps, results, and things shown as they are.

use std::io::{self, IsTerminal as _};

/// Column results start in.
const RESULT: usize = 38;

/// Prints the story to stdout.
#[derive(Debug)]
pub(super) struct Voice {
    step: u32,
    bold: bool,
}

impl Default for Voice {
    fn default() -> Self {
        Self {
            step: 0,
            bold: io::stdout().is_terminal(),
        }
    }
}

// === impl Voice ===

impl Voice {
    /// A line that stands for itself.
    pub(super) fn title(&self, text: &str) {
        println!("\n{}", self.emphasised(text));
    }

    /// The next numbered step.
    pub(super) fn step(&mut self, text: &str) {
        self.step += 1;
        println!("\n{}\n", self.emphasised(&format!("{}. {text}", self.step)));
    }

    /// Plain words.
    #[expect(
        clippy::unused_self,
        reason = "everything the demo says goes through its voice"
    )]
    pub(super) fn say(&self, lines: &[&str]) {
        for line in lines {
            println!("   {line}");
        }
    }

    /// Something done, and what came of it.
    #[expect(
        clippy::unused_self,
        reason = "everything the demo says goes through its voice"
    )]
    pub(super) fn result(&self, what: &str, came_of_it: &str) {
        println!("   {what:<RESULT$} {came_of_it}");
    }

    /// Text of another program, or a picture.
    #[expect(
        clippy::unused_self,
        reason = "everything the demo says goes through its voice"
    )]
    pub(super) fn show(&self, text: &str) {
        for line in text.trim_end().lines() {
            println!("{}", format!("     {line}").trim_end());
        }
        println!();
    }

    fn emphasised(&self, text: &str) -> String {
        if self.bold {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
