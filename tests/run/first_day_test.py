#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a new user does on the first day: begins anew in an old folder, forgets the model, starts from one, evaluates on several sets,
asks a model from the command line and talks with it."""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import time

import run_folder as rf
import small_model
from run_folder import said

LETTERS = " \nabcdefghijklmnopqrstuvwxyz0123456789+=:?"
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}{{ 'assistant: ' }}"


def files_of(folder):
    """Every file below, but the lock and the log, with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(pathlib.Path(folder).rglob("*"))
            if p.is_file() and p.name not in (".lock", "log.txt")}


def model_with_letters(folder, template=TEMPLATE, context=256):
    """Random weights that know letters, with a chat template; {} for none."""
    config = small_model.tiny_config(len(LETTERS) + 1, len(LETTERS))
    small_model.write_model(folder, {**config, "max_position_embeddings": context}, exponent=-3)
    small_model.write_whole_text_tokenizer(folder, LETTERS, [])
    if template:
        (pathlib.Path(folder) / "chat_template.jinja").write_text(template)
    return folder


def check_overwrite(program, scratch):
    """--overwrite begins anew and keeps what was there; it takes nothing else for a run."""
    recipe = rf.tiny_recipe(scratch / "overwrite.yaml", run__steps=2, data__eval="")
    for command, steps in (("run", ["--steps", "2"]), ("sft", ["--steps", "2", "--set", "supervised.batch_size=4"])):
        folder = scratch / f"overwrite_{command}"
        again = [command, recipe, "--run-dir", folder, *steps]
        program.done([*again, "--overwrite"])  # where there is none it begins as ever
        (folder / "notes.txt").write_text("mine")
        before = files_of(folder)
        program.refused(again, 2, "exists", "--resume", "--overwrite")
        program.refused([*again, "--resume", "--overwrite"], 2, "--overwrite", "--resume")
        program.refused([*again, "--overwrite", "--set", "reward.rule=numbr"], 2, "numbr")
        assert files_of(folder) == before, "a refused run leaves the earlier one as it was"
        with open(folder / ".lock", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for how in (["--overwrite"], ["--resume"], []):
                program.refused([*again, *how], 2, "another run or loop")
        assert files_of(folder) == before
        for step in (1, 2):
            program.done([*again, "--overwrite", "--seed", str(step)])
            assert rf.committed_steps(folder)[-1] == 2 and (folder / "notes.txt").read_text() == "mine"
            assert [m["step"] for m in rf.metrics(folder)] == [1, 2]
        first = files_of(folder / "aside_1")
        assert first == {name: data for name, data in before.items() if name != "notes.txt"}, sorted(first)
        assert "  seed: 1 " in (folder / "aside_2/config.yaml").read_text() and "  seed: 2 " in (folder / "config.yaml").read_text()
        program.done([*again, "--resume", "--seed", "2"])
    run = ["run", recipe, "--no-eval", "--overwrite"]
    for name, text in (("project", "a: 1\n"), ("stranger", None)):
        other = scratch / name
        other.mkdir()
        (other / "thesis.txt").write_text("all I have")
        if text:
            (other / "config.yaml").write_text(text)
        before = files_of(other)
        program.refused([*run, "--run-dir", other], 2, name, "is not the folder of a run", "--overwrite")
        assert files_of(other) == before
    folder = scratch / "overwrite_run"
    before = files_of(folder)
    program.refused([*run, "--run-dir", folder, "--model", folder / "checkpoint/latest/hf"], 2, "model.path", "--overwrite")
    program.refused([*run, "--run-dir", folder, "--replay", folder], 2, "--replay", "--overwrite")
    assert files_of(folder) == before
    out = subprocess.run([rf.ROOT / "scripts/mpi", "--restarts", "1", "-n", "2", program.tandem, *run, "--run-dir", folder],
                         capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert out.returncode == 2 and "--overwrite: starts the run again" in out.stderr, out.stderr
    program.done([*run, "--run-dir", folder, "--ranks", "2", "--threads", "2"])
    assert "  ranks: 2 " in (folder / "config.yaml").read_text() and "  ranks: 1\n" in (folder / "aside_3/config.yaml").read_text()
    said("--overwrite puts an earlier run aside, and nothing else")


def check_context_before_warm_start(program, scratch):
    """Responses that the model's context has no room for are refused before the supervised steps, not behind them."""
    folder = scratch / "context_run"
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--set", "rollout.max_new_tokens=100000"], 2,
                    "rollout.max_new_tokens", "context of 256", "at most 255")
    assert not (folder / "warm_start/metrics.jsonl").exists()
    said("a context without room for the responses is refused before the warm start")


def check_text_without_model(program, scratch):
    """A recipe about text is refused without a model, before a folder is made; one about sums is not."""
    texts = {"words": "What is 2 plus 3?", "chat": [{"role": "user", "content": "hello"}], "umlaut": "\u00e4+1="}
    run = ["run", "--run-dir", scratch / "no_model", "--no-eval", "--steps", "1"]
    for name, question in texts.items():
        data = scratch / f"{name}.jsonl"
        data.write_text(json.dumps({"question": question, "answer": "5"}) + "\n")
        for option in ("data.train", "data.eval"):
            recipe = rf.tiny_recipe(scratch / "text.yaml")
            program.refused([*run, recipe, "--set", f"{option}={data}"], 2, "model.path", "is empty", f"{name}.jsonl", "text", "--model")
    recipe = rf.tiny_recipe(scratch / "text.yaml", data__eval="")
    program.refused([*run, recipe, "--set", "reward.rules=[exact=1, think_format=0.2]"], 2, "model.path", "think_format", "--model")
    program.refused(["run", rf.ROOT / "configs/gsm8k_grpo.yaml", "--run-dir", scratch / "no_model"], 2, "model.path", "gsm8k", "--model")
    program.refused(["sft", recipe, "--run-dir", scratch / "no_model", "--set", f"data.train={scratch / 'words.jsonl'}"], 2, "model.path",
                    "--model")
    (scratch / "bare").mkdir()
    (scratch / "bare/config.json").write_text(json.dumps(small_model.tiny_config(16, 15)))
    program.refused([*run, recipe, "--model", scratch / "bare"], 2, "bare", "holds no weights", "model.safetensors")
    assert not (scratch / "no_model").exists()
    (scratch / "sums.jsonl").write_text('{"question": "2+3=", "answer": "5"}\n' * 4)
    once = [*run, recipe, "--set", f"data.train={scratch / 'sums.jsonl'}"]
    program.done(once)
    again = program.done([*once, "--resume"]).stderr
    assert "step 1 is the last that run.steps asks for; --steps N goes further" in again and "== training" not in again, again
    said("a recipe about text wants a model, and says so before any work")


def check_warm_start(program, scratch):
    """supervised.* with a model is a warm start from it; its own end is not warmed again."""
    plain = rf.tiny_recipe(scratch / "plain.yaml", run__steps=1, data__eval="")
    recipe = rf.tiny_recipe(scratch / "warm.yaml", run__steps=1, data__eval="", supervised__steps=3, supervised__batch_size=4,
                            supervised__lr=1e-2)
    program.done(["run", plain, "--run-dir", scratch / "made"])
    model = scratch / "made/init/hf"
    out = program.done(["run", recipe, "--run-dir", scratch / "warm", "--model", model])
    assert "warm start: at most 3 supervised steps" in out.stderr, out.stderr
    weights = (scratch / "warm/warm_start/hf/model.safetensors").read_bytes()
    assert weights != (model / "model.safetensors").read_bytes(), "the supervised steps trained"
    assert rf.committed_steps(scratch / "warm/warm_start")[-1] == 3
    resumed = program.done(["run", recipe, "--run-dir", scratch / "warm", "--model", model, "--resume", "--steps", "2"])
    assert "no warm start" not in resumed.stderr and rf.committed_steps(scratch / "warm")[-1] == 2
    again = program.done(["run", recipe, "--run-dir", scratch / "rl_alone", "--model", scratch / "warm/warm_start/hf"])
    assert not (scratch / "rl_alone/warm_start").exists() and "no warm start" in again.stderr, again.stderr
    assert rf.metrics(scratch / "rl_alone") == rf.metrics(scratch / "warm")[:1], "the same RL step from the same weights"
    program.done(["run", recipe, "--run-dir", scratch / "more", "--model", scratch / "warm/warm_start/hf", "--set", "supervised.steps=4"])
    assert rf.committed_steps(scratch / "more/warm_start")[-1] == 4
    program.done(["run", recipe, "--run-dir", scratch / "none", "--model", model, "--set", "supervised.steps=0"])
    assert not (scratch / "none/warm_start").exists()
    # A model that is good enough takes no step.
    program.done(["run", recipe, "--run-dir", scratch / "good", "--model", model, *rf.sets(
        {"supervised.stop_at_accuracy": 0.01, "supervised.accuracy_problems": 40, "supervised.accuracy_every_steps": 1,
         "eval.right_at": -1})])
    assert rf.committed_steps(scratch / "good/warm_start") == []
    assert (scratch / "good/warm_start/hf/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    said("supervised steps warm a given model, once")


def check_sft_accuracy(program, scratch):
    """sft answers data.eval before and after, prints the accuracy and keeps it; so do ranks, and so does a run that was stopped."""
    recipe = rf.tiny_recipe(scratch / "sft.yaml", supervised__steps=4, supervised__batch_size=8, supervised__lr=1e-2, eval__every_steps=2)
    out = program.done(["sft", recipe, "--run-dir", scratch / "sft"])
    summary = json.loads((scratch / "sft/summary.json").read_text())
    for when in ("eval_before", "eval_after"):
        assert summary[when]["num_problems"] == 20, summary
    before, after = (100 * summary[when]["accuracy"] for when in ("eval_before", "eval_after"))
    assert re.search(r"\naccuracy +%.1f %% +%.1f %% +\(20 problems of data.eval" % (before, after), out.stderr), out.stderr
    asked = json.loads(program.done(["eval", "--config", recipe, "--model", scratch / "sft/hf"]).stdout.splitlines()[-1])
    assert asked["accuracy"] == summary["eval_after"]["accuracy"]
    assert ["eval/accuracy" in m for m in rf.metrics(scratch / "sft")] == [True, True, False, True]  # that of before stands in the first
    assert sorted({row[0] for row in rf.evals(scratch / "sft")}) == [0, 2, 4]
    program.done(["sft", recipe, "--run-dir", scratch / "sft2", "--ranks", "2", "--train-layout", "dp2", "--threads", "2"])
    other = json.loads((scratch / "sft2/summary.json").read_text())
    assert other["eval_before"] == summary["eval_before"] and other["eval_after"]["num_problems"] == 20
    quiet = program.done(["sft", recipe, "--run-dir", scratch / "quiet", "--no-eval"])
    assert "accuracy" not in quiet.stderr and json.loads((scratch / "quiet/summary.json").read_text())["eval_after"] is None
    weights = [(scratch / run / "hf/model.safetensors").read_bytes() for run in ("sft", "quiet")]
    assert weights[0] == weights[1], "answering changes nothing of the training"
    said("sft says the accuracy of data.eval")


def check_sft_stopped(program, scratch):
    """Signals in the evaluations of sft, on one rank and on two that share each answer: the whole ends as if there had been none."""
    recipe = rf.tiny_recipe(scratch / "stops.yaml", supervised__steps=4, supervised__batch_size=8, eval__every_steps=2, eval__n=80,
                            eval__temperature=1.0, eval__max_new_tokens=60)
    for name, flags in (("one", []), ("tp2", ["--ranks", "2", "--train-layout", "tp2", "--threads", "2"])):
        whole, folder = scratch / f"{name}_whole", scratch / f"{name}_stopped"
        program.done(["sft", recipe, "--run-dir", whole, *flags])
        stops, log = 0, folder / "log.txt"
        for attempt in range(10):  # ever later, until one comes too late; an evaluation that was stopped begins again
            starts = log.read_text().count("products: ") if log.exists() else 0
            process = program.start(["sft", recipe, "--run-dir", folder, *flags, *(["--resume"] if starts else [])])
            rf.wait_for(lambda: log.exists() and log.read_text().count("products: ") > starts, process)  # noqa: B023
            time.sleep(0.1 * 1.6 ** attempt)
            code, err = rf.end(process, signal.SIGTERM)
            assert code in (0, 130), err[-2000:]
            stops += code == 130 and "evaluation" in err[err.find("stopped after"):]
            if code == 0:
                break
        program.done(["sft", recipe, "--run-dir", folder, *flags, "--resume"])
        assert stops >= 1, f"{name}: no stop hit an evaluation"
        assert rf.metrics(folder) == rf.metrics(whole) and rf.evals(folder) == rf.evals(whole), name
        assert rf.summary(folder) == rf.summary(whole), name
        assert (folder / "hf/model.safetensors").read_bytes() == (whole / "hf/model.safetensors").read_bytes()
        said(f"{name}: sft stopped {stops} times in an evaluation: equal bit for bit")


def check_eval_sets(program, scratch):
    """Named sets have metrics of their own; all together have those that a single set has."""
    for name, count in (("low", 3), ("high", 5)):
        rows = ({"question": f"{i}+{count}=", "answer": "1"} for i in range(count))
        (scratch / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = [f"low={scratch / 'low.jsonl'}", f"high={scratch / 'high.jsonl'}"]
    recipe = rf.tiny_recipe(scratch / "sets.yaml", run__steps=2, eval__every_steps=1)
    text = pathlib.Path(recipe).read_text().replace('eval: "synthetic"', "eval: {" + ", ".join(s.replace("=", ": ") for s in sets) + "}", 1)
    pathlib.Path(recipe).write_text(text)
    for ranks, name in ((1, "sets"), (2, "sets2")):
        program.done(["run", recipe, "--run-dir", scratch / name, "--ranks", ranks, "--threads", ranks])
        whole = json.loads((scratch / name / "summary.json").read_text())
        for when in ("eval_before", "eval_after"):
            one = whole[when]
            low, high = one["sets"]["low"], one["sets"]["high"]
            assert (one["num_problems"], low["num_problems"], high["num_problems"]) == (8, 3, 5), one
            assert abs(one["accuracy"] - (3 * low["accuracy"] + 5 * high["accuracy"]) / 8) < 1e-12, one
        last = rf.all_metrics(scratch / name)[-1]
        for part in ("accuracy", "score_mean", "pass_at_k"):
            assert {f"eval/{part}", f"eval/low/{part}", f"eval/high/{part}"} <= set(last), sorted(last)
        rows = rf.evals(scratch / name)
        assert sorted(r[1] for r in rows if r[0] == 2) == list(range(8)), "each problem has a row of its own"
        prompts = {row[1]: row[2] for row in rows}
        assert prompts[0] == "0+3=" and prompts[3] == "0+5=", prompts
        named = rf.rows(scratch / name, "SELECT eval_set, count(*), min(row) FROM evals WHERE step = 2 GROUP BY eval_set ORDER BY min(row)")
        assert named == [("low", 3, 0), ("high", 5, 3)], named
    single = rf.tiny_recipe(scratch / "single.yaml", run__steps=1, data__eval=str(scratch / "low.jsonl"))
    program.done(["run", single, "--run-dir", scratch / "single"])
    assert rf.rows(scratch / "single", "SELECT DISTINCT eval_set FROM evals") == [("",)], "a single set has no name"
    assert not [m for m in rf.all_metrics(scratch / "single")[-1] if m.startswith("eval/") and m.count("/") > 1]
    assert "sets" not in json.loads((scratch / "single/summary.json").read_text())["eval_after"]
    asked = program.done(["eval", "--model", scratch / "single/init/hf", "--reward", "number", "--max-new-tokens", "4",
                          *[word for s in sets for word in ("--data", s)]]).stdout.splitlines()
    last = json.loads(asked[-1])
    assert last["num_problems"] == 8 and last["sets"]["high"]["num_problems"] == 5, last
    assert [json.loads(line)["data_source"].rsplit("/", 1)[-1] for line in asked[:-1]].count("high.jsonl") == 5
    run = ["run", single, "--run-dir", scratch / "refused", "--set"]
    program.refused([*run, "data.eval=[a=x.jsonl, y.jsonl]"], 2, "data.eval", "y.jsonl", "no name")
    program.refused([*run, "data.eval=[a=x.jsonl, a=y.jsonl]"], 2, "data.eval", "two sets", "a")
    program.refused([*run, "data.eval=[a b=x.jsonl]"], 2, "data.eval", "a b", "no name")
    program.refused([*run, "data.eval=[a=x.jsonl]"], 2, "x.jsonl")
    assert not (scratch / "refused").exists()
    stopped = rf.tiny_recipe(scratch / "stopped.yaml", run__steps=2)
    pathlib.Path(stopped).write_text(pathlib.Path(recipe).read_text())
    folder = scratch / "resumed"
    program.done(["run", stopped, "--run-dir", folder, "--steps", "1"])
    program.done(["run", stopped, "--run-dir", folder, "--resume"])
    assert rf.summary(folder) == rf.summary(scratch / "sets"), "what was measured before is kept by set"
    said("several evaluation sets are told apart")


def check_prompt(program, scratch):
    """generate --prompt answers as a line of input does; standard input is left alone."""
    program.done(["run", rf.tiny_recipe(scratch / "prompt.yaml", run__steps=1, data__eval=""), "--run-dir", scratch / "prompt"])
    ask = ["generate", "--model", scratch / "prompt/init/hf", "--max-new-tokens", "4", "--temperature", "0"]
    texts = ["1+2=", "-3", "34+5="]
    given = program.done([*ask, *[word for t in texts for word in ("--prompt", t)]], stdin="no JSON at all").stdout
    lines = "".join(json.dumps({"prompt": t}) + "\n" for t in texts)
    assert given == program.done(ask, stdin=lines).stdout and len(given.splitlines()) == 3
    (scratch / "last.jsonl").write_text(json.dumps({"prompt": texts[2]}) + "\n")
    both = program.done([*ask, "--prompt", texts[0], "--input", scratch / "last.jsonl", "--prompt", texts[1]]).stdout
    assert both == given, "those of the line come first"
    program.refused([*ask, "--prompt", ""], 2, "--prompt", "empty")
    program.refused([*ask, "--prompt", "1", "--prompt", "1" * 300], 2, "--prompt 2", "300 tokens")
    said("generate --prompt answers a text of the command line")


def check_talk_by_pipe(program, scratch):
    """One line of answer for each line; what was said before counts; the answers are generate's for the same conversation."""
    model = model_with_letters(scratch / "letters")
    talk = ["talk", "--model", model, "--max-new-tokens", "12", "--temperature", "0"]
    lines = ["who are you?", "", "since when?", "who are you?"]
    out = program.done(talk, stdin="\n".join(lines)).stdout
    answers = out.split("\n")[:-1]
    assert len(answers) == 3 and out.endswith("\n"), out
    messages = []
    for line, answer in zip([line for line in lines if line], answers, strict=True):
        messages.append({"role": "user", "content": line})
        asked = program.done(["generate", *talk[1:]], stdin=json.dumps({"messages": messages}) + "\n").stdout
        text = json.loads(asked)["completions"][0]["text"]
        assert answer == text.replace("\n", "\\n"), (answer, text)
        messages.append({"role": "assistant", "content": text})
    assert answers[0] != answers[2], "the same question, later: what was said before counts"
    system = program.done([*talk, "--system", "be kind"], stdin=lines[0] + "\n").stdout
    asked = program.done(["generate", *talk[1:]], stdin=json.dumps(
        {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": lines[0]}]}) + "\n").stdout
    assert system == json.loads(asked)["completions"][0]["text"].replace("\n", "\\n") + "\n"
    whole = program.done(["talk", *talk[1:], "--max-new-tokens", "40"], stdin=lines[0]).stdout
    at = next(i for i in range(4, len(whole)) if "\\" not in whole[i - 1:i + 3])
    for stop in (whole[at:at + 3], whole[at]):
        cut = program.done([*talk, "--max-new-tokens", "40", "--stop", stop], stdin=lines[0]).stdout
        assert cut == whole[:whole.index(stop)] + "\n", (stop, cut, whole)
    drawn = [program.done(["talk", "--model", model, "--max-new-tokens", "12", "--seed", seed], stdin="a\nb").stdout for seed in "112"]
    assert drawn[0] == drawn[1] != drawn[2], drawn
    said("a talk through a pipe: one line each, with its history")


def check_talk_limits(program, scratch):
    """A full context forgets the oldest turns and says so; what cannot be a talk is refused."""
    short = model_with_letters(scratch / "short", context=96)
    out = program.done(["talk", "--model", short, "--max-new-tokens", "20", "--temperature", "0"], stdin="hello there\n" * 6)
    assert len(out.stdout.splitlines()) == 6 and "forgotten" in out.stderr, out.stderr
    program.refused(["talk", "--model", short], 2, "tokens", "context is 96", stdin="a" * 100 + "\n")
    program.refused(["talk", "--model", model_with_letters(scratch / "mute", template="")], 2, "chat template", stdin="a\n")
    program.refused(["talk", "--model", scratch / "absent"], 2, "absent")
    program.refused(["talk"], 2, "--model")
    said("a full context forgets; a model without a template is refused")


class Terminal:
    """The program under a terminal of its own."""

    def __init__(self, program, arguments):
        self.leader, follower = pty.openpty()
        self.process = subprocess.Popen([program.tandem, *map(str, arguments)], stdin=follower, stdout=follower, stderr=follower,
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, 0x540E, 0))  # TIOCSCTTY
        os.close(follower)
        self.text = ""

    def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition(self.text):
            assert time.monotonic() < deadline, f"waited too long: {self.text!r}"
            ready, _, _ = select.select([self.leader], [], [], 0.2)
            if ready:
                try:
                    self.text += os.read(self.leader, 4096).decode("utf-8", "replace")
                except OSError:  # its end
                    break

    def type(self, text):
        self.text = ""
        os.write(self.leader, text.encode())

    def close(self):
        try:
            code = self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
            os.close(self.leader)
        return code


def check_talk_in_terminal(program, scratch):
    """The answer streams; Ctrl-C ends it and not the talk; Ctrl-D ends the talk with exit code 0."""
    model = model_with_letters(scratch / "long", context=16384)
    terminal = Terminal(program, ["talk", "--model", model, "--max-new-tokens", "16000", "--ignore-eos", "--threads", "1"])
    try:
        terminal.until(lambda text: text.endswith("> "))
        terminal.type("tell me all\n")
        terminal.until(lambda text: len(text) > 60)  # it appears long before its end
        terminal.type("\x03")
        terminal.until(lambda text: text.endswith("\n> "))
        assert terminal.process.poll() is None, "the talk goes on"
        terminal.type("go on\n")
        terminal.until(lambda text: len(text) > 60)
        terminal.type("\x03")
        terminal.until(lambda text: text.endswith("\n> "))
        terminal.type("\x04")
    finally:
        code = terminal.close()
    assert code == 0, code
    said("in a terminal answers stream, Ctrl-C ends one, Ctrl-D the talk")


CHECKS = {"overwrite": check_overwrite, "context": check_context_before_warm_start, "text": check_text_without_model,
          "warm_start": check_warm_start, "sft": check_sft_accuracy, "stopped": check_sft_stopped, "sets": check_eval_sets,
          "prompt": check_prompt, "pipe": check_talk_by_pipe, "limits": check_talk_limits, "terminal": check_talk_in_terminal}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS, lambda program, scratch: (program, pathlib.Path(scratch)))
