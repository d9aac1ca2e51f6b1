# SPDX-License-Identifier: Apache-2.0
"""`stale` with staleness 0 is `sync`, bit for bit; with staleness S no group is trained more than S updates late, whatever
the lengths of the answers and whichever policy keeps the stragglers in bounds."""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tiny_run import Checks, Folder, floats, metrics, rows, run

# Random weights never learn to stop: an answer ends when the draw happens on <eos>, so lengths have a long tail.
TINY = {
    "model.init_hidden": 64, "model.init_layers": 2, "model.init_intermediate": 96, "model.init_deviation": 0.15, "supervised.steps": 0,
    "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_running": 24, "rollout.max_new_tokens": 160, "reward.rule": "regex",
    "reward.pattern": "1", "checkpoint.every_steps": 0, "eval.every_steps": 0, "parallel.threads": 1,
}
NOT_COMPARED = ("time/", "throughput/", "memory/")
COLUMNS = ("step, group_id, sample_index, sample_id, prompt_row, finish, score, advantage, group_version, trained_version, parts, prompt, "
           "answer, data_source, response, prompt_ids, response_ids, logprobs, kept_mass, versions, train_logprobs")
checks = Checks()


def comparable(step):
    return {k: v for k, v in step.items() if not k.startswith(NOT_COMPARED)}


def staleness_0_is_sync(root):
    run(root + "/sync", {**TINY, "run.steps": 20}, ["--no-eval", "--parity", "--schedule", "sync"])
    sync, sync_rows = metrics(root + "/sync"), rows(root + "/sync", COLUMNS)
    checks.check(len(sync) == 20 and len(sync_rows) == 20 * 16, "twenty steps of sixteen samples")
    checks.check(all(m["actor/kl_rollout_train"] == 0 for m in sync), "in parity mode rollout and training agree bit for bit")
    checks.check(sum(m["actor/grad_norm"] > 0 for m in sync) >= 15, "the run trains")
    for policy in ("drop", "wait"):
        folder = root + "/stale-0-" + policy
        run(folder, {**TINY, "run.steps": 20, "schedule.staleness": 0, "schedule.lag_policy": policy}, ["--no-eval", "--parity", "--schedule", "stale"])
        stale = metrics(folder)
        keys = set(comparable(sync[0]))
        for a, b in zip(sync, stale):
            different = [k for k in sorted(set(comparable(a)) | set(comparable(b))) if a.get(k) != b.get(k)]
            checks.check(not different and a["step"] == b["step"], "%s, step %s: %s differ from sync" % (policy, a["step"], different))
        checks.check(len(stale) == 20 and len(keys) > 20, "%s: as many steps, and metrics to compare" % policy)
        checks.check(rows(folder, COLUMNS) == sync_rows, "%s: the samples are those of sync" % policy)
    print("staleness 0 against sync: %d metrics of 20 steps and %d samples compared" % (len(comparable(sync[0])), len(sync_rows)))


def no_lag_above(staleness, policy, root):
    folder = "%s/stale-%d-%s" % (root, staleness, policy)
    name = "staleness %d, %s" % (staleness, policy)
    steps = 24
    seconds = run(folder, {**TINY, "run.steps": steps, "schedule.staleness": staleness, "schedule.lag_policy": policy},
                  ["--no-eval", "--schedule", "stale"])
    done = metrics(folder)
    histogram, lengths, worst_token = {}, [], 0
    for step, group, version, trained, response, versions in rows(folder, "step, group_id, group_version, trained_version, response_ids, versions"):
        lag = trained - version
        histogram[lag] = histogram.get(lag, 0) + 1
        lengths.append(len(response) // 4)
        checks.check(len(versions) == 2 * len(response), name + ": a version for each token")
        first = int.from_bytes(versions[:8], "little")
        worst_token = max(worst_token, trained - first)
        checks.check(first >= version, "%s: group %d has a token older than its version" % (name, group))
    checks.check(len(done) == steps, name + ": the number of steps")
    checks.check(max(histogram) <= staleness and worst_token <= staleness, "%s: a group lags %d" % (name, max(histogram)))
    checks.check(max(m["staleness/lag_max"] for m in done) == max(histogram), name + ": the metric says another largest lag")
    checks.check(max(histogram) > 0, name + ": nothing ever lagged, so nothing was tested")
    lengths.sort()
    checks.check(lengths[-1] > 4 * lengths[len(lengths) // 2], name + ": lengths have no long tail")
    dropped, waited = done[-1]["staleness/dropped"], done[-1]["staleness/waited"]
    checks.check(dropped == 0 if policy == "wait" else waited == 0, name + ": the other policy was at work")
    groups = {lag: n // 4 for lag, n in sorted(histogram.items())}
    held = [b for a, b in zip([{"staleness/waited": 0}] + done, done) if b["staleness/waited"] > a["staleness/waited"]]
    print("%-20s lag histogram %s, dropped %d groups (%.1f %% of those started), %d of %d updates waited (%.2f s of rollout in "
          "those steps, %.2f s in all, of %.1f s); lengths "
          "median %d, max %d" % (name, groups, dropped, 100 * dropped / (dropped + 4 * steps + done[-1]["queue/outstanding"]), waited, steps,
                                 sum(m["time/rollout_s"] for m in held), sum(m["time/rollout_s"] for m in done), seconds, lengths[len(lengths) // 2], lengths[-1]), flush=True)


with Folder() as root:
    staleness_0_is_sync(root)
    for staleness in (1, 2, 4):
        for policy in ("drop", "wait"):
            no_lag_above(staleness, policy, root)
checks.exit()
