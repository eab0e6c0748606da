//! Worlds of Services for generated packets.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::{
    abi::{
        flow_entry::FlowEntry,
        service::{FLOW_OF_STACK, FlowKey, Reply, ReplyKey, SERVICE_PAST},
    },
    maglev,
    maps::MemoryMaps,
};

use super::{
    BY_UDP, Cases, DATAGRAMS, ENDING, ENDING_UDP, GONE, GROUP_NODE, ON_NODE, POD_PORT, PROXIED, SECOND,
    STICKY, STICKY_FIRST, STICKY_HERE, STICKY_KNOWN, TCP, UDP, UDP_HERE, WEB, WEB_HERE, addr, affinity,
    world,
};
use crate::fixture::{POD_HERE, POD_NODE, POD_WEST, SERVICE_HERE, Shape};

/// The gateway of [`world`] with several backends of a port, here and on the node.
pub(crate) fn several_backends(shape: Shape) -> MemoryMaps {
    let cases = Cases {
        shape,
        cases: &mut Vec::new(),
    };
    let mut tables = cases.gateway();
    for (port, proto, known, more) in [
        (
            WEB,
            TCP,
            &[ON_NODE][..],
            &[(SECOND, POD_NODE), (WEB_HERE, POD_HERE)][..],
        ),
        (DATAGRAMS, UDP, &[BY_UDP], &[(UDP_HERE, POD_HERE)]),
        (
            STICKY,
            TCP,
            &[STICKY_KNOWN, STICKY_FIRST],
            &[(STICKY_HERE, POD_HERE)],
        ),
    ] {
        let key = cases.key(port, proto);
        let mut ids: BTreeSet<u64> = known.iter().copied().collect();
        for (id, pod) in more {
            let group = if *pod == POD_HERE { 0 } else { GROUP_NODE };
            let backend = cases.backend(*pod, port, proto, group);
            tables.services.backends.insert(*id, backend);
            ids.insert(*id);
        }
        tables
            .services
            .maglev
            .insert(key, *maglev::table(&ids).expect("a table"));
        let service = tables.services.services.get_mut(&key).expect("a Service");
        service.backends = u32::try_from(ids.len()).expect("few");
    }
    tables
}

/// [`several_backends`] with past tables: in some places a backend that is unready, missing, or here.
pub(crate) fn past_tables(shape: Shape) -> MemoryMaps {
    let cases = Cases {
        shape,
        cases: &mut Vec::new(),
    };
    let mut tables = several_backends(shape);
    for (port, proto, past) in [
        (
            WEB,
            TCP,
            &[
                &[ON_NODE, WEB_HERE, ENDING, GONE][..],
                &[SECOND, ENDING],
                &[WEB_HERE],
            ][..],
        ),
        (DATAGRAMS, UDP, &[&[ENDING_UDP, UDP_HERE], &[BY_UDP, GONE]]),
        (STICKY, TCP, &[&[STICKY_KNOWN, STICKY_HERE], &[STICKY_FIRST]]),
    ] {
        let key = cases.key(port, proto);
        for (generation, ids) in (1..).zip(past) {
            let mut table = *maglev::table(&ids.iter().copied().collect()).expect("a table");
            for place in table.backends.iter_mut().step_by(5) {
                *place = 0;
            }
            tables
                .services
                .maglev
                .insert(key.with_generation(generation), table);
        }
        let service = tables.services.services.get_mut(&key).expect("a Service");
        service.flags |= SERVICE_PAST;
    }
    tables
}

/// Flows of [`past_tables`], unconfirmed and confirmed, by client port.
pub(crate) fn unconfirmed_flows(shape: Shape, client_ports: &[u16]) -> BTreeMap<FlowKey, u64> {
    let cases = Cases {
        shape,
        cases: &mut Vec::new(),
    };
    let mut flows = known_flows(shape, client_ports);
    for (number, port) in (0..).zip(client_ports) {
        let id = [ON_NODE, SECOND, ENDING][number % 3];
        let table = u32::try_from(number % 5).expect("small");
        let entry = if number % 4 == 0 {
            FlowEntry::confirmed(id)
        } else {
            FlowEntry::unconfirmed(id, table)
        };
        flows.insert(cases.flow_key(*port, WEB, TCP), entry.word());
        let sticky = FlowEntry::unconfirmed([STICKY_KNOWN, STICKY_FIRST][number % 2], table);
        flows.insert(cases.flow_key(*port, STICKY, TCP), sticky.word());
        let datagrams = cases.flow_key(*port, DATAGRAMS, UDP);
        match number % 4 {
            0 => flows.remove(&datagrams),
            1 => flows.insert(datagrams, FlowEntry::confirmed(BY_UDP).word()),
            _ => flows.insert(datagrams, FlowEntry::unconfirmed(ENDING_UDP, table).word()),
        };
    }
    flows
}

/// Flows of the gateway's Pod through [`WEB`] or [`DATAGRAMS`], and through another port.
pub(crate) fn connections_here(shape: Shape, client_ports: &[u16]) -> BTreeMap<ReplyKey, Reply> {
    connections(shape, POD_HERE, client_ports)
}

/// Flows of the node's Pod through [`WEB`] or [`DATAGRAMS`], and through another port.
pub(crate) fn connections_on_node(shape: Shape, client_ports: &[u16]) -> BTreeMap<ReplyKey, Reply> {
    connections(shape, POD_NODE, client_ports)
}

fn connections(shape: Shape, pod: [u8; 4], client_ports: &[u16]) -> BTreeMap<ReplyKey, Reply> {
    let cases = Cases {
        shape,
        cases: &mut Vec::new(),
    };
    let of = |number: u16, client_port: u16, port: u16, proto: u8| {
        let key = ReplyKey {
            pod: addr(cases.addr_of(pod)),
            client: addr(cases.addr_of(POD_WEST)),
            pod_port: POD_PORT,
            client_port,
            proto: proto.into(),
        };
        let reply = Reply {
            addr: addr(cases.addr_of(SERVICE_HERE)),
            port: port + number % 3 / 2,
            pad: 0,
        };
        (key, reply)
    };
    let flows = (0..).zip(client_ports).step_by(2);
    flows
        .flat_map(|(number, client)| {
            [(WEB, TCP), (DATAGRAMS, UDP)].map(|(port, proto)| of(number, *client, port, proto))
        })
        .collect()
}

/// The gateway of [`world`] after the last backend became unready.
pub(crate) fn without_ready_backend(shape: Shape) -> MemoryMaps {
    Cases::without_ready_backend(world(shape, true))
}

/// Flows that a gateway already has, by client port: of a terminating, an unready and a removed backend, of the service
/// proxy, and of a client with affinity.
pub(crate) fn known_flows(shape: Shape, client_ports: &[u16]) -> BTreeMap<FlowKey, u64> {
    let cases = Cases {
        shape,
        cases: &mut Vec::new(),
    };
    let mut flows = BTreeMap::from([(cases.flow_key(0, STICKY, TCP), affinity::entry(STICKY_KNOWN, 1))]);
    for (number, port) in client_ports.iter().enumerate() {
        let web = [ENDING, GONE, FLOW_OF_STACK][number % 3];
        flows.insert(cases.flow_key(*port, WEB, TCP), web);
        flows.insert(
            cases.flow_key(*port, DATAGRAMS, UDP),
            [ENDING_UDP, GONE][number % 2],
        );
        flows.insert(
            cases.flow_key(*port, PROXIED, TCP),
            [FLOW_OF_STACK, ON_NODE][number % 2],
        );
    }
    flows
}
