//! Parsers of single fields of the configuration file.

use std::net::SocketAddr;

use ipnet::IpNet;
use jiff::SignedDuration;

use super::ConfigError;
use crate::{label_identity::LabelKeyFilter, listen_addr, validation};

/// An absent or empty value is the default.
pub(super) fn listen_addrs(
    field: &'static str,
    value: Option<String>,
    default: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, ConfigError> {
    match value.filter(|v| !v.is_empty()) {
        Some(value) => listen_addr::parse(&value).map_err(|cause| ConfigError::ListenAddr { field, cause }),
        None => Ok(default),
    }
}

/// A non-negative duration; an absent or empty value is the default.
pub(super) fn duration(
    field: &'static str,
    value: Option<String>,
    default: SignedDuration,
) -> Result<SignedDuration, ConfigError> {
    let Some(value) = value.filter(|v| !v.is_empty()) else {
        return Ok(default);
    };
    let duration = value.parse().ok().filter(|d: &SignedDuration| !d.is_negative());
    duration.ok_or(ConfigError::Duration { field, value })
}

/// A duration of at least `min`.
pub(super) fn duration_at_least(
    field: &'static str,
    value: Option<String>,
    default: SignedDuration,
    min: SignedDuration,
) -> Result<SignedDuration, ConfigError> {
    let duration = duration(field, value.clone(), default)?;
    if duration < min {
        return Err(ConfigError::TooShort {
            field,
            value: value.unwrap_or_default(),
            min,
        });
    }
    Ok(duration)
}

pub(super) fn excluded_labels(patterns: Vec<String>) -> Result<LabelKeyFilter, ConfigError> {
    let mut filter = LabelKeyFilter::default();
    for (i, value) in patterns.into_iter().enumerate() {
        if !filter.add(&value) {
            let field = format!("labelIdentityExcludedLabels[{i}]");
            return Err(ConfigError::LabelKey { field, value });
        }
    }
    Ok(filter)
}

/// Comma-separated Service CIDRs, at most one of each IP family.
pub(super) fn service_cidrs(value: String) -> Result<Vec<IpNet>, ConfigError> {
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    let cidrs: Vec<_> = parts
        .map(|part| cidr("serviceCIDR".to_owned(), part))
        .collect::<Result<_, _>>()?;
    let one_per_family = match cidrs[..] {
        [first, second] => matches!(first, IpNet::V4(_)) != matches!(second, IpNet::V4(_)),
        _ => cidrs.len() < 2,
    };
    if one_per_family {
        Ok(cidrs)
    } else {
        Err(ConfigError::ServiceCidrs { value })
    }
}

/// A list of CIDRs; empty entries are ignored.
pub(super) fn cidrs(field: &str, values: &[String]) -> Result<Vec<IpNet>, ConfigError> {
    let present = values.iter().enumerate().filter(|(_, v)| !v.is_empty());
    present.map(|(i, v)| cidr(format!("{field}[{i}]"), v)).collect()
}

fn cidr(field: String, value: &str) -> Result<IpNet, ConfigError> {
    validation::cidr(value).map_err(|cause| ConfigError::Cidr { field, cause })
}

/// An enumerated option; an absent value is the default.
pub(super) fn option<T: std::str::FromStr<Err = ConfigError>>(
    value: Option<&String>,
) -> Result<T, ConfigError> {
    value.map(String::as_str).unwrap_or_default().parse()
}

/// `apiVersion` or `kind`, which may be empty.
pub(super) fn type_meta(
    field: &'static str,
    value: String,
    expected: &'static str,
) -> Result<(), ConfigError> {
    if value.is_empty() || value == expected {
        Ok(())
    } else {
        Err(ConfigError::TypeMeta {
            field,
            value,
            expected,
        })
    }
}
