# SPDX-License-Identifier: Apache-2.0
"""Numbers at their ends: a policy far from its reference, scores that are huge or hardly differ, a score that falls, a critic's rate,
answers that are cut."""
import math
import pathlib
import random
import re
import shutil
import struct
import tempfile

import run_folder as rf

checks = rf.Checks()
program = rf.built_program()
FREE = {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.parity": "false", "eval.every_steps": 0}


def run(root, name, settings, flags=(), steps=2):
    program.quickstart(f"{root}/{name}", {**FREE, "run.steps": steps, **settings}, ["--no-eval", *flags])
    return rf.all_metrics(f"{root}/{name}")


def reward(root, name, body):
    """A settings dict whose reward is this body of score(completions, **columns)."""
    path = pathlib.Path(root, name + ".py")
    path.write_text("import os\n\ndef score(completions, **columns):\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    return {"reward.rule": "python", "reward.python": f"{path}:score"}


def log_of(root, name):
    return pathlib.Path(root, name, "log.txt").read_text()


def with_noise(source, out, scale):
    """A copy of a float32 model with normal noise on all weights."""
    shutil.copytree(source, out)
    path = next(pathlib.Path(out).glob("*.safetensors"))
    whole = path.read_bytes()
    begin = 8 + struct.unpack("<Q", whole[:8])[0]
    values = list(memoryview(whole[begin:]).cast("f"))
    rng = random.Random(5)
    path.write_bytes(whole[:begin] + struct.pack(f"<{len(values)}f", *(v + scale * rng.gauss(0, 1) for v in values)))
    return out


def far_from_the_reference(root):
    """The further off, the larger the KL term, and its pull does not stop; all scores are alike, so that nothing else pulls."""
    run(root, "start", {}, steps=1)
    start = f"{root}/start/init/hf"
    for estimator, in_reward in (("k3", "false"), ("k3+", "false"), ("k3", "true")):
        seen = []
        for scale in (0.05, 0.3, 1.0, 2.0):
            reference = f"{root}/reference-{scale}"
            if not pathlib.Path(reference).exists():
                with_noise(start, reference, scale)
            settings = {**reward(root, "same", "return [1.0] * len(completions)"), "algo.kl_coef": 0.5, "algo.kl_estimator": estimator,
                        "algo.kl_in_reward": in_reward, "model.ref_model_load_path": reference}
            m = run(root, f"far-{estimator}-{in_reward}-{scale}", settings, ["--model", start], steps=1)[0]
            seen.append((m["actor/kl_ref"], m["actor/grad_norm"]))
        checks.check(all(a[0] < b[0] for a, b in zip(seen, seen[1:])), f"{estimator}, in reward {in_reward}: the KL grows: {seen}")
        checks.check(seen[-1][0] > 12 and seen[-1][1] > 0.1 * seen[1][1], f"{estimator}, in reward {in_reward}: nothing bounds it: {seen}")
    cut = {**reward(root, "same", "return [1.0] * len(completions)"), "algo.kl_coef": 0.5, "algo.kl_cut": 10,
           "model.ref_model_load_path": f"{root}/reference-2.0"}
    m = run(root, "far-cut", cut, ["--model", start], steps=1)[0]
    checks.check(m["actor/kl_ref"] <= 10, f"a cut bounds it: {m['actor/kl_ref']}")
    wrong = rf.sets({"algo.kl_cut": 10, "algo.kl_estimator": "k2"})
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/no", *wrong], 2, "kl_cut", "k2")


def huge_scores(root):
    """Scores whose squares overflow are compared as small ones are; an advantage that float32 does not hold is an error."""
    body = "return [FACTOR * (len(set(c)) % 3) for c in completions]"
    for name in ("grpo", "reinforce_pp", "reinforce_pp_baseline", "grpo_passk"):
        plain, huge = (run(root, f"{name}-{factor}", {**reward(root, f"by{factor}", body.replace("FACTOR", factor)), "algo.name": name})
                       for factor in ("1.0", "1e200"))
        checks.check(all(math.isfinite(m["reward/std"]) for m in huge), f"{name}: the deviation of huge scores")
        losses = [[m["actor/grad_norm"] for m in steps] for steps in (plain, huge)]
        far = max(abs(a - b) / max(a, 1e-9) for a, b in zip(*losses))
        checks.check(min(losses[0]) > 0 and far < 1e-3, f"{name}: gradients of scores up to 2 and up to 2e200: {losses}")
    largest = run(root, "largest", reward(root, "largest", "return [8e307 * (len(set(c)) % 3) for c in completions]"))
    means = [[m.get(k, math.nan) for k in ("reward/mean", "reward/python/score", "reward/std")] for m in largest]
    checks.check(all(0 < x < 1.7e308 for line in means for x in line), f"scores whose sums overflow: {means}")
    settings = {**FREE, **reward(root, "by1e200", body.replace("FACTOR", "1e200")), "algo.name": "dr_grpo"}
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/dr", "--no-eval", *rf.sets(settings)], 2,
                    "reward", "advantage", "float32", "reward.scale")


def hardly_any_spread(root):
    """A batch whose scores hardly differ, beside those before it, is whitened to hardly anything."""
    noise = "return [0.9 + (1e-9 * (len(set(c)) % 3)) for c in completions]"
    for name in ("reinforce_pp", "reinforce_pp_baseline"):
        run(root, f"flat-{name}", {**reward(root, "flat", noise), "algo.name": name})
        most = max(abs(a) for (a,) in rf.samples(f"{root}/flat-{name}", "advantage"))
        checks.check(0 < most < 0.02, f"{name}: a spread of rounding becomes {most}")
        run(root, f"flat-off-{name}", {**reward(root, "flat", noise), "algo.name": name, "algo.whiten_floor": 0})
        checks.check(max(abs(a) for (a,) in rf.samples(f"{root}/flat-off-{name}", "advantage")) < 2, f"{name}: the floor is off")
    # The count of calls makes a batch with spread, then one with a hundredth of it.
    body = f"""path = {str(pathlib.Path(root, 'calls'))!r}
calls = os.path.getsize(path) if os.path.exists(path) else 0
open(path, 'a').write('.')
return [(1.0 if calls < 8 else 0.01) * (len(set(c)) % 2) for c in completions]"""
    run(root, "later", {**reward(root, "later", body), "algo.name": "reinforce_pp_baseline", "reward.workers": 1}, steps=4)
    by_step = {}
    for step, a in rf.samples(f"{root}/later", "step, advantage"):
        by_step.setdefault(step, []).append(abs(a))
    most = {step: max(all_of) for step, all_of in by_step.items()}
    checks.check(most[1] > 0.8 and most[2] > 0.8 and most[3] < 0.3, f"the largest advantage of each step: {most}")
    outlier = body.replace("(1.0 if calls < 8 else 0.01)", "(1000.0 if calls < 4 else 1.0)").replace("calls'", "calls-2'")
    first = run(root, "outlier", {**reward(root, "outlier", outlier), "algo.name": "reinforce_pp_baseline", "reward.workers": 1}, steps=5)
    most = {}
    for step, a in rf.samples(f"{root}/outlier", "step, advantage"):
        most[step] = max(most.get(step, 0), abs(a))
    checks.check(most[5] > 0.8, f"a batch that stands out does not mute those behind it: {most}")
    checks.check(first[0]["actor/advantage_std"] > 100 > 1 > first[4]["actor/advantage_std"], "the deviation is a metric")


def a_score_that_falls(root):
    """Says so once, and not again after a resume; a score that only wavers says nothing."""
    for name, told in (({"algo.name": "reinforce_pp"}, True), ({"algo.name": "reinforce_pp", "algo.kl_coef": 0.1}, False),
                       ({"algo.name": "reinforce_pp_baseline"}, False)):
        folder = "-".join(map(str, name.values()))
        run(root, folder, name, steps=1)
        checks.check(("scores may fall" in log_of(root, folder)) == told, f"{name}: the start warns of it: {told}")
    body = f"""path = {str(pathlib.Path(root, 'fall-calls'))!r}
calls = os.path.getsize(path) if os.path.exists(path) else 0
open(path, 'a').write('.')
return [float(calls < 40)] * len(completions)"""
    settings = {**reward(root, "fall", body), "reward.workers": 1, "algo.name": "ppo"}
    run(root, "fall", settings, steps=16)
    told = [line for line in log_of(root, "fall").splitlines() if "the mean score has fallen" in line]
    checks.check(len(told) == 1, f"told once: {told}")
    checks.check(re.search(r"step 1[2-5]: .*it was 1 about step", told[0]) is not None, told[0])
    for cause in ("train.lr 0.001", "critic.lr 0.001", "algo.kl_coef 0"):
        checks.check(cause in told[0], f"{cause} is named: {told[0]}")
    run(root, "fall", settings, ["--resume"], steps=20)
    checks.check(log_of(root, "fall").count("the mean score has fallen") == 1, "a resume does not say it again")
    below = body.replace("float(calls < 40)", "-0.75 - 0.25 * (calls >= 40)").replace("fall-calls", "below-calls")
    run(root, "below", {**reward(root, "below", below), "reward.workers": 1}, steps=30)
    checks.check(log_of(root, "below").count("the mean score has fallen") == 1, "scores below 0 fall, too")
    run(root, "waver", {**reward(root, "waver", "return [float(len(c) % 2) for c in completions]"), "train.lr": 0}, steps=20)
    checks.check("has fallen" not in log_of(root, "waver"), "noise is no fall")


def rate_of_the_critic(root):
    """That of the actor, unless it is said."""
    for name, settings, want in (("follows", {"algo.name": "ppo", "train.lr": 3e-4}, 3e-4),
                                 ("by-advantage", {"algo.advantage": "gae", "train.lr": 2e-4}, 2e-4),
                                 ("said", {"algo.name": "ppo", "train.lr": 3e-4, "critic.lr": 1e-5}, 1e-5)):
        m = run(root, name, settings, steps=1)[0]
        checks.check(m["critic/lr"] == want, f"{name}: critic/lr is {m['critic/lr']}")
    run(root, "without", {"train.lr": 3e-4}, steps=1)
    dumped = f"{root}/without-dumped"
    program.done(["run", f"{root}/without/config.yaml", "--run-dir", dumped, "--set", "algo.advantage=gae", "--no-eval"])
    checks.check(rf.all_metrics(dumped)[0]["critic/lr"] == 3e-4, "so does one that is added to a run's config.yaml")
    again = f"{root}/follows-again"
    program.done(["run", f"{root}/follows/config.yaml", "--run-dir", again, "--set", "train.lr=1e-3", "--no-eval"])
    checks.check(rf.all_metrics(again)[0]["critic/lr"] == 3e-4, "config.yaml says it")


def cut_answers(root):
    """critic.bootstrap_truncated adds the value of the whole text; every layout agrees."""
    ppo = {"algo.name": "ppo", "algo.lambda": 0.9, "critic.lr": 3e-3, "rollout.max_new_tokens": 3, "run.parity": "true"}
    plain = run(root, "ended", ppo, steps=6)
    bootstrapped = run(root, "goes-on", {**ppo, "critic.bootstrap_truncated": "true"}, steps=6)
    checks.check(plain[0]["data/truncated_fraction"] > 0.2, f"answers are cut: {plain[0]['data/truncated_fraction']}")
    checks.check(plain[0]["critic/loss"] == bootstrapped[0]["critic/loss"], "the first values are 0")
    checks.check(plain[-1]["critic/values_mean"] < bootstrapped[-1]["critic/values_mean"], "values behind a cut are counted")
    for name, flags in (("dp2", ["--ranks", "2"]), ("pp2", ["--ranks", "2", "--train-layout", "pp2"])):
        layout = run(root, f"goes-on-{name}", {**ppo, "critic.bootstrap_truncated": "true"}, flags, steps=6)
        far = max(abs(a[metric] - b[metric]) for a, b in zip(bootstrapped, layout) for metric in ("critic/loss", "critic/values_mean"))
        checks.check(far < 1e-4, f"{name}: {far} from one rank's")
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/no", "--set", "critic.bootstrap_truncated=true"], 2,
                    "bootstrap_truncated", "gae")


def main():
    with tempfile.TemporaryDirectory() as root:
        for part in (far_from_the_reference, huge_scores, hardly_any_spread, a_score_that_falls, rate_of_the_critic, cut_answers):
            part(root)
            rf.said(part.__name__)
    checks.exit()


if __name__ == "__main__":
    main()
