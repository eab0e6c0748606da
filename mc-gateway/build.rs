//! Embeds the eBPF object built by `cargo xtask build-ebpf` into the agent.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Environment variable with another path of the object.
const OBJECT: &str = "MC_GATEWAY_EBPF_OBJECT";

fn main() {
    println!("cargo::rerun-if-env-changed={OBJECT}");
    if let Err(message) = embed() {
        println!("cargo::error={message}");
    }
}

fn embed() -> Result<(), String> {
    let variable = |name: &str| env::var_os(name).ok_or(format!("{name} is not set"));
    let default = || {
        let root = variable("CARGO_MANIFEST_DIR")?;
        Ok::<_, String>(Path::new(&root).join("../target/bpf/mc-gateway-ebpf.o"))
    };
    let object = env::var_os(OBJECT).map_or_else(default, |path| Ok(PathBuf::from(path)))?;
    println!("cargo::rerun-if-changed={}", object.display());
    if !object.exists() {
        let path = object.display();
        return Err(format!("{path}: no eBPF object; run `cargo xtask build-ebpf`"));
    }
    let target = Path::new(&variable("OUT_DIR")?).join("mc-gateway-ebpf.o");
    fs::copy(&object, &target)
        .map(|_| ())
        .map_err(|error| format!("copy {} to {}: {error}", object.display(), target.display()))
}
