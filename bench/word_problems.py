#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How SmolLM2-135M-Instruct learns word problems: rows of configs/smollm2_word_problems.yaml, each for some minutes.

  scripts/get smollm2
  bench/word_problems.py grpo --seed 1 --minutes 25
  bench/word_problems.py dapo ppo lora stale --minutes 20
  bench/word_problems.py colocated --minutes 20            actor, reference, critic and reward model: the critic that row ppo trained
  bench/word_problems.py grpo --seed 4 --minutes 60 --steps 220
  bench/word_problems.py --sweep ppo 1e-5 2e-5 4e-5        the first 15 steps at each rate
  scripts/curves --table grpo=bench/results/word_problems/grpo_1

A row ends after --steps, over which the learning rate of the recipe falls, or, as by Ctrl-C, after --minutes. What it learned is kept in
bench/results/word_problems/ROW_SEED: metrics.jsonl, as scripts/curves reads it, and about.json with command, commit and machine. Minutes
count from the first step, evaluations included.
A sweep is kept in sweeps.json there. A seed is that of the problems, their order and the sampling. about.json has the accuracy of each
operation at the first evaluation and at the last, and the most memory that the process held. The evaluations of row colocated tell what
the reward model says; its about.json has the share that is right before and after."""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/word_problems"
KEPT = ("step", "eval/accuracy", "reward/mean", "data/groups_without_signal", "data/response_tokens_mean", "actor/grad_norm",
        "actor/kl_rollout_train", "throughput/tokens_per_s", "staleness/lag_max", "memory/peak_bytes", "time/step_s", "time/eval_s",
        "time/rollout_s", "time/train_s")
ROWS = {
    "grpo": {},
    "dapo": {"algo.name": "dapo"},
    "ppo": {"algo.name": "ppo", "train.lr": 8e-5},
    "lora": {"model.lora_rank": 16},
    "stale": {"schedule.kind": "stale", "schedule.staleness": 2},
    "colocated": {"algo.name": "ppo", "parallel.placement": "fully_colocated", "algo.kl_coef": 0.01, "reward.rule": "model",
                  "reward.model_dtype": "bfloat16"},
}


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "")
    return {"processor": model, "cores": len(os.sched_getaffinity(0)),
            "instructions": [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags.split()]}


def lines_of(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def train(options, row, folder, settings, steps, minutes):
    """One run; ends it after so many minutes. Returns its command, and the most memory that it held, in MiB."""
    settings = {**ROWS[row], **settings, "run.seed": options.seed, "data.seed": options.seed}
    if settings.get("reward.rule") == "model":
        settings["reward.model"] = (options.reward_model or options.out / f"ppo_{options.seed}/checkpoint/latest/critic/hf").resolve()
    command = [str(options.tandem), "run", "configs/smollm2_word_problems.yaml", "--model", str(options.model), "--run-dir", str(folder),
               "--overwrite", "--steps", str(steps), "--threads", str(options.threads)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.log", "w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    began = told = None
    ended = 0
    while not ended:
        time.sleep(1)
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if began is None and "== training" in pathlib.Path(f"{folder}.log").read_text():
            began = time.monotonic()
        if began is not None and told is None and time.monotonic() - began > 60 * minutes:
            told = time.monotonic()
            process.send_signal(signal.SIGINT)
        if told is not None and time.monotonic() - told > 600:
            process.kill()
    if os.waitstatus_to_exitcode(status) not in (0, 130):
        sys.exit(f"{' '.join(command)}\nended with {os.waitstatus_to_exitcode(status)}; see {folder}.log")
    return command, used.ru_maxrss >> 10


def accuracy(options, model):
    """The share of the recipe's evaluation that its own rule calls right."""
    command = [str(options.tandem), "eval", "--config", "configs/smollm2_word_problems.yaml", "--model", str(model),
               "--set", f"data.seed={options.seed}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return json.loads(printed.splitlines()[-1])["accuracy"]


def operation_of(question, answer):
    a, b = (int(number) for number in re.findall(r"\d+", question))
    return "sums" if answer == a + b else "products" if answer == a * b else "differences"


def by_operation(folder):
    """The accuracy of each operation at the first evaluation and at the last."""
    with sqlite3.connect(f"file:{folder}/samples.sqlite?mode=ro", uri=True) as database:
        steps = database.execute("SELECT min(step), max(step) FROM evals").fetchone()
        rows = [database.execute("SELECT question, answer, score FROM evals WHERE step = ?", (step,)).fetchall() for step in steps]
    shares = {}
    for name in ("sums", "differences", "products"):
        of_name = [[score for question, answer, score in some if operation_of(question, int(answer)) == name] for some in rows]
        shares[name] = [round(sum(scores) / len(scores), 3) for scores in of_name]
    return shares


def version_of(tandem):
    return subprocess.run([tandem, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def keep(options, row, folder, command, peak_mib):
    to = RESULTS / f"{row}_{options.seed}"
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with open(to / "metrics.jsonl", "w") as out:
        for line in lines_of(folder):
            kept = {name: float(f"{line[name]:.6g}") if isinstance(line[name], float) else line[name] for name in KEPT if name in line}
            out.write(json.dumps(kept) + "\n")
    products = next((line.split("products: ")[1] for line in (folder / "log.txt").read_text().splitlines() if "products: " in line), "")
    about = {"command": " ".join(command), "version": version_of(command[0]), "machine": machine(), "products": products,
             "date": time.strftime("%Y-%m-%d", time.gmtime()), "peak_mib": peak_mib, "accuracy": by_operation(folder)}
    if ROWS[row].get("reward.rule") == "model":
        about["right"] = [accuracy(options, options.model), accuracy(options, folder / "checkpoint/latest/hf")]
    (to / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    return to


def keep_sweep(options, rate, lines):
    """Into bench/results/word_problems/sweeps.json, beside those of other rates."""
    path = RESULTS / "sweeps.json"
    sweeps = json.loads(path.read_text()) if path.exists() else {}
    sweeps[f"{options.sweep[0]} {rate}"] = kept = {
        "accuracy": [round(line["eval/accuracy"], 4) for line in lines if "eval/accuracy" in line],
        "reward_mean_of_last_five": round(sum(line["reward/mean"] for line in lines[-5:]) / 5, 4), "version": version_of(options.tandem)}
    path.write_text(json.dumps(sweeps, indent=2) + "\n")
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--sweep", nargs="+", metavar=("ROW", "RATE"), help="15 steps of a row at each learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--steps", type=int, default=70, help="of a row; the learning rate falls over them (default: 70)")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/SmolLM2-135M-Instruct")
    parser.add_argument("--reward-model", type=pathlib.Path, help="of row colocated; else the critic of row ppo under --out, same seed")
    parser.add_argument("--tandem", type=pathlib.Path, default=ROOT / "build/release/tandem")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/word_problems", help="where the run folders go")
    options = parser.parse_args()
    options.model, options.tandem, options.out = options.model.resolve(), options.tandem.resolve(), options.out.resolve()
    if wrong := [row for row in [*options.rows, *(options.sweep or [])[:1]] if row not in ROWS]:
        parser.error(f"no row {wrong[0]} ({', '.join(ROWS)})")
    for rate in (options.sweep or [])[1:]:
        folder = options.out / f"sweep_{options.sweep[0]}_{rate}"
        settings = {"train.lr": rate, "train.lr_steps": options.steps, "eval.every_steps": 15, "checkpoint.every_steps": 1000}
        train(options, options.sweep[0], folder, settings, 15, 1e6)
        kept = keep_sweep(options, rate, lines_of(folder))
        print(f"{options.sweep[0]} at {rate}: accuracy {kept['accuracy'][0]:.3f} to {kept['accuracy'][-1]:.3f}, "
              f"mean reward of the last five steps {kept['reward_mean_of_last_five']:.3f}", flush=True)
    for row in options.rows:
        folder = options.out / f"{row}_{options.seed}"
        kept = keep(options, row, folder, *train(options, row, folder, {}, options.steps, options.minutes))
        subprocess.run([sys.executable, ROOT / "scripts/curves", "--table", f"{row}={kept}"], check=True)


if __name__ == "__main__":
    main()
