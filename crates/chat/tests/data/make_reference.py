#!/usr/bin/env python3
"""Renders chat templates with Python's transformers, for the tests of this crate to compare with.

    python make_reference.py TEMPLATES_FOLDER [--full FOLDER]

Needs `transformers` and `jinja2`. Reads conversations.json and expressions.txt beside this file and writes
reference.json (per template and conversation the length in bytes and the start of the SHA-256 of the rendered
text, or the error), rendered/ (a few texts in full) and expressions.json (the texts of the expressions).
`--full` also writes every rendered text to a folder, to look at differences.
"""

import copy
import datetime
import hashlib
import json
import pathlib
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils as utils

HERE = pathlib.Path(__file__).parent
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
# Digits of the hash that are kept.
DIGITS = 16
FULL = [
    ("Qwen-Qwen3-0.6B", "reasoning_and_tool_call"),
    ("Qwen-Qwen2.5-7B-Instruct", "parallel_tool_calls"),
    ("meta-llama-Llama-3.1-8B-Instruct", "tool_call_empty_content"),
    ("google-gemma-2-2b-it", "plain"),
    ("HuggingFaceTB-SmolLM3-3B", "system"),
    ("openai-gpt-oss-120b", "tool_call"),
]


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 15, 4, 5)


utils.datetime = FixedTime


def render(template, case):
    """What `apply_chat_template(..., tokenize=False)` does after choosing the template."""
    case = copy.deepcopy(case)
    messages = utils._normalize_chat_messages(case["messages"])
    texts, _ = utils.render_jinja_template(
        conversations=[messages],
        tools=case.get("tools"),
        chat_template=template,
        add_generation_prompt=case["add_generation_prompt"],
        **{**TOKENS, **case.get("extra", {})},
    )
    return texts[0]


def outcome(template, case):
    try:
        return render(template, case), None
    except jinja2.exceptions.TemplateError as error:
        # raise_exception raises the base class itself.
        kind = "raised" if type(error) is jinja2.exceptions.TemplateError else type(error).__name__
        return None, [kind, str(error)]
    except Exception as error:
        return None, [type(error).__name__, str(error)]


def main():
    templates = pathlib.Path(sys.argv[1])
    full = pathlib.Path(sys.argv[3]) if sys.argv[2:3] == ["--full"] else None
    cases = json.loads((HERE / "conversations.json").read_text())
    (HERE / "rendered").mkdir(exist_ok=True)
    reference = {}
    for path in sorted(templates.glob("*.jinja")):
        # As text files are read: the encoding is UTF-8, line ends stay as they are.
        template = path.read_bytes().decode()
        results = reference[path.stem] = {}
        for case in cases:
            name = case["name"]
            text, error = outcome(template, case)
            if error:
                results[name] = f"{error[0]}: {error[1]}" if error[0] == "raised" else error[0]
            else:
                data = text.encode()
                results[name] = [len(data), hashlib.sha256(data).hexdigest()[:DIGITS]]
            if (path.stem, name) in FULL:
                (HERE / "rendered" / f"{path.stem}.{name}.txt").write_bytes(text.encode())
            if full:
                full.mkdir(exist_ok=True)
                (full / f"{path.stem}.{name}.txt").write_bytes((text or ": ".join(error)).encode())
    lines = []
    for template, results in reference.items():
        entries = ",\n".join(f"{json.dumps(k)}:{json.dumps(v, ensure_ascii=False, separators=(',', ':'))}" for k, v in results.items())
        lines.append(f"{json.dumps(template)}:{{\n{entries}}}")
    head = json.dumps({"transformers": transformers.__version__, "jinja2": jinja2.__version__})[:-1]
    (HERE / "reference.json").write_text(head + ', "templates": {\n' + ",\n".join(lines) + "\n}}\n")

    context = json.loads((HERE / "expressions_context.json").read_text())
    results = []
    for source in (HERE / "expressions.txt").read_text().split("\n"):
        if source and not source.startswith("##"):
            source = source.replace("␤", "\n")
            case = {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False, "extra": context}
            text, error = outcome(source, case)
            results.append([source, text, error and error[0]])
    lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in results)
    (HERE / "expressions.json").write_text(f"[\n{lines}\n]\n")


main()
