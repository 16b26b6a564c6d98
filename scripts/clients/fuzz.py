"""Made-up request bodies: whatever is sent, no answer is an error of the server's. BASE is its address."""

import copy
import http.client
import json
import os
import random
import time
import urllib.parse

BASE = urllib.parse.urlparse(os.environ["BASE"])
SECONDS = float(os.environ.get("SECONDS", "60"))
SEED = int(os.environ.get("SEED", "1"))
random.seed(SEED)

VALID = {
    "/v1/chat/completions": {
        "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
        "max_tokens": 3, "temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 2, "seed": 1,
        "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2,
        "logit_bias": {"5": -100}, "stop": ["x"], "presence_penalty": 0.5, "frequency_penalty": 0.5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}}},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto", "reasoning_effort": "low", "chat_template_kwargs": {"x": 1},
    },
    "/v1/completions": {"prompt": ["a", [5, 6]], "max_tokens": 2, "echo": True, "logprobs": 2, "best_of": 1, "suffix": "",
                        "grammar": "start: /[a-z]{3}/"},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                  {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "c", "output": "b"}],
        "instructions": "c", "max_output_tokens": 3, "temperature": 1.0, "stream": True, "store": True,
        "include": ["message.output_text.logprobs"], "top_logprobs": 1, "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "tool_choice": "auto",
        "previous_response_id": None, "truncation": "disabled", "metadata": {},
    },
    "/v1/embeddings": {"input": ["a", "b c"], "encoding_format": "base64", "dimensions": 8, "user": "me"},
    "/tokenize": {"content": "a", "add_special": True, "parse_special": False, "with_pieces": True},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/apply-template": {"messages": [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}]},
}
ODD = [
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 2**31, 2**63, -(2**63), 2**64, "", "\0", "\ud83d", "x" * 5000, "{{ 7*7 }}",
    "<|im_end|>", "\u202e", [], {}, [[]], {"": {}}, [None] * 50, {"a": {"a": {"a": []}}}, "中" * 300, "https://example.com",
    # Schemas and grammars that are large, deep, or without an end.
    {"type": "object", "properties": {f"p{n}": {} for n in range(3000)}}, {"required": ["a"] * 3000}, {"$ref": "#"},
    {"$defs": {str(n): {"items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(1500)}, "$ref": "#/$defs/0"},
    {"type": "integer", "multipleOf": 1000003}, {"type": "string", "pattern": "a*" * 1500}, {"enum": list(range(3000))},
    {"type": "regex", "regex": "(a|b)*a(a|b){20}"}, {"type": "regex", "regex": "a*" * 3000}, {"type": "grammar", "grammar": "start: start"},
    "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(1000)) + 'r1000: "x"', "start: " + " | ".join(f'"w{n}"' for n in range(1200)),
]


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, path + (key,))


def mutated(body):
    body = json.loads(json.dumps(body))
    for _ in range(random.choice([1, 1, 2, 3, 6])):
        path = random.choice(list(places(body)))
        if not path:
            if random.random() < 0.1:
                return copy.deepcopy(random.choice(ODD))
            body[random.choice(["x", "user", "model", "n", "stop"])] = copy.deepcopy(random.choice(ODD))
            continue
        target = body
        for key in path[:-1]:
            target = target[key]
        action = random.random()
        if action < 0.3:
            del target[path[-1]]
        elif action < 0.9:
            target[path[-1]] = copy.deepcopy(random.choice(ODD))
        elif isinstance(target, list):
            target.extend([target[path[-1]]] * random.choice([1, 30]))
        if not isinstance(body, (dict, list)):
            break
    return body


def bytes_of(body):
    text = json.dumps(body).encode()
    chance = random.random()
    if chance < 0.05:
        return text[: random.randrange(len(text) + 1)]
    if chance < 0.1:
        at = random.randrange(len(text) + 1)
        return text[:at] + bytes(random.randrange(256) for _ in range(5)) + text[at:]
    return text


counts = {}
start = time.time()
number = 0
while time.time() - start < SECONDS:
    path = random.choice(list(VALID))
    subset = {k: v for k, v in VALID[path].items() if random.random() < 0.7 or k in ("messages", "max_tokens", "prompt", "max_output_tokens", "input")}
    body = bytes_of(mutated(subset))
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=120)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        if random.random() < 0.05:
            continue  # and leave
        response = connection.getresponse()
        # An answer without a limit of tokens would take its time.
        response.read(20_000)
    finally:
        connection.close()
    number += 1
    counts[response.status] = counts.get(response.status, 0) + 1
    # Full is no error, where it says when to come again.
    full = response.status == 503 and response.getheader("retry-after")
    assert response.status < 500 or full, f"seed {SEED}, request {number}: {response.status} for {path} {body[:2000]!r}"
print(f"{number} requests, by status: {counts}")
assert counts.get(200, 0) > 10 and counts.get(400, 0) > 10, "most kinds were not reached"
for tries in range(200):
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=120)
    connection.request("GET", "/slots")
    slots = json.loads(connection.getresponse().read())
    connection.close()
    if not slots["slots"] and not slots["pages"]["running"]:
        break
    time.sleep(0.1)
else:
    raise AssertionError(f"pages did not come back: {slots}")
