//! The test bed: clusters east and west with two gateways each, a host in their networks, and a member `north` whose
//! gateway is the attacker.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
};

use ipnet::IpNet;
use mc_gateway_common::{
    abi::{MacMatch, SourceMac},
    packet::{
        SlicePacket,
        eth::mac_to_u64,
        probe::{ETHERTYPE, Kind, Probe},
    },
};
use mc_test_kit::datapath::packets::{Ip, Tunnel};
use mc_tests::{
    fixture::{TIMEOUT, options},
    injection::{inject, mac_address},
    netns::Netns,
    topology::{
        Cluster, Family, Format, Inner, Masquerade, Options, Place, Topology, Variant, public_key_of,
        source_mac_between, write_manifests,
    },
    wait::wait_for,
};

use crate::{
    policies,
    tap::Tap,
    vector::{CONTROL, Entry, POD_PORT, Send, datagram, is_addressed_later},
};

/// Devices of the host in the network between the clusters and in west's.
const LAN_DEVICES: [&str; 2] = ["lan-between", "lan-west"];
/// Device of north's gateway.
const NORTH_DEVICE: &str = "north";

/// Networks of the member north.
#[derive(Clone, Copy, Debug)]
pub(crate) struct North {
    pub(crate) pods: IpNet,
    pub(crate) services: IpNet,
    pub(crate) pod: IpAddr,
}

impl North {
    pub(crate) fn new(family: Family) -> Self {
        let [pods, services, pod] = match family {
            Family::V4 => ["10.13.0.0/16", "10.103.0.0/16", "10.13.1.2/32"],
            Family::V6 => ["fd00:13::/48", "fd00:9613::/108", "fd00:13:0:1::2/128"],
        }
        .map(|text| text.parse::<IpNet>().expect("a network"));
        Self {
            pods,
            services,
            pod: pod.addr(),
        }
    }
}

/// Addresses of the cluster `south`, which has an Antrea gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct South {
    pub(crate) pod: IpAddr,
    pub(crate) service: IpAddr,
    /// First address of its Services.
    pub(crate) alias: IpAddr,
}

impl South {
    pub(crate) const PODS: &str = "10.17.0.0/16";
    pub(crate) const SERVICES: &str = "10.107.0.0/16";

    pub(crate) fn new() -> Self {
        Self {
            pod: [10, 17, 1, 2].into(),
            service: [10, 107, 0, 10].into(),
            alias: [10, 107, 0, 0].into(),
        }
    }
}

/// An address in the network between the clusters.
pub(crate) fn between_clusters(family: Family, host: u8) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert(Ipv4Addr::new(192, 168, 100, host).into(), 24),
        Family::V6 => {
            let address = Ipv6Addr::new(0xfd00, 0xc100, 0, 0, 0, 0, 0, host.into());
            IpNet::new_assert(address.into(), 64)
        }
    }
}

/// Host number of north's gateway, of south's, of the attacking host, and of no host.
pub(crate) const NORTH_HOST: u8 = 77;
pub(crate) const SOUTH_HOST: u8 = 88;
pub(crate) const LAN_HOST: u8 = 66;
pub(crate) const STRANGER: u8 = 99;

/// Service addresses of west: exported, not exported, and of no Service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Services {
    pub(crate) exported: IpAddr,
    pub(crate) private: IpAddr,
    pub(crate) unused: IpAddr,
}

/// Ports of the exported Service.
pub(crate) const SERVICE_TCP: u16 = 80;
pub(crate) const SERVICE_UDP: u16 = 53;
/// Port of the private Service.
pub(crate) const PRIVATE_PORT: u16 = 5432;

impl Services {
    pub(crate) fn new(family: Family) -> Self {
        let nets = Cluster::West.nets(family);
        let host = |nth: u8| match nets.services.network() {
            IpAddr::V4(network) => {
                let [a, b, c, _] = network.octets();
                IpAddr::from([a, b, c, nth])
            }
            IpAddr::V6(network) => {
                let mut octets = network.octets();
                octets[15] = nth;
                IpAddr::from(octets)
            }
        };
        Self {
            exported: host(10),
            private: host(20),
            unused: host(99),
        }
    }
}

/// Namespaces, agents, taps and listeners.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) topology: Topology,
    pub(crate) outer: Family,
    pub(crate) format: Format,
    pub(crate) way: Way,
    lan: Netns,
    north: Netns,
    /// Inner source MAC addresses with the secret of each pair of nodes, by outer source and destination.
    inner_src: BTreeMap<(IpAddr, IpAddr), SourceMac>,
    /// ID of the backend of the exported Service.
    backends: BTreeMap<Family, u64>,
    /// A probe that west's gateway has sent to east's.
    probe: Option<Probe>,
    /// MAC addresses of a sender's and a victim's device.
    links: BTreeMap<Entry, [[u8; 6]; 2]>,
    /// Sockets on the tunnel port of nodes.
    pub(crate) listeners: BTreeMap<Place, UdpSocket>,
    /// Keep the kernel of a Pod from an answer to datagrams.
    _pods: Vec<UdpSocket>,
}

/// Ways of packets besides the classifiers of the underlay devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// None.
    Classifiers,
    /// Tunnel devices of the agents. There are no listeners then.
    TunnelDevices,
    /// The XDP program on the gateways.
    Xdp,
    /// Agents that enforce policies. The vectors are those of label identities.
    Policies,
}

impl Bed {
    /// Creates the namespaces and starts the agents.
    pub(crate) fn create(name: &str, outer: Family, format: Format, way: Way) -> Self {
        let tunnel_devices = way == Way::TunnelDevices;
        let options = options_of(name, outer, format, way);
        let prefix = options.prefix.clone();
        let mut topology = Topology::create(options).expect("the namespaces");
        let [lan, north] = ["lan-host", "gw-north"]
            .map(|host| Netns::create(&format!("{prefix}-{host}")).expect("a namespace"));
        for netns in [&lan, &north] {
            // No address of its own in the networks: the host sends frames only.
            netns
                .sysctl(&[("net.ipv6.conf.default.accept_dad", "0")])
                .expect("settings");
        }
        let [between, west] = LAN_DEVICES;
        topology.connect_host(&lan, between, None).expect("a device");
        topology
            .connect_host(&lan, west, Some(Cluster::West))
            .expect("a device");
        topology
            .connect_host(&north, NORTH_DEVICE, None)
            .expect("a device");
        for family in [Family::V4, Family::V6] {
            north
                .add_address(NORTH_DEVICE, between_clusters(family, NORTH_HOST))
                .expect("an address");
        }
        // The Antrea gateway is an address of the same host.
        north
            .add_address(NORTH_DEVICE, between_clusters(Family::V4, SOUTH_HOST))
            .expect("an address");
        let pod_rp_filter = if tunnel_devices {
            "net.ipv4.conf.cni0.rp_filter"
        } else {
            "net.ipv4.conf.pod0.rp_filter"
        };
        // The CNI of this node does not filter sources.
        topology
            .netns(Place::NodeEast)
            .sysctl(&[("net.ipv4.conf.all.rp_filter", "0"), (pod_rp_filter, "0")])
            .expect("settings");
        // A regular node has no such route: with it, its Pods can address every gateway.
        let east = Cluster::East.nets(outer);
        topology
            .netns(Place::NodeEast)
            .route(
                between_clusters(outer, 0).trunc(),
                &format!("via {}", east.internal[0].addr()),
            )
            .expect("a route");
        write_objects(&topology, outer);
        if way == Way::Policies {
            policies::write_objects(&topology);
        }
        topology.configure(Variant::McGateway).expect("the agents");
        let listeners = if tunnel_devices {
            BTreeMap::new()
        } else {
            let places = [Place::GatewayWest, Place::NodeWest, Place::NodeEast];
            places
                .map(|place| (place, bind(topology.netns(place), port(format))))
                .into()
        };
        let pods = [Place::PodEast, Place::PodWest].map(|place| bind(topology.netns(place), POD_PORT));
        let mut bed = Self {
            topology,
            outer,
            format,
            way,
            lan,
            north,
            inner_src: secrets(outer),
            backends: BTreeMap::new(),
            probe: None,
            links: BTreeMap::new(),
            listeners,
            _pods: pods.into(),
        };
        for entry in Entry::ALL {
            let (attacker, device) = bed.attacker(entry);
            let source = mac_address(attacker, device).expect("a MAC address");
            let (place, device) = entry.victim();
            let victim = mac_address(bed.topology.netns(place), device).expect("a MAC address");
            bed.links.insert(entry, [victim, source]);
        }
        bed.learn_inner_sources();
        bed.learn_backends();
        bed.learn_probe();
        if way == Way::Policies {
            policies::wait_enforced(&bed);
        }
        bed
    }

    /// Namespace and device of an attacker.
    pub(crate) fn attacker(&self, entry: Entry) -> (&Netns, &'static str) {
        match entry {
            Entry::LanToGateway => (&self.lan, LAN_DEVICES[0]),
            Entry::LanToNode => (&self.lan, LAN_DEVICES[1]),
            Entry::Pod => (self.topology.netns(Place::PodEast), "eth0"),
            Entry::Node => (self.topology.netns(Place::NodeWest), "eth0"),
            Entry::Member => (&self.north, NORTH_DEVICE),
        }
    }

    /// Outer source and destination of packets that the victim takes for genuine.
    pub(crate) fn outer_ends(&self, entry: Entry) -> (IpAddr, IpAddr) {
        let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(self.outer));
        match entry {
            Entry::LanToGateway => (east.gateway[0].addr(), west.gateway[0].addr()),
            Entry::LanToNode => (west.internal[0].addr(), west.node.addr()),
            Entry::Node => (west.node.addr(), west.internal[0].addr()),
            Entry::Member => (
                between_clusters(self.outer, NORTH_HOST).addr(),
                west.gateway[0].addr(),
            ),
            // As from the Pod's socket.
            Entry::Pod => (Cluster::East.pod_addr(self.outer), east.internal[0].addr()),
        }
    }

    /// Inner source and destination of genuine packets.
    #[expect(clippy::unused_self, reason = "the addresses are those of this bed")]
    pub(crate) fn ends(&self, entry: Entry, inner: Family) -> (IpAddr, IpAddr) {
        let [east, west] = Cluster::ALL.map(|cluster| cluster.pod_addr(inner));
        match entry {
            Entry::LanToGateway | Entry::LanToNode | Entry::Pod => (east, west),
            Entry::Node => (west, east),
            Entry::Member => (North::new(inner).pod, west),
        }
    }

    /// An inner packet in the genuine headers of a peer.
    pub(crate) fn encapsulated(&self, entry: Entry, inner: &Ip) -> Tunnel {
        let (src, dst) = self.outer_ends(entry);
        let mut tunnel = Tunnel::new(src, dst, inner);
        tunnel.vxlan = self.format == Format::Vxlan;
        tunnel.dst_port = port(self.format);
        tunnel.inner_src = self.secret(src, dst).bytes();
        if self.way == Way::Policies {
            tunnel.vni = policies::ALLOWED_ID;
        }
        tunnel
    }

    /// The inner source MAC address of packets between two underlay addresses: with a secret if both are peers.
    pub(crate) fn secret(&self, src: IpAddr, dst: IpAddr) -> SourceMac {
        self.inner_src
            .get(&(src, dst))
            .copied()
            .unwrap_or(SourceMac::UNKEYED)
    }

    /// The genuine packet of a place, which must arrive.
    pub(crate) fn control(&self, entry: Entry, inner: Family) -> Vec<u8> {
        let (src, dst) = self.ends(entry, inner);
        let packet = datagram(src, dst, POD_PORT, CONTROL);
        if entry == Entry::Pod {
            packet.frame()
        } else {
            self.encapsulated(entry, &packet).frame()
        }
    }

    /// The frame with the MAC addresses of sender and victim.
    pub(crate) fn addressed(&self, entry: Entry, mut frame: Vec<u8>) -> Vec<u8> {
        let [victim, source] = self.links[&entry];
        if is_addressed_later(&frame) {
            frame[..6].copy_from_slice(&victim);
        }
        frame[6..12].copy_from_slice(&source);
        frame
    }

    /// Sends frames from the place of the attacker.
    pub(crate) fn inject(&self, entry: Entry, frames: &[Vec<u8>]) {
        let (netns, device) = self.attacker(entry);
        inject(netns, device, frames).expect("frames sent");
    }

    /// Sends a packet `copies` times and returns its frames.
    pub(crate) fn send(&self, entry: Entry, send: &Send, copies: usize) -> Vec<Vec<u8>> {
        match send {
            Send::Frames(frames) => {
                let frames: Vec<_> = frames
                    .iter()
                    .map(|frame| self.addressed(entry, frame.clone()))
                    .collect();
                let all: Vec<_> = (0..copies).flat_map(|_| frames.iter().cloned()).collect();
                self.inject(entry, &all);
                frames
            }
            Send::Datagram { from, to, payload } => {
                let socket_used = self.topology.netns(*from).enter(|| {
                    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
                        .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
                    let to = match to.ip() {
                        IpAddr::V4(v4) => (IpAddr::from(v4.to_ipv6_mapped()), to.port()),
                        IpAddr::V6(_) => (to.ip(), to.port()),
                    };
                    // The output hook refuses the datagram of a local socket with EPERM.
                    for _ in 0..copies {
                        drop(socket.send_to(payload, to));
                    }
                    Ok(())
                });
                socket_used.expect("a socket");
                Vec::new()
            }
        }
    }

    /// Compares the secrets with those of genuine packets on every leg. They are right in all vectors but those about
    /// secrets, so that no other check hides the one under test.
    fn learn_inner_sources(&mut self) {
        let legs = [Entry::LanToGateway, Entry::LanToNode, Entry::Node];
        let taps = legs.map(|entry| {
            let (place, device) = entry.victim();
            Tap::open(self.topology.netns(place), device).expect("a tap")
        });
        let wanted: Vec<_> = legs.iter().map(|entry| self.outer_ends(*entry)).collect();
        let mut learned = BTreeMap::new();
        wait_for("genuine packets on every leg", TIMEOUT, || {
            for (from, to) in [(Place::PodEast, Cluster::West), (Place::PodWest, Cluster::East)] {
                let sent = self.topology.netns(from).enter(|| {
                    // Ports spread over the gateways.
                    for _ in 0..16 {
                        UdpSocket::bind("0.0.0.0:0")?
                            .send_to(CONTROL, (to.pod_addr(Family::V4), POD_PORT))?;
                    }
                    Ok(())
                });
                sent.map_err(|error| format!("{error:#}"))?;
            }
            for tap in &taps {
                for frame in tap.frames().map_err(|error| format!("{error:#}"))? {
                    if let Some((ends, mac)) = inner_source(&frame, self.outer) {
                        learned.insert(ends, mac);
                    }
                }
            }
            if wanted.iter().all(|ends| learned.contains_key(ends)) {
                Ok(())
            } else {
                Err(format!("{learned:02x?}"))
            }
        })
        .expect("genuine packets");
        for ends in wanted {
            assert_eq!(self.secret(ends.0, ends.1).bytes(), learned[&ends], "{ends:?}");
        }
    }

    /// Reads the ID of the backend of the exported Service.
    fn learn_backends(&mut self) {
        let (place, device) = Entry::LanToNode.victim();
        let tap = Tap::open(self.topology.netns(place), device).expect("a tap");
        let header = mac_offset(self.outer);
        for family in [Family::V4, Family::V6] {
            let to = (Services::new(family).exported, SERVICE_UDP);
            let any = if family == Family::V4 {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            };
            let backend = wait_for("a packet to a backend", TIMEOUT, || {
                let sent = self.topology.netns(Place::PodEast).enter(|| {
                    UdpSocket::bind(any)?.send_to(TO_SERVICE, to)?;
                    Ok(())
                });
                sent.map_err(|error| format!("{error:#}"))?;
                let frames = tap.frames().map_err(|error| format!("{error:#}"))?;
                let selected = frames.iter().filter(|frame| contains(frame, TO_SERVICE));
                let mut backend = selected.filter_map(|frame| {
                    let (src, dst) = outer_addresses(frame, self.outer)?;
                    let mac = frame.get(header..header + 6)?.try_into().ok()?;
                    match SourceMac::from_bits(mac_to_u64(mac)).compare(self.secret(src, dst)) {
                        MacMatch::Backend(id) => Some(id),
                        MacMatch::Equal | MacMatch::Different => None,
                    }
                });
                backend.next_back().ok_or("no packet".to_owned())
            });
            self.backends.insert(family, backend.expect("a backend"));
        }
    }

    /// The inner source MAC address of packets to the backend of the exported Service.
    pub(crate) fn backend_mac(&self, family: Family) -> [u8; 6] {
        let (src, dst) = self.outer_ends(Entry::LanToNode);
        self.secret(src, dst).with_backend(self.backends[&family]).bytes()
    }

    /// Reads a probe of west's gateway to east's.
    fn learn_probe(&mut self) {
        let (east, west) = self.outer_ends(Entry::LanToGateway);
        let tap = Tap::open(self.topology.netns(Place::GatewayWest), "eth1").expect("a tap");
        let inner = mac_offset(self.outer) + 6 + 2;
        let probe = wait_for("a probe", TIMEOUT, || {
            let frames = tap.frames().map_err(|error| format!("{error:#}"))?;
            frames
                .iter()
                .filter(|frame| outer_addresses(frame, self.outer) == Some((west, east)))
                .filter(|frame| frame.get(inner - 2..inner) == Some(&ETHERTYPE.to_be_bytes()))
                .find_map(|frame| Probe::load(&SlicePacket::new(frame.get(inner..)?.to_vec()), 0))
                .filter(|probe| probe.kind == Kind::Request)
                .ok_or("none".to_owned())
        });
        self.probe = Some(probe.expect("a probe"));
    }

    /// A probe that west's gateway has sent to east's.
    pub(crate) fn probe(&self) -> Probe {
        self.probe.expect("a probe was read")
    }
}

fn options_of(name: &str, outer: Family, format: Format, way: Way) -> Options {
    let tunnel_devices = way == Way::TunnelDevices;
    let mut options = options(name);
    if way == Way::Xdp {
        options = options.with_xdp();
    }
    options.inner = Inner::Dual;
    options.outer = outer;
    options.format = format;
    options.two_gateways = true;
    // Packets to Pods on a bridge take the way through the tunnel device.
    options.bridge = tunnel_devices;
    if !tunnel_devices {
        // The listeners need the port.
        options
            .agent_flags
            .extend(["--tunnel-device", "never"].map(str::to_owned));
    }
    if outer == Family::V4 {
        options
            .agent_flags
            .extend(["--antrea-clusters", "south"].map(str::to_owned));
    }
    if way == Way::Policies {
        options
            .agent_flags
            .extend(["--policy-enforcement", "all"].map(str::to_owned));
    }
    options.masquerade = Masquerade::LeavingCluster;
    options
}

/// Name of north's gateway.
const NORTH: &str = "gw-north";

/// Underlay addresses of all peers, with the name of each.
pub(crate) fn peers(outer: Family) -> Vec<(IpAddr, &'static str)> {
    let mut all = vec![(between_clusters(outer, NORTH_HOST).addr(), NORTH)];
    for cluster in Cluster::ALL {
        let nets = cluster.nets(outer);
        all.push((nets.node.addr(), cluster.node().name()));
        for (at, place) in [cluster.gateway(), cluster.second_gateway()]
            .into_iter()
            .enumerate()
        {
            all.push((nets.internal[at].addr(), place.name()));
            all.push((nets.gateway[at].addr(), place.name()));
        }
    }
    all
}

/// The inner source MAC address of packets between any two peers.
fn secrets(outer: Family) -> BTreeMap<(IpAddr, IpAddr), SourceMac> {
    let all = peers(outer);
    let pairs = all.iter().flat_map(|from| all.iter().map(move |to| (from, to)));
    pairs
        .map(|((from, sender), (to, receiver))| ((*from, *to), source_mac_between(sender, receiver, 0)))
        .collect()
}

/// Offset of the inner source MAC address.
const fn mac_offset(outer: Family) -> usize {
    14 + header_len(outer) + 8 + 8 + 6
}

/// Length of an IP header without options.
pub(crate) const fn header_len(family: Family) -> usize {
    match family {
        Family::V4 => 20,
        Family::V6 => 40,
    }
}

/// Addresses of an IP packet in a frame.
pub(crate) fn outer_addresses(frame: &[u8], family: Family) -> Option<(IpAddr, IpAddr)> {
    let (kind, src, dst) = match family {
        Family::V4 => ([0x08, 0x00], 14 + 12, 14 + 16),
        Family::V6 => ([0x86, 0xdd], 14 + 8, 14 + 24),
    };
    (frame.get(12..14)? == kind).then_some(())?;
    let at = |at: usize| match family {
        Family::V4 => Some(IpAddr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?)),
        Family::V6 => Some(IpAddr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?)),
    };
    Some((at(src)?, at(dst)?))
}

/// Text of packets that select a backend.
const TO_SERVICE: &[u8] = b"mc-packet-to-service";

/// Outer addresses and inner source MAC address of a genuine encapsulated packet.
fn inner_source(frame: &[u8], outer: Family) -> Option<((IpAddr, IpAddr), [u8; 6])> {
    contains(frame, CONTROL).then_some(())?;
    let ends = outer_addresses(frame, outer)?;
    let mac = mac_offset(outer);
    Some((ends, frame.get(mac..mac + 6)?.try_into().ok()?))
}

/// Whether a frame has a text.
pub(crate) fn contains(frame: &[u8], text: &[u8]) -> bool {
    frame.windows(text.len()).any(|window| window == text)
}

/// UDP port of a format.
pub(crate) const fn port(format: Format) -> u16 {
    match format {
        Format::Geneve => 6081,
        Format::Vxlan => 4789,
    }
}

fn bind(netns: &Netns, port: u16) -> UdpSocket {
    let socket = netns.enter(|| {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    socket.expect("a socket")
}

/// Writes the manifests: those of the topology, the member north, and west's Services.
fn write_objects(topology: &Topology, outer: Family) {
    let of = |get: fn(&North) -> IpNet| [Family::V4, Family::V6].map(|family| get(&North::new(family)));
    let ([v4, v6], [services4, services6]) = (of(|north| north.pods), of(|north| north.services));
    let north = format!(
        "\
apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterInfoImport
metadata: {{name: north-clusterinfo, namespace: kube-system}}
spec:
  clusterID: north
  gatewayInfos:
  - {{gatewayIP: \"{}\", publicKey: {}}}
  podCIDRs: [{v4}, \"{v6}\"]
  serviceCIDR: \"{services4},{services6}\"
",
        between_clusters(outer, NORTH_HOST).addr(),
        public_key_of(NORTH)
    );
    let south = format!(
        "\
apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ClusterInfoImport
metadata: {{name: south-clusterinfo, namespace: kube-system}}
spec:
  clusterID: south
  gatewayInfos:
  - gatewayIP: {}
  podCIDRs: [{}]
  serviceCIDR: {}
",
        between_clusters(Family::V4, SOUTH_HOST).addr(),
        South::PODS,
        South::SERVICES
    );
    for cluster in Cluster::ALL {
        let directory = topology.manifests_dir(cluster);
        write_manifests(cluster, topology.options(), &directory).expect("manifests");
        fs::write(directory.join("north.yaml"), &north).expect("a manifest");
        if outer == Family::V4 {
            fs::write(directory.join("south.yaml"), &south).expect("a manifest");
        }
    }
    let [web, private] = [
        |services: Services| services.exported,
        |services: Services| services.private,
    ]
    .map(|get| [Family::V4, Family::V6].map(|family| get(Services::new(family))));
    let [pod4, pod6] = [Family::V4, Family::V6].map(|family| Cluster::West.pod_addr(family));
    let service = |name: &str, [v4, v6]: [IpAddr; 2], ports: &str, targets: &str| {
        let slice = |family: &str, address: IpAddr| {
            format!(
                "\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-{family}, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: {family}
ports: [{targets}]
endpoints: [{{addresses: [\"{address}\"], nodeName: node-west}}]
"
            )
        };
        format!(
            "\
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  clusterIP: {v4}
  clusterIPs: [{v4}, \"{v6}\"]
  ipFamilies: [IPv4, IPv6]
  ports: [{ports}]
---
{}---
{}",
            slice("IPv4", pod4),
            slice("IPv6", pod6)
        )
    };
    let web = service(
        "web",
        web,
        &format!("{{name: http, port: {SERVICE_TCP}}}, {{name: dns, port: {SERVICE_UDP}, protocol: UDP}}"),
        &format!("{{name: http, port: {POD_PORT}}}, {{name: dns, port: {POD_PORT}, protocol: UDP}}"),
    );
    let sql = format!("{{name: sql, port: {PRIVATE_PORT}}}");
    let private = service("db", private, &sql, &sql);
    let text = format!(
        "\
{web}---
{private}---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceExport
metadata: {{name: web, namespace: shop}}
"
    );
    fs::write(topology.manifests_dir(Cluster::West).join("services.yaml"), text).expect("a manifest");
}
