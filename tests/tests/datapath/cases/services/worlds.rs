//! Worlds of Services for generated packets.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::{
    abi::service::{FLOW_OF_STACK, FlowKey},
    maglev,
    maps::MemoryMaps,
};

use super::{
    BY_UDP, Cases, DATAGRAMS, ENDING, ENDING_UDP, GONE, GROUP_NODE, ON_NODE, PROXIED, SECOND, STICKY,
    STICKY_FIRST, STICKY_HERE, STICKY_KNOWN, TCP, UDP, UDP_HERE, WEB, WEB_HERE, addr, world,
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
    let key = |client_port, port, proto: u8| FlowKey {
        client: addr(cases.addr_of(POD_WEST)),
        service: addr(cases.addr_of(SERVICE_HERE)),
        client_port,
        service_port: port,
        proto: proto.into(),
    };
    let mut flows = BTreeMap::from([(key(0, STICKY, TCP), STICKY_KNOWN)]);
    for (number, port) in client_ports.iter().enumerate() {
        let web = [ENDING, GONE, FLOW_OF_STACK][number % 3];
        flows.insert(key(*port, WEB, TCP), web);
        flows.insert(key(*port, DATAGRAMS, UDP), [ENDING_UDP, GONE][number % 2]);
        flows.insert(key(*port, PROXIED, TCP), [FLOW_OF_STACK, ON_NODE][number % 2]);
    }
    flows
}
