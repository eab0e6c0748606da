//! IPv6 support of the host, from its sysctls.

use std::fs;
use std::path::Path;

/// Sysctls of the reader's network namespace.
const SETTINGS: &str = "/proc/sys/net/ipv6/conf";

/// Reason why IPv6 cannot be routed into `device`, if so. Completes "prefix …".
#[must_use]
pub fn unavailable_reason(device: &str) -> Option<String> {
    unavailable_reason_in(Path::new(SETTINGS), device)
}

fn unavailable_reason_in(settings: &Path, device: &str) -> Option<String> {
    if !settings.exists() {
        return Some("is not routed: this kernel has no IPv6".to_owned());
    }
    // A new device gets the defaults.
    let name = if settings.join(device).exists() {
        device
    } else {
        "default"
    };
    let value = fs::read_to_string(settings.join(name).join("disable_ipv6")).ok()?;
    (value.trim() == "1").then(|| {
        format!(
            "is not routed: IPv6 is turned off on {device}; run `sysctl -w net.ipv6.conf.{name}.disable_ipv6=0`"
        )
    })
}

/// Whether this host forwards IPv6 packets.
#[must_use]
pub fn is_forwarding() -> bool {
    let path = Path::new(SETTINGS).join("all/forwarding");
    fs::read_to_string(path).is_ok_and(|value| value.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_gets_the_default() {
        let root = tempfile::tempdir().unwrap();
        let settings = root.path().join("conf");
        assert!(
            unavailable_reason_in(&settings, "mc0")
                .unwrap()
                .contains("no IPv6")
        );
        let set = |name: &str, value: &str| {
            fs::create_dir_all(settings.join(name)).unwrap();
            fs::write(settings.join(name).join("disable_ipv6"), value).unwrap();
        };
        set("default", "1\n");
        let reason = unavailable_reason_in(&settings, "mc0").unwrap();
        assert!(
            reason.ends_with("run `sysctl -w net.ipv6.conf.default.disable_ipv6=0`"),
            "{reason}"
        );
        set("mc0", "0\n");
        assert_eq!(unavailable_reason_in(&settings, "mc0"), None);
    }
}
