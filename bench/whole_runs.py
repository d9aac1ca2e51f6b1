#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Figures that only whole runs give, on a random model of a benchmark's shape and synthetic prompts.

  whole_runs.py placement   colocated against split on the same two cores, in turns: the step, its stages, and their ratio
  whole_runs.py switch      what share of a step the switch between layouts takes, with everything offloaded, and the peak of memory
  whole_runs.py save        what a checkpoint adds to the step that saves and to the one it is written beside (--shape 0.5b, two ranks)

Exit code 1 if a bound is missed: colocated at least 1.6 times as fast and 95 % of what the stages' times allow; a switch at most 2 % of a
step, and a peak within that of the larger stage and one bucket; a step that saves at most 1.1 times its neighbours.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MIB = 1 << 20
MIN_SPEEDUP, MIN_SHARE, MAX_SWITCH_SHARE, MAX_SAVE_RATIO = 1.6, 0.95, 0.02, 1.1
SHAPES = {"tiny": (128, 4, 4, 2, 352), "small": (512, 8, 8, 2, 1408), "0.5b": (896, 24, 14, 2, 4864)}
OFFLOAD = {f"memory.offload_train_{what}": "true" for what in ("param", "grad", "optimizer")}


def settings(options):
    hidden, layers, heads, kv_heads, intermediate = SHAPES[options.shape]
    where = {"model.path": options.model} if options.model else {}
    return {**where, "model.init_hidden": hidden, "model.init_layers": layers, "model.init_heads": heads, "model.init_kv_heads": kv_heads,
            "model.init_intermediate": intermediate, "model.init_max_positions": options.new + 64, "model.dtype": options.dtype,
            "supervised.steps": 0, "run.steps": options.steps + 1, "schedule.groups_per_step": options.prompts,
            "schedule.group_size": options.gens,
            "rollout.max_new_tokens": options.new, "rollout.ignore_eos": "true", "reward.rule": "regex",
            "reward.pattern": "[02468]$",  # of a part of each group: without a spread of scores a step has no backward pass
            "checkpoint.every_steps": 0, "eval.every_steps": 0, "parallel.threads": 2, "algo.kl_coef": 0}


def tandem(folder, chosen, flags):
    command = [str(ROOT / "build/release/tandem"), "run", str(ROOT / "configs/quickstart.yaml"), "--run-dir", str(folder), "--no-eval",
               *flags, *[word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def with_tokenizer(model, root):
    """The model in a folder of its own, with the tokenizer of the additions if it has none."""
    if (model / "tokenizer.json").exists():
        return model
    tandem(root / "start", {"run.steps": 1, "supervised.steps": 0, "checkpoint.every_steps": 0}, [])
    folder = root / "model"
    shutil.copytree(root / "start/init/hf", folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    for file in model.iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.resolve())
    return folder


def run(options, folder, more, flags, count=0):
    """The metrics of each step but the first, which warms up; or of `count` steps."""
    tandem(folder, {**settings(options), **more}, flags)
    lines = [json.loads(line) for line in pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == (count or options.steps + 1)
    for line in lines:
        assert line["data/response_tokens_mean"] == options.new, "every response has the length that was asked for"
    return lines if count else lines[1:]


def median(lines, name):
    return statistics.median(line[name] for line in lines)


def placement(options):
    split, together = [], []
    with tempfile.TemporaryDirectory(prefix="tandem_placement_") as root:
        for repeat in range(options.repeats):
            split += run(options, f"{root}/split{repeat}", {"parallel.placement": "split"}, ["--ranks", "2"])
            together += run(options, f"{root}/both{repeat}", {}, ["--ranks", "2"])
    stages = {name: median(lines, f"time/{stage}_s") for name, lines, stage in (
        ("rollout_1_core_s", split, "rollout"), ("train_1_core_s", split, "train"), ("rollout_2_cores_s", together, "rollout"),
        ("train_2_cores_s", together, "train"))}
    steps = {"split_step_s": median(split, "time/step_s"), "colocated_step_s": median(together, "time/step_s")}
    allowed = (stages["rollout_1_core_s"] + stages["train_1_core_s"]) / (stages["rollout_2_cores_s"] + stages["train_2_cores_s"])
    reached = steps["split_step_s"] / steps["colocated_step_s"]
    return {**stages, **steps, "speedup": reached, "stage_times_allow": allowed, "share_of_allowed": reached / allowed,
            "within_bounds": reached >= MIN_SPEEDUP and reached >= MIN_SHARE * allowed}


def switch(options):
    layouts = {"parallel.train_layout": options.train_layout, "parallel.rollout_layout": options.rollout_layout,
               "parallel.reshard_bucket_mib": options.bucket_mib, "rollout.max_running": 64}
    with tempfile.TemporaryDirectory(prefix="tandem_switch_") as root:
        lines = run(options, f"{root}/run", {**layouts, **OFFLOAD}, ["--ranks", "2"])
        plain = run(options, f"{root}/plain", {**layouts, "run.steps": 1}, ["--ranks", "2"], count=1)[-1]  # nothing leaves: who holds what
    last = lines[-1]
    moved = [line["time/switch_s"] + line["time/offload_s"] for line in lines]  # some of the second is in the first: an upper bound
    held = lambda *owners: sum(plain.get(f"memory/{owner}_bytes", 0) for owner in owners)  # noqa: E731
    train = held("weights", "gradients", "optimizer", "master_weights", "activations")
    rollout = held("rollout_weights", "kv_cache", "packed")
    bound = max(train, rollout) + options.bucket_mib * MIB
    share = max(m / line["time/step_s"] for m, line in zip(moved, lines))
    return {"step_s": median(lines, "time/step_s"), "switch_s": median(lines, "time/switch_s"),
            "offload_s": median(lines, "time/offload_s"),
            "share_of_step": share, "peak_bytes": last["memory/peak_bytes"], "peak_of_plain_bytes": plain["memory/peak_bytes"],
            "train_state_bytes": train, "rollout_bytes": rollout, "kv_cache_bytes": last["memory/kv_cache_bytes"], "bound_bytes": bound,
            "switch_sent_bytes": last["switch/sent_bytes"],
            "within_bounds": share <= MAX_SWITCH_SHARE and last["memory/peak_bytes"] <= bound}


def save(options):
    """A step ends where its numbers are committed and its checkpoint is begun; `time/checkpoint_s` comes with the numbers of the next."""
    every = 3
    with tempfile.TemporaryDirectory(prefix="tandem_save_", dir=options.folder) as root:
        # Each group has a spread, or a step of few groups with one would be compared with a step of many.
        reward = pathlib.Path(root, "by_turns.py")
        reward.write_text("def score(completions, **columns):\n    return [float(i % 2) for i in range(len(completions))]\n")
        more = {"checkpoint.every_steps": every, "checkpoint.keep_last": 1, "run.steps": options.steps, "parallel.threads": 1,
                "parallel.train_layout": options.train_layout, "reward.rule": "python", "reward.python": f"{reward}:score"}
        lines = run(options, f"{root}/run", more, ["--ranks", "2"], count=options.steps)
        manifest = json.loads(pathlib.Path(root, "run/checkpoint/latest/manifest.json").read_text())
    steps = [line["time/step_s"] for line in lines]
    saves = range(every - 1, options.steps - 1, every)  # behind the run; the last step's is waited for
    pauses = [lines[i + 1]["time/checkpoint_s"] for i in saves]
    ratios = [(steps[i] + pause) / statistics.mean((steps[i - 1], steps[i + 1])) for i, pause in zip(saves, pauses)]
    beside = [steps[i + 1] / steps[i - 1] for i in saves]
    return {"step_s": steps, "pause_s": pauses, "write_s": [line.get("time/checkpoint_write_s") for line in lines],
            "checkpoint_bytes": sum(file["bytes"] for file in manifest["files"].values()),
            "saving_step_to_neighbours": ratios, "step_beside_the_write_to_one_before": beside,
            "within_bounds": max(ratios) <= MAX_SAVE_RATIO}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["placement", "switch", "save"])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--model", help="a model in place of a random one of --shape, such as bench/make_model.py writes")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--prompts", type=int, help="16, switch: 64")
    parser.add_argument("--gens", type=int, default=8)
    parser.add_argument("--new", type=int, help="tokens of each response: 64, switch: 256")
    parser.add_argument("--steps", type=int, help="steps that count, behind one that warms up: 3, switch: 1")
    parser.add_argument("--repeats", type=int, default=2, help="placement: how often the two run in turns")
    parser.add_argument("--train-layout", default="dp2")
    parser.add_argument("--rollout-layout", default="tp2")
    parser.add_argument("--bucket-mib", type=int, default=16)
    parser.add_argument("--folder", help="save: a folder on the disk to be measured, in place of the system's for temporary files")
    parser.add_argument("--out")
    options = parser.parse_args()
    usual = {"placement": {"prompts": 16, "new": 64, "steps": 3}, "switch": {"prompts": 64, "new": 256, "steps": 1},
             "save": {"prompts": 8, "new": 128, "steps": 8}}[options.what]
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    with tempfile.TemporaryDirectory(prefix="tandem_model_") as root:
        if options.model:
            options.model = str(with_tokenizer(pathlib.Path(options.model), pathlib.Path(root)))
        figures = {"placement": placement, "switch": switch, "save": save}[options.what](options)
    report = {"what": options.what, **{k: v for k, v in vars(options).items() if k not in ("what", "out")},
              **figures}
    text = json.dumps(report, indent=1)
    if options.out:
        pathlib.Path(options.out).write_text(text + "\n")
    print(text)
    return 0 if figures["within_bounds"] else 1


if __name__ == "__main__":
    sys.exit(main())
