//! Layout of the Service translation maps.
//!
//! A gateway has every exported Service (`mc_services`, `mc_maglev`, `mc_backends`) and the backends of its flows
//! (`mc_flows`). A Pod's node has its own backends (`mc_backends`) and the Service addresses of their flows
//! (`mc_replies`).

use super::addr::Addr;

/// Entries of a Service's lookup table: a prime, as required by Maglev (Eisenbud et al., NSDI 2016, section
/// 3.4). Backends differ by at most one entry, so 50 of them share within 10 %.
pub const MAGLEV_ENTRIES: usize = 509;
/// [`MAGLEV_ENTRIES`] rounded up to a power of two: a mask then proves the bound of an index to the
/// verifier.
pub const MAGLEV_SLOTS: usize = 512;
/// Maximum number of past tables of a Service port.
pub const PAST_TABLES: u8 = 4;
/// Capacity of `mc_services`, allocated on insertion.
pub const MAX_SERVICES: u32 = 16_384;
/// Capacity of `mc_maglev`, allocated on insertion: a present table of every Service port, and as many past ones.
pub const MAX_TABLES: u32 = 2 * MAX_SERVICES;
/// Capacity of `mc_backends`, allocated on insertion.
pub const MAX_BACKENDS: u32 = 131_072;
/// Capacity of `mc_flows`. When full, the least recently used flow is evicted; its next packet selects a backend by the
/// lookup table again.
pub const MAX_FLOWS: u32 = 65_536;
/// Capacity of `mc_replies`. When full, the least recently used flow is evicted; the next packet from its client
/// inserts it again.
pub const MAX_REPLIES: u32 = 65_536;
/// Capacity of `mc_fragments`.
pub const MAX_FRAGMENTS: u32 = 4_096;

/// Name of the Service map: hash of [`ServiceKey`] to [`Service`]. It has every exported port: other clusters reach no
/// other Service.
pub const SERVICES: &str = "mc_services";
/// Name of the lookup tables: hash of [`ServiceKey`] to [`Maglev`].
pub const MAGLEV: &str = "mc_maglev";
/// Name of the backend map: hash of 40-bit ID to [`Backend`].
pub const BACKENDS: &str = "mc_backends";
/// Name of the flow map of gateways: LRU hash of [`FlowKey`] to [`Flow`].
pub const FLOWS: &str = "mc_flows";
/// Name of the map of translated flows on nodes: LRU hash of [`ReplyKey`] to [`Reply`].
pub const REPLIES: &str = "mc_replies";
/// Name of the map of fragmented packets in transit: LRU hash of [`FragmentKey`] to [`Fragment`].
pub const FRAGMENTS: &str = "mc_fragments";

/// [`Service::flags`]: new flows of a client's address go to the same backend
/// (`sessionAffinity: ClientIP`).
pub const SERVICE_AFFINITY: u32 = 1;

/// [`Service::flags`]: exported, but served by the Node's service proxy: packets go into this node's stack.
pub const SERVICE_STACK: u32 = 1 << 1;

/// [`Service::flags`]: `mc_maglev` has past tables of the Service port. A connection without an entry may have been
/// opened by another gateway while one of them was the present table.
pub const SERVICE_PAST: u32 = 1 << 2;

/// [`Service::flags`], with [`SERVICE_STACK`]: rules for ingress may deny packets to a Pod of the Service, and the
/// service proxy would hide the sender from them. New flows are dropped.
pub const SERVICE_IDENTITY_LOST: u32 = 1 << 3;

/// [`Service::flags`]: the time-out of [`SERVICE_AFFINITY`] in seconds is above this bit. 0 is none: the affinity lasts
/// as long as the entry of the client.
pub const SERVICE_TIMEOUT_SHIFT: u32 = 8;

/// [`Backend::flags`]: accepts new flows. A backend without it keeps its TCP flows.
pub const BACKEND_READY: u8 = 1;

/// [`Flow::backend`]: a TCP connection that the service proxy serves; greater than any ID.
pub const FLOW_OF_STACK: u64 = 1 << BACKEND_ID_BITS;

/// First byte of an inner source MAC address that identifies a backend: locally administered, unicast.
pub const BACKEND_MAC: u8 = 0x06;
/// Bits of a backend ID: the rest of the MAC address.
pub const BACKEND_ID_BITS: u32 = 40;

/// A port of a Service address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(4))]
pub struct ServiceKey {
    /// Service address.
    pub addr: Addr,
    /// Port, host order.
    pub port: u16,
    /// Protocol number: TCP, UDP, or SCTP with [`SERVICE_STACK`].
    pub proto: u8,
    /// In `mc_maglev` 0 for the present table and 1 to [`PAST_TABLES`] for past ones, newest first; else 0.
    pub generation: u8,
}

impl ServiceKey {
    /// The key of another table of the same port.
    #[inline(always)]
    #[must_use]
    pub const fn with_generation(self, generation: u8) -> Self {
        Self { generation, ..self }
    }
}

/// Properties of a port of a Service address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Service {
    /// [`SERVICE_AFFINITY`], [`SERVICE_STACK`], [`SERVICE_PAST`], [`SERVICE_IDENTITY_LOST`],
    /// [`SERVICE_TIMEOUT_SHIFT`].
    pub flags: u32,
    /// Backends in the lookup table.
    pub backends: u32,
}

/// A lookup table of a Service port. The present one is the same at every gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Maglev {
    /// Backend ID for each share of the flows; 0 beyond [`MAGLEV_ENTRIES`], and in a past table where there is none.
    pub backends: [u64; MAGLEV_SLOTS],
}

/// A Pod behind a port of a Service address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Backend {
    /// Address of the Pod.
    pub pod: Addr,
    /// Address of the Service.
    pub service: Addr,
    /// Slot in `mc_nh_groups` of the Pod's Node; 0 for a Pod of this node.
    pub group: u32,
    /// Port of the Pod, host order.
    pub pod_port: u16,
    /// Port of the Service, host order.
    pub service_port: u16,
    /// Protocol number: TCP or UDP.
    pub proto: u8,
    /// [`BACKEND_READY`].
    pub flags: u8,
    /// Always 0.
    pub pad: u16,
}

/// A flow to a Service address on a gateway. Client port 0: all flows of a client to a Service with
/// [`SERVICE_AFFINITY`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(8))]
pub struct FlowKey {
    /// Address of the client.
    pub client: Addr,
    /// Address of the Service.
    pub service: Addr,
    /// Port of the client, host order.
    pub client_port: u16,
    /// Port of the Service, host order.
    pub service_port: u16,
    /// Protocol number, wide enough to leave no padding.
    pub proto: u32,
}

/// A gateway's decision for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// A [`super::flow_entry::FlowEntry`]; for all flows of a client an [`super::affinity::AffinityEntry`].
    pub backend: u64,
}

/// A translated flow on the Pod's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(8))]
pub struct ReplyKey {
    /// Address of the Pod.
    pub pod: Addr,
    /// Address of the client.
    pub client: Addr,
    /// Port of the Pod, host order.
    pub pod_port: u16,
    /// Port of the client, host order.
    pub client_port: u16,
    /// Protocol number, wide enough to leave no padding.
    pub proto: u32,
}

/// The Service address of a flow: the source address of its replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(4))]
pub struct Reply {
    /// Address of the Service.
    pub addr: Addr,
    /// Port of the Service, host order.
    pub port: u16,
    /// Always 0.
    pub pad: u16,
}

/// A fragmented packet; later fragments follow the first one (RFC 791, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(8))]
pub struct FragmentKey {
    /// Source address.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// Identification, in network order.
    pub id: u32,
    /// Protocol number, wide enough to leave no padding.
    pub proto: u32,
}

/// The decision for the first fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fragment {
    /// On a gateway: ID of the backend.
    pub backend: u64,
    /// Address of the Service, on the Pod's node the source address of replies.
    pub service: Addr,
}

// Sum of the fields' sizes equals the struct's size: no padding anywhere. Keys are aligned beyond their fields
// so that programs write them as words.
const _: () = assert!(size_of::<ServiceKey>() == 20 && align_of::<ServiceKey>() == 4);
const _: () = assert!(size_of::<Service>() == 8 && align_of::<Service>() == 4);
const _: () = assert!(size_of::<Maglev>() == 8 * MAGLEV_SLOTS && align_of::<Maglev>() == 8);
const _: () = assert!(size_of::<Backend>() == 44 && align_of::<Backend>() == 4);
const _: () = assert!(size_of::<FlowKey>() == 40 && align_of::<FlowKey>() == 8);
const _: () = assert!(size_of::<Flow>() == 8 && align_of::<Flow>() == 8);
const _: () = assert!(size_of::<ReplyKey>() == 40 && align_of::<ReplyKey>() == 8);
const _: () = assert!(size_of::<Reply>() == 20 && align_of::<Reply>() == 4);
const _: () = assert!(size_of::<FragmentKey>() == 40 && align_of::<FragmentKey>() == 8);
const _: () = assert!(size_of::<Fragment>() == 24 && align_of::<Fragment>() == 8);

#[cfg(feature = "user")]
mod user {
    #![expect(unsafe_code, reason = "Pod is an unsafe marker trait")]
    use super::{
        Backend, Flow, FlowKey, Fragment, FragmentKey, Maglev, Reply, ReplyKey, Service, ServiceKey,
    };

    impl_pod!(
        Backend,
        Flow,
        FlowKey,
        Fragment,
        FragmentKey,
        Maglev,
        Reply,
        ReplyKey,
        Service,
        ServiceKey
    );
}
