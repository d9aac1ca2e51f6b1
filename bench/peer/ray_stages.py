#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A batch from one stage to the next through Ray's object store: the workload of `tandem bench tensor_cache`, padded. Two actors make
half of the samples each and return them; each then takes what its stage wants from what both returned: its own half (equal) or every
second sample of all (unequal). The driver passes references, never data. As torch tensors, and as numpy arrays, which a reader of the
store maps without a copy. Prints one JSON object; runs in a Python with ray, torch and numpy, under bench/tensor_cache.py."""
import argparse
import json
import os
import statistics
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

RANKS = 2


def columns(kind, samples, seq, rank, seed):
    """What a rank makes: tokens, log-probabilities and three numbers for each of its samples."""
    import numpy as np
    import torch
    ids = np.arange(samples * rank // RANKS, samples * (rank + 1) // RANKS, dtype=np.int64)
    tokens = ids[:, None] * seq + np.arange(seq, dtype=np.int64)[None] + seed
    made = {"id": ids, "tokens": tokens, "logprobs": -(tokens % 65521).astype(np.float32) / 4096,
            "reward": (ids % 97).astype(np.float32), "length": np.full(len(ids), seq, np.int64), "group": ids // 8}
    return {name: torch.from_numpy(values) for name, values in made.items()} if kind == "torch" else made


class Rank:
    def __init__(self, samples, seq, rank):
        self.samples, self.seq, self.rank, self.made, self.rows = samples, seq, rank, None, None

    def prepare(self, kind, seed):
        self.made = columns(kind, self.samples, self.seq, self.rank, seed)

    def make(self):
        return self.made

    def take(self, *parts):
        step = slice(None) if len(parts) == 1 else slice(self.rank, None, RANKS)  # ids of a part rise, and each part's first is even
        self.rows = [{name: values[step] for name, values in part.items()} for part in parts]
        return sum(len(part["id"]) for part in self.rows)

    def check(self, seed):
        """The rows that were taken are whole."""
        import numpy as np
        for part in self.rows:
            ids, tokens = np.asarray(part["id"]), np.asarray(part["tokens"])
            assert (tokens == ids[:, None] * self.seq + np.arange(self.seq)[None] + seed).all()
        return sorted(int(i) for part in self.rows for i in part["id"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    assert options.samples % (2 * RANKS) == 0, "--samples: a multiple of 4"
    import ray
    ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=1 << 30)
    ranks = [ray.remote(num_cpus=1)(Rank).remote(options.samples, options.seq, r) for r in range(RANKS)]
    found = {}
    for kind in ("torch", "numpy"):
        for equal in (True, False):
            seconds = []
            for seed in range(options.repeats + 1):  # the first is a warm-up
                ray.get([rank.prepare.remote(kind, seed) for rank in ranks])
                begin = time.perf_counter()
                made = [rank.make.remote() for rank in ranks]
                ray.get([rank.take.remote(*([made[r]] if equal else made)) for r, rank in enumerate(ranks)])
                seconds.append(time.perf_counter() - begin)
                held = ray.get([rank.check.remote(seed) for rank in ranks])
                assert sorted(sum(held, [])) == list(range(options.samples))
            found[f"{kind}_{'equal' if equal else 'unequal'}_s"] = {"median": statistics.median(seconds[1:]), "min": min(seconds[1:]),
                                                                  "max": max(seconds[1:]), "n": options.repeats}
    print(json.dumps({"name": "ray_stages", "ray": ray.__version__, "answer_checked": True, "rows": found}))
    ray.shutdown()


if __name__ == "__main__":
    main()
