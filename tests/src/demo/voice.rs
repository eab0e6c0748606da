//! How the demo speaks: numbered steps, results, and things shown as they are.

use std::io::{self, IsTerminal as _};

/// Column results start in.
const RESULT: usize = 38;

/// Prints the story to stdout.
#[derive(Debug)]
pub(super) struct Voice {
    step: u32,
    bold: bool,
    /// Whether the last thing printed was shown as it is: what follows keeps a distance.
    shown: bool,
}

impl Default for Voice {
    fn default() -> Self {
        Self {
            step: 0,
            bold: io::stdout().is_terminal(),
            shown: false,
        }
    }
}

// === impl Voice ===

impl Voice {
    /// A line that stands for itself.
    pub(super) fn title(&mut self, text: &str) {
        self.shown = false;
        println!("\n{}", self.emphasised(text));
    }

    /// The next numbered step.
    pub(super) fn step(&mut self, text: &str) {
        self.step += 1;
        self.title(&format!("{}. {text}", self.step));
    }

    /// Plain words.
    pub(super) fn say(&mut self, lines: &[&str]) {
        self.keep_distance();
        for line in lines {
            println!("   {line}");
        }
    }

    /// Something done, and what came of it.
    pub(super) fn result(&mut self, what: &str, came_of_it: &str) {
        self.keep_distance();
        println!("   {what:<RESULT$} {came_of_it}");
    }

    /// Text of another program, or a picture.
    pub(super) fn show(&mut self, text: &str) {
        println!();
        for line in text.trim_end().lines() {
            println!("{}", format!("     {line}").trim_end());
        }
        self.shown = true;
    }

    fn keep_distance(&mut self) {
        if self.shown {
            println!();
        }
        self.shown = false;
    }

    fn emphasised(&self, text: &str) -> String {
        if self.bold {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
