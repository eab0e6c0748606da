//! Ports of Services, as text that can be compared.

use serde_json::Value;

/// Ports as everybody compares them: name, protocol, number.
pub(crate) fn ports(value: &Value) -> String {
    let all: Vec<_> = value
        .as_array()
        .into_iter()
        .flatten()
        .map(|p| {
            let protocol = p["protocol"].as_str().filter(|p| !p.is_empty()).unwrap_or("TCP");
            format!(
                "{}/{protocol}/{}",
                p["name"].as_str().unwrap_or_default(),
                p["port"]
            )
        })
        .collect();
    all.join(",")
}

/// Them one by one.
pub(crate) fn each(ports: &str) -> impl Iterator<Item = String> {
    ports.split(',').map(str::to_owned)
}
