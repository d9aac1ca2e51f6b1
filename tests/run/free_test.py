# SPDX-License-Identifier: Apache-2.0
"""A free run: generation never waits for training, so a clock decides which groups a batch has. What it decided is in decisions.jsonl, and
--replay-decisions gives the same samples, versions and batches again; under --parity bit for bit."""
import json
import pathlib
import time

import run_folder as rf
import small_model

RUN = {"supervised.steps": 0, "run.steps": 8, "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_new_tokens": 60,
       "eval.max_new_tokens": 8, "eval.every_steps": 3, "data.synthetic_eval_rows": 8, "checkpoint.every_steps": 2, "parallel.threads": 1,
       "reward.rule": "regex", "reward.pattern": "[0-4]", "train.lr": 1e-3, "train.lr_schedule": "constant",
       "model.init_hidden": 64, "model.init_layers": 2,
       "model.init_intermediate": 96, "model.init_deviation": 0.15, "run.parity": "true", "schedule.mode": "free",
       "parallel.placement": "split", "schedule.staleness": 2}


# Of groups that have ended beyond a batch without a fresh row.
GAP = ("gap/tokens", "gap/mean", "gap/p99", "gap/max")
# What is finished, started or held back at the end of a step, by the clock.
CLOCKED = ("queue/depth", "queue/outstanding", "queue/waiting", "queue/running", "queue/scoring", "data/groups_ahead", "data/groups_early",
           "data/groups_filtered", "data/epoch", "staleness/waited", *GAP)


def run(program, folder, settings=None, flags=("--ranks", "2"), launcher=()):
    program.quickstart(folder, {**RUN, **(settings or {})}, ["--schedule", "stale", *flags], launcher)
    return folder


def decisions(folder):
    return [json.loads(line) for line in (pathlib.Path(folder) / "decisions.jsonl").read_text().splitlines()]


def batches(folder):
    return [line["groups"] for line in decisions(folder) if "groups" in line]


def check_bound(folder, staleness=2):
    """No token is older than the bound, and the journal says which groups were trained."""
    trained = {}
    for step, group, trained_version, versions in rf.samples(folder, "step, group_id, trained_version, versions"):
        trained.setdefault(step, set()).add(group)
        oldest = min(rf.token_versions(versions), default=trained_version)
        assert trained_version - oldest <= staleness, f"group {group} of step {step} lags {trained_version - oldest}"
    assert [sorted(trained[step]) for step in sorted(trained)] == batches(folder), "another batch than the journal says"
    lags = [line["staleness/lag_max"] for line in rf.all_metrics(folder)]
    assert 1 <= max(lags) <= staleness, lags


def check_repeats(program, folder, what, settings=None, **how):
    again = run(program, f"{folder}-again", settings, flags=[*how.pop("flags", ("--ranks", "2")), "--replay-decisions", folder], **how)
    rf.check_equal(folder, again, what, but=CLOCKED)
    assert batches(folder) == batches(again), what


def two_ranks(program, root):
    folder = run(program, f"{root}/two")
    check_bound(folder)
    rf.check_whole(folder, 8)
    check_repeats(program, folder, "a free run that is repeated")
    size = (pathlib.Path(folder) / "decisions.jsonl").stat().st_size / 8
    assert size < 400, f"{size} bytes a step"
    shown = program.done(["top", folder, "--once"]).stdout
    assert "step 8/8" in shown and "rank 1 " in shown and "groups " in shown and "lag " in shown, shown
    rf.said(f"a free run keeps the bound, and its decisions, {size:.0f} bytes a step, give the same run bit for bit")


def layouts(program, root):
    for name, ranks, settings in (("dp2", 3, {"parallel.train_layout": "dp1", "parallel.rollout_layout": "dp2"}),
                                  ("tp2", 4, {"parallel.train_layout": "tp2", "parallel.rollout_layout": "tp2"}),
                                  ("pp2", 3, {"parallel.train_layout": "dp1", "parallel.rollout_layout": "pp2"})):
        flags = ("--ranks", str(ranks))
        folder = run(program, f"{root}/{name}", settings, flags)
        check_bound(folder)
        check_repeats(program, folder, f"rollout under {name}", settings, flags=flags)
    rf.said("so with two replicas, under tensor and under pipeline parallelism")


def processes(program, root):
    folder = run(program, f"{root}/mpi", flags=(), launcher=rf.mpi(2))
    check_bound(folder)
    check_repeats(program, folder, "two processes", flags=(), launcher=rf.mpi(2))
    as_threads = run(program, f"{root}/mpi-threads", flags=["--ranks", "2", "--replay-decisions", folder])
    rf.check_equal(folder, as_threads, "threads that repeat what processes decided", but=CLOCKED)
    rf.said("so as processes, and threads repeat what processes decided")


MIXED = {"parallel.placement": "mixed", "parallel.train_layout": "dp2", "rollout.max_new_tokens": 120, "algo.epochs": 4}


def mixed(program, root):
    """Some ranks train and generate in turns, and what they leave unfinished goes on where nobody trains."""
    flags, settings = ("--ranks", "3"), MIXED
    for attempt in range(8):  # what moves is for the clock to say; training that takes long makes it likely
        folder = run(program, f"{root}/mixed-{attempt}", settings, flags)
        check_bound(folder)
        rf.check_whole(folder, 8)
        moved = sum(line["data/groups_moved"] for line in rf.all_metrics(folder))
        if moved > 0:
            break
    assert moved > 0, "no group moved"
    check_repeats(program, folder, "a mixed run that is repeated", settings, flags=flags)
    stopped = run(program, f"{root}/mixed-stopped", {**settings, "run.steps": 4}, flags)
    program.done(["run", f"{stopped}/config.yaml", "--run-dir", stopped, "--resume", "--steps", "8"])
    rf.check_whole(stopped, 8)
    check_bound(stopped)
    rf.said(f"a mixed run keeps the bound, {moved:.0f} groups moved unfinished, and its decisions give the same run bit for bit")


def mixed_processes(program, root):
    check_bound(run(program, f"{root}/mixed-mpi", MIXED, flags=(), launcher=rf.mpi(3)))
    rf.said("a mixed run of processes keeps the bound")


def experts(program, root):
    """Ranks that share experts draw each token together."""
    moe = small_model.write_moe(pathlib.Path(root) / "moe", f"{root}/two/init/hf", num_experts=4)
    for name, ranks, settings in (("ep2", 3, {"parallel.train_layout": "dp1", "parallel.rollout_layout": "dp2,ep2"}),
                                  ("ep2-both", 4, {"parallel.train_layout": "dp2,ep2", "parallel.rollout_layout": "dp2,ep2",
                                                   "schedule.routing_replay": "true"})):
        flags = ("--ranks", str(ranks), "--model", str(moe))
        folder = run(program, f"{root}/{name}", settings, flags)
        check_bound(folder)
        rf.check_whole(folder, 8)
        check_repeats(program, folder, f"rollout under {name}", settings, flags=flags)
    rf.said("so where ranks share experts")


def offloaded(program, root):
    """What only some stages need leaves the device between them, on ranks that train and generate in turns."""
    settings = {"parallel.placement": "mixed", "parallel.train_layout": "dp1", "algo.name": "ppo", "critic.lr": 1e-3, "algo.kl_coef": 0.05,
                "memory.offload_reference": "true", "critic.offload": "true"}
    folder = run(program, f"{root}/offloaded", settings)
    check_bound(folder)
    rf.check_whole(folder, 8)
    assert all(line["memory/offload_copied_bytes"] > 0 for line in rf.all_metrics(folder)[1:]), "nothing left the device"
    check_repeats(program, folder, "a mixed run with a critic that leaves", settings)
    # A cache takes what is left, so it has to make room for what comes back.
    tight = {**settings, "memory.device_mib": 12, "rollout.max_running": 4096}
    folder = run(program, f"{root}/tight", tight)
    check_bound(folder)
    rf.check_whole(folder, 8)
    cache = max(line["memory/kv_cache_bytes"] for line in rf.all_metrics(folder))
    assert 11 << 20 < cache < 12 << 20, f"a cache of {cache} bytes: nothing was tight"
    check_repeats(program, folder, "a mixed run under a tight budget", tight)
    rf.check_whole(run(program, f"{root}/tight-deterministic", {**tight, "schedule.mode": "deterministic"}), 8)
    rf.said("so where a critic and a reference leave the device in a mixed run, also under a tight budget")


def filtered(program, root):
    """Dynamic sampling: groups are replaced at times that a clock decides."""
    settings = {"algo.filter_groups": "true", "algo.max_filter_rounds": 8, "schedule.lag_policy": "drop", "rollout.max_new_tokens": 12}
    folder = run(program, f"{root}/filtered", settings)
    check_bound(folder)
    assert any("filtered" in line for line in decisions(folder)), "no group was filtered"
    check_repeats(program, folder, "filtered groups", settings)
    settings.update({"parallel.placement": "mixed", "parallel.train_layout": "dp1", "rollout.max_new_tokens": 40})
    mixed = run(program, f"{root}/filtered-mixed", settings)
    check_bound(mixed)
    check_repeats(program, mixed, "filtered groups of a mixed run", settings)
    rf.said("so where groups are filtered, also in a mixed run")


def early(program, root):
    """While ranks that train wait for a batch, they compute what it will need of the groups that are finished. A replay computes all of
    it in the stages, and ends with the same weights."""
    rule = pathlib.Path(root) / "slow.py"  # one group after the other
    rule.write_text("import time\n\n\ndef score(prompts, completions):\n    time.sleep(0.06)\n"
                    "    return [float(any(c in '01234' for c in text)) for text in completions]\n")
    settings = {"reward.rule": "python", "reward.python": f"{rule}:score", "reward.workers": 1,
                "algo.name": "ppo", "critic.lr": 1e-3, "algo.kl_coef": 0.05, "schedule.old_logprobs": "recompute", "run.steps": 5,
                "rollout.max_new_tokens": 100, "eval.every_steps": 0, "data.eval": "", "train.reference_micro_batch_tokens": 150}
    for name, ranks, layout, rollout in (("early", 2, "dp1", "dp1"), ("early-dp2", 3, "dp2", "dp1"), ("early-pp2", 5, "dp2,pp2", "dp1"),
                                         ("early-tp2", 4, "tp2", "tp2")):
        these = {**settings, "parallel.train_layout": layout, "parallel.rollout_layout": rollout}
        flags = ("--ranks", str(ranks))
        folder = run(program, f"{root}/{name}", these, flags)
        check_bound(folder)
        count = sum(line["data/groups_early"] for line in rf.all_metrics(folder))
        assert count >= 1, f"{layout}: no group had its passes early"
        check_repeats(program, folder, f"early passes under {layout}", these, flags=flags)
        replay = run(program, f"{root}/{name}-replay", these, flags=[*flags, "--replay", folder])
        assert rf.weights(folder) == rf.weights(replay), f"{layout}: early passes change the weights"
    loose = {**settings, "run.parity": "false", "model.products": "blas blas blas float", "parallel.train_layout": "dp1"}
    folder = run(program, f"{root}/early-loose", loose)
    assert sum(line["data/groups_early"] for line in rf.all_metrics(folder)) >= 1, "no group had its passes early"
    check_repeats(program, folder, "early passes without --parity", loose)
    stays = run(program, f"{root}/early-offload", {**settings, "memory.offload_reference": "true", "critic.offload": "true",
                                                   "schedule.old_logprobs": "rollout"})
    assert all("data/groups_early" not in line for line in rf.all_metrics(stays)), "passes of models that are not on the device"
    rf.said("passes of groups that finish early change no bit")


def dropped(program, root):
    """Answers of lengths so different that some groups become too old; a clock decides in which run one does."""
    for seed in range(12):
        settings = {"schedule.lag_policy": "drop", "schedule.staleness": 1, "rollout.max_new_tokens": 240, "run.steps": 30,
                    "eval.every_steps": 0, "data.eval": "", "run.seed": seed}
        folder = run(program, f"{root}/dropped-{seed}", settings)
        check_bound(folder, 1)
        if any("dropped" in line for line in decisions(folder)):
            break
    else:
        raise AssertionError("no group was dropped in twelve runs")
    check_repeats(program, folder, "dropped groups", settings)
    rf.said("so where groups are dropped")


def differs(program, root):
    """A repetition that comes to other tokens ends with a word, and does not wait."""
    folder = run(program, f"{root}/base", {"run.steps": 4})
    journal = pathlib.Path(folder) / "decisions.jsonl"
    lines = decisions(folder)
    second = next(line for line in lines if line.get("step") == 2)
    second["told"] = [text.replace("s", "s4", 1) for text in second["told"]]  # a switch that falls later
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["run", f"{folder}/config.yaml", "--run-dir", f"{root}/differs", "--replay-decisions", folder]
    out = program.run(arguments, timeout=100)
    assert out.returncode in (0, 2) and (out.returncode == 0 or "--replay-decisions" in out.stderr), out.stderr[-1500:]
    second["groups"] = [group + 400 for group in second["groups"]]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    third = ["run", f"{folder}/config.yaml", "--run-dir", f"{root}/third", "--replay-decisions", folder]
    program.refused(third, 2, "--replay-decisions", "the recipe, the data, the weights and model.products of that run")
    rf.said("what cannot be repeated ends with an error")


def rewards_take_time(program, root):
    """Graders that sleep: groups come back in another order each time."""
    rule = pathlib.Path(root) / "sleepy.py"
    rule.write_text("import random, time\n\n\ndef score(prompts, completions):\n    time.sleep(random.random() / 20)\n"
                    "    return [float(any(c in '01234' for c in text)) for text in completions]\n")
    settings = {"reward.rule": "python", "reward.python": f"{rule}:score", "run.steps": 5}
    folder = run(program, f"{root}/sleepy", settings)
    check_repeats(program, folder, "slow rewards", settings)
    rf.said("so where rewards take their time")


def resumes(program, root):
    folder = f"{root}/resumed"
    run(program, folder, {"run.steps": 4})
    program.done(["run", f"{folder}/config.yaml", "--run-dir", folder, "--resume", "--steps", "8"])
    rf.check_whole(folder, 8)
    check_bound(folder)
    assert [line["resumed"] for line in decisions(folder) if "resumed" in line] == [4]
    arguments = ["run", f"{folder}/config.yaml", "--run-dir", f"{root}/other", "--replay-decisions", folder]
    program.refused([*arguments, "--steps", "8"], 2, "--replay-decisions", "4 steps up to its end or its first resume", "--steps 4")
    program.done([*arguments, "--steps", "4"])
    assert batches(f"{root}/other") == batches(folder)[:4]
    program.done(["run", f"{folder}/config.yaml", "--run-dir", folder, "--resume", "--steps", "10", "--set", "schedule.mode=deterministic"])
    assert [line["resumed"] for line in decisions(folder) if "resumed" in line] == [4, 8]
    assert max(line["step"] for line in decisions(folder) if "step" in line) == 8, "a run in which no clock decides has no decisions"
    scheduled = {"run.steps": 3, "train.lr_schedule": "linear", "run.parity": "false"}
    run(program, f"{root}/scheduled", scheduled)
    again = ["run", f"{root}/scheduled/config.yaml", "--run-dir", f"{root}/scheduled-again", "--replay-decisions", f"{root}/scheduled",
             "--steps", "2"]
    program.refused(again, 2, "the learning rate went over 3 steps, and goes over 2", "train.lr_steps=3")
    program.done([*again, "--set", "train.lr_steps=3"])
    first, second = (rf.samples(f"{root}/{name}", "step, group_id, versions, response_ids") for name in ("scheduled", "scheduled-again"))
    assert second == [row for row in first if row[0] <= 2], "other samples"
    rf.said("a free run resumes, also as a deterministic one; up to there it can be repeated")


def kills(program, root):
    """Killed at any moment, the run that survives has each sample once."""
    for name, num_kills, settings in (("split", 4, {}), ("mixed", 3, {"parallel.placement": "mixed"})):
        folder = f"{root}/killed-{name}"
        start = ["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--schedule", "stale", "--ranks", "2", "--no-eval",
                 *rf.sets({**RUN, **settings, "checkpoint.every_steps": 1})]
        for number in range(num_kills):
            process = program.start([*start, *(["--resume"] if number else [])])
            wanted = 2 * number + 1
            if rf.wait_for(lambda: max(rf.committed_steps(folder), default=0) >= wanted, process):
                time.sleep(0.03 * number)
            rf.end(process)
        program.done([*start, "--resume"])
        rf.check_whole(folder, 8)
        check_bound(folder)
    rf.said("killed seven times, on a split and on a mixed placement, it has each step and each sample once")


def defaults(program, root):
    free = run(program, f"{root}/free", {"schedule.mode": "", "run.parity": "false", "run.steps": 2, "schedule.staleness": 1})
    kept = run(program, f"{root}/kept", {"schedule.mode": "", "run.steps": 2, "schedule.staleness": 1})
    assert (pathlib.Path(free) / "decisions.jsonl").exists() and not (pathlib.Path(kept) / "decisions.jsonl").exists()
    again = run(program, f"{root}/kept-again", {"schedule.mode": "", "run.steps": 2, "schedule.staleness": 1})
    rf.check_equal(kept, again, "a deterministic run beside itself")
    replayed = run(program, f"{root}/replayed", {"schedule.mode": "", "run.parity": "false", "run.steps": 2, "schedule.staleness": 1},
                   ("--ranks", "2", "--replay", free))
    assert not (pathlib.Path(replayed) / "decisions.jsonl").exists(), "a replay of samples decides nothing by a clock"
    rf.said("a stale split run is free, and deterministic under --parity and with --replay")


def refusals(program, root):
    recipe = rf.tiny_recipe(f"{root}/tiny.yaml", run__parity="false")
    start = ["run", recipe, "--run-dir", f"{root}/refused", "--ranks", "2"]
    free = [*start, "--schedule", "stale", "--staleness", "1", "--set", "parallel.placement=split"]
    program.refused([*start, "--set", "schedule.mode=free"], 2, "schedule.mode is free", "colocated", "nobody generates")
    program.refused([*start, "--set", "schedule.mode=quick"], 2, "schedule.mode", "deterministic", "free")
    program.refused([*free, "--replay-decisions", f"{root}/none"], 2, "none/decisions.jsonl", "a run under schedule.mode free")
    folder = run(program, f"{root}/short", {"run.steps": 2})
    repeat = ["run", f"{folder}/config.yaml", "--run-dir", f"{root}/refused", "--replay-decisions", folder]
    program.refused([*repeat, "--steps", "3"], 2, "--replay-decisions", "2 steps", "--steps 2 at most")
    program.refused([*repeat, "--set", "schedule.group_size=8"], 2, "--replay-decisions", "schedule.group_size was 4 and is now 8")
    program.refused([*repeat, "--set", "run.seed=8"], 2, "--replay-decisions", "run.seed was")
    program.refused([*repeat, "--set", "schedule.mode=deterministic"], 2, "--replay-decisions", "schedule.mode free")
    program.refused([*repeat, "--ranks", "3"], 2, "--replay-decisions", "train dp1", "as many ranks")
    program.refused([*repeat, "--resume"], 2, "--replay-decisions", "--resume")
    program.refused([*repeat, "--replay", folder], 2, "--replay-decisions", "--replay")
    journal = pathlib.Path(folder) / "decisions.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], lines[1][:-9]]) + "\n")
    program.refused(repeat, 2, "decisions.jsonl", "line 2", "damaged")
    line = json.loads(lines[1])
    journal.write_text("\n".join([lines[0], json.dumps({**line, "early": [[[line["groups"][0]], []]]}), *lines[2:]]) + "\n")
    program.refused(repeat, 2, "--replay-decisions", "a pass of 2 replicas in step 1")
    journal.write_text(lines[0] + "\n")
    program.refused(repeat, 2, "--replay-decisions", "no decision of a step", "free from step 1")
    assert not pathlib.Path(f"{root}/refused").exists(), "a refused run left a folder"
    rf.said("what cannot be free or repeated is refused, and leaves nothing")


CHECKS = {"two": two_ranks, "layouts": layouts, "processes": processes, "mixed": mixed, "mixed_processes": mixed_processes,
          "experts": experts, "offloaded": offloaded, "filtered": filtered, "early": early, "dropped": dropped,
          "differs": differs, "rewards": rewards_take_time,
          "resumes": resumes, "kills": kills, "defaults": defaults, "refusals": refusals}
rf.run_checks(__doc__, CHECKS)
