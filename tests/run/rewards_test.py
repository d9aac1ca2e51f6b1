# SPDX-License-Identifier: Apache-2.0
"""Rewards in whole runs: advantages see shaped scores while metrics keep the raw ones, the overlong punishment knows the longest
response, and each group is scored once, whatever the layout."""
import math
import pathlib
import tempfile

import run_folder as rf

checks = rf.Checks()
program = rf.built_program()
STEPS = 3


def run(root, name, settings, flags=()):
    folder = f"{root}/{name}"
    program.quickstart(folder, {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": STEPS, **settings}, ["--no-eval", *flags])
    return folder


def groups_of(folder):
    """(score, advantage, tokens) of the samples of each group"""
    groups = {}
    for step, group, score, advantage, ids in rf.samples(folder, "step, group_id, score, advantage, response_ids"):
        groups.setdefault((step, group), []).append((score, advantage, len(ids) // 4))
    return groups


COUNTED = """
import os, time
def score(prompts, completions, answers):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls"), "a") as out:
        out.write("%d\\n" % len(completions))
    if len(completions) == 1:  # of an evaluation, whose peers do not wait for these grades
        time.sleep(0.3)
    return [float(any(c in t for c in "01234")) for t in completions]
"""


def shaping(root):
    """Dr.GRPO's advantage is the shaped score less the group's mean of it."""
    written = pathlib.Path(root, "many.py")
    written.write_text("def score(prompts, completions, answers):\n    return [float(sum(map(ord, c)) % 11 - 5) for c in completions]\n")
    many = {"reward.rule": "", "reward.python": f"{written}:score", "algo.name": "dr_grpo"}
    plain = groups_of(run(root, "plain", many))
    shaped = {"reward.scale": 0.5, "reward.clip_low": -1, "reward.clip_high": 1.25}
    folder = run(root, "shaped", {**many, **shaped})
    seen, bound = groups_of(folder), 0
    for samples in seen.values():
        of = [min(max(0.5 * score, -1), 1.25) for score, _, _ in samples]
        bound += sum(value in (-1, 1.25) for value in of)
        checks.check(all(abs(a - (v - sum(of) / len(of))) < 1e-9 for (_, a, _), v in zip(samples, of)), f"{samples}: shaped {of}")
    checks.check(bound > 5, "some scores were outside the bounds")
    raw = [[score for score, _, _ in samples] for (step, _), samples in sorted(seen.items()) if step == 1]
    checks.check(raw == [[score for score, _, _ in samples] for (step, _), samples in sorted(plain.items()) if step == 1],
                 "samples keep their scores")
    for m in rf.metrics(folder):
        scores = [s for (step, _), samples in seen.items() if step == m["step"] for s, _, _ in samples]
        checks.check(abs(m["reward/mean"] - sum(scores) / len(scores)) < 1e-9, "reward/mean is that of the raw scores")

    alike = {"algo.filter_groups": "true", "algo.max_filter_rounds": 50, "reward.clip_low": -0.5, "reward.clip_high": 0.5}
    folder = run(root, "shaped-filter", {**many, **alike, "schedule.group_size": 2})
    checks.check(all(len({min(max(s, -0.5), 0.5) for s, _, _ in samples}) > 1 for samples in groups_of(folder).values()),
                 "a group whose shaped scores are alike is replaced")
    checks.check(sum(m["data/groups_filtered"] for m in rf.metrics(folder)) > 0, "some were")


def soft_overlong(tokens, limit, cache):
    """TRL's get_soft_overlong_punishment"""
    if tokens <= limit - cache:
        return 0
    return (limit - cache - tokens) / cache if tokens <= limit else -1


def overlong(root):
    """The limit is that of the rollout unless the recipe says another."""
    for name, more, limit in (("overlong", {}, 6), ("overlong-said", {"reward.max_tokens": 5}, 5)):
        folder = run(root, name, {"reward.rule": "", "reward.rules": "[regex=1.0, overlong=0.5]", "reward.overlong_cache": 4, **more})
        rows = rf.rows(folder, "SELECT response, response_ids, score FROM samples")
        wrong = [row for row in rows
                 if not math.isclose(row[2], float(any(c in row[0] for c in "01234")) + 0.5 * soft_overlong(len(row[1]) // 4, limit, 4))]
        checks.check(not wrong, f"{name}: {wrong[:3]}")
        checks.check(len({len(ids) for _, ids, _ in rows}) > 2, f"{name}: responses of several lengths")
        checks.check(all("reward/overlong" in m for m in rf.metrics(folder)), f"{name}: the part is a metric")
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/refused", "--no-eval",
                     *rf.sets({**rf.TINY, "reward.rule": "overlong", "supervised.steps": 0})], 2, "reward.overlong_cache", "is 200",
                    "the longest answer has 6 tokens")


def scored_once(root):
    """Tensor and pipeline peers have the same answers: one of them has the groups scored, and evaluations, too."""
    written = pathlib.Path(root, "counted.py")
    written.write_text(COUNTED)
    calls, counts = pathlib.Path(root, "calls"), {}
    for layout, ranks in (("dp1", 1), ("tp2", 2), ("pp2", 2), ("dp2,tp2", 4)):
        calls.unlink(missing_ok=True)
        folder = f"{root}/once-{ranks}-{layout}"
        program.quickstart(folder, {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": STEPS, "run.parity": "false",
                                    "reward.rule": "", "reward.python": f"{written}:score", "data.synthetic_eval_rows": 4,
                                    "eval.every_steps": 0, "eval.before": "false", "parallel.rollout_layout": layout,
                                    "parallel.train_layout": f"dp{ranks}"}, ["--ranks", str(ranks)])
        sizes = [int(line) for line in calls.read_text().split()]
        counts[layout] = (sizes.count(4), sizes.count(1))
        checks.check(len(groups_of(folder)) == STEPS * 4 and len(rf.evals(folder)) == 4, f"{layout}: all groups and problems are there")
        checks.check(all("time/reward_s" in m for m in rf.all_metrics(folder)), f"{layout}: the time of rewards is a metric")
    checks.check(all(count == (STEPS * 4, 4) for count in counts.values()), f"calls for groups and for problems: {counts}")


with tempfile.TemporaryDirectory(prefix="tandem_rewards_") as root:
    shaping(root)
    overlong(root)
    scored_once(root)
checks.exit()
