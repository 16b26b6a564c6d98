#!/usr/bin/env python3
"""Mutation check of the Metal backend: takes away one guard at a time, and looks who notices.

Of the kernels, every barrier, every range guard (a condition, the end of a loop over data, or the clamp or the wrap of an
index) and every tail guard (a load or store of fewer than four elements, or a quotient that is rounded up); the tests of
the operations concerned then run on the simulated GPU with its sanitizer. Kernels are compiled when the tests run
(SMELT_METAL_SOURCES), so that a mutant takes no build.

Of the encoder, every barrier that it puts into the command buffers of one prompt and one token of each tiny model
(SMELT_SIM_WITHOUT_BARRIER).

Of the host's side, every check of a dispatch and every class of dependencies: see metal_host_mutants.py. These take one build.

A mutant that survives is a missing test or a needless guard. Results are kept in a file, so that a run can be stopped and
taken up again; a mutant is judged again when the function around it has changed.

    scripts/mutate-metal.py                      # all that is not judged yet
    scripts/mutate-metal.py --file norm.metal    # of one file
    scripts/mutate-metal.py --only barrier       # of one kind: barrier, condition, loop, clamp, wrap, tail, rounding, encoder, host
    scripts/mutate-metal.py --list               # what there is
    scripts/mutate-metal.py --report FILE        # what was found, as Markdown
"""

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import metal_host_mutants as host

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "crates/metal/kernels"

# Which tests run for which file: test program, and a part of the tests' names. What compiles and runs quickly comes first.
ATTENTION = [("kernels", "a_sink"), ("kernels", "keys"), ("ops", "edges::heads"), ("ops", "edges::windows"), ("ops", "attention::")]
MATMUL = [("ops", "edges::products"), ("ops", "matmul::"), ("ops", "fused::")]
EXPERTS = [("experts", "a_layer"), ("ops", "experts_on_metal::"), ("ops", "experts::")]
TESTS = {
    "norm.metal": [("kernels", "norm"), ("ops", "norm::")],
    "softmax.metal": [("ops", "norm::softmaxes")],
    "topk.metal": [("ops", "topk::"), ("ops", "largest::"), ("ops", "experts_on_metal::columns"), ("experts", "a_layer")],
    "experts.metal": EXPERTS,
    "experts_gemm.metal": EXPERTS,
    "rope.metal": [("ops", "rope::")],
    "rope.h": [("ops", "rope::"), ("ops", "fused::")],
    "rows.metal": [("kernels", "indices_outside"), ("ops", "rows::"), ("ops", "cache::rows")],
    "copy.metal": [("ops", "shape::")],
    "elementwise.metal": [("ops", "elementwise::"), ("ops", "experts::the_gate")],
    "warmup.metal": [("backend", ""), ("weights", "")],
    "cache.metal": [("kernels", "indices_outside"), ("ops", "cache::"), ("ops", "fused::")],
    "cache.h": [("kernels", "indices_outside"), ("ops", "edges::values"), ("ops", "cache::"), ("ops", "fused::"), ("ops", "attention::")],
    "gemm.metal": MATMUL,
    "gemm.h": MATMUL,
    "matvec.metal": MATMUL,
    "matvec.h": MATMUL,
    "attention_decode.metal": ATTENTION,
    "attention_prefill.metal": ATTENTION,
    "attention.h": ATTENTION,
    "common.h": [
        ("ops", "experts::the_gate"), ("ops", "edges::soft_caps"), ("ops", "elementwise::"), ("ops", "edges::values"), *MATMUL,
    ],
    "formats.h": [("ops", "edges::rows"), *MATMUL],
}

# What runs for survivors with --wide, besides: whole models.
WIDE = [("ops", ""), ("metal", "a_tiny_model")]

# Guards that are needed, though no test can show it: by file, function, what stands there and the replacement.
HUGE = "differs where more than 2^31 elements are left, more than any test computes"
NO_KEYS = "a round more has no keys, which the condition in it sees to"
EQUIVALENT = {
    ("elementwise.metal", "unary", "min(args.elements - i, ulong(4))", "(args.elements - i)"): HUGE,
    ("elementwise.metal", "binary", "min(args.period - column, ulong(4))", "(args.period - column)"): HUGE,
    ("attention_prefill.metal", "attention_prefill", "simd_any(lane < 8 && shrink[b * 64 + lane * 9] != 1.0f)", "true"):
        "there for speed: without it, the output is multiplied by one",
    ("topk.metal", "router_1sg", "k < args.k", "k < args.k + 1"):
        "one lane more has a choice, and does not store it",
    ("experts.metal", "expert_matvec", "first >= args.rows", "false"):
        "there for speed: without it, the last SIMD-group reads weights once more, and stores nothing",
    ("experts.metal", "expert_route", "base < args.choices", "base < args.choices + SIMD_WIDTH"):
        "a round more has no choices, which the condition in it sees to",
    ("norm.metal", "rms_norm", "i < cols", "i < cols + stride"):
        "a round more loads and stores none of its four elements",
    ("cache.metal", "qkv_finish", "i < dim", "i < dim + 4 * SIMD_WIDTH"):
        "a round more has no elements, which the conditions in it see to",
    ("attention_decode.metal", "attention_flash", "base < end", "base < end + FLASH_SIMDGROUPS * 8"): NO_KEYS,
    ("attention_prefill.metal", "attention_prefill", "base < end", "base < end + KEYS"): NO_KEYS,
    ("cache.h", "store", "d > 0.0f", "true"):
        "of a block of zeros: a NaN that becomes an integer is 0 here, and anything on another machine",
}


def blank(text):
    """The text with comments blanked out, so that offsets stay."""
    return re.sub(r"//[^\n]*", lambda found: " " * len(found.group()), text)


def closing(text, start):
    """The offset of the parenthesis that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0:
            return at
    raise ValueError("a parenthesis is not closed")


def split(text, separators):
    """The parts of an expression between separators outside of parentheses: start, end."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        found = next((s for s in separators if depth == 0 and text.startswith(s, at)), None)
        if found:
            parts.append((start, at))
            at += len(found)
            start = at
        else:
            at += 1
    parts.append((start, len(text)))
    return parts


# A comparison: neither a template's brackets nor an arrow nor a shift.
COMPARISON = re.compile(r"[^<>=!-](<=?|>=?|==|!=)[^<>=]")
# What chooses between ways that are all in range.
SELECTS = re.compile(r"has_|OPERATION|ACTIVATION|kind ==|args\.gate|soft_cap|at\.z")
# What is no index: arguments of a minimum or maximum of values.
VALUES = re.compile(r"largest|score|top|\ba\.|\d\.\d|sink|mine|scale|threads")


# What became of a mutant that no test noticed, and of one that no test met.
SURVIVED, NOT_RUN = "**survived**", "not run"

# What a test may take of memory, many times what it needs: a mutant may never stop to ask for more.
MEMORY = 4 << 30

# The output of a test that did not end in time. Kernels that never end are found by the simulator's budget, so this tells of a
# busy machine, and decides nothing.
LATE = "late"


class Mutant:
    """One text in place of another."""

    def __init__(self, file, text, code, kind, start, end, replacement):
        self.file, self.kind, self.start, self.end, self.replacement = file, kind, start, end, replacement
        self.text, self.code = text, code
        self.line = text.count("\n", 0, start) + 1
        self.what = " ".join(text[start:end].split())
        self.unseen = EQUIVALENT.get((file, function_of(code, start), self.what, replacement))

    def __str__(self):
        return f"{self.file}:{self.line} {self.kind}: {self.what} -> {self.replacement or 'nothing'}"


def function_of(code, start):
    """The name of the function around an offset."""
    names = re.findall(r"(?m)^ *(?:kernel|inline|static) [\w ]*?(\w+)\(", code[:start])
    return names[-1] if names else None


def surroundings(code, start):
    """The code of the function around an offset, or of what else stands there, without its layout."""
    begin = depth = 0
    for at, character in enumerate(code):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and code.startswith("\n\n", at):
            if at >= start:
                return " ".join(code[begin:at].split())
            begin = at
    return " ".join(code[begin:].split())


def with_keys(mutants):
    """Gives each mutant the key under which its finding is kept: what and where it is, but not the line."""
    seen = {}
    for mutant in mutants:
        # Without what changes no result.
        code = re.sub(r"\b(?:UNROLL|alignas\(16\)) ", "", surroundings(mutant.code, mutant.start))
        around = hashlib.sha256(code.encode()).hexdigest()[:12]
        key = "|".join([mutant.file, mutant.kind, mutant.what, mutant.replacement, around])
        seen[key] = seen.get(key, 0) + 1
        mutant.key = f"{key}|{seen[key]}"
    return mutants


def conditions(code, start, end, leaves):
    """Each part of a condition that compares: with what is left of it when it is gone."""
    text = code[start:end]
    alternatives = split(text, ["||"])
    for a, b in alternatives:
        for c, d in split(text[a:b], ["&&"]):
            part = text[a + c : a + d]
            if not COMPARISON.search(part) or SELECTS.search(part):
                continue
            lead = len(part) - len(part.lstrip())
            # The guard holds, whatever is compared; where it leaves, it never does.
            yield start + a + c + lead, start + a + d - (len(part) - len(part.rstrip())), "false" if leaves else "true"


def mutants_of(path):
    """All mutants of a kernel file."""
    text = path.read_text()
    code = blank(text)
    # Macros are not code.
    code = re.sub(r"#define(?:[^\n]*\\\n)*[^\n]*", lambda found: re.sub(r"[^\n]", " ", found.group()), code)
    found = []

    def add(kind, start, end, replacement):
        found.append(Mutant(path.name, text, code, kind, start, end, replacement))

    for match in re.finditer(r"\b(?:threadgroup|simdgroup)_barrier\(", code):
        add("barrier", match.start(), closing(code, match.end() - 1) + 1, "")
    for match in re.finditer(r"\bif \(", code):
        end = closing(code, match.end() - 1)
        leaves = re.match(r"\s*(return|continue|break)\b", code[end + 1 :]) is not None
        for start, stop, replacement in conditions(code, match.end(), end, leaves):
            add("condition", start, stop, replacement)
    for match in re.finditer(r"\bfor \(", code):
        end = closing(code, match.end() - 1)
        parts = split(code[match.end() : end], [";"])
        if len(parts) == 3 and "&&" in code[match.end() + parts[1][0] : match.end() + parts[1][1]]:
            a, b = (match.end() + at for at in parts[1])
            for start, stop, replacement in conditions(code, a, b, False):
                add("condition", start, stop, replacement)
    for match in re.finditer(r"\?", code):
        # Back to what the condition begins behind.
        start, depth = match.start(), 0
        while start > 0:
            last = code[start - 1]
            depth += (last in ")]") - (last in "([")
            assigns = last == "=" and code[start - 2] not in "<>=!" and code[start] != "="
            if depth < 0 or (depth == 0 and (last in ",;:{}" or assigns)):
                break
            start -= 1
        start += len(re.match(r"\s*(?:return\b)?\s*", code[start:]).group())
        for a, b, replacement in conditions(code, start, match.start(), False):
            add("condition", a, b, replacement)
    for match in re.finditer(r"const bool (\w+ = [^;?]*);", code):
        for a, b in split(match.group(1), [","]):
            begin = match.start(1) + a + match.group(1)[a:b].index("=") + 1
            for start, stop, replacement in conditions(code, begin, match.start(1) + b, False):
                add("condition", start, stop, replacement)
    # One more round, of loops whose end is no constant.
    for match in re.finditer(r"\b(for|while) \(", code):
        end = closing(code, match.end() - 1)
        parts = split(code[match.end() : end], [";"])
        a, b = (match.end() + at for at in parts[len(parts) // 2])
        bound = re.fullmatch(r"([^<>&|]*) (<=?) ([^<>&|]*[a-z][^<>&|]*)", code[a:b])
        if bound:
            step = re.fullmatch(r".* \+= (.*)", code[match.end() + parts[-1][0] : end])
            more = step.group(1) if step and match.group(1) == "for" else 1
            start = a + len(bound.group(1)) - len(bound.group(1).lstrip())
            add("loop", start, b, f"{code[start:b]} + {more}")
    # Quotients that are not rounded up, and indices that do not begin again.
    for match in re.finditer(r"\(((?:[^()]|\([^()]*\))*?) \+ (?:(\d+)|([\w.]+) - 1)\) / ([\w.]+)", code):
        if match.group(4) == match.group(3) or (match.group(2) and int(match.group(2)) + 1 == int(match.group(4))):
            add("rounding", match.start(), match.end(), f"({match.group(1)}) / {match.group(4)}")
    for match in re.finditer(r"(\([^()]*\)|\b[\w.]+) % ([\w.]+)(?=[;\]])", code):
        # With the quotient beside it, it is the other of two coordinates.
        line = code[code.rfind("\n", 0, match.start()) : code.find("\n", match.end())]
        if f"{match.group(1)} / {match.group(2)}" not in line:
            add("wrap", match.start(), match.end(), match.group(1))
    for match in re.finditer(r"\b(?:min|max)\(", code):
        end = closing(code, match.end() - 1)
        inner = code[match.end() : end]
        parts = split(inner, [","])
        if len(parts) != 2 or VALUES.search(inner):
            continue
        for a, b in parts:
            kept = inner[a:b].strip()
            if kept != "0":
                add("clamp", match.start(), end + 1, f"({kept})")
    for match in re.finditer(r"\b(load4|store4)_partial\(", code):
        end = closing(code, match.end() - 1)
        line = code[code.rfind("\n", 0, match.start()) + 1 : match.start()]
        if "inline" in line:
            continue
        inner = text[match.end() : end]
        a, b = split(code[match.end() : end], [","])[-1]
        add("tail", match.start(), end + 1, f"{match.group(1)}({inner[: a - 1]})")
    return found


class Programs:
    """The test programs, and how long their tests take."""

    def __init__(self, profile, folder=None, root=ROOT):
        wanted = ["ops", "metal", "kernels", "backend", "weights", "graphs", "device", "chains", "experts", "submission"]
        self.root = root
        self.paths, self.tests = {name: str(folder / name) for name in [*wanted, "lib"]} if folder else {}, {}
        if folder:
            return
        build = ["cargo", "test", "--no-run", "--message-format=json", "--lib"]
        build += ["-p", "smelt-tests", "-p", "smelt-metal"] + (["--release"] if profile == "release" else [])
        build += [word for name in wanted for word in ("--test", name)]
        environment = {"CARGO_TARGET_DIR": str(ROOT / "target"), **os.environ}
        out = subprocess.run(build, cwd=root, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
        for line in out.splitlines():
            message = json.loads(line)
            if not message.get("executable"):
                continue
            target = message["target"]
            if target["name"] in wanted and "test" in target["kind"]:
                self.paths[target["name"]] = message["executable"]
            elif "lib" in target["kind"] and "smelt-metal" in message["package_id"]:
                self.paths["lib"] = message["executable"]

    def names(self, program, part):
        """The tests of a program whose names have this part."""
        if program not in self.tests:
            listing = [self.paths[program], "--list", "--format=terse"]
            out = subprocess.run(listing, stdout=subprocess.PIPE, check=True, text=True).stdout
            self.tests[program] = [line.removesuffix(": test") for line in out.splitlines() if line.endswith(": test")]
        return [name for name in self.tests[program] if part in name]

    def run(self, program, name, environment, timeout):
        """Runs a test: whether it passed, the seconds it took, and what it wrote."""
        start = time.time()
        command = [self.paths[program], "--exact", name, "--nocapture"]
        environment = {**os.environ, "RUST_BACKTRACE": "0", "SMELT_SIM_SANITIZE": "1", "SMELT_TEST_BACKEND": "metal-sim", **environment}
        # Cargo sets the folder of the package.
        folder = self.root / ("tests" if program in ("ops", "metal") else "crates/metal")
        environment["CARGO_MANIFEST_DIR"] = str(folder)
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, timeout=timeout, text=True, errors="replace",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
            )
        except subprocess.TimeoutExpired:
            return False, time.time() - start, LATE
        return done.returncode == 0, time.time() - start, done.stdout


def cause(output):
    """What noticed: the class of the sanitizer's report, or the message of the failed test."""
    kinds = "out-of-bounds|use-after-free|uninitialized-read|threadgroup-race|race|dispatch-hazard|divergent-barrier|misaligned"
    found = re.search(rf"\b({kinds}|infinite-loop|fault)\b[: ].*", output)
    if found:
        return f"sanitizer: {found.group(1)}"
    if "normalised mean squared error" in output:
        return "error above its bound"
    if "memory allocation of" in output:
        return "test: out of memory"
    lines = output.splitlines()
    at = next((i for i, line in enumerate(lines) if "panicked at" in line), None)
    return "test: " + (" ".join(lines[at + 1 : at + 2])[:80] if at is not None else (lines or ["?"])[-1][:80])


class Ledger:
    """What is known, a line of JSON for each mutant."""

    def __init__(self, path):
        self.path, self.known = path, {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.known[entry["key"]] = entry

    def add(self, entry):
        self.known[entry["key"]] = entry
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


class Judge:
    """Runs the tests of mutants and keeps what was found."""

    def __init__(self, programs, ledger, wide):
        self.programs, self.ledger, self.wide, self.baseline = programs, ledger, wide, {}

    def open(self, mutants):
        """Those that are not judged yet; of survivors, too, where all tests are to run."""
        known = self.ledger.known
        return [m for m in mutants if m.key not in known or (self.wide and known[m.key]["caught"] is None)]

    def hint(self, mutant):
        """The test that caught such a mutant before the function around it changed."""
        same = (mutant.file, mutant.what, mutant.replacement)
        for entry in reversed(self.ledger.known.values()):
            test = re.search(r"\((\w+) ([\w:]+)\)$", entry["caught"] or "")
            if test and same == (entry["file"], entry["what"], entry["replacement"]):
                return [test.groups()]
        return []

    def judge(self, mutant, where, tests, environment):
        """Runs tests until one fails, the likeliest first."""
        caught, seconds = None, 0.0
        tests = [*self.hint(mutant), *tests]
        tests = dict.fromkeys((program, name) for program, part in tests for name in self.programs.names(program, part))
        for program, name in tests:
            if (program, name) not in self.baseline:
                passed, took, output = self.programs.run(program, name, {}, 3600)
                if not passed:
                    sys.exit(f"{program} {name} fails without a mutant:\n{output[-3000:]}")
                self.baseline[program, name] = took
            passed, took, output = self.programs.run(program, name, environment, 900 + 5 * self.baseline[program, name])
            seconds += took
            if output == LATE:
                print(f"[{where}] {mutant}\n    undecided: {name} took {took:.0f} s", flush=True)
                return
            if "Compile {" in output:
                sys.exit(f"{mutant} does not compile:\n{output[-3000:]}")
            if not passed:
                caught = f"{cause(output)} ({program} {name})"
                break
        entry = {"key": mutant.key, "file": mutant.file, "line": mutant.line, "kind": mutant.kind, "what": mutant.what}
        entry |= {"replacement": mutant.replacement, "caught": caught}
        self.ledger.add(entry)
        print(f"[{where}] {seconds:.0f} s  {mutant}\n    {caught or 'SURVIVED'}", flush=True)


def judge_kernels(judge, mutants, folder):
    """Runs each mutant's tests until one fails."""
    mutants = judge.open(mutants)
    for number, mutant in enumerate(mutants, 1):
        text = mutant.text
        # On one line with what was there, so that places in reports stay right.
        lines = text.count("\n", mutant.start, mutant.end)
        changed = text[: mutant.start] + mutant.replacement + "\n" * lines + text[mutant.end :]
        # All files, so that changed kernels need no build either.
        for name in TESTS:
            shutil.copy(KERNELS / name, folder)
        (folder / mutant.file).write_text(changed)
        tests = TESTS[mutant.file] + (WIDE if judge.wide else [])
        judge.judge(mutant, f"{number}/{len(mutants)}", tests, {"SMELT_METAL_SOURCES": str(folder)})


def judge_host(judge, everything, wanted):
    """The same of the host's side, with test programs in which all mutants wait for their numbers."""
    numbers = {mutant.key: number for number, mutant in enumerate(everything, 1)}
    wanted = judge.open(wanted)
    for position, mutant in enumerate(wanted, 1):
        tests = host.TESTS[mutant.file] + (WIDE if judge.wide else [])
        judge.judge(mutant, f"{position}/{len(wanted)}", tests, {"SMELT_MUTANT": str(numbers[mutant.key])})


def judge_encoder(programs, ledger, wanted):
    """Leaves out each barrier of the command buffers of the tiny models, or of the one that is wanted."""
    name = "a_tiny_model_of_every_architecture"
    for test in programs.names("metal", name):
        passed, _, output = programs.run("metal", test, {}, 3600)
        counts = {case: int(count) for case, count in re.findall(r"barriers of ([\w, -]+): (\d+)", output)}
        if not passed or not counts:
            sys.exit(f"metal {test} fails without a mutant:\n{output[-3000:]}")
        for case, count in counts.items():
            if wanted and case != wanted:
                continue
            for barrier in range(1, count + 1):
                key = f"encoder|{case}|{barrier}|{count}"
                if key in ledger.known:
                    continue
                environment = {"SMELT_SIM_WITHOUT_BARRIER": str(barrier), "SMELT_TEST_CASE": case}
                passed, took, output = programs.run("metal", test, environment, 600)
                if output == LATE:
                    continue
                place = re.search(r"dispatch: ([^;\n]*)", output)
                caught = None if passed else cause(output) + (f" ({place.group(1)})" if place else "")
                entry = {"key": key, "file": "encoder", "line": barrier, "kind": "encoder", "what": f"{case}, barrier {barrier}"}
                ledger.add(entry | {"replacement": "", "caught": caught})
                print(f"{took:.0f} s  {case}, barrier {barrier} of {count}\n    {caught or 'SURVIVED'}", flush=True)


def rows_of(ledger, mutants):
    """A line of the table for each mutant."""
    for mutant in mutants:
        entry = ledger.known.get(mutant.key)
        reason = f"none: {mutant.unseen}" if mutant.unseen else SURVIVED if entry else NOT_RUN
        caught = (entry or {}).get("caught") or reason
        quoted = [f"`{text.replace('|', chr(92) + '|')}`" if text else "nothing" for text in (mutant.what, mutant.replacement)]
        yield f"| {mutant.file}:{mutant.line} | {mutant.kind} | {quoted[0]} | {quoted[1]} | {caught} |"


def section(title, rows):
    """A table with its sums."""
    ends = {end: sum(row.endswith(f"| {end} |") for row in rows) for end in (SURVIVED, NOT_RUN)}
    explained = sum("| none: " in row for row in rows)
    caught = len(rows) - explained - sum(ends.values())
    sums = f"{len(rows)} mutants: {caught} caught, {explained} that no test can tell from the original, for the reason given, "
    sums += f"{ends[SURVIVED]} survived, {ends[NOT_RUN]} not run since the function around them last changed."
    return [f"## {title}", "", sums, "", "| place | kind | what | instead | caught by |", "|---|---|---|---|---|", *rows, ""]


def report(ledger, kernels, hosts):
    """The findings as Markdown."""
    lines = [
        "# Mutants of the Metal backend",
        "",
        "Which guard was taken away, and what noticed: a class of the sanitizer's reports or a failed test, and the test that ran.",
        "Written by `scripts/mutate-metal.py --report`; what it means is in [metal.md](metal.md), Mutations.",
        "",
        *section("Kernels", list(rows_of(ledger, kernels))),
        *section("The host's side", list(rows_of(ledger, hosts))),
        "## Barriers of command buffers",
        "",
        "Of the command buffers of tiny models of each architecture, the barriers that were left out, one after the other.",
        "",
        "| command buffer | barriers | caught | survived | not run |",
        "|---|---:|---:|---:|---:|",
    ]
    cases = {}
    for key, entry in ledger.known.items():
        if entry["kind"] != "encoder":
            continue
        _, case, barrier, count = key.split("|")
        # What was found before the number of barriers changed is of another command buffer.
        if case not in cases or cases[case][0] != int(count):
            cases[case] = (int(count), {})
        cases[case][1][barrier] = entry["caught"] is not None
    for case, (count, found) in sorted(cases.items()):
        caught = sum(found.values())
        lines.append(f"| {case} | {count} | {caught} | {len(found) - caught} | {count - len(found)} |")
    return "\n".join([*lines, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", help="only mutants of this file; of the encoder: of this case, such as 'llama token'")
    parser.add_argument("--only", help="only mutants of this kind, or those whose description has this part")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--report", type=Path, help="write what was found, and run nothing")
    parser.add_argument("--results", type=Path, default=ROOT / "target/mutants.jsonl", help="where results are kept")
    parser.add_argument("--profile", choices=["dev", "release"], default="dev", help="of the test programs")
    parser.add_argument("--programs", type=Path, help="a folder with built test programs, and those with the host's mutants in `host`")
    parser.add_argument("--count", type=int, help="stop after so many mutants")
    parser.add_argument("--wide", action="store_true", help="survivors again, with the tests of all operations")
    arguments = parser.parse_args()
    kernels = with_keys([mutant for name in TESTS for mutant in mutants_of(KERNELS / name)])
    hosts = with_keys(host.host_mutants(ROOT, closing, split))

    def wanted(mutants):
        of_file = [mutant for mutant in mutants if not arguments.file or mutant.file == arguments.file]
        only = arguments.only
        return [mutant for mutant in of_file if not only or only == mutant.kind or only in str(mutant)]

    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(arguments.results)
    if arguments.list:
        print("\n".join(map(str, wanted(kernels + hosts))))
        return
    if arguments.report:
        arguments.report.write_text(report(ledger, kernels, hosts))
        return
    run = [[mutant for mutant in wanted(mutants) if not mutant.unseen] for mutants in (kernels, hosts)]
    encoder = arguments.only == "encoder" or not (arguments.file or arguments.only)
    if run[0] or encoder:
        programs = Programs(arguments.profile, arguments.programs)
    if run[0]:
        with tempfile.TemporaryDirectory() as folder:
            judge_kernels(Judge(programs, ledger, arguments.wide), run[0][: arguments.count], Path(folder))
    if run[1]:
        tree = ROOT / "target/mutants"
        if not arguments.programs:
            host.mutated_tree(ROOT, tree, hosts)
        built = arguments.programs and arguments.programs / "host"
        mutated = Programs(arguments.profile, built, root=ROOT if built else tree)
        judge_host(Judge(mutated, ledger, arguments.wide), hosts, run[1][: arguments.count])
    if encoder:
        judge_encoder(programs, ledger, arguments.file)


if __name__ == "__main__":
    main()
