# SPDX-License-Identifier: Apache-2.0
"""`stale` with staleness 0 is `sync`, bit for bit; with staleness S no group is trained more than S updates late, whatever
the lengths of the answers and whichever policy keeps the stragglers in bounds."""
import tempfile

import run_folder as rf

# Random weights never learn to stop: an answer ends when the draw happens on <eos>, so lengths have a long tail.
TINY = {
    "model.init_hidden": 64, "model.init_layers": 2, "model.init_intermediate": 96, "model.init_deviation": 0.15,
    "supervised.steps": 0, "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_running": 24,
    "rollout.max_new_tokens": 160, "reward.rule": "regex", "reward.pattern": "1",
    "checkpoint.every_steps": 0, "eval.every_steps": 0, "parallel.threads": 1,
}
COLUMNS = ("step, group_id, sample_index, sample_id, prompt_row, finish, score, advantage, group_version, trained_version, parts, prompt, "
           "answer, data_source, response, prompt_ids, response_ids, logprobs, kept_mass, versions, train_logprobs")
checks = rf.Checks()
program = rf.built_program()


def staleness_0_is_sync(root):
    program.quickstart(root + "/sync", {**TINY, "run.steps": 20}, ["--no-eval", "--parity", "--schedule", "sync"])
    sync, sync_rows = rf.metrics(root + "/sync"), rf.samples(root + "/sync", COLUMNS)
    checks.check(len(sync) == 20 and len(sync_rows) == 20 * 16, "twenty steps of sixteen samples")
    checks.check(all(m["actor/kl_rollout_train"] == 0 for m in sync), "in parity mode rollout and training agree bit for bit")
    checks.check(sum(m["actor/grad_norm"] > 0 for m in sync) >= 15, "the run trains")
    for policy in ("drop", "wait"):
        folder = root + "/stale-0-" + policy
        settings = {**TINY, "run.steps": 20, "schedule.staleness": 0, "schedule.lag_policy": policy}
        program.quickstart(folder, settings, ["--no-eval", "--parity", "--schedule", "stale"])
        stale = rf.metrics(folder)
        for a, b in zip(sync, stale):
            different = [k for k in sorted(set(a) | set(b)) if a.get(k) != b.get(k)]
            checks.check(not different and a["step"] == b["step"], "%s, step %s: %s differ from sync" % (policy, a["step"], different))
        checks.check(len(stale) == 20 and len(sync[0]) > 20, "%s: as many steps, and metrics to compare" % policy)
        checks.check(rf.samples(folder, COLUMNS) == sync_rows, "%s: the samples are those of sync" % policy)
    print("staleness 0 against sync: %d metrics of 20 steps and %d samples compared" % (len(sync[0]), len(sync_rows)))


def no_lag_above(staleness, policy, root):
    folder = "%s/stale-%d-%s" % (root, staleness, policy)
    name = "staleness %d, %s" % (staleness, policy)
    steps = 24
    settings = {**TINY, "run.steps": steps, "schedule.staleness": staleness, "schedule.lag_policy": policy}
    seconds = program.quickstart(folder, settings, ["--no-eval", "--schedule", "stale"])
    done = rf.all_metrics(folder)
    histogram, lengths, worst_token = {}, [], 0
    columns = "group_id, group_version, trained_version, response_ids, versions"
    for group, version, trained, response, versions in rf.samples(folder, columns):
        lag = trained - version
        histogram[lag] = histogram.get(lag, 0) + 1
        lengths.append(len(response) // 4)
        sampled_by = rf.token_versions(versions)
        checks.check(len(sampled_by) == len(response) // 4, name + ": a version for each token")
        first = sampled_by[0]
        worst_token = max(worst_token, trained - first)
        checks.check(first >= version, "%s: group %d has a token older than its version" % (name, group))
    checks.check(len(done) == steps, name + ": the number of steps")
    checks.check(max(histogram) <= staleness and worst_token <= staleness, "%s: a group lags %d" % (name, max(histogram)))
    checks.check(max(m["staleness/lag_max"] for m in done) == max(histogram), name + ": the metric says another largest lag")
    checks.check(max(histogram) > 0, name + ": nothing ever lagged, so nothing was tested")
    fresh = {step for step, trained, versions in rf.samples(folder, "step, trained_version, versions")
             if set(rf.token_versions(versions)) <= {trained}}
    beyond = [m for m in done if m["step"] not in fresh and m["gap/tokens"] > 0]
    checks.check(all(m["gap/tokens"] > 0 for m in done if m["step"] in fresh), name + ": a step with a fresh row measures no gap")
    checks.check(all(0 < m["gap/max"] < 1e-4 for m in beyond), name + ": the gap of rows beyond the batch")
    checks.check(len(beyond) > 0, name + ": no gap was measured beyond a batch")
    lengths.sort()
    checks.check(lengths[-1] > 4 * lengths[len(lengths) // 2], name + ": lengths have no long tail")
    dropped, waited = done[-1]["staleness/dropped"], done[-1]["staleness/waited"]
    checks.check(dropped == 0 if policy == "wait" else waited == 0, name + ": the other policy was at work")
    groups = {lag: n // 4 for lag, n in sorted(histogram.items())}
    held = [b for a, b in zip([{"staleness/waited": 0}] + done, done) if b["staleness/waited"] > a["staleness/waited"]]
    dropped_percent = 100 * dropped / (dropped + 4 * steps + done[-1]["queue/outstanding"])
    held_s, rollout_s = (sum(m["time/rollout_s"] for m in some) for some in (held, done))
    print(f"{name:20} lag histogram {groups}, dropped {dropped:.0f} groups ({dropped_percent:.1f} % of those started), {waited:.0f} of "
          f"{steps} updates waited ({held_s:.2f} s of rollout in those steps, {rollout_s:.2f} s in all, of {seconds:.1f} s); lengths "
          f"median {lengths[len(lengths) // 2]}, max {lengths[-1]}", flush=True)


with tempfile.TemporaryDirectory(prefix="tandem_schedule_") as root:
    staleness_0_is_sync(root)
    for staleness in (1, 2, 4):
        for policy in ("drop", "wait"):
            no_lag_above(staleness, policy, root)
checks.exit()
