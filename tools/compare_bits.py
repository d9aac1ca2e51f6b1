#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two built trees, such as a commit and its parent, compared bit for bit: five steps of configs/quickstart.yaml under --parity in each
layout, placement and algorithm below, a resume of the first tree's folder by both, decisions of a free run replayed, and greedy and
sampled tokens of small models. One JSON line each; exit code 1 where anything differs. Some five minutes on two cores.

The metrics that a clock makes are left out (CLOCKS). Both trees need build/release/tandem (scripts/build release tandem)."""
import argparse
import hashlib
import json
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/run"))
from small_model import reward_model_of  # noqa: E402

STEPS = ["--steps", "5", "--threads", "1", "--parity", "--set", "eval.every_steps=5", "--set", "supervised.steps=5"]
SPLIT = ["--ranks", "2", "--set", "parallel.placement=split"]
STALE = ["--schedule", "stale", "--staleness", "2"]
COLOCATED = ["--ranks", "2", "--set", "parallel.placement=fully_colocated", "--set", "algo.kl_coef=0.1", "--set", "reward.rule=model"]
RUNS = {
    "one rank": [],
    "dp2": ["--ranks", "2", "--train-layout", "dp2"],
    "tp2": ["--ranks", "2", "--train-layout", "tp2"],
    "split": SPLIT,
    "split, stale": [*SPLIT, *STALE],
    "fully colocated": COLOCATED,  # with a reference and a reward model
    "PPO": ["--set", "algo.name=ppo", "--set", "critic.lr=1e-3"],
    "LoRA": ["--set", "model.lora_rank=8", "--set", "train.lr=1e-3"],
    "one worker": ["--rollout-workers", "1"],
    "three workers": ["--rollout-workers", "3"],
}
FREE = ["--ranks", "2", "--set", "parallel.placement=mixed", "--train-layout", "dp1", *STALE, "--set", "schedule.mode=free"]
MODELS = ("llama", "qwen2_tied", "qwen2_untied", "qwen3", "qwen3_moe", "qwen3_sharded_bf16", "deepseek_v3")
CLOCKS = ("time/", "throughput/", "memory/", "switch/", "idle/", "workers/", "kernels", "queue/", "gap/weights")
# Of a free run: what is finished, started or held back at the end of a step.
FREE_CLOCKS = (*CLOCKS, "data/groups_ahead", "data/groups_early", "data/groups_filtered", "data/epoch", "staleness/waited", "gap/")


def run(tree, folder, flags):
    """`tandem run` of the tree; returns the folder, None where the run failed."""
    if "--resume" not in flags:
        shutil.rmtree(folder, ignore_errors=True)
    made = subprocess.run([tree / "build/release/tandem", "run", "configs/quickstart.yaml", "--run-dir", folder, *STEPS, *flags], cwd=tree,
                          capture_output=True, text=True, timeout=900)
    if made.returncode:
        print(f"{tree}: {made.stderr[-600:]}", file=sys.stderr)
    return None if made.returncode else folder


def bits(folder, clocks):
    """What a run left: metrics, checksums of its weights, samples."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = sorted((folder / "checkpoint/latest/").rglob("*.safetensors"))
    columns = "step, sample_id, response_ids, logprobs, versions, score, advantage, train_logprobs"
    samples = sqlite3.connect(folder / "samples.sqlite").execute(f"SELECT {columns} FROM samples ORDER BY 1, 2").fetchall()
    return {"metrics": [{name: value for name, value in line.items() if not name.startswith(clocks)} for line in lines],
            "weights": [hashlib.sha256(file.read_bytes()).hexdigest() for file in files], "samples": samples}


def compare(name, first, second, clocks=CLOCKS):
    """Prints a line; returns whether all is the same."""
    if not first or not second:
        failed = [tree for tree, made in (("first", first), ("second", second)) if not made]
        print(json.dumps({"run": name, "same": False, "failed": failed}), flush=True)
        return False
    a, b = bits(first, clocks), bits(second, clocks)
    differs = [what for what in a if a[what] != b[what] or not a[what]]
    metrics = sorted({key for x, y in zip(a["metrics"], b["metrics"]) for key in {*x, *y} if x.get(key) != y.get(key)})
    row = {"run": name, "same": not differs, "steps": len(a["metrics"]), "samples": len(a["samples"]), "files": len(a["weights"])}
    print(json.dumps({**row, **({"differs": differs, "metrics": metrics[:8]} if differs else {})}), flush=True)
    return not differs


def compare_tokens(trees, models, out):
    (out / "prompts.jsonl").write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in ([5, 9, 2, 11], [7], list(range(3, 40)))))
    same = {}
    # Without --parity the products that were fastest at the start compute, which a busy machine changes.
    flags = ["--input", out / "prompts.jsonl", "--n", "3", "--max-new-tokens", "24", "--logprobs", "--seed", "3"]
    for model in MODELS:
        said = [subprocess.run([tree / "build/release/tandem", "generate", "--model", models / model, *flags, "--parity", "--threads", "1"],
                               capture_output=True, text=True) for tree in trees]
        same[model] = said[0].stdout == said[1].stdout and len(said[0].stdout.splitlines()) == 3
    print(json.dumps({"tokens": same}), flush=True)
    return all(same.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=pathlib.Path, help="the older, then the newer")
    parser.add_argument("--only", choices=[*RUNS, "resume", "free", "tokens"], action="append", help="this run alone; may be repeated")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT.parent / "shared/oracles/models", help="folder of " + ", ".join(MODELS))
    options = parser.parse_args()
    first, second = trees = [tree.resolve() for tree in options.trees]
    wanted = options.only or [*RUNS, "resume", "free", "tokens"]
    same = []
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        for number, (name, flags) in enumerate(RUNS.items()):
            if name not in wanted:
                continue
            if flags is COLOCATED:
                run(first, out / "start", ["--steps", "1"])
                reward_model_of(out / "start/init/hf", out / "reward_model")
                flags = [*flags, "--set", f"reward.model={out / 'reward_model'}"]
            same.append(compare(name, *(run(tree, out / f"{number}{at}", flags) for at, tree in enumerate(trees))))
        if "resume" in wanted:
            run(first, out / "resumed0", ["--steps", "3", "--set", "checkpoint.every_steps=3"])
            shutil.copytree(out / "resumed0", out / "resumed1", symlinks=True)
            same.append(compare("resume", *(run(tree, out / f"resumed{at}", ["--resume"]) for at, tree in enumerate(trees))))
        if "free" in wanted:
            run(first, out / "free", FREE)
            again = [*FREE, "--replay-decisions", str(out / "free")]
            same.append(compare("free", *(run(tree, out / f"free{at}", again) for at, tree in enumerate(trees)), FREE_CLOCKS))
        if "tokens" in wanted:
            same.append(compare_tokens(trees, options.models, out))
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
