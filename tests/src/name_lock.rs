//! The names of namespaces, links and pins that start with a prefix, reserved for one process.

use std::{
    fs,
    io::ErrorKind,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
};

use anyhow::{Context as _, Result, bail};

use crate::netns::find_leaks;

/// Sockets of the caller's network namespace; abstract names begin with `@`.
const SOCKETS: &str = "/proc/net/unix";

/// Reserves all names that start with `<prefix>-`. The reservation ends with this value, or with its process in
/// any way: it is a socket with an abstract name (`unix(7)`).
#[derive(Debug)]
pub struct NameLock {
    _socket: UnixListener,
}

// === impl NameLock ===

impl NameLock {
    /// Reserves the names and removes everything that has one: leftovers of a process that ended without removing
    /// them. A process that has reserved the prefix, or a longer one, makes this an error.
    pub fn take(prefix: &str) -> Result<Self> {
        let name = socket_name(prefix);
        let address = SocketAddr::from_abstract_name(&name)
            .with_context(|| format!("prefix `{prefix}` is no name of a socket"))?;
        let socket = match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                bail!("prefix `{prefix}` is in use by another run")
            }
            bound => bound.with_context(|| format!("cannot reserve prefix `{prefix}`"))?,
        };
        let sockets = fs::read_to_string(SOCKETS).with_context(|| format!("cannot read {SOCKETS}"))?;
        if let Some(longer) = longer_name(&sockets, &name) {
            bail!("prefix `{prefix}` contains the names of another run, {longer}");
        }
        let left = find_leaks(prefix)?;
        if !left.is_empty() {
            eprintln!("removing leftovers of a run that has ended: {left:?}");
            left.remove()?;
        }
        Ok(Self { _socket: socket })
    }
}

fn socket_name(prefix: &str) -> String {
    format!("mc-gateway-tests/{prefix}")
}

/// A socket in the contents of `/proc/net/unix` with a name that starts with `<name>-`.
fn longer_name<'a>(sockets: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("@{name}-");
    sockets
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|path| path.starts_with(&start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_prefix_is_found_and_an_unrelated_one_is_not() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                       0: 00000002 00000000 00010000 0001 01 1 @mc-gateway-tests/nt-a\n\
                       0: 00000002 00000000 00010000 0001 01 2 @mc-gateway-tests/nt-ab-c\n";
        assert_eq!(longer_name(sockets, "mc-gateway-tests/nt-a"), None);
        assert_eq!(
            longer_name(sockets, "mc-gateway-tests/nt"),
            Some("@mc-gateway-tests/nt-a")
        );
    }
}
