#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/guide/measured.md in one sitting: each workload by `tandem bench` and, where bench/peer and a Python with its
packages are there, by the peer's script right beside it, in each dtype that it has: the better one counts. Prints the table of
ratios; every JSON object stays in --out. Two cores need about 40 minutes. --only tiny, --only train_step ... runs the rows whose
name has that part; --dry-run prints the commands. --kernels aten measures libtorch's operators in place of our own kernels. --base
PROGRAM measures another build of ours in place of the peers, the two in turns, and prints how many times faster ours is."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTHS = ROOT / "bench/lengths"


class Row(typing.NamedTuple):
    """One workload. `figure` and `peer_figure` name the same thing in the two reports; `ours` and `peer` are arguments. `peer_dtypes`
    are all words that the script's --dtype takes: people run it in the faster one."""
    name: str
    model: str
    figure: str
    ours: list
    peer_figure: str
    peer: list
    peer_dtypes: tuple


def grpo_row(shape, beta, dtype):
    steps = 4 if shape == "tiny" else 3  # the first of TRL's is its warm-up
    return Row(f"grpo_step {shape} beta {beta} {dtype}", shape, "step_s",
               ["grpo_step", "--dtype", dtype, "--beta", beta, "--repeats", steps - 1], "step_s",
               ["trl_grpo.py", "--new", 64, "--beta", beta, "--steps", steps], ("float32", "bf16"))


def generate_row(shape, prompt_len, dtype):
    common = ["--batch", 32, "--prompt-len", prompt_len, "--new", 256, "--prompts", 128]
    return Row(f"generate ragged {shape} {dtype}", shape, "e2e_tok_s",
               ["generate", "--mode", "ragged", "--dtype", dtype, "--repeats", 3, *common,
                "--lengths", LENGTHS / "ragged-128x256.json"], "useful_tok_s",
               ["hf_generate.py", "--mode", "ragged,cb_ragged", "--repeats", 1, *common], ("float32", "bfloat16"))


def train_row(dtype):
    return Row(f"train_step small {dtype}", "small", "tokens_per_s",
               ["train_step", "--dtype", dtype, "--prompt-len", 128, "--repeats", 3, "--lengths", LENGTHS / "train-small-32x384.json"],
               "tokens_s", ["hf_train_step.py", "--samples", 32, "--prompt-len", 128, "--max-resp", 384, "--micro", 8],
               ("float32", "bf16-autocast"))


def rows():
    dtypes = ("float32", "bfloat16")
    return [*(grpo_row(shape, beta, dtype) for shape in ("tiny", "small") for beta in (0.0, 0.04) for dtype in dtypes),
            *(generate_row(shape, prompt_len, dtype) for shape, prompt_len in (("tiny", 32), ("small", 128)) for dtype in dtypes),
            *(train_row(dtype) for dtype in dtypes)]


def better_of(figure, values):
    """The better of those that were measured; None if none was."""
    done = [value for value in values if value is not None]
    return (min if figure == "step_s" else max)(done) if done else None


def median_of(report, figure):
    """The figure's median; of a peer that measured several ways, its best, and None if all of them failed."""
    found = report["rows"] if "rows" in report else [report["row"]]
    if isinstance(found, dict):
        return found[figure]["median"]
    return better_of(figure, [row[figure]["median"] for row in found if figure in row])


def ratio_of(figure, ours, peer):
    """How many times faster ours is."""
    return peer / ours if figure == "step_s" else ours / peer


def table_line(row, ours, peers):
    """`peers` has the peer's figure in each of its dtypes; empty where there is no peer."""
    shown = lambda value: "-" if value is None else f"{value:.3g}" if row.figure == "step_s" else f"{value:,.0f}"  # noqa: E731
    best = better_of(row.figure, peers.values())
    ratio = f"{ratio_of(row.figure, ours, best):.2f}" if ours and best else "-"
    theirs = ", ".join(f"{dtype} {shown(value)}" for dtype, value in peers.items()) or "-"
    return f"| {row.name} | {row.figure} | {shown(ours)} | {theirs} | {ratio} |"


def model_folder(shape, options):
    folder = options.models / f"{shape}-f32"
    if not (folder / "config.json").exists():
        subprocess.run([sys.executable, ROOT / "bench/make_model.py", shape, folder], check=True)
    return folder


def commands_of(row, options):
    """(ours, the peer's by dtype), each without --out."""
    words = lambda *parts: [str(part) for part in parts]  # noqa: E731
    folder = options.models / f"{row.model}-f32"
    ours = words(options.tandem, "bench", row.ours[0], "--model", folder, "--threads", options.threads, *row.ours[1:])
    ours += ["--kernels", options.kernels] if options.kernels else []
    script = options.peers / row.peer[0]
    if not (options.peers_python.exists() and script.exists()):
        return ours, {}
    common = [options.peers_python, script, folder, "--threads", options.threads, *row.peer[1:]]
    return ours, {dtype: words(*common, "--dtype", dtype) for dtype in row.peer_dtypes}


def measure(command, out, figure):
    """Runs the command and reads the figure of what it left in `out`; None if it failed."""
    log, offline = out.with_suffix(".log"), {**os.environ, "HF_HUB_OFFLINE": "1"}
    with open(log, "w") as text:
        code = subprocess.run([*command, "--out", out], stdout=text, stderr=subprocess.STDOUT, env=offline).returncode
    if code != 0:
        print(f"exit code {code}, see {log}: {' '.join(command)}", file=sys.stderr)
        return None
    return median_of(json.loads(out.read_text()), figure)


def measured_once(command, out, figure, known):
    """As measure, but a command that two rows share runs once."""
    if str(command) not in known:
        known[str(command)] = measure(command, out, figure)
    return known[str(command)]


def compare_builds(row, options):
    """Ours and the base in turns, so that a machine that slows down slows both."""
    ours, _ = commands_of(row, options)
    commands = {"ours": ours, "base": [str(options.base), *ours[1:]]}
    if options.dry_run:
        print(*(" ".join(command) for command in commands.values()), sep="\n")
        return
    model_folder(row.model, options)
    name, found = row.name.replace(" ", "-"), {which: [] for which in commands}
    for turn in range(options.turns):
        for which, command in commands.items():
            found[which].append(measure(command, options.out / f"{name}.{which}-{turn}.json", row.figure))
    if None in found["ours"] + found["base"]:
        return
    middle = {which: statistics.median(values) for which, values in found.items()}
    spread = max((max(values) - min(values)) / middle[which] for which, values in found.items())
    print(f"| {row.name} | {row.figure} | {middle['ours']:.4g} | {middle['base']:.4g} | "
          f"{ratio_of(row.figure, middle['ours'], middle['base']):.3f} | {100 * spread:.0f} % |", flush=True)


def compare(row, options, known):
    ours, peers = commands_of(row, options)
    if options.dry_run:
        print(*(" ".join(command) for command in (ours, *peers.values())), sep="\n")
        return
    model_folder(row.model, options)
    name = row.name.replace(" ", "-")
    theirs = {dtype: measured_once(command, options.out / f"{name}.peer-{dtype}.json", row.peer_figure, known)
              for dtype, command in peers.items()}
    print(table_line(row, measure(ours, options.out / f"{name}.json", row.figure), theirs), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name has this part")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", default="", help="of ours: cpu or aten")
    parser.add_argument("--base", type=pathlib.Path, help="another build of the program, in place of the peers")
    parser.add_argument("--turns", type=int, default=3, help="how often each build runs")
    path = lambda name, default, text: parser.add_argument(name, type=pathlib.Path, default=default, help=text)  # noqa: E731
    path("--tandem", ROOT / "build/release/tandem", "the program")
    path("--models", ROOT / "build/bench_models", "folder of tiny-f32 and small-f32; made where absent")
    path("--peers", ROOT / "bench/peer", "folder of the peers' scripts")
    path("--peers-python", ROOT.parent / "peers-venv/bin/python", "a Python with torch, transformers, trl")
    path("--out", ROOT / "build/compare", "where each report stays")
    options = parser.parse_args()
    chosen = [row for row in rows() if options.only in row.name]
    if not chosen:
        parser.error(f"no row has '{options.only}' in its name: " + "; ".join(row.name for row in rows()))
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.dry_run:
        print("| work | figure | Tandem | base | times faster | spread |\n|---|---|---|---|---|---|" if options.base else
              "| work | figure | Tandem | peer, by dtype | times faster than its better |\n|---|---|---|---|---|", flush=True)
    known = {}
    for row in chosen:
        compare_builds(row, options) if options.base else compare(row, options, known)


if __name__ == "__main__":
    main()
