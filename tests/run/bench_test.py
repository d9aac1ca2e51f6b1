#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `tandem bench` reports: the commit, the device and the conditions that the benchmark read, no others; and what it refuses."""
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import run_folder as rf

sys.path.insert(0, str(rf.ROOT / "bench"))
import compare  # noqa: E402
import learning  # noqa: E402
from run_folder import said

MODEL = rf.ROOT / "tests/fixtures/qwen2_tied"
EVERY = {"model", "dtype", "device", "kernels", "parity", "seed", "repeats", "threads"}  # conditions of all benchmarks
STEP = {"prompts": 4, "gens": 4, "prompt_len": 8, "new": 4, "beta": 0.0}


def report_of(program, name, *more):
    out = program.done(["bench", name, "--model", MODEL, "--repeats", 1, "--threads", 1, "--seed", 3, *more])
    report = json.loads(out.stdout)
    assert report["name"] == name and report["answer_checked"] is True
    assert re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?|unknown", report["commit"]), report["commit"]
    assert report["commit"] != "unknown" or not (rf.ROOT / ".git").exists(), "built in a clone"
    assert report["device"].startswith("cpu: ") and " cores, " in report["device"], report["device"]
    for row in report["rows"].values():
        assert set(row) == {"median", "mad", "min", "max", "n"} and row["n"] == 1, row
    assert report["conditions"]["model"] == str(MODEL) and report["conditions"]["seed"] == 3
    return report


def read_by(report):
    """The conditions of this benchmark alone."""
    return {k: v for k, v in report["conditions"].items() if k not in EVERY}


def check_generate(program, lengths):
    short = ["--batch", 2, "--prompt-len", 6]
    fixed = read_by(report_of(program, "generate", *short, "--new", 5))
    assert fixed == {"mode": "fixed", "batch": 2, "sequences": 2, "prompt_len": 6, "kv_block_tokens": 16, "graphs": True,
                     "lengths": {"min": 5, "median": 5, "max": 5, "total": 10}}, fixed
    assert read_by(report_of(program, "generate", *short, "--new", 5, "--prompts", 3))["sequences"] == 3
    shapes = program.done(["bench", "generate", "--model", MODEL, "--repeats", 1, "--threads", 1, "--shapes", "2x6,3x40", "--new",
                           5]).stdout
    rows, conditions = json.loads(shapes)["rows"], json.loads(shapes)["conditions"]
    assert sorted(rows)[:4] == [f"2x6 {figure}" for figure in ("decode_tok_s", "e2e_tok_s", "ms_per_step",
                                                               "prefill_tok_s")] and len(rows) == 8, rows
    assert conditions["shapes"] == ["2x6", "3x40"] and "batch" not in conditions, conditions
    ragged = ["--mode", "ragged", "--lengths", lengths, *short]
    whole = read_by(report_of(program, "generate", *ragged))
    assert whole["sequences"] == 4 and whole["lengths"] == {"min": 3, "median": 7, "max": 12, "total": 26}, whole
    part = read_by(report_of(program, "generate", *ragged, "--prompts", 3, "--new", 8))
    assert part["sequences"] == 3 and part["lengths"] == {"min": 3, "median": 7, "max": 8, "total": 18}, part
    run = ["bench", "generate", "--model", MODEL]
    program.refused([*run, *ragged, "--prompts", 5], 2, "--prompts", "5", "4", "at most 4")
    program.refused([*run, *short, "--lengths", lengths], 2, "--lengths", "fixed", "ragged")
    program.refused([*run, *short, "--mode", "ragged"], 2, "--lengths", "missing")
    program.refused([*run, "--gens", 4], 2, "--gens")
    for shape in ("2x", "x6", "0x6", "2x6x", "two"):
        program.refused([*run, "--shapes", shape], 2, "--shapes", shape, "64x2048")
    program.refused([*run, *ragged, "--shapes", "2x6"], 2, "--shapes", "ragged", "fixed")
    said("generate: as many sequences, of such lengths, as it says")


def check_train_step(program, lengths):
    report = report_of(program, "train_step", "--prompt-len", 6, "--lengths", lengths, "--micro-batch-tokens", 32)
    assert read_by(report) == {"sequences": 4, "prompt_len": 6, "micro_batch_tokens": 32, "train_layout": "dp1,tp1",
                               "recompute": "none", "swap_optimizer": False,
                               "lengths": {"min": 3, "median": 7, "max": 12, "total": 26}}, read_by(report)
    arena, resident = (report["rows"][name]["median"] for name in ("peak_bytes", "peak_rss_bytes"))
    assert resident > arena + (20 << 20), "the program alone is larger"  # libtorch, activations
    needed, by_verl, other_name = (report["rows"][name]["median"] for name in ("needed_gflops", "verl_gflops", "gflops"))
    assert 0 < needed < by_verl == other_name, "verl counts the embedding as a product"
    program.refused(["bench", "train_step", "--model", MODEL, "--lengths", lengths, "--batch", 4], 2, "--batch")
    longer = lengths.with_name("longer.json")
    longer.write_text("[3, 1000000]")
    program.refused(["bench", "train_step", "--model", MODEL, "--lengths", longer], 2, "--lengths", "element 1", "context")
    program.refused(["bench", "train_step", "--model", MODEL, "--lengths", lengths, "--out", lengths.parent], 2, "cannot be written")
    said(f"train_step: {arena / 2**20:.1f} MiB in the arena, {resident / 2**20:.0f} MiB resident")


def check_grpo_step(program):
    shape = [word for name, value in STEP.items() for word in ("--" + name.replace("_", "-"), value)]
    report = report_of(program, "grpo_step", *shape)
    assert read_by(report) == STEP, read_by(report)
    program.refused(["bench", "grpo_step", "--model", MODEL, "--micro-batch-tokens", 64], 2, "--micro-batch-tokens")
    said("grpo_step: its own conditions and no others")


def check_devices(program, lengths):
    """What is measured is on the device that was named: one that is lost ends it."""
    program = rf.built_program(fake=True)
    fake = ["--model", MODEL, "--repeats", 1, "--threads", 1, "--device", "fake"]
    shape = [word for name, value in STEP.items() for word in ("--" + name.replace("_", "-"), value)]
    lost = dict(os.environ, TANDEM_FAKE_DEVICE="lost_after=500")
    for name, more in (("grpo_step", shape), ("train_step", ["--prompt-len", 6, "--lengths", lengths, "--train-layout", "tp2"])):
        report = json.loads(program.done(["bench", name, *fake, *more]).stdout)
        assert report["device"].startswith("a fake device") and report["answer_checked"], report
        program.refused(["bench", name, *fake, *more], 3, "the device failed", "it is lost", env=lost)
    program.refused(["bench", "train_step", *fake, "--prompt-len", 6, "--lengths", lengths, "--train-layout", "tp2"], 2, "--device",
                    "1 of them for its 2 ranks", env=dict(os.environ, TANDEM_FAKE_DEVICE="devices=1"))
    said("grpo_step and train_step: on the device that was named, a rank on each")


def check_stale(program, lengths):
    run = ["bench", "stale", "--model", MODEL, "--threads", 1, "--lengths", lengths, "--prompts", 2, "--gens", 4, "--prompt-len", 8,
           "--steps", 2]
    for placement, staleness in (("split", 1), ("mixed", 1), ("colocated", 2), ("split", 0)):
        out = program.done([*run, "--placement", placement, "--staleness", staleness])
        assert "step 1/" not in out.stderr, "a run of several ranks is quiet, too"
        report = json.loads(out.stdout)
        told = {"placement": placement, "staleness": staleness, "prompts": 2, "gens": 4, "prompt_len": 8, "steps": 2, "ranks": 2}
        assert told.items() <= report["conditions"].items(), report["conditions"]
        assert report["answer_checked"] and report["rows"]["step_s"]["n"] == 2, report["rows"]
        idle = report["idle_share"]
        assert len(idle) == 2 and all(0 <= share <= 1 for share in idle) and max(idle) > 0 and min(idle) < 1, idle
        assert report["allowed_ratio"] >= report["ratio"] > 0 and (staleness > 0 or report["ratio"] == 1), report
        for step_s in ("step_s", "sync_step_s"):
            assert 0.3 < report[f"predicted_{step_s}"] / report[f"mean_{step_s}"] < 3, report  # close only where steps take long
    program.refused(run[:6], 2, "--lengths")
    program.refused([*run, "--placement", "fully_colocated"], 2, "split")
    said(f"stale: every rank's idle share; split and synchronous {', '.join(f'{share:.2f}' for share in idle)}")


def check_tensor_cache(program):
    run = ["bench", "tensor_cache", "--samples", 36, "--seq", 64, "--repeats", 2, "--seed", 3]
    half = 36 // 2 * (64 * 12 + 20)  # every second sample of each of two ranks: tokens, log-probabilities, three numbers
    for launcher, ranks, more in (([], 2, []), ([], 3, ["--ranks", 3]), (rf.mpi(2), 2, [])):
        out = program.done([*run, *more], launcher=launcher)
        report = json.loads(out.stdout)
        are = "processes" if launcher else "threads"
        assert report["conditions"] == {"samples": 36, "seq": 64, "ranks": ranks, "ranks_are": are, "seed": 3, "repeats": 2}, report
        rows = report["rows"]
        assert report["answer_checked"] and rows["equal_bytes"]["max"] == rows["ragged_equal_bytes"]["max"] == 0, rows
        assert rows["bytes"]["median"] == (half if ranks == 2 else half * 4 // 3), rows
        assert 0 < rows["ragged_bytes"]["median"] < rows["bytes"]["median"], rows
        assert rows["unequal_s"]["n"] == rows["equal_s"]["n"] == 2 and rows["start_skew_s"]["n"] == 4, rows
        assert rows["start_skew_s"]["min"] >= 0, rows
    program.refused([*run, "--ranks", 1], 2, "--ranks")
    program.refused([*run, "--model", MODEL], 2, "--model")
    program.refused(["bench", "tensor_cache", "--ranks", 2, "--samples", 999999999, "--seq", 999999], 2, "--samples, --seq", "a quarter")
    said("tensor_cache: every row arrives, and the bytes are those of the rows that move")


def check_scheduler(program):
    run = ["bench", "scheduler", "--sequences", 12, "--gens", 4, "--prompt-len", 20, "--new", 8, "--repeats", 2, "--seed", 3]
    report = json.loads(program.done(run).stdout)
    assert report["answer_checked"] and report["conditions"] == {"sequences": 12, "gens": 4, "prompt_len": 20, "new": 8, "seed": 3,
                                                                 "repeats": 2}, report
    assert all(row["n"] == 2 and row["min"] > 0 for row in report["rows"].values()), report["rows"]
    program.refused([*run, "--model", MODEL], 2, "--model")
    said(f"scheduler: {report['rows']['us_per_step']['median']:.1f} us a step of 12 sequences")


def check_commit(scratch):
    """What the build embeds: outside git `unknown`; a new file only when the commit is another."""
    def write(source):
        out = scratch / "commit.cpp"
        subprocess.run(["cmake", f"-DSOURCE={source}", f"-DOUT={out}", "-P", rf.ROOT / "cmake/commit.cmake"], check=True)
        return out.read_text(), out.stat().st_mtime_ns
    plain = scratch / "tarball"
    plain.mkdir()
    text, first = write(plain)
    assert '"unknown"' in text, text
    assert write(plain) == (text, first), "written again without need"
    git = ["git", "-C", plain, "-c", "user.name=n", "-c", "user.email=e"]
    (plain / "file").write_text("a")
    for more in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *more], check=True)
    commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert f'"{commit}"' in write(plain)[0]
    (plain / "file").write_text("b")
    assert f'"{commit}-dirty"' in write(plain)[0]
    said("the commit: of this repository, marked where files were changed, unknown outside git")


def check_compare():
    rows = compare.rows()
    assert len(rows) == 14 and len({row.name for row in rows}) == 14
    wanted = {str(path) for path in compare.LENGTHS.glob("*.json")}
    used = {str(word) for row in rows for word in row.ours if str(word).endswith(".json")}
    assert used and used <= wanted, used
    assert compare.median_of({"rows": {"step_s": {"median": 2.0}}}, "step_s") == 2.0
    assert compare.median_of({"row": {"step_s": {"median": 3.0}}}, "step_s") == 3.0
    several = {"rows": [{"error": "failed"}, {"tokens_s": {"median": 5}}, {"tokens_s": {"median": 7}}]}
    assert compare.median_of(several, "tokens_s") == 7, "a peer counts by its best"
    assert compare.median_of({"rows": [{"error": "failed"}]}, "tokens_s") is None
    assert compare.ratio_of("step_s", 2.0, 6.0) == compare.ratio_of("tokens_per_s", 6.0, 2.0) == 3.0
    for row in rows:
        assert row.name.split()[-1] == row.ours[row.ours.index("--dtype") + 1], f"{row.name}: names another dtype than it runs"
        assert row.peer_dtypes[0] == "float32" and row.peer_dtypes[1].startswith("bf"), row
    trl = next(row for row in rows if row.name == "grpo_step tiny beta 0.0 bfloat16")
    line = compare.table_line(trl, 2.0, {"float32": 6.0, "bf16": 5.0})
    assert line == "| grpo_step tiny beta 0.0 bfloat16 | step_s | 2 | float32 6, bf16 5 | 2.50 |", line
    assert compare.table_line(trl, 2.0, {"float32": 6.0, "bf16": None}).endswith("| float32 6, bf16 - | 3.00 |")
    assert compare.table_line(trl, 2.0, {}).endswith("| 2 | - | - |")
    said("compare.py: the rows, and how two reports become a ratio")


def check_learning():
    """Curves, by hand: their place counts replaced groups, their mean is the area, and what is not reached is no number."""
    lines = [{"step": 1, "eval/accuracy": 0.1}, {"step": 2, "eval/accuracy": 0.3, "data/groups_filtered": 8},
             {"step": 3, "data/groups_filtered": 4}, {"step": 4, "eval/accuracy": 0.6, "data/groups_filtered": 2}]
    curve = learning.curve_of(lines, groups_per_step=4, steps=6)  # batches after each step: 1, 4, 6, 7.5
    assert curve[:2] == [[0.0, 0.1], [4.0, 0.3]] and curve[2][0] == 6, curve
    assert abs(curve[2][1] - (0.3 + 0.3 * 2 / 3.5)) < 1e-12, curve
    assert abs(learning.steps_to(curve, 0.2) - 2) < 1e-12 and learning.steps_to(curve, 0.1) == 0
    assert math.isinf(learning.steps_to(curve, 0.5))
    assert abs(learning.mean_of([[0.0, 0.1], [4.0, 0.3], [6.0, 0.5]]) - (4 * 0.2 + 2 * 0.4) / 6) < 1e-12
    of_seeds = {seed: [[0.0, 0.1], [10.0, last]] for seed, last in enumerate((0.6, 0.3, 1.1))}
    assert learning.table({"a": of_seeds}, 0.35, 10)[2:] == [
        "| a | 5 (2 to > 10) | 38.3 ± 20.2 | 66.7 ± 40.4 | 3 |"]
    assert learning.table({"a": of_seeds}, 0.35, 10, {"a": 1.5})[2].endswith("| 3 | 1.50 |")
    assert learning.tenths({"a": {0: [[0.0, 0.0], [10.0, 1.0]]}}, 10)[1].split() == ["a", *(f"{10 * i:.1f}" for i in range(11))]
    said("learning.py: from metrics to a curve, a table and tenths")


def check_learning_runs(program, scratch):
    """Variants start from one model; a second call makes no run again but those of other settings; a refused variant is told."""
    recipe = rf.tiny_recipe(scratch / "tiny.yaml", supervised__steps=2, eval__every_steps=2, run__steps=4)
    command = [sys.executable, rf.ROOT / "bench/learning.py", recipe, "--variants", "algorithms", "--only", "grpo", "rloo", "--seeds", 2,
               "--target", 0.5, "--out", scratch / "learning", "--program", program.tandem]
    command = [str(word) for word in command]

    def made(*more):
        out = subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout
        assert [line.split(" |")[0] for line in out.splitlines() if line.startswith("| ")] == ["| variant", "| grpo", "| rloo"], out
        runs = sorted(scratch.glob("learning/*/seed*/summary.json"))
        assert len(runs) == 4, out
        return [run.stat().st_mtime_ns for run in runs], json.loads((scratch / "learning/curves.json").read_text())["curves"]
    first, curves = made()
    assert all([x for x, _ in curve] == [0, 2, 4] for seeds in curves.values() for curve in seeds.values()), curves
    norms = {rf.metrics(run.parent)[0]["actor/grad_norm"] for run in scratch.glob("learning/*/seed*/summary.json")}
    assert len(norms) == 4, "no two runs are the same"
    assert made()[0] == first, "what is there is kept"
    assert not set(made("--set", "train.lr=2e-3")[0]) & set(first), "other settings are other runs"
    refused = subprocess.run([*command, "--set", "algo.clip_low=2"], check=False, capture_output=True, text=True)
    assert refused.returncode == 1 and "algo.clip_low" in refused.stderr, refused
    said("learning.py: it goes on where it was, and runs anew what other settings ask for")


def main():
    program = rf.built_program()
    with tempfile.TemporaryDirectory(prefix="tandem_bench_") as scratch:
        lengths = pathlib.Path(scratch, "lengths.json")
        lengths.write_text("[3, 12, 7, 4]")
        check_compare()
        check_learning()
        check_learning_runs(program, pathlib.Path(scratch))
        check_commit(pathlib.Path(scratch))
        check_generate(program, lengths)
        check_train_step(program, lengths)
        check_grpo_step(program)
        check_devices(program, lengths)
        check_stale(program, lengths)
        check_tensor_cache(program)
        check_scheduler(program)


if __name__ == "__main__":
    main()
