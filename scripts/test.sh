#!/bin/sh
# Runs every test: fetches the real models once (about 850 MB, kept in the user's cache), then the debug and release
# test suites, and the aarch64 kernels under emulation where the tools for it are. Needs Rust, Python 3 with pip, and a C
# compiler; scripts/test-aarch64.sh says what the aarch64 tests need.
#
#   scripts/test.sh            all of it
#   scripts/test.sh release    the release suite only (quicker)
set -eu
cd "$(dirname "$0")/.."

echo "== models"
cargo build --locked --release --bin smelt
for model in smollm2 gemma3-270m qwen2.5-coder-0.5b; do
    ./target/release/smelt pull "$model"
done

echo "== release tests"
cargo test --locked --release --workspace --no-fail-fast
if [ "${1:-all}" != release ]; then
    echo "== debug tests: overflow checks and debug assertions"
    cargo test --locked --workspace --no-fail-fast
fi
if ! uname -m | grep -qx "aarch64\|arm64"; then
    if missing=$(scripts/test-aarch64.sh missing); then
        scripts/test-aarch64.sh
    else
        echo "== aarch64: NOT TESTED, $missing"
    fi
fi
echo "== formatting and lints"
cargo fmt --all --check
cargo clippy --locked --workspace --all-targets -- -D warnings
echo "== documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace
