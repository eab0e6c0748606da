//! Restarts, upgrades and roll-backs of agents under traffic lose no packet.
//!
//! Runs as root, one test at a time, with the paths of agent and traffic program in `MC_AGENT` and `MC_TRAFFIC`:
//! `cargo xtask test --suite restart`; `MC_LONG=1` selects more rounds.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod layouts;

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    time::Duration,
};

use mc_gateway_common::abi;
use mc_tests::{
    fixture::{self, MAX_STREAM, TIMEOUT, connected, map_dirs, web_service},
    sequence::SequenceReport,
    skip::skipped,
    topology::{Cluster, Masquerade, Place, Secrets, Topology, Variant},
    traffic::SequencedStream,
    wait::wait_for,
};

/// Packets per second during the tests.
const RATE: u32 = 10_000;
/// The agent of the previous release; `cargo xtask test` builds it.
const PREVIOUS_AGENT: &str = "MC_AGENT_PREVIOUS";
/// The directory of that agent's maps.
const PREVIOUS_MAPS: &str = "maps-v4";
/// A node and a gateway on the packets' path: encapsulation and transit.
const PLACES: [Place; 2] = [Place::NodeEast, Place::GatewayEast];

/// Runs `meanwhile` under a stream between the Pods and asserts that no packet is lost.
fn under_traffic(bed: &mut Topology, meanwhile: impl FnOnce(&mut Topology)) -> SequenceReport {
    let stream: SequencedStream = bed
        .traffic()
        .sequenced(
            bed.netns(Place::PodEast),
            bed.netns(Place::PodWest),
            Cluster::West.pod_ip(),
            RATE,
            MAX_STREAM,
        )
        .expect("a stream");
    meanwhile(bed);
    let report = stream.stop(TIMEOUT).expect("a report");
    assert!(report.ended, "{report:?}");
    assert_eq!((report.lost, report.duplicated), (0, 0), "{report:?}");
    report
}

fn restart(bed: &mut Topology, place: Place, kill: bool) {
    if kill {
        bed.kill_agent(place).expect("SIGKILL");
    } else {
        bed.stop_agent(place).expect("SIGTERM");
    }
    bed.start_agent(place).expect("a new agent");
}

/// Restarts agents in batches of ten, with a stream for each batch.
fn restarts(name: &str, attach: &str, batches: usize) {
    let batches = if fixture::is_long_run() { 10 } else { batches };
    let cycles = 10;
    let mut bed = connected(name);
    bed.set_agent_flags(&["--attach", attach]);
    for place in PLACES {
        restart(&mut bed, place, false);
    }
    let (mut sent, mut gap, mut done) = (0, 0.0_f64, 0);
    for _ in 0..batches {
        let report = under_traffic(&mut bed, |bed| {
            for cycle in 0..cycles {
                restart(bed, PLACES[cycle / 2 % 2], cycle % 2 == 0);
            }
        });
        done += cycles;
        sent += report.sent;
        gap = gap.max(report.longest_gap_ms);
    }
    println!(
        "restart: {attach}: {done} restarts, {sent} packets at {RATE}/s, 0 lost, longest gap {gap:.1} ms"
    );
}

#[test]
fn restarts_lose_no_packet() {
    restarts("tcx", "auto", 2);
}

#[test]
fn restarts_with_clsact_lose_no_packet() {
    restarts("cls", "clsact", 1);
}

fn maps_dir(bed: &Topology, place: Place) -> PathBuf {
    bed.bpf_dir(place).join(abi::MAPS_DIR)
}

/// Migration from another layout: its programs run until ours have the complete desired state.
fn check_migration(name: &str, version: u32) {
    let mut bed = connected(name);
    let report = under_traffic(&mut bed, |bed| {
        for place in PLACES {
            bed.stop_agent(place).expect("SIGTERM");
            // The attached programs keep their maps; only the pins change to another version.
            fs::remove_dir_all(maps_dir(bed, place)).expect("unpin");
            let pins = layouts::pin_layout(&bed.bpf_dir(place), version);
            assert_eq!(map_dirs(bed, place), std::slice::from_ref(&pins));
            bed.start_agent(place).expect("a new agent");
            assert_eq!(map_dirs(bed, place), [abi::MAPS_DIR], "{pins} remains");
            // The next agent adopts the new maps.
            restart(bed, place, true);
            assert_eq!(map_dirs(bed, place), [abi::MAPS_DIR]);
        }
    });
    println!(
        "restart: {name}: from layout {version} to {}, {} packets, 0 lost",
        abi::ABI_VERSION,
        report.sent
    );
}

#[test]
fn an_upgrade_from_layout_1_loses_no_packet() {
    check_migration("upgrade", 1);
}

#[test]
fn a_roll_back_from_a_later_layout_loses_no_packet() {
    check_migration("rollback", abi::ABI_VERSION + 1);
}

#[test]
fn an_incomplete_migration_is_restarted() {
    let mut bed = connected("half");
    let place = Place::GatewayEast;
    under_traffic(&mut bed, |bed| {
        bed.kill_agent(place).expect("SIGKILL");
        // Killed before its first plan was applied …
        let provisional = bed.bpf_dir(place).join(format!("{}-new", abi::MAPS_DIR));
        fs::rename(maps_dir(bed, place), &provisional).expect("rename");
        bed.start_agent(place).expect("a new agent");
        assert_eq!(map_dirs(bed, place), [abi::MAPS_DIR]);
        // … during pinning …
        bed.kill_agent(place).expect("SIGKILL");
        fs::remove_file(maps_dir(bed, place).join(abi::NEXT_HOP_GROUPS)).expect("unpin");
        bed.start_agent(place).expect("a new agent");
        assert_eq!(map_dirs(bed, place), [abi::MAPS_DIR]);
        // … or between the rename of its maps and the removal of another version's.
        bed.kill_agent(place).expect("SIGKILL");
        layouts::pin_layout(&bed.bpf_dir(place), 1);
        bed.start_agent(place).expect("a new agent");
        assert_eq!(map_dirs(bed, place), [abi::MAPS_DIR]);
    });
}

#[test]
fn foreign_pins_in_another_versions_directory_are_refused() {
    let mut bed = connected("mixed");
    let place = Place::NodeEast;
    bed.stop_agent(place).expect("SIGTERM");
    let pins = bed
        .bpf_dir(place)
        .join(layouts::pin_layout(&bed.bpf_dir(place), 1));
    let stranger = pins.join("mc_peers");
    fs::remove_file(&stranger).expect("unpin");
    layouts::pin_array(&stranger, "stranger", 4, 4, 1);
    bed.spawn_agent(place).expect("an agent");
    let line = fixture::wait_for_log(&mut bed, place, &["foreign pin"]);
    assert!(
        line.contains("mc_peers") && line.contains("stranger"),
        "pin and map are not in {line}"
    );
    assert!(
        stranger.exists() && maps_dir(&bed, place).exists(),
        "pins were removed"
    );
}

/// A real build of the previous release: its agent, programs and pins, in both directions.
#[test]
fn an_upgrade_from_the_previous_release_and_the_roll_back_lose_no_packet() {
    let Some(previous) = env::var_os(PREVIOUS_AGENT).map(PathBuf::from) else {
        skipped(format!(
            "upgrade from the previous release: {PREVIOUS_AGENT} is not set"
        ));
        return;
    };
    let mut options = fixture::options("release");
    options.masquerade = Masquerade::LeavingCluster;
    options.agent = Some(previous.clone());
    options.secrets = Secrets::Unknown;
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the previous agents");
    for place in Place::NODES {
        assert_eq!(map_dirs(&bed, place), [PREVIOUS_MAPS], "{}", place.name());
    }
    let report = under_traffic(&mut bed, |bed| {
        let present = || (fixture::agent_program(), abi::MAPS_DIR);
        // Each step understands its neighbours: the manifests have the public keys of all nodes from the start.
        for ((agent, maps), secrets) in [
            (present(), Secrets::Off),
            ((previous, PREVIOUS_MAPS), Secrets::Unknown),
            (present(), Secrets::Off),
            (present(), Secrets::Optional),
            (present(), Secrets::Required),
            (present(), Secrets::Optional),
            (present(), Secrets::Off),
        ] {
            bed.set_agent(agent, secrets);
            for place in Place::NODES {
                restart(bed, place, false);
                assert_eq!(map_dirs(bed, place), [maps], "{}", place.name());
            }
        }
    });
    println!(
        "restart: {PREVIOUS_MAPS} to {} and back, then to required secrets and back, {} packets, 0 lost, longest gap \
         {:.1} ms",
        abi::MAPS_DIR,
        report.sent,
        report.longest_gap_ms
    );
}

/// The address of west's Service during an upgrade.
const SERVICE: &str = "10.102.0.10";

/// The connection of this client, among others.
fn accept_from(listener: &TcpListener, client: SocketAddr) -> TcpStream {
    listener.set_nonblocking(true).expect("a listener");
    let accepted = wait_for("the client's connection", TIMEOUT, || {
        let (connection, from) = listener.accept().map_err(|error| error.to_string())?;
        (from == client)
            .then_some(connection)
            .ok_or_else(|| format!("a connection of {from}, not of {client}"))
    });
    accepted.expect("a connection")
}

/// Sends 1 MiB from the server to the client. The first packet is the server's.
fn download(server: &mut TcpStream, client: &mut TcpStream) -> std::io::Result<()> {
    let data = vec![7; 1 << 20];
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| server.write_all(&data));
        let mut received = vec![0; data.len()];
        let read = client.read_exact(&mut received);
        // The sender's error is the cause of the receiver's.
        sender.join().expect("no panic").and(read)
    })
}

/// The new layout began without flows: the server's next packet left with the address of the Pod, and the client reset
/// the connection.
#[test]
fn a_download_from_a_service_survives_an_upgrade_of_the_layout() {
    let Some(previous) = env::var_os(PREVIOUS_AGENT).map(PathBuf::from) else {
        skipped(format!("download during an upgrade: {PREVIOUS_AGENT} is not set"));
        return;
    };
    let mut options = fixture::options("download");
    options.masquerade = Masquerade::LeavingCluster;
    options.agent = Some(previous);
    options.secrets = Secrets::Unknown;
    let mut bed = Topology::create(options).expect("the namespaces");
    bed.configure(Variant::McGateway).expect("the previous agents");
    let text = web_service(SERVICE, "None", &[(Cluster::West.pod_ip(), "node-west")]);
    fs::write(bed.manifests_dir(Cluster::West).join("web.yaml"), text).expect("a manifest");
    let listener = bed
        .netns(Place::PodWest)
        .enter(|| Ok(TcpListener::bind("0.0.0.0:8080")?));
    let listener = listener.expect("a server");
    let service: SocketAddr = format!("{SERVICE}:80").parse().expect("an address");
    let open = || -> Result<TcpStream, String> {
        let timeout = Duration::from_secs(1);
        let connected = bed
            .netns(Place::PodEast)
            .enter(|| Ok(TcpStream::connect_timeout(&service, timeout)));
        let client = connected
            .expect("the Pod's namespace")
            .map_err(|error| error.to_string())?;
        client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        Ok(client)
    };
    // An attempt may time out behind its handshake: the server has a connection that the client has closed.
    drop(wait_for("an abandoned connection to the Service", TIMEOUT, open).expect("a connection"));
    let mut client = wait_for("a connection to the Service", TIMEOUT, open).expect("a connection");
    let mut server = accept_from(&listener, client.local_addr().expect("an address"));
    server.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    download(&mut server, &mut client).expect("a download");
    bed.set_agent(fixture::agent_program(), Secrets::Off);
    for place in [
        Place::NodeWest,
        Place::GatewayWest,
        Place::NodeEast,
        Place::GatewayEast,
    ] {
        restart(&mut bed, place, false);
        assert_eq!(map_dirs(&bed, place), [abi::MAPS_DIR], "{}", place.name());
        download(&mut server, &mut client)
            .unwrap_or_else(|error| panic!("after the upgrade of {}: {error}", place.name()));
    }
}
