#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast algorithms learn one task: the same start, the same number of samples, several seeds.

  learning.py configs/long_additions_grpo.yaml --variants algorithms --target 0.5 --out runs/algorithms
  learning.py configs/long_additions_grpo.yaml --variants stale --seeds 5 --target 0.5 --out runs/stale
  learning.py configs/long_additions_grpo.yaml --variants free --seeds 5 --target 0.5 --jobs 1 --out runs/free

It trains the warm start of the recipe once (--model DIR takes another), and runs each variant from it, for each seed. The seed
draws the problems and the answers to them. What a run evaluates on held-out problems is its score. The place of a score on the
curve counts the samples generated until then, in batches: those that dynamic sampling replaced count, too. So all variants have
the same budget, run.steps batches. It prints a Markdown table and the curves at each tenth of the budget; --out keeps the runs and
curves.json. The same command goes on where it was interrupted, and runs anew what other settings ask for.

A variant is a set of options (VARIANTS); --only takes some of a list, and --set changes an option of all. A variant that the
program refuses stays out of the table, with its error. --jobs runs are made side by side, one thread a rank, at idle priority.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TENTHS = 10

STALE = {"schedule.kind": "stale", "schedule.staleness": 4}
TOKEN = {**STALE, "algo.correction": "token"}
FREE = {"schedule.kind": "stale", "parallel.placement": "split", "parallel.ranks": 2}  # one rank trains, one generates; neither waits
VARIANTS = {
    "algorithms": {
        "grpo": {},
        "dr_grpo": {"algo.name": "dr_grpo"},
        "rloo": {"algo.name": "rloo"},
        "reinforce_pp": {"algo.name": "reinforce_pp"},
        "reinforce_pp, KL": {"algo.name": "reinforce_pp", "algo.kl_coef": 0.1, "algo.kl_estimator": "k2"},
        "gspo": {"algo.name": "gspo"},
        "cispo": {"algo.name": "cispo"},
        "ppo, KL": {"algo.name": "ppo", "critic.lr": "1e-3", "algo.kl_coef": 0.1, "algo.kl_estimator": "k2"},
        "dapo": {"algo.name": "dapo"},
        "grpo, 2 mini-batches": {"algo.mini_batches": 2},
        "grpo, 2 epochs": {"algo.epochs": 2},
        "gspo, 2 epochs": {"algo.name": "gspo", "algo.epochs": 2},
        "cispo, 2 epochs": {"algo.name": "cispo", "algo.epochs": 2},
    },
    "stale": {
        "sync": {},
        "stale, token and mask": STALE,  # the default
        "stale, clip alone": {**STALE, "algo.correction": "none"},
        "stale, token": TOKEN,
        "stale, token up to 10": {**TOKEN, "algo.correction_upper": 10},
        "stale, as if fresh": {**TOKEN, "algo.correction_lower": 1, "algo.correction_upper": 1},
    },
    "free": {
        "sync": {},
        "free, S 1": {**FREE, "schedule.staleness": 1},
        "free, S 4": {**FREE, "schedule.staleness": 4},
        "free, S 4, clip alone": {**FREE, "schedule.staleness": 4, "algo.correction": "none"},
        "free, S 4, as if fresh": {**FREE, **TOKEN, "algo.correction_lower": 1, "algo.correction_upper": 1},
    },
}


def curve_of(lines, groups_per_step, steps):
    """[[batches of samples, score]] of the lines of metrics.jsonl, up to `steps` batches. The first line has the score of the start."""
    curve, batches = [], 0.0
    for line in lines:
        batches += 1 + line.get("data/groups_filtered", 0) / groups_per_step
        if "eval/accuracy" in line:
            curve.append([0.0 if line["step"] == 1 else batches, line["eval/accuracy"]])
    return cut(curve, steps)


def score_at(curve, batches):
    """Linear between two points, and the last score behind the last one."""
    for (x0, y0), (x1, y1) in zip(curve, curve[1:]):
        if x0 <= batches <= x1:
            return y0 + (y1 - y0) * (batches - x0) / (x1 - x0)
    return curve[-1][1] if batches >= curve[-1][0] else curve[0][1]


def cut(curve, steps):
    """The curve from 0 to `steps` batches."""
    return [point for point in curve if point[0] < steps] + [[float(steps), score_at(curve, steps)]]


def steps_to(curve, target):
    """Batches until the curve first reaches the target; infinite if it does not."""
    before = curve[0]
    for point in curve:
        if point[1] >= target:
            rise = point[1] - before[1]
            return before[0] + (point[0] - before[0]) * (target - before[1]) / rise if rise > 0 else point[0]
        before = point
    return math.inf


def mean_of(curve):
    """Mean height: the area under the curve by its length."""
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in zip(curve, curve[1:]))
    return area / (curve[-1][0] - curve[0][0])


def number(value, steps):
    return f"> {steps}" if math.isinf(value) else f"{value:.0f}"


def spread(values):
    """Standard deviation over the seeds, in points."""
    return f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""


def table(curves, target, steps, lags=None):
    """Markdown lines. `curves` is variant -> seed -> curve. Scores are in percent. `lags`, variant -> updates, adds a column."""
    column = (lambda text: f" {text} |") if lags else (lambda text: "")
    lines = [f"| variant | steps to {100 * target:.0f} %: median (least to most) | mean over the curve | last score | seeds |"
             + column("mean lag"), "|---|---|---|---|---|" + column("---")]
    for name, of_seeds in curves.items():
        reached = [steps_to(curve, target) for curve in of_seeds.values()]
        means, last = [mean_of(curve) for curve in of_seeds.values()], [curve[-1][1] for curve in of_seeds.values()]
        lines.append(f"| {name} | {number(statistics.median(reached), steps)} ({number(min(reached), steps)} to "
                     f"{number(max(reached), steps)}) | {100 * statistics.mean(means):.1f}{spread(means)} | "
                     f"{100 * statistics.mean(last):.1f}{spread(last)} | {len(of_seeds)} |"
                     + column(f"{lags[name]:.2f}" if lags else ""))
    return lines


def tenths(curves, steps):
    """The mean score over the seeds, in percent, after each tenth of the budget, the start first."""
    wide = max(len(name) for name in curves)
    places = [steps * i / TENTHS for i in range(TENTHS + 1)]
    lines = [f"{'steps':{wide}}" + "".join(f"{place:6.0f}" for place in places)]
    for name, of_seeds in curves.items():
        means = [statistics.mean(score_at(curve, place) for curve in of_seeds.values()) for place in places]
        lines.append(f"{name:{wide}}" + "".join(f"{100 * mean:6.1f}" for mean in means))
    return lines


def tandem(options, arguments):
    """The program on one thread a rank, at idle priority: (exit code, its standard error)."""
    command = ["chrt", "-i", "0", options.program, *arguments]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stderr


def sets(settings):
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def without_comments(yaml):
    lines = [line.split(" #")[0].rstrip() for line in yaml.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in lines if line]


def start_of(options):
    """The directory of the model that all runs start from."""
    if options.model:
        return options.model
    folder = options.out / "start"
    if not (folder / "hf/config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        settings = {**options.set, "parallel.threads": 1}
        code, said = tandem(options, ["sft", options.recipe, "--run-dir", folder, "--no-eval", *sets(settings)])
        if code != 0:
            sys.exit(said[-2000:])
    return folder / "hf"


def run(options, model, name, seed):
    """Makes the run unless it is there; keeps its metrics. The error if the program refuses it, else None."""
    folder = options.out / name.replace(", ", "-").replace(" ", "_") / f"seed{seed}"
    settings = {**options.set, **VARIANTS[options.variants][name], "run.seed": seed, "data.seed": seed, "parallel.threads": 1,
                "supervised.steps": 0}  # all runs start from one model
    asked = {"recipe": without_comments(pathlib.Path(options.recipe).read_text()), "model": str(model), "settings": settings}
    kept, result = folder.with_suffix(".json"), folder / "summary.json"
    if result.exists() and kept.exists() and json.loads(kept.read_text()) == asked:
        return folder, None
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    code, said = tandem(options, ["run", options.recipe, "--run-dir", folder, "--model", model, *sets(settings)])
    if code != 0:
        return folder, next((line for line in said.splitlines() if "error: " in line), said[-2000:])
    for large in ("checkpoint", "tensorboard", "trace.json", "samples.sqlite"):
        path = folder / large
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    kept.write_text(json.dumps(asked))
    return folder, None


def read_recipe(options, model):
    """The options of the recipe as the program resolves them: section.name -> text."""
    command = [options.program, "config", options.recipe, "--model", str(model), *sets(options.set)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found, section = {}, ""
    for line in without_comments(done.stdout):
        key, _, value = line.partition(":")
        if not line.startswith(" "):
            section = key
        else:
            found[f"{section}.{key.strip()}"] = value.strip()
    return found


def curves_of(options, model):
    """Steps; by variant: the curve of each seed, the mean lag of its samples, and the error of one that the program refuses."""
    recipe = read_recipe(options, model)
    steps, groups = int(recipe["run.steps"]), int(recipe["schedule.groups_per_step"])
    curves, lags, refused = {}, {}, {}
    names = options.only or list(VARIANTS[options.variants])
    asked = [(name, seed) for seed in range(options.seeds) for name in names]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (name, seed), (folder, error) in zip(asked, pool.map(lambda one: run(options, model, *one), asked)):
            if error:
                refused[name] = error
                continue
            print(f"{name}, seed {seed}: done", file=sys.stderr, flush=True)
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            curves.setdefault(name, {})[seed] = curve_of(lines, groups, steps)
            lags.setdefault(name, []).extend(line["staleness/lag_mean"] for line in lines)
    lags = {name: statistics.mean(of_steps) for name, of_steps in lags.items()}
    return steps, {name: curves[name] for name in names if name in curves}, lags, refused


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--variants", choices=VARIANTS, required=True)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the list")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", type=float, required=True, help="the score whose steps are counted, from 0 to 1")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=VALUE", help="for all runs")
    parser.add_argument("--model", help="where all runs start, in place of the recipe's warm start")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--program", default=str(ROOT / "build/release/tandem"))
    options = parser.parse_args()
    options.set = dict(word.split("=", 1) for word in options.set)
    unknown = set(options.only or []) - set(VARIANTS[options.variants])
    if unknown:
        parser.error(f"--only: {sorted(unknown)} are no variants; there are {sorted(VARIANTS[options.variants])}")
    return options


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    steps, curves, lags, refused = curves_of(options, start_of(options))
    for name, error in refused.items():
        print(f"{name}: {error}", file=sys.stderr)
    if not curves:
        sys.exit("no run ended")
    (options.out / "curves.json").write_text(json.dumps({"recipe": options.recipe, "steps": steps, "set": options.set, "curves": curves,
                                                         "lags": lags}))
    shown = lags if any(lags.values()) else None
    print("\n".join([*table(curves, options.target, steps, shown), "", "```", *tenths(curves, steps), "```"]))


if __name__ == "__main__":
    main()
