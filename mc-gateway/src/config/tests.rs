//! Accepted flags, and the errors for rejected ones.

use clap::Parser as _;

use mc_gateway_common::abi::rate_limit::PeerRates;

use super::*;

#[test]
fn probe_settings_by_default_and_by_flag() {
    let probes = |args: &[&str]| parse(&[&["--node-name", "n1"], args].concat()).map(|c| c.probes);
    let default = probe::Settings {
        interval: Duration::from_millis(90),
        detect: 3,
        hold_down: Duration::from_secs(1),
    };
    assert_eq!(probes(&[]), Ok(default));
    let all = ["--probe-interval", "30ms", "--detect", "0", "--hold-down", "0s"];
    let other = probe::Settings {
        interval: Duration::from_millis(30),
        detect: 0,
        hold_down: Duration::ZERO,
    };
    assert_eq!(probes(&all), Ok(other));
    for (flag, value) in [
        ("--probe-interval", "29ms"),
        ("--probe-interval", "11s"),
        ("--probe-interval", "100"),
        ("--detect", "101"),
        ("--detect", "many"),
        ("--hold-down", "601s"),
        ("--hold-down", "1h"),
    ] {
        let error = probes(&[flag, value]).unwrap_err();
        assert!(error.starts_with(&format!("{flag}: \"{value}\" is ")), "{error}");
    }
}

#[test]
fn limits_by_default_and_by_flag() {
    let limits = |args: &[&str]| parse(&[&["--node-name", "n1"], args].concat()).map(|c| c.limits);
    let default = Limits {
        flow_table_size: FlowTableSize::default(),
        peer_rates: PeerRates::DEFAULT,
    };
    assert_eq!(limits(&[]), Ok(default));
    let all = [
        "--flow-table-size",
        "1048576",
        "--new-flows-per-peer",
        "500",
        "--icmp-errors-per-peer",
        "40",
    ];
    let other = Limits {
        flow_table_size: FlowTableSize(1 << 20),
        peer_rates: PeerRates::per_second(40, 500),
    };
    assert_eq!(limits(&all), Ok(other));
    for (flag, value) in [
        ("--flow-table-size", "2048"),
        ("--flow-table-size", "8388608"),
        ("--flow-table-size", "65537"),
        ("--flow-table-size", "many"),
        ("--new-flows-per-peer", "0"),
        ("--new-flows-per-peer", "10000001"),
        ("--icmp-errors-per-peer", "0"),
    ] {
        let error = limits(&[flag, value]).unwrap_err();
        assert!(error.starts_with(&format!("{flag}: \"{value}\" is ")), "{error}");
    }
}

#[test]
fn antrea_clusters_are_listed_once() {
    let ids = |list: &str| {
        let args = [
            "--node-name",
            "n1",
            "--cluster-id",
            "east",
            "--antrea-clusters",
            list,
        ];
        parse(&args).map(|config| config.antrea_clusters)
    };
    assert_eq!(ids("west"), Ok(["west".to_owned()].into()));
    assert_eq!(ids("west,north").map(|ids| ids.len()), Ok(2));
    for bad in [
        "",
        ",",
        "west,",
        "west,,north",
        "west, north",
        "west,west",
        "east",
        "west,east",
    ] {
        let error = ids(bad).unwrap_err();
        assert!(
            error.starts_with(&format!("--antrea-clusters: \"{bad}\" contains ")),
            "{error}"
        );
    }
}

fn parse(args: &[&str]) -> Result<Config, String> {
    let cli = Cli::try_parse_from([&["mc-gateway"], args].concat()).map_err(|e| e.to_string())?;
    let run = match cli.command {
        Some(Command::Run(run)) => *run,
        Some(other) => panic!("{other:?}"),
        None => cli.run,
    };
    Config::try_from(run).map_err(|e| e.to_string())
}

#[test]
fn run_is_the_default() {
    let short = parse(&["--node-name", "n1", "--manifests", "/m"]).unwrap();
    let long = parse(&["run", "--node-name", "n1", "--manifests", "/m"]).unwrap();
    assert_eq!(short, long);
    let tunnel = Tunnel {
        format: EncapFormat::Geneve,
        port: 6081,
        udp_checksum: false,
        dscp: Dscp::Inherit,
        hop_limit: 64,
    };
    assert_eq!(short.tunnel, tunnel);
    assert_eq!(short.paths.device, "mc0");
    assert_eq!(short.source, ObjectSource::Manifests("/m".into()));
}

#[test]
fn the_default_port_depends_on_the_format() {
    let tunnel = |args: &[&str]| parse(&[&["--node-name", "n1"], args].concat()).unwrap().tunnel;
    assert_eq!(tunnel(&["--format", "vxlan"]).port, 4789);
    assert_eq!(tunnel(&["--format", "vxlan", "--port", "8472"]).port, 8472);
    assert_eq!(tunnel(&["--format", "geneve"]).port, 6081);
    let all = tunnel(&["--udp-checksum", "--dscp", "46", "--hop-limit", "255"]);
    assert_eq!(
        (all.udp_checksum, all.dscp, all.hop_limit),
        (true, Dscp::Fixed(46), 255)
    );
}

#[test]
fn durations_have_units() {
    let parse = |text: &str| parse_duration("--hold-down", text).ok();
    assert_eq!(parse("100ms"), Some(Duration::from_millis(100)));
    assert_eq!(parse("1s"), Some(Duration::from_secs(1)));
    assert_eq!(parse("0s"), Some(Duration::ZERO));
    for text in ["1m30s", "1 minute 30 seconds", "PT90S"] {
        assert_eq!(parse(text), Some(Duration::from_secs(90)), "{text}");
    }
    for bad in [
        "",
        "100",
        "ms",
        "-1s",
        "99999999999999999999s",
        "s1",
        "1sms",
        "1x",
    ] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}

#[test]
fn errors_name_flag_and_value() {
    let bad = [
        (vec!["--node-name", "N_1"], "--node-name: \"N_1\" is not"),
        (vec!["--node-name", ""], "--node-name: \"\" is missing"),
        (vec!["--node-name", "n1", "--port", "0"], "--port: \"0\" is not"),
        (
            vec!["--node-name", "n1", "--device", "a/b"],
            "--device: \"a/b\" is not",
        ),
        (
            vec!["--node-name", "n1", "--device", "sixteen-bytes-xx"],
            "--device: \"sixteen-bytes-xx\" is not",
        ),
        (
            vec!["--node-name", "n1", "--bpf-dir", "relative"],
            "--bpf-dir: \"relative\" is not",
        ),
        (
            vec!["--node-name", "n1", "--bpf-dir", "/sys/../x"],
            "--bpf-dir: \"/sys/../x\" is not",
        ),
        (
            vec!["--node-name", "n1", "--namespace", "A"],
            "--namespace: \"A\" is not",
        ),
        (
            vec!["--node-name", "n1", "--metrics-address", "9469"],
            "--metrics-address: \"9469\" is not",
        ),
    ];
    for (args, message) in bad {
        let error = parse(&args).unwrap_err();
        assert!(error.contains(message), "{args:?}: {error}");
    }
    for (flag, value) in [
        ("--port", "70000"),
        ("--format", "gre"),
        ("--pod-lookup", "ebpf"),
        ("--dscp", "64"),
        ("--dscp", "-1"),
        ("--dscp", "ef"),
        ("--hop-limit", "0"),
        ("--hop-limit", "256"),
    ] {
        let error = parse(&["--node-name", "n1", &format!("{flag}={value}")]).unwrap_err();
        assert!(
            error.contains(flag) && error.contains(&format!("'{value}'")),
            "{flag} {value}: {error}"
        );
    }
}

#[test]
fn manifests_and_kubeconfig_are_exclusive() {
    let error = parse(&["--node-name", "n1", "--manifests", "/m", "--kubeconfig", "/k"]).unwrap_err();
    assert!(error.contains("cannot be used with"), "{error}");
}
