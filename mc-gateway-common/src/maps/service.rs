//! Access to the Service maps.

use crate::abi::service::{
    Backend, FlowKey, Fragment, FragmentKey, Maglev, Reply, ReplyKey, Service, ServiceKey,
};

/// Services, their backends and flows.
///
/// Programs insert into LRU maps, which evict the least recently used entry when full. An insertion returns `false` if
/// the kernel fails it nevertheless.
pub trait Services {
    /// The Service with this address and port.
    fn service(&self, key: &ServiceKey) -> Option<&Service>;
    /// Its lookup table.
    fn maglev(&self, key: &ServiceKey) -> Option<&Maglev>;
    /// The backend with this id.
    fn backend(&self, id: u64) -> Option<&Backend>;
    /// ID of the backend of a flow.
    fn flow(&self, key: &FlowKey) -> Option<u64>;
    /// Stores the backend of a flow.
    fn set_flow(&self, key: &FlowKey, backend: u64) -> bool;
    /// The Service address of a flow to a Pod.
    fn reply(&self, key: &ReplyKey) -> Option<Reply>;
    /// Stores the Service address of a flow.
    fn set_reply(&self, key: &ReplyKey, reply: &Reply) -> bool;
    /// Removes the Service address of a flow.
    fn forget_reply(&self, key: &ReplyKey);
    /// The decision for the first fragment of a packet.
    fn fragment(&self, key: &FragmentKey) -> Option<Fragment>;
    /// Stores the decision for the first fragment of a packet.
    fn set_fragment(&self, key: &FragmentKey, fragment: &Fragment) -> bool;
}

#[cfg(any(test, feature = "std"))]
pub use host::ServiceMaps;

#[cfg(any(test, feature = "std"))]
mod host {
    use std::{cell::RefCell, collections::BTreeMap};

    use super::{
        Backend, FlowKey, Fragment, FragmentKey, Maglev, Reply, ReplyKey, Service, ServiceKey, Services,
    };
    use crate::maps::MemoryMaps;

    /// The Service maps in memory, without eviction.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ServiceMaps {
        /// See [`Services::service`].
        pub services: BTreeMap<ServiceKey, Service>,
        /// See [`Services::maglev`].
        pub maglev: BTreeMap<ServiceKey, Maglev>,
        /// Id to backend.
        pub backends: BTreeMap<u64, Backend>,
        /// Flow to id of the backend.
        pub flows: RefCell<BTreeMap<FlowKey, u64>>,
        /// See [`Services::reply`].
        pub replies: RefCell<BTreeMap<ReplyKey, Reply>>,
        /// See [`Services::fragment`].
        pub fragments: RefCell<BTreeMap<FragmentKey, Fragment>>,
        /// Every insertion fails, like in a kernel without memory.
        pub full: bool,
    }

    impl Services for MemoryMaps {
        fn service(&self, key: &ServiceKey) -> Option<&Service> {
            self.services.services.get(key)
        }

        fn maglev(&self, key: &ServiceKey) -> Option<&Maglev> {
            self.services.maglev.get(key)
        }

        fn backend(&self, id: u64) -> Option<&Backend> {
            self.services.backends.get(&id)
        }

        fn flow(&self, key: &FlowKey) -> Option<u64> {
            self.services.flows.borrow().get(key).copied()
        }

        fn set_flow(&self, key: &FlowKey, backend: u64) -> bool {
            if !self.services.full {
                self.services.flows.borrow_mut().insert(*key, backend);
            }
            !self.services.full
        }

        fn reply(&self, key: &ReplyKey) -> Option<Reply> {
            self.services.replies.borrow().get(key).copied()
        }

        fn set_reply(&self, key: &ReplyKey, reply: &Reply) -> bool {
            if !self.services.full {
                self.services.replies.borrow_mut().insert(*key, *reply);
            }
            !self.services.full
        }

        fn forget_reply(&self, key: &ReplyKey) {
            self.services.replies.borrow_mut().remove(key);
        }

        fn fragment(&self, key: &FragmentKey) -> Option<Fragment> {
            self.services.fragments.borrow().get(key).copied()
        }

        fn set_fragment(&self, key: &FragmentKey, fragment: &Fragment) -> bool {
            if !self.services.full {
                self.services.fragments.borrow_mut().insert(*key, *fragment);
            }
            !self.services.full
        }
    }
}
