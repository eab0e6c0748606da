//! Layout of the Service translation maps.
//!
//! A gateway knows every exported Service (`mc_services`, `mc_maglev`, `mc_backends`) and the flows it has
//! chosen a backend for (`mc_flows`); a Pod's node knows the backends that run on it (`mc_backends`) and
//! which flows came to them by a Service address (`mc_replies`).

use super::Addr;

/// Entries of a Service's lookup table: a prime, as Maglev needs it (Eisenbud et al., NSDI 2016, section
/// 3.4). Backends differ by at most one entry, so 50 of them share within 10 %.
pub const MAGLEV_ENTRIES: usize = 509;
/// [`MAGLEV_ENTRIES`] rounded up to a power of two: a mask then tells the verifier that an index is in
/// bounds.
pub const MAGLEV_SLOTS: usize = 512;
/// Entries the `mc_services` and `mc_maglev` maps can hold; allocated as they are filled.
pub const MAX_SERVICES: u32 = 16_384;
/// Entries the `mc_backends` map can hold; allocated as they are filled.
pub const MAX_BACKENDS: u32 = 131_072;
/// Entries the `mc_flows` map can hold: when it is full the flow that was quiet longest goes, and is
/// chosen by the lookup table again when it comes back.
pub const MAX_FLOWS: u32 = 65_536;
/// Entries the `mc_replies` map can hold: when it is full the flow that was quiet longest goes, and is
/// known again with its next packet from the client.
pub const MAX_REPLIES: u32 = 65_536;
/// Entries the `mc_fragments` map can hold.
pub const MAX_FRAGMENTS: u32 = 4_096;

/// Name of the Service map: hash of [`ServiceKey`] to [`Service`].
pub const SERVICES: &str = "mc_services";
/// Name of the lookup tables: hash of [`ServiceKey`] to [`Maglev`].
pub const MAGLEV: &str = "mc_maglev";
/// Name of the backend map: hash of 40-bit id to [`Backend`].
pub const BACKENDS: &str = "mc_backends";
/// Name of a gateway's flow table: LRU hash of [`FlowKey`] to [`Flow`].
pub const FLOWS: &str = "mc_flows";
/// Name of a node's table of translated flows: LRU hash of [`ReplyKey`] to [`Reply`].
pub const REPLIES: &str = "mc_replies";
/// Name of the table of fragmented packets under way: LRU hash of [`FragmentKey`] to [`Fragment`].
pub const FRAGMENTS: &str = "mc_fragments";

/// [`Service::flags`]: new flows of a client's address go to the same backend
/// (`sessionAffinity: ClientIP`).
pub const SERVICE_AFFINITY: u32 = 1;

/// [`Backend::flags`]: takes new flows. A backend without it keeps the TCP flows it has.
pub const BACKEND_READY: u8 = 1;

/// First byte of an inner source MAC address that names a backend: locally administered, unicast.
pub const BACKEND_MAC: u8 = 0x06;
/// Bits of a backend's id: what is left of a MAC address.
pub const BACKEND_ID_BITS: u32 = 40;

/// A port of a Service address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(4))]
pub struct ServiceKey {
    /// Service address.
    pub addr: Addr,
    /// Port, host order.
    pub port: u16,
    /// Protocol number: TCP or UDP.
    pub proto: u8,
    /// Always 0.
    pub pad: u8,
}

/// How flows to a port of a Service address are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Service {
    /// [`SERVICE_AFFINITY`].
    pub flags: u32,
    /// Backends in the lookup table.
    pub backends: u32,
}

/// The lookup table of a Service port, the same at every gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Maglev {
    /// Id of the backend for each share of the flows; 0 behind [`MAGLEV_ENTRIES`].
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
    /// Slot in `mc_nh_groups` of the Pod's Node; 0 where the Pod runs on this node.
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

/// A flow to a Service address as a gateway sees it. With a client port of 0: all flows of a client to a
/// Service with [`SERVICE_AFFINITY`].
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
    /// Protocol number, as wide as leaves no padding.
    pub proto: u32,
}

/// What a gateway has decided for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// Id of the backend.
    pub backend: u64,
}

/// A translated flow as the Pod's node sees it.
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
    /// Protocol number, as wide as leaves no padding.
    pub proto: u32,
}

/// The Service address a flow came by: the source its replies get.
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

/// A packet whose fragments follow the first one (RFC 791, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(8))]
pub struct FragmentKey {
    /// Source address.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// Identification, in network order as it is.
    pub id: u32,
    /// Protocol number, as wide as leaves no padding.
    pub proto: u32,
}

/// What was decided for the first fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fragment {
    /// At a gateway: id of the backend.
    pub backend: u64,
    /// Address of the Service: at the Pod's node the source that replies get.
    pub service: Addr,
}

// Sum of the fields' sizes equals the struct's size: no padding anywhere. Keys are aligned beyond their fields
// so that programs write them in words.
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

    macro_rules! pod {
        ($($t:ty),*) => {$(
            // SAFETY: repr(C), Copy, no padding (asserted above) and every bit pattern is valid.
            unsafe impl aya::Pod for $t {}
        )*};
    }
    pod!(
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
