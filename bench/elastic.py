#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the speed of a run follows its workers: one, then three, then two, each paced to the same rate, without a restart of the run.

Workers are paced so low that the machine has room for all of them (`tandem rollout --tokens-per-s`), so what is seen is the system and not
the processor. For each phase it prints the tokens of batches that became complete, a second, and that over the number of workers times
their rate. The exit code is 1 where that is more than 10 % off."""
import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPE = {"supervised.steps": 0, "run.steps": 100_000, "schedule.kind": "stale", "schedule.staleness": 2, "schedule.groups_per_step": 6,
          "schedule.group_size": 4, "rollout.max_new_tokens": 32, "rollout.ignore_eos": "true", "rollout.max_running": 8, "data.eval": "",
          "checkpoint.every_steps": 0, "parallel.threads": 1, "model.init_hidden": 64, "model.init_layers": 2,
          "model.init_intermediate": 96, "reward.rule": "regex", "reward.pattern": "[0-4]", "workers.listen": "127.0.0.1:0",
          "workers.lease_s": 5}


def batches(folder):
    """How many steps are committed."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return len(lines)


class Phase:
    def __init__(self, folder, workers, seconds, settle, tokens_per_step):
        self.workers = workers
        time.sleep(settle)
        begin, first = wait_for_step(folder)
        time.sleep(seconds)
        end, last = wait_for_step(folder)
        self.rate = (last - first) * tokens_per_step / (end - begin)
        self.seconds = end - begin


def wait_for_step(folder):
    """The moment at which the next step appears, and how many there are then."""
    before = batches(folder)
    while batches(folder) == before:
        time.sleep(0.01)
    return time.monotonic(), batches(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--rate", type=float, default=150, help="tokens a second of each worker")
    parser.add_argument("--seconds", type=float, default=30, help="of each phase")
    parser.add_argument("--settle", type=float, default=10, help="seconds after workers came or went that do not count")
    options = parser.parse_args()
    tandem = str(pathlib.Path(options.build) / "tandem")
    tokens_per_step = RECIPE["schedule.groups_per_step"] * RECIPE["schedule.group_size"] * RECIPE["rollout.max_new_tokens"]
    with tempfile.TemporaryDirectory(prefix="tandem_elastic_") as scratch:
        folder = pathlib.Path(scratch) / "run"
        settings = [word for name, value in RECIPE.items() for word in ("--set", f"{name}={value}")]
        run = subprocess.Popen([tandem, "run", ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--no-eval", *settings],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        workers = []
        try:
            def address():
                path = folder / "workers.json"
                return json.loads(path.read_text()).get("address", "") if path.exists() else ""
            while not address():
                assert run.poll() is None, "the run ended"
                time.sleep(0.05)
            join = [tandem, "rollout", "--join", address().removeprefix("tcp://"), "--token", folder / "token", "--threads", "1",
                    "--tokens-per-s", str(options.rate)]

            def have(count):
                while len(workers) < count:
                    workers.append(subprocess.Popen(join, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                while len(workers) > count:
                    worker = workers.pop()
                    worker.send_signal(signal.SIGTERM)
                    worker.wait(60)

            phases = []
            for count in (1, 3, 2):
                have(count)
                phases.append(Phase(folder, count, options.seconds, options.settle, tokens_per_step))
                phase = phases[-1]
                print(f"{count} workers: {phase.rate:7.1f} tokens/s in {phase.seconds:.1f} s, "
                      f"{100 * phase.rate / (count * options.rate):.1f} % of {count} x {options.rate:g}", flush=True)
            assert run.poll() is None, "the run ended"
            per_worker = [phase.rate / phase.workers for phase in phases]
            print(f"per worker {', '.join(f'{rate:.1f}' for rate in per_worker)} tokens/s; "
                  f"least over largest {100 * min(per_worker) / max(per_worker):.1f} %")
            if not all(0.9 <= rate / options.rate <= 1.1 for rate in per_worker):
                print("not within 10 % of linear")
                return 1
        finally:
            for worker in workers:
                worker.kill()
            run.kill()
            run.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
