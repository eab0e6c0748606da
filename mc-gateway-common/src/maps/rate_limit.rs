//! Rate limit of ICMP errors.

/// Permission to send ICMP errors.
pub trait RateLimiter {
    /// Takes a token for one error; false if none is left.
    fn allow_icmp_error(&self) -> bool;
}

#[cfg(any(test, feature = "std"))]
impl RateLimiter for super::MemoryMaps {
    fn allow_icmp_error(&self) -> bool {
        let mut bucket = self.icmp_limit.borrow_mut();
        crate::rate_limit::take_token(&mut bucket, super::liveness::Liveness::now(self))
    }
}
