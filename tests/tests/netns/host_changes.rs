//! Changes of the host under a running agent: devices, addresses, routes, and failing steps.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command, time::Instant};

use mc_tests::{
    process::Process,
    topology::{Cluster, Family, Options, Place, READY, Topology},
    wait::wait_for,
};

use crate::fixture::{TIMEOUT, bpftool, connected, options, routes, wait_for_log};

const GATEWAY: Place = Place::GatewayEast;

/// Waits until the Pods can reach each other.
pub(crate) fn wait_connectivity(bed: &Topology) {
    wait_for("a reply from west", TIMEOUT, || {
        let server = Cluster::West.pod_ip().to_string();
        let args = ["ping", &server, "--count", "1", "--timeout", "0.2"];
        let answer = bed.traffic().run(bed.netns(Place::PodEast), &args);
        answer.map_err(|error| format!("{error:#}"))
    })
    .expect("traffic");
}

/// Waits until `from_underlay` is attached to exactly these devices.
pub(crate) fn wait_attached(bed: &Topology, place: Place, devices: &[&str]) {
    wait_for("programs on the underlay devices", TIMEOUT, || {
        let mut seen: Vec<String> = fs::read_dir(bed.bpf_dir(place).join("links"))
            .map_err(|error| error.to_string())?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_prefix("from_underlay-").map(str::to_owned))
            .collect();
        seen.sort();
        if seen == devices {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .expect("links");
}

#[test]
fn a_deleted_mc0_is_recreated() {
    let bed = connected("nomc0");
    for place in [Place::NodeEast, GATEWAY, Place::NodeWest] {
        bed.netns(place).ip(&["link del mc0"]).expect("delete");
        wait_connectivity(&bed);
        wait_for("routes to the new mc0", TIMEOUT, || {
            let seen = routes(&bed, place);
            if seen.contains("dev mc0") {
                Ok(())
            } else {
                Err(seen)
            }
        })
        .expect("routes");
    }
}

/// Every reconcile failed, because the pins' directories were missing, until a restart of the agent.
#[test]
fn removed_pins_are_restored() {
    let mut bed = connected("pin-heal");
    for (place, devices) in [(Place::NodeEast, &["eth0"][..]), (GATEWAY, &["eth0", "eth1"])] {
        let dir = bed.bpf_dir(place);
        for removed in [dir.clone(), dir.join("links"), dir.join("programs")] {
            fs::remove_dir_all(&removed).expect("remove");
            let removed_at = Instant::now();
            wait_attached(&bed, place, devices);
            wait_connectivity(&bed);
            println!("{} restored after {:?}", removed.display(), removed_at.elapsed());
        }
        wait_for_log(&mut bed, place, &["pins removed by another program", "restored"]);
        let prefixes = bed.run_agent(place, &["inspect", "prefixes"]).expect("inspect");
        assert!(prefixes.status.success(), "{prefixes:?}");
    }
}

/// The table was read at each resync only: after `nft flush ruleset` requests failed for up to 15 s. [`TIMEOUT`] is
/// shorter than the interval of resyncs.
#[test]
fn a_changed_nftables_table_is_restored_before_the_resync() {
    let bed = connected("nft-heal");
    let nft = |place: Place, command: &str| bed.netns(place).run("nft", command.split(' '));
    for place in [Place::NodeEast, GATEWAY] {
        let list = || nft(place, "list table inet mc_gateway").map_err(|error| format!("{error:#}"));
        let original = list().expect("the table");
        for change in [
            "delete table inet mc_gateway",
            "flush ruleset",
            "flush table inet mc_gateway",
        ] {
            nft(place, change).expect(change);
            let changed_at = Instant::now();
            let restored = || match list() {
                Ok(table) if table == original => Ok(()),
                Ok(table) | Err(table) => Err(table),
            };
            wait_for("the table", TIMEOUT, restored).expect(change);
            println!(
                "{}, {change}: restored after {:?}",
                place.name(),
                changed_at.elapsed()
            );
        }
        wait_connectivity(&bed);
    }
}

#[test]
fn an_underlay_device_may_change_its_name() {
    let bed = connected("rename");
    bed.netns(GATEWAY)
        .ip(&[
            "link set eth1 down",
            "link set eth1 name between1",
            "link set between1 up",
        ])
        .expect("rename");
    wait_attached(&bed, GATEWAY, &["between1", "eth0"]);
    wait_connectivity(&bed);
}

#[test]
fn an_underlay_device_may_be_replaced() {
    let bed = connected("replace");
    let [east, west] = [GATEWAY, Place::GatewayWest].map(|place| bed.netns(place));
    east.ip(&["link del eth1"]).expect("delete");
    wait_attached(&bed, GATEWAY, &["eth0"]);
    east.veth("eth1", west, "eth1").expect("a new pair");
    for (netns, cluster) in [(east, Cluster::East), (west, Cluster::West)] {
        netns
            .configure_device("eth1", cluster.gateway_net(), 1500)
            .expect("up");
    }
    wait_attached(&bed, GATEWAY, &["eth0", "eth1"]);
    wait_connectivity(&bed);
}

#[test]
fn a_node_may_change_its_address() {
    let bed = connected("address");
    let (old, new) = (Cluster::East.node_net(), "192.168.11.77/24");
    let node = bed.netns(Place::NodeEast);
    node.ip(&[
        format!("addr del {old} dev eth0"),
        format!("addr add {new} dev eth0"),
    ])
    .expect("addresses");
    let via = Cluster::East.internal_net().addr();
    node.route(Cluster::East.gateway_pod_cidr(), &format!("via {via}"))
        .expect("a route");
    let file = bed.manifests_dir(Cluster::East).join("nodes.yaml");
    let text = fs::read_to_string(&file).expect("a manifest");
    fs::write(&file, text.replace("192.168.11.2\n", "192.168.11.77\n")).expect("write");
    wait_connectivity(&bed);
}

#[test]
fn the_route_to_a_gateway_may_move_to_another_device() {
    let bed = connected("moved");
    let [east, west] = [GATEWAY, Place::GatewayWest].map(|place| bed.netns(place));
    east.veth("eth2", west, "eth2").expect("another pair");
    for (netns, cluster, address, next) in [
        (east, Cluster::West, "192.168.200.1/30", "192.168.200.2"),
        (west, Cluster::East, "192.168.200.2/30", "192.168.200.1"),
    ] {
        let to = cluster.gateway_net().addr();
        netns
            .ip(&[
                format!("addr add {address} dev eth2"),
                "link set eth2 mtu 1400 up".to_owned(),
                format!("route add {to}/32 via {next}"),
            ])
            .expect("a route");
    }
    wait_attached(&bed, GATEWAY, &["eth0", "eth1", "eth2"]);
    wait_connectivity(&bed);
    wait_for("the MTU of the new path", TIMEOUT, || {
        let mc0 = east
            .run("ip", ["link", "show", "mc0"])
            .map_err(|error| format!("{error:#}"))?;
        if mc0.contains("mtu 1350") {
            Ok(())
        } else {
            Err(mc0)
        }
    })
    .expect("an MTU");
}

/// A program `nft` that fails to write while a file named `fail` exists beside it.
fn failing_nft(options: &Options) -> std::path::PathBuf {
    let directory = std::env::temp_dir().join(format!("{}-bin", options.prefix));
    fs::create_dir_all(&directory).expect("a directory");
    let script = "#!/bin/sh\n\
        if [ \"$1\" = -f ] && [ -e \"${0%/*}/fail\" ]; then echo made to fail >&2; exit 1; fi\n\
        PATH=/usr/sbin:/sbin:/usr/bin:/bin exec nft \"$@\"\n";
    let program = directory.join("nft");
    fs::write(&program, script).expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("permissions");
    directory
}

#[test]
fn a_failed_step_rolls_back_the_steps_before_it() {
    let options = options("undo");
    let bin = failing_nft(&options);
    let fail = bin.join("fail");
    fs::write(&fail, "").expect("a file");
    let bed = Topology::create(options).expect("the namespaces");
    let place = Place::NodeEast;
    let manifests = bed.manifests_dir(place.cluster());
    mc_tests::topology::write_manifests(place.cluster(), bed.options(), &manifests).expect("manifests");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command: Command = bed.netns(place).command(crate::fixture::agent_program());
    command
        .env("PATH", format!("{}:{path}", bin.display()))
        .args(["run", "--node-name", place.name(), "--manifests"])
        .arg(&manifests)
        .arg("--bpf-dir")
        .arg(bed.bpf_dir(place));
    let log = bed.directory().join("undo.log");
    let mut agent = Process::spawn("mc-gateway", &mut command, &log).expect("an agent");
    agent
        .wait_for_line("earlier changes were rolled back", TIMEOUT)
        .expect("a failure");
    let output = agent.output();
    assert!(
        output.contains("cannot write nftables table: nft: made to fail") && !output.contains("not these"),
        "{output}"
    );
    assert_eq!(routes(&bed, place), "");
    let pins = bed.bpf_dir(place);
    assert_eq!(fs::read_dir(pins.join("links")).expect("links").count(), 0);
    // The directory of incomplete maps also begins with "maps".
    let maps = fs::read_dir(&pins).expect("pins").filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_string_lossy().into_owned();
        name.starts_with("maps").then_some(path)
    });
    let maps: Vec<_> = maps.collect();
    assert_eq!(maps.len(), 1, "{maps:?}");
    for map in ["mc_prefixes", "mc_peers"] {
        let pin = maps[0].join(map);
        let dump = bpftool(&["-j", "map", "dump", "pinned", &pin.to_string_lossy()]);
        assert_eq!(dump.trim(), "[]", "{map}");
    }
    fs::remove_file(&fail).expect("remove");
    agent.wait_for_line(READY, TIMEOUT).expect("a retry");
    assert!(routes(&bed, place).contains(&Cluster::West.nets(Family::V4).pods.to_string()));
    drop(agent);
    fs::remove_dir_all(bin).expect("remove");
}
