//! Listen addresses in the syntax of Go's `net.Listen`, as the configuration file and flags give them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A malformed listen address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value:?} is not an address and port such as \":8080\", \"127.0.0.1:8080\" or \"[::1]:8080\", nor \"0\" for none"
)]
pub struct ListenAddrError {
    /// The value given.
    pub value: String,
}

/// Parses a listen address. Without a host it is every local address; `0` disables the listener. The caller uses the
/// first of the returned addresses that can be bound.
pub fn parse(value: &str) -> Result<Vec<SocketAddr>, ListenAddrError> {
    if value == "0" {
        return Ok(vec![]);
    }
    parse_host_port(value).ok_or_else(|| ListenAddrError {
        value: value.to_owned(),
    })
}

fn parse_host_port(value: &str) -> Option<Vec<SocketAddr>> {
    let (host, port) = value.rsplit_once(':')?;
    // `u16::from_str` accepts a leading '+'.
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    let port = port.parse().ok().filter(|p| digits && *p != 0)?;
    let ip = match host {
        "" => return Some(any(port)),
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        _ => match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(ip) => ip.parse::<Ipv6Addr>().ok()?.into(),
            None => host.parse::<Ipv4Addr>().ok()?.into(),
        },
    };
    Some(vec![SocketAddr::new(ip, port)])
}

/// The unspecified addresses: that of IPv6 serves both families where the kernel has IPv6.
pub(crate) fn any(port: u16) -> Vec<SocketAddr> {
    let ips: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    ips.map(|ip| SocketAddr::new(ip, port)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syntax_is_that_of_go() {
        let at = |value| -> Vec<_> {
            let found = parse(value).unwrap();
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(at("0"), Vec::<String>::new());
        assert_eq!(at(":8080"), ["[::]:8080", "0.0.0.0:8080"]);
        assert_eq!(at("localhost:1"), ["127.0.0.1:1"]);
        assert_eq!(at("192.0.2.1:65535"), ["192.0.2.1:65535"]);
        assert_eq!(at("[2001:db8::1]:80"), ["[2001:db8::1]:80"]);
    }

    #[test]
    fn malformed_addresses_are_rejected() {
        for value in [
            "8080",
            "",
            ":",
            ":0",
            ":65536",
            ":+80",
            "::1:80",
            "a:80",
            "[127.0.0.1]:80",
            "1.2.3:80",
            "[::1]",
            " ",
            "-1",
        ] {
            let error = parse(value).unwrap_err().to_string();
            let begin = format!("{value:?} is not an address and port such as");
            assert!(error.starts_with(&begin), "{error}");
        }
    }
}
