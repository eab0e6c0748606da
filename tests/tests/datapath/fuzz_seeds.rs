//! Initial corpus of the fuzz targets: the frames of all cases in the targets' input format.

use std::{fs, path::PathBuf};

use mc_gateway_common::{
    abi::{CONFIG_GATEWAY, CONFIG_VXLAN},
    packet::ip::is_v4,
};

use crate::cases::{self, Case, Program};

/// Four bytes that encode the tables; see `tests/fuzz/src/decode_input.rs`.
fn input_head(case: &Case) -> [u8; 4] {
    let config = case.tables.config.unwrap_or_default();
    let mut flags = 0;
    for (bit, set) in [
        (1, case.tables.prefixes.keys().any(|(_, net)| !is_v4(net))),
        (2, !is_v4(&config.local[0])),
        (4, config.flags & CONFIG_VXLAN != 0),
        (8, config.flags & CONFIG_GATEWAY != 0),
    ] {
        if set {
            flags |= bit;
        }
    }
    [flags, 0, 0, 0]
}

#[test]
#[ignore = "writes files: MC_SEEDS names the directory"]
fn write_fuzz_seeds() {
    let dir = PathBuf::from(std::env::var_os("MC_SEEDS").expect("MC_SEEDS names a directory"));
    for (number, case) in cases::all().into_iter().enumerate() {
        let target = match case.program {
            Program::ToRemote => "to_remote",
            Program::FromUnderlay => "from_underlay",
            // Too small a program for a fuzz target.
            Program::FromTunnel | Program::FromRemote | Program::ToPod | Program::FromPod => continue,
        };
        let dir = dir.join(target);
        fs::create_dir_all(&dir).expect("a directory");
        let mut input = input_head(&case).to_vec();
        input.extend(&case.frame);
        fs::write(dir.join(format!("case-{number:04}")), input).expect("a file");
    }
}
