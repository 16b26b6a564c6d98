#!/bin/sh
# Drives the server with the clients that people use, unmodified: the openai package, litellm, LangChain, and the llm
# program. Needs a release build (or SMELT=path of the program), Python 3.10 or newer with venv, and a package index.
#
#   scripts/test-clients.sh              all of it
#   scripts/test-clients.sh page         only the page, in headless Chromium (the system's, or fetched by playwright)
#   scripts/test-clients.sh fuzz         only schemathesis and made-up bodies
#   scripts/test-clients.sh router       only smg in front of two servers, one of which is killed
#
# The Python packages go into a folder of their own (CLIENTS_VENV, by default one that is removed again).
set -eu
cd "$(dirname "$0")/.."

smelt=${SMELT:-target/release/smelt}
what=${1:-all}
if [ ! -x "$smelt" ]; then
    echo "no program at $smelt: build it with 'cargo build --release', or set SMELT" >&2
    exit 2
fi
smelt=$(realpath "$smelt")
work=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2> /dev/null || true
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

venv=${CLIENTS_VENV:-$work/venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}
port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# start MODEL: a server; its address is in $url, its process in $server.
start() {
    number=$(port)
    url=http://127.0.0.1:$number
    "$smelt" serve "$1" --port "$number" -c "${context:-4096}" --cache-tokens 16384 2> "$work/server.log" &
    server=$!
    tries=0
    until python3 -c "import urllib.request; urllib.request.urlopen('$url/health')" 2> /dev/null; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ] || ! kill -0 "$server" 2> /dev/null; then
            cat "$work/server.log" >&2
            exit 1
        fi
        sleep 0.2
    done
}
stop() {
    kill "$server"
    wait "$server"
    server=
}

if [ "$what" = all ] || [ "$what" = clients ]; then
    install openai litellm langchain-openai llm
    start qwen2.5-coder-0.5b
    BASE=$url/v1 MODEL=qwen2.5-coder-0.5b PATH="$venv/bin:$PATH" "$venv/bin/python" scripts/clients/clients.py
    stop
fi
if [ "$what" = all ] || [ "$what" = fuzz ]; then
    install schemathesis
    # Answers without a limit of tokens end at the context.
    context=512
    start smollm2
    unset context
    BASE=$url "$venv/bin/python" scripts/clients/fuzz.py
    "$venv/bin/schemathesis" run "$url/openapi.json" --url "$url" --checks not_a_server_error,status_code_conformance,response_schema_conformance \
        --max-examples 40 --request-timeout 60 --suppress-health-check all --exclude-path-regex '^/v1/((chat/)?completions|responses$)'
    # Answers take time, so fewer of them.
    "$venv/bin/schemathesis" run "$url/openapi.json" --url "$url" --checks not_a_server_error \
        --max-examples 15 --request-timeout 120 --suppress-health-check all --include-path-regex '^/v1/((chat/)?completions|responses$)'
    if grep -i panic "$work/server.log"; then exit 1; fi
    stop
fi
if [ "$what" = all ] || [ "$what" = page ]; then
    install playwright
    # The system's own, if there is one.
    CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v google-chrome || true)}
    if [ -n "$CHROMIUM" ]; then
        export CHROMIUM
    else
        unset CHROMIUM
        "$venv/bin/python" -m playwright install --with-deps --only-shell chromium
    fi
    start smollm2
    BASE=$url SMELT=$smelt "$venv/bin/python" scripts/clients/page.py
    stop
fi
if [ "$what" = all ] || [ "$what" = router ]; then
    install smg
    SMELT=$smelt VENV=$venv "$venv/bin/python" scripts/clients/router.py
fi
echo "ok"
