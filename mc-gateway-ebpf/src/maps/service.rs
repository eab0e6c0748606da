//! The Service maps.

use aya_ebpf::{
    btf_maps::{HashMap, LruHashMap},
    macros::btf_map,
};
use mc_gateway_common::{
    abi::service::{
        Backend, Flow, FlowKey, Fragment, FragmentKey, MAX_BACKENDS, MAX_FLOWS, MAX_FRAGMENTS, MAX_REPLIES,
        MAX_SERVICES, MAX_TABLES, Maglev, Reply, ReplyKey, Service, ServiceKey,
    },
    maps::service::Services,
};

use super::{AS_NEEDED, kernel::KernelMaps};

#[btf_map(name = "mc_services")]
static SERVICES: HashMap<ServiceKey, Service, { MAX_SERVICES as usize }, AS_NEEDED> = HashMap::new();
#[btf_map(name = "mc_maglev")]
static MAGLEV: HashMap<ServiceKey, Maglev, { MAX_TABLES as usize }, AS_NEEDED> = HashMap::new();
#[btf_map(name = "mc_backends")]
static BACKENDS: HashMap<u64, Backend, { MAX_BACKENDS as usize }, AS_NEEDED> = HashMap::new();
#[btf_map(name = "mc_flows")]
static FLOWS: LruHashMap<FlowKey, Flow, { MAX_FLOWS as usize }> = LruHashMap::new();
#[btf_map(name = "mc_replies")]
static REPLIES: LruHashMap<ReplyKey, Reply, { MAX_REPLIES as usize }> = LruHashMap::new();
#[btf_map(name = "mc_fragments")]
static FRAGMENTS: LruHashMap<FragmentKey, Fragment, { MAX_FRAGMENTS as usize }> = LruHashMap::new();

// The maps without preallocation free a replaced entry after the last program that may read it (RCU). Entries of the
// LRU maps are copied at once: a reused entry has the value of another flow for one packet, which the Pod's node
// drops.
impl Services for KernelMaps {
    #[inline(always)]
    fn service(&self, key: &ServiceKey) -> Option<&Service> {
        // SAFETY: see above; any bit pattern is a `Service`.
        unsafe { SERVICES.get(key) }
    }

    #[inline(always)]
    fn maglev(&self, key: &ServiceKey) -> Option<&Maglev> {
        // SAFETY: as above.
        unsafe { MAGLEV.get(key) }
    }

    #[inline(always)]
    fn backend(&self, id: u64) -> Option<&Backend> {
        // SAFETY: as above.
        unsafe { BACKENDS.get(id) }
    }

    #[inline(always)]
    fn flow(&self, key: &FlowKey) -> Option<u64> {
        // SAFETY: as above, and the value is copied.
        unsafe { FLOWS.get(key) }.map(|flow| flow.backend)
    }

    #[inline(always)]
    fn set_flow(&self, key: &FlowKey, backend: u64) -> bool {
        FLOWS.insert(key, Flow { backend }, 0).is_ok()
    }

    #[inline(always)]
    fn reply(&self, key: &ReplyKey) -> Option<Reply> {
        // SAFETY: as above, and the value is copied.
        unsafe { REPLIES.get(key) }.copied()
    }

    #[inline(always)]
    fn set_reply(&self, key: &ReplyKey, reply: &Reply) -> bool {
        REPLIES.insert(key, reply, 0).is_ok()
    }

    #[inline(always)]
    fn forget_reply(&self, key: &ReplyKey) {
        // Another CPU may have removed the entry.
        let _removed = REPLIES.remove(key);
    }

    #[inline(always)]
    fn fragment(&self, key: &FragmentKey) -> Option<Fragment> {
        // SAFETY: as above, and the value is copied.
        unsafe { FRAGMENTS.get(key) }.copied()
    }

    #[inline(always)]
    fn set_fragment(&self, key: &FragmentKey, fragment: &Fragment) -> bool {
        FRAGMENTS.insert(key, fragment, 0).is_ok()
    }
}
