#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written while the run goes on: killed in the middle of the write, stopped, without room, without their folder. By
default a small model and a slow disk; --kills 15 --shape 25m, or --kills 5 --model DIR of a larger one, take the disk as it is."""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import tempfile

import run_folder as rf
from failure_test import rank_processes
from kept_files_test import faulty
from run_folder import said

SHAPES = {"small": (128, 4, 352), "25m": (512, 9, 1408)}
RANKS = ["--ranks", "2"]
SLOW = "slow:checkpoint/step_:0:0"


class Trial:
    """A run that saves after every second step, and the same undisturbed."""

    def __init__(self, program, scratch, options, name, **changed):
        self.program, self.folder = program, pathlib.Path(scratch) / name
        self.folder.mkdir()
        hidden, layers, inner = SHAPES[options.shape]
        changed = {"model__init_hidden": hidden, "model__init_layers": layers, "model__init_heads": 4, "model__init_intermediate": inner,
                   "run__steps": 6, "data__eval": "", **changed}
        self.steps = changed["run__steps"]
        if options.model:
            changed |= {"model__path": str(options.model), "model__dtype": "bfloat16"}
        self.recipe = rf.tiny_recipe(self.folder / "recipe.yaml", **changed)
        self.more = faulty(scratch, SLOW) if options.shape == "small" and not options.model else {}

    def arguments(self, run, *more):
        return ["run", self.recipe, "--run-dir", self.folder / run, *more]

    def start(self, run, *more, **options):
        return self.program.start(self.arguments(run, *more), **{**self.more, **options})

    def done(self, run, *more, **options):
        return self.program.done(self.arguments(run, *more), timeout=1200, **options)

    def ends_like_whole(self, run, *more, **options):
        self.done(run, "--resume", *more, **options)
        rf.check_whole(self.folder / run, self.steps)
        rf.check_equal(self.folder / run, self.folder / "whole", run)
        sums = [self.sums_of(name, self.steps) for name in (run, "whole")]
        assert sums[0] == sums[1], {name for name in sums[0] if sums[0][name] != sums[1].get(name)}
        assert not self.half_written(run), "what a kill left is still there"

    def sums_of(self, run, step):
        """By the manifest, without what holds times or the run's own folder."""
        files = json.loads((self.folder / run / f"checkpoint/step_{step}/manifest.json").read_text())["files"]
        return {name: file for name, file in files.items() if name not in ("state.json", "adapter/adapter_config.json")}

    def half_written(self, run):
        """Bytes of each file of an attempt."""
        sizes = {}
        for place, _, names in os.walk(self.folder / run / "checkpoint"):  # which forgives what goes meanwhile
            for path in (os.path.join(place, name) for name in names if ".tmp" in place):
                with contextlib.suppress(OSError):
                    sizes[path] = os.path.getsize(path)
        return sizes


def kill_in_the_write(trial, run, share, kill, *arguments, **options):
    """Resumes the run and kills it when this share of the bytes of its next checkpoint is on the disk. Tells how far the write was; None
    if the kill came too late."""
    total = sum(file["bytes"] for file in trial.sums_of("whole", 4).values())
    process = trial.start(run, "--resume", *arguments, **options)
    before = rf.committed_steps(trial.folder / run)
    is_there = rf.wait_for(lambda: sum(trial.half_written(run).values()) >= share * total, process, 600)
    assert is_there, process.communicate()[1][-3000:]
    written = trial.half_written(run)
    kill(process)
    process.communicate(timeout=120)
    if rf.committed_steps(trial.folder / run) != before or not written:
        return None
    return f"{sum(written.values()) / total:.2f} of the bytes in {len(written)} files; {before} stand"


def kills(trial, count, kill, arguments=RANKS, **options):
    trial.done("whole", *arguments, **options)
    trial.done("killed", "--steps", "2", *arguments, **options)
    reached = []
    for number in range(1, count + 1):
        for _ in range(5):
            reached.append(kill_in_the_write(trial, "killed", number / (count + 1), kill, *arguments, **options))
            if reached[-1]:
                break
        assert reached[-1], f"the write was over before each of {len(reached)} kills"
        print(f"    kill {number}: {reached[-1]}", flush=True)
    trial.ends_like_whole("killed", *arguments, **options)


def check_kills(program, scratch, options):
    trial = Trial(program, scratch, options, "kills")
    kills(trial, options.kills, lambda process: process.kill())
    said(f"{options.kills} kills spread over the write of a checkpoint: the one before stays; resumed, equal bit for bit")


def check_processes(program, scratch, options):
    """One of two processes is killed, and with it the job."""
    if not shutil.which("mpirun"):
        return
    for victim in (0, 1):
        trial = Trial(program, scratch, options, f"processes_{victim}")

        def kill(process, victim=victim):
            found = {}
            is_there = rf.wait_for(lambda: found.update(rank_processes(process)) or victim in found, process, 5)
            assert is_there or process.poll() is not None, "the rank is not there"
            if is_there:
                with contextlib.suppress(ProcessLookupError):  # the run is over: the kill came too late
                    os.kill(found[victim], signal.SIGKILL)

        kills(trial, 2, kill, (), launcher=rf.mpi(2))
    said("a process of two is killed in the write, rank 0 or rank 1: the same")


def check_adapters(program, scratch, options):
    trial = Trial(program, scratch, options, "adapters", model__lora_rank=4, algo__name="ppo")
    kills(trial, 2, lambda process: process.kill())
    said("so with adapters, a critic and the merged weights")


def check_stops(program, scratch, options):
    """A signal while the write goes on is followed when it is over."""
    for number in (signal.SIGTERM, signal.SIGINT):
        trial = Trial(program, scratch, options, f"stops_{number}")
        trial.done("whole", *RANKS)
        trial.done("stopped", "--steps", "2", *RANKS)
        process = trial.start("stopped", "--resume", *RANKS)
        assert rf.wait_for(lambda trial=trial: trial.half_written("stopped"), process)
        code, err = rf.end(process, number)
        assert code == 130 and "Traceback" not in err, (code, err[-3000:])
        steps = rf.committed_steps(trial.folder / "stopped")
        assert steps[-1] >= 4 and not trial.half_written("stopped"), steps
        trial.ends_like_whole("stopped", *RANKS)
    said("SIGTERM and SIGINT wait for the write")


def check_failing(program, scratch, options):
    """A write that fails behind the run ends it as one that it waits for."""
    trial = Trial(program, scratch, options, "failing", run__steps=12)
    trial.done("whole", *RANKS)
    trial.done("first", "--steps", "2", *RANKS)
    for run, plan in (("full", "enospc:step_4.tmp/optimizer_rank1:3:0"), ("broken", "eio:step_4.tmp/hf/model:2:0"),
                      ("sync", "fsync:step_4.tmp/optimizer_rank0:0:0"), ("late", "fsync:step_4.tmp/manifest:0:0"),
                      ("small", "enospc:step_4.tmp/queue:0:0")):
        shutil.copytree(trial.folder / "first", trial.folder / run, symlinks=True)
        line = program.refused(trial.arguments(run, "--resume", *RANKS), 3, "checkpoint of step 4: rank ", "step_4.tmp",
                               "that of step 2 is there", **faulty(scratch, plan))
        assert rf.committed_steps(trial.folder / run) == [2] and not trial.half_written(run), line
        last = rf.all_metrics(trial.folder / run)[-1]["step"]
        assert 4 <= last < 12, f"told at the end of step {last}"
        trial.ends_like_whole(run, *RANKS)
    said(f"a write that fails behind the run ends it after the step with exit code 3: `{line}`")


def check_bits(program, scratch, options):
    """On a slow disk, so that an update comes long before the write ends: the files of a run that ends with that step."""
    for name, changed in (("dp2", {}), ("tp2", {"parallel__train_layout": "tp2"}), ("critic", {"algo__name": "ppo"}),
                          ("half", {"model__dtype": "bfloat16"}), ("lora", {"model__lora_rank": 4}),
                          ("offload", {"memory__offload_train_optimizer": True}), ("swap", {"train__swap_optimizer": True})):
        trial = Trial(program, scratch, options, f"bits_{name}", **changed)
        trial.done("behind", *RANKS, **faulty(scratch, SLOW))
        trial.done("waited", "--steps", "4", *RANKS)
        sums = [trial.sums_of(run, 4) for run in ("behind", "waited")]
        assert sums[0] == sums[1], (name, {file for file in sums[0] if sums[0][file] != sums[1].get(file)})
    said("what is written behind the run has the bits of its step, in every layout")


def check_short(program, scratch, options):
    """Short writes, and a file system without the way past the page cache."""
    trial = Trial(program, scratch, options, "short")
    trial.done("whole", *RANKS)
    trial.done("short", *RANKS, **faulty(scratch, "short:checkpoint/step_:0:0"))
    assert trial.sums_of("short", 6) == trial.sums_of("whole", 6) and trial.sums_of("short", 4) == trial.sums_of("whole", 4)
    said("half of each write makes the same files")


def check_removed(program, scratch, options):
    """The run folder goes while its checkpoint is written."""
    trial = Trial(program, scratch, options, "removed", run__steps=100000)
    process = trial.start("removed", *RANKS)
    assert rf.wait_for(lambda: trial.half_written("removed"), process)
    (trial.folder / "removed").rename(trial.folder / "away")
    shutil.rmtree(trial.folder / "away", ignore_errors=True)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3 and "which is saved" in err, (process.returncode, err[-3000:])
    assert len(rf.committed_steps(trial.folder / "removed")) == 1 and not trial.half_written("removed")
    said("a run folder that is removed in the write comes back with the last step")


def check_goes_on(program, scratch, options):
    """A step is concluded while the checkpoint of one before is half written."""
    trial = Trial(program, scratch, options, "goes_on", run__steps=100000, run__parity=False)
    for name, arguments, launcher in (("threads", RANKS, ()), ("one", [], ()), ("processes", [], rf.mpi(2))):
        if launcher and not shutil.which("mpirun"):
            continue
        process = trial.start(name, *arguments, launcher=launcher)
        metrics = trial.folder / name / "metrics.jsonl"

        def is_seen(name=name, metrics=metrics):
            step = max((line["step"] for line in rf.whole_lines(metrics)), default=0)
            return any(f"/step_{saved}.tmp/" in file for file in trial.half_written(name) for saved in range(1, step))
        assert rf.wait_for(is_seen, process), process.communicate()[1][-3000:]
        code, err = rf.end(process, signal.SIGTERM)
        assert code == 130, err[-3000:]
    said("the next step is concluded while a checkpoint is written")


def check_numbers(program, scratch, options):
    """What the run stood still for, what was written beside it, and a warning where there is no room."""
    trial = Trial(program, scratch, options, "numbers")
    trial.done("run", *RANKS)
    lines = rf.all_metrics(trial.folder / "run")
    assert [line["step"] for line in lines if "time/checkpoint_s" in line] == [3, 5], "it comes with the next step's numbers"
    written = sum("time/checkpoint_write_s" in line for line in lines)  # the last may end after the numbers of the last step
    assert 1 <= written <= 2, f"{written} writes are told"
    trace = json.loads((trial.folder / "run/trace.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in trace if event.get("name") == "thread_name"}
    spans = [tracks[event["tid"]] for event in trace if event.get("name") == "checkpoint"]
    assert spans.count("checkpoint") == written and spans.count("rank 0") == 2, spans
    if rf.DEVICE:
        out = trial.done("tight", *RANKS, "--set", "memory.host_mib=1")
        told = out.stderr.count("the run waits while its checkpoints are written")
        assert told == 1 and "memory.host_mib" in out.stderr, out.stderr[-3000:]
        assert not any("time/checkpoint_write_s" in line for line in rf.all_metrics(trial.folder / "tight"))
        assert trial.sums_of("tight", 6) == trial.sums_of("run", 6)
    said("metrics and trace tell the pause and the write; a device without room for copies waits, and says so once")


CHECKS = {"kills": check_kills, "processes": check_processes, "adapters": check_adapters, "stops": check_stops, "failing": check_failing,
          "bits": check_bits, "short": check_short, "removed": check_removed, "goes_on": check_goes_on, "numbers": check_numbers}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--only", choices=CHECKS)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--model", type=pathlib.Path, help="a directory with weights and tokenizer, in place of a random model of --shape")
    parser.add_argument("--scratch", help="a folder on the disk to be written to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem_save_", dir=options.scratch) as scratch:
        for name, check in CHECKS.items():
            if options.only in (None, name):
                check(rf.Program(options.build), scratch, options)


if __name__ == "__main__":
    main()
