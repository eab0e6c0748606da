//! The loaded programs with their maps, and `BPF_PROG_TEST_RUN`.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use aya::{
    Ebpf, EbpfLoader, TestRunOptions,
    maps::{Array, DevMapHash, HashMap, MapData, PerCpuArray, PerCpuValues},
    programs::{SchedClassifier, TestRun as _, Xdp},
};
use mc_gateway::program_log::{self, ProgramLogError};
use mc_gateway_common::{
    abi::{
        CONFIG, Config, Counter, DROPS, EPOCH, EVENTS, Epoch, MAX_DROP_REASONS, MAX_EVENTS, MAX_OUTCOMES,
        MAX_PEER_STATS, NEXT_HOP_GROUPS, NEXT_HOPS, NextHop, NextHopGroup, OUTCOMES, PEER_STATS, PEERS,
        PREFIXES, Peer, PeerStats,
        affinity::AffinityEntry,
        kernel_decap::KERNEL_DECAP_TESTS,
        liveness::{PROBE_REPLY, PROBE_SENT, ProbeReply, ProbeSent},
        rate_limit::{
            ICMP_LIMIT, MAX_SENDER_LIMITS, PEER_LIMITS, PEER_RATES, PeerLimits, PeerRates, Rate,
            SENDER_LIMITS, TokenBucket,
        },
        service::{self, Flow, FlowKey},
        transit::{PROGRAM_TRANSIT, TRANSIT_DEVICES},
    },
    maps::{MemoryMaps, service::ServiceMaps},
};
use mc_tests::{
    fixture::{ebpf_object, logging_ebpf_object},
    prefix_table,
};

use crate::{
    cases::{self, Program},
    fixture, policy,
};

/// Length of `struct __sk_buff` up to `gso_size`, its last field that a case sets (`linux/bpf.h`).
const SKB_CONTEXT_LEN: usize = GSO_SIZE_AT + 4;
/// Offset of `gso_size` there.
const GSO_SIZE_AT: usize = 176;
/// Offset of `ingress_ifindex` there.
const INGRESS_IFINDEX_AT: usize = 36;

/// A context with these fields; none if both are 0.
fn context(gso_size: u32, ingress_ifindex: u32) -> Option<[u8; SKB_CONTEXT_LEN]> {
    let mut context = [0; SKB_CONTEXT_LEN];
    context[GSO_SIZE_AT..GSO_SIZE_AT + 4].copy_from_slice(&gso_size.to_ne_bytes());
    context[INGRESS_IFINDEX_AT..INGRESS_IFINDEX_AT + 4].copy_from_slice(&ingress_ifindex.to_ne_bytes());
    (gso_size != 0 || ingress_ifindex != 0).then_some(context)
}

/// Rates of peers without a limit in any test, as on the host.
const UNLIMITED: PeerRates = {
    let rate = Rate {
        burst: u64::MAX,
        interval: 1,
    };
    PeerRates {
        icmp_errors: rate,
        flows: rate,
    }
};

/// Action and packet bytes of a run in the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunResult {
    pub(crate) action: u32,
    pub(crate) bytes: Vec<u8>,
}

/// All counters, summed over CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) drops: Vec<u64>,
    pub(crate) paths: Vec<(u64, u64)>,
    pub(crate) events: Vec<u64>,
    /// By slot; zero entries are absent.
    pub(crate) traffic: BTreeMap<u32, PeerStats>,
}

/// Adds a peer's traffic to the sum of its slot.
pub(crate) fn add_traffic(all: &mut BTreeMap<u32, PeerStats>, slot: u32, more: &PeerStats) {
    let sum = all.entry(slot).or_default();
    sum.sent_packets += more.sent_packets;
    sum.sent_bytes += more.sent_bytes;
    sum.received_packets += more.received_packets;
    sum.received_bytes += more.received_bytes;
}

/// Liveness of a next hop without its times, which differ between host and kernel.
pub(crate) type LivenessRecord = (u32, u32, u32, u32, bool);

fn liveness_record(seen: ProbeReply) -> LivenessRecord {
    let held = seen.held_since != 0;
    (seen.id, seen.sequence, seen.size, seen.size_sequence, held)
}

/// Liveness records of the host.
pub(crate) fn health(tables: &MemoryMaps) -> Vec<LivenessRecord> {
    tables
        .health
        .seen
        .borrow()
        .values()
        .map(|seen| liveness_record(*seen))
        .collect()
}

/// `services` with the time of new entries of clients replaced by the start of the tests: the clock of the host model
/// stands still. An older time stays.
pub(crate) fn without_seconds(services: &ServiceMaps) -> ServiceMaps {
    /// Longer than the tests run, shorter than the age of an entry in any case.
    const NEW: u64 = 3_600;
    let services = services.clone();
    let start = AffinityEntry::seconds(fixture::now());
    for (_, word) in services
        .flows
        .borrow_mut()
        .iter_mut()
        .filter(|(key, _)| key.client_port == 0)
    {
        let entry = AffinityEntry::from_word(*word);
        let has_time = entry.word() != entry.backend();
        if has_time && !entry.is_expired(start.wrapping_add(NEW), 2 * NEW) {
            *word = AffinityEntry::new(entry.backend(), start).word();
        }
    }
    services
}

/// The programs with their maps, and the slots of `mc_peer_stats` in use so far.
pub(crate) struct Kernel(Ebpf, BTreeSet<u32>);

impl Kernel {
    /// Loads the object of `cargo xtask build-ebpf --log` and fills its maps.
    pub(crate) fn load_logging(tables: &MemoryMaps) -> Self {
        Self::load_object(&logging_ebpf_object(), tables, &UNLIMITED)
    }

    /// Opens the program log. The returned function passes the records written since its last call to `sink`.
    pub(crate) fn open_log<F: Fn(&str) + Send + Sync + 'static>(
        &mut self,
        sink: F,
    ) -> Result<impl FnMut() + use<F>, ProgramLogError> {
        let mut logger = program_log::open(&mut self.0, sink)?;
        Ok(move || logger.flush())
    }

    /// Loads the object of `cargo xtask build-ebpf` and fills its maps.
    pub(crate) fn load(tables: &MemoryMaps) -> Self {
        Self::load_object(&ebpf_object(), tables, &UNLIMITED)
    }

    /// [`Self::load`] with limits of each peer.
    pub(crate) fn load_with_rates(tables: &MemoryMaps, rates: &PeerRates) -> Self {
        Self::load_object(&ebpf_object(), tables, rates)
    }

    fn load_object(object: &Path, tables: &MemoryMaps, rates: &PeerRates) -> Self {
        let bytes = std::fs::read(object)
            .unwrap_or_else(|e| panic!("{}: {e}: run `cargo xtask build-ebpf` first", object.display()));
        let mut ebpf = EbpfLoader::new()
            .override_global(PEER_RATES, rates, true)
            .load(&bytes)
            .expect("load the object (needs root)");
        for name in Program::ALL.map(Program::name) {
            let program: &mut SchedClassifier = ebpf.program_mut(name).expect(name).try_into().expect(name);
            program.load().unwrap_or_else(|e| panic!("{name}: {e:#?}"));
        }
        let program = ebpf.program_mut(PROGRAM_TRANSIT).expect(PROGRAM_TRANSIT);
        let program: &mut Xdp = program.try_into().expect("XDP");
        program
            .load()
            .unwrap_or_else(|e| panic!("{PROGRAM_TRANSIT}: {e:#?}"));
        let mut kernel = Self(ebpf, BTreeSet::new());
        kernel.fill(tables);
        kernel.set_services(&tables.services);
        kernel.set_flows(&tables.services);
        kernel
    }

    /// Replaces the contents of the maps, which avoids another verification of the programs.
    pub(crate) fn refill(&mut self, old: &MemoryMaps, new: &MemoryMaps) {
        self.clear(old);
        self.fill(new);
        if old.services.services != new.services.services
            || old.services.maglev != new.services.maglev
            || old.services.backends != new.services.backends
        {
            self.set_services(&new.services);
        }
    }

    /// Undoes [`Self::fill`].
    fn clear(&mut self, tables: &MemoryMaps) {
        let zeros = MemoryMaps {
            config: Some(Config::default()),
            groups: tables
                .groups
                .keys()
                .map(|slot| (*slot, NextHopGroup::default()))
                .collect(),
            next_hops: tables
                .next_hops
                .keys()
                .map(|slot| (*slot, NextHop::default()))
                .collect(),
            ..MemoryMaps::default()
        };
        for slot in tables.health.seen.borrow().keys() {
            zeros
                .health
                .seen
                .borrow_mut()
                .insert(*slot, ProbeReply::default());
        }
        self.fill(&zeros);
        let mut sent: Array<_, ProbeSent> = self
            .0
            .map_mut(PROBE_SENT)
            .expect(PROBE_SENT)
            .try_into()
            .expect(PROBE_SENT);
        for slot in tables.health.sent.keys() {
            sent.set(*slot, ProbeSent::default(), 0).expect(PROBE_SENT);
        }
        prefix_table::clear(&mut self.0, &tables.prefixes).expect(PREFIXES);
        let mut peers = self.peers();
        for address in tables.peers.keys() {
            peers.remove(address).expect(PEERS);
        }
        policy::clear(&mut self.0, &tables.policies);
    }

    /// Ends all flows that pass without a rule.
    pub(crate) fn clear_policy_flows(&mut self) {
        policy::clear_flows(&mut self.0);
    }

    fn peers(&mut self) -> HashMap<&mut MapData, [u8; 16], Peer> {
        self.0.map_mut(PEERS).expect(PEERS).try_into().expect(PEERS)
    }

    /// Pins all maps in a directory, under their names.
    pub(crate) fn pin_maps(&self, dir: &Path) {
        for (name, map) in self.0.maps() {
            // Maps of global variables have names with dots.
            if !name.contains('.') {
                map.pin(dir.join(name)).expect(name);
            }
        }
    }

    /// The kernel's ID of a map.
    pub(crate) fn map_id(&self, name: &str) -> u32 {
        let map = self.0.map(name).expect(name);
        let data: &MapData = match map {
            aya::maps::Map::Array(data) | aya::maps::Map::HashMap(data) => data,
            _ => panic!("{name}: neither an array nor a hash map"),
        };
        data.info().expect(name).id()
    }

    /// Sets the epoch of the caches; 0 disables them.
    pub(crate) fn set_epoch(&mut self, number: u32) {
        self.change_epoch(|epoch| epoch.number = number);
    }

    /// Lets the programs use link addresses, or leave them to the kernel.
    pub(crate) fn set_links_current(&mut self, current: bool) {
        self.change_epoch(|epoch| epoch.links_until = if current { u64::MAX } else { 1 });
    }

    fn change_epoch(&mut self, change: impl FnOnce(&mut Epoch)) {
        let mut map: Array<_, Epoch> = self.0.map_mut(EPOCH).expect(EPOCH).try_into().expect(EPOCH);
        let mut epoch = map.get(&0, 0).expect(EPOCH);
        change(&mut epoch);
        map.set(0, epoch, 0).expect(EPOCH);
    }

    /// The loaded XDP program.
    pub(crate) fn xdp_program(&self) -> &Xdp {
        let program = self.0.program(PROGRAM_TRANSIT).expect(PROGRAM_TRANSIT);
        program.try_into().expect("XDP")
    }

    /// A loaded classifier.
    pub(crate) fn program(&self, name: &str) -> &SchedClassifier {
        self.0.program(name).expect(name).try_into().expect(name)
    }

    fn fill(&mut self, tables: &MemoryMaps) {
        self.1.extend(tables.peers.values().map(|peer| peer.stats));
        self.1
            .extend(tables.next_hops.values().map(|next_hop| next_hop.stats));
        let ebpf = &mut self.0;
        let mut config: Array<_, Config> = ebpf.map_mut(CONFIG).expect(CONFIG).try_into().expect(CONFIG);
        if let Some(value) = tables.config {
            config.set(0, value, 0).expect(CONFIG);
        }
        let mut groups: Array<_, NextHopGroup> = ebpf
            .map_mut(NEXT_HOP_GROUPS)
            .expect(NEXT_HOP_GROUPS)
            .try_into()
            .expect(NEXT_HOP_GROUPS);
        for (slot, value) in &tables.groups {
            groups.set(*slot, value, 0).expect(NEXT_HOP_GROUPS);
        }
        let mut next_hops: Array<_, NextHop> = ebpf
            .map_mut(NEXT_HOPS)
            .expect(NEXT_HOPS)
            .try_into()
            .expect(NEXT_HOPS);
        for (slot, value) in &tables.next_hops {
            next_hops.set(*slot, value, 0).expect(NEXT_HOPS);
        }
        prefix_table::fill(&mut self.0, &tables.prefixes).expect(PREFIXES);
        let mut peers = self.peers();
        for (address, value) in &tables.peers {
            peers.insert(address, value, 0).expect(PEERS);
        }
        policy::fill(&mut self.0, &tables.policies);
        // A new epoch invalidates the programs' caches.
        self.change_epoch(|epoch| epoch.number += 1);
        self.set_links_current(tables.links_are_current);
        self.set_health(tables);
    }

    /// Writes probes and replies of next hops.
    pub(crate) fn set_health(&mut self, tables: &MemoryMaps) {
        let mut sent: Array<_, ProbeSent> = self
            .0
            .map_mut(PROBE_SENT)
            .expect(PROBE_SENT)
            .try_into()
            .expect(PROBE_SENT);
        for (slot, value) in &tables.health.sent {
            sent.set(*slot, *value, 0).expect(PROBE_SENT);
        }
        let mut seen: Array<_, ProbeReply> = self
            .0
            .map_mut(PROBE_REPLY)
            .expect(PROBE_REPLY)
            .try_into()
            .expect(PROBE_REPLY);
        for (slot, value) in &*tables.health.seen.borrow() {
            seen.set(*slot, *value, 0).expect(PROBE_REPLY);
        }
    }

    /// Replaces the records that programs write, except for flows and counters.
    pub(crate) fn set_written_state(&mut self, tables: &MemoryMaps) {
        self.set_health(tables);
        self.set_decap_tests(tables);
        self.set_icmp_limit(tables);
        self.set_peer_limits(tables);
    }

    /// Replaces the tests of the kernel's decapsulation.
    fn set_decap_tests(&mut self, tables: &MemoryMaps) {
        let old = self.decap_tests();
        let map = self.0.map_mut(KERNEL_DECAP_TESTS).expect(KERNEL_DECAP_TESTS);
        let mut tests: HashMap<_, u32, u64> = map.try_into().expect(KERNEL_DECAP_TESTS);
        for key in old {
            tests.remove(&key).expect(KERNEL_DECAP_TESTS);
        }
        for (key, at) in &*tables.decap_tests.borrow() {
            tests.insert(*key, *at, 0).expect(KERNEL_DECAP_TESTS);
        }
    }

    /// Keys of the tests of the kernel's decapsulation.
    pub(crate) fn decap_tests(&self) -> Vec<u32> {
        let map = self.0.map(KERNEL_DECAP_TESTS).expect(KERNEL_DECAP_TESTS);
        let tests: HashMap<_, u32, u64> = map.try_into().expect(KERNEL_DECAP_TESTS);
        let mut keys: Vec<u32> = tests.keys().map(|key| key.expect(KERNEL_DECAP_TESTS)).collect();
        keys.sort_unstable();
        keys
    }

    /// Writes the token buckets of ICMP errors.
    pub(crate) fn set_icmp_limit(&mut self, tables: &MemoryMaps) {
        let mut limit: PerCpuArray<_, TokenBucket> = self
            .0
            .map_mut(ICMP_LIMIT)
            .expect(ICMP_LIMIT)
            .try_into()
            .expect(ICMP_LIMIT);
        let cpus = aya::util::nr_cpus().expect("CPUs");
        let values = vec![*tables.icmp_limit.borrow(); cpus];
        let values = PerCpuValues::try_from(values).expect("one per CPU");
        limit.set(0, values, 0).expect(ICMP_LIMIT);
        self.set_sender_limits(tables);
    }

    /// Writes the tokens of senders; those without any in `tables` have no limit.
    fn set_sender_limits(&mut self, tables: &MemoryMaps) {
        let map = self.0.map_mut(SENDER_LIMITS).expect(SENDER_LIMITS);
        let mut limits: PerCpuArray<_, TokenBucket> = map.try_into().expect(SENDER_LIMITS);
        let cpus = aya::util::nr_cpus().expect("CPUs");
        let set = tables.sender_limits.borrow();
        for slot in 0..MAX_SENDER_LIMITS {
            let bucket = set.get(&slot).copied().unwrap_or(fixture::UNLIMITED);
            let values = PerCpuValues::try_from(vec![bucket; cpus]).expect("one per CPU");
            limits.set(slot, values, 0).expect(SENDER_LIMITS);
        }
    }

    /// Writes the tokens of the peers in `tables`.
    pub(crate) fn set_peer_limits(&mut self, tables: &MemoryMaps) {
        self.fill_peer_limits(tables, |limits| *limits);
    }

    /// Undoes [`Self::set_peer_limits`].
    pub(crate) fn clear_peer_limits(&mut self, tables: &MemoryMaps) {
        self.fill_peer_limits(tables, |_| PeerLimits::default());
    }

    fn fill_peer_limits(&mut self, tables: &MemoryMaps, value: impl Fn(&PeerLimits) -> PeerLimits) {
        let mut all: PerCpuArray<_, PeerLimits> = self
            .0
            .map_mut(PEER_LIMITS)
            .expect(PEER_LIMITS)
            .try_into()
            .expect(PEER_LIMITS);
        let cpus = aya::util::nr_cpus().expect("CPUs");
        for (slot, limits) in &*tables.peer_limits.borrow() {
            let values = PerCpuValues::try_from(vec![value(limits); cpus]).expect("one per CPU");
            all.set(*slot, values, 0).expect(PEER_LIMITS);
        }
    }

    /// Remaining tokens for ICMP errors, on the CPU that used any.
    pub(crate) fn icmp_errors_left(&self) -> u64 {
        let limit: PerCpuArray<&MapData, TokenBucket> = self
            .0
            .map(ICMP_LIMIT)
            .expect(ICMP_LIMIT)
            .try_into()
            .expect(ICMP_LIMIT);
        let values = limit.get(&0, 0).expect(ICMP_LIMIT);
        values.iter().map(|bucket| bucket.tokens).min().expect("a CPU")
    }

    /// ICMP errors sent on all CPUs, each with `at_first` tokens initially.
    pub(crate) fn icmp_errors_sent(&self, at_first: u64) -> u64 {
        let limit: PerCpuArray<&MapData, TokenBucket> = self
            .0
            .map(ICMP_LIMIT)
            .expect(ICMP_LIMIT)
            .try_into()
            .expect(ICMP_LIMIT);
        let values = limit.get(&0, 0).expect(ICMP_LIMIT);
        values.iter().map(|bucket| at_first - bucket.tokens).sum()
    }

    /// Liveness records of the next hops in the host's tables.
    pub(crate) fn health(&self, tables: &MemoryMaps) -> Vec<LivenessRecord> {
        let seen: Array<&MapData, ProbeReply> = self
            .0
            .map(PROBE_REPLY)
            .expect(PROBE_REPLY)
            .try_into()
            .expect(PROBE_REPLY);
        let slots = tables.health.seen.borrow();
        slots
            .keys()
            .map(|slot| liveness_record(seen.get(slot, 0).expect(PROBE_REPLY)))
            .collect()
    }

    fn hash<K: aya::Pod, V: aya::Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        self.0.map_mut(name).expect(name).try_into().expect(name)
    }

    /// Replaces the entries of a map.
    fn set<K: aya::Pod, V: aya::Pod>(&mut self, name: &str, wanted: impl Iterator<Item = (K, V)>) {
        let mut map = self.hash::<K, V>(name);
        let known: Vec<K> = map.keys().map(|key| key.expect("a key")).collect();
        for key in known {
            map.remove(&key).expect(name);
        }
        for (key, value) in wanted {
            map.insert(key, value, 0).expect(name);
        }
    }

    /// Replaces the Services in the maps.
    fn set_services(&mut self, services: &ServiceMaps) {
        let entries = services.services.iter().map(|(key, value)| (*key, *value));
        self.set(service::SERVICES, entries);
        let entries = services.maglev.iter().map(|(key, value)| (*key, *value));
        self.set(service::MAGLEV, entries);
        let entries = services.backends.iter().map(|(key, value)| (*key, *value));
        self.set(service::BACKENDS, entries);
    }

    /// Replaces the flows in the maps by those of `services`.
    pub(crate) fn set_flows(&mut self, services: &ServiceMaps) {
        let flows = services.flows.borrow();
        let flows = flows.iter().map(|(key, id)| (*key, Flow { backend: *id }));
        self.set(service::FLOWS, flows);
        let replies = services.replies.borrow();
        self.set(
            service::REPLIES,
            replies.iter().map(|(key, value)| (*key, *value)),
        );
        let fragments = services.fragments.borrow();
        self.set(
            service::FRAGMENTS,
            fragments.iter().map(|(key, value)| (*key, *value)),
        );
    }

    /// `services` with the flows of the kernel's maps, in the form of [`without_seconds`].
    pub(crate) fn flows(&mut self, services: &ServiceMaps) -> ServiceMaps {
        fn read<K: aya::Pod + Ord, V: aya::Pod>(map: &HashMap<&mut MapData, K, V>) -> BTreeMap<K, V> {
            map.iter().map(|entry| entry.expect("an entry")).collect()
        }
        let flows: BTreeMap<FlowKey, Flow> = read(&self.hash(service::FLOWS));
        without_seconds(&ServiceMaps {
            flows: RefCell::new(flows.into_iter().map(|(key, flow)| (key, flow.backend)).collect()),
            replies: RefCell::new(read(&self.hash(service::REPLIES))),
            fragments: RefCell::new(read(&self.hash(service::FRAGMENTS))),
            ..services.clone()
        })
    }

    /// Whether `BPF_PROG_TEST_RUN` accepts the frame: 6.18 rejects an IP ethertype without a complete IP header
    /// (`net/bpf/test_run.c`).
    pub(crate) fn accepts_frame(frame: &[u8]) -> bool {
        match frame.get(12..14) {
            Some([0x08, 0x00]) => frame.len() >= 14 + 20,
            Some([0x86, 0xdd]) => frame.len() >= 14 + 40,
            Some(_) => true,
            None => false,
        }
    }

    /// Runs one packet through a program.
    pub(crate) fn run(&mut self, program: &str, frame: &[u8]) -> RunResult {
        self.run_gso(program, frame, 0)
    }

    /// Nanoseconds of one run of a program on a packet: the mean of many.
    pub(crate) fn time(&self, program: &str, frame: &[u8]) -> u128 {
        const RUNS: u32 = 200_000;
        let context = context(0, cases::ingress_ifindex(program));
        let result = self.program(program).test_run(TestRunOptions {
            data_in: Some(frame),
            ctx_in: context.as_ref().map(<[u8; SKB_CONTEXT_LEN]>::as_slice),
            repeat: RUNS,
            ..TestRunOptions::default()
        });
        // The kernel states the mean, in whole nanoseconds.
        result.expect(program).duration.as_nanos()
    }

    /// [`Self::run`] for a GSO packet, unless `gso_size` is 0.
    pub(crate) fn run_gso(&mut self, program: &str, frame: &[u8], gso_size: u32) -> RunResult {
        let context = context(gso_size, cases::ingress_ifindex(program));
        self.run_with(program, frame, context)
    }

    /// Runs one packet that the node has received on a device; 0 for a packet of the node.
    pub(crate) fn run_received_on(&mut self, program: &str, frame: &[u8], ifindex: u32) -> RunResult {
        self.run_with(program, frame, context(0, ifindex))
    }

    fn run_with(&mut self, program: &str, frame: &[u8], context: Option<[u8; SKB_CONTEXT_LEN]>) -> RunResult {
        let program: &SchedClassifier = self.0.program(program).expect(program).try_into().expect(program);
        let mut out = vec![0; frame.len() + 256];
        let result = program
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ctx_in: context.as_ref().map(<[u8; SKB_CONTEXT_LEN]>::as_slice),
                ..TestRunOptions::default()
            })
            .unwrap_or_else(|e| panic!("PROG_RUN of {} bytes: {e:?}", frame.len()));
        out.truncate(usize::try_from(result.data_size_out).expect("a length"));
        if is_before_6_3() {
            remove_padding(&mut out);
        }
        RunResult {
            action: result.return_value,
            bytes: out,
        }
    }

    /// Runs one frame through the XDP program.
    pub(crate) fn run_xdp(&mut self, frame: &[u8]) -> RunResult {
        let program: &Xdp = self
            .0
            .program(PROGRAM_TRANSIT)
            .expect("a program")
            .try_into()
            .expect("XDP");
        let mut out = vec![0; frame.len() + 256];
        let result = program
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ..TestRunOptions::default()
            })
            .unwrap_or_else(|e| panic!("PROG_RUN of {} bytes: {e:?}", frame.len()));
        out.truncate(usize::try_from(result.data_size_out).expect("a length"));
        RunResult {
            action: result.return_value,
            bytes: out,
        }
    }

    fn transit_devices(&mut self) -> DevMapHash<&mut MapData> {
        let map = self.0.map_mut(TRANSIT_DEVICES).expect(TRANSIT_DEVICES);
        map.try_into().expect(TRANSIT_DEVICES)
    }

    /// Allows the XDP program to send from a device of this thread's network namespace.
    pub(crate) fn allow_transit(&mut self, ifindex: u32) {
        let inserted = self.transit_devices().insert(ifindex, ifindex, None, 0);
        inserted.expect(TRANSIT_DEVICES);
    }

    /// Undoes [`Self::allow_transit`].
    pub(crate) fn forbid_transit(&mut self, ifindex: u32) {
        self.transit_devices().remove(ifindex).expect(TRANSIT_DEVICES);
    }

    /// Reads all counters.
    pub(crate) fn counts(&mut self) -> Counts {
        let drops: PerCpuArray<&MapData, u64> = self.0.map(DROPS).expect(DROPS).try_into().expect(DROPS);
        let drops = (0..MAX_DROP_REASONS)
            .map(|i| drops.get(&i, 0).expect(DROPS).iter().sum())
            .collect();
        let paths: PerCpuArray<&MapData, Counter> =
            self.0.map(OUTCOMES).expect(OUTCOMES).try_into().expect(OUTCOMES);
        let paths = (0..MAX_OUTCOMES)
            .map(|i| {
                let values = paths.get(&i, 0).expect(OUTCOMES);
                (
                    values.iter().map(|c| c.packets).sum(),
                    values.iter().map(|c| c.bytes).sum(),
                )
            })
            .collect();
        let events: PerCpuArray<&MapData, u64> = self.0.map(EVENTS).expect(EVENTS).try_into().expect(EVENTS);
        let events = (0..MAX_EVENTS)
            .map(|i| events.get(&i, 0).expect(EVENTS).iter().sum())
            .collect();
        let map: PerCpuArray<&MapData, PeerStats> = self
            .0
            .map(PEER_STATS)
            .expect(PEER_STATS)
            .try_into()
            .expect(PEER_STATS);
        let mut traffic = BTreeMap::new();
        // Reading all 4,096 slots would dominate the time of a case.
        for slot in self.1.iter().filter(|slot| **slot < MAX_PEER_STATS) {
            for one in map.get(slot, 0).expect(PEER_STATS).iter() {
                if *one != PeerStats::default() {
                    add_traffic(&mut traffic, *slot, one);
                }
            }
        }
        Counts {
            drops,
            paths,
            events,
            traffic,
        }
    }
}

/// Whether the kernel is older than 6.3, without the flags of `bpf_skb_adjust_room` for a change of IP version.
fn is_before_6_3() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) < (Some(6), Some(3))
}

/// Removes the zero padding that such a kernel requires behind a decapsulated IPv4 packet shorter than an IPv6 header.
fn remove_padding(frame: &mut Vec<u8>) {
    const PADDED: usize = 14 + 40;
    let Some([0x08, 0x00, _, _, high, low]) = frame.get(12..18) else {
        return;
    };
    let end = 14 + usize::from(u16::from_be_bytes([*high, *low]));
    if frame.len() == PADDED
        && frame
            .get(end..)
            .is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
    {
        frame.truncate(end);
    }
}
