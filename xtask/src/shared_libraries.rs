//! Shared libraries of a program, as `ldd` lists them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::cmd;

/// Error text of `ldd` for a static program.
const STATIC: &str = "not a dynamic executable";

/// Paths of the libraries and the loader of a program; none for a static one.
pub(crate) fn list(program: &Path) -> Result<Vec<PathBuf>> {
    let listing = cmd::output(Command::new("ldd").arg(program).env("LC_ALL", "C"));
    match listing {
        Err(error) if format!("{error:#}").contains(STATIC) => Ok(Vec::new()),
        listing => parse(&listing?),
    }
}

fn parse(listing: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in listing.lines().map(str::trim) {
        if line.contains("not found") {
            bail!("missing library: {line}");
        }
        let path = line.split_once("=> ").map_or(line, |(_, path)| path);
        let path = path.split(" (").next().unwrap_or_default();
        // linux-vdso, which the kernel provides, has no path.
        if path.starts_with('/') {
            found.push(path.into());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_parsed() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                       \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            parse(listing).unwrap(),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
        assert!(parse("\tlibx.so => not found\n").is_err());
        assert!(parse("\tstatically linked\n").unwrap().is_empty());
    }
}
