# SPDX-License-Identifier: Apache-2.0
"""Every published algorithm runs, in parity bit for bit; several updates on a batch, corrections and masks do what their options say, in
every layout, and go on after a resume. ReMax compares with greedy answers under every schedule."""
import json
import math
import pathlib
import re
import struct
import tempfile

import run_folder as rf
import small_model

checks = rf.Checks()
program = rf.built_program()
SCORES = "step, group_id, score, advantage, finish, response_ids"


def run(root, name, settings, flags=(), steps=4):
    folder = f"{root}/{name}"
    options = {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": steps, **settings}
    program.quickstart(folder, options, ["--no-eval", *flags])
    return folder


def every_name_trains(root):
    for name in NAMES:
        steps = rf.metrics(run(root, name, {"algo.name": name}))
        checks.check(len(steps) == 4 and all(math.isfinite(m["actor/loss"]) for m in steps), f"{name}: four steps with a finite loss")
        checks.check(any(m["actor/grad_norm"] > 0 for m in steps), f"{name}: it trains")
        checks.check(all(m["actor/kl_rollout_train"] == 0 for m in steps), f"{name}: rollout and training agree in parity mode")
        gaps = {(m["gap/mean"], m["gap/p99"], m["gap/max"]) for m in steps}
        checks.check(gaps == {(0, 0, 0)} and all(m["gap/tokens"] > 0 for m in steps), f"{name}: the gap is exactly 0, and is {gaps}")


def whitened_advantages(root):
    """reinforce_pp compares the whole batch: over its tokens, advantages have mean 0 and variance 1."""
    for _, rows in by_step(rf.samples(run(root, "whiten", {"algo.name": "reinforce_pp"}), SCORES)).items():
        tokens = [a for _, _, _, a, _, ids in rows for _ in range(len(ids) // 4)]
        mean = sum(tokens) / len(tokens)
        variance = sum((a - mean) ** 2 for a in tokens) / (len(tokens) - 1)
        flat = len({score for _, _, score, _, _, _ in rows}) == 1
        checks.check(abs(mean) < 1e-6 and (flat or abs(variance - 1) < 1e-5), f"mean {mean}, variance {variance}")


def entropy_bonus(root):
    """The first loss is less by the bonus, as the samples are the same; after some updates the policy has more entropy."""
    settings = {"train.lr": 1e-2, "algo.name": "dapo", "algo.filter_groups": "false"}
    plain = rf.metrics(run(root, "no-bonus", settings, steps=8))
    bonus = rf.metrics(run(root, "bonus", {**settings, "algo.entropy_coef": 0.5}, steps=8))
    first = plain[0]["actor/loss"] - 0.5 * plain[0]["actor/entropy"]
    checks.check(abs(bonus[0]["actor/loss"] - first) < 1e-5, f"the first loss is {bonus[0]['actor/loss']}, expected {first}")
    ends = [sum(m["actor/entropy"] for m in steps[-2:]) / 2 for steps in (plain, bonus)]
    checks.check(ends[1] > ends[0], f"the bonus ends with an entropy of {ends[1]}, without it is {ends[0]}")
    for other in (["--ranks", "2", "--train-layout", "tp2", "--rollout-layout", "tp2"], ["--ranks", "2", "--train-layout", "dp2"]):
        ranks = rf.metrics(run(root, "bonus-" + other[3], {**settings, "algo.entropy_coef": 0.5}, other, steps=1))
        checks.check(abs(ranks[0]["actor/loss"] - bonus[0]["actor/loss"]) < 1e-4, f"{other[3]}: loss {ranks[0]['actor/loss']}")


def by_step(rows):
    out = {}
    for row in rows:
        out.setdefault(row[0], []).append(row)
    return out


def several_updates(root):
    """One layout against another, a resume against none, and the number of updates."""
    two = {"algo.mini_batches": 2, "algo.epochs": 2, "train.lr": 1e-2}
    whole = run(root, "updates", two)
    steps = rf.metrics(whole)
    checks.check(all(m["actor/updates"] == 4 for m in steps), "two mini-batches, two epochs: four updates")
    checks.check(all(m["actor/kl_rollout_train"] == 0 for m in steps), "the first update's samples are fresh")
    checks.check(any(abs(m["actor/kl_old"]) > 1e-6 for m in steps), "the last update is away from the old policy")
    checks.check(steps[-1]["policy_version"] == 4, "a version counts batches, not updates")
    again = run(root, "updates-resumed", two, steps=2)
    program.quickstart(again, {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": 4, **two}, ["--no-eval", "--resume"])
    checks.check(rf.metrics(again) == steps, "a resumed run is the same")
    dp2 = rf.metrics(run(root, "updates-dp2", two, ["--ranks", "2", "--train-layout", "dp2"]))
    for a, b in zip(steps, dp2):
        checks.check(abs(a["actor/loss"] - b["actor/loss"]) < 1e-5, f"dp2: loss {b['actor/loss']}, one rank {a['actor/loss']}")

    near = rf.metrics(run(root, "near", {**two, "algo.max_kl": 1e-12}, ["--ranks", "2", "--train-layout", "dp2"]))
    checks.check(all(m["actor/updates"] == 1 for m in near), "the first mini-batch takes the policy too far for the second")
    some = rf.samples(f"{root}/near", "train_logprobs")
    empty = [all(math.isnan(x) for x in memoryview(blob).cast("f")) for (blob,) in some]
    checks.check(any(empty) and not all(empty), "samples that no update was made on have no log-probabilities of training")
    nearer = rf.metrics(run(root, "nearer", {"algo.epochs": 4, "algo.max_kl": 1e-9, "train.lr": 1e-2}))
    checks.check(all(m["actor/updates"] == 1 for m in nearer), "no second update where the first went far")
    once = rf.metrics(run(root, "once", {}))
    checks.check("actor/updates" not in once[0], "one update is not counted")


def truncated_answers(root):
    """All answers are cut: no token is trainable, the weights stay, and every batch still ends."""
    cut = {"rollout.max_new_tokens": 2, "algo.mask_truncated": "true", "reward.pattern": "[0-9]"}
    folder = run(root, "cut", {**cut, "model.init_deviation": 0.02})
    for m, (_, rows) in zip(rf.metrics(folder), sorted(by_step(rf.samples(folder, SCORES)).items())):
        if all(finish == "length" for *_, finish, _ in rows):
            skipped = m["actor/grad_norm"] == 0 and m["actor/loss"] == 0
            checks.check(skipped, "an update without a trainable token is skipped")
    checks.check(len(rf.metrics(folder)) == 4, "a batch without a trainable token ends its step")


def corrections(root):
    stale = {"schedule.kind": "stale", "schedule.staleness": 2, "train.lr": 1e-2, "schedule.old_logprobs": "recompute",
             "run.parity": "false"}
    steps = rf.all_metrics(run(root, "corrected", {**stale, "algo.correction": "token", "algo.correction_upper": 1.0}, steps=8))
    checks.check(all(0 < m["correction/weight_mean"] <= 1 and m["correction/weight_max"] <= 1 for m in steps), "weights keep their bound")
    checks.check(any(m["correction/clipped_fraction"] > 0 for m in steps), "some weights were outside")
    checks.check(any(m["correction/chi2"] > 0 for m in steps), "older samples are of another policy")
    default = rf.all_metrics(run(root, "corrected-default", {"schedule.kind": "stale", "schedule.staleness": 2, "train.lr": 1e-2}, steps=8))
    checks.check(all("correction/weight_mean" in m for m in default), "stale samples are corrected by default")
    checks.check(all("time/old_logprob_s" not in m for m in default), "and that takes no pass")
    checks.check(any(m["correction/rejected_fraction"] > 0 for m in default), "bad tokens of samples that are far off are left out")
    checks.check(any(m["correction/chi2"] > 0 for m in default), "older samples are of another policy, by default, too")
    checks.check(all(m["actor/ratio_max"] == 1 for m in default), "old is the current policy where a batch has one update")
    checks.check("correction/weight_mean" not in rf.all_metrics(f"{root}/grpo")[0], "fresh samples need no correction")
    both = {"algo.mini_batches": 2, "algo.correction_normalize": "true", "run.parity": "false", "rollout.dtype": "bfloat16"}
    one = rf.metrics(run(root, "normalized", both))
    dp2 = rf.metrics(run(root, "normalized-dp2", both, ["--ranks", "2", "--replay", f"{root}/normalized"]))
    alone = rf.metrics(run(root, "normalized-alone", both, ["--replay", f"{root}/normalized"]))
    checks.check(all(m["correction/weight_mean"] != 1 for m in one), "a rollout in bfloat16 is another policy")
    checks.check(all(abs(a["actor/loss"] - b["actor/loss"]) < 1e-5 for a, b in zip(alone, dp2, strict=True)), "the mean is over all ranks")
    rules = {"algo.correction": "token", "algo.rejection": "token_k2", "algo.rejection_bounds": "1e-12"}
    rejected = rf.all_metrics(run(root, "rejected", {**stale, **rules}, steps=8))
    checks.check(any(0 < m["correction/rejected_fraction"] <= 1 for m in rejected), "tokens are left out")


def proximal_weights(folder, most):
    """By step, what correction/weight_mean is if old is log-linear in versions: computed from what samples.sqlite has."""
    weights = {}
    columns = "step, versions, trained_version, logprobs, train_logprobs"
    for step, versions, trained, sampled, now in rf.rows(folder, f"SELECT {columns} FROM samples"):
        count = len(sampled) // 4
        values = zip(rf.token_versions(versions), struct.unpack(f"{count}f", sampled), struct.unpack(f"{count}f", now))
        for version, a, b in values:
            behind = trained + 1 - version
            weights.setdefault(step, []).append(min(most, math.exp((behind - 1) / behind * (b - a))))
    return {step: sum(all_of) / len(all_of) for step, all_of in weights.items()}


def loglinear_proximal(root):
    """Old is between the sampler and the current policy, by versions; in layouts that move rows, too."""
    settings = {"schedule.kind": "stale", "schedule.staleness": 2, "train.lr": 1e-2, "schedule.old_logprobs": "loglinear",
                "run.parity": "false"}
    split = ["--ranks", "2", "--train-layout", "dp1", "--rollout-layout", "dp1"]
    for name, flags in (("one", []), ("dp2", ["--ranks", "2", "--train-layout", "dp2"]), ("split", split)):
        placement = {"parallel.placement": "split"} if name == "split" else {}
        folder = run(root, "loglinear-" + name, {**settings, **placement}, flags, steps=6)
        steps, wanted = rf.all_metrics(folder), proximal_weights(folder, 2.0)
        far = max(abs(m["correction/weight_mean"] - wanted[m["step"]]) for m in steps)
        checks.check(far < 1e-4, f"{name}: the mean weight is {far} from that of samples.sqlite")
        checks.check(any(abs(weight - 1) > 1e-3 for weight in wanted.values()), f"{name}: older samples have weights {wanted}")
        checks.check(any(m["actor/ratio_max"] > 1.001 for m in steps), f"{name}: the current policy is ahead of old")
        checks.check(all("time/old_logprob_s" not in m for m in steps), f"{name}: it takes no pass")


def dynamic_sampling(root):
    """Batches have only groups with spread, whatever the schedule; counts add up; a resume goes on as if nothing had happened."""
    flat = {"algo.filter_groups": "true", "algo.max_filter_rounds": 50, "rollout.max_new_tokens": 2}
    stale = {"schedule.kind": "stale", "schedule.staleness": 2}
    split = ["--ranks", "2", "--train-layout", "dp1", "--rollout-layout", "dp1"]
    for name, settings, flags in (("sync", {}, []), ("stale", stale, []), ("split", {"parallel.placement": "split"}, split),
                                  ("split-stale", {"parallel.placement": "split", **stale}, split)):
        folder = run(root, "filter-" + name, {**flat, **settings}, flags, steps=6)
        steps = rf.metrics(folder)
        checks.check(sum(m["data/groups_filtered"] for m in steps) > 0, f"{name}: some groups were alike")
        checks.check(all(m["data/groups_without_signal"] == 0 for m in steps), f"{name}: each update has only groups with spread")
        for step, rows in by_step(rf.samples(folder, SCORES)).items():
            checks.check(len(rows) == 16, f"{name}: step {step} has four groups of four")
        dropped = rf.rows(folder, "SELECT DISTINCT group_id FROM dropped")
        trained = {row[1] for row in rf.samples(folder, SCORES)}
        checks.check(not trained & {g for g, in dropped}, f"{name}: no group is trained and dropped")
        counted = sum(m["data/groups_filtered"] for m in steps) + steps[-1]["staleness/dropped"]
        checks.check(len(dropped) == counted, f"{name}: {len(dropped)} groups left untrained, the metrics say {counted}")

    whole = rf.metrics(f"{root}/filter-sync")
    folder = run(root, "filter-resumed", flat, steps=2)
    program.quickstart(folder, {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, **flat, "run.steps": 6}, ["--no-eval", "--resume"])
    checks.check(rf.metrics(folder) == whole, "a resumed run filters alike")

    hopeless = {**rf.TINY, "supervised.steps": 0, "run.steps": 3, "algo.filter_groups": "true", "algo.max_filter_rounds": 2,
                "reward.pattern": "nothing has this"}
    folder = f"{root}/hopeless"
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--no-eval", *rf.sets(hopeless)], 2,
                    "algo.max_filter_rounds", "were replaced")
    checks.check(any(pathlib.Path(folder).glob("checkpoint*")), "the run is saved")


def a_critic(root):
    """PPO in every layout trains as one rank does, on the same samples; its critic learns."""
    ppo = {"algo.name": "ppo", "algo.mini_batches": 2, "algo.lambda": 0.9, "critic.lr": 3e-3, "algo.kl_coef": 0.01}
    whole = run(root, "ppo-whole", ppo, steps=12)
    steps = rf.metrics(whole)
    checks.check(all(math.isfinite(m["critic/loss"]) and m["critic/grad_norm"] > 0 for m in steps), "the critic trains")
    first, last = (sum(m["critic/loss"] for m in part) for part in (steps[:3], steps[-3:]))
    checks.check(last < first, f"its loss falls: {first} {last}")
    checks.check(abs(steps[0]["critic/values_mean"]) == 0, "it begins without an opinion")
    checks.check(steps[-1]["critic/values_mean"] > 0, "rewards are positive")
    moe = small_model.write_moe(pathlib.Path(root) / "moe", pathlib.Path(whole) / "init/hf")
    run(root, "ppo-moe", ppo, ["--model", moe])
    split = ["--ranks", "2", "--train-layout", "dp1", "--rollout-layout", "dp1", *rf.sets({"parallel.placement": "split"})]
    for name, of, flags in (("dp2", "ppo-whole", ["--ranks", "2"]), ("tp2", "ppo-whole", ["--ranks", "2", "--train-layout", "tp2"]),
                            ("pp2", "ppo-whole", ["--ranks", "4", "--train-layout", "dp2,pp2"]),
                            ("split", "ppo-whole", split),
                            ("ep2", "ppo-moe", ["--ranks", "2", "--train-layout", "dp2,ep2"])):
        model = ["--model", str(moe)] if of == "ppo-moe" else []
        replayed = [*model, "--replay", f"{root}/{of}"]
        settings = {**ppo, "run.parity": "false", "train.lr": 1e-4, "critic.lr": 1e-4}
        alone = rf.metrics(run(root, f"ppo-{name}-alone", settings, replayed))
        layout = rf.metrics(run(root, f"ppo-{name}", settings, [*replayed, *flags]))
        for metric in ("actor/loss", "actor/grad_norm", "actor/kl_ref", "critic/loss", "critic/grad_norm", "critic/values_mean",
                       "critic/explained_variance"):
            far = max(abs(a[metric] - b[metric]) / max(1, abs(a[metric])) for a, b in zip(alone, layout, strict=True))
            checks.check(far < 1e-5, f"ppo under {name}: {metric} is {far:.1e} from one rank's")
    for name, flags in (("offload", []), ("offload-split", split)):
        away = run(root, f"ppo-{name}", {**ppo, "critic.offload": "true"}, flags, steps=12)
        rf.check_equal(whole, away, f"ppo-{name}: a critic that leaves the device between its stages")
        checks.check(all(m["memory/offload_copied_bytes"] > 0 for m in rf.all_metrics(away)), f"ppo-{name}: it does leave")
    program.refused(["run", f"{root}/grpo/config.yaml", "--run-dir", f"{root}/grpo", "--resume", "--steps", "6",
                     "--set", "algo.advantage=gae"], 2, "state.json", "has no critic")
    loaded = run(root, "ppo-loaded", {**ppo, "critic.path": f"{whole}/checkpoint/latest/critic/hf"}, steps=2)
    checks.check(rf.metrics(loaded)[0]["critic/values_mean"] > 0, "a critic starts from another's weights")


def idle_critic(root):
    """Options of a critic that is not there are named, and only those."""
    said = [pathlib.Path(run(root, name, settings, steps=1), "log.txt").read_text()
            for name, settings in (("idle", {"critic.lr": 1e-3}), ("no-idle", {}))]
    checks.check(re.findall(r"critic\.\w+ has nothing to do", said[0]) == ["critic.lr has nothing to do"], "critic.lr is named")
    checks.check("critic." not in said[1], "nothing is said of defaults")


def kl_in_reward(root):
    """The penalty as a reward of each token, with a weight that adapts; a teacher in place of scores."""
    there = {"algo.name": "reinforce_pp", "algo.kl_coef": 0.1, "algo.kl_in_reward": "true", "train.lr": 1e-2}
    steps = rf.metrics(run(root, "kl-reward", {**there, "algo.kl_target": 1e-4, "algo.kl_horizon": 16}))
    checks.check(steps[0]["actor/kl_ref"] == 0 and steps[-1]["actor/kl_ref"] > 1e-4, "the policy moves away from its start")
    weights = [m["actor/kl_coef"] for m in steps]
    checks.check(abs(weights[1] / weights[0] - 0.8) < 1e-6, f"a KL of 0 takes a fifth of the weight: {weights}")
    checks.check(weights[3] > weights[2], "a KL above the target raises it")
    fixed = {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": 6, "algo.advantage": "grpo"}
    program.quickstart(f"{root}/kl-reward", fixed, ["--no-eval", "--resume"])
    last = rf.metrics(f"{root}/kl-reward")[-1]
    checks.check("actor/kl_ref" not in last and "actor/kl_coef" not in last, "a resume without KL has none")
    teacher = run(root, "teacher", {"supervised.steps": 300, "supervised.batch_size": 64, "supervised.lr": 1e-2,
                                    "supervised.stop_at_accuracy": 0}, steps=1)
    taught = {"algo.name": "distillation", "model.ref_model_load_path": f"{teacher}/warm_start/hf", "train.lr": 1e-2,
              "schedule.group_size": 16}
    steps = rf.metrics(run(root, "taught", taught, steps=30))
    far = [sum(m["actor/kl_ref"] for m in part) / 5 for part in (steps[:5], steps[-5:])]
    checks.check(far[0] > 5 and far[1] < 1, f"on-policy distillation: the KL from the teacher falls from {far[0]} to {far[1]}")


def refused(root):
    recipe = rf.ROOT / "configs/quickstart.yaml"
    for settings, parts in (
            ({"schedule.staleness": 1, "schedule.kind": "stale", "schedule.old_logprobs": "recompute", "algo.correction": "none"},
             ("old_logprobs", "algo.correction")),
            ({"algo.correction": "token", "schedule.old_logprobs": "rollout"}, ("nothing is to be corrected", "recompute")),
            ({"schedule.old_logprobs": "loglinear", "schedule.kind": "stale", "schedule.staleness": 1, "algo.correction": "none"},
             ("old_logprobs is loglinear", "algo.correction")),
            ({"schedule.old_logprobs": "loglinear", "algo.correction": "token", "algo.correction_normalize": "true"},
             ("loglinear has none", "recompute")),
            ({"algo.rejection": "token_k9", "algo.rejection_bounds": "1"}, ("algo.rejection", "token_k9", "token, seq_sum")),
            ({"algo.mini_batches": 99}, ("mini_batches is 99", "groups_per_step")),
            ({"algo.filter_groups": "true", "schedule.group_size": 1}, ("group_size is 1",)),
            ({"algo.max_kl": 0.1}, ("max_kl", "there are none", "mini_batches")),
            ({"algo.name": "gmpo", "algo.correction": "token", "algo.correction_outside": "zero"}, ("gmpo", "truncate")),
            ({"algo.kl_in_reward": "true"}, ("kl_in_reward", "kl_coef")),
            ({"algo.name": "distillation"}, ("distillation", "ref_model_load_path")),
            ({"critic.path": "/nowhere"}, ("critic.path", "gae")),
            ({"algo.name": "ppo", "critic.path": str(rf.ROOT / "tests/fixtures/llama_score3")}, ("critic.path", "3 labels")),
            ({"algo.name": "gspoo"}, ("gspoo", "gspo"))):
        program.refused(["run", recipe, "--run-dir", f"{root}/refused", *rf.sets(settings)], 2, *parts)
        checks.check(not pathlib.Path(f"{root}/refused").exists(), "nothing was written")


def greedy_scores(folder):
    return {(step, group): score for step, group, score in rf.rows(folder, "SELECT step, group_id, score FROM greedy")}


def check_greedy(folder, name, samples):
    """Each advantage is the score less that of the greedy answer, which is none of the samples."""
    greedy, rows = greedy_scores(folder), rf.samples(folder, SCORES)
    checks.check(len(rows) == samples and set(greedy) == {(row[0], row[1]) for row in rows}, f"{name}: a greedy answer for each group")
    checks.check(all(abs(a - (score - greedy[step, group])) < 1e-9 for step, group, score, a, _, _ in rows), f"{name}: advantages")
    for m in rf.metrics(folder):
        scores = [score for (step, _), score in greedy.items() if step == m["step"]]
        checks.check(abs(m["reward/greedy_mean"] - sum(scores) / len(scores)) < 1e-12, f"{name}: the mean of the greedy answers")
        checks.check(m["staleness/lag_max"] <= 2, f"{name}: lag {m['staleness/lag_max']}")


def greedy_of_start(folder):
    """The first step's greedy answers, from another command."""
    rows = dict(rf.rows(folder, "SELECT group_id, prompt_ids FROM samples WHERE step = 1"))
    asked = "".join(json.dumps({"prompt_ids": list(memoryview(ids).cast("i"))}) + "\n" for ids in rows.values())
    out = program.done(["generate", "--model", f"{folder}/init/hf", "--temperature", "0", "--max-new-tokens", "6"], stdin=asked).stdout
    texts = [json.loads(line)["completions"][0]["text"] for line in out.splitlines()]
    return {(1, group): float(bool(re.search("[0-4]", text))) for group, text in zip(rows, texts, strict=True)}


def remax(root):
    options = {"algo.name": "remax", "algo.whiten": "off", "train.lr": 1e-2}
    stale = {"schedule.kind": "stale", "schedule.staleness": 2}
    split = ["--ranks", "2", "--train-layout", "dp1", "--rollout-layout", "dp1"]
    for name, settings, flags in (("sync", {}, []), ("one", {"schedule.group_size": 1}, []), ("stale", stale, []),
                                  ("split", {"parallel.placement": "split"}, split),
                                  ("split-stale", {"parallel.placement": "split", **stale}, split),
                                  ("dp2", {}, ["--ranks", "2", "--train-layout", "dp2"]),
                                  ("pp2", {}, ["--ranks", "2", "--train-layout", "pp2"])):
        folder = run(root, "remax-" + name, {**options, **settings}, flags, steps=6)
        check_greedy(folder, name, 6 * 4 * settings.get("schedule.group_size", 4))
    start = greedy_of_start(f"{root}/remax-sync")
    told = {key: score for key, score in greedy_scores(f"{root}/remax-sync").items() if key[0] == 1}
    checks.check(start == told and len(told) == 4, f"the first greedy answers score {told}, those of `tandem generate` {start}")
    different = [name for name in ("dp2", "pp2") if greedy_scores(f"{root}/remax-{name}").items() & told.items() != told.items()]
    checks.check(not different, f"other layouts have the same first greedy answers: {different}")

    for name, settings in (("sync", {}), ("stale", stale)):
        folder = run(root, f"remax-{name}-resumed", {**options, **settings}, steps=2)
        program.quickstart(folder, {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, **options, **settings, "run.steps": 6},
                           ["--no-eval", "--resume"])
        checks.check(rf.metrics(folder) == rf.metrics(f"{root}/remax-{name}"), f"{name}: a resumed run is the same")
        checks.check(greedy_scores(folder) == greedy_scores(f"{root}/remax-{name}"), f"{name}: and so are its greedy answers")
    again = run(root, "remax-replay", options, ["--replay", f"{root}/remax-sync"], steps=6)
    checks.check(rf.samples(again, SCORES) == rf.samples(f"{root}/remax-sync", SCORES), "a replay has the same advantages")
    checks.check(greedy_scores(again) == greedy_scores(f"{root}/remax-sync"), "and the same greedy answers")
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/remax-of-grpo", "--no-eval",
                     "--replay", f"{root}/grpo",
                     *rf.sets({**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": 4, **options})], 2, "algo.advantage",
                    "score of a greedy answer", "rolled out under remax")

    filtered = run(root, "remax-filter", {**options, "algo.filter_groups": "true", "algo.max_filter_rounds": 50,
                                          "rollout.max_new_tokens": 2}, steps=6)
    check_greedy(filtered, "filter", 6 * 4 * 4)
    checks.check(sum(m["data/groups_filtered"] for m in rf.metrics(filtered)) > 0, "some groups scored as their greedy answer")
    greedy, spread = greedy_scores(filtered), {}
    for step, group, score, *_ in rf.samples(filtered, SCORES):
        spread[step, group] = spread.get((step, group), False) or score != greedy[step, group]
    checks.check(all(spread.values()), "no group that is trained on scored as its greedy answer throughout")


NAMES = ("grpo", "dapo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "opo", "gpg", "grpo_passk", "gspo", "cispo", "sapo",
         "gmpo", "remax", "ppo")
with tempfile.TemporaryDirectory(prefix="tandem_algorithms_") as root:
    every_name_trains(root)
    whitened_advantages(root)
    several_updates(root)
    entropy_bonus(root)
    truncated_answers(root)
    corrections(root)
    loglinear_proximal(root)
    dynamic_sampling(root)
    a_critic(root)
    idle_critic(root)
    kl_in_reward(root)
    remax(root)
    refused(root)
checks.exit()
