# SPDX-License-Identifier: Apache-2.0
"""What leaves the device between stages changes no number; the peak is that of the larger stage and one bucket; the KV cache gets
what optimizer and gradients leave."""
import json
import pathlib
import tempfile

import run_folder as rf

# Large enough that weights outweigh a bucket of 1 MiB and a chunk of 64 KiB.
SHAPE = {"model.init_hidden": 128, "model.init_layers": 4, "model.init_heads": 4, "model.init_kv_heads": 2, "model.init_intermediate": 672,
         "parallel.reshard_bucket_mib": 1, "rollout.packed_weights": "false", "rollout.max_running": 64}
RUN = {"supervised.steps": 0, "run.steps": 3, "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_new_tokens": 8,
       "eval.max_new_tokens": 8, "eval.every_steps": 2, "data.synthetic_eval_rows": 8, "checkpoint.every_steps": 2, "parallel.threads": 1,
       "reward.rule": "regex", "reward.pattern": "[0-4]", "train.lr": 1e-3, "algo.kl_coef": 0.001, "run.parity": "true"}
OFFLOAD = {f"memory.offload_train_{what}": "true" for what in ("param", "grad", "optimizer")}
MIB = 1 << 20
checks = rf.Checks()
program = rf.built_program()


def run(folder, settings, flags=()):
    program.quickstart(folder, {**SHAPE, **RUN, **settings}, flags)
    return rf.all_metrics(folder)


def offloading_changes_no_number(root, name, settings, flags=()):
    """Samples, metrics and weights are those of a run that keeps everything on the device, and so is a resumed run."""
    plain, lean = f"{root}/{name}-plain", f"{root}/{name}-offload"
    before, after = run(plain, settings, flags), run(lean, {**settings, **OFFLOAD}, flags)
    rf.check_equal(plain, lean, name)
    for step in rf.committed_steps(plain):
        for file in ("hf/model.safetensors", "optimizer_rank0.safetensors"):
            one, other = (pathlib.Path(folder, f"checkpoint/step_{step}", file).read_bytes() for folder in (plain, lean))
            checks.check(one == other, f"{name}: {file} of step {step}")
    checks.check(all(m["memory/offload_copied_bytes"] > 0 for m in after), f"{name}: something left and came back each step")
    checks.check("memory/offload_copied_bytes" not in before[0], f"{name}: and nothing without the switches")
    stopped = f"{root}/{name}-resumed"
    run(stopped, {**settings, **OFFLOAD, "run.steps": 2}, flags)
    program.done(["run", f"{stopped}/config.yaml", "--run-dir", stopped, "--resume", "--steps", "3", *flags])
    checks.check(rf.metrics(stopped)[-1] == rf.metrics(lean)[-1], f"{name}: a resumed run goes on as it would have")
    return before, after


def held(metrics, *owners):
    return sum(metrics.get(f"memory/{owner}_bytes", 0) for owner in owners)


def peak_is_bounded(name, runs, bucket_bytes):
    """Peak <= max(train state, rollout weights + KV) + one bucket. Both sums are those of the owners in a run where nothing leaves, the
    largest of any rank; the reference, which stays, is beside either."""
    plain, last = runs[0][-1], runs[1][-1]
    rollout_weights = "rollout_weights" if "memory/rollout_weights_bytes" in plain else "weights"
    beside = held(plain, "reference_weights")
    train = held(plain, "weights", "gradients", "optimizer", "master_weights", "activations") + beside
    rollout = held(plain, rollout_weights, "kv_cache", "packed") + beside
    bound = max(train, rollout) + bucket_bytes
    checks.check(last["memory/peak_bytes"] <= bound, f"{name}: peak {last['memory/peak_bytes']:.0f} above {bound:.0f}")
    checks.check(last["memory/switch_peak_bytes"] <= bound, f"{name}: switch {last['memory/switch_peak_bytes']:.0f} above {bound:.0f}")
    peak, switch, cache = (last[f"memory/{what}_bytes"] / MIB for what in ("peak", "switch_peak", "kv_cache"))
    print(f"{name}: peak {peak:.2f} MiB, train {train / MIB:.2f}, switch {switch:.2f}, rollout {rollout / MIB:.2f} (KV {cache:.2f})",
          flush=True)


def the_reference_leaves_alone(root, name, settings, flags=()):
    """memory.offload_reference takes the reference off the device outside its stage, also where ranks only train. Where ranks generate,
    too, the cache leaves with it."""
    plain, lean = f"{root}/{name}-here", f"{root}/{name}-leaves"
    before = run(plain, settings, flags)[-1]
    after = run(lean, {**settings, "memory.offload_reference": "true"}, flags)[-1]
    rf.check_equal(plain, lean, name)
    reference = before["memory/reference_weights_bytes"]
    checks.check(after["memory/reference_weights_bytes"] == 0, f"{name}: at the end of a step the reference is not on the device")
    checks.check(after["memory/host_reference_weights_bytes"] >= reference, f"{name}: it is on the host")
    saved = before["memory/train_peak_bytes"] - after["memory/train_peak_bytes"]
    leaves = held(before, "reference_weights", *(["kv_cache"] if name == "colocated" else []))
    checks.check(saved >= leaves, f"{name}: the peak of training falls by {saved:.0f}, {leaves:.0f} left")
    print(f"{name}: training peaks {saved / MIB:.2f} MiB lower, the reference has {reference / MIB:.2f}, with the cache {leaves / MIB:.2f}",
          flush=True)


def unfinished_sequences_are_computed_again(root, name, offload):
    """A lagging run whose cache leaves in the middle of answers: as exact from run to run, and across a resume between whole batches."""
    settings = {**offload, "schedule.staleness": 1, "rollout.max_running": 8, "rollout.max_new_tokens": 24, "run.steps": 4,
                "eval.every_steps": 0}
    flags = ["--no-eval", "--schedule", "stale"]
    first, second = run(f"{root}/stale-{name}-1", settings, flags), run(f"{root}/stale-{name}-2", settings, flags)
    rf.check_equal(f"{root}/stale-{name}-1", f"{root}/stale-{name}-2", "a lagging run beside itself")
    versions = [row for (row,) in rf.samples(f"{root}/stale-{name}-1", "versions")]
    mixed = sum(len(set(rf.token_versions(row))) > 1 for row in versions)
    checks.check(mixed > 0, "no answer went on under new weights, so nothing was tested")
    checks.check(max(m["staleness/lag_max"] for m in first + second) <= 1, "the lag stays in bounds")
    print(f"lagging, {name}: {mixed} of {len(versions)} answers went on under new weights, with a cache that had left", flush=True)


def the_samples_of_a_run_train_again(root):
    """A replay generates nothing, and its weights leave and come back all the same."""
    for name, settings in (("replay-plain", {}), ("replay-offload", OFFLOAD)):
        run(f"{root}/{name}", settings, ["--no-eval", "--replay", f"{root}/one rank-plain"])
    rf.check_equal(f"{root}/replay-plain", f"{root}/replay-offload", "a replay")


def the_cache_gets_what_training_leaves(root, budget_mib):
    """Under one budget, with a cache that would take any amount."""
    # Both caches are whole blocks: what is left over is less than one. With blocks of this size both leave about as much.
    settings = {"memory.device_mib": budget_mib, "rollout.max_running": 4096, "rollout.kv_block_tokens": 128, "run.steps": 1,
                "eval.every_steps": 0}
    flags = ["--no-eval"]
    without = run(f"{root}/budget-plain", settings, flags)[-1]
    with_offload = run(f"{root}/budget-offload", {**settings, **OFFLOAD}, flags)[-1]
    state = without["memory/optimizer_bytes"] + without["memory/gradients_bytes"]
    gain = with_offload["memory/kv_cache_bytes"] - without["memory/kv_cache_bytes"]
    checks.check(gain >= state, f"the cache gained {gain:.0f} bytes, optimizer and gradients have {state:.0f}")
    before, after = (m["memory/kv_cache_bytes"] / MIB for m in (without, with_offload))
    print(f"budget {budget_mib} MiB: KV cache {before:.2f} -> {after:.2f} MiB, "
          f"gain {gain / MIB:.2f}, optimizer and gradients {state / MIB:.2f}", flush=True)


def a_start_needs_no_more_than_a_stage(root):
    """A budget that the state of training fills: at the start, too, the weights of rollout come only when it has left."""
    layouts = {"parallel.train_layout": "dp2", "parallel.rollout_layout": "tp2", "run.parity": "false", "algo.kl_coef": 0,
               "rollout.max_running": 4, "run.steps": 1}
    plain = run(f"{root}/start-plain", layouts, ["--ranks", "2", "--no-eval"])[-1]
    train = held(plain, "weights", "gradients", "optimizer", "master_weights")
    budget = int(-(-train // MIB))
    checks.check(budget * MIB < train + held(plain, "rollout_weights"), "the budget has no room for both")
    run(f"{root}/start-offload", {**layouts, **OFFLOAD, "memory.device_mib": budget}, ["--ranks", "2", "--no-eval"])
    print(f"a start with training of {train / MIB:.2f} MiB in a budget of {budget}", flush=True)


with tempfile.TemporaryDirectory(prefix="tandem_offload_") as root:
    alone = offloading_changes_no_number(root, "one rank", {})
    peak_is_bounded("one rank", alone, MIB)
    checks.check(alone[1][-1]["memory/peak_bytes"] <= alone[0][-1]["memory/peak_bytes"], "offloading takes no more memory")
    for train, rollout in (("pp2", "dp2"), ("dp2", "pp2")):  # parity wants the same tp
        name = f"{train} to {rollout}"
        layouts = {"parallel.train_layout": train, "parallel.rollout_layout": rollout, "rollout.max_running": 4}
        two = offloading_changes_no_number(root, name, layouts, ["--ranks", "2"])
        peak_is_bounded(name, two, MIB)
    offloading_changes_no_number(root, "bf16", {"model.dtype": "bfloat16"})
    offloading_changes_no_number(root, "adapters", {"model.lora_rank": 4, **layouts}, ["--ranks", "2"])
    the_reference_leaves_alone(root, "colocated", {})
    the_reference_leaves_alone(root, "split", {"parallel.placement": "split", "rollout.max_running": 4}, ["--ranks", "2"])
    the_samples_of_a_run_train_again(root)
    unfinished_sequences_are_computed_again(root, "training", OFFLOAD)
    unfinished_sequences_are_computed_again(root, "reference", {"memory.offload_reference": "true"})
    the_cache_gets_what_training_leaves(root, 64)
    a_start_needs_no_more_than_a_stage(root)
checks.exit()
