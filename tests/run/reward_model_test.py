#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reward model in whole runs: what it scores is what `tandem grade` says and transformers said, whatever the number of workers or
ranks, and a run that was stopped goes on bit for bit. What is no reward model is refused before any work."""
import json
import pathlib
import shutil
import signal
import tempfile

import run_folder as rf
from run_folder import said
from transformers_test import read_safetensors

MODEL = rf.ROOT / "tests/fixtures/qwen2_score1"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}="  # of the policy; the reward model has its own
STEPS = 6


def lines(objects):
    return "".join(json.dumps(o) + "\n" for o in objects)


def graded(program, rows, model=MODEL):
    out = program.done(["grade", "--rule", f"model(model={model})"], stdin=lines(rows))
    return [json.loads(line)["score"] for line in out.stdout.splitlines()]


def check_grade(program):
    rows = [json.loads(line) for line in (MODEL / "answers.jsonl").read_text().splitlines()]
    error = max(abs(got - row["score"]) for got, row in zip(graded(program, rows), rows, strict=True))
    assert error <= 1e-5, error
    lists = [{"prompt": row["messages"], "response": row["response"]} for row in rows if "messages" in row]
    assert graded(program, lists) == graded(program, [row for row in rows if "messages" in row]), "messages in place of a prompt's text"
    said(f"grade: {len(rows)} answers within {error:.1e} of transformers")


class Runs:
    def __init__(self, program, scratch):
        self.program, self.scratch = program, pathlib.Path(scratch)
        data = self.scratch / "questions.jsonl"
        data.write_text(lines({"question": f"{i % 7}+{i % 5}", "answer": str(i % 7 + i % 5)} for i in range(40)))
        template = self.scratch / "policy.jinja"
        template.write_text(TEMPLATE)
        common = {"reward__rule": "", "reward__pattern": "", "reward__model": str(MODEL), "run__steps": STEPS}
        self.text = rf.tiny_recipe(self.scratch / "text.yaml", **common, reward__rules="[number=1.0, model=0.25]", data__train=str(data),
                                   data__eval="")
        self.chat = rf.tiny_recipe(self.scratch / "chat.yaml", **common, data__train=str(data), data__eval="", data__as_chat=True,
                                   data__chat_template=str(template))

    def arguments(self, recipe, name, *more):
        return ["run", recipe, "--run-dir", self.scratch / name, *more]

    def done(self, recipe, name, *more):
        self.program.done(self.arguments(recipe, name, *more))
        return self.scratch / name

    def scored(self, folder):
        """prompt, answer, response, score of each sample"""
        return rf.samples(folder, "prompt, answer, response, score")


def check_sum(runs):
    folder = runs.done(runs.text, "text")
    rf.check_whole(folder, STEPS)
    samples = runs.scored(folder)
    models = graded(runs.program, [{"prompt": p, "response": r} for p, _, r, _ in samples])
    numbers = runs.program.done(["grade", "--rule", "number"], stdin=lines({"gold": a, "response": r} for _, a, r, _ in samples)).stdout
    error = max(abs(s[3] - json.loads(number)["score"] - 0.25 * model)
                for s, model, number in zip(samples, models, numbers.splitlines(), strict=True))
    assert error <= 1e-5, error
    last = rf.all_metrics(folder)[-1]
    weights = sum(4 * len(values) for values in read_safetensors(MODEL / "model.safetensors").values())
    assert weights <= last["memory/reward_model_bytes"] < 1.1 * weights, (last["memory/reward_model_bytes"], weights)
    mean = sum(models[-16:]) / 16  # of the last step
    assert abs(last["reward/model"] - mean) <= 1e-5, (last["reward/model"], mean)
    said(f"a run by number + model / 4: {len(samples)} samples within {error:.1e} of what grade says, "
         f"memory/reward_model_bytes {last['memory/reward_model_bytes']:.0f}")
    return folder


def check_chat(runs):
    folder = runs.done(runs.chat, "chat")
    samples = runs.scored(folder)
    assert all(p.endswith("=") and "<|im_start|>" not in p for p, *_ in samples), samples[0]
    asked = [{"messages": [{"role": "user", "content": p[:-1]}], "response": r} for p, _, r, _ in samples]
    error = max(abs(s[3] - model) for s, model in zip(samples, graded(runs.program, asked), strict=True))
    assert error <= 1e-5, error
    as_text = graded(runs.program, [{"prompt": p, "response": r} for p, _, r, _ in samples])
    assert max(abs(s[3] - text) for s, text in zip(samples, as_text)) > 1e-3, "its own template says something else"
    said(f"prompts of messages: scored by the reward model's own template, within {error:.1e}")


def check_same_history(runs, whole):
    rf.check_equal(runs.done(runs.text, "workers", "--set", "reward.workers=3"), whole, "three workers")
    two = runs.done(runs.text, "ranks", "--ranks", 2)
    ours, theirs = runs.scored(two)[:16], runs.scored(whole)[:16]  # of the first step, before an update rounds otherwise
    assert ours == theirs, (ours, theirs)
    said("three workers: equal bit for bit; two ranks: the first step's scores, too")
    killed = runs.scratch / "killed"
    process = runs.program.start(runs.arguments(runs.text, "killed"))
    rf.wait_for(lambda: rf.committed_steps(killed), process)
    rf.end(process, signal.SIGKILL)
    committed = rf.committed_steps(killed)
    assert committed and committed[-1] < STEPS, committed
    runs.done(runs.text, "killed", "--resume")
    rf.check_equal(killed, whole, "killed and resumed")
    said(f"killed after step {committed[-1]} and resumed: equal bit for bit")


def check_eval(runs, policy):
    out = runs.program.done(["eval", "--model", policy, "--data", runs.scratch / "questions.jsonl", "--max-problems", 8,
                             "--max-new-tokens", 4, "--reward", f"model(model={MODEL})", "--right-at", "0"]).stdout
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows[-1]["num_problems"] == 8, rows[-1]
    wanted = graded(runs.program, [{"prompt": row["prompt"], "response": row["response"]} for row in rows[:-1]])
    error = max(abs(row["score"] - want) for row, want in zip(rows[:-1], wanted, strict=True))
    assert error <= 1e-5 and rows[-1]["accuracy"] == sum(w >= 0 for w in wanted) / 8, (error, rows[-1])
    said(f"eval: 8 answers within {error:.1e} of what grade says")


def check_refused(runs, policy):
    bare = runs.scratch / "bare"
    shutil.copytree(MODEL, bare)
    (bare / "tokenizer.json").unlink()
    for model, parts in ((runs.scratch / "nowhere", ["nowhere", "is no directory"]), (policy, ["config.json", "no score head"]),
                         (rf.ROOT / "tests/fixtures/llama_score3", ["has 3 labels"]), (bare, ["has no tokenizer"])):
        folder = runs.scratch / "refused"
        line = runs.program.refused(runs.arguments(runs.text, "refused", "--set", f"reward.model={model}"), 2, *parts)
        assert not rf.committed_steps(folder) and "loaded" not in line, line
        shutil.rmtree(folder, ignore_errors=True)
    for command in (["generate", "--model", MODEL], runs.arguments(runs.text, "refused", "--model", MODEL)):
        line = runs.program.refused(command, 2, "qwen2_score1/config.json", "a reward model", "reward.model")
        shutil.rmtree(runs.scratch / "refused", ignore_errors=True)
    said(f"no reward model, several labels, no tokenizer, no directory: refused at once; and `{line}`")


def main():
    program = rf.built_program()
    with tempfile.TemporaryDirectory(prefix="tandem_reward_model_") as scratch:
        check_grade(program)
        runs = Runs(program, scratch)
        whole = check_sum(runs)
        check_chat(runs)
        check_same_history(runs, whole)
        policy = whole / "checkpoint/latest/hf"
        check_eval(runs, policy)
        check_refused(runs, policy)


if __name__ == "__main__":
    main()
