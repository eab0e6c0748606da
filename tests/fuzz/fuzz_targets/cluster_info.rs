//! See `mc_fuzz::cluster_info`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::cluster_info(data));
