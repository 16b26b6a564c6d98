"""The router smg in front of two servers, one of which is killed: SMELT is the program, VENV has smg."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

SMELT, VENV = os.environ["SMELT"], os.environ["VENV"]


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as response:
        return response.read().decode()


def wait(url, process, seconds=120):
    end = time.time() + seconds
    while time.time() < end:
        assert process.poll() is None, f"{process.args} ended"
        try:
            return get(url)
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{url} did not come")


def ask(url, number):
    body = {"model": "smollm2", "messages": [{"role": "user", "content": f"Count from {number}."}], "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())["usage"]["completion_tokens"]


def finished(url):
    lines = [line for line in get(f"{url}/metrics").splitlines() if line.startswith("smelt_requests_finished_total")]
    return int(float(lines[0].split()[-1]))


processes = []
try:
    workers = []
    for _ in range(2):
        url = f"http://127.0.0.1:{port()}"
        command = [SMELT, "serve", "smollm2", "--port", url.rsplit(":", 1)[1], "-c", "2048", "-t", "1", "--cache-tokens", "8192"]
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        workers.append(url)
    for url, process in zip(workers, processes):
        wait(f"{url}/health", process)
    number = port()
    router = f"http://127.0.0.1:{number}"
    command = [f"{VENV}/bin/smg", "launch", "--worker-urls", *workers, "--policy", "round_robin", "--host", "127.0.0.1",
               "--port", str(number), "--prometheus-port", str(port())]
    processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    wait(f"{router}/health", processes[2])
    end = time.time() + 60
    while True:
        try:
            ask(router, 0)
            break
        except (OSError, urllib.error.HTTPError) as error:
            if time.time() > end:
                raise AssertionError(f"the router has no workers: {error}") from error
            time.sleep(1)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda n: ask(router, n), range(16)))
    spread = [finished(url) for url in workers]
    assert min(spread) >= 4, f"requests were not spread: {spread}"
    processes[0].send_signal(signal.SIGKILL)
    failures = 0
    for number in range(20):
        try:
            ask(router, number)
        except (OSError, urllib.error.HTTPError):
            failures += 1
            time.sleep(0.5)
    print(f"spread {spread}; {failures} of 20 failed after one of two was killed")
    # The router notices; the last ones all come through.
    assert all(ask(router, n) for n in range(8))
finally:
    for process in processes:
        process.kill()
print("ok", sys.argv[0])
