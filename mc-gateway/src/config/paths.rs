//! Pin directory, device name and state directory, validated.

use std::path::{Component, PathBuf};

use super::{ConfigError, PathArgs, config_error};

/// Longest name of a network device (`IFNAMSIZ` without the final 0).
const MAX_DEVICE_NAME: usize = 15;

/// Locations of the state that outlives the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Directory on a bpffs.
    pub bpf_dir: PathBuf,
    /// Name of `mc0`.
    pub device: String,
    /// Directory of the file with the names of IDs.
    pub state_dir: PathBuf,
}

impl TryFrom<PathArgs> for Paths {
    type Error = ConfigError;

    fn try_from(args: PathArgs) -> Result<Self, ConfigError> {
        let PathArgs {
            bpf_dir,
            device,
            state_dir,
        } = args;
        let has_parent = bpf_dir
            .components()
            .any(|component| component == Component::ParentDir);
        if !bpf_dir.is_absolute() || has_parent {
            let value = bpf_dir.display().to_string();
            return Err(config_error(
                "--bpf-dir",
                value,
                "is not an absolute path without \"..\"",
            ));
        }
        let invalid =
            |c: char| c == '/' || c == ':' || c == '%' || c == '"' || c.is_whitespace() || c.is_control();
        if device.is_empty()
            || device.len() > MAX_DEVICE_NAME
            || device == "."
            || device == ".."
            || device.contains(invalid)
        {
            return Err(config_error("--device", device, "is not a valid device name"));
        }
        Ok(Self {
            bpf_dir,
            device,
            state_dir,
        })
    }
}
