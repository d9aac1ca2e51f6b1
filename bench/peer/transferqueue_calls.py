#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls a second that TransferQueue's controller answers when several clients call at once, each in a process of its own (a Ray actor).
The calls are its cheapest: the list of partitions, and whether a column is there. Prints one JSON object: calls a second by clients."""
import argparse
import json
import logging
import os
import time

for name, value in (("RAY_DEDUP_LOGS", "0"), ("TQ_LOGGING_LEVEL", "ERROR"), ("RAY_USAGE_STATS_ENABLED", "0"),
                    ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")):
    os.environ.setdefault(name, value)
import ray  # noqa: E402
import torch  # noqa: E402

CALLS = {"partitions": lambda client: client.get_partition_list(),
         "status": lambda client: client.check_production_status(data_fields=["x"], partition_id="p")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    ray.init(num_cpus=max(options.clients) + 4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False,
             object_store_memory=1 << 28)
    import transfer_queue
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    transfer_queue.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 2}}}))
    transfer_queue.get_client().put(TensorDict({"x": torch.arange(64)}, batch_size=64), partition_id="p")

    @ray.remote(num_cpus=1)
    class Client:
        def __init__(self):
            import transfer_queue
            transfer_queue.init()
            self.client = transfer_queue.get_client()

        def call(self, what, until):
            count = 0
            while time.time() < until:
                CALLS[what](self.client)
                count += 1
            return count

    rates = {what: {} for what in CALLS}
    for number in options.clients:
        clients = [Client.remote() for _ in range(number)]
        ray.get([each.call.remote("partitions", time.time() + 0.2) for each in clients])
        for what in CALLS:
            begin = time.time()
            counts = ray.get([each.call.remote(what, begin + options.seconds) for each in clients])
            rates[what][number] = sum(counts) / (time.time() - begin)
        for each in clients:
            ray.kill(each)
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
