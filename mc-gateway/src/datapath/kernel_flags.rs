//! Flags of helpers that the running kernel knows.
//!
//! The kernel's type information (BTF) has the names of its flags: libbpf selects code by them
//! (`bpf_core_enum_value_exists`). aya has no such look-up, so this module searches the names.

use std::{fs, io};

use super::DatapathError;

/// Type information of the running kernel.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Name of [`mc_gateway_common::abi::kernel_decap::ADJ_ROOM_DECAP_UDP`] in the kernel.
const DECAP_UDP: &str = "BPF_F_ADJ_ROOM_DECAP_L4_UDP";

/// Whether `bpf_skb_adjust_room` clears the tunnel state of super-packets on request. Unknown, and thus false, without
/// type information (`CONFIG_DEBUG_INFO_BTF`).
pub(super) fn has_decap_flag() -> Result<bool, DatapathError> {
    match fs::read(VMLINUX) {
        Ok(types) => Ok(has_name(&types, DECAP_UDP)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(DatapathError::Io {
            path: VMLINUX.into(),
            source,
        }),
    }
}

/// Whether the type information has this name. Names are terminated by zero bytes
/// (Documentation/bpf/btf.rst, string section).
fn has_name(types: &[u8], name: &str) -> bool {
    types
        .split(|byte| *byte == 0)
        .any(|found| found == name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_are_found() {
        let types = format!("\u{1}binary\0BPF_F_ADJ_ROOM_FIXED_GSO\0{DECAP_UDP}_X\0X{DECAP_UDP}\0");
        assert!(has_name(types.as_bytes(), "BPF_F_ADJ_ROOM_FIXED_GSO"));
        assert!(!has_name(types.as_bytes(), DECAP_UDP));
        let types = format!("{types}{DECAP_UDP}\0");
        assert!(has_name(types.as_bytes(), DECAP_UDP));
    }

    #[test]
    fn the_running_kernel_names_its_flags() {
        let types = fs::read(VMLINUX).unwrap();
        assert!(has_name(&types, "BPF_F_ADJ_ROOM_FIXED_GSO"));
    }
}
