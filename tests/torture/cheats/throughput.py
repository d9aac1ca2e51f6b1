#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that the rule `code` grades in a second, for each form of tests: of one build, or of two in turns.

    tests/torture/cheats/throughput.py --base ../parent/build/release      prints the rates, and head over base"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

import cheats

FORMS = {"three asserts": 0, "three asserts in one text": 1, "check(candidate)": 6, "standard input": 9, "calls": 10}


def seconds(tandem, task, count, scratch):
    """Of grading `count` honest answers, less the start of the program."""
    def took(lines):
        begin = time.perf_counter()
        done = subprocess.run([tandem, "grade", "--rule", "code"], input=lines, capture_output=True, encoding="utf-8",
                              env=dict(os.environ, TMPDIR=str(scratch)), check=True)
        assert all(json.loads(line)["score"] == 1 for line in done.stdout.splitlines()), done.stdout
        return time.perf_counter() - begin
    line = json.dumps({"response": f"```python\n{task.honest()}\n```", "gold": json.dumps(task.gold)}) + "\n"
    return (took(line * (count + 1)) - took(line)) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(cheats.ROOT / "build/release"))
    parser.add_argument("--base", help="another build to compare with, in turns")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    builds = [str(pathlib.Path(build).resolve() / "tandem") for build in (options.build, options.base) if build]
    tasks = cheats.tasks(random.Random(7))
    with tempfile.TemporaryDirectory(prefix="tandem_cheats_") as scratch:
        for form, index in FORMS.items():
            took = [[seconds(build, tasks[index], options.count, scratch) for build in builds] for _ in range(options.rounds)]
            medians = [statistics.median(column) for column in zip(*took)]
            row = {"form": form, "per_s": [round(1 / value, 2) for value in medians]}
            if options.base:
                ratios = sorted(base / head for head, base in took)
                row["head_over_base"] = {"median": round(statistics.median(ratios), 3), "min": round(ratios[0], 3),
                    "max": round(ratios[-1], 3)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
