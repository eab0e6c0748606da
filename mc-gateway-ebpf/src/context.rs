//! The context type of global functions.

/// The context of a classifier. The verifier identifies it in BTF by this name; the kernel rejects the BTF of the whole
/// generated struct.
#[repr(C)]
pub(crate) struct __sk_buff {
    len: u32,
}
