//! The layout version an eBPF object was built with.

use mc_gateway_common::abi;
use object::{Object as _, ObjectSection as _};
use thiserror::Error;

/// An object that does not fit this agent.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ObjectError {
    /// The object is not an ELF file.
    #[error("eBPF object: not an ELF file: {0}")]
    Malformed(String),
    /// The object has no version.
    #[error("the eBPF object has no section {} with its layout version", abi::ABI_SECTION)]
    NoVersion,
    /// The object has another version.
    #[error(
        "the eBPF object has map layouts of version {found}, this agent has version {}",
        abi::ABI_VERSION
    )]
    Version {
        /// Version of the object.
        found: u32,
    },
}

/// Checks the object's layout version.
pub(super) fn check(object: &[u8]) -> Result<(), ObjectError> {
    let file = object::File::parse(object).map_err(|error| ObjectError::Malformed(error.to_string()))?;
    let section = file
        .section_by_name(abi::ABI_SECTION)
        .ok_or(ObjectError::NoVersion)?;
    let bytes = section
        .data()
        .map_err(|error| ObjectError::Malformed(error.to_string()))?;
    // The object is built for this machine's byte order.
    let found = bytes.first_chunk().copied().map(u32::from_ne_bytes);
    match found.ok_or(ObjectError::NoVersion)? {
        abi::ABI_VERSION => Ok(()),
        found => Err(ObjectError::Version { found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_of_this_version_is_accepted() {
        let ours = crate::EBPF_OBJECT;
        assert_eq!(check(ours), Ok(()));
        assert!(matches!(check(b"\x7fELF"), Err(ObjectError::Malformed(_))));
        let at = position(ours).expect("the section's content");
        let mut newer = ours.to_vec();
        newer[at] = 77;
        assert_eq!(check(&newer), Err(ObjectError::Version { found: 77 }));
    }

    fn position(object: &[u8]) -> Option<usize> {
        let file = object::File::parse(object).ok()?;
        let (offset, _) = file.section_by_name(abi::ABI_SECTION)?.file_range()?;
        usize::try_from(offset).ok()
    }
}
