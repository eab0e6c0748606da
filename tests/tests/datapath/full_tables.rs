//! Full flow tables in the kernel: packets are forwarded, the least recent flows are evicted and re-created.

use mc_gateway_common::{
    abi::service::{FlowKey, MAX_FLOWS, MAX_REPLIES, ReplyKey},
    maps::{MemoryMaps, service::ServiceMaps},
    packet::ip::mapped,
    verdict::{Event, Outcome},
};

use crate::{
    TC_ACT_UNSPEC,
    cases::{self, Program, services},
    fixture::{GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_NODE, SERVICE_HERE, Shape, WEST_GATEWAY},
    kernel::Kernel,
    packets::{Ip, Tunnel, tcp_syn},
    run_on_host,
};

/// More flows than the capacity of a table.
const FLOWS: u32 = 80_000;
/// Evicted flows that are resumed.
const RESUMED: usize = 100;
/// Ports of the Service in `cases/services.rs` with a Pod of the node, and the MAC address that names the Pod.
const WEB: u16 = 80;
const POD_PORT: u16 = 8080;
const ON_NODE: [u8; 6] = [6, 1, 2, 3, 4, 5];

/// The client of a flow: 16 ports of each address.
fn client(flow: u32) -> ([u8; 4], u16) {
    let [_, _, high, low] = (flow / 16).to_be_bytes();
    let port = 40_000 + u16::try_from(flow % 16).expect("small");
    ([10, 2, high, low], port)
}

fn syn(flow: u32) -> Ip {
    let (addr, port) = client(flow);
    Ip::new(addr, SERVICE_HERE, 6, tcp_syn(port, WEB))
}

/// A later packet of the flow.
fn ack(flow: u32) -> Ip {
    let mut packet = syn(flow);
    packet.payload[13] = 0x10;
    packet
}

/// Compares the kernel with a host that has no flows: a full table makes no difference.
fn assert_same_as_host(kernel: &mut Kernel, tables: &MemoryMaps, program: Program, frame: &[u8]) {
    let fresh = MemoryMaps {
        services: ServiceMaps {
            services: tables.services.services.clone(),
            maglev: tables.services.maglev.clone(),
            backends: tables.services.backends.clone(),
            ..ServiceMaps::default()
        },
        ..tables.clone()
    };
    let (verdict, bytes) = run_on_host(program, &fresh, frame);
    let outcome = kernel.run(program.name(), frame);
    assert_eq!(outcome.action, crate::tc_action(verdict), "{verdict:?}");
    assert_ne!(outcome.action, TC_ACT_UNSPEC);
    assert_eq!(outcome.bytes, bytes, "{verdict:?}");
}

fn flow_key(flow: u32) -> FlowKey {
    let (addr, port) = client(flow);
    FlowKey {
        client: mapped(addr),
        service: mapped(SERVICE_HERE),
        client_port: port,
        service_port: WEB,
        proto: 6,
    }
}

fn reply_key(flow: u32) -> ReplyKey {
    let (addr, port) = client(flow);
    ReplyKey {
        pod: mapped(POD_NODE),
        client: mapped(addr),
        pod_port: POD_PORT,
        client_port: port,
        proto: 6,
    }
}

/// The evicted flows: at least those beyond the capacity, and few more.
fn evicted_flows(is_known: impl Fn(u32) -> bool, capacity: u32) -> Vec<u32> {
    let forgotten: Vec<u32> = (0..FLOWS).filter(|flow| !is_known(*flow)).collect();
    let count = u32::try_from(forgotten.len()).expect("few");
    let least = FLOWS - capacity;
    assert!((least..least + 4_096).contains(&count), "{count} evicted");
    println!("{} of {FLOWS} flows kept, {count} evicted", FLOWS - count);
    forgotten
}

#[test]
fn a_gateway_with_a_full_flow_table_selects_the_same_backends() {
    let tables = services::world(Shape::default(), true);
    let mut kernel = Kernel::load(&tables);
    let before = kernel.counts();
    let frame = |packet: &Ip| Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, packet).frame();
    for flow in 0..FLOWS {
        assert_same_as_host(&mut kernel, &tables, Program::FromUnderlay, &frame(&syn(flow)));
    }
    let known = kernel.flows(&tables.services).flows.into_inner();
    let forgotten = evicted_flows(|flow| known.contains_key(&flow_key(flow)), MAX_FLOWS);
    // Resumed connections keep their backend and are entered again.
    for flow in forgotten.iter().take(RESUMED) {
        assert_same_as_host(&mut kernel, &tables, Program::FromUnderlay, &frame(&ack(*flow)));
    }
    let known = kernel.flows(&tables.services).flows.into_inner();
    assert!(
        forgotten
            .iter()
            .take(RESUMED)
            .all(|flow| known.contains_key(&flow_key(*flow)))
    );
    let after = kernel.counts();
    let counted = |event: Event| after.events[event as usize] - before.events[event as usize];
    let sent = u64::from(FLOWS) + RESUMED as u64;
    assert_eq!(counted(Event::ServiceFlow), sent);
    assert_eq!(
        counted(Event::ServiceTableFull),
        0,
        "the table evicts and never refuses"
    );
    assert_eq!(after.drops, before.drops);
    let transit = after.paths[Outcome::Transit as usize].0 - before.paths[Outcome::Transit as usize].0;
    assert_eq!(transit, sent);
}

#[test]
fn a_node_with_a_full_flow_table_translates_as_before() {
    let tables = services::world(Shape::default(), false);
    let mut kernel = Kernel::load(&tables);
    let before = kernel.counts();
    let frame = |packet: &Ip| {
        let mut tunnel = Tunnel::new(GATEWAY_INSIDE, NODE, packet);
        tunnel.inner_src = ON_NODE;
        tunnel.frame()
    };
    for flow in 0..FLOWS {
        assert_same_as_host(&mut kernel, &tables, Program::FromUnderlay, &frame(&syn(flow)));
    }
    let known = kernel.flows(&tables.services).replies.into_inner();
    let forgotten = evicted_flows(|flow| known.contains_key(&reply_key(flow)), MAX_REPLIES);
    let answer = |kernel: &mut Kernel, flow: u32| {
        let (addr, port) = client(flow);
        let mut packet = Ip::new(POD_NODE, addr, 6, tcp_syn(POD_PORT, port));
        packet.payload[13] = 0x12;
        let outcome = kernel.run("to_remote", &packet.frame());
        assert_eq!(outcome.action, crate::TC_ACT_REDIRECT);
        // The inner source: behind Ethernet, outer headers and twelve bytes.
        <[u8; 4]>::try_from(&outcome.bytes[14 + 50 + 12..14 + 50 + 16]).expect("an address")
    };
    for flow in forgotten.iter().take(RESUMED) {
        assert_eq!(
            answer(&mut kernel, *flow),
            POD_NODE,
            "evicted: the Pod's own address"
        );
        assert_same_as_host(&mut kernel, &tables, Program::FromUnderlay, &frame(&ack(*flow)));
        assert_eq!(answer(&mut kernel, *flow), SERVICE_HERE, "entered again");
    }
    let after = kernel.counts();
    assert_eq!(after.drops, before.drops);
    let full = Event::ServiceTableFull as usize;
    assert_eq!(after.events[full], before.events[full]);
}

/// The kernel refuses entries when it is out of memory, which only the host can simulate.
#[test]
fn a_refused_map_entry_is_counted_and_its_packet_is_forwarded() {
    let mut refused = 0;
    for case in cases::all() {
        let mut tables = case.tables.clone();
        tables.services.full = true;
        let before = tables.services.clone();
        let found = run_on_host(case.program, &tables, &case.frame);
        let expected = run_on_host(case.program, &case.tables, &case.frame);
        assert_eq!(found, expected, "{}", case.name);
        let full = tables.events.borrow().get(&Event::ServiceTableFull).copied();
        let written = {
            let (now, before) = (&case.tables.services, &before);
            now.flows != before.flows || now.replies != before.replies || now.fragments != before.fragments
        };
        // Removal needs no room.
        let forgets = case.tables.services.replies.borrow().len() < before.replies.borrow().len();
        assert_eq!(full.is_some(), written && !forgets, "{}", case.name);
        assert!(forgets || tables.services == before, "{}", case.name);
        refused += full.unwrap_or(0);
    }
    assert!(refused > 100, "{refused}");
}
