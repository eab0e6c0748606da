//! The maps of network policies.

use aya_ebpf::{
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuHashMap, lpm_trie::Key},
    macros::btf_map,
};
use mc_gateway_common::{
    abi::{
        Addr,
        policy::{
            ADDRESS_CLASS_BITS, AddressClassKey, ExporterKey, IDENTITY_SLOTS, LabelIdentity,
            MAX_ADDRESS_CLASSES, MAX_EXPORTERS, MAX_PEER_RULES, MAX_POLICY_FLOWS, MAX_POLICY_PODS,
            MAX_POLICY_RULES, MAX_RULE_COUNTERS, PeerRules, PeerRulesKey, PolicyPod, PolicyPodKey,
            PolicyState, RULE_BITS, Rule, RuleCounter, RuleKey, UNSELECTED_SLOTS,
        },
        service::ReplyKey,
    },
    maps::policy::Policies,
};

use super::{AS_NEEDED, kernel::KernelMaps};

#[btf_map(name = "mc_policy_state")]
static STATE: Array<PolicyState, 1> = Array::new();
#[btf_map(name = "mc_policy_pods")]
static PODS: HashMap<PolicyPodKey, PolicyPod, { MAX_POLICY_PODS as usize }, AS_NEEDED> = HashMap::new();
#[btf_map(name = "mc_unselected")]
static UNSELECTED_PODS: Array<Addr, { UNSELECTED_SLOTS as usize }> = Array::new();
#[btf_map(name = "mc_identities")]
static IDENTITIES: Array<LabelIdentity, { IDENTITY_SLOTS as usize }> = Array::new();
#[btf_map(name = "mc_exporters")]
static EXPORTERS: HashMap<ExporterKey, u32, { MAX_EXPORTERS as usize }, AS_NEEDED> = HashMap::new();
#[btf_map(name = "mc_addr_classes")]
static ADDRESS_CLASSES: LpmTrie<AddressClassKey, u32, { MAX_ADDRESS_CLASSES as usize }> = LpmTrie::new();
#[btf_map(name = "mc_peer_rules")]
static PEER_RULES: HashMap<PeerRulesKey, PeerRules, { MAX_PEER_RULES as usize }, AS_NEEDED> = HashMap::new();
#[btf_map(name = "mc_policy_rules")]
static RULES: LpmTrie<RuleKey, Rule, { MAX_POLICY_RULES as usize }> = LpmTrie::new();
#[btf_map(name = "mc_policy_flows")]
static FLOWS: LruHashMap<ReplyKey, u64, { MAX_POLICY_FLOWS as usize }> = LruHashMap::new();
#[btf_map(name = "mc_rule_counts")]
static COUNTERS: PerCpuHashMap<u32, RuleCounter, { MAX_RULE_COUNTERS as usize }, AS_NEEDED> =
    PerCpuHashMap::new();

// Values are copied at once. A map without preallocation may give a freed entry to another key at once (bpf_mem_alloc,
// Linux 6.1). The agent frees entries of the half that programs do not use; programs that began before the halves
// changed have ended when the agent writes again. A reused entry of the flows has the time of another flow for one
// packet.
impl Policies for KernelMaps {
    #[inline(always)]
    fn policy_state(&self) -> PolicyState {
        STATE.get(0).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn policy_pod(&self, key: &PolicyPodKey) -> Option<PolicyPod> {
        // SAFETY: see above; any bit pattern is a `PolicyPod`.
        unsafe { PODS.get(key) }.copied()
    }

    #[inline(always)]
    fn unselected_pod(&self, slot: u32) -> Addr {
        UNSELECTED_PODS.get(slot).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn identity(&self, slot: u32) -> LabelIdentity {
        IDENTITIES.get(slot).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn is_exporter(&self, key: &ExporterKey) -> bool {
        // SAFETY: as above; the value is not read.
        unsafe { EXPORTERS.get(key) }.is_some()
    }

    #[inline(always)]
    fn address_class(&self, key: &AddressClassKey) -> Option<u32> {
        ADDRESS_CLASSES
            .get(&Key::new(ADDRESS_CLASS_BITS + 128, *key))
            .copied()
    }

    #[inline(always)]
    fn peer_rule(&self, key: &PeerRulesKey, port: [u8; 2]) -> Rule {
        // SAFETY: as above.
        unsafe { PEER_RULES.get(key) }.map_or(Rule::NONE, |rules| rules.at(port))
    }

    #[inline(always)]
    fn policy_rule(&self, key: &RuleKey) -> Rule {
        let rule = RULES.get(&Key::new(RULE_BITS + 16, *key));
        rule.copied().unwrap_or(Rule::NONE)
    }

    #[inline(always)]
    fn count_rule(&self, rule: u32, bytes: u32) {
        if let Some(counter) = COUNTERS.get_ptr_mut(rule) {
            // SAFETY: as in `count_drop`; an entry that the agent removes stays until this program ends (RCU).
            unsafe { (*counter).count(bytes) }
        }
    }

    #[inline(always)]
    fn policy_flow(&self, key: &ReplyKey) -> Option<u64> {
        // SAFETY: as above.
        unsafe { FLOWS.get(key) }.copied()
    }

    #[inline(always)]
    fn set_policy_flow(&self, key: &ReplyKey, time: u64) {
        let _full = FLOWS.insert(key, time, 0);
    }
}
