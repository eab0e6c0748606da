//! The rows about Services. Pure.

use mc_gateway_common::abi::affinity::AffinityEntry;
use mc_gateway_common::abi::flow_entry::FlowEntry;
use mc_gateway_common::abi::service::{
    BACKEND_READY, Backend, FLOW_OF_STACK, Maglev, SERVICE_AFFINITY, SERVICE_IDENTITY_LOST, SERVICE_STACK,
    ServiceKey,
};
use serde_json::{Value, json};

use super::notation::{format_endpoint, protocol_name};
use super::render::Table;
use super::snapshot::Snapshot;
use crate::cidr::from_abi_addr;

/// Node of a backend.
pub(crate) fn backend_location(snapshot: &Snapshot, backend: &Backend) -> String {
    match backend.group {
        0 => "here".to_owned(),
        group => snapshot.group_name(group),
    }
}

/// Id of the backend as other tables name it.
fn format_backend_id(backend: u64) -> String {
    format!("{backend:#012x}")
}

/// Columns of [`services`].
const COLUMNS: [&str; 8] = [
    "service", "protocol", "affinity", "pod", "node", "ready", "share", "id",
];

/// A row for each backend, with its share of the lookup table of its Service, and for each port that the service proxy
/// serves.
pub(super) fn services(snapshot: &Snapshot) -> Table {
    let maps = &snapshot.contents.services;
    let share = |table: &Maglev, id: u64| table.backends.iter().filter(|other| **other == id).count();
    let row = |(number, backend): (&u64, &Backend)| -> Vec<Value> {
        let key = ServiceKey {
            addr: backend.service,
            port: backend.service_port,
            proto: backend.proto,
            generation: 0,
        };
        let service = maps.services.get(&key);
        let table = maps.tables.get(&key);
        vec![
            json!(format_endpoint(&key.addr, key.port)),
            json!(protocol_name(key.proto.into())),
            json!(service.map(|service| service.flags & SERVICE_AFFINITY != 0)),
            json!(format_endpoint(&backend.pod, backend.pod_port)),
            json!(backend_location(snapshot, backend)),
            json!(backend.flags & BACKEND_READY != 0),
            json!(table.map(|table| share(table, *number))),
            json!(format_backend_id(*number)),
        ]
    };
    let mut backends: Vec<(&u64, &Backend)> = maps.backends.iter().collect();
    backends
        .sort_by_key(|(number, backend)| (backend.service, backend.service_port, backend.proto, **number));
    let proxied = maps
        .services
        .iter()
        .filter(|(_, service)| service.flags & SERVICE_STACK != 0);
    let proxied = proxied.map(|(key, service)| {
        let mut row = vec![Value::Null; COLUMNS.len()];
        let known = [
            json!(format_endpoint(&key.addr, key.port)),
            json!(protocol_name(key.proto.into())),
            Value::Null,
            Value::Null,
            json!(if service.flags & SERVICE_IDENTITY_LOST == 0 {
                "service proxy"
            } else {
                "identity-lost"
            }),
        ];
        for (cell, value) in row.iter_mut().zip(known) {
            *cell = value;
        }
        row
    });
    Table {
        name: "services",
        columns: &COLUMNS,
        rows: backends.into_iter().map(row).chain(proxied).collect(),
    }
}

/// A row for each flow: selections at a gateway, translations at the node of the Pod.
pub(super) fn flows(snapshot: &Snapshot) -> Table {
    let backends = &snapshot.contents.services.backends;
    let chosen = snapshot.flows.flows.iter().map(|(key, word)| {
        let id = match key.client_port {
            0 => AffinityEntry::from_word(*word).backend(),
            _ => FlowEntry::from_word(*word).backend(),
        };
        let pod = match id {
            FLOW_OF_STACK => Some("service proxy".to_owned()),
            _ => backends
                .get(&id)
                .map(|backend| format_endpoint(&backend.pod, backend.pod_port)),
        };
        // Without a port it is a client's choice for all its flows.
        let client = match key.client_port {
            0 => from_abi_addr(&key.client).to_string(),
            port => format_endpoint(&key.client, port),
        };
        vec![
            json!("chosen"),
            json!(protocol_name(key.proto)),
            json!(client),
            json!(format_endpoint(&key.service, key.service_port)),
            json!(pod.unwrap_or_else(|| format_backend_id(id))),
        ]
    });
    let translated = snapshot.flows.replies.iter().map(|(key, reply)| {
        vec![
            json!("translated"),
            json!(protocol_name(key.proto)),
            json!(format_endpoint(&key.client, key.client_port)),
            json!(format_endpoint(&reply.addr, reply.port)),
            json!(format_endpoint(&key.pod, key.pod_port)),
        ]
    });
    Table {
        name: "flows",
        columns: &["kind", "protocol", "client", "service", "pod"],
        rows: chosen.chain(translated).collect(),
    }
}
