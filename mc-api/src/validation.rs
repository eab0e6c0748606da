//! Validation and canonicalization of external values. Errors name the value.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv6Net};

/// A rejected value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValidationError {
    /// Not `address/length`.
    #[error("{value:?} is not a CIDR such as 10.10.0.0/16")]
    Cidr {
        /// The value given.
        value: String,
    },
    /// Not an address.
    #[error("{value:?} is not an IP address")]
    Ip {
        /// The value given.
        value: String,
    },
    /// An IPv4-mapped IPv6 address or prefix, which implementations interpret differently.
    #[error("{value:?} is an IPv4-mapped IPv6 value; write it as IPv4")]
    Mapped {
        /// The value given.
        value: String,
    },
    /// Unspecified, loopback, multicast or link-local.
    #[error("{value:?} is not reachable from other clusters")]
    Unreachable {
        /// The value given.
        value: String,
    },
    /// Not a DNS label (RFC 1123).
    #[error("{value:?} is not a DNS label (lower-case letters, digits and '-', at most {max} characters)")]
    DnsLabel {
        /// The value given.
        value: String,
        /// The limit that applies.
        max: usize,
    },
    /// Not a DNS subdomain (RFC 1123).
    #[error("{value:?} is not a DNS name (labels separated by '.', at most {max} characters)")]
    DnsSubdomain {
        /// The value given.
        value: String,
        /// The limit that applies.
        max: usize,
    },
    /// Not a qualified name.
    #[error(
        "{key:?} is not a label or annotation key (an optional DNS prefix and '/', then at most 63 letters, digits, '-', '_' and '.')"
    )]
    Key {
        /// The value given.
        key: String,
    },
    /// Not a label value.
    #[error("{value:?} of {key:?} is not a label value (at most 63 letters, digits, '-', '_' and '.')")]
    LabelValue {
        /// Key of the label.
        key: String,
        /// The value given.
        value: String,
    },
    /// More annotations than an object can have.
    #[error("{bytes} bytes of annotations are more than {MAX_ANNOTATIONS}")]
    Annotations {
        /// Total size of keys and values.
        bytes: usize,
    },
}

/// Limit of exported annotations in bytes, keys and values: half of `TotalAnnotationSizeLimitB` of `apimachinery`, the
/// rest is for other writers.
const MAX_ANNOTATIONS: usize = 128 << 10;

/// Parses a CIDR into canonical form: `10.10.1.1/16` is `10.10.0.0/16`.
pub fn cidr(value: &str) -> Result<IpNet, ValidationError> {
    let net = parse_cidr(value).ok_or_else(|| ValidationError::Cidr {
        value: value.to_owned(),
    })?;
    if let IpNet::V6(net) = net
        && overlaps_mapped(&net)
    {
        return Err(ValidationError::Mapped {
            value: value.to_owned(),
        });
    }
    Ok(net.trunc())
}

// Stricter than `IpNet::from_str`, which reads 010.0.0.0 as 10.0.0.0 where other implementations read octal.
fn parse_cidr(value: &str) -> Option<IpNet> {
    let (address, length) = value.split_once('/')?;
    let plain = length.bytes().all(|b| b.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
    let length = plain.then(|| length.parse().ok()).flatten()?;
    IpNet::new(address.parse().ok()?, length).ok()
}

/// Parses an IP address.
pub fn ip(value: &str) -> Result<IpAddr, ValidationError> {
    let ip: IpAddr = value.parse().map_err(|_| ValidationError::Ip {
        value: value.to_owned(),
    })?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(ValidationError::Mapped {
            value: value.to_owned(),
        }),
        ip => Ok(ip),
    }
}

/// Parses a gateway IP, reachable from other clusters.
pub fn gateway_ip(value: &str) -> Result<IpAddr, ValidationError> {
    let ip = ip(value)?;
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local {
        return Err(ValidationError::Unreachable {
            value: value.to_owned(),
        });
    }
    Ok(ip)
}

/// Validates a DNS label (RFC 1123) of at most `max` characters.
pub fn dns_label(value: &str, max: usize) -> Result<&str, ValidationError> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let good = !value.is_empty()
        && value.len() <= max
        && value.bytes().all(inner)
        && !value.starts_with('-')
        && !value.ends_with('-');
    if good {
        Ok(value)
    } else {
        Err(ValidationError::DnsLabel {
            value: value.to_owned(),
            max,
        })
    }
}

/// Validates a DNS subdomain (RFC 1123), the form of most object names, of at most `max` characters.
pub fn dns_subdomain(value: &str, max: usize) -> Result<&str, ValidationError> {
    if value.len() <= max && value.split('.').all(|label| dns_label(label, max).is_ok()) {
        Ok(value)
    } else {
        Err(ValidationError::DnsSubdomain {
            value: value.to_owned(),
            max,
        })
    }
}

/// Validates labels as the API server does.
pub fn labels(labels: &BTreeMap<String, String>) -> Result<(), ValidationError> {
    for (key, value) in labels {
        validate_key(key)?;
        if !(value.is_empty() || is_qualified_name(value)) {
            return Err(ValidationError::LabelValue {
                key: key.clone(),
                value: value.clone(),
            });
        }
    }
    Ok(())
}

/// Validates annotations as the API server does, with room for those of others.
pub fn annotations(annotations: &BTreeMap<String, String>) -> Result<(), ValidationError> {
    annotations.keys().try_for_each(|key| validate_key(key))?;
    let bytes = annotations.iter().map(|(k, v)| k.len() + v.len()).sum();
    if bytes > MAX_ANNOTATIONS {
        return Err(ValidationError::Annotations { bytes });
    }
    Ok(())
}

/// Validates exported labels and annotations; an error names the field.
pub fn exported_metadata(
    exported_labels: &BTreeMap<String, String>,
    exported_annotations: &BTreeMap<String, String>,
) -> Result<(), (&'static str, ValidationError)> {
    labels(exported_labels).map_err(|cause| ("exportedLabels", cause))?;
    annotations(exported_annotations).map_err(|cause| ("exportedAnnotations", cause))
}

fn validate_key(key: &str) -> Result<(), ValidationError> {
    let good = match key.split_once('/') {
        None => is_qualified_name(key),
        Some((prefix, name)) => dns_subdomain(prefix, 253).is_ok() && is_qualified_name(name),
    };
    if good {
        Ok(())
    } else {
        Err(ValidationError::Key { key: key.to_owned() })
    }
}

fn is_qualified_name(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= 63
        && edge(name.chars().next())
        && edge(name.chars().last())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn overlaps_mapped(net: &Ipv6Net) -> bool {
    // ::ffff:0:0/96; a shorter prefix that contains it (::/0) is not an IPv4-mapped prefix.
    net.prefix_len() >= 96 && Ipv6Addr::to_ipv4_mapped(&net.addr()).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_and_annotations_are_validated_as_by_the_api_server() {
        let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        for (key, value) in [("app", "web"), ("example.com/Part_of", ""), ("a", "V1.2-rc_3")] {
            assert_eq!(labels(&map(key, value)), Ok(()), "{key}={value}");
        }
        let long = "x".repeat(64);
        for key in ["", "/a", "a/", "-a", "Ex_ample/a", "a b", &long] {
            assert_eq!(
                labels(&map(key, ""))
                    .unwrap_err()
                    .to_string()
                    .split(" is not")
                    .next(),
                Some(format!("{key:?}").as_str())
            );
            assert!(annotations(&map(key, "")).is_err(), "{key:?}");
        }
        for value in ["-", "a b", "ä", &long] {
            let error = labels(&map("app", value)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{value:?} of \"app\"")), "{error}");
        }
        assert_eq!(annotations(&map("note", "any text, of any length: {}")), Ok(()));
        let error = annotations(&map("note", &"x".repeat(1 << 20))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1048580 bytes of annotations are more than 131072"
        );
    }

    #[test]
    fn host_bits_are_dropped() {
        assert_eq!(cidr("10.10.1.1/16").unwrap().to_string(), "10.10.0.0/16");
        assert_eq!(cidr("fd00::1/64").unwrap().to_string(), "fd00::/64");
    }

    #[test]
    fn malformed_cidrs_are_rejected() {
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/8/8",
            " 10.0.0.0/8",
            "10.0.0.0/-1",
            "x/8",
            "010.0.0.0/8",
            "10.0.0.0/08",
            "10.0.0.0/+8",
        ] {
            let error = cidr(bad).unwrap_err();
            assert_eq!(
                error,
                ValidationError::Cidr {
                    value: bad.to_owned()
                }
            );
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn ipv4_mapped_values_are_rejected() {
        for bad in [
            "::ffff:10.0.0.0/104",
            "::ffff:a00:0/112",
            "::FFFF:10.1.2.3/128",
            "::ffff:0:0/96",
        ] {
            assert_eq!(
                cidr(bad).unwrap_err(),
                ValidationError::Mapped {
                    value: bad.to_owned()
                }
            );
        }
        assert!(matches!(
            ip("::ffff:10.0.0.1").unwrap_err(),
            ValidationError::Mapped { .. }
        ));
    }

    #[test]
    fn gateway_addresses_must_be_reachable() {
        assert!(gateway_ip("172.18.0.2").is_ok());
        for bad in [
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "169.254.1.1",
            "255.255.255.255",
            "::",
            "fe80::1",
        ] {
            assert!(
                matches!(gateway_ip(bad), Err(ValidationError::Unreachable { .. })),
                "{bad}"
            );
        }
        assert!(matches!(gateway_ip("172.18.0"), Err(ValidationError::Ip { .. })));
        assert!(matches!(
            gateway_ip("172.18.0.2/16"),
            Err(ValidationError::Ip { .. })
        ));
    }

    #[test]
    fn dns_names_have_a_maximum_length() {
        assert!(dns_label("web-1", 63).is_ok());
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "aaaa"] {
            assert!(dns_label(bad, 3).is_err(), "{bad}");
        }
        assert!(dns_subdomain("strict.v1", 9).is_ok());
        for bad in ["", ".", "a..b", "a.", "A.b", "a.b.c.d.e.f"] {
            assert!(dns_subdomain(bad, 9).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn canonicalization_is_idempotent(addr: [u8; 4], len in 0u8..=32) {
            let text = format!("{}.{}.{}.{}/{len}", addr[0], addr[1], addr[2], addr[3]);
            let once = cidr(&text).unwrap();
            prop_assert_eq!(cidr(&once.to_string()).unwrap(), once);
            prop_assert!(once.contains(&IpAddr::from(addr)));
        }

        #[test]
        fn nothing_panics(text in ".{0,40}") {
            let _ = (cidr(&text).is_ok(), ip(&text).is_ok(), gateway_ip(&text).is_ok(), dns_label(&text, 63).is_ok());
        }
    }
}
