#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rows of README.md's table in one sitting: each workload by `tandem bench` and, where ../shared/peers and a Python with its
packages are there, by the peer's script right beside it. Prints the table of ratios; every JSON object stays in --out. Two cores
need about half an hour. --only tiny, --only train_step ... runs the rows whose name has that part; --dry-run prints the commands."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTHS = ROOT / "bench/lengths"


class Row(typing.NamedTuple):
    """One workload. `figure` and `peer_figure` name the same thing in the two reports; `ours` and `peer` are arguments."""
    name: str
    model: str
    figure: str
    ours: list
    peer_figure: str
    peer: list


def grpo_row(shape, beta, dtype):
    steps = 4 if shape == "tiny" else 3  # the first of TRL's is its warm-up
    return Row(f"grpo_step {shape} beta {beta} {dtype}", shape, "step_s",
               ["grpo_step", "--dtype", dtype, "--beta", beta, "--repeats", steps - 1], "step_s",
               ["trl_grpo.py", "--new", 64, "--beta", beta, "--steps", steps])  # in float32, what its users run without a GPU


def generate_row(shape, prompt_len):
    common = ["--batch", 32, "--prompt-len", prompt_len, "--new", 256, "--prompts", 128]
    return Row(f"generate ragged {shape} float32", shape, "e2e_tok_s",
               ["generate", "--mode", "ragged", "--dtype", "float32", "--repeats", 3, *common,
                "--lengths", LENGTHS / "ragged-128x256.json"], "useful_tok_s",
               ["hf_generate.py", "--mode", "ragged,cb_ragged", "--repeats", 1, *common])


def train_row(dtype, peer_dtype):
    return Row(f"train_step small {dtype}", "small", "tokens_per_s",
               ["train_step", "--dtype", dtype, "--prompt-len", 128, "--repeats", 3, "--lengths", LENGTHS / "train-small-32x384.json"],
               "tokens_s", ["hf_train_step.py", "--dtype", peer_dtype, "--samples", 32, "--prompt-len", 128, "--max-resp", 384,
                            "--micro", 8])


def rows():
    return [*(grpo_row(shape, beta, dtype) for shape in ("tiny", "small") for beta in (0.0, 0.04) for dtype in ("float32", "bfloat16")),
            generate_row("tiny", 32), generate_row("small", 128),
            train_row("float32", "float32"), train_row("bfloat16", "bf16-autocast")]


def median_of(report, figure):
    """The figure's median; of a peer that measured several ways, its best, and None if all of them failed."""
    found = report["rows"] if "rows" in report else [report["row"]]
    if isinstance(found, dict):
        return found[figure]["median"]
    done = [row[figure]["median"] for row in found if figure in row]
    better = min if figure == "step_s" else max
    return better(done) if done else None


def ratio_of(figure, ours, peer):
    """How many times faster ours is."""
    return peer / ours if figure == "step_s" else ours / peer


def table_line(row, ours, peer):
    shown = lambda value: "-" if value is None else f"{value:.3g}" if row.figure == "step_s" else f"{value:,.0f}"  # noqa: E731
    ratio = f"{ratio_of(row.figure, ours, peer):.2f}" if ours and peer else "-"
    return f"| {row.name} | {row.figure} | {shown(ours)} | {shown(peer)} | {ratio} |"


def model_folder(shape, options):
    folder = options.models / f"{shape}-f32"
    if not (folder / "config.json").exists():
        subprocess.run([sys.executable, ROOT / "bench/make_model.py", shape, folder], check=True)
    return folder


def commands_of(row, options):
    """(ours, the peer's or None), each without --out."""
    words = lambda *parts: [str(part) for part in parts]  # noqa: E731
    folder = options.models / f"{row.model}-f32"
    ours = words(options.tandem, "bench", row.ours[0], "--model", folder, "--threads", options.threads, *row.ours[1:])
    script = options.peers / row.peer[0]
    if not (options.peers_python.exists() and script.exists()):
        return ours, None
    return ours, words(options.peers_python, script, folder, "--threads", options.threads, *row.peer[1:])


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


def compare(row, options, known):
    ours, peer = commands_of(row, options)
    if options.dry_run:
        print(" ".join(ours), *([" ".join(peer)] if peer else []), sep="\n")
        return
    model_folder(row.model, options)
    name = row.name.replace(" ", "-")
    theirs = measured_once(peer, options.out / f"{name}.peer.json", row.peer_figure, known) if peer else None
    print(table_line(row, measure(ours, options.out / f"{name}.json", row.figure), theirs), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name has this part")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("--threads", type=int, default=2)
    path = lambda name, default, text: parser.add_argument(name, type=pathlib.Path, default=default, help=text)  # noqa: E731
    path("--tandem", ROOT / "build/release/tandem", "the program")
    path("--models", ROOT / "build/bench_models", "folder of tiny-f32 and small-f32; made where absent")
    path("--peers", ROOT.parent / "shared/peers", "folder of the peers' scripts")
    path("--peers-python", ROOT.parent / "peers-venv/bin/python", "a Python with torch, transformers, trl")
    path("--out", ROOT / "build/compare", "where each report stays")
    options = parser.parse_args()
    chosen = [row for row in rows() if options.only in row.name]
    if not chosen:
        parser.error(f"no row has '{options.only}' in its name: " + "; ".join(row.name for row in rows()))
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.dry_run:
        print("| work | figure | Tandem | peer | times faster |\n|---|---|---|---|---|", flush=True)
    known = {}
    for row in chosen:
        compare(row, options, known)


if __name__ == "__main__":
    main()
