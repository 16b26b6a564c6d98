#!/bin/sh
# Tests and measures the CUDA backend on a machine with an NVIDIA GPU, in a few minutes. The programs may have been built
# elsewhere: put the test of operations and the benchmark as `ops` and `bench` into a folder, and name it.
#
#   scripts/test-cuda.sh [FOLDER] [MODEL.gguf ...]
set -eu
cd "$(dirname "$0")/.."

# Some tests of the harness are about Metal alone, and need clang.
skip="--skip metal --skip strict"
folder=${1:-}
[ $# -eq 0 ] || shift
# Unquoted: words.
# shellcheck disable=SC2086
if [ -n "$folder" ]; then
    SMELT_TEST_BACKEND=cuda "$folder/ops" --test-threads 4 $skip
    "$folder/ops" --ignored on_cuda
    ops=$folder/ops
    bench=$folder/bench
else
    cargo test --locked --release -p smelt-tests --test cuda -- --ignored
    SMELT_TEST_BACKEND=cuda cargo test --locked --release -p smelt-tests --test ops -- --test-threads 4 $skip
    cargo test --locked --release -p smelt-tests --test ops -- --ignored on_cuda
    cargo build --locked --release -p smelt-cuda --example bench
    bench=target/release/examples/bench
    ops="cargo test --locked --release -p smelt-tests --test ops --"
fi
# The sanitizer of the CUDA toolkit, over kernels that are compiled by now. Tests of errors provoke some of the driver's.
if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck synccheck; do
        # shellcheck disable=SC2086
        SMELT_TEST_BACKEND=cuda compute-sanitizer --target-processes all --tool "$tool" --report-api-errors no \
            --error-exitcode 1 $ops --test-threads 4 $skip
    done
fi
for model; do
    echo "== $model"
    "$bench" "$model" tg:128 tg:16@16384 tg:16x32 pp:512
done
