//! Tests that report themselves as skipped.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// Reports the running test as skipped, on the line `cargo xtask test` counts; the test returns right after.
pub fn skipped(reason: impl Display) {
    // Not println!, which libtest captures. The line may follow a progress mark of libtest.
    let _closed = io::stdout()
        .lock()
        .write_all(format!("\nSKIPPED: {reason}\n").as_bytes());
}
