# SPDX-License-Identifier: Apache-2.0
"""Layouts compute the same: ten steps on the samples of one run, trained under dp2 and tp2, by threads and by processes,
give one rank's gradient norms and log-probabilities within 1e-5; each rollout layout gives one rank's greedy answers. So it is with
experts that ranks hold between them."""
import itertools
import json
import sys
import tempfile

from comparison import BOUND, compare, rf
import small_model

STEPS = 10
TINY = {
    "model.dtype": "float32", "schedule.groups_per_step": 8, "schedule.group_size": 4, "eval.every_steps": 0, "run.steps": STEPS,
    "data.synthetic_eval_rows": 60, "data.synthetic_rows": 2000, "rollout.max_running": 32, "checkpoint.every_steps": 0,
    "reward.rule": "regex", "reward.pattern": "^[02468]",  # so that every step has a gradient
}
# Random weights, whose answers are long and all different; and a model that has learned a little and is sure of some tokens.
STARTS = {
    "random weights": {**TINY, "supervised.steps": 0, "rollout.max_new_tokens": 24, "eval.max_new_tokens": 24},
    "warm start": {**TINY, "supervised.steps": 30, "supervised.stop_at_accuracy": 0, "supervised.batch_size": 64, "data.digits": 2},
}
LAYOUTS = ("dp2", "tp2")
checks = rf.Checks()
program = rf.built_program()


def answers(folder):
    return rf.rows(folder, "SELECT row, response FROM evals WHERE step = 0 ORDER BY row")


def check_rollout(folder, settings, flags, layouts, want):
    name = "train %s, rollout %s" % layouts
    program.quickstart(folder, {**settings, "run.steps": 2, "eval.after": "false"},
                       [*flags, "--ranks", "2", "--threads", "2", "--train-layout", layouts[0], "--rollout-layout", layouts[1]])
    steps = rf.metrics(folder)
    checks.check(len(steps) == 2, name + ": the number of steps")
    worst = max(abs(m["actor/kl_rollout_train"]) for m in steps)
    checks.check(worst < 1e-9, "%s: rollout and training disagree by %.2g" % (name, worst))
    checks.check(answers(folder) == want, name + ": greedy answers differ from one rank's")
    print("%-24s kl_rollout_train %.2g, greedy answers equal: %s" % (name, worst, answers(folder) == want), flush=True)


def logprobs_of(folder):
    lines = "".join(json.dumps({"ids": [i, 3, 5, i + 1, 2, 7]}) + "\n" for i in range(1, 8))
    out = program.done(["logprobs", "--model", folder + "/checkpoint/latest/hf"], stdin=lines).stdout
    return [x for line in out.splitlines() for x in json.loads(line)["logprobs"]]


def check_experts(root):
    settings = STARTS["random weights"]
    program.quickstart(root + "/dense", {**settings, "run.steps": 1}, ["--no-eval"])
    small_model.write_moe(root + "/moe", root + "/dense/init/hf")
    start = ["--model", root + "/moe"]
    program.quickstart(root + "/base", settings, [*start, "--threads", "1"])
    want = answers(root + "/base")
    checks.check(len(set(r[1] for r in want)) >= 3, "experts: the base run answers in many ways")
    replay = [*start, "--replay", root + "/base", "--no-eval", "--threads", "2"]
    one = root + "/one"
    program.quickstart(one, settings, replay)
    print("experts")
    for layout in ("dp2", "tp2", "tp2,ep2"):
        program.quickstart(root + "/" + layout, settings, replay + ["--ranks", "2", "--train-layout", layout])
        compare(checks, layout + ", experts", root + "/" + layout, one, STEPS)
        worst = max(abs(a - b) for a, b in zip(logprobs_of(root + "/" + layout), logprobs_of(one), strict=True))
        checks.check(worst <= BOUND, "%s: the trained model that was saved differs by %.2g" % (layout, worst))
    for train, rollout in (("dp2", "dp2,ep2"), ("tp2,ep2", "tp2,ep2"), ("dp2", "tp2,ep2"), ("tp2", "dp2,ep2"), ("tp2,ep2", "dp2,ep2")):
        check_rollout(root + "/" + train + "-" + rollout, settings, start, (train, rollout), want)


def check_start(start, settings, root):
    base = root + "/base"
    program.quickstart(base, settings, ["--threads", "1"])
    model = base + ("/warm_start/hf" if settings["supervised.steps"] else "/init/hf")
    want = answers(base)
    checks.check(len(want) >= 50 and len(set(r[1] for r in want)) >= 3, start + ": the base run answers in many ways")
    pair = {**settings, "supervised.steps": 0}
    replay = ["--model", model, "--replay", base, "--no-eval", "--threads", "2"]
    one = root + "/one"
    program.quickstart(one, pair, replay)
    print(start)
    compare(checks, "one rank again", one, base, STEPS)
    for layout in LAYOUTS:
        program.quickstart(root + "/" + layout, pair, replay + ["--ranks", "2", "--train-layout", layout])
        compare(checks, layout + ", threads", root + "/" + layout, one, STEPS)
        if "--mpi" in sys.argv and start == "random weights":
            program.quickstart(root + "/mpi-" + layout, pair, replay + ["--train-layout", layout], rf.mpi(2))
            compare(checks, layout + ", processes", root + "/mpi-" + layout, one, STEPS)
    for train, rollout in itertools.product(LAYOUTS, LAYOUTS if start == "random weights" else []):
        check_rollout(root + "/" + train + "-" + rollout, pair, ["--model", model], (train, rollout), want)


for start, settings in STARTS.items():
    with tempfile.TemporaryDirectory(prefix="tandem_ranks_") as root:
        check_start(start, settings, root)
with tempfile.TemporaryDirectory(prefix="tandem_ranks_") as root:
    check_experts(root)
checks.exit()
