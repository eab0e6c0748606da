//! Egress rules with Pods as peers: Pods by address, and Services by their endpoints.

use serde_json::json;

use super::super::model::{ContainerPort, UDP};
use super::super::{ServicePeer, ServicePeerPort};
use super::*;

const CLIENT: &str = "10.1.0.1";
const WEB: &str = "10.1.0.2";
const WEB_ELSEWHERE: &str = "10.1.1.2";
const DB: &str = "10.1.1.3";
const DNS: &str = "10.1.1.4";
/// No Pod.
const EXTERNAL: &str = "192.0.2.7";
/// Services: of both Pods `web`, of `web` and `db`, of DNS, of an external endpoint, and without endpoints.
const OF_WEB: &str = "10.96.0.1";
const MIXED: &str = "10.96.0.2";
const OF_DNS: &str = "10.96.0.10";
const OF_EXTERNAL: &str = "10.96.0.20";
const EMPTY: &str = "10.96.0.30";

fn service(name: &str, ip: &str, port: (u8, u16), endpoints: &[(&str, u16)]) -> ServicePeer {
    ServicePeer {
        name: ObjectName::namespaced("shop", name),
        ips: vec![ip.parse().unwrap()],
        ports: vec![ServicePeerPort {
            protocol: port.0,
            number: port.1,
            node_port: None,
            endpoints: endpoints
                .iter()
                .map(|(ip, port)| (ip.parse::<IpAddr>().unwrap(), *port).into())
                .collect(),
        }],
    }
}

fn cluster(namespace: Option<&str>, rules: &Value) -> PolicySet {
    let spec = json!({
        "priority": 1,
        "appliedTo": [{ "podSelector": { "matchLabels": { "app": "client" } } }],
        "egress": rules,
    });
    let client = pod("shop", "client", CLIENT, &[("app", "client")]);
    let mut web = pod("shop", "web", WEB, &[("app", "web")]);
    web.ports = vec![ContainerPort {
        name: "http".to_owned(),
        protocol: TCP,
        number: 8080,
    }];
    let mut elsewhere = pod("shop", "web2", WEB_ELSEWHERE, &[("app", "web")]);
    elsewhere.ports = vec![ContainerPort {
        name: "http".to_owned(),
        protocol: TCP,
        number: 9090,
    }];
    let others = [
        pod("lab", "db", DB, &[("app", "db")]),
        pod("kube-system", "coredns", DNS, &[("k8s-app", "kube-dns")]),
    ];
    PolicySet {
        policies: vec![policy(namespace, "p", &spec)],
        local_pods: vec![client.clone(), web.clone()],
        cluster_pods: [client, web, elsewhere].into_iter().chain(others).collect(),
        services: vec![
            service("web", OF_WEB, (TCP, 80), &[(WEB, 8080), (WEB_ELSEWHERE, 9090)]),
            service("mixed", MIXED, (TCP, 80), &[(WEB, 8080), (DB, 5432)]),
            service("dns", OF_DNS, (UDP, 53), &[(DNS, 5353)]),
            service("external", OF_EXTERNAL, (TCP, 80), &[(EXTERNAL, 443)]),
            service("empty", EMPTY, (TCP, 80), &[]),
        ],
        ..PolicySet::default()
    }
}

/// One letter for each of these destinations of the client.
fn letters(set: &PolicySet, to: &[(&str, u8, u16)]) -> String {
    let verdicts = to.iter().map(|(addr, protocol, port)| {
        let packet = Packet {
            direction: Direction::Egress,
            peer: addr.parse().unwrap(),
            protocol: *protocol,
            port: *port,
            ..packet(CLIENT, 0)
        };
        letter(&verdict(set, &packet))
    });
    verdicts.collect()
}

/// TCP to each Pod at port 8080, and to each Service at its port.
const ALL: [(&str, u8, u16); 10] = [
    (WEB, TCP, 8080),
    (WEB_ELSEWHERE, TCP, 8080),
    (DB, TCP, 8080),
    (DNS, TCP, 8080),
    (EXTERNAL, TCP, 8080),
    (OF_WEB, TCP, 80),
    (MIXED, TCP, 80),
    (OF_DNS, UDP, 53),
    (OF_EXTERNAL, TCP, 80),
    (EMPTY, TCP, 80),
];

fn app(name: &str) -> Value {
    json!({ "podSelector": { "matchLabels": { "app": name } } })
}

#[test]
fn an_allowed_service_has_only_allowed_endpoints() {
    let rules = json!([{ "action": "Allow", "to": [app("web")] }, { "action": "Drop" }]);
    let set = cluster(None, &rules);
    assert_eq!(letters(&set, &ALL), "AADDDADDDD");
    let both = json!([{ "action": "Allow", "to": [app("web"), app("db")] }, { "action": "Drop" }]);
    assert_eq!(letters(&cluster(None, &both), &ALL), "AAADDAADDD");
    assert_eq!(
        letters(&set, &[(OF_WEB, TCP, 81), (OF_WEB, UDP, 80), (WEB, UDP, 1)]),
        "DDA",
        "another port is none of the Service"
    );
}

#[test]
fn a_service_with_a_dropped_endpoint_is_dropped() {
    for (action, letter) in [("Drop", 'D'), ("Reject", 'R')] {
        let set = cluster(None, &json!([{ "action": action, "to": [app("db")] }]));
        let expected = "..D...D...".replace('D', &letter.to_string());
        assert_eq!(letters(&set, &ALL), expected);
    }
    let set = cluster(
        None,
        &json!([{ "action": "Pass", "to": [app("db")] }, { "action": "Drop" }]),
    );
    assert_eq!(letters(&set, &ALL), "DDPDDDDDDD");
}

/// A rule that allows the block with the Nodes' addresses opened the Pods behind all node ports.
#[test]
fn node_ports_are_those_of_their_services() {
    const NODE: &str = "192.168.0.1";
    let with_node_ports = |rules: &Value| {
        let mut set = cluster(None, rules);
        set.node_ips = vec![NODE.parse().unwrap()];
        for (service, number) in set.services.iter_mut().zip(30_000..) {
            service.ports[0].node_port = Some(number);
        }
        set
    };
    // Of `web`, `web` and `db`, DNS, the external endpoint, and without endpoints; no node port, and another protocol.
    let to = [
        (NODE, TCP, 30_000),
        (NODE, TCP, 30_001),
        (NODE, UDP, 30_002),
        (NODE, TCP, 30_003),
        (NODE, TCP, 30_004),
        (NODE, TCP, 30_005),
        (NODE, UDP, 30_000),
    ];
    let of_rules = |rules: &Value| letters(&with_node_ports(rules), &to);
    let drop_web = json!([{ "action": "Drop", "to": [app("web")] }]);
    assert_eq!(of_rules(&drop_web), "DD.....");
    let only_web = json!([{ "action": "Allow", "to": [app("web")] }, { "action": "Drop" }]);
    assert_eq!(of_rules(&only_web), "ADDDDDD");
    let only_nodes = json!([
        { "action": "Allow", "to": [{ "ipBlock": { "cidr": "192.168.0.0/24" } }] },
        { "action": "Drop" },
    ]);
    assert_eq!(of_rules(&only_nodes), "DDDDDAA");
    let by_name = json!([
        { "action": "Allow", "toServices": [{ "name": "mixed", "namespace": "shop" }] },
        { "action": "Drop" },
    ]);
    assert_eq!(of_rules(&by_name), "DADDDDD");
}

/// The usual policy of a Namespace: its own Pods, DNS, and nothing else.
#[test]
fn a_namespace_reaches_itself_and_dns() {
    let rules = json!([
        { "action": "Allow", "to": [{ "namespaces": { "match": "Self" } }] },
        { "action": "Allow", "to": [{ "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } } }],
          "ports": [{ "protocol": "UDP", "port": 5353 }] },
        { "action": "Drop", "to": [{ "namespaceSelector": {} }] },
    ]);
    let set = cluster(None, &rules);
    assert_eq!(letters(&set, &ALL), "AADD.ADA..");
    assert_eq!(letters(&set, &[(DNS, UDP, 5353), (DNS, UDP, 53)]), "AD");
}

/// Ports of a rule are those of the endpoints, as in Antrea, which compares packets behind the service proxy.
#[test]
fn ports_are_those_of_the_endpoints() {
    let rules = json!([{ "action": "Drop", "to": [app("web")], "ports": [{ "port": 9090 }] }]);
    let set = cluster(None, &rules);
    assert_eq!(letters(&set, &ALL), ".....D....");
    let rules = json!([{ "action": "Drop", "ports": [{ "port": 443 }] }]);
    assert_eq!(letters(&cluster(None, &rules), &ALL), "........D.");
    let rules = json!([{ "action": "Drop", "ports": [{ "port": 80 }] }]);
    assert_eq!(
        letters(&cluster(None, &rules), &ALL),
        ".....DD.DD",
        "a rule without peers also knows the port that the Pod sends to"
    );
}

#[test]
fn named_ports_are_those_of_the_destination() {
    let rules = json!([
        { "action": "Allow", "to": [app("web")], "ports": [{ "port": "http" }] },
        { "action": "Drop", "to": [app("web")] },
    ]);
    let set = cluster(Some("shop"), &rules);
    let to = [
        (WEB, TCP, 8080),
        (WEB, TCP, 9090),
        (WEB_ELSEWHERE, TCP, 9090),
        (OF_WEB, TCP, 80),
        (MIXED, TCP, 80),
    ];
    assert_eq!(
        letters(&set, &to),
        "ADAAA",
        "no rule drops the Pod db of the last Service"
    );
    assert_eq!(compile(&set).1, []);
    let rules = json!([{ "action": "Allow", "to": [app("web")], "ports": [{ "port": "ftp" }] }]);
    let texts: Vec<_> = compile(&cluster(None, &rules))
        .1
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        texts,
        [
            "ClusterNetworkPolicy p: spec.egress[0].ports: \"ftp\" is not a port of any Pod of the cluster, so it matches \
             nothing"
        ]
    );
}

#[test]
fn blocks_contain_endpoints_and_addresses_of_services() {
    let block = |cidr: &str| json!([{ "action": "Drop", "to": [{ "ipBlock": { "cidr": cidr } }] }]);
    assert_eq!(letters(&cluster(None, &block("10.1.1.0/24")), &ALL), ".DDD.DDD..");
    assert_eq!(
        letters(&cluster(None, &block("192.0.2.0/24")), &ALL),
        "....D...D."
    );
    assert_eq!(
        letters(&cluster(None, &block("10.96.0.0/29")), &ALL),
        ".....DD..."
    );
}

/// A Service is as closed as its Pods: a rule that permits packets by the address or port of the Service would let a
/// client reach Pods through it that a later rule drops.
#[test]
fn an_allow_by_the_address_or_port_of_a_service_does_not_precede_a_drop_of_its_pods() {
    for action in ["Allow", "Pass"] {
        let letter = &action[..1];
        let expect = |rules: &Value, expected: &str| {
            let set = cluster(None, rules);
            assert_eq!(letters(&set, &ALL), expected.replace('A', letter), "{rules}");
        };
        let block = |except: &[&str]| {
            json!([
                { "action": action, "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": except } }] },
                { "action": "Drop" },
            ])
        };
        expect(&block(&["10.1.0.0/16"]), "DDDDADDDAD");
        expect(&block(&["10.1.0.0/16", "10.96.0.0/16"]), "DDDDADDDAD");

        let (port, drop) = (
            json!({ "action": action, "ports": [{ "port": 80 }] }),
            json!({ "action": "Drop" }),
        );
        expect(&json!([port, drop]), "DDDDDDDDDD");
        let pod_port = json!({ "action": action, "ports": [{ "port": 8080 }, { "port": 9090 }] });
        expect(&json!([pod_port, drop]), "AAAAAADDDD");
        expect(
            &json!([{ "action": "Drop", "to": [app("web")] }, port]),
            "DD...DD.AA",
        );
        expect(&json!([{ "action": action }, drop]), "AAAAAAAAAA");
    }
}

/// Different rules may permit the endpoints of a Service.
#[test]
fn the_rules_that_allow_the_endpoints_of_a_service_may_differ() {
    let allow = |name| json!({ "action": "Allow", "to": [app(name)] });
    let drop = json!({ "action": "Drop" });
    let set = cluster(None, &json!([allow("web"), allow("db"), drop]));
    assert_eq!(letters(&set, &ALL), "AAADDAADDD");
    let packet = Packet {
        direction: Direction::Egress,
        peer: MIXED.parse().unwrap(),
        port: 80,
        ..packet(CLIENT, 0)
    };
    assert_eq!(verdict(&set, &packet).rule.unwrap().index, 0);
    let between = json!({ "action": "Reject", "to": [app("db")] });
    let set = cluster(None, &json!([allow("web"), between, allow("db"), drop]));
    assert_eq!(letters(&set, &ALL), "AARDDARDDD");
}

#[test]
fn a_named_service_is_open_before_rules_for_its_endpoints() {
    let web = json!([{ "name": "web", "namespace": "shop" }, { "name": "empty", "namespace": "shop" }]);
    let named = |action| json!({ "action": action, "toServices": web });
    let drop = json!({ "action": "Drop" });
    let set = cluster(None, &json!([named("Allow"), drop]));
    assert_eq!(letters(&set, &ALL), "DDDDDADDDA");
    let set = cluster(
        None,
        &json!([{ "action": "Drop", "to": [app("web")] }, named("Allow")]),
    );
    assert_eq!(letters(&set, &ALL), "DD...DD..A");
    let set = cluster(
        None,
        &json!([named("Drop"), { "action": "Allow", "to": [app("web")] }]),
    );
    assert_eq!(letters(&set, &ALL), "AA...DA..D");
}

/// Both Services have the address: the service proxy selects endpoints of either.
#[test]
fn services_of_the_same_address_and_port_are_as_closed_as_either() {
    let allow = json!({ "action": "Allow", "toServices": [{ "name": "web", "namespace": "shop" }] });
    let mut set = cluster(None, &json!([allow, { "action": "Drop", "to": [app("db")] }]));
    assert_eq!(letters(&set, &[(OF_WEB, TCP, 80)]), "A");
    set.services
        .push(service("other", OF_WEB, (TCP, 80), &[(DB, 5432)]));
    assert_eq!(letters(&set, &[(OF_WEB, TCP, 80)]), "D");
}

#[test]
fn peers_of_the_cluster_set_are_rejected() {
    let spec = json!({
        "priority": 1, "appliedTo": [{ "podSelector": {} }],
        "egress": [{ "action": "Drop", "to": [{ "scope": "ClusterSet", "podSelector": {} }] }],
    });
    let (_, errors) = parse(ObjectName::cluster("p"), &spec);
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].field, "spec.egress[0].to[0].scope");
}
