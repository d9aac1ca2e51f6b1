#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sample queue between processes, in one sitting: `tandem bench queue` before and after TransferQueue.

TransferQueue runs by bench/peer/transferqueue.py (put, get) and bench/peer/transferqueue_calls.py (calls of several clients). Prints
medians, of ours the slower of both, and how many times as fast Tandem is. The exit code is 1 where that is less than what is asked for: 5
times for put and get, 10 for ragged samples, 5 for calls of many clients, under 150 us for a call and under 1 KB a sample.

What differs: ours writes a journal, commits each step, and reads each row within the time of get. Its rows are in shared memory, and a put
sends heads alone: so the rows of put and get together say more. --peers-python needs ray, TransferQueue, torch and numpy."""
import argparse
import json
import pathlib
import sys
import tempfile

from tensor_cache import run

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEAST = {"": 5, "ragged_": 10}
MOST_CALL_US, MOST_BYTES, LEAST_CALLS = 150, 1000, 5


def tandem(options):
    return json.loads(run([options.tandem, "bench", "queue", "--samples", options.samples, "--seq", options.seq, "--repeats",
                           options.repeats, "--clients", options.clients]))["rows"]


def transfer_queue(options):
    """MB/s by layout and chunk, and the calls of several clients."""
    with tempfile.TemporaryDirectory(prefix="tandem_tq_") as scratch:
        out = pathlib.Path(scratch) / "out.json"
        run([options.peers_python, options.peers / "transferqueue.py", "--samples", options.samples, "--seq", options.seq, "--repeats",
             options.repeats, "--out", out])
        rows = json.loads(out.read_text())["rows"]
    calls = json.loads(run([options.peers_python, ROOT / "bench/peer/transferqueue_calls.py"]).splitlines()[-1])
    return rows, max(rate for rates in calls.values() for rate in rates.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=64)
    path = lambda name, default, text: parser.add_argument(name, type=pathlib.Path, default=default, help=text)  # noqa: E731
    path("--tandem", ROOT / "build/release/tandem", "the program")
    path("--peers", ROOT / "bench/peer", "folder of the peers' scripts")
    path("--peers-python", ROOT.parent / "ray-venv/bin/python", "a Python with ray, TransferQueue, torch and numpy")
    options = parser.parse_args()
    before = tandem(options)
    rows, peer_calls = transfer_queue(options)
    after = tandem(options)  # the machine may have changed meanwhile
    slower = lambda name: min(each[name]["median"] for each in (before, after))  # noqa: E731
    larger = lambda name: max(each[name]["median"] for each in (before, after))  # noqa: E731
    failed = []
    print("| | Tandem | TransferQueue | times |\n|---|---|---|---|")
    for layout, prefix in (("padded", ""), ("ragged", "ragged_")):
        for chunk, name in ((options.samples, ""), (64, "chunked_")):
            peer = next((row for row in rows if row.get("layout") == layout and row.get("chunk") == chunk), None)
            if not peer:
                sys.exit(f"TransferQueue has no row of {layout} batches of {chunk}")
            for what in ("put", "get"):
                ours, theirs = slower(f"{prefix}{name}{what}_mb_s"), peer[f"{what}_MB_s"]["median"]
                print(f"| {what}, {layout}, batches of {chunk}, MB/s | {ours:.0f} | {theirs:.0f} | {ours / theirs:.1f} |")
                if ours < LEAST[prefix] * theirs:
                    failed.append(f"{what}, {layout}, {chunk}")
            ours = slower(f"{prefix}{name}samples_per_s")
            theirs = options.samples / (peer["put_s"]["median"] + peer["get_s"]["median"])
            print(f"| put and get, {layout}, batches of {chunk}, samples/s | {ours:.0f} | {theirs:.0f} | {ours / theirs:.1f} |")
    calls, call_us = slower("metadata_calls_per_s"), larger("metadata_us")
    held = max(larger(f"{name}controller_bytes_per_sample") for name in ("", "chunked_", "ragged_"))
    print(f"| calls a second, {options.clients} clients (there: the best of 1, 4 and 8) | {calls:.0f} | {peer_calls:.0f} | "
          f"{calls / peer_calls:.1f} |")
    print(f"| a call of one of them, us | {call_us:.0f} | | |\n| the controller, bytes a sample | {held:.0f} | | |")
    failed += ["calls"] * (calls < LEAST_CALLS * peer_calls) + ["a call"] * (call_us >= MOST_CALL_US) + ["bytes"] * (held >= MOST_BYTES)
    print("all that is asked for: " + (f"no, not {'; '.join(failed)}" if failed else "yes"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
