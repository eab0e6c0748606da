#!/bin/sh
# RUSTC_WORKSPACE_WRAPPER of the fuzz targets: coverage counters for libFuzzer in this workspace's crates.
# Stable compilers have the pass; dependencies stay as they are, and build scripts run without libFuzzer.
case " $* " in
*" --crate-name build_script"*) exec "$@" ;;
esac
exec "$@" -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions=on
