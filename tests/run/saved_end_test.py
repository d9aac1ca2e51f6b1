#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whatever fails in a step, the run ends with its last concluded step saved, and resumes as a run that never failed."""
import http.server
import json
import pathlib
import re
import shutil
import threading

import run_folder as rf
from run_folder import said

STEPS, GROUPS = 8, 4  # a group a row: row r is graded in step r // GROUPS + 1

# Grades by digits. The file `mode` beside it says what happens to the prompt in the file `when`.
REWARD = """
import os, pathlib
HERE = pathlib.Path(__file__).parent
def score(prompts, completions, answers):
    scores = [float(sum(map(c.count, "01234"))) for c in completions]
    if (HERE / "when").exists() and (HERE / "when").read_text() in prompts[0]:
        mode = (HERE / "mode").read_text()
        if mode == "raise":
            raise ValueError("not today")
        if mode == "exit":
            os._exit(3)
        if mode == "nan":
            scores[-1] = float("nan")
        if mode == "huge":
            scores = [3e38] * (len(scores) - 1) + [0.0]  # dr_grpo: each advantage is finite, and their sum is not
    return scores
"""


class Trial:
    """A recipe whose reward fails on demand, and the run that never fails."""

    def __init__(self, program, scratch, name, **changed):
        self.program, self.folder, self.name = program, pathlib.Path(scratch) / name, name
        self.folder.mkdir()
        (self.folder / "rewards.py").write_text(REWARD)
        data = self.folder / "rows.jsonl"
        data.write_text("".join(json.dumps({"question": f"{r // 10}+{r % 10}=", "answer": "1"}) + "\n" for r in range(STEPS * GROUPS)))
        options = {"reward__rule": "", "reward__python": f"{self.folder}/rewards.py:score", "reward__timeout_s": 20,
                   "data__train": str(data), "data__eval": "", "data__shuffle": False, "run__steps": STEPS,
                   "checkpoint__every_steps": 0, **changed}
        self.recipe = rf.tiny_recipe(self.folder / "recipe.yaml", **options)

    def arguments(self, run, *more):
        return ["run", self.recipe, "--run-dir", self.folder / run, *more]

    def whole(self, *more, **options):
        self.program.done(self.arguments("whole", *more), **options)

    def fail_at(self, row, mode):
        (self.folder / "mode").write_text(mode)
        (self.folder / "when").write_text(f"{row // 10}+{row % 10}=")

    def repair(self):
        (self.folder / "when").unlink()

    def check_saved(self, run, line, step):
        assert f"after step {step}, which is saved" in line and "--resume" in line, line
        assert rf.committed_steps(self.folder / run)[-1] == step, rf.committed_steps(self.folder / run)
        assert [m["step"] for m in rf.metrics(self.folder / run)] == list(range(1, step + 1))

    def check_resumed(self, run, *more, equal=True, **options):
        self.program.done(self.arguments(run, "--resume", *more), **options)
        rf.check_whole(self.folder / run, STEPS)
        if equal:
            rf.check_equal(self.folder / run, self.folder / "whole", f"{self.name}: {run}")


def check_kinds(program, scratch):
    """An exception, a worker that dies and a NaN, in the first step and in a later one: no checkpoint was due."""
    trial = Trial(program, scratch, "kinds")
    trial.whole()
    for mode, row, words in (("raise", 21, "ValueError: not today"), ("exit", 13, "worker failed"), ("nan", 30, "nan"), ("raise", 2, "")):
        trial.fail_at(row, mode)
        run = f"{mode}_{row}"
        line = program.refused(trial.arguments(run), 2, "group", words)
        trial.check_saved(run, line, row // GROUPS)
        again = program.refused(trial.arguments(run, "--resume"), 2, "group", words)  # the cause is still there
        trial.check_saved(run, again, row // GROUPS)
        trial.repair()
        trial.check_resumed(run)
    said(f"a reward that raises, dies or gives NaN: `{line}`; resumed, equal bit for bit")


def check_server(program, scratch):
    class Once(http.server.BaseHTTPRequestHandler):
        """Answers the trial before the run, then nobody."""

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = json.dumps({"scores": [1.0] * len(body["completions"])}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Once) as server:
        answers = threading.Thread(target=lambda: (server.handle_request(), server.server_close()))
        answers.start()
        port = server.server_port
        trial = Trial(program, scratch, "server", reward__python="", reward__url=f"http://127.0.0.1:{port}/score", reward__timeout_s=1)
        line = program.refused(trial.arguments("dead"), 3, f"127.0.0.1:{port}")
        answers.join(timeout=60)
    assert "after step 0, which is saved" in line and rf.committed_steps(trial.folder / "dead") == [0], line
    said(f"a server that dies: `{line}`")
    line = program.refused(trial.arguments("never"), 3, "the reward, tried before the run", f"127.0.0.1:{port}")
    assert not (trial.folder / "never").exists()
    said(f"a server that was never there: `{line}`, and nothing is made")


def check_zero(program, scratch):
    trial = Trial(program, scratch, "zero", reward__on_error="zero")
    for mode, failed in (("raise", 4), ("exit", 4), ("nan", 4)):
        trial.fail_at(21, mode)
        out = program.done(trial.arguments(mode))
        warnings = [line for line in out.stderr.splitlines() if "grading failed" in line]
        assert len(warnings) == 1 and "group 21" in warnings[0] and "failed for 4 of 4 samples" in warnings[0], warnings
        rf.check_whole(trial.folder / mode, STEPS)
        wanted = [failed / 16 if m["step"] == 6 else 0 for m in rf.metrics(trial.folder / mode)]
        assert [m["reward/failed"] for m in rf.metrics(trial.folder / mode)] == wanted, mode
        rows = rf.rows(trial.folder / mode, "SELECT group_id, score FROM samples WHERE parts LIKE '%failed%'")
        assert rows == [(21, 0.0)] * failed, rows
    said("reward.on_error: zero scores what fails 0, counts it, warns once")


def check_nonfinite(program, scratch):
    trial = Trial(program, scratch, "nonfinite", algo__name="dr_grpo")
    trial.whole()
    trial.fail_at(21, "huge")
    line = program.refused(trial.arguments("end"), 2, "train", "update 6", "train.nonfinite")
    trial.check_saved("end", line, 5)
    out = program.done(trial.arguments("skip", "--set", "train.nonfinite=skip"))
    assert "the update is left out" in out.stderr, out.stderr[-2000:]
    rf.check_whole(trial.folder / "skip", STEPS)
    assert [m["actor/nonfinite_updates"] for m in rf.metrics(trial.folder / "skip")] == [0, 0, 0, 0, 0, 1, 0, 0]
    trial.check_resumed("end", "--set", "train.nonfinite=skip", equal=False)  # its queue has the huge scores
    assert rf.samples(trial.folder / "end") == rf.samples(trial.folder / "skip"), "an end, resumed with skip, and skip"
    said(f"an update that is not finite: `{line}`; resumed with skip, equal to skip bit for bit")
    # The third of four updates: two are made, so the step stands as it is, and the run ends after it.
    several = ("--set", "algo.mini_batches=4", "--set", "train.nonfinite=end")
    line = program.refused(trial.arguments("several", *several), 2, "train", "update 22")
    trial.check_saved("several", line, 6)
    trial.check_resumed("several", *several, equal=False)
    said(f"the second of several updates: `{line}`; resumed")
    workers = (*several, "--ranks", "2", "--rollout-workers", "1")
    line = program.refused(trial.arguments("workers", *workers), 2, "train", "update 22")
    trial.check_saved("workers", line, 6)
    said(f"so where workers generate for two ranks: `{line}`")


def check_evaluation(program, scratch):
    trial = Trial(program, scratch, "evaluation", data__eval="synthetic", data__synthetic_eval_rows=8, eval__every_steps=3)
    trial.whole()
    prompt = rf.evals(trial.folder / "whole")[0][2]
    for steps in (1, 2):  # the evaluation before; that after step 3
        run = f"evaluation_{steps}"
        if steps == 2:
            program.done(trial.arguments(run, "--steps", "2", "--set", "eval.after=false"))
        (trial.folder / "mode").write_text("raise")
        (trial.folder / "when").write_text(prompt)
        more = ["--resume"] if steps == 2 else []
        line = program.refused(trial.arguments(run, *more), 2, "not today")
        assert f"after step {3 if steps == 2 else 0}, which is saved" in line, line
        assert f"the evaluation {'after step 3' if steps == 2 else 'before training'}: reward rule" in line and line.count(" (") == 2, line
        trial.repair()
        trial.check_resumed(run)
    said(f"a reward that fails in an evaluation: `{line}`; resumed, equal bit for bit")


def check_no_spread(program, scratch):
    """The run ends where a checkpoint of the same step holds an older queue: what was filtered since is not generated again."""
    trial = Trial(program, scratch, "no_spread", reward__python="", reward__rule="regex", reward__pattern="no such text",
                  algo__filter_groups=True, algo__max_filter_rounds=2)
    line = program.refused(trial.arguments("run"), 2, "algo.max_filter_rounds")
    assert rf.committed_steps(trial.folder / "run") == [0], line
    first = json.loads((trial.folder / "run/checkpoint/step_0/state.json").read_text())["next_group"]
    program.refused(trial.arguments("run", "--resume"), 2, "algo.max_filter_rounds")
    second = json.loads((trial.folder / "run/checkpoint/step_0/state.json").read_text())["next_group"]
    assert second > first > 0, (first, second)
    said(f"groups without spread: `{line}`; each resume goes on where the last ended")


def check_supervised(program, scratch):
    trial = Trial(program, scratch, "supervised", supervised__steps=6, supervised__batch_size=4, supervised__stop_at_accuracy=1.0,
                  supervised__accuracy_every_steps=2, supervised__accuracy_problems=4)
    trial.fail_at(19, "raise")  # asked after step 4
    arguments = ["sft", trial.recipe, "--run-dir", trial.folder / "sft"]
    line = program.refused(arguments, 2, "not today")
    assert "after step 4, which is saved" in line and rf.committed_steps(trial.folder / "sft") == [4], line
    trial.repair()
    program.done([*arguments, "--resume"])
    assert [m["step"] for m in rf.metrics(trial.folder / "sft")] == [1, 2, 3, 4, 5, 6]
    said(f"a reward that fails in supervised steps: `{line}`; resumed")


def check_ranks(program, scratch):
    """On one of several ranks: threads, processes of mpirun or of fake devices, a split placement, samples that lag."""
    cases = {"threads": (["--ranks", "2"], (), True), "split": (["--ranks", "2", "--set", "parallel.placement=split"], (), True),
             "stale": (["--ranks", "2", "--set", "parallel.placement=split", "--schedule", "stale", "--staleness", "1"], (), False)}
    fake = rf.sets({"run.device": "fake", "run.kernels": "aten", "rollout.packed_weights": "false"})
    cases["devices"] = (["--ranks", "2", *fake], (), True)
    if shutil.which("mpirun"):
        cases["processes"] = ([], rf.mpi(2), True)
        cases["tensor"] = (["--train-layout", "tp2"], rf.mpi(2), True)
    for name, (flags, launcher, equal) in cases.items():
        of_devices = rf.built_program(fake=True) if name == "devices" else program
        trial = Trial(of_devices, scratch, name, algo__name="dr_grpo")
        trial.whole(*flags, launcher=launcher)
        for mode, row in (("raise", 21), ("huge", 21)):
            trial.fail_at(row, mode)
            fault = "not today" if mode == "raise" else "update 6"
            line = trial.program.refused(trial.arguments(mode, *flags), 2, fault, launcher=launcher)
            step = int(re.search(r"after step (\d+), which is saved", line).group(1))
            assert step == row // GROUPS or not equal, line
            trial.check_saved(mode, line, step)
            trial.repair()
            if mode == "raise":
                trial.check_resumed(mode, *flags, equal=equal, launcher=launcher)
        said(f"{name}: `{line}`; resumed{', equal bit for bit' if equal else ''}")


CHECKS = {"kinds": check_kinds, "server": check_server, "zero": check_zero, "nonfinite": check_nonfinite, "evaluation": check_evaluation,
          "no_spread": check_no_spread, "supervised": check_supervised, "ranks": check_ranks}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS)
