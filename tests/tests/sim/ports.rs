//! Service ports in a comparable text form.

use serde_json::Value;

/// Name, protocol and number of all ports.
pub(crate) fn format_ports(value: &Value) -> String {
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

/// The ports one by one.
pub(crate) fn split_ports(ports: &str) -> impl Iterator<Item = String> {
    ports.split(',').map(str::to_owned)
}
