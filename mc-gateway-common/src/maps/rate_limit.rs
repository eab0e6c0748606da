//! Rate limits.

pub use crate::abi::rate_limit::PeerLimit;

/// Permission to send ICMP errors and to insert entries.
pub trait RateLimiter {
    /// Takes a token for one ICMP error to this node; false if none is left.
    fn allow_icmp_error(&self) -> bool;
    /// Takes a token for an ICMP error about a rejected packet: one of the sender's slot, and one that leaves half of
    /// them for the other errors; false if the slot has none or there is none to spare.
    fn allow_rejection(&self, sender_slot: u32) -> bool;
    /// Takes a token of the peers of a slot of `mc_peer_stats`; false if none is left.
    fn take_peer_token(&self, slot: u32, limit: PeerLimit) -> bool;
}

#[cfg(any(test, feature = "std"))]
impl RateLimiter for super::MemoryMaps {
    fn allow_icmp_error(&self) -> bool {
        let mut bucket = self.icmp_limit.borrow_mut();
        let now = super::liveness::Liveness::now(self);
        crate::rate_limit::take_token(&mut bucket, crate::rate_limit::ICMP_ERRORS, now)
    }

    fn allow_rejection(&self, sender_slot: u32) -> bool {
        let now = super::liveness::Liveness::now(self);
        // A slot that a test does not set has no limit.
        if let Some(bucket) = self.sender_limits.borrow_mut().get_mut(&sender_slot)
            && !crate::rate_limit::take_token(bucket, crate::rate_limit::REJECTIONS, now)
        {
            return false;
        }
        let mut bucket = self.icmp_limit.borrow_mut();
        crate::rate_limit::take_spare_token(&mut bucket, crate::rate_limit::ICMP_ERRORS, now)
    }

    fn take_peer_token(&self, slot: u32, limit: PeerLimit) -> bool {
        let mut limits = self.peer_limits.borrow_mut();
        let Some(limits) = limits.get_mut(&slot) else {
            return true;
        };
        let rates = crate::abi::rate_limit::PeerRates::DEFAULT;
        let (bucket, rate) = crate::rate_limit::of_peer(limits, &rates, limit);
        crate::rate_limit::take_token(bucket, rate, super::liveness::Liveness::now(self))
    }
}
