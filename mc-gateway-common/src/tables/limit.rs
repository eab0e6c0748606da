//! What limits the ICMP errors a node sends.

/// Permission to send ICMP errors.
pub trait Limits {
    /// Takes a token for one error; false where there is none left.
    fn may_send_error(&self) -> bool;
}

#[cfg(any(test, feature = "std"))]
impl Limits for super::MapTables {
    fn may_send_error(&self) -> bool {
        let mut bucket = self.icmp_limit.borrow_mut();
        crate::limit::take(&mut bucket, super::health::Health::now(self))
    }
}
