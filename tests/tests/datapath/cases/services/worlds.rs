//! Worlds of Services for generated packets.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::{
    abi::service::{FLOW_OF_STACK, FlowKey},
    maglev,
    maps::MemoryMaps,
};

use super::{
    BY_UDP, Cases, DATAGRAMS, ENDING, ENDING_UDP, GONE, GROUP_NODE, ON_NODE, PROXIED, SECOND, STICKY,
    STICKY_FIRST, STICKY_HERE, STICKY_KNOWN, TCP, UDP, UDP_HERE, WEB, WEB_HERE, affinity, world,
};
use crate::fixture::{POD_HERE, POD_NODE, Shape};

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
