//! Output to stdout that survives a closed pipe (`mc-demo | head -1`), so that the clean-up runs.

use std::{
    fmt,
    io::{self, Write},
};

/// Writes to stdout; drops the text once the reader has closed the pipe.
pub fn write(text: fmt::Arguments<'_>) {
    if let Err(error) = try_write(&mut io::stdout().lock(), text) {
        // Nothing else can be done about it.
        let _lost = writeln!(io::stderr(), "cannot write to stdout: {error}");
    }
}

fn try_write(out: &mut impl Write, text: fmt::Arguments<'_>) -> io::Result<()> {
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// `println!` without its panic on a closed pipe.
#[macro_export]
macro_rules! outln {
    () => { $crate::output::write(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($arg)*))) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        let (reader, mut writer) = io::pipe().unwrap();
        try_write(&mut writer, format_args!("read\n")).unwrap();
        drop(reader);
        try_write(&mut writer, format_args!("dropped\n")).unwrap();
    }
}
