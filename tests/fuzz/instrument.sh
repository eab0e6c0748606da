#!/bin/sh
# RUSTC_WORKSPACE_WRAPPER of the fuzz targets: adds libFuzzer's coverage counters to the crates of this workspace.
# The pass is part of stable compilers; dependencies and build scripts are not instrumented.
case " $* " in
*" --crate-name build_script"*) exec "$@" ;;
esac
exec "$@" -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions=on
