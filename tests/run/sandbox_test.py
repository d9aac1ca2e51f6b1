#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run whose model answers with programs that attack the trainer: each scores 0 within its limits, the right one among them 1, and
the run ends well. Every token of the model is a whole program, so that a random model writes all of them."""
import ctypes
import json
import os
import pathlib
import socket
import tempfile
import time

import run_folder as rf
import small_model
from run_folder import said

RIGHT = "print('ok')"
# Either is passed by the right program alone: standard output, and a statement behind the program.
GOLDS = ['{"inputs": [""], "outputs": ["ok\\n"]}', '["assert True"]']
LIMITS = {"code_timeout_s": 2, "code_memory_mib": 256, "code_output_kib": 256, "code_file_mib": 4}
PR_SET_CHILD_SUBREAPER = 36


def attacks(outside, port):
    """Each would print `ok`, stay or bring the trainer down, if it were let."""
    return {
        "endless loop": "while True: pass",
        "fork bomb": "import os\nwhile True: os.fork()",
        "10 GB": "x = bytearray(10 * 2**30)\nprint('ok')",
        "memory in pieces": "x = []\nwhile True: x.append(bytearray(2**22))",
        "writing outside": f"open({str(outside / 'written')!r}, 'w').write('x')\nprint('ok')",
        "network": f"import socket\nsocket.create_connection(('127.0.0.1', {port}))\nprint('ok')",
        "endless output": "while True: print('x' * 10000)",
        "killing the trainer": "import os\nos.kill(os.getppid(), 9)\nprint('ok')",
        "staying behind": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('ok')",
        "a forged reply": "import os\nos.write(4, b'\\n')\nos.read(4, 65536)\n"
                          "left = b'{\"token\":' + b'[' * 100000 + b']' * 100000 + b'}\\n'\n"
                          "while left: left = left[os.write(4, left):]\nos._exit(0)",
    }


def fenced(program):
    return f"```python\n{program}\n```"


def score_lines(program, programs):
    """`tandem grade` on every program and both forms of tests; {name: scores}."""
    options = ", ".join(f"{name}={value}" for name, value in LIMITS.items())
    cases = [(name, gold) for name in programs for gold in GOLDS]
    lines = "".join(json.dumps({"response": fenced(programs[name]), "gold": gold}) + "\n" for name, gold in cases)
    out = program.done(["grade", "--rule", f"code({options})"], stdin=lines)
    scores = {}
    for (name, _), line in zip(cases, out.stdout.splitlines(), strict=True):
        scores.setdefault(name, []).append(json.loads(line)["score"])
    return scores


def write_inputs(scratch, programs):
    model = scratch / "model"
    texts = [fenced(source) for source in programs.values()]
    small_model.write_model(model, small_model.tiny_config(vocab_size=2 + len(texts), eos=1))
    small_model.write_whole_text_tokenizer(model, "?", texts)
    rows = scratch / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": "?" * (i + 1), "answer": gold}) + "\n" for i, gold in enumerate(GOLDS)))
    return model, rows


def run(program, scratch, programs, steps=3):
    model, rows = write_inputs(scratch, programs)
    folder, private = scratch / "run", scratch / "tmp"
    private.mkdir()
    settings = {"data.train": rows, "reward.rule": "code", "reward.workers": 2, "schedule.groups_per_step": 4, "schedule.group_size": 16,
                "rollout.max_new_tokens": 1, "train.lr": 1e-2, "checkpoint.every_steps": 0, "parallel.threads": 1,
                **{f"reward.{name}": value for name, value in LIMITS.items()}}
    recipe = scratch / "attacked.yaml"
    recipe.write_text("algo: {name: grpo}\n")
    begin = time.monotonic()
    program.done(["run", recipe, "--model", model, "--run-dir", folder, "--steps", steps, "--no-eval", *rf.sets(settings)], timeout=500,
                 cwd=scratch, env=dict(os.environ, TMPDIR=str(private)))
    return folder, private, time.monotonic() - begin


def check_scores(folder, programs, steps):
    rf.check_whole(folder, steps)
    answers = dict.fromkeys(programs, 0)
    by_text = {fenced(source): name for name, source in programs.items()}
    for response, score in rf.samples(folder, "response, score"):
        name = by_text.get(response)
        assert score == (1 if name == "right" else 0), (name, score)
        if name:
            answers[name] += 1
    unseen = [name for name, count in answers.items() if not count]
    assert not unseen, f"the model never wrote {unseen}"
    means = [line["reward/mean"] for line in rf.metrics(folder)]
    assert len(means) == steps and all(0 < mean <= 1 for mean in means), means
    return answers, means


def children():
    """The processes that this one, as the reaper of all that its programs start, has."""
    return pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def main():
    program = rf.built_program()
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    with tempfile.TemporaryDirectory(prefix="tandem_sandbox_") as name, socket.create_server(("127.0.0.1", 0)) as listener:
        scratch = pathlib.Path(name)
        outside = scratch / "outside"
        outside.mkdir()
        programs = {**attacks(outside, listener.getsockname()[1]), "right": RIGHT}
        scores = score_lines(program, programs)
        assert scores == {name: [1.0, 1.0] if name == "right" else [0.0, 0.0] for name in programs}, scores
        said(f"tandem grade: {len(programs) - 1} attacks score 0, the right program 1")
        folder, private, seconds = run(program, scratch, programs)
        answers, means = check_scores(folder, programs, 3)
        said(f"3 steps with {sum(answers.values())} programs in {seconds:.0f} s, mean reward {means}: {answers}")
        assert not children(), f"processes are left: {children()}"
        assert not list(outside.iterdir()), list(outside.iterdir())
        assert not list(private.iterdir()), f"left in TMPDIR: {list(private.iterdir())}"
        left = {entry.name for entry in scratch.iterdir()} - {"model", "rows.jsonl", "attacked.yaml", "run", "tmp", "outside"}
        assert not left, left
        listener.setblocking(False)
        try:
            raise AssertionError(f"a program connected: {listener.accept()[1]}")
        except BlockingIOError:
            said("no process is left, nothing was written outside, nobody connected")


if __name__ == "__main__":
    main()
