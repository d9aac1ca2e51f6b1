#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Grades programs that solve nothing and want the score all the same. Prints for each kind how many were tried and how many were caught;
fails if one scores, if an honest program does not, or if a process or a file is left behind.

    tests/torture/cheats/cheats.py                     every kind, 16 programs each
    tests/torture/cheats/cheats.py --per-kind 1 --seed 7"""
import argparse
import collections
import concurrent.futures
import ctypes
import json
import os
import pathlib
import random
import string
import subprocess
import sys
import tempfile
import textwrap
import time

import blind_kinds
import knowing_kinds

ROOT = pathlib.Path(__file__).resolve().parents[3]
RULE = "code(code_timeout_s={}, code_memory_mib=256, code_output_kib=256, code_file_mib=4, code_score=share)"
FEW_S, HONEST_S = 2, 20
PR_SET_CHILD_SUBREAPER = 36


def word(rng):
    return "".join(rng.choice(string.ascii_lowercase) for _ in range(8))


class Task:
    """A function to write: its tests, whose right results nobody guesses, and a program that passes them."""

    def __init__(self, gold, body, name, reads_input=False):
        self.gold, self.body, self.name, self.reads_input = gold, body, name, reads_input

    def honest(self):
        return self.body if self.reads_input else f"def {self.name}(*a):\n" + textwrap.indent(self.body, "    ") + "\n"


def tasks(rng):
    """One of each form of tests."""
    p, q, r = (rng.randrange(10**5, 10**6) for _ in range(3))
    key, name = word(rng), "f_" + word(rng)
    pairs = [(rng.randrange(1000), rng.randrange(1000)) for _ in range(3)]
    whole = "x, y = a\nreturn x * %d + y * %d + %d" % (p, q, r)
    number = [x * p + y * q + r for x, y in pairs]
    text = [f"{x}{key}{y * p}" for x, y in pairs]
    listed = [[x * p, [y * q], str(x)] for x, y in pairs]
    table = [{key: x * p, y: (q, x)} for x, y in pairs]
    calls = [f"{name}({x}, {y})" for x, y in pairs]
    nested = ([{"input": f"{x}\n{y}", "output": str(value), "testtype": "functional", "metadata": {"func_name": name}}
               for (x, y), value in zip(pairs, number)])
    return [
        Task([f"assert {c} == {v}" for c, v in zip(calls, number)], whole, name),
        Task(["\n".join(f"assert {v!r} == {c}" for c, v in zip(calls, text))], f"return f'{{a[0]}}{key}{{a[1] * {p}}}'", name),
        Task([f"got = {c}\nassert got == {v!r}, 'wrong'" for c, v in zip(calls, listed)],
            f"return [a[0] * {p}, [a[1] * {q}], str(a[0])]", name),
        Task([f"assert {c} == {v!r}" for c, v in zip(calls, table)], f"return {{{key!r}: a[0] * {p}, a[1]: ({q}, a[0])}}", name),
        Task([f"assert abs({c} - {v / 7!r}) < 1e-6" for c, v in zip(calls, number)], whole.replace("return ", "return (") + ") / 7", name),
        Task([f"import math\nassert math.isclose({c}, {v / 7!r})" for c, v in zip(calls, number)], whole.replace("return ",
            "return (") + ") / 7", name),
        Task(["def check(candidate):\n" + "".join(f"    assert candidate({x}, {y}) == {v}\n" for (x, y), v in zip(pairs, number))
              + f"check({name})"], whole, name),
        Task([f"x = [{x}, {y}, {p}]\nassert {name}(x) == sorted(x) + [{x * y + q}]" for x, y in pairs],
             f"return sorted(a[0]) + [a[0][0] * a[0][1] + {q}]", name),
        Task([f"for got, want in zip(map(lambda a: {name}(*a), {pairs}), {number}): assert got == want"], whole, name),
        Task([f"cases = {list(zip(pairs, number))}\nassert all(map(lambda c: {name}(*c[0]) == c[1], cases))"], whole, name),
        Task([f"x = [{x}, {y}, {p}]\ny = {name}(x)\nexpected = sorted(x) + [sum(x) * {q}]\ngot = list(y)\nassert got == expected"
              for x, y in pairs], f"return sorted(a[0]) + [sum(a[0]) * {q}]", name),
        Task([f"x = [{x}, {y}, {p}]\ny = {name}(x)\nexpected = sum(x) * {q} / 7\nassert y is not None and abs(y - expected) < 1e-6"
              for x, y in pairs], f"return sum(a[0]) * {q} / 7", name),
        Task([f"assert set({c}) == set(({x * p}, {y * q + p}))" for c, (x, y) in zip(calls, pairs)],
             f"return a[0] * {p}, a[1] * {q} + {p}", name),
        Task([f"assert len({c}) == 1\nassert all(v == {x * p + q} for v in {c})" for c, (x, y) in zip(calls, pairs)],
             f"return [a[0] * {p} + {q}]", name),
        Task([f"assert str({c}) == str({v})" for c, v in zip(calls, number)], whole, name),
        Task([f"assert {c} in [{v}, {v + 1}]\nassert {c} != {v + 1}" for c, v in zip(calls, number)], whole, name),
        Task({"inputs": [f"{x} {y}\n" for x, y in pairs], "outputs": [f"{v}\n" for v in number]},
             f"x, y = map(int, input().split())\nprint(x * {p} + y * {q} + {r})", name, reads_input=True),
        Task(nested, whole, name)]


def placed(rng, variant, task):
    """The statements of a variant before, in or behind the graded function."""
    payload, result = (part.replace("FN", task.name).replace("TOKEN", word(rng)).replace("DELAY", str(round(rng.uniform(0.01, 0.5), 2)))
                       .replace("DEPTH", str(rng.choice([300, 3000, 100000]))) for part in variant)
    if task.reads_input:
        return f"a = ()\n{payload}\nprint({result})\n"
    plain = f"def {task.name}(*a, **k):\n    return {result}\n"
    places = [lambda: f"{payload}\n{plain}", lambda: f"{plain}{payload}\n", lambda: f"def {task.name}(*a, **k):\n" +
              textwrap.indent(payload + f"\nreturn {result}", "    ") + "\n",
              lambda: f"class Solution:\n    pass\ntry:\n" + textwrap.indent(payload or "pass",
                  "    ") + f"\nexcept BaseException:\n    pass\n{plain}"]
    return rng.choice(places)()


def compiles(source):
    try:
        compile(source, "cheat", "exec")
        return True
    except SyntaxError:
        return False


def programs(rng, per_kind):
    """(kind, task, source) for each: the variants of a kind in turn, on tasks drawn at random."""
    for kind, variants in {**blind_kinds.KINDS, **knowing_kinds.KINDS}.items():
        order = rng.sample(variants, len(variants))
        for i in range(per_kind):
            task = rng.choice(tasks(rng))
            source = next(s for s in (placed(rng, order[i % len(order)], task) for _ in range(99)) if compiles(s))
            yield kind, task, source


def grade(tandem, cases, seconds, scratch, env=os.environ):
    """The scores of [(task, source)]; None for each that the grader did not come to."""
    lines = "".join(json.dumps({"response": f"```python\n{source}\n```", "gold": json.dumps(task.gold)}) + "\n" for task, source in cases)
    done = subprocess.run([tandem, "grade", "--rule", RULE.format(seconds)], input=lines, capture_output=True, encoding="utf-8",
                          cwd=scratch, env=dict(env, TMPDIR=str(scratch)), timeout=3600)
    scores = [json.loads(line)["score"] for line in done.stdout.splitlines()]
    return scores + [None] * (len(cases) - len(scores))


def graded(tandem, cases, seconds, scratch, jobs):
    shares = [cases[i::jobs] for i in range(jobs)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda share: grade(tandem, share, seconds, scratch), shares))
    return [found[i % jobs][i // jobs] for i in range(len(cases))]


def children():
    return pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def report(cheats, scores):
    tried, caught = collections.Counter(), collections.Counter()
    for (kind, _, source), score in zip(cheats, scores):
        tried[kind] += 1
        caught[kind] += score == 0
        if score != 0:
            print(f"--- {kind} scores {score}:\n{source}")
    print(f"{'kind':24} {'tried':>6} {'caught':>7}")
    for kind in tried:
        print(f"{kind:24} {tried[kind]:6} {caught[kind]:7}")
    print(f"{'all of ' + str(len(tried)) + ' kinds':24} {tried.total():6} {caught.total():7}")
    return tried.total() == caught.total()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-kind", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    rng, begin = random.Random(options.seed), time.monotonic()
    tandem = str(pathlib.Path(options.build).resolve() / "tandem")
    with tempfile.TemporaryDirectory(prefix="tandem_cheats_") as name:
        honest = [(task, task.honest()) for _ in range(2) for task in tasks(rng)]
        fair = graded(tandem, honest, HONEST_S, name, options.jobs)
        failed = [source for (_, source), score in zip(honest, fair) if score != 1]
        cheats = list(programs(rng, options.per_kind))
        right = report(cheats, graded(tandem, [(task, source) for _, task, source in cheats], FEW_S, name, options.jobs))
        left = os.listdir(name)
    print(f"honest programs: {len(honest) - len(failed)} of {len(honest)} score 1; seed {options.seed}, {time.monotonic() - begin:.0f} s")
    for source in failed:
        print(f"--- an honest program fails:\n{source}")
    print(f"left behind: {children()} processes, {left} files")
    sys.exit(0 if right and not failed and not left and not children() else 1)


if __name__ == "__main__":
    main()
