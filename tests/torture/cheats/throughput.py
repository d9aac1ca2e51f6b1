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
    """(wall time, processor time) of grading one honest answer: that of `count` and one, less that of one."""
    def took(lines):
        begin, before = time.perf_counter(), os.times()
        done = subprocess.run([tandem, "grade", "--rule", "code"], input=lines, capture_output=True, encoding="utf-8",
                              env=dict(os.environ, TMPDIR=str(scratch)), check=True)
        assert all(json.loads(line)["score"] == 1 for line in done.stdout.splitlines()), done.stdout
        after = os.times()
        return time.perf_counter() - begin, sum(after[2:4]) - sum(before[2:4])
    line = json.dumps({"response": f"```python\n{task.honest()}\n```", "gold": json.dumps(task.gold)}) + "\n"
    return [(many - one) / count for many, one in zip(took(line * (count + 1)), took(line))]


def compared(took, which):
    """Head over base, of rounds of [(wall, processor) of head, the same of base]."""
    ratios = sorted(base[which] / head[which] for head, base in took)
    return {"median": round(statistics.median(ratios), 3), "min": round(ratios[0], 3), "max": round(ratios[-1], 3)}


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
            row = {"form": form, "per_s": [round(1 / statistics.median(wall for wall, _ in column), 2) for column in zip(*took)],
                   "processor_ms": [round(1000 * statistics.median(cpu for _, cpu in column), 1) for column in zip(*took)]}
            if options.base:
                row.update(head_over_base=compared(took, 0), by_processor=compared(took, 1))
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
