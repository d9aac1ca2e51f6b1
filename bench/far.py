#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a run waits for a worker that is 20 ms and 200 Mbit/s away, and how long a model says that it does.

A run and its worker first share this machine; then the worker is in a network namespace of its own, behind tests/run/slow_link.py. The
model (docs/design/dist_queue.md, "Far workers") knows the first run, the link, and the bytes that cross it; it is not fitted to the second.
The exit code is 1 where the idle shares are more than 0.05 apart. Needs root, for the namespaces."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/run"))
from slow_link import SlowLink  # noqa: E402

RECIPE = {"supervised.steps": 0, "run.steps": 43, "schedule.groups_per_step": 8, "schedule.group_size": 8, "rollout.max_new_tokens": 96,
          "rollout.ignore_eos": "true", "rollout.max_running": 64, "data.eval": "", "checkpoint.every_steps": 0, "parallel.threads": 1,
          "model.init_hidden": 128, "model.init_layers": 4, "model.init_intermediate": 256, "reward.rule": "regex",
          "reward.pattern": "[0-4]"}
SKIPPED = 3  # first steps
# What lies between the end of an update and the batch of the next.
# A worker makes one call after the other: one trip, and PAUSE_S until the next. So half of that passes until it sees that weights are here
# or groups are finished, and until a call comes to the run after its update.
PAUSE_S = 0.02  # worker/worker.cpp
TRIPS = 5  # half of one: the answer that tells of the version; two: from whom, and fetch; one: lease; half: put; one: bodies
LOOKS = 3
WITHIN = 0.05  # of the idle share: the run is what the model says


def run(tandem, folder, settings, workers, place=lambda _, words: words):
    """Median seconds of a step, of those waiting for a batch, and bytes of a version, of the last steps."""
    words = [word for name, value in {**RECIPE, **settings}.items() for word in ("--set", f"{name}={value}")]
    command = [tandem, "run", ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--no-eval", *words]
    process = subprocess.Popen([str(word) for word in place(0, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (folder / "workers.json").exists() or "address" not in json.loads((folder / "workers.json").read_text() or "{}"):
        if process.poll() is not None:
            sys.exit(process.stderr.read()[-2000:])
        time.sleep(0.05)
    address = json.loads((folder / "workers.json").read_text())["address"].removeprefix("tcp://")
    command = [tandem, "rollout", "--join", address, "--token", folder / "token", "--threads", "1", *workers]
    worker = subprocess.Popen([str(word) for word in place(1, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if process.wait(600) != 0:
            sys.exit(process.stderr.read()[-2000:])
        worker.wait(60)
    finally:
        process.kill(), worker.kill()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "time/step_s" in line][SKIPPED:]
    usual = lambda name: statistics.median(line[name] for line in steps)
    gained = lambda name: (steps[-1][name] - steps[0][name]) / (len(steps) - 1)
    return {"step_s": usual("time/step_s"), "wait_s": usual("time/rollout_s"), "version_bytes": gained("workers/weight_bytes_copied"),
            "body_bytes": gained("workers/bytes_read")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--delay-ms", type=float, default=20, help="each way")
    parser.add_argument("--mbit", type=float, default=200)
    options = parser.parse_args()
    tandem = str(pathlib.Path(options.build) / "tandem")
    trip_s, bytes_per_s = 2e-3 * options.delay_ms, options.mbit * 1e6 / 8
    os.environ["OMP_WAIT_POLICY"] = "passive"
    loop_s, is_off = 0, False
    with tempfile.TemporaryDirectory(prefix="tandem_far_") as scratch:
        root = pathlib.Path(scratch)
        for staleness in (0, 1):
            settings = {"schedule.kind": "stale" if staleness else "sync", "schedule.staleness": staleness}
            near = [run(tandem, root / f"near{staleness}_0", {**settings, "workers.listen": "127.0.0.1:0"}, [])]
            with SlowLink(root, options.delay_ms / 1e3, options.mbit) as link:
                far = run(tandem, root / f"far{staleness}", {**settings, "workers.listen": f"{link.addresses[0]}:7070"},
                          ["--host", link.addresses[1]], link.on)
            near.append(run(tandem, root / f"near{staleness}_1", {**settings, "workers.listen": "127.0.0.1:0"}, []))
            near = {name: statistics.mean(one[name] for one in near) for name in far}  # before and after: the machine drifts
            busy_s = near["step_s"] - near["wait_s"]
            if not staleness:  # one batch after the other, each around the whole loop
                loop_s = near["step_s"] + (far["body_bytes"] + far["version_bytes"]) / bytes_per_s + trip_s * TRIPS
                loop_s += LOOKS * (trip_s + PAUSE_S) / 2
            step_s = max(near["step_s"], loop_s / (staleness + 1))  # so many batches are on it at a time
            wait_s = step_s - busy_s
            share = lambda one: one["wait_s"] / one["step_s"]
            print(f"staleness {staleness}: near {near['step_s']:.3f} s a step, idle {share(near):.3f}; far {far['step_s']:.3f} s, idle "
                  f"{share(far):.3f}; the model says {step_s:.3f} s, idle {wait_s / step_s:.3f} "
                  f"({far['version_bytes'] / 1e6:.2f} MB of weights, {far['body_bytes'] / 1e3:.0f} kB of bodies a step)", flush=True)
            is_off = is_off or abs(share(far) - wait_s / step_s) > WITHIN
    return 1 if is_off else 0


if __name__ == "__main__":
    sys.exit(main())
