#!/usr/bin/env python3
"""Kills clients and servers at random, and looks whether anything is the worse for it.

    scripts/kills.py target/release/smelt smollm2 --rounds 200

Each round starts clients of all kinds (streamed or not, long prompts and short ones, embeddings) as processes of their
own and kills, at a random moment, one of: a client (SIGKILL), the server (SIGTERM, after which it must end by itself with
code 0), the server (SIGKILL). After each kill of a client the server must come to rest with no page in use; after each
kill of the server a new one must start on the same model and give, at temperature 0, the answer that the first one gave. At
the end the model's file must be as it was, and no file may have come to its folder. Exit code 1 if anything of this is not
so. Needs Python alone.
"""

import argparse
import hashlib
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("smelt", help="the program")
parser.add_argument("model", help="as for `smelt serve`")
parser.add_argument("--rounds", type=int, default=200)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--file", type=pathlib.Path, help="the model's file, if it is to be compared [default: MODEL if it is one]")
args = parser.parse_args()
choose = random.Random(args.seed)
file = args.file or (pathlib.Path(args.model) if os.path.exists(args.model) else None)

# A client as a process of its own: its arguments are the port, the path and the body.
CLIENT = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=300)
connection.request("POST", sys.argv[2], sys.argv[3], {"content-type": "application/json"})
response = connection.getresponse()
while response.read1(1000):
    pass
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def state_of_files():
    if not file:
        return None
    digest = hashlib.sha256()
    with open(file, "rb") as source:
        while block := source.read(1 << 24):
            digest.update(block)
    return digest.hexdigest(), sorted(os.listdir(file.resolve().parent))


class Server:
    def __init__(self, log):
        self.port = free_port()
        command = [args.smelt, "serve", args.model, "--offline", "--port", str(self.port), "-c", "2048",
                   "--cache-tokens", "8192", "--parallel", "4", "--drain", "5"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait("a start", 120, lambda: self.get("/health")["status"] == "ok")

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def wait(self, what, seconds, done):
        end = time.time() + seconds
        while time.time() < end:
            assert self.process.poll() is None, f"the server ended by itself with {self.process.returncode}"
            try:
                if done():
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.02)
        raise AssertionError(f"{what} did not come within {seconds} s: {self.get('/slots')}")

    def answer(self):
        body = {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 12, "temperature": 0}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert response.status == 200, text
        return json.loads(text)["choices"][0]["message"]["content"]

    def client(self):
        words = " ".join(choose.choice(["sea", "ship", "hill", "green"]) for _ in range(choose.choice([3, 50, 1200])))
        if choose.random() < 0.15:
            path, body = "/v1/embeddings", {"input": [words] * choose.choice([1, 20])}
        else:
            path, body = "/v1/completions", {"prompt": words, "max_tokens": choose.choice([4, 400]), "ignore_eos": True,
                                             "stream": choose.random() < 0.5, "n": choose.choice([1, 1, 2])}
        command = [sys.executable, "-c", CLIENT, str(self.port), path, json.dumps(body)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def rests(self):
        slots = self.get("/slots")
        return not slots["slots"] and not slots["waiting"] and not slots["pages"]["running"]


def end(clients):
    for client in clients:
        client.kill()
        client.wait()


before = state_of_files()
counts = {"client": 0, "SIGTERM": 0, "SIGKILL": 0}
clients = []
with tempfile.TemporaryFile() as log:
    server = Server(log)
    try:
        expected = server.answer()
        for number in range(args.rounds):
            clients = [server.client() for _ in range(choose.randrange(1, 6))]
            time.sleep(choose.random() * choose.choice([0.1, 1.0]))
            kind = choose.choices(["client", "SIGTERM", "SIGKILL"], [2, 1, 1])[0]
            counts[kind] += 1
            if kind == "client":
                end(clients)
                server.wait("rest", 20, server.rests)
                assert server.answer() == expected, "the answer is another one"
                continue
            server.process.send_signal(signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
            code = server.process.wait(timeout=60)
            assert code == (0 if kind == "SIGTERM" else -signal.SIGKILL), f"{kind}: ended with {code}"
            end(clients)
            server = Server(log)
            assert server.answer() == expected, "the answer is another one"
    except Exception:
        log.seek(0)
        sys.stderr.write(log.read().decode(errors="replace")[-4000:])
        raise
    finally:
        end(clients)
        server.process.kill()
        server.process.wait()
    log.seek(0)
    assert b"panic" not in log.read(), "a panic was logged"
assert state_of_files() == before, "the model's file or its folder has changed"
print(f"{args.rounds} kills: {counts}; every restart gave the same answer{', the file is as it was' if before else ''}")
