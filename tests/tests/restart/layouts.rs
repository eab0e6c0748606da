//! Synthetic pins of other layout versions.

use std::path::Path;

use mc_gateway_common::abi;

use crate::fixture::bpftool;

/// Maps of layout 1: name, type, sizes of key and value, entries.
const V1: [(&str, &str, u32, u32, u32); 7] = [
    ("mc_prefixes", "lpm_trie", 20, 16, 131_072),
    ("mc_groups", "array", 4, 72, 8_192),
    ("mc_members", "array", 4, 48, 16_384),
    ("mc_peers", "hash", 16, 16, 16_384),
    ("mc_config", "array", 4, 84, 1),
    ("mc_drops", "percpu_array", 4, 8, 64),
    ("mc_paths", "percpu_array", 4, 16, 8),
];

/// Pins maps of a version below `root`, with the version in their configuration, and returns the name of their
/// directory. For future versions only the maps' names and the first field of the configuration are fixed.
pub(crate) fn pin_layout(root: &Path, version: u32) -> String {
    let (name, config) = if version == 1 {
        ("maps".to_owned(), 84)
    } else {
        (format!("maps-v{version}"), 200)
    };
    let dir = root.join(&name);
    std::fs::create_dir_all(&dir).expect("a directory");
    for (map, kind, key, value, entries) in V1 {
        let value = if map == abi::CONFIG { config } else { value };
        create(&dir.join(map), map, kind, key, value, entries);
    }
    let pin = dir.join(abi::CONFIG).to_string_lossy().into_owned();
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.resize(config as usize, 0);
    let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let mut args = vec![
        "map", "update", "pinned", &pin, "key", "0", "0", "0", "0", "value",
    ];
    args.extend(bytes.iter().map(String::as_str));
    bpftool(&args);
    name
}

/// Pins an array with any name.
pub(crate) fn pin_array(path: &Path, name: &str, key: u32, value: u32, entries: u32) {
    create(path, name, "array", key, value, entries);
}

fn create(path: &Path, name: &str, kind: &str, key: u32, value: u32, entries: u32) {
    let pin = path.to_string_lossy().into_owned();
    let [key, value, entries] = [key, value, entries].map(|number| number.to_string());
    let mut args = vec![
        "map", "create", &pin, "type", kind, "key", &key, "value", &value, "entries", &entries, "name", name,
    ];
    if kind == "lpm_trie" {
        // BPF_F_NO_PREALLOC, mandatory for this type.
        args.extend(["flags", "1"]);
    }
    bpftool(&args);
}
