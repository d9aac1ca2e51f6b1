# SPDX-License-Identifier: Apache-2.0
"""Layouts compute the same: ten steps on the samples of one run, trained under dp2 and tp2, by threads and by processes,
give one rank's gradient norms and log-probabilities within 1e-5; each rollout layout gives one rank's greedy answers. So it is with
experts that ranks hold between them."""
import itertools
import json
import math
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import run_folder as rf  # noqa: E402
import small_model  # noqa: E402

STEPS = 10
BOUND = 1e-5
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


def compare(name, folder, base):
    """Worst relative differences of gradient norm and of log-probabilities."""
    mine, theirs = rf.metrics(folder), rf.metrics(base)
    checks.check(len(mine) == len(theirs) == STEPS, name + ": the number of steps")
    checks.check(sum(m["actor/grad_norm"] > 0 for m in theirs) >= STEPS - 2, name + ": too few steps have a gradient to compare")
    norm = max(abs(a["actor/grad_norm"] - b["actor/grad_norm"]) / max(1e-30, b["actor/grad_norm"]) for a, b in zip(mine, theirs))
    a_rows, b_rows = (rf.samples(f, "response_ids, train_logprobs, advantage") for f in (folder, base))
    checks.check([r[0] for r in a_rows] == [r[0] for r in b_rows] and [r[2] for r in a_rows] == [r[2] for r in b_rows],
                 name + ": other samples were trained")
    worst = 0.0
    tokens = 0
    for a, b in zip(a_rows, b_rows):
        for x, y in itertools.zip_longest(rf.floats(a[1]), rf.floats(b[1]), fillvalue=math.nan):
            tokens += 1
            worst = max(worst, abs(x - y) / max(1e-30, abs(y))) if x == x and y == y else math.inf
    checks.check(norm <= BOUND, "%s: a gradient norm differs by %.2g, relative" % (name, norm))
    checks.check(worst <= BOUND, "%s: a log-probability differs by %.2g, relative" % (name, worst))
    print("%-24s grad norm %.2g   logprob %.2g   %d tokens" % (name, norm, worst, tokens), flush=True)


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
        compare(layout + ", experts", root + "/" + layout, one)
        worst = max(abs(a - b) for a, b in zip(logprobs_of(root + "/" + layout), logprobs_of(one), strict=True))
        checks.check(worst <= BOUND, "%s: the trained model that was saved differs by %.2g" % (layout, worst))
    for train, rollout in (("dp2", "dp2,ep2"), ("tp2,ep2", "tp2,ep2"), ("dp2", "tp2,ep2"), ("tp2", "dp2,ep2"), ("tp2,ep2", "dp2,ep2")):
        check_rollout(root + "/" + train + "-" + rollout, settings, start, (train, rollout), want)
    refused = ["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", root + "/no", *start, "--ranks", "2", "--train-layout", "dp2,ep2"]
    program.refused(refused + rf.sets(settings), 2, "cannot be trained in this version")


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
    compare("one rank again", one, base)
    for layout in LAYOUTS:
        program.quickstart(root + "/" + layout, pair, replay + ["--ranks", "2", "--train-layout", layout])
        compare(layout + ", threads", root + "/" + layout, one)
        if "--mpi" in sys.argv and start == "random weights":
            program.quickstart(root + "/mpi-" + layout, pair, replay + ["--train-layout", layout], rf.mpi(2))
            compare(layout + ", processes", root + "/mpi-" + layout, one)
    for train, rollout in itertools.product(LAYOUTS, LAYOUTS if start == "random weights" else []):
        check_rollout(root + "/" + train + "-" + rollout, pair, ["--model", model], (train, rollout), want)


for start, settings in STARTS.items():
    with tempfile.TemporaryDirectory(prefix="tandem_ranks_") as root:
        check_start(start, settings, root)
with tempfile.TemporaryDirectory(prefix="tandem_ranks_") as root:
    check_experts(root)
checks.exit()
