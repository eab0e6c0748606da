//! Addresses to listen at, as the configuration file and flags give them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::config::ConfigError;

/// Where to listen, as Go writes it: with nothing in front of the port everywhere; `0` is nowhere. The first of these
/// addresses that can be used.
pub fn bind_addresses(field: &'static str, value: &str) -> Result<Vec<SocketAddr>, ConfigError> {
    let refused = || ConfigError::Address {
        field,
        value: value.to_owned(),
    };
    if value == "0" {
        return Ok(vec![]);
    }
    let (host, port) = value.rsplit_once(':').ok_or_else(refused)?;
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = port
        .parse()
        .ok()
        .filter(|p| digits && *p != 0)
        .ok_or_else(refused)?;
    let one = |ip: IpAddr| vec![SocketAddr::new(ip, port)];
    match host {
        "" => Ok(any(port)),
        "localhost" => Ok(one(Ipv4Addr::LOCALHOST.into())),
        _ => {
            let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
            let ip = match bracketed {
                Some(ip) => ip.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
                None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            };
            ip.map(one).ok_or_else(refused)
        }
    }
}

/// Every address of both IP versions, where the kernel has IPv6; else of IPv4.
pub(super) fn any(port: u16) -> Vec<SocketAddr> {
    let ips: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    ips.map(|ip| SocketAddr::new(ip, port)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_go_knows() {
        let at = |value| -> Vec<_> {
            let found = bind_addresses("x", value).unwrap();
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(at("0"), Vec::<String>::new());
        assert_eq!(at(":8080"), ["[::]:8080", "0.0.0.0:8080"]);
        assert_eq!(at("localhost:1"), ["127.0.0.1:1"]);
        assert_eq!(at("192.0.2.1:65535"), ["192.0.2.1:65535"]);
        assert_eq!(at("[2001:db8::1]:80"), ["[2001:db8::1]:80"]);
    }

    #[test]
    fn what_is_no_address_is_reported_with_its_key() {
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
            let error = bind_addresses("--flag", value).unwrap_err().to_string();
            let begin = format!("--flag: {value:?} is not an address and port such as");
            assert!(error.starts_with(&begin), "{error}");
        }
    }
}
