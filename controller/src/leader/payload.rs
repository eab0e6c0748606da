//! What members wrote into their exports, checked: a bad export stops only itself, and is told the field.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EndpointSubset;

use crate::api::{
    resource_export::ServiceExportPayload,
    validation::{self, Invalid},
};

/// The protocols a Service can have.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// Why a payload is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// A value is none.
    #[error("{field}: {cause}")]
    Value {
        /// Where.
        field: String,
        /// Why.
        cause: Invalid,
    },
    /// No port.
    #[error("{field}: {value} is not a port (1 to 65535)")]
    Port {
        /// Where.
        field: String,
        /// As given.
        value: i32,
    },
    /// No protocol of Services.
    #[error("{field}: {value:?} is not TCP, UDP or SCTP")]
    Protocol {
        /// Where.
        field: String,
        /// As given.
        value: String,
    },
    /// Two ports that clients could not tell apart.
    #[error("{field}: {value} is already spec.service.serviceSpec.ports[{other}]")]
    Twice {
        /// Where.
        field: String,
        /// What they have in common.
        value: String,
        /// The index of the first one.
        other: usize,
    },
}

/// Whether the Service can be one of every member.
pub(super) fn service(payload: &ServiceExportPayload) -> Result<(), Refused> {
    let ports = payload.service_spec.ports.as_deref().unwrap_or_default();
    let mut names = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    for (i, port) in ports.iter().enumerate() {
        let field = |name: &str| format!("spec.service.serviceSpec.ports[{i}].{name}");
        number(|| field("port"), port.port)?;
        let protocol = protocol(|| field("protocol"), port.protocol.as_deref())?;
        let name = port.name.as_deref().unwrap_or_default();
        if !name.is_empty() || ports.len() > 1 {
            validation::dns_label(name, 63).map_err(|cause| Refused::Value {
                field: field("name"),
                cause,
            })?;
        }
        if let Some(other) = names.insert(name, i) {
            return Err(Refused::Twice {
                field: field("name"),
                value: format!("{name:?}"),
                other,
            });
        }
        if let Some(other) = numbers.insert((port.port, protocol), i) {
            return Err(Refused::Twice {
                field: field("port"),
                value: format!("{}/{protocol}", port.port),
                other,
            });
        }
    }
    validation::exported(&payload.exported_labels, &payload.exported_annotations).map_err(|(field, cause)| {
        Refused::Value {
            field: format!("spec.service.{field}"),
            cause,
        }
    })
}

/// Whether the endpoints can be those of a Service.
pub(super) fn subsets(subsets: &[EndpointSubset]) -> Result<(), Refused> {
    for (i, subset) in subsets.iter().enumerate() {
        for (j, address) in subset.addresses.iter().flatten().enumerate() {
            validation::gateway_ip(&address.ip).map_err(|cause| Refused::Value {
                field: format!("spec.endpoints.subsets[{i}].addresses[{j}].ip"),
                cause,
            })?;
        }
        for (j, port) in subset.ports.iter().flatten().enumerate() {
            let field = |name: &str| format!("spec.endpoints.subsets[{i}].ports[{j}].{name}");
            number(|| field("port"), port.port)?;
            protocol(|| field("protocol"), port.protocol.as_deref())?;
        }
    }
    Ok(())
}

fn number(field: impl FnOnce() -> String, value: i32) -> Result<(), Refused> {
    if (1..=0xffff).contains(&value) {
        Ok(())
    } else {
        Err(Refused::Port {
            field: field(),
            value,
        })
    }
}

fn protocol(field: impl FnOnce() -> String, value: Option<&str>) -> Result<&'static str, Refused> {
    let value = value.filter(|v| !v.is_empty()).unwrap_or("TCP");
    PROTOCOLS
        .into_iter()
        .find(|known| *known == value)
        .ok_or_else(|| Refused::Protocol {
            field: field(),
            value: value.to_owned(),
        })
}
