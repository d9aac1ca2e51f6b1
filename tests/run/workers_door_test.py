# SPDX-License-Identifier: Apache-2.0
"""Who may join a run, and what it believes: another user of the machine does not join it, a worker that draws otherwise is refused, and one
that says what cannot be is named, while the run goes on with the others."""
import math
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import run_folder as rf
from workers_test import RUN, address, joining, start_of

NOBODY = 65534  # a user that owns nothing
HOSTILE = {"nan": "a log-probability of nan", "positive": "a log-probability of 0.5", "score": "a score of nan", "parts": "a call of",
           "much": "more than the", "other": "spoke as worker", "weights": "other weights than the run has"}


def resident_bytes(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def begun(program, folder, settings=None, flags=("--no-eval",)):
    process = program.start(start_of(folder, {"workers.listen": "127.0.0.1:0", **(settings or {})}, flags))
    rf.wait_until(lambda: address(folder) or process.poll() is not None, 60, "the address of the run")
    return process


def hostile(program, folder, kind, *more):
    """What one that speaks to the run as a worker heard, once it ended well."""
    tool = pathlib.Path(program.tandem).parent / "tests/run/hostile_worker"
    out = subprocess.run([tool, address(folder), folder / "token", kind, *more], capture_output=True, encoding="utf-8", timeout=100)
    assert out.returncode == 0, f"{kind}: {out.returncode} {out.stdout[-500:]} {out.stderr[-500:]}"
    return out.stdout


def hostile_workers(program, root):
    """One after the other, beside an honest worker."""
    folder = pathlib.Path(root) / "hostile"
    run = begun(program, folder, {"run.steps": 60, "run.parity": "false", "workers.lease_s": 5}, ["--no-eval", "--staleness", "1"])
    steps = lambda: len(rf.whole_lines(folder / "metrics.jsonl"))
    worker = program.start(joining(folder, "--tokens-per-s", "4000"))
    assert rf.wait_for(lambda: steps() >= 1, run), run.stderr.read()[-3000:]
    heard = {}
    for kind in HOSTILE:
        if kind == "much":  # what training itself takes at most is taken by then
            assert rf.wait_for(lambda: steps() >= 4, run), run.stderr.read()[-3000:]
        before = resident_bytes(run)
        number = ["0"] if kind == "other" else []  # the honest one, which came first
        heard[kind] = hostile(program, folder, kind, *number)
        if kind == "much":
            assert resident_bytes(run) - before < 40 << 20, f"an answer of 64 MiB grew the run by {resident_bytes(run) - before} bytes"
    out, log = run.communicate(timeout=200)
    assert run.returncode == 0, log[-3000:]
    assert worker.wait(30) == 0, f"the honest worker: {worker.stderr.read()[-3000:]}"
    lines = [line for line in log.splitlines() if "is refused from now on" in line]
    for kind, words in HOSTILE.items():
        assert words in heard[kind] or kind == "other", f"{kind} was told {heard[kind]}"
        named = [line for line in lines if words in line]
        assert len(named) == 1 and re.search(r"worker [1-9]\d* at 127\.0\.0\.1 \(127\.0\.0\.1:\d+\)", named[0]), f"{kind}: {lines}"
    assert len(lines) == len(HOSTILE), lines
    rf.check_whole(folder, 60)
    rf.check_journal(folder)
    for logprobs, score in rf.samples(folder, "logprobs, score"):
        assert all(-200 <= value <= 0 for value in rf.floats(logprobs)), "a log-probability that cannot be was trained"
        assert score in (0, 1), score
    compared = sum(line["workers/weights_compared"] for line in rf.all_metrics(folder))
    assert compared > 0, "the honest worker's weights were never compared with the run's"
    for line in rf.all_metrics(folder):
        assert math.isfinite(line["actor/loss"]), line
        assert not [name for name in line if name.startswith("reward/part")], "a hostile worker named a metric"
    rf.said("seven hostile workers are named once each, told, and heard no more; the run goes on with the honest one")


def other_user(program, root):
    """Another user of the machine finds no way in: it cannot read the token, and without it nobody answers."""
    if os.getuid() != 0:
        rf.skip("only root can become another user")
    folder = pathlib.Path(root) / "other_user"
    run = begun(program, folder, {"run.steps": 4})
    for name in ("token", "worker_keys.json"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600, f"{name} can be read by others"
    program.refused(["rollout", "--join", address(folder)], 2, "--token", "RUN_DIR/token", "log of the run")
    root_mode = pathlib.Path(root).stat().st_mode
    os.chmod(root, 0o755)
    own = pathlib.Path(tempfile.mkdtemp())
    try:
        wrong = own / "wrong"
        wrong.write_text("x" * 40 + "\n")
        for path in (own, wrong):
            os.chown(path, NOBODY, NOBODY)
        as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": own, "env": {**os.environ, "HOME": str(own)}}
        for token, words in ((folder / "token", ("token", "Permission denied")), (wrong, ("--token", "has another"))):
            join = ["rollout", "--join", address(folder), "--token", token, "--patience", "60"]
            program.refused(join, 2, *words, timeout=30, **as_nobody)
    finally:
        os.chmod(root, root_mode)
        shutil.rmtree(own)
    worker = program.start(joining(folder))
    assert run.wait(120) == 0, run.stderr.read()[-3000:]
    assert worker.wait(30) == 0, worker.stderr.read()[-3000:]
    rf.check_whole(folder, 4)
    rf.said("another user of the machine does not join, and hears so in words at once")


def gold_answers(program, root):
    """Right answers go to workers where the reward goes by them, and to no others; the run's samples have them either way."""
    rule = pathlib.Path(root) / "graded.py"
    rule.write_text("def score(prompts, completions, answers):\n"
                    "    return [float(any(c in '01234' for c in text) and answer != '') for text, answer in zip(completions, answers)]\n")
    for name, settings, told in (("regex", {}, "''"), ("python", {"reward.rule": "python", "reward.python": f"{rule}:score"}, r"'\d+'")):
        folder = pathlib.Path(root) / f"gold_{name}"
        run = begun(program, folder, {"run.steps": 2, **settings})
        heard = hostile(program, folder, "listen")
        assert re.search(f"the right answer: {told}$", heard.strip()), f"{name}: {heard}"
        worker = program.start(joining(folder))
        assert run.wait(120) == 0 and worker.wait(30) == 0, run.stderr.read()[-3000:]
        answers = {answer for (answer,) in rf.rows(folder, "SELECT DISTINCT answer FROM samples")}
        assert answers and "" not in answers, f"{name}: the run's samples lack right answers: {answers}"
        assert any(score > 0 for (score,) in rf.samples(folder, "score")), f"{name}: no answer scored"
    rf.said("workers are told right answers where the reward goes by them alone, and the run's samples have them")


def drawing(program, root):
    """A worker in another dtype is refused, unless the loss corrects for it; under --parity it is in any case."""
    for name, settings, words in (
            ("plain", {"run.parity": "false"}, ("float32 on cpu without a correction", "--dtype float32", "algo.correction=token")),
            ("parity", {"algo.correction": "token"}, ("float32 on cpu under --parity", "--dtype float32"))):
        folder = pathlib.Path(root) / f"drawing_{name}"
        run = begun(program, folder, {"run.steps": 3, **settings})
        program.refused(joining(folder, "--dtype", "bfloat16"), 2, "rollout: generates in bfloat16 on cpu", "expects", *words)
        worker = program.start(joining(folder, "--dtype", "float32"))
        _, log = run.communicate(timeout=120)
        assert run.returncode == 0 and worker.wait(30) == 0, log[-3000:]
        assert re.search(r"joined: worker \d+ \(127\.0\.0\.1:\d+, float32 on cpu\)", log), log[-2000:]
    rf.said("a worker that draws otherwise than the run is let in where the loss corrects for it alone")


CHECKS = {"hostile": hostile_workers, "other_user": other_user, "gold": gold_answers, "drawing": drawing}
if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS)
