#!/usr/bin/env python3
"""Load for a running server: clients at once, mixed lengths, some of whom leave early.

    scripts/load.py http://127.0.0.1:8080 --clients 32 --seconds 300

Prints the times to the first token and between tokens, tokens per second, and, where the server is ours, its pages at the
end. With --pid, the server's memory too: pages of the KV cache are committed as they are first used, so it grows until the
cache is full (the server's log says how large it is), and must be flat from then on. Exit code 1 if anything failed that
was not meant to. Needs Python alone.

Other servers with OpenAI's API can be measured too: with --compare URL both get the same load in turns (--rounds), so that
whatever else the machine does meets both. scripts/compare-servers.sh starts the two and does this.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse
import urllib.request

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("url")
parser.add_argument("--compare", metavar="URL")
parser.add_argument("--rounds", type=int, default=1, help="turns of each server, where two are compared")
parser.add_argument("--clients", type=int, default=32)
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--leave", type=float, default=0.2, help="share of the requests that are left early")
parser.add_argument("--tokens", type=int, help="tokens of each answer [default: 8 to 128]")
parser.add_argument("--words", type=int, help="words of each prompt [default: 5 to 500]")
parser.add_argument("--pid", type=int, help="the server's process, for its memory")
args = parser.parse_args()

WORDS = "the sea and a ship with seven sails went over green hills while nobody knew why it was so late".split()


class Load:
    def __init__(self, url):
        self.url = urllib.parse.urlparse(url)
        self.lock = threading.Lock()
        self.first, self.between, self.errors = [], [], []
        self.tokens = self.requests = self.left = 0
        self.end = self.seconds = 0.0
        self.seed = 0
        self.rates = []

    def client(self, seed):
        choose = random.Random(seed)
        while time.time() < self.end:
            try:
                self.request(choose)
            except Exception as error:  # whatever it is, it counts
                with self.lock:
                    self.errors.append(repr(error))
                time.sleep(0.2)

    def request(self, choose):
        words = args.words or choose.choice([5, 20, 80, 500])
        most = args.tokens or choose.choice([8, 32, 64, 128])
        text = " ".join(choose.choice(WORDS) for _ in range(words))
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": most, "temperature": 0.8, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True}}
        leaves = choose.random() < args.leave
        after = choose.randrange(0, most)
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=120)
        start = last = time.time()
        count, exact, times, done = 0, None, [], False
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            if leaves and after == 0:
                with self.lock:
                    self.left += 1
                return
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {response.read(500)!r}")
            for line in response:
                if line == b"data: [DONE]\n":
                    done = True
                    break
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                if usage := event.get("usage"):
                    exact = usage["completion_tokens"]
                if not any(choice["delta"].get("content") for choice in event["choices"]):
                    continue
                now = time.time()
                times.append(now - last)
                last = now
                count += 1
                if leaves and count >= after:
                    break
        finally:
            connection.close()
        with self.lock:
            self.requests += 1
            # Some tokens have no text of their own.
            self.tokens += exact or count
            self.left += leaves
            self.first += times[:1]
            self.between += times[1:]
            if not leaves and not done:
                self.errors.append("an answer had no end")

    def run(self, seconds):
        """A turn of the load."""
        start, before = time.time(), self.tokens
        self.end = start + seconds
        threads = [threading.Thread(target=self.client, args=(self.seed + n,)) for n in range(args.clients)]
        self.seed += args.clients
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds += time.time() - start
        self.rates.append((self.tokens - before) / (time.time() - start))

    def report(self):
        print(f"{self.url.geturl()}: {args.clients} clients, {self.seconds:.0f} s, {self.requests} requests, {self.left} left early")
        print(f"  tokens per second   {self.tokens / self.seconds:.1f}")
        for name, times in [("first token", self.first), ("between tokens", self.between)]:
            times.sort()
            at = lambda share: times[min(len(times) - 1, int(share * len(times)))] * 1000 if times else float("nan")
            print(f"  {name:<18}  p50 {at(0.5):.0f} ms, p99 {at(0.99):.0f} ms")
        for error in sorted(set(self.errors))[:5]:
            print(f"  error, {self.errors.count(error)} times: {error}")


def memory():
    with open(f"/proc/{args.pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))


class Memory(threading.Thread):
    """Looks at the memory of the server every few seconds."""

    def __init__(self):
        super().__init__(daemon=True)
        self.samples, self.over = [memory()], threading.Event()

    def run(self):
        while not self.over.wait(2):
            self.samples.append(memory())

    def report(self):
        self.over.set()
        self.join()
        samples = self.samples + [memory()]
        at = lambda share: samples[int(share * (len(samples) - 1))]
        print(f"  memory in MiB: {samples[0]} before, {at(0.25)} after a quarter, {at(0.5)} a half, {at(0.75)} three, {samples[-1]} at the end")


watch = Memory() if args.pid else None
if watch:
    watch.start()
load, other = Load(args.url), Load(args.compare) if args.compare else None
for turn in range(args.rounds):
    for one in [other, load] if turn % 2 else [load, other]:
        if one:
            one.run(args.seconds / args.rounds)
for one in [other, load]:
    if one:
        one.report()
if other:
    ratios = ", ".join(f"{ours / theirs:.2f}" for ours, theirs in zip(load.rates, other.rates))
    print(f"  {sum(load.rates) / sum(other.rates):.2f} times {args.compare}, in turns {ratios}")
if watch:
    watch.report()
failed = bool(load.errors)
try:
    for _ in range(100):
        slots = json.loads(urllib.request.urlopen(f"{args.url}/slots").read())
        if not slots["slots"] and not slots["pages"]["running"]:
            break
        time.sleep(0.1)
    print(f"  at the end {len(slots['slots'])} sequences, {slots['waiting']} waiting, pages {slots['pages']}")
    failed |= bool(slots["slots"] or slots["pages"]["running"])
except (OSError, KeyError, TypeError):
    pass
sys.exit(failed)
