# SPDX-License-Identifier: Apache-2.0
"""One rank, four jobs: the actor trains and generates, a reference and a reward model of its size score, all in a budget that one more
resident copy of the weights would break. The numbers are those of models that stay on the device."""
import json
import pathlib
import shutil
import tempfile

import run_folder as rf
from small_model import reward_model_of

MIB = 1 << 20
# The shape of the quickstart's model; passes small enough that their activations weigh less than a copy of the weights.
RUN = {"supervised.steps": 0, "run.steps": 3, "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_new_tokens": 8,
       "eval.max_new_tokens": 8, "eval.every_steps": 2, "data.synthetic_eval_rows": 8, "checkpoint.every_steps": 2, "parallel.threads": 1,
       "train.lr": 1e-3, "algo.kl_coef": 0.01, "run.parity": "true", "train.micro_batch_tokens": 64, "train.recompute": "full",
       "train.reference_micro_batch_tokens": 64, "rollout.max_running": 16}
OFFLOAD = {f"memory.offload_train_{what}": "true" for what in ("param", "grad", "optimizer")}
FULL = {"parallel.placement": "fully_colocated", **OFFLOAD}
checks = rf.Checks()
program = rf.built_program()


def run(folder, settings, flags=()):
    program.quickstart(folder, {**RUN, **settings}, flags)
    return rf.all_metrics(folder)


def scores(folder):
    return rf.samples(folder, "step, group_id, sample_index, response, score")


def greedy_scores(folder):
    return rf.rows(folder, "SELECT step, group_id, score FROM greedy ORDER BY step, group_id")


def greedy_answers(root, judged):
    """ReMax: the greedy answers are scored in the stage, too."""
    remax = {"algo.name": "remax", "algo.whiten": "off", "algo.kl_coef": 0, "eval.every_steps": 0, **judged}
    run(f"{root}/remax-resident", remax, ["--no-eval"])
    run(f"{root}/remax-full", {**remax, **FULL}, ["--no-eval"])
    resident, full = greedy_scores(f"{root}/remax-resident"), greedy_scores(f"{root}/remax-full")
    worst = max(abs(a[2] - b[2]) for a, b in zip(resident, full, strict=True) if a[0] == 1)
    checks.check(worst <= 1e-5 and len({score for *_, score in full}) > 4, f"scores of the first greedy answers differ by {worst:.1e}")
    of = {(step, group): score for step, group, score in full}
    rows = rf.samples(f"{root}/remax-full", "step, group_id, score, advantage")
    checks.check(all(abs(a - (s - of[step, group])) < 1e-9 for step, group, s, a in rows), "each sample is compared with one of them")


def dynamic_sampling(root, judged):
    """Rollout and reward run again until each group has spread. Beside generation the same groups would have been replaced."""
    middle = sorted(s for *_, s in scores(f"{root}/full"))[len(scores(f"{root}/full")) // 2]
    # Most scores are at a bound, so that pairs are alike as often as not.
    pairs = {"algo.kl_coef": 0, "eval.every_steps": 0, "schedule.group_size": 2, "algo.filter_groups": "true", "algo.max_filter_rounds": 50,
             "reward.clip_low": middle - 1e-3, "reward.clip_high": middle + 1e-3, "run.steps": 4, **judged}
    resident = run(f"{root}/filter-resident", pairs, ["--no-eval"])
    full = run(f"{root}/filter-full", {**pairs, **FULL}, ["--no-eval"])
    groups = [rf.rows(f"{root}/filter-{name}", "SELECT DISTINCT group_id FROM samples WHERE step = 1 ORDER BY group_id")
              for name in ("resident", "full")]
    checks.check(groups[0] == groups[1] and len(groups[1]) == 4, f"the first step's groups: {groups}")
    checks.check(resident[0]["data/groups_filtered"] == full[0]["data/groups_filtered"] > 0, "as many were replaced")
    for lines, name in ((resident, "beside generation"), (full, "in the stage")):
        checks.check(all(m["data/groups_without_signal"] == 0 for m in lines), f"{name}: each batch has only groups with spread")
    dropped = rf.rows(f"{root}/filter-full", "SELECT count(*) FROM dropped")[0][0]
    told = sum(m["data/groups_filtered"] for m in full)
    checks.check(dropped == told, f"{dropped} groups left untrained, the metrics say {told}")
    trained = rf.rows(f"{root}/filter-full", "SELECT group_id FROM samples UNION SELECT group_id FROM dropped")
    checks.check(len(trained) == 4 * 4 + dropped, "none is trained and dropped")

    # It ends for want of spread amid the first batch, and goes on from the groups that it has.
    short = f"{root}/filter-short"
    line = program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", short, "--no-eval",
                            *rf.sets({**RUN, **pairs, **FULL, "algo.max_filter_rounds": 1})], 2, "which is saved", "algo.max_filter_rounds")
    rf.said(line)
    checks.check(rf.committed_steps(short)[-1] < 4, "the run is saved")
    program.done(["run", f"{short}/config.yaml", "--run-dir", short, "--resume", "--set", "algo.max_filter_rounds=50"])
    checks.check(rf.metrics(short) == rf.metrics(f"{root}/filter-full"), "more rounds: it goes on as it would have")

    stale = {"schedule.kind": "stale", "schedule.staleness": 1, "parallel.train_layout": "dp2", "parallel.rollout_layout": "dp2"}
    for name, settings, ranks in (("stale", stale, 2), ("tp2", {"parallel.train_layout": "dp2", "parallel.rollout_layout": "tp2",
                                                                "run.parity": "false"}, 2)):
        lines = run(f"{root}/filter-{name}", {**pairs, **FULL, **settings}, ["--no-eval", "--ranks", str(ranks)])
        checks.check(sum(m["data/groups_filtered"] for m in lines) > 0, f"{name}: groups are replaced")
        checks.check(all(m["data/groups_without_signal"] == 0 for m in lines), f"{name}: each batch has only groups with spread")
    shown = program.done(["config", f"{root}/filter-full/config.yaml", "--schedule"]).stdout
    checks.check("rollout to reward again until each group of the batch has spread, at most 200 times in a step" in shown, shown)


def unreadable_answers(root, reward, judged):
    """A text with an id beyond the reward model's vocabulary: one of two ranks has it, and both end saved."""
    other = pathlib.Path(root, "reward_with_more_ids")
    shutil.copytree(reward, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    added = {"id": 9999, "content": "++", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer.setdefault("added_tokens", []).append(added)
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    folder = f"{root}/unreadable"
    line = program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--no-eval", "--ranks", "2",
                            *rf.sets({**RUN, **judged, **FULL, "reward.model": str(other), "run.steps": 60, "eval.every_steps": 0})],
                           2, "which is saved", "its tokenizer gives token 9999")
    checks.check(rf.committed_steps(folder)[-1] == len(rf.metrics(folder)), "the last concluded step is saved")
    rf.said(line)


def dropped_prompts(root, judged):
    """An evaluation without its longest prompts is scored with those that it answered."""
    data = pathlib.Path(root, "dropped.jsonl")
    data.write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in ("1" * 20 + "=", "1+1=", "2" * 20 + "=", "2+2=")))
    folder = f"{root}/dropped"
    run(folder, {**judged, **FULL, "run.steps": 1, "data.eval": str(data), "data.max_prompt_tokens": 8, "data.too_long": "drop"})
    checks.check([row[1:3] for row in rf.evals(folder) if row[0] == 1] == [(1, "1+1="), (3, "2+2=")], f"dropped: {rf.evals(folder)}")


with tempfile.TemporaryDirectory(prefix="tandem_fully_") as root:
    run(f"{root}/start", {"run.steps": 1, "reward.rule": "regex", "reward.pattern": "1"}, ["--no-eval"])
    reward = reward_model_of(pathlib.Path(root, "start/init/hf"), pathlib.Path(root, "reward"))
    judged = {"reward.rule": "model", "reward.model": str(reward)}

    resident = run(f"{root}/resident", judged)
    full = run(f"{root}/full", {**judged, **FULL})
    again = run(f"{root}/again", {**judged, **FULL})
    rf.check_equal(f"{root}/full", f"{root}/again", "a run beside itself")
    one, other = scores(f"{root}/resident"), scores(f"{root}/full")
    first = [(a, b) for a, b in zip(one, other, strict=True) if a[0] == 1]
    checks.check(all(a[:4] == b[:4] for a, b in first), "the first step's answers are the same")
    worst = max(abs(a[4] - b[4]) for a, b in first)
    checks.check(worst <= 1e-5 and len({a[4] for a, _ in first}) > 4, f"its scores differ by {worst:.1e}")
    checks.check(abs(full[0]["actor/kl_ref"] - resident[0]["actor/kl_ref"]) <= 1e-6, "the reference says the same")
    checks.check(all(abs(a["reward/mean"] - b["reward/mean"]) < 1e-3 for a, b in zip(full, resident)), "and so does the run")
    summary = [rf.summary(f"{root}/{name}")["eval_after"]["accuracy"] for name in ("resident", "full")]
    checks.check(summary[0] == summary[1], f"evaluation: {summary}")

    dropped_prompts(root, judged)
    greedy_answers(root, judged)
    dynamic_sampling(root, judged)
    unreadable_answers(root, reward, judged)

    stopped = f"{root}/stopped"
    run(stopped, {**judged, **FULL, "run.steps": 2})
    program.done(["run", f"{stopped}/config.yaml", "--run-dir", stopped, "--resume", "--steps", "3"])
    checks.check(rf.metrics(stopped)[-1] == rf.metrics(f"{root}/full")[-1], "a resumed run goes on as it would have")

    copy, peak, all_resident = full[-1]["memory/weights_bytes"], full[-1]["memory/peak_bytes"], resident[-1]["memory/peak_bytes"]
    budget = -int(-peak // MIB)
    print(f"a copy of the weights {copy / MIB:.2f} MiB; peak fully colocated {peak / MIB:.2f}, all resident {all_resident / MIB:.2f}; "
          f"budget {budget}", flush=True)
    checks.check(budget * MIB < peak + copy, "the budget has no room for one more copy")
    tight = run(f"{root}/tight", {**judged, **FULL, "memory.device_mib": budget})
    rf.check_equal(f"{root}/full", f"{root}/tight", "within the budget")
    checks.check(max(m["memory/peak_bytes"] for m in tight) <= budget * MIB, "and it is kept")
    for what, settings in (("the reference", {"reward.rule": "regex", "reward.pattern": "1"}),
                           ("the reward model", {**judged, "algo.kl_coef": 0})):
        chosen = rf.sets({**RUN, **OFFLOAD, **settings, "memory.device_mib": budget})
        program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/broken-{len(what)}", *chosen],
                        2, "memory.device_mib", "of %d are held" % (budget * MIB))
        rf.said(f"{what} as one more resident copy is refused")

    # The cache takes what is left of a budget; what comes for its stage must still find room, whatever else may leave.
    room = run(f"{root}/room", {**judged, "parallel.placement": "fully_colocated", "memory.device_mib": 24, "rollout.max_running": 4096})
    rf.check_equal(f"{root}/full", f"{root}/room", "without offloading of training")
    checks.check(room[-1]["memory/kv_cache_bytes"] > 2 * copy, "a cache that filled the budget")

    critic = {**judged, "algo.name": "ppo", "critic.micro_batch_tokens": 64, "critic.value_micro_batch_tokens": 64,
              "critic.recompute": "full"}
    ppo = run(f"{root}/ppo", {**critic, **FULL})
    beside = run(f"{root}/ppo-resident", critic)
    for name in ("critic/loss", "critic/explained_variance", "actor/loss"):
        far = abs(ppo[0][name] - beside[0][name])
        checks.check(far <= 1e-5, f"ppo: {name} is {far:.1e} from that of models which stay on the device")
    copy, peak = ppo[-1]["memory/weights_bytes"], ppo[-1]["memory/peak_bytes"]
    budget = -int(-peak // MIB)
    checks.check(budget * MIB < peak + copy, "actor, reference, critic and reward model: no room for one more copy")
    run(f"{root}/ppo-tight", {**critic, **FULL, "memory.device_mib": budget})
    rf.check_equal(f"{root}/ppo", f"{root}/ppo-tight", "ppo within the budget")
    chosen = rf.sets({**RUN, **OFFLOAD, **critic, "algo.kl_coef": 0, "reward.rule": "regex", "reward.pattern": "1", "reward.model": "",
                      "memory.device_mib": budget})
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/ppo-broken", *chosen], 2, "memory.device_mib",
                    "of %d are held" % (budget * MIB))
    rf.said("the critic as one more resident copy is refused")
    stopped = f"{root}/ppo-stopped"
    run(stopped, {**critic, **FULL, "memory.device_mib": budget, "run.steps": 2})
    program.done(["run", f"{stopped}/config.yaml", "--run-dir", stopped, "--resume", "--steps", "3"])
    checks.check(rf.metrics(stopped)[-1] == rf.metrics(f"{root}/ppo")[-1], "a resumed ppo run goes on as it would have")

    two = run(f"{root}/two", {**judged, **FULL, "parallel.train_layout": "tp2"}, ["--ranks", "2"])
    far = max(abs(a["reward/mean"] - b["reward/mean"]) for a, b in zip(full, two))
    checks.check(far < 2e-2, f"{far}: tp2: the reward model in the actor's layout")
    part, whole = (lines[-1]["memory/host_reward_model_bytes"] for lines in (two, full))
    checks.check(part < 0.6 * whole, "of which a rank has half")
checks.exit()
