#!/bin/sh
# Runs every test: fetches the real models once (about 850 MB, kept in the user's cache), then the debug and release
# test suites, and the aarch64 kernels under emulation where the tools for it are. Needs Rust, Python 3 with pip, and a C
# compiler; scripts/test-aarch64.sh says what the aarch64 tests need, scripts/check-macos.sh what the macOS check does.
#
#   scripts/test.sh            all of it
#   scripts/test.sh release    the release suite only (quicker)
#
# A stage that fails does not keep the later ones from running. The last lines are one for each stage and the sum of the
# tests; the exit code is not 0 if anything failed.
set -u
cd "$(dirname "$0")/.."

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
summary=$logs/summary
failed=0

# stage NAME COMMAND...: runs the command; its output is shown and kept.
stage() {
    name=$1
    shift
    echo "== $name"
    # A pipe ends with the status of its last command, so the first one's goes through a file.
    { "$@" 2>&1; echo $? > "$logs/status"; } | tee -a "$logs/output"
    if [ "$(cat "$logs/status")" -eq 0 ]; then
        echo "ok      $name" >> "$summary"
    else
        echo "FAILED  $name" >> "$summary"
        failed=1
    fi
}

fetch_models() {
    for model in smollm2 gemma3-270m qwen2.5-coder-0.5b; do
        cargo run --locked --release --bin smelt -- pull "$model" || return
    done
}

# The simulator of Metal compiles kernels with clang. Where this may install it, it does.
clang() {
    for name in clang++-19 clang++-20 clang++-21 clang++-18 clang++-17; do
        command -v "$name" > /dev/null && return 0
    done
    return 1
}
install_clang() {
    apt-get update -q && apt-get install -y -q --no-install-recommends clang-19 libclang-rt-19-dev lld-19
}

stage "models" fetch_models
if ! clang && [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
    # Where that fails, the summary says what was not run.
    install_clang || true
fi
if ! clang; then
    echo "NOT RUN metal, metal-sim and sim-ptx tests, missing: clang (Debian: clang-19 libclang-rt-19-dev lld-19)" >> "$summary"
fi
# The kernels of the CUDA backend are compiled without a GPU, by the compiler of the Python package index, which goes into
# the user's cache like the models. Where it cannot be had, or is not for this machine, the summary says what was not run.
nvrtc=${SMELT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/smelt}/nvrtc
if ! ls "$nvrtc"/nvidia/cu13/lib/libnvrtc.so.* > /dev/null 2>&1; then
    python3 -m pip install -q --no-deps --target "$nvrtc" nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 || true
fi
if ls "$nvrtc"/nvidia/cu13/lib/libnvrtc.so.* > /dev/null 2>&1; then
    export SMELT_NVRTC="$nvrtc/nvidia/cu13/lib"
    stage "CUDA kernels compile" cargo test --locked --release -p smelt-cuda --test compile -- --ignored
else
    echo "NOT RUN compilation of the CUDA kernels, missing: the Python package nvidia-cuda-nvrtc" >> "$summary"
fi
if ! command -v nvidia-smi > /dev/null; then
    echo "NOT RUN operations on the CUDA backend, missing: an NVIDIA GPU (scripts/test-cuda.sh)" >> "$summary"
fi
# suite [FLAG]: every test that this machine can run.
suite() {
    if clang; then
        cargo test --locked "$@" --workspace --no-fail-fast
        return
    fi
    cargo test --locked "$@" --workspace --no-fail-fast \
        --exclude smelt-metal --exclude smelt-metal-sim --exclude smelt-sim-ptx --exclude smelt-tests
    others=$?
    # The backends whose names begin with c: cpu and cuda.
    SMELT_TEST_BACKEND=c cargo test --locked "$@" -p smelt-tests --no-fail-fast \
        --test ops --test tiny --test goldens --test cuda -- \
        --skip metal --skip strict --skip edges:: --skip invariants:: --skip barriers:: --skip cuts:: --skip threads:: --skip sweep:: && return "$others"
}
stage "release tests" suite --release
if [ "${1:-all}" != release ]; then
    stage "debug tests: overflow checks and debug assertions" suite
fi
if [ -e /dev/nvidiactl ] && clang; then
    on_nvidia() {
        cargo test --locked --release -p smelt-sim-ptx --test gpu -- --ignored &&
            SMELT_TEST_BACKEND=metal-ptx cargo test --locked --release -p smelt-tests --test ops
    }
    stage "Metal kernels on an NVIDIA GPU" on_nvidia
else
    echo "NOT RUN Metal kernels on an NVIDIA GPU, missing: the GPU or clang" >> "$summary"
fi
if ! uname -m | grep -qx "aarch64\|arm64"; then
    if missing=$(scripts/test-aarch64.sh missing); then
        stage "aarch64 tests, under emulation" scripts/test-aarch64.sh
    else
        echo "NOT RUN aarch64 tests, $missing" >> "$summary"
    fi
fi
if missing=$(scripts/check-macos.sh prepare); then
    stage "macOS: the Metal device" scripts/check-macos.sh
else
    echo "NOT RUN macOS check, $missing" >> "$summary"
fi
stage "formatting" cargo fmt --all --check
stage "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
stage "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace

echo "== summary"
cat "$summary"
awk '/^test result:/ {
         for (i = 2; i <= NF; i++) {
             if ($i ~ /^passed/) passed += $(i - 1)
             if ($i ~ /^failed/) bad += $(i - 1)
             if ($i ~ /^ignored/) ignored += $(i - 1)
         }
     }
     END { printf "%d passed, %d failed, %d ignored\n", passed, bad, ignored }' "$logs/output"
exit "$failed"
