#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sinks of a run, with made-up packages in the place of the real ones: what they get, and that one that hangs, raises, dies or is missing
costs the run nothing. The real packages are in trackers_test.py."""
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import time
import types

import run_folder as rf
from fit_test import SECTIONS, chosen
from run_folder import said

STEPS = 6
WAIT_S = 3  # of monitor.end_wait_s where a sink hangs

# Writes what it is told to FAKE_JOURNAL. FAKE_MOOD, such as "hang in log", "raise in init" or "once die in log", says what goes wrong.
COMMON = '''
import json, os, time

def note(**said):
    with open(os.environ["FAKE_JOURNAL"] + "." + __name__, "ab", buffering=0) as file:  # one write a line
        file.write(json.dumps({"pid": os.getpid(), **said}).encode() + b"\\n")

def enters(place):
    mood = os.environ.get("FAKE_MOOD_" + __name__, "").split(" in ")
    if len(mood) < 2 or mood[1] != place:
        return
    if mood[0].startswith("once "):
        mark = os.environ["FAKE_JOURNAL"] + ".once"
        if os.path.exists(mark):
            return
        open(mark, "w").close()
    note(trouble=place)
    what = mood[0].split()[-1]
    if what == "hang":
        time.sleep(10**6)
    if what == "die":
        os._exit(9)
    if what == "exit":
        raise SystemExit(4)
    raise ValueError("no room\\nfor numbers")

enters("import")
'''
WANDB = COMMON + '''
class Settings:
    def __init__(self, **given):
        pass

class Run:
    def __init__(self):
        self.summary = {}
    def log(self, metrics, step, commit):
        enters("log")
        note(step=step, metrics=metrics)
    def finish(self, exit_code):
        enters("finish")
        note(finish=exit_code, summary=self.summary)

def init(settings, **given):
    enters("init")
    note(init=given)
    return Run()

def teardown():
    pass
'''
SWANLAB = COMMON + '''
def init(**given):
    enters("init")
    note(init=given)

def log(metrics, step):
    enters("log")
    note(step=step, metrics=metrics)

def finish(**given):
    enters("finish")
    note(finish=0 if not given else given["state"])
'''


class Trial:
    """Runs of one recipe whose sinks are the made-up packages, in a folder of their own."""

    def __init__(self, program, scratch, name, sinks="wandb,swanlab", **changed):
        self.program, self.folder = program, pathlib.Path(scratch) / name
        (self.folder / "packages").mkdir(parents=True)
        (self.folder / "packages/wandb.py").write_text(WANDB)
        (self.folder / "packages/swanlab.py").write_text(SWANLAB)
        self.recipe = rf.tiny_recipe(self.folder / "recipe.yaml", **{"run__steps": STEPS, "monitor__end_wait_s": 60, **changed})
        self.sinks = ["--set", f"monitor.sinks=[{sinks}]"]
        self.run = self.folder / "run"

    def options(self, moods):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "SWANLAB", "MLFLOW"))}
        env.update({f"FAKE_MOOD_{sink}": mood for sink, mood in moods.items()})
        return {"env": {**env, "PYTHONPATH": str(self.folder / "packages"), "FAKE_JOURNAL": str(self.folder / "journal")}}

    def arguments(self, *more):
        return ["run", self.recipe, "--run-dir", self.run, *self.sinks, *more]

    def done(self, *more, **moods):
        return self.program.done(self.arguments(*more), **self.options(moods)).stderr

    def journal(self, sink="wandb"):
        return rf.whole_lines(self.folder / f"journal.{sink}")

    def steps(self, sink="wandb"):
        return [said["step"] for said in self.journal(sink) if "step" in said and said["metrics"].get("policy_version")]

    def inits(self, sink="wandb"):
        return [said["init"] for said in self.journal(sink) if "init" in said]

    def ends(self, sink="wandb"):
        return [said["finish"] for said in self.journal(sink) if "finish" in said]

    def story(self, sink="wandb"):
        """The journal in short, for messages."""
        return [next((f"{key} {said[key]}" for key in ("step", "trouble", "finish") if key in said), "init") for said in self.journal(sink)]

    def check_nobody_left(self):
        pids = {said["pid"] for sink in ("wandb", "swanlab") for said in self.journal(sink)}
        assert pids, "nobody was there"
        rf.wait_until(lambda: not any(is_alive(pid) for pid in pids), 10, f"one of {pids} goes on")


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False



def only_warning(trial, *parts):
    """The one warning of monitor.sinks in the log of the run, which has these words in this order."""
    found = [line for line in (trial.run / "log.txt").read_text().splitlines() if " warning monitor.sinks" in line]
    assert len(found) == 1, found
    at = 0
    for part in parts:
        at = found[0].find(part, at)
        assert at >= 0, f"no `{part}` in: {found[0]}"


def check_taken(program, scratch):
    """Each step, the recipe and the summary, as the run folder has them."""
    trial = Trial(program, scratch, "taken", monitor__group="a group", reward__clip_low="-inf")
    text = trial.done()
    for sink in ("wandb", "swanlab"):
        lines = [said["metrics"] for said in trial.journal(sink) if "step" in said][:STEPS]
        for line, got in zip(rf.all_metrics(trial.run), lines, strict=True):
            line.pop("step")
            assert got == {name: value for name, value in line.items() if value is not None}, f"{sink}: {got}"
        given = trial.inits(sink)[0]
        assert given["project"] == "tandem" and given["group"] == "a group" and given["resume"] == "allow", given
        assert "run" in (given.get("name"), given.get("experiment_name")), given
        config = given["config"]
        assert config["train"]["lr"] == 1e-3 and config["reward"]["clip_low"] == "-inf" and config["run"]["parity"] is True, config
        assert config["monitor"]["sinks"] == ["wandb", "swanlab"] and config["run"]["steps"] == STEPS, config
        assert trial.steps(sink) == list(range(1, STEPS + 1)) and trial.ends(sink) == [0], trial.story(sink)
    summary = json.loads((trial.run / "summary.json").read_text())
    for got in (trial.journal("wandb")[-1]["summary"], [said for said in trial.journal("swanlab") if "step" in said][-1]["metrics"]):
        assert got["summary/eval_after/accuracy"] == summary["eval_after"]["accuracy"], got
        assert got["summary/tokens"] == summary["tokens"] and got["summary/steps"] == STEPS, got
    assert "warning" not in text, text[-2000:]
    places = json.loads((trial.run / "sinks.json").read_text())
    assert {sink: place["step"] for sink, place in places.items()} == {"wandb": STEPS, "swanlab": STEPS}, places
    trial.check_nobody_left()
    named = Trial(program, scratch, "named", "wandb", monitor__project="sums", monitor__run_name="first")
    named.done()
    assert (named.inits()[0]["project"], named.inits()[0]["name"]) == ("sums", "first"), named.story()
    plain = Trial(program, scratch, "plain", "")
    plain.done()
    left = [name for name in ("sinks.json", "sinks.log") if (plain.run / name).exists()]
    assert not left and not plain.journal(), "without a sink there is no process"
    said("sinks get each step's line, the resolved recipe and the summary; without one no Python runs")


def check_fit(program, scratch):
    """Sinks get the recipe that runs: with the sizes that --fit chose."""
    trial = Trial(program, scratch, "fitted", "wandb")
    trial.done("--fit")
    config, sizes = trial.inits()[0]["config"], chosen(trial.run)
    given = {name: config[SECTIONS.get(name, "train")][name] for name in sizes}
    assert given == sizes and sizes["micro_batch_tokens"] != 8192, f"{given}, not {sizes}"
    said("sinks get the sizes that --fit chose")


def check_hang(program, scratch):
    """Wherever a sink hangs, the run has all its steps, the other sink too, and the end waits for the time it says."""
    for place in ("import", "init", "log", "finish"):
        trial = Trial(program, scratch, f"hang-{place}", monitor__end_wait_s=WAIT_S)
        begin = time.monotonic()
        trial.done(wandb=f"hang in {place}")
        seconds = time.monotonic() - begin
        assert [line["step"] for line in rf.metrics(trial.run)] == list(range(1, STEPS + 1)), f"{place}: steps of the run"
        written = (trial.run / "summary.json").stat().st_mtime
        waited = (trial.run / "log.txt").stat().st_mtime - written
        assert waited < WAIT_S + 10 and seconds > WAIT_S, f"{place}: waited {waited} s of {seconds}"
        only_warning(trial, "wandb: ", f"within {WAIT_S} s (monitor.end_wait_s)", "--resume")
        assert trial.journal()[-1] == {"pid": trial.journal()[-1]["pid"], "trouble": place}, f"{place}: it did hang"
        assert trial.steps("swanlab") == list(range(1, STEPS + 1)) and trial.ends("swanlab") == [0], f"{place}: the other sink"
        trial.check_nobody_left()
        trial.done("--resume")  # the package answers again, and has forgotten what it had not stored
        assert trial.steps()[-STEPS:] == list(range(1, STEPS + 1)) and trial.ends()[-1] == 0, f"{place}: {trial.story()}"
    quick = Trial(program, scratch, "impatient", "wandb", monitor__end_wait_s=0)
    quick.done(wandb="hang in import")
    only_warning(quick, "within 0 s")
    said("a sink that hangs has one warning and holds up neither a step nor another sink; a resume sends what it lacks")


def check_raise(program, scratch):
    """A sink that raises has one warning and is tried again; what it lacks comes in order, nothing twice."""
    for mood, words in (("raise in import", "ValueError: no room for numbers"), ("raise in init", "ValueError"),
                        ("raise in log", "ValueError"), ("exit in log", "SystemExit: 4"), ("raise in finish", "ValueError")):
        trial = Trial(program, scratch, mood.replace(" ", "-"))
        trial.done(wandb=mood)
        only_warning(trial, "wandb: ", words, "sinks.log")
        assert words.split(":", maxsplit=1)[0] in (trial.run / "sinks.log").read_text(), "the traceback is in sinks.log"
        assert "wandb has not taken everything; --resume sends the rest" in (trial.run / "log.txt").read_text(), mood
        assert trial.steps("swanlab") == list(range(1, STEPS + 1)), f"{mood}: the other sink"
        once = Trial(program, scratch, "once-" + mood.replace(" ", "-"), "wandb")
        once.done(wandb="once " + mood)
        assert once.steps() == list(range(1, STEPS + 1)) and once.ends() == [0], f"{mood}: {once.story()}"
        only_warning(once, "wandb: ", words)
        assert "wandb: takes steps again" in (once.run / "log.txt").read_text(), mood
    said("a sink that raises has one warning; it is tried again, at the latest when the run ends")


def check_die(program, scratch):
    """A package that ends the process: it is started again, goes on where it was, and that has an end."""
    trial = Trial(program, scratch, "die", "wandb")
    trial.done(wandb="once die in log")
    only_warning(trial, "ended with exit code 9; it is started again")
    assert trial.steps() == list(range(1, STEPS + 1)) and len({given["id"] for given in trial.inits()}) == 1, trial.story()
    always = Trial(program, scratch, "always", "wandb")
    always.done(wandb="die in init")
    only_warning(always, "ended with exit code 9")
    troubles = [said for said in always.journal() if "trouble" in said]
    assert 1 <= len(troubles) <= 4 and not always.steps(), troubles
    said("a process of sinks that dies is started again a few times, and has one warning")


def wrapper(folder, flags):
    """A Python with these flags."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {shutil.which("python3")} {flags} "$@"\n')
    path.chmod(0o755)
    return path


def check_missing(program, scratch):
    """A package that is not there is an error before there is a run folder. W&B's own folder is no package."""
    trial = Trial(program, scratch, "missing", "wandb,mlflow")
    (trial.folder / "wandb").mkdir()
    bare = wrapper(trial.folder, "-I -S")
    python = ["--set", f"monitor.python_executable={bare}"]
    program.refused(trial.arguments(*python), 2, "monitor.sinks", str(bare), "has no package wandb, mlflow",
                    "scripts/setup wandb mlflow-skinny", "monitor.python_executable", cwd=trial.folder, **trial.options({}))
    no_site = ["--set", f"monitor.python_executable={wrapper(trial.folder, '-S')}"]
    program.refused(trial.arguments(*no_site), 2, "has no package mlflow", "a Python that has it", cwd=trial.folder, **trial.options({}))
    for python, what in (("/nowhere/python", "cannot be started"), (shutil.which("false"), "exit code 1")):
        program.refused(trial.arguments("--set", f"monitor.python_executable={python}"), 2, "monitor.python_executable", what,
                        **trial.options({}))
    program.refused(trial.arguments("--set", "monitor.sinks=wandbb"), 2, "monitor.sinks", "wandb swanlab mlflow")
    program.refused(trial.arguments("--set", "monitor.end_wait_s=-1"), 2, "monitor.end_wait_s", "between 0 and 86400")
    assert not trial.run.exists() and not trial.journal(), "nothing was made"
    said("a missing package, a Python that is none and a sink that is none are refused before there is a run folder")


def lines_of(trial):
    path = trial.run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def check_resume(program, scratch):
    """A run that is killed or stopped goes on as the same run at its sinks. What a package had when the kill came may be lost with it: it
    comes again. After an end in order nothing does."""
    trial = Trial(program, scratch, "resume", "wandb", data__eval="")
    process = program.start(trial.arguments("--steps", "100000"), **trial.options({}))
    assert rf.wait_for(lambda: len(trial.steps()) >= 3 and rf.committed_steps(trial.run), process), process.communicate()[1][-2000:]
    assert rf.end(process)[0] == -signal.SIGKILL
    trial.check_nobody_left()
    assert not trial.ends(), "a killed run has no end"
    killed_at = lines_of(trial)
    process = program.start(trial.arguments("--resume", "--steps", "100000"), **trial.options({}))
    further = rf.wait_for(lambda: lines_of(trial) > killed_at + 3 and max(trial.steps()) > killed_at, process)
    assert further, process.communicate()[1][-2000:]
    code, err = rf.end(process, signal.SIGINT)
    assert code == 130 and trial.ends() == [255], f"{code} {trial.ends()} {err[-2000:]}"
    last = rf.metrics(trial.run)[-1]["step"] + 2
    trial.done("--resume", "--steps", str(last))
    killed, stopped, finished = ([said["step"] for said in trial.journal() if said["pid"] == pid and said.get("metrics")]
                                 for pid in dict.fromkeys(said["pid"] for said in trial.journal()))
    assert killed == list(range(1, killed[-1] + 1)), "from the first step on"
    assert stopped[0] <= killed[-1] + 1 and stopped == list(range(stopped[0], stopped[-1] + 1)), "none is left out, some come again"
    assert finished == list(range(stopped[-1] + 1, last + 1)), "nothing comes again after an end in order"
    assert len(trial.inits()) == 3 and len({given["id"] for given in trial.inits()}) == 1 and trial.ends() == [255, 0], trial.story()
    trial.check_nobody_left()
    again = Trial(program, scratch, "overwrite", "wandb")
    again.done()
    again.done("--overwrite")
    assert len({given["id"] for given in again.inits()}) == 2 and again.steps() == 2 * list(range(1, STEPS + 1))
    assert (again.run / "aside_1/sinks.json").exists(), "--overwrite keeps what was there"
    said("a resume goes on with the same run at each sink; --overwrite begins another")


def check_failed(program, scratch):
    """A run that fails says so to its sinks; so do supervised steps, and the warm start leaves them alone."""
    trial = Trial(program, scratch, "failed", "wandb", data__eval="", reward__rule="")
    count = trial.folder / "count"
    (trial.folder / "reward.py").write_text(
        "import os\ndef score(completions, **columns):\n"
        f"    with open({str(count)!r}, 'a') as file: file.write('x')\n"
        f"    if os.path.getsize({str(count)!r}) > 12: raise ValueError('enough')\n"
        "    return [float(sum(map(ord, c)) % 3) for c in completions]\n")
    trial.program.refused(trial.arguments("--set", f"reward.python={trial.folder}/reward.py:score"), 2, "enough", **trial.options({}))
    assert trial.ends() == [1] and trial.steps() == [line["step"] for line in rf.metrics(trial.run)], trial.story()
    assert trial.steps() and "summary" not in json.dumps([said.get("metrics") for said in trial.journal()])
    warm = Trial(program, scratch, "warm", "wandb", supervised__steps=2, supervised__batch_size=4, eval__before=False)
    warm.done()
    assert warm.steps() == list(range(1, STEPS + 1)) and len(warm.inits()) == 1, "a warm start is not sent"
    sft = Trial(program, scratch, "sft", "wandb", supervised__steps=3, supervised__batch_size=4)
    program.done(["sft", sft.recipe, "--run-dir", sft.run, *sft.sinks], **sft.options({}))
    assert [said["step"] for said in sft.journal() if "step" in said][:3] == [1, 2, 3] and sft.ends() == [0], sft.story()
    said("a failed run ends as such at its sinks; `tandem sft` has sinks, a warm start has none")


def check_ranks(program, scratch):
    """Rank 0 alone has the process, whether ranks are threads or processes; a device has its share of the tokens."""
    for name, flags, launcher in (("threads", ["--ranks", "2"], ()), ("processes", [], rf.mpi(2))):
        trial = Trial(program, scratch, name, "wandb", parallel__threads=2)
        program.done(trial.arguments(*flags), launcher=launcher, timeout=300, **trial.options({}))
        assert len(trial.inits()) == 1 and trial.steps() == list(range(1, STEPS + 1)) and trial.ends() == [0], f"{name}: {trial.story()}"
        for line in rf.all_metrics(trial.run):
            whole, each = (line[f"throughput/tokens_per_s{of}"] for of in ("", "_per_device"))
            assert abs(each - whole / 2) < 1e-9 * whole, f"{name}: {whole} {each}"
    single = Trial(program, scratch, "single", "")
    program.done(["sft", single.recipe, "--run-dir", single.run, "--set", "supervised.steps=2", "--set", "supervised.batch_size=4"])
    for line in rf.all_metrics(single.run):
        assert line["throughput/tokens_per_s_per_device"] == line["throughput/tokens_per_s"] > 0, line
    said("one process for all ranks; tokens a second are told for each device, too")


class MadeUp:
    """A tracker that stores a step 10 s after it took it."""
    SETTLES_S = 10

    def __init__(self, job, place):
        self.ended_at = None

    def log(self, step, metrics):
        pass

    def end(self, how, step, summary):
        self.ended_at = step


def check_settled(_, scratch):
    """A step is noted once its tracker has it for sure: after its time, or at the end."""
    spec = importlib.util.spec_from_file_location("worker", rf.ROOT / "src/tandem/sink/backend/worker.py")
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    clock = [0.0]
    worker.time = types.SimpleNamespace(monotonic=lambda: clock[0])
    worker.KINDS["made"] = MadeUp
    run_end, path = worker.RunEnd(), pathlib.Path(scratch) / "sinks.json"
    for settles_s, noted in ((10, [0, 0, 1, 3, 3, 5]), (0, [1, 2, 3, 4, 5, 5])):
        MadeUp.SETTLES_S = settles_s
        path.unlink(missing_ok=True)
        sink = worker.Sink("made", {"run_dir": scratch}, worker.Places(str(path)), run_end, lambda *words: None)
        seen = []
        for step, clock[0] in enumerate((0, 5, 10, 30, 31), 1):
            sink.take(step, {})
            seen.append(sink.place.step())
        run_end.how = "stopped"
        sink.end()
        assert seen + [sink.place.step()] == noted and sink.tracker.ended_at == 5, f"{settles_s}: {seen}"
    said("a step is noted once its tracker has it for sure")


CHECKS = {"settled": check_settled, "taken": check_taken, "fit": check_fit, "hang": check_hang, "raise": check_raise, "die": check_die,
          "missing": check_missing, "resume": check_resume, "failed": check_failed, "ranks": check_ranks}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS)
