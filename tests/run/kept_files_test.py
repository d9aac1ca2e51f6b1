#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of a run folder, when they are missing, damaged, busy, on a full disk or removed while a run goes on: nothing that was done is
lost, or the run says what is."""
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import time

import run_folder as rf
from run_folder import said

STEPS = 8


class Trial:
    def __init__(self, program, scratch, name, **changed):
        self.program, self.folder = program, pathlib.Path(scratch) / name
        self.folder.mkdir()
        self.recipe = rf.tiny_recipe(self.folder / "recipe.yaml", **{"run__steps": STEPS, "data__eval": "", **changed})

    def arguments(self, run, *more):
        return ["run", self.recipe, "--run-dir", self.folder / run, *more]

    def whole(self):
        self.program.done(self.arguments("whole"))
        return self.folder / "whole"

    def ends_like_whole(self, run, *more, **options):
        out = self.program.done(self.arguments(run, "--resume", *more), **options)
        rf.check_whole(self.folder / run, STEPS)
        rf.check_equal(self.folder / run, self.folder / "whole", run)
        return out.stderr

    def start_to(self, run, step, *more, **options):
        """A run that has concluded `step` and goes on."""
        process = self.program.start(self.arguments(run, *more, "--set", "run.steps=100000"), **options)
        metrics = self.folder / run / "metrics.jsonl"
        is_there = rf.wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= step, process)
        assert is_there, process.communicate()[1][-2000:]
        return process


def preload(scratch):
    """The library of disk faults, built."""
    library = pathlib.Path(scratch) / "faults.so"
    if not library.exists():
        source = rf.ROOT / "tests/torture/faults.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def faulty(scratch, plan):
    return {"env": {**os.environ, "LD_PRELOAD": str(preload(scratch)), "TANDEM_FAULT": plan}}


def check_aside(program, scratch):
    trial = Trial(program, scratch, "aside", checkpoint__every_steps=0)
    trial.whole()
    for run in ("plain", "link"):
        folder = trial.folder / run
        process = trial.start_to(run, 2)
        rf.wait_until(lambda folder=folder: rf.rows(folder, "SELECT 1 FROM samples WHERE step = 2"), 30, "step 2 is not written")
        rf.end(process)
        before = (folder / "metrics.jsonl").read_bytes()
        if run == "link":
            (folder / "checkpoint").symlink_to(trial.folder / "disk/checkpoints")
        text = trial.ends_like_whole(run)
        assert "aside_1" in text, text[-2000:]
        assert (folder / "aside_1/metrics.jsonl").read_bytes() == before
        assert rf.rows(folder / "aside_1", "SELECT count(DISTINCT step) FROM samples")[0][0] >= 2
        assert list((folder / "aside_1/tensorboard").iterdir()) and (folder / "aside_1/trace.json").exists()
    rf.end(trial.start_to("unmountable", 2))
    (trial.folder / "file").write_text("")
    (trial.folder / "unmountable/checkpoint").symlink_to(trial.folder / "file/checkpoints")
    before = (trial.folder / "unmountable/metrics.jsonl").read_bytes()
    program.refused(trial.arguments("unmountable", "--resume"), 2, "checkpoint", "is a link to")
    assert (trial.folder / "unmountable/metrics.jsonl").read_bytes() == before
    said("a resume without a checkpoint puts aside what an earlier attempt left, and starts over")


def check_shortened(program, scratch):
    trial = Trial(program, scratch, "shortened")
    trial.whole()
    for cut in (1, 7, 100, 5000, 10**9):
        run = f"cut_{cut}"
        program.done(trial.arguments(run, "--steps", "4"))
        folder = trial.folder / run
        for path in (folder / "metrics.jsonl", next((folder / "tensorboard").iterdir()), folder / "trace.json"):
            os.truncate(path, max(0, path.stat().st_size - cut))
        out = program.done(trial.arguments(run, "--resume"))
        assert "metrics.jsonl: has" in out.stderr and "with a gap" in out.stderr, out.stderr[-2000:]
        steps = [m["step"] for m in rf.metrics(folder)]
        assert steps[-4:] == [5, 6, 7, 8] and steps == sorted(set(steps)), steps
        assert rf.tensorboard_steps(folder)[-4:] == [5, 6, 7, 8] and rf.trace_steps(folder)[-4:] == [5, 6, 7, 8]
    said("files that were cut short go on after their last whole line, record or event")


def check_samples(program, scratch):
    trial = Trial(program, scratch, "samples")
    trial.whole()

    def damage(path):
        data = bytearray(path.read_bytes())
        for at in range(4096, len(data), 4096):
            data[at:at + 64] = os.urandom(64)
        path.write_bytes(data)

    def forget(path):
        with sqlite3.connect(path) as database:
            database.execute("DELETE FROM samples WHERE step = 2")

    faults = {"missing": (pathlib.Path.unlink, "is missing"), "damaged": (damage, "is damaged"),
              "cut": (lambda p: os.truncate(p, 5000), "is damaged"),
              "text": (lambda p: p.write_text("no database " * 1000), "is damaged"), "fewer": (forget, "where the checkpoint counted")}
    for run, (fault, words) in faults.items():
        program.done(trial.arguments(run, "--steps", "4"))
        path = trial.folder / run / "samples.sqlite"
        size = path.stat().st_size
        fault(path)
        text = program.done(trial.arguments(run, "--resume")).stderr
        assert f"samples.sqlite: {words}" in text or (words in text and "samples.sqlite" in text), text[-2000:]
        assert [s for (s,) in rf.rows(trial.folder / run, "SELECT DISTINCT step FROM samples ORDER BY step")][-4:] == [5, 6, 7, 8]
        if words == "is damaged":
            assert (trial.folder / run / "aside_1/samples.sqlite").exists(), size
    said("a samples.sqlite that is missing, damaged or has fewer samples is told; a damaged one is put aside")


def set_manifest(checkpoint):
    """Makes the manifest fit files that a test has changed."""
    # The checksum is the program's own: leave files out of the manifest instead.
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["files"]["state.json"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def check_state(program, scratch):
    trial = Trial(program, scratch, "state")
    program.done(trial.arguments("run", "--steps", "4"))
    rows = rf.samples(trial.folder / "run")
    checkpoint = trial.folder / "run/checkpoint/step_4"
    set_manifest(checkpoint)
    good = json.loads((checkpoint / "state.json").read_text())
    changes = {"step": -3, "version": -1, "next_group": -1, "tokens": -5, "seconds": -1.0, "lr_steps": -2, "sink_bytes": {"metrics": -4},
               "num_samples": -1, "kl_coef": -0.5}
    for name, value in {**changes, "step ": 3}.items():
        (checkpoint / "state.json").write_text(json.dumps({**good, name.strip(): value}))
        program.refused(trial.arguments("run", "--resume"), 2, "state.json")
        assert rf.samples(trial.folder / "run") == rows, name
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "files": {}}))
    out = program.done(trial.arguments("run", "--resume"))
    assert "its manifest names no file" in out.stderr and "resuming after step 2" in out.stderr, out.stderr[-2000:]
    rf.check_whole(trial.folder / "run", STEPS)
    said("a state with a negative number is refused, and nothing is deleted; a manifest without files is no checkpoint")


def check_busy(program, scratch):
    trial = Trial(program, scratch, "busy", run__samples_steps=0)  # it may get far
    trial.whole()
    for run, wait in (("released", 60), ("kept", 1)):
        process = trial.start_to(run, 2, "--set", f"run.samples_wait_s={wait}", "--set", "checkpoint.every_steps=0")
        lock = sqlite3.connect(trial.folder / run / "samples.sqlite", isolation_level=None, timeout=30)
        lock.execute("BEGIN IMMEDIATE")
        begin = time.monotonic()
        if run == "released":
            time.sleep(1.5)
            lock.execute("ROLLBACK")
            code, err = rf.end(process, signal.SIGTERM)
            assert code == 130 and "takes samples again" in err, err[-2000:]
        else:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 3 and "database is locked" in err and "which is saved" in err, err[-2000:]
            assert time.monotonic() - begin < 20
            lock.execute("ROLLBACK")
        lock.close()
        last = rf.committed_steps(trial.folder / run)[-1]
        program.done(trial.arguments(run, "--resume", "--steps", str(last + 1)))
        rf.check_whole(trial.folder / run, last + 1)
        shared = min(last + 1, STEPS)
        wanted = [row for row in rf.samples(trial.folder / "whole") if row[0] <= shared]
        assert [row for row in rf.samples(trial.folder / run) if row[0] <= shared] == wanted, run
    said("a busy samples.sqlite: the run goes on for run.samples_wait_s with samples in memory, then ends saved; no sample is lost")


def check_full(program, scratch):
    trial = Trial(program, scratch, "full")
    trial.whole()
    out = program.done(trial.arguments("again"), **faulty(scratch, "enospc:again/samples.sqlite:60:40"))
    assert "samples stay in memory" in out.stderr and "takes samples again" in out.stderr, out.stderr[-2000:]
    rf.check_whole(trial.folder / "again", STEPS)
    rf.check_equal(trial.folder / "again", trial.folder / "whole", "a disk that was full for a while")
    waits = ["--set", "run.samples_wait_s=0"]
    line = program.refused(trial.arguments("ended", *waits), 3, "which is saved", "samples.sqlite",
                           **faulty(scratch, "enospc:ended/samples.sqlite:60:0"))
    trial.ends_like_whole("ended", *waits)
    said(f"a full disk under samples.sqlite alone: `{line}`; resumed, equal bit for bit")


def check_parts(program, scratch):
    """Ranks that find no place for their samples send them. Nothing of what a kill leaves counts."""
    trial = Trial(program, scratch, "parts")
    ranks = ["--ranks", "2", "--train-layout", "dp2"]
    program.done(trial.arguments("whole", *ranks))
    process = trial.start_to("sent", 2, *ranks)
    place = trial.folder / "sent/samples.d"

    def is_gone():
        try:
            place.rmdir()  # while it is empty
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    rf.wait_until(is_gone, 30, "samples.d is never empty")
    metrics = trial.folder / "sent/metrics.jsonl"
    steps = metrics.read_bytes().count(b"\n")
    is_there = rf.wait_for(lambda: metrics.read_bytes().count(b"\n") >= steps + 3, process)
    assert is_there, process.communicate()[1][-2000:]
    code, err = rf.end(process, signal.SIGTERM)
    assert code == 130 and "the samples go to rank 0 by message" in err, err[-2000:]
    wanted = rf.samples(trial.folder / "whole")
    last = min(STEPS, rf.committed_steps(trial.folder / "sent")[-1])
    assert [row for row in rf.samples(trial.folder / "sent") if row[0] <= last] == [row for row in wanted if row[0] <= last]

    rf.end(trial.start_to("killed", 2, *ranks))
    place = trial.folder / "killed/samples.d"
    place.mkdir(exist_ok=True)
    (place / "9999.1").write_text("of a step that never counted")
    trial.program.done(trial.arguments("killed", "--resume", *ranks))
    rf.check_whole(trial.folder / "killed", STEPS)
    assert rf.samples(trial.folder / "killed") == wanted and not place.exists()
    said("samples that find no place in samples.d go by message; parts that a kill left are removed at the next start")


def check_shared_disk(program, scratch):
    trial = Trial(program, scratch, "shared")
    trial.whole()
    program.done(trial.arguments("nfs", "--steps", "3"), **faulty(scratch, "nfs:/nfs:0:0"))
    header = (trial.folder / "nfs/samples.sqlite").read_bytes()[:20]
    assert header[18:20] == b"\1\1", "a write-ahead log on a shared file system"
    assert (trial.folder / "whole/samples.sqlite").read_bytes()[18:20] == b"\2\2"
    trial.ends_like_whole("nfs", **faulty(scratch, "nfs:/nfs:0:0"))
    few = ["--set", "run.samples_steps=3", "--set", "run.samples_every=2"]
    trial.program.done(trial.arguments("bounded", *few))
    tokens = rf.rows(trial.folder / "bounded", "SELECT step, min(length(response_ids) > 0), min(response_tokens) "
                     "FROM samples GROUP BY step")
    assert [(step, kept) for step, kept, _ in tokens] == [(s, int(s >= 6 or s % 2 == 0)) for s in range(1, 9)], tokens
    assert all(count > 0 for _, _, count in tokens), tokens
    heads = "step, group_id, sample_id, score, advantage, finish, parts, group_version, trained_version, response_tokens"
    assert rf.samples(trial.folder / "bounded", heads) == rf.samples(trial.folder / "whole", heads), "heads stay for every step"
    trial.program.refused(trial.arguments("replayed", "--replay", trial.folder / "bounded"), 2, "tokens of step 1", "run.samples_steps=0")
    assert not (trial.folder / "replayed/metrics.jsonl").exists() or not rf.committed_steps(trial.folder / "replayed")
    said("no write-ahead log on a shared file system; run.samples_steps bounds the samples that are kept")


def check_removed(program, scratch):
    trial = Trial(program, scratch, "removed", checkpoint__every_steps=0)
    for how in ("removed", "moved", "replaced"):
        process = trial.start_to(how, 3)
        folder = trial.folder / how
        away = trial.folder / f"{how}_away"
        folder.rename(away)
        if how == "removed":
            shutil.rmtree(away, ignore_errors=True)
        if how == "replaced":
            folder.mkdir()
            (folder / ".lock").touch()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 3 and "run folder was removed or moved" in err, err[-2000:]
        if how == "replaced":
            assert "another run has taken the place" in err and sorted(p.name for p in folder.iterdir()) == [".lock"], err[-2000:]
            continue
        last = rf.committed_steps(folder)[-1]
        assert last >= 3
        program.done(trial.arguments(how, "--resume", "--steps", str(last + 2)))
    said("a run folder that is removed or moved ends the run within a step, saved")


def check_inputs(program, scratch):
    data = pathlib.Path(scratch) / "sums.jsonl"
    data.write_text('{"question": "2+3=", "answer": "5"}\n' * 4)
    trial = Trial(program, scratch, "inputs", run__steps=2, data__train=str(data))
    program.done(trial.arguments("a"))

    def warned(*more):
        out = program.done(trial.arguments("a", "--resume", *more))
        return [line for line in out.stderr.splitlines() if "at the last start of this run; it counts" in line]

    assert not warned(), "nothing has changed"
    moved = data.rename(data.with_name("moved.jsonl"))
    assert not warned("--set", f"data.train={moved}"), "the same rows elsewhere"
    moved.write_text('{"question": "2+3=", "answer": "5"}\n' * 5)
    lines = warned("--set", f"data.train={moved}", "--steps", "3")
    assert len(lines) == 1 and "warning: resume: moved.jsonl is another" in lines[0], lines
    assert not warned("--set", f"data.train={moved}"), "it was said once"
    fresh = pathlib.Path(scratch) / "fresh.py"
    fresh.write_text("def score(completions):\n    return [float(len(c) % 2) for c in completions]\n")
    lines_of_new = warned("--set", f"data.train={moved}", "--set", "reward.rule=", "--set", f"reward.python={fresh}:score")
    assert len(lines_of_new) == 1 and "fresh.py was not read at the last start" in lines_of_new[0], lines_of_new
    said(f"data that changed between two starts: `{lines[0]}`")


ONLY_EVALUATES = """
import os
armed = __file__ + ".armed"

def score(completions):
    if len(completions) > 1 and os.path.exists(armed):
        raise ValueError("in training")
    if len(completions) == 1:
        open(armed, "w").close()
    return [0.0] * len(completions)
"""


def check_mended_reward(program, scratch):
    """An evaluation by another reward is not set beside those of this one: it leaves the result, or is made again before the first step."""
    reward = pathlib.Path(scratch) / "mended.py"
    asked = {"reward__rule": "", "reward__python": f"{reward}:score", "data__eval": "synthetic", "eval__before": True, "eval__after": True}

    def resumed(trial, steps, *more):
        out = program.done(trial.arguments("run", "--resume", "--steps", steps, "--ranks", 2, *more))
        summary = json.loads((trial.folder / "run/summary.json").read_text())
        return out.stderr, summary["eval_before"], summary["eval_after"]

    reward.write_text("def score(completions):\n    return [float(len(c) % 2) for c in completions]\n")
    trial = Trial(program, scratch, "mended", run__steps=1, **asked)
    program.done(trial.arguments("run", "--ranks", 2))
    text, before, _ = resumed(trial, 2, "--set", "reward.workers=2", "--set", "reward.scale=2")
    assert before and "graded otherwise" not in text and "before:" in text, text
    (trial.folder / "elsewhere").mkdir()
    moved = shutil.copy(reward, trial.folder / "elsewhere")
    text, before, _ = resumed(trial, 2, "--set", f"reward.python={moved}:score")
    assert before and "graded otherwise" not in text, text
    for rule in ("length", f"python(python={reward}:score)"):
        text, before, _ = resumed(trial, 2, "--set", "reward.python=", "--set", f"reward.rule={rule}")
        assert before is None and "graded otherwise" in text, (before, text)
    reward.write_text("def score(completions):\n    return [1.0 for c in completions]\n")
    for _ in range(2):  # nothing is saved: the checkpoint has the evaluation by the other still
        text, before, _ = resumed(trial, 2)
        assert before is None and "graded otherwise" in text, (before, text)
    text, before, after = resumed(trial, 3)
    assert "the evaluation before training was graded otherwise" in text and "before:" not in text, text
    assert before is None and after["accuracy"] == 1, (before, after)
    text, before, _ = resumed(trial, 4)
    assert before is None and "graded otherwise" not in text, text

    reward.write_text(ONLY_EVALUATES)
    trial = Trial(program, scratch, "mended_at_once", run__steps=1, **asked)
    program.refused(trial.arguments("run", "--ranks", 2), 2, "in training")
    reward.write_text("def score(completions):\n    return [1.0 for c in completions]\n")
    text, before, _ = resumed(trial, 1)
    assert before["accuracy"] == 1 and "evaluation before training" in text, (before, text)
    said("the evaluation before training leaves the result, or is made again, when a reward was mended")


def check_exchange(program, scratch):
    """A step that is saved again, with and without a file system that can exchange; what an earlier kill left goes."""
    for name, options in (("exchanged", {}), ("renamed", faulty(scratch, "exchange:step_:0:0"))):
        trial = Trial(program, scratch, name, reward__rule="regex", reward__pattern="no such text", algo__filter_groups=True,
                      algo__max_filter_rounds=2)
        program.refused(trial.arguments("run"), 2, "algo.max_filter_rounds", **options)
        root = trial.folder / "run/checkpoint"
        for left in ("step_7.old.tmp", "step_0.replaced.tmp", "step_3.tmp"):
            (root / left).mkdir()
        groups = []
        for _ in range(3):
            groups.append(json.loads((root / "step_0/state.json").read_text())["next_group"])
            program.refused(trial.arguments("run", "--resume"), 2, "algo.max_filter_rounds", **options)
        assert groups == sorted(set(groups)), groups
        assert sorted(p.name for p in root.iterdir()) == ["latest", "step_0"], sorted(root.iterdir())
    said("a step is saved again in place, where files can be exchanged and where not; leftovers of kills go")


CHECKS = {"aside": check_aside, "shortened": check_shortened, "samples": check_samples, "state": check_state, "busy": check_busy,
          "mended": check_mended_reward, "full": check_full, "parts": check_parts, "shared": check_shared_disk, "removed": check_removed,
          "exchange": check_exchange, "inputs": check_inputs}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS)
