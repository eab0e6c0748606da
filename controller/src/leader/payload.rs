//! Validation of export payloads: an invalid export fails alone, with the field in its status.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EndpointSubset;
use mc_api::{
    resource_export::ServiceExportPayload,
    validation::{self, ValidationError},
};

/// The protocols a Service can have.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// An invalid field of a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PayloadError {
    /// An invalid value.
    #[error("{field}: {cause}")]
    Value {
        /// The field.
        field: String,
        /// The validation error.
        cause: ValidationError,
    },
    /// A port out of range.
    #[error("{field}: {value} is not a port (1 to 65535)")]
    Port {
        /// The field.
        field: String,
        /// The value.
        value: i32,
    },
    /// An unsupported protocol.
    #[error("{field}: {value:?} is not TCP, UDP or SCTP")]
    Protocol {
        /// The field.
        field: String,
        /// The value.
        value: String,
    },
    /// Two ports of the same name, or of the same number and protocol.
    #[error("{field}: {value} is already spec.service.serviceSpec.ports[{other}]")]
    Duplicate {
        /// The field.
        field: String,
        /// The common value.
        value: String,
        /// The index of the first port.
        other: usize,
    },
}

/// Validates the ports, labels and annotations of an exported Service.
pub(super) fn validate_service(payload: &ServiceExportPayload) -> Result<(), PayloadError> {
    let ports = payload.service_spec.ports.as_deref().unwrap_or_default();
    let mut names = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    for (i, port) in ports.iter().enumerate() {
        let field = |name: &str| format!("spec.service.serviceSpec.ports[{i}].{name}");
        validate_port(|| field("port"), port.port)?;
        let protocol = parse_protocol(|| field("protocol"), port.protocol.as_deref())?;
        let name = port.name.as_deref().unwrap_or_default();
        if !name.is_empty() || ports.len() > 1 {
            validation::dns_label(name, 63).map_err(|cause| PayloadError::Value {
                field: field("name"),
                cause,
            })?;
        }
        if let Some(other) = names.insert(name, i) {
            return Err(PayloadError::Duplicate {
                field: field("name"),
                value: format!("{name:?}"),
                other,
            });
        }
        if let Some(other) = numbers.insert((port.port, protocol), i) {
            return Err(PayloadError::Duplicate {
                field: field("port"),
                value: format!("{}/{protocol}", port.port),
                other,
            });
        }
    }
    validation::exported_metadata(&payload.exported_labels, &payload.exported_annotations).map_err(
        |(field, cause)| PayloadError::Value {
            field: format!("spec.service.{field}"),
            cause,
        },
    )
}

/// Validates the addresses and ports of exported endpoints.
pub(super) fn validate_subsets(subsets: &[EndpointSubset]) -> Result<(), PayloadError> {
    for (i, subset) in subsets.iter().enumerate() {
        for (j, address) in subset.addresses.iter().flatten().enumerate() {
            validation::gateway_ip(&address.ip).map_err(|cause| PayloadError::Value {
                field: format!("spec.endpoints.subsets[{i}].addresses[{j}].ip"),
                cause,
            })?;
        }
        for (j, port) in subset.ports.iter().flatten().enumerate() {
            let field = |name: &str| format!("spec.endpoints.subsets[{i}].ports[{j}].{name}");
            validate_port(|| field("port"), port.port)?;
            parse_protocol(|| field("protocol"), port.protocol.as_deref())?;
        }
    }
    Ok(())
}

fn validate_port(field: impl FnOnce() -> String, value: i32) -> Result<(), PayloadError> {
    if (1..=0xffff).contains(&value) {
        Ok(())
    } else {
        Err(PayloadError::Port {
            field: field(),
            value,
        })
    }
}

fn parse_protocol(field: impl FnOnce() -> String, value: Option<&str>) -> Result<&'static str, PayloadError> {
    let value = value.filter(|v| !v.is_empty()).unwrap_or("TCP");
    PROTOCOLS
        .into_iter()
        .find(|known| *known == value)
        .ok_or_else(|| PayloadError::Protocol {
            field: field(),
            value: value.to_owned(),
        })
}
