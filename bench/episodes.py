#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The guessing game of docs/guide/episodes.md, whole: share of games solved before and after training, for each seed under sync, split and
stale ranks, and workers. Fails where one begins above 40 % or ends below 80 %. Two cores take about six minutes a run."""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^`(\S+)`:\n```\w*\n(.*?)^```$", re.M | re.S)
WAYS = {"sync": [], "stale": ["--ranks", "2", "--set", "parallel.placement=split", "--staleness", "1"],
        "workers": ["--rollout-workers", "1"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--seed", default="1,2,3")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--out", help="a file of JSON lines, one a run")
    parser.add_argument("options", nargs="*", help="more arguments of tandem run")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in BLOCK.findall((ROOT / "docs/guide/episodes.md").read_text()):
            pathlib.Path(folder, name).write_text(text)
        subprocess.run([sys.executable, "game.py"], cwd=folder, check=True)
        for way in options.way or WAYS:
            for seed in options.seed.split(","):
                run = [f"{options.build}/tandem", "run", "game.yaml", "--run-dir", f"{way}_{seed}", "--set", f"run.seed={seed}", *WAYS[way],
                       *options.options]
                subprocess.run(run, cwd=folder, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
                lines = [json.loads(line) for line in pathlib.Path(folder, f"{way}_{seed}", "metrics.jsonl").read_text().splitlines()]
                solved = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]
                right = solved[0] < 0.4 and solved[-1] > 0.8
                failed += not right
                seconds = sum(line["time/step_s"] for line in lines)
                row = {"way": way, "seed": int(seed), "before": solved[0], "after": solved[-1], "seconds": seconds}
                print(json.dumps(row), "" if right else "not from under 40 to over 80 %", flush=True)
                if options.out:
                    with open(options.out, "a") as file:
                        file.write(json.dumps(row) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
