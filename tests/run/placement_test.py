# SPDX-License-Identifier: Apache-2.0
"""Where stages run changes no number: training and rollout on ranks of their own, and reference and reward model that are on the device
only for their own stages."""
import pathlib
import tempfile

import run_folder as rf

RUN = {"supervised.steps": 0, "run.steps": 4, "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_new_tokens": 8,
       "eval.max_new_tokens": 8, "eval.every_steps": 2, "data.synthetic_eval_rows": 8, "checkpoint.every_steps": 2, "parallel.threads": 1,
       "reward.rule": "regex", "reward.pattern": "[0-4]", "train.lr": 1e-3, "algo.kl_coef": 0.001, "model.init_hidden": 64,
       "model.init_layers": 2, "model.init_intermediate": 96, "run.parity": "true"}
SPLIT, MIXED = {"parallel.placement": "split"}, {"parallel.placement": "mixed"}
checks = rf.Checks()
program = rf.built_program()


def run(folder, settings, flags=(), launcher=()):
    program.quickstart(folder, {**RUN, **settings}, flags, launcher)
    return folder


def split_is_what_one_rank_does(root):
    one = run(f"{root}/one", {})
    two = run(f"{root}/split", SPLIT, ["--ranks", "2"])
    rf.check_equal(one, two, "one rank, and one that trains with one that generates")
    under_mpi = run(f"{root}/split-mpi", SPLIT, launcher=rf.mpi(2))
    rf.check_equal(one, under_mpi, "the same as two processes")
    stopped = run(f"{root}/split-stopped", {**SPLIT, "run.steps": 2}, ["--ranks", "2"])
    program.done(["run", f"{stopped}/config.yaml", "--run-dir", stopped, "--resume", "--steps", "4"])
    checks.check(rf.metrics(stopped)[2:] == rf.metrics(one)[2:], "a split run resumes")
    rf.said("a split run of two ranks is that of one, bit for bit")
    mixed = run(f"{root}/mixed", MIXED, ["--ranks", "2"])
    rf.check_equal(one, mixed, "one rank, and one that trains and generates with one that generates")
    rf.said("so is a mixed one")


def split_layouts(root):
    layouts = {"parallel.train_layout": "pp2", "parallel.rollout_layout": "dp2"}
    both = run(f"{root}/both", layouts, ["--ranks", "2"])
    apart = run(f"{root}/apart", {**SPLIT, **layouts}, ["--ranks", "4"])
    rf.check_equal(both, apart, "pp2 and dp2 on the same ranks, and on ranks of their own")
    rf.said("so is one of four ranks, pp2 beside dp2")


def rows_go_to_those_that_train_them(root):
    """Each once: rank 0 gets none that another trains. A prompt's tokens go to all that train a sample of its group."""
    layouts = {"parallel.train_layout": "dp2", "parallel.rollout_layout": "dp2", "run.steps": 2}
    one = run(f"{root}/dealt-one", {"run.steps": 2})
    folder = run(f"{root}/dealt", {**SPLIT, **layouts}, ["--ranks", "4"])
    first, wanted = ([row for row in rf.samples(path) if row[0] == 1] for path in (folder, one))
    checks.check(first == wanted and len(first) == 16, "samples of two ranks are those of one")
    checks.check(not pathlib.Path(folder, "samples.d").exists(), "files of parts are left")
    for line in rf.all_metrics(folder):
        step = line["step"]
        [(bodies,)] = rf.rows(folder, "SELECT sum(length(response_ids) + length(logprobs) + length(kept_mass) + 8 * response_tokens + "
                              f"length(routes) + length(CAST(response AS BLOB))) FROM samples WHERE step = {step}")
        [(texts, ids)] = rf.rows(folder, "SELECT sum(length(CAST(prompt || answer || data_source AS BLOB))), sum(length(prompt_ids)) "
                                 f"FROM samples WHERE step = {step} AND sample_index = 0")
        moved = line["throughput/moved_bytes"]
        checks.check(bodies + texts + ids <= moved <= bodies + texts + 2 * ids,
                     f"step {step}: {moved} bytes moved, of {bodies} of bodies, {texts} of texts and {ids} of prompts")
    rf.said("rows go to the ranks that train them, and nowhere else")


def overlaps(root, placement, staleness):
    settings, flags = {**placement, "schedule.staleness": staleness}, ["--ranks", "2", "--schedule", "stale"]
    name = f"{root}/{placement['parallel.placement']}-stale-{staleness}"
    folder = run(name, {**settings, "run.steps": 8}, flags)
    again = run(f"{name}-again", {**settings, "run.steps": 8}, flags)
    rf.check_equal(folder, again, f"staleness {staleness}: a run beside itself")
    lags = [m["staleness/lag_max"] for m in rf.all_metrics(folder)]
    checks.check(max(lags) <= staleness, f"staleness {staleness}: a group lags {max(lags)}")
    checks.check(max(lags) >= 1, f"staleness {staleness}: rollout never ran ahead")
    ahead = sum(m["data/groups_ahead"] for m in rf.all_metrics(folder))
    checks.check(ahead >= 8, f"staleness {staleness}: {ahead} groups were finished while the others trained")
    stopped = run(f"{name}-stopped", {**settings, "run.steps": 4}, flags)
    program.done(["run", f"{stopped}/config.yaml", "--run-dir", stopped, "--resume", "--steps", "8"])
    rf.check_whole(stopped, 8)
    rf.said(f"{placement['parallel.placement']}, staleness {staleness}: {ahead:.0f} of 32 groups were finished beside training, "
            f"lag at most {max(lags):.0f}, twice the same")


def refusals(root):
    recipe = rf.tiny_recipe(f"{root}/tiny.yaml")
    start = ["run", recipe, "--run-dir", f"{root}/refused", "--set", "parallel.placement=split"]
    program.refused(start, 2, "parallel.placement", "split over 1 rank", "add up")
    program.refused([*start, "--ranks", "3", "--train-layout", "dp2", "--rollout-layout", "dp2"], 2, "parallel.placement",
                    "split over 3 ranks", "training takes 2, rollout 2")
    program.refused([*start, "--ranks", "2", "--set", "memory.offload_train_param=true"], 2, "memory.offload_train_param", "split")
    mixed = ["run", recipe, "--run-dir", f"{root}/refused", "--set", "parallel.placement=mixed"]
    program.refused(mixed, 2, "parallel.placement", "mixed over 1 rank", "fewer ranks")
    program.refused([*mixed, "--ranks", "2", "--train-layout", "dp2"], 2, "parallel.placement", "mixed over 2 ranks", "training takes 2")
    program.refused([*mixed, "--ranks", "4", "--train-layout", "dp1", "--rollout-layout", "dp2,tp2", "--set", "run.parity=false"], 2,
                    "parallel.rollout_layout", "one replica", "only one of them trains")
    rf.said("a split or mixed placement that does not add up is refused")


with tempfile.TemporaryDirectory(prefix="tandem_placement_") as root:
    split_is_what_one_rank_does(root)
    split_layouts(root)
    rows_go_to_those_that_train_them(root)
    for staleness in (1, 2):
        overlaps(root, SPLIT, staleness)
    overlaps(root, MIXED, 1)
    refusals(root)
checks.exit()
