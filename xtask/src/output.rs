//! Output to stdout that survives a closed pipe: `cargo xtask … | head -1` neither panics nor skips the clean-up.

use std::{
    fmt,
    io::{self, Write},
};

/// Writes to stdout. Once the reader has closed the pipe the text is dropped and the command runs to its end, so that
/// clusters and namespaces are removed.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = try_write(&mut stdout, text) {
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

/// Replaces `print!` of std, which panics on a closed pipe.
macro_rules! print {
    ($($arg:tt)*) => { $crate::output::write(format_args!($($arg)*)) };
}

/// Replaces `println!` of std, which panics on a closed pipe.
macro_rules! println {
    () => { $crate::output::write(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($arg)*))) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        let (reader, mut writer) = io::pipe().unwrap();
        try_write(&mut writer, format_args!("read\n")).unwrap();
        drop(reader);
        try_write(&mut writer, format_args!("dropped\n")).unwrap();
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let error = try_write(&mut full, format_args!("lost\n")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
