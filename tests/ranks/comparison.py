# SPDX-License-Identifier: Apache-2.0
"""Compares the steps of two runs that trained the same samples."""
import itertools
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import run_folder as rf  # noqa: E402

BOUND = 1e-5


def worst_logprob(a_rows, b_rows):
    """Largest relative difference of (ids, logprobs, advantage) rows, and how many tokens there are."""
    worst, tokens = 0.0, 0
    for a, b in zip(a_rows, b_rows):
        for x, y in itertools.zip_longest(rf.floats(a[1]), rf.floats(b[1]), fillvalue=math.nan):
            tokens += 1
            worst = max(worst, abs(x - y) / max(1e-30, abs(y))) if x == x and y == y else math.inf
    return worst, tokens


def compare(checks, name, folder, base, steps):
    """Gradient norms and log-probabilities, relative; the loss against the mean absolute advantage."""
    mine, theirs = rf.metrics(folder), rf.metrics(base)
    checks.check(len(mine) == len(theirs) == steps, name + ": the number of steps")
    checks.check(sum(m["actor/grad_norm"] > 0 for m in theirs) >= steps - 2, name + ": too few steps have a gradient to compare")
    norm = max(abs(a["actor/grad_norm"] - b["actor/grad_norm"]) / max(1e-30, b["actor/grad_norm"]) for a, b in zip(mine, theirs))
    a_rows, b_rows = (rf.samples(f, "response_ids, train_logprobs, advantage") for f in (folder, base))
    checks.check([r[0] for r in a_rows] == [r[0] for r in b_rows] and [r[2] for r in a_rows] == [r[2] for r in b_rows],
                 name + ": other samples were trained")
    worst, tokens = worst_logprob(a_rows, b_rows)
    advantage = sum(abs(r[2]) for r in b_rows) / len(b_rows)
    loss = max(abs(a["actor/loss"] - b["actor/loss"]) for a, b in zip(mine, theirs)) / advantage
    checks.check(norm <= BOUND, "%s: a gradient norm differs by %.2g, relative" % (name, norm))
    checks.check(worst <= BOUND, "%s: a log-probability differs by %.2g, relative" % (name, worst))
    checks.check(loss <= BOUND, "%s: a loss differs by %.2g of the mean absolute advantage" % (name, loss))
    print("%-24s grad norm %.2g   logprob %.2g   loss %.2g   %d tokens" % (name, norm, worst, loss, tokens), flush=True)
