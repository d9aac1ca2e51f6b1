#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A batch from one stage to the next, in one sitting: `tandem bench tensor_cache` on two MPI ranks, TransferQueue
(bench/peer/transferqueue.py: put and get of the whole batch) and Ray's object store (bench/peer/ray_stages.py). Prints medians and how
many times less time Tandem takes. The exit code is 1 where it is less than --times against TransferQueue or Ray's tensors, or the
stages start more than 1 ms apart; numpy arrays in Ray are shown beside. --peers-python needs ray, TransferQueue, torch and numpy."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MAX_SKEW_S = 1e-3


def run(command, cwd=None):
    """What the command printed; its last lines, where it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {' '.join(map(str, command))}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def tandem(options):
    return json.loads(run([ROOT / "scripts/mpi", "-n", 2, options.tandem, "bench", "tensor_cache", "--samples", options.samples,
                           "--seq", options.seq, "--repeats", options.repeats]))["rows"]


def transfer_queue(options):
    """Seconds of put and get of the whole batch, by its layout."""
    with tempfile.TemporaryDirectory(prefix="tandem_tq_") as scratch:
        out = pathlib.Path(scratch) / "out.json"
        run([options.peers_python, options.peers / "transferqueue.py", "--samples", options.samples, "--seq", options.seq,
             "--repeats", options.repeats, "--out", out])
        rows = [row for row in json.loads(out.read_text())["rows"] if row.get("chunk") == options.samples]
    return {row["layout"]: row["put_s"]["median"] + row["get_s"]["median"] for row in rows}


def ray_stages(options):
    text = run([options.peers_python, ROOT / "bench/peer/ray_stages.py", "--samples", options.samples, "--seq", options.seq,
                "--repeats", options.repeats])
    return json.loads(text.splitlines()[-1])["rows"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--times", type=float, default=10, help="how many times less time is asked for")
    path = lambda name, default, text: parser.add_argument(name, type=pathlib.Path, default=default, help=text)  # noqa: E731
    path("--tandem", ROOT / "build/release/tandem", "the program")
    path("--peers", ROOT / "bench/peer", "folder of the peers' scripts")
    path("--peers-python", ROOT.parent / "ray-venv/bin/python", "a Python with ray, TransferQueue, torch and numpy")
    options = parser.parse_args()
    before = tandem(options)
    queue, ray = transfer_queue(options), ray_stages(options)
    after = tandem(options)  # the machine may have changed meanwhile: the slower of the two counts
    ours = lambda figure: max(rows[figure]["median"] for rows in (before, after))  # noqa: E731

    # figure of ours, name of the peer's way, its seconds
    pairs = [("equal_s", "TransferQueue, padded", queue["padded"]), ("unequal_s", "TransferQueue, padded", queue["padded"]),
             ("ragged_equal_s", "TransferQueue, ragged", queue["ragged"]), ("ragged_unequal_s", "TransferQueue, ragged", queue["ragged"])]
    for kind in ("torch", "numpy"):
        pairs += [(f"{layout}_s", f"Ray, {kind}, {layout}", ray[f"{kind}_{layout}_s"]["median"]) for layout in ("equal", "unequal")]
    print("| Tandem | ms | peer | ms | times less |\n|---|---|---|---|---|")
    failed = False
    for figure, peer, seconds in pairs:
        ratio = seconds / ours(figure)
        failed = failed or ratio < options.times
        print(f"| {figure[:-2]} | {1e3 * ours(figure):.2f} | {peer} | {1e3 * seconds:.1f} | {ratio:.1f} |")
    for figure in ("start_skew_s", "ragged_start_skew_s"):
        most = max(rows[figure]["max"] for rows in (before, after))
        failed = failed or ours(figure) > MAX_SKEW_S
        print(f"{figure}: median {1e3 * ours(figure):.3f} ms, most {1e3 * most:.3f} ms (bound for the median 1 ms)")
    print(f"at least {options.times:g} times less, and starts within 1 ms: {'no' if failed else 'yes'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
