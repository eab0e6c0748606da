//! Attach modes TCX and clsact, coexistence with foreign programs, and switching between the modes.

use std::path::PathBuf;

use aya::{
    EbpfLoader,
    programs::{LinkOrder, SchedClassifier, TcAttachType, tc::TcAttachOptions},
    sys::{Stats, enable_stats},
};
use mc_tests::{
    topology::{Cluster, Place, Topology, Variant},
    wait::wait_for,
};

use crate::fixture::{MAX_STREAM, TIMEOUT, ebpf_object, options};

/// Device towards the other gateway.
const BETWEEN: &str = "eth1";

fn connected(name: &str, attach: &str) -> Topology {
    let mut options = options(name);
    options.agent_flags = vec!["--attach".to_owned(), attach.to_owned()];
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the agents");
    bed
}

fn links(bed: &Topology, place: Place) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(bed.bpf_dir(place).join("links"))
        .expect("pinned links")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

fn filters(bed: &Topology, place: Place, device: &str, direction: &str) -> String {
    bed.netns(place)
        .run("tc", ["filter", "show", "dev", device, direction])
        .expect("filters")
}

fn qdiscs(bed: &Topology, place: Place) -> String {
    bed.netns(place).run("tc", ["qdisc", "show"]).expect("qdiscs")
}

fn pings(bed: &Topology, from: Place, to: std::net::Ipv4Addr, count: u32) {
    let ping = bed.traffic().ping(bed.netns(from), to, count).expect("ping");
    assert_eq!(ping.received, count, "{from:?} to {to}");
}

/// A foreign program: the same code without configuration, which passes everything. Attached to the ingress of a
/// device, or only pinned.
struct Foreign {
    ebpf: aya::Ebpf,
    pin: PathBuf,
}

impl Foreign {
    fn load(bed: &Topology, name: &str) -> Self {
        let bytes = std::fs::read(ebpf_object()).expect("the object");
        let mut ebpf = EbpfLoader::new().load(&bytes).expect("load");
        let program: &mut SchedClassifier = ebpf
            .program_mut("from_underlay")
            .expect("the program")
            .try_into()
            .expect("a classifier");
        program.load().expect("load");
        let pin = bed
            .bpf_dir(Place::GatewayEast)
            .with_file_name(format!("{}-{name}", bed.options().prefix));
        program.pin(&pin).expect("pin");
        Self { ebpf, pin }
    }

    fn program(&mut self) -> &mut SchedClassifier {
        let program = self.ebpf.program_mut("from_underlay").expect("the program");
        program.try_into().expect("a classifier")
    }

    fn runs(&mut self) -> u64 {
        self.program().info().expect("info").run_count()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        std::fs::remove_file(&self.pin).expect("unpin");
    }
}

/// Asserts that the foreign program receives all packets but ours.
fn assert_only_unrelated_packets_reach(bed: &Topology, foreign: &mut Foreign) {
    let _stats = enable_stats(Stats::RunTime).expect("program statistics");
    let before = foreign.runs();
    pings(bed, Place::GatewayEast, Cluster::West.gateway_net().addr(), 20);
    let others = foreign.runs() - before;
    assert!(others >= 20, "{others} runs for 20 unrelated packets");
    let before = foreign.runs();
    pings(bed, Place::PodEast, Cluster::West.pod_ip(), 20);
    let ours = foreign.runs() - before;
    // ARP packets may be among them.
    assert!(ours < 10, "{ours} runs while 20 of our packets arrived");
}

#[test]
fn a_foreign_tcx_program_stays_and_receives_unrelated_packets() {
    let mut bed = connected("tcxnext", "tcx");
    let place = Place::GatewayEast;
    let mut foreign = Foreign::load(&bed, "foreign");
    bed.netns(place)
        .enter(|| {
            let order = TcAttachOptions::TcxOrder(LinkOrder::default());
            let program = foreign.program();
            program.attach_with_options(BETWEEN, TcAttachType::Ingress, order)?;
            Ok(())
        })
        .expect("attach");
    assert_only_unrelated_packets_reach(&bed, &mut foreign);
    bed.stop_agent(place).expect("SIGTERM");
    bed.start_agent(place).expect("a new agent");
    assert_only_unrelated_packets_reach(&bed, &mut foreign);
}

#[test]
fn a_foreign_filter_stays_and_receives_unrelated_packets() {
    let mut bed = connected("clsnext", "clsact");
    let place = Place::GatewayEast;
    let mut foreign = Foreign::load(&bed, "foreign");
    let pin = foreign.pin.to_string_lossy().into_owned();
    let add = "filter add dev eth1 ingress pref 7 handle 1 bpf da pinned"
        .split(' ')
        .chain([&*pin]);
    bed.netns(place).run("tc", add).expect("a filter");
    assert_only_unrelated_packets_reach(&bed, &mut foreign);
    bed.kill_agent(place).expect("SIGKILL");
    bed.start_agent(place).expect("a new agent");
    assert_only_unrelated_packets_reach(&bed, &mut foreign);
    bed.stop_agent(place).expect("SIGTERM");
    bed.cleanup_agent(place).expect("cleanup");
    let left = filters(&bed, place, BETWEEN, "ingress");
    assert!(left.contains("pref 7"), "the foreign filter was removed: {left}");
    assert!(!left.contains("0x6d63"), "our filter remains: {left}");
    assert!(
        qdiscs(&bed, place).contains("clsact"),
        "the qdisc of a foreign filter was removed"
    );
}

#[test]
fn replacing_clsact_filters_loses_no_packet() {
    let mut bed = connected("clsagain", "clsact");
    let (east, west) = (bed.netns(Place::PodEast), bed.netns(Place::PodWest));
    let stream = bed
        .traffic()
        .sequenced(east, west, Cluster::West.pod_ip(), 10_000, MAX_STREAM);
    let stream = stream.expect("a stream");
    for place in [Place::GatewayEast, Place::NodeWest] {
        assert_eq!(links(&bed, place), [""; 0]);
        bed.kill_agent(place).expect("SIGKILL");
        bed.start_agent(place).expect("a new agent");
        bed.stop_agent(place).expect("SIGTERM");
        bed.start_agent(place).expect("a new agent");
        let shown = filters(&bed, place, "eth0", "ingress");
        assert_eq!(shown.matches("handle 0x6d63").count(), 1, "{shown}");
        let shown = bed.run_agent(place, &["inspect", "config"]).expect("inspect");
        let shown = String::from_utf8_lossy(&shown.stdout);
        let filter = "from_underlay on eth0 (clsact, priority ";
        assert!(shown.contains(filter), "{shown}");
    }
    let report = stream.stop(TIMEOUT).expect("a report");
    assert_eq!((report.lost, report.duplicated), (0, 0), "{report:?}");
    for place in Place::NODES {
        bed.stop_agent(place).expect("SIGTERM");
        bed.cleanup_agent(place).expect("cleanup");
        let left = qdiscs(&bed, place);
        assert!(!left.contains("clsact"), "{left}");
        assert!(!bed.bpf_dir(place).exists(), "pins remain");
    }
}

#[test]
fn switching_the_attach_mode_loses_no_packet() {
    let mut bed = connected("switch", "tcx");
    let places = [Place::GatewayEast, Place::GatewayWest];
    // The kernel stops a device briefly to add a qdisc, which would lose packets; an existing qdisc of another user
    // avoids it.
    for place in places {
        for device in ["eth0", BETWEEN, "mc0"] {
            let add = ["qdisc", "add", "dev", device, "clsact"];
            bed.netns(place).run("tc", add).expect("a qdisc");
        }
    }
    let (east, west) = (bed.netns(Place::PodEast), bed.netns(Place::PodWest));
    let stream = bed
        .traffic()
        .sequenced(east, west, Cluster::West.pod_ip(), 10_000, MAX_STREAM);
    let stream = stream.expect("a stream");
    for attach in ["clsact", "tcx"] {
        bed.set_agent_flags(&["--attach", attach]);
        for place in places {
            bed.stop_agent(place).expect("SIGTERM");
            bed.start_agent(place).expect("a new agent");
            let shown = [
                filters(&bed, place, BETWEEN, "ingress"),
                filters(&bed, place, "mc0", "egress"),
            ];
            let filters = shown.iter().filter(|text| text.contains("0x6d63")).count();
            let want = if attach == "clsact" { (2, 0) } else { (0, 3) };
            assert_eq!((filters, links(&bed, place).len()), want, "{attach}: {shown:?}");
        }
    }
    let report = stream.stop(TIMEOUT).expect("a report");
    assert_eq!((report.lost, report.duplicated), (0, 0), "{report:?}");
}

fn recreated_device_gets_its_program(attach: &str) {
    let mut bed = connected(&format!("{attach}dev"), attach);
    pings(&bed, Place::PodEast, Cluster::West.pod_ip(), 1);
    let (east, west) = (bed.netns(Place::GatewayEast), bed.netns(Place::GatewayWest));
    east.ip(&["link del eth1"]).expect("delete");
    east.veth(BETWEEN, west, BETWEEN).expect("a device");
    for (netns, cluster) in [(east, Cluster::East), (west, Cluster::West)] {
        netns
            .configure_device(BETWEEN, cluster.gateway_net(), bed.options().mtu)
            .expect("up");
    }
    wait_for("a reply over the new device", TIMEOUT, || {
        let from = bed.netns(Place::PodEast);
        match bed.traffic().ping(from, Cluster::West.pod_ip(), 1) {
            Ok(ping) if ping.received == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .expect("traffic");
    for place in Place::NODES {
        bed.stop_agent(place).expect("SIGTERM");
        bed.cleanup_agent(place).expect("cleanup");
        assert!(!qdiscs(&bed, place).contains("clsact"), "{}", qdiscs(&bed, place));
    }
}

#[test]
fn a_recreated_device_gets_its_filter() {
    recreated_device_gets_its_program("clsact");
}

#[test]
fn a_recreated_device_gets_its_link() {
    recreated_device_gets_its_program("tcx");
}
