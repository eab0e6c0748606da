//! The loaded programs, their maps, and `BPF_PROG_TEST_RUN`.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use aya::{
    Ebpf, EbpfLoader, TestRunOptions,
    maps::{Array, HashMap, LpmTrie, MapData, PerCpuArray, PerCpuValues, lpm_trie::Key},
    programs::{SchedClassifier, TestRun as _},
};
use mc_gateway_common::{
    abi::{
        CONFIG, Config, Counter, DROPS, EPOCH, EVENTS, GROUPS, Group, MAX_DROP_REASONS, MAX_EVENTS,
        MAX_PATHS, MAX_TRAFFIC, MEMBERS, Member, PATHS, PEERS, PREFIXES, Peer, Prefix, TRAFFIC, Traffic,
        health::{SEEN, SENT, Seen, Sent},
        limit::{Bucket, ICMP_LIMIT},
        service::{self, Flow, FlowKey},
    },
    tables::{MapTables, service::MapServices},
};

/// What the kernel did with a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) action: u32,
    pub(crate) bytes: Vec<u8>,
}

/// All counters, summed over CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) drops: Vec<u64>,
    pub(crate) paths: Vec<(u64, u64)>,
    pub(crate) events: Vec<u64>,
    /// By slot, those that are not zero.
    pub(crate) traffic: BTreeMap<u32, Traffic>,
}

/// Adds what was counted of a peer to what was before.
pub(crate) fn add(all: &mut BTreeMap<u32, Traffic>, slot: u32, more: &Traffic) {
    let sum = all.entry(slot).or_default();
    sum.sent_packets += more.sent_packets;
    sum.sent_bytes += more.sent_bytes;
    sum.received_packets += more.received_packets;
    sum.received_bytes += more.received_bytes;
}

/// What is known of a member, without the times, which the host and the kernel see differently.
pub(crate) type Known = (u32, u32, u32, u32, bool);

fn known(seen: Seen) -> Known {
    let held = seen.held_since != 0;
    (seen.id, seen.sequence, seen.size, seen.size_sequence, held)
}

/// What members have answered on the host.
pub(crate) fn health(tables: &MapTables) -> Vec<Known> {
    tables
        .health
        .seen
        .borrow()
        .values()
        .map(|seen| known(*seen))
        .collect()
}

/// The programs and their maps, and the slots of `mc_traffic` that peers and members were ever given.
pub(crate) struct Kernel(Ebpf, BTreeSet<u32>);

impl Kernel {
    /// Loads the object `cargo xtask build-ebpf` has built and fills its maps.
    pub(crate) fn load(tables: &MapTables) -> Self {
        let object = std::env::var_os("MC_GATEWAY_EBPF_OBJECT").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf/mc-gateway-ebpf.o"),
            PathBuf::from,
        );
        let bytes = std::fs::read(&object)
            .unwrap_or_else(|e| panic!("{}: {e}: run `cargo xtask build-ebpf` first", object.display()));
        let mut ebpf = EbpfLoader::new()
            .load(&bytes)
            .expect("load the object (needs root)");
        for name in ["to_remote", "from_underlay"] {
            let program: &mut SchedClassifier = ebpf.program_mut(name).expect(name).try_into().expect(name);
            program.load().unwrap_or_else(|e| panic!("{name}: {e:#?}"));
        }
        let mut kernel = Self(ebpf, BTreeSet::new());
        kernel.fill(tables);
        kernel.set_services(&tables.services);
        kernel.set_flows(&tables.services);
        kernel
    }

    /// Puts other tables in the place of those it was loaded with: the verifier takes its time for programs, not
    /// for maps.
    pub(crate) fn refill(&mut self, old: &MapTables, new: &MapTables) {
        self.empty(old);
        self.fill(new);
        if old.services.services != new.services.services
            || old.services.maglev != new.services.maglev
            || old.services.backends != new.services.backends
        {
            self.set_services(&new.services);
        }
    }

    /// Undoes [`Self::fill`].
    fn empty(&mut self, tables: &MapTables) {
        let zeros = MapTables {
            config: Some(Config::default()),
            groups: tables
                .groups
                .keys()
                .map(|slot| (*slot, Group::default()))
                .collect(),
            members: tables
                .members
                .keys()
                .map(|slot| (*slot, Member::default()))
                .collect(),
            ..MapTables::default()
        };
        for slot in tables.health.seen.borrow().keys() {
            zeros.health.seen.borrow_mut().insert(*slot, Seen::default());
        }
        self.fill(&zeros);
        let mut sent: Array<_, Sent> = self.0.map_mut(SENT).expect(SENT).try_into().expect(SENT);
        for slot in tables.health.sent.keys() {
            sent.set(*slot, Sent::default(), 0).expect(SENT);
        }
        let mut prefixes = self.prefixes();
        for (bits, network) in tables.prefixes.keys() {
            prefixes.remove(&Key::new(*bits, *network)).expect(PREFIXES);
        }
        let mut peers = self.peers();
        for address in tables.peers.keys() {
            peers.remove(address).expect(PEERS);
        }
    }

    fn prefixes(&mut self) -> LpmTrie<&mut MapData, [u8; 16], Prefix> {
        let map = self.0.map_mut(PREFIXES).expect(PREFIXES);
        map.try_into().expect(PREFIXES)
    }

    fn peers(&mut self) -> HashMap<&mut MapData, [u8; 16], Peer> {
        self.0.map_mut(PEERS).expect(PEERS).try_into().expect(PEERS)
    }

    /// A loaded program.
    pub(crate) fn program(&self, name: &str) -> &SchedClassifier {
        self.0.program(name).expect(name).try_into().expect(name)
    }

    fn fill(&mut self, tables: &MapTables) {
        self.1.extend(tables.peers.values().map(|peer| peer.traffic));
        self.1
            .extend(tables.members.values().map(|member| member.traffic));
        let ebpf = &mut self.0;
        let mut config: Array<_, Config> = ebpf.map_mut(CONFIG).expect(CONFIG).try_into().expect(CONFIG);
        if let Some(value) = tables.config {
            config.set(0, value, 0).expect(CONFIG);
        }
        let mut epoch: Array<_, u32> = ebpf.map_mut(EPOCH).expect(EPOCH).try_into().expect(EPOCH);
        // What the programs remember of former prefixes counts no longer.
        let last = epoch.get(&0, 0).expect(EPOCH);
        epoch.set(0, last + 1, 0).expect(EPOCH);
        let mut groups: Array<_, Group> = ebpf.map_mut(GROUPS).expect(GROUPS).try_into().expect(GROUPS);
        for (slot, value) in &tables.groups {
            groups.set(*slot, value, 0).expect(GROUPS);
        }
        let mut members: Array<_, Member> = ebpf.map_mut(MEMBERS).expect(MEMBERS).try_into().expect(MEMBERS);
        for (slot, value) in &tables.members {
            members.set(*slot, value, 0).expect(MEMBERS);
        }
        let mut prefixes = self.prefixes();
        for ((bits, network), value) in &tables.prefixes {
            prefixes
                .insert(&Key::new(*bits, *network), value, 0)
                .expect(PREFIXES);
        }
        let mut peers = self.peers();
        for (address, value) in &tables.peers {
            peers.insert(address, value, 0).expect(PEERS);
        }
        self.set_health(tables);
    }

    /// Writes what was sent to members and what they answered.
    pub(crate) fn set_health(&mut self, tables: &MapTables) {
        let mut sent: Array<_, Sent> = self.0.map_mut(SENT).expect(SENT).try_into().expect(SENT);
        for (slot, value) in &tables.health.sent {
            sent.set(*slot, *value, 0).expect(SENT);
        }
        let mut seen: Array<_, Seen> = self.0.map_mut(SEEN).expect(SEEN).try_into().expect(SEEN);
        for (slot, value) in &*tables.health.seen.borrow() {
            seen.set(*slot, *value, 0).expect(SEEN);
        }
    }

    /// Writes how many ICMP errors may be sent.
    pub(crate) fn set_icmp_limit(&mut self, tables: &MapTables) {
        let mut limit: PerCpuArray<_, Bucket> = self
            .0
            .map_mut(ICMP_LIMIT)
            .expect(ICMP_LIMIT)
            .try_into()
            .expect(ICMP_LIMIT);
        let cpus = aya::util::nr_cpus().expect("CPUs");
        let values = vec![*tables.icmp_limit.borrow(); cpus];
        let values = PerCpuValues::try_from(values).expect("one per CPU");
        limit.set(0, values, 0).expect(ICMP_LIMIT);
    }

    /// How many ICMP errors may still be sent: on the CPU that has sent any, if one has.
    pub(crate) fn icmp_errors_left(&self) -> u64 {
        let limit: PerCpuArray<&MapData, Bucket> = self
            .0
            .map(ICMP_LIMIT)
            .expect(ICMP_LIMIT)
            .try_into()
            .expect(ICMP_LIMIT);
        let values = limit.get(&0, 0).expect(ICMP_LIMIT);
        values.iter().map(|bucket| bucket.tokens).min().expect("a CPU")
    }

    /// How many ICMP errors were sent, on all CPUs together, of `at_first` each.
    pub(crate) fn icmp_errors_sent(&self, at_first: u64) -> u64 {
        let limit: PerCpuArray<&MapData, Bucket> = self
            .0
            .map(ICMP_LIMIT)
            .expect(ICMP_LIMIT)
            .try_into()
            .expect(ICMP_LIMIT);
        let values = limit.get(&0, 0).expect(ICMP_LIMIT);
        values.iter().map(|bucket| at_first - bucket.tokens).sum()
    }

    /// What members have answered, of those the host's tables know.
    pub(crate) fn health(&self, tables: &MapTables) -> Vec<Known> {
        let seen: Array<&MapData, Seen> = self.0.map(SEEN).expect(SEEN).try_into().expect(SEEN);
        let slots = tables.health.seen.borrow();
        slots
            .keys()
            .map(|slot| known(seen.get(slot, 0).expect(SEEN)))
            .collect()
    }

    fn hash<K: aya::Pod, V: aya::Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        self.0.map_mut(name).expect(name).try_into().expect(name)
    }

    /// Makes a map hold exactly these entries.
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

    /// Makes the programs know exactly these Services.
    fn set_services(&mut self, services: &MapServices) {
        let entries = services.services.iter().map(|(key, value)| (*key, *value));
        self.set(service::SERVICES, entries);
        let entries = services.maglev.iter().map(|(key, value)| (*key, *value));
        self.set(service::MAGLEV, entries);
        let entries = services.backends.iter().map(|(key, value)| (*key, *value));
        self.set(service::BACKENDS, entries);
    }

    /// Makes the programs know exactly the flows of `services`.
    pub(crate) fn set_flows(&mut self, services: &MapServices) {
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

    /// The flows the programs know, in `services` like those the host knows.
    pub(crate) fn flows(&mut self, services: &MapServices) -> MapServices {
        fn read<K: aya::Pod + Ord, V: aya::Pod>(map: &HashMap<&mut MapData, K, V>) -> BTreeMap<K, V> {
            map.iter().map(|entry| entry.expect("an entry")).collect()
        }
        let flows: BTreeMap<FlowKey, Flow> = read(&self.hash(service::FLOWS));
        MapServices {
            flows: RefCell::new(flows.into_iter().map(|(key, flow)| (key, flow.backend)).collect()),
            replies: RefCell::new(read(&self.hash(service::REPLIES))),
            fragments: RefCell::new(read(&self.hash(service::FRAGMENTS))),
            ..services.clone()
        }
    }

    /// Whether `BPF_PROG_TEST_RUN` takes the frame: 6.18 refuses an IP ethertype without a whole IP header
    /// behind it (`net/bpf/test_run.c`).
    pub(crate) fn can_stage(frame: &[u8]) -> bool {
        match frame.get(12..14) {
            Some([0x08, 0x00]) => frame.len() >= 14 + 20,
            Some([0x86, 0xdd]) => frame.len() >= 14 + 40,
            Some(_) => true,
            None => false,
        }
    }

    /// Runs one packet through a program.
    pub(crate) fn run(&mut self, program: &str, frame: &[u8]) -> Outcome {
        let program: &SchedClassifier = self.0.program(program).expect(program).try_into().expect(program);
        let mut out = vec![0; frame.len() + 256];
        let result = program
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ..TestRunOptions::default()
            })
            .unwrap_or_else(|e| panic!("PROG_RUN of {} bytes: {e:?}", frame.len()));
        out.truncate(usize::try_from(result.data_size_out).expect("a length"));
        if before_6_3() {
            remove_padding(&mut out);
        }
        Outcome {
            action: result.return_value,
            bytes: out,
        }
    }

    /// Reads all counters.
    pub(crate) fn counts(&mut self) -> Counts {
        let drops: PerCpuArray<&MapData, u64> = self.0.map(DROPS).expect(DROPS).try_into().expect(DROPS);
        let drops = (0..MAX_DROP_REASONS)
            .map(|i| drops.get(&i, 0).expect(DROPS).iter().sum())
            .collect();
        let paths: PerCpuArray<&MapData, Counter> = self.0.map(PATHS).expect(PATHS).try_into().expect(PATHS);
        let paths = (0..MAX_PATHS)
            .map(|i| {
                let values = paths.get(&i, 0).expect(PATHS);
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
        let map: PerCpuArray<&MapData, Traffic> =
            self.0.map(TRAFFIC).expect(TRAFFIC).try_into().expect(TRAFFIC);
        let mut traffic = BTreeMap::new();
        // All 4,096 would be most of the time a case takes.
        for slot in self.1.iter().filter(|slot| **slot < MAX_TRAFFIC) {
            for one in map.get(slot, 0).expect(TRAFFIC).iter() {
                if *one != Traffic::default() {
                    add(&mut traffic, *slot, one);
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

/// Whether the kernel is older than 6.3, which cannot tell `bpf_skb_adjust_room` that the IP version changes.
fn before_6_3() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) < (Some(6), Some(3))
}

/// Takes away the zeros such a kernel needs behind a decapsulated IPv4 packet that is shorter than an IPv6 header.
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
