#!/bin/sh
# Tests and measures the CUDA backend on a machine with NVIDIA GPUs, in a few minutes. The programs may have been built elsewhere:
# put the test of operations, that of whole models and the benchmark as `ops`, `cuda` and `bench` into a folder, and name it. Whole
# models are judged by files in the source tree: the test looks for them where it was built, and for the real model where
# SMELT_TEST_SMOLLM2 says. With two GPUs those tests run that need two, and models are measured on both.
#
#   scripts/test-cuda.sh [FOLDER] [MODEL.gguf ...]
set -eu
cd "$(dirname "$0")/.."

# Some tests of the harness are about Metal alone, and need clang.
skip="--skip metal --skip strict --skip edges:: --skip invariants:: --skip barriers:: --skip cuts:: --skip threads:: --skip sweep::"
folder=${1:-}
[ $# -eq 0 ] || shift
if [ -z "$folder" ]; then
    # The names of the test programs end with a hash: cargo says where they are.
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    for test in ops cuda; do
        cargo test --locked --release --no-run -p smelt-tests --test $test
        program=$(cargo test --locked --release --no-run -p smelt-tests --test $test 2>&1 | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
        ln -s "$(realpath "$program")" "$folder/$test"
    done
    cargo build --locked --release -p smelt-cuda --example bench
    ln -s "$PWD/target/release/examples/bench" "$folder/bench"
fi
# One test at a time: each engine takes the memory that it finds.
models="$folder/cuda --ignored --test-threads 1"
# Unquoted: words.
# shellcheck disable=SC2086
{
    SMELT_TEST_BACKEND=cuda "$folder/ops" --test-threads 4 $skip
    "$folder/ops" --ignored on_cuda
    $models --skip two_gpus
}
# The sanitizer of the CUDA toolkit, over kernels that are compiled by now. Tests of errors provoke some of the driver's.
if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck synccheck; do
        # shellcheck disable=SC2086
        SMELT_TEST_BACKEND=cuda compute-sanitizer --target-processes all --tool "$tool" --report-api-errors no \
            --error-exitcode 1 "$folder/ops" --test-threads 4 $skip
    done
fi
if [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
    # Others may share the host's GPUs: no multicast.
    NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
    export NCCL_NVLS_ENABLE
    $models two_gpus
    shares="layer:2 tensor:2"
else
    echo "one GPU: what needs two was not tested"
    shares=
fi
for model; do
    echo "== $model"
    "$folder/bench" "$model" tg:128 tg:16@16384 tg:16x32 pp:512
    for share in $shares; do
        echo "== $model, $share"
        "$folder/bench" "$model" "$share" tg:128 pp:512
    done
done
