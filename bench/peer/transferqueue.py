#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TransferQueue (PyPI `TransferQueue`, SimpleStorage backend over ZeroMQ, actors hosted by Ray) on one machine.

  transferqueue.py [--samples 1024] [--seq 2048] [--units 2] [--repeats 5] [--out FILE]

Fields of a sample: tokens int64[seq], logprobs float32[seq], reward float32, length int64, group int64.
put / get = client.put / (client.get_meta + client.get_data), whole batch and in chunks of 64; padded
tensors and ragged (nested, uniform 1/8..1 of seq) ones.  MB = 1e6 bytes of payload.
Small ops: one sample with one int64 field; metadata-only requests to the controller.
"""
import argparse, logging, os, time
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import torch
from common import emit, machine, mmm, versions


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=1024)
    ap.add_argument("--seq", type=int, default=2048)
    ap.add_argument("--units", type=int, default=2)
    ap.add_argument("--repeats", type=int, default=5)
    ap.add_argument("--out")
    a = ap.parse_args()
    import ray
    ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False, object_store_memory=1 << 30)
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": a.units}}}))
    c = tq.get_client()
    N, S = a.samples, a.seq
    fields = ["tokens", "logprobs", "reward", "length", "group"]

    def batch(n, ragged):
        d = {"reward": torch.rand(n), "length": torch.full((n,), S), "group": torch.arange(n) // 8}
        if ragged:
            L = torch.randint(S // 8, S + 1, (n,)).tolist()
            d["tokens"] = torch.nested.as_nested_tensor([torch.randint(0, 151936, (l,)) for l in L], layout=torch.jagged)
            d["logprobs"] = torch.nested.as_nested_tensor([torch.randn(l) for l in L], layout=torch.jagged)
            nb = sum(L) * 12 + n * 20
        else:
            d["tokens"] = torch.randint(0, 151936, (n, S)); d["logprobs"] = torch.randn(n, S)
            nb = n * S * 12 + n * 20
        return TensorDict(d, batch_size=n), nb

    rows = []
    for ragged in (False, True):
        for chunk in (N, 64):
            puts, gets, clears = [], [], []
            n_chunks = N // chunk
            for rep in range(a.repeats + 1):
                part = f"p_{ragged}_{chunk}_{rep}"
                bs = [batch(chunk, ragged) for _ in range(n_chunks)]
                nbytes = sum(b for _, b in bs)
                t0 = time.perf_counter()
                for td, _ in bs:
                    c.put(data=td, partition_id=part)
                t1 = time.perf_counter()
                got = 0
                for _ in range(n_chunks):
                    m = c.get_meta(data_fields=fields, batch_size=chunk, partition_id=part, mode="fetch", task_name="train")
                    out = c.get_data(m)
                    got += out.batch_size[0]
                t2 = time.perf_counter()
                assert got == N, got
                if rep == 0 and chunk == N:                       # the payload came back
                    assert sorted(out["reward"].flatten().tolist()) == sorted(bs[0][0]["reward"].tolist())
                c.clear_partition(part)
                t3 = time.perf_counter()
                if rep:
                    puts.append(t1 - t0); gets.append(t2 - t1); clears.append(t3 - t2)
            rows.append({"op": "put/get", "layout": "ragged" if ragged else "padded", "samples": N, "chunk": chunk,
                         "MB": round(nbytes / 1e6, 2),
                         "put_MB_s": mmm([nbytes / t / 1e6 for t in puts]), "get_MB_s": mmm([nbytes / t / 1e6 for t in gets]),
                         "put_samples_s": mmm([N / t for t in puts]), "get_samples_s": mmm([N / t for t in gets]),
                         "put_s": mmm(puts), "get_s": mmm(gets), "clear_s": mmm(clears)})
            print(rows[-1], flush=True)

    def lat(name, fn, n=100, reps=3):
        for i in range(5):
            fn(-1 - i)
        xs = []
        for r in range(reps):
            for i in range(n):
                t = time.perf_counter(); fn(r * n + i); xs.append((time.perf_counter() - t) * 1e6)
        xs.sort()
        us = {"min": xs[0], "median": xs[len(xs) // 2], "p99": xs[int(len(xs) * .99)], "max": xs[-1]}
        rows.append({"op": name, "us": {**{k: round(v, 1) for k, v in us.items()}, "n": len(xs)}})
        print(rows[-1], flush=True)
    one = TensorDict({"x": torch.zeros(1, 1, dtype=torch.int64)}, batch_size=1)
    lat("put 1 sample, one int64 field", lambda i: c.put(data=one, partition_id="lat"))
    lat("get_meta batch_size=1 (metadata only)",
        lambda i: c.get_meta(data_fields=["x"], batch_size=1, partition_id="lat", mode="fetch", task_name=f"t{i}"))
    m1 = c.get_meta(data_fields=["x"], batch_size=1, partition_id="lat", mode="fetch", task_name="z")
    lat("get_data 1 sample", lambda i: c.get_data(m1))
    lat("check_production_status", lambda i: c.check_production_status(data_fields=["x"], partition_id="lat"))
    lat("get_partition_list", lambda i: c.get_partition_list())
    emit({"what": "transferqueue", "machine": machine(), "versions": versions("TransferQueue", "ray", "tensordict", "torch", "pyzmq"),
          "storage_units": a.units, "rows": rows}, a.out)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
