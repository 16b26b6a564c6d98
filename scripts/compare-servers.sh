#!/bin/sh
# Tokens per second of `smelt serve` and of llama.cpp's `llama-server` with 8 clients, in turns on the same machine:
#
#   scripts/compare-servers.sh PATH/llama-server MODEL.gguf [SECONDS]
#
# Needs a release build (or SMELT=path of the program) and Python 3. THREADS is for both, by default the processors.
set -eu
cd "$(dirname "$0")/.."
peer=$1
model=$2
seconds=${3:-120}
smelt=${SMELT:-target/release/smelt}
threads=${THREADS:-$(getconf _NPROCESSORS_ONLN)}
work=$(mktemp -d)
ours=
theirs=
finish() {
    for server in $ours $theirs; do
        kill "$server" 2> /dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
# ready URL PROCESS LOG
ready() {
    tries=0
    until python3 -c "import urllib.request; urllib.request.urlopen('$1/health')" 2> /dev/null; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ] || ! kill -0 "$2" 2> /dev/null; then
            cat "$3" >&2
            exit 1
        fi
        sleep 0.2
    done
}
first=$(port)
second=$(port)
# A context of 2048 for each of 8.
"$smelt" serve "$model" --port "$first" -t "$threads" -c 2048 --cache-tokens 16384 --parallel 8 2> "$work/ours" &
ours=$!
"$peer" -m "$model" --port "$second" -t "$threads" -c 16384 -np 8 > "$work/theirs" 2>&1 &
theirs=$!
ready "http://127.0.0.1:$first" "$ours" "$work/ours"
ready "http://127.0.0.1:$second" "$theirs" "$work/theirs"
python3 scripts/load.py "http://127.0.0.1:$first" --compare "http://127.0.0.1:$second" --rounds 4 --clients 8 \
    --seconds "$seconds" --leave 0
