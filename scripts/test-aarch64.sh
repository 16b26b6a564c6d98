#!/bin/sh
# Tests the aarch64 kernels (NEON, dot product, int8 matrix product) on any Linux machine: builds the tests for aarch64 and
# runs them under QEMU's user-mode emulation, which executes the instructions of all levels. On an aarch64 machine
# scripts/test.sh runs them anyway.
#
#   scripts/test-aarch64.sh            all of it
#   scripts/test-aarch64.sh missing    says what is missing to run it, and runs nothing; the status tells whether it could
#
# Needs, and installs none of it: Rust's standard library for aarch64-unknown-linux-gnu, and a cross linker with its C
# library and QEMU's user-mode emulation, on Debian the packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
# Speed says nothing under emulation; only results are tested.
set -eu
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
libraries=/usr/aarch64-linux-gnu

missing=
need() {
    missing="$missing${missing:+, }$1"
}
command -v aarch64-linux-gnu-gcc >/dev/null || need "aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu)"
[ -e "$libraries/lib/ld-linux-aarch64.so.1" ] || need "a C library for aarch64 (Debian: libc6-dev-arm64-cross)"
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
[ -n "$emulator" ] || need "qemu-aarch64 (Debian: qemu-user)"
[ -n "$(find "$(rustc --print sysroot 2>/dev/null)/lib/rustlib/$target/lib" -name 'libstd-*' 2>/dev/null)" ] ||
    need "Rust's standard library for $target (rustup target add $target)"
if [ -n "$missing" ]; then
    echo "missing: $missing"
    exit 1
fi
[ "${1:-all}" != missing ] || exit 0

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$emulator -L $libraries -cpu max"
# Links against the C library of the cross compiler also where build scripts compile C.
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc

# The simulator of Metal compiles for the machine that clang runs on.
export SMELT_TEST_BACKEND=cpu

# One build, so that it uses all cores.
tests() {
    cargo test --locked --target $target "$@"
}
echo "== aarch64: build"
tests -p smelt-cpu -p smelt-tests --lib --test ops --test tiny --no-run
echo "== aarch64: kernels, every level against the reference"
tests -p smelt-cpu --lib
echo "== aarch64: operations"
# Those that take minutes under emulation are left out: products and attention at every level are what the kernels' own
# tests compare bit by bit.
tests -p smelt-tests --test ops -- \
    elementwise:: norm:: rows:: cache:: shape:: support:: errors:: attention::soft fused::gate matmul::a_value
# The best level is the default; one that the emulator lacked would be refused.
for level in neon-i8mm neon-dotprod neon; do
    echo "== aarch64: tiny models, $level"
    SMELT_CPU=$level tests -p smelt-tests --test tiny -- conversations reference
done
