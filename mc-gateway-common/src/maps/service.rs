//! What Service translation reads and writes.

use crate::abi::service::{
    Backend, FlowKey, Fragment, FragmentKey, Maglev, Reply, ReplyKey, Service, ServiceKey,
};

/// Services, their backends and flows.
///
/// What programs write themselves goes into tables that forget what was quiet longest, so writing never
/// fails for want of room; where the kernel refuses all the same, `false` comes back.
pub trait Services {
    /// The Service with this address and port.
    fn service(&self, key: &ServiceKey) -> Option<&Service>;
    /// Its lookup table.
    fn maglev(&self, key: &ServiceKey) -> Option<&Maglev>;
    /// The backend with this id.
    fn backend(&self, id: u64) -> Option<&Backend>;
    /// Id of the backend a flow was given to.
    fn flow(&self, key: &FlowKey) -> Option<u64>;
    /// Remembers the backend of a flow.
    fn set_flow(&self, key: &FlowKey, backend: u64) -> bool;
    /// The Service address a flow to a Pod came by.
    fn reply(&self, key: &ReplyKey) -> Option<Reply>;
    /// Remembers the Service address of a flow.
    fn set_reply(&self, key: &ReplyKey, reply: &Reply) -> bool;
    /// Forgets the Service address of a flow.
    fn forget_reply(&self, key: &ReplyKey);
    /// What was decided for the first fragment of a packet.
    fn fragment(&self, key: &FragmentKey) -> Option<Fragment>;
    /// Remembers what was decided for the first fragment of a packet.
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

    /// The Service tables in memory. Unlike the kernel's they never forget.
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
        /// There is no room for any flow, known or not: what the kernel says when it has no memory.
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
