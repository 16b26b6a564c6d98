#!/bin/sh
# Checks everything that is compiled for macOS alone, the Metal device above all, on any Linux machine: type-checks and lints
# it, links the Metal crate, and type-checks the program. Nothing can be run: that takes a Mac, where this builds
# the program and runs the device's tests.
#
#   scripts/check-macos.sh            all of it
#   scripts/check-macos.sh prepare    fetches what is missing, or says what cannot be had; the status tells whether it could
#   scripts/check-macos.sh program    links the program, too (minutes)
#
# Needs ld64.lld and clang, on Debian the packages lld-19 and clang-19. Fetches Rust's standard library for
# aarch64-apple-darwin through rustup, and, once, into the user's cache, the list of the symbols of macOS's C library with
# its headers, which a package of the Python registry carries (100 MB). For Apple's frameworks the lists in scripts/macos
# hold what we use: a misspelt symbol does not link.
set -eu
cd "$(dirname "$0")/.."
target=aarch64-apple-darwin

if [ "$(uname -s)" = Darwin ]; then
    [ "${1:-all}" != prepare ] || exit 0
    cargo build --locked
    exec cargo test --locked -p smelt-metal --test device
fi

first() {
    for name in "$@"; do
        command -v "$name" && return 0
    done
    return 1
}
linker=$(first ld64.lld-19 ld64.lld-20 ld64.lld-21 ld64.lld-18 ld64.lld-17 ld64.lld || true)
compiler=$(first clang-19 clang-20 clang-21 clang-18 clang-17 clang || true)
archiver=$(first llvm-ar-19 llvm-ar-20 llvm-ar-21 llvm-ar-18 llvm-ar-17 llvm-ar ar || true)
package=ziglang==0.13.0
sdk=${SMELT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/smelt}/macos-sdk

# Lays out the C library's symbols and headers as Apple's SDK has them.
fetch_sdk() {
    part=$sdk.part.$$
    mkdir -p "$part/usr/lib" || return
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$part" "$package" >&2 &&
        python3 - "$part" <<'PYTHON' && { mv "$part" "$sdk" 2>/dev/null || rm -rf "$part"; }
import pathlib, sys, zipfile

part = pathlib.Path(sys.argv[1])
wheel = next(part.glob("*.whl"))
headers = "ziglang/lib/libc/include/any-macos-any/"
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith(headers) and not name.endswith("/"):
            path = part / "usr/include" / name[len(headers):]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
    symbols = archive.read("ziglang/lib/libc/darwin/libSystem.tbd")
for name in ["System", "c", "m"]:
    (part / f"usr/lib/lib{name}.tbd").write_bytes(symbols)
wheel.unlink()
PYTHON
    status=$?
    rm -rf "$part"
    return $status
}

missing=
need() {
    missing="$missing${missing:+, }$1"
}
[ -n "$linker" ] || need "ld64.lld (Debian: lld-19)"
[ -n "$compiler" ] || need "clang (Debian: clang-19)"
if [ -z "$missing" ]; then
    libraries=$(rustc --print sysroot)/lib/rustlib/$target/lib
    if [ -z "$(find "$libraries" -name 'libstd-*' 2>/dev/null)" ]; then
        rustup target add "$target" >&2 || need "Rust's standard library for $target (rustup target add $target)"
    fi
    if [ ! -d "$sdk" ]; then
        fetch_sdk || need "the symbols of macOS's C library (pip download $package)"
    fi
fi
if [ -n "$missing" ]; then
    echo "missing: $missing"
    exit 1
fi
[ "${1:-all}" != prepare ] || exit 0

# The frameworks' lists, where a linker looks for them: always the same place, since flags are part of what cargo compares.
stubs=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/macos-stubs
rm -rf "$stubs"
mkdir -p "$stubs/usr/lib" "$stubs/System/Library/Frameworks"
for list in scripts/macos/*.tbd; do
    name=$(basename "$list" .tbd)
    case $name in
    lib*) cp "$list" "$stubs/usr/lib/" ;;
    *)
        mkdir -p "$stubs/System/Library/Frameworks/$name.framework"
        cp "$list" "$stubs/System/Library/Frameworks/$name.framework/"
        ;;
    esac
done
export SDKROOT="$sdk"
export CC_aarch64_apple_darwin="$compiler" AR_aarch64_apple_darwin="$archiver"
export CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER="$linker"
flags="-Clinker-flavor=ld64.lld -Clink-arg=-L$stubs/usr/lib -Clink-arg=-F$stubs/System/Library/Frameworks"
export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="$flags"

echo "== macOS: the Metal device, checked and linked"
cargo clippy --locked --target $target -p smelt-metal --all-targets -- -D warnings
# A dynamic library of Rust keeps every public function, so that all their symbols have to be found.
cargo rustc --locked --target $target -p smelt-metal --crate-type dylib
echo "== macOS: the program"
if [ "${1:-all}" = program ]; then
    cargo build --locked --target $target
else
    cargo check --locked --target $target
fi
