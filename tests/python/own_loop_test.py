#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verbs for a loop of one's own: sample, logprobs, forward_backward, step, save and load, against a run and under every layout.
PYTHONPATH leads to the package: build/release/python."""
import ast
import copy
import dataclasses
import inspect
import json
import os
import pathlib
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import types

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import run_folder as rf  # noqa: E402
from python_test import LAYOUTS, STEPS, difference, grpo, layout_of, recipe, refused, weights  # noqa: E402

import tandem  # noqa: E402

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "python/examples/own_loop.py"


def tensor(blob, dtype):
    return torch.frombuffer(bytearray(blob), dtype=dtype)


def rows_of(run, step):
    """The samples of a step as it trained on them, drawn by the weights that it began with."""
    rows = run.samples(step=step).sort_values(["group_id", "sample_index"])
    return [types.SimpleNamespace(prompt_ids=tensor(row.prompt_ids, torch.int32), ids=tensor(row.response_ids, torch.int32),
                                  logprobs=tensor(row.logprobs, torch.float32), advantage=row.advantage, version=step - 1)
            for row in rows.itertuples()]


def sampled(scratch, **settings):
    """A run, and where it began. Its loss is the mean over tokens, as that of `grpo` here."""
    folder = tempfile.mkdtemp(prefix="sampled_", dir=scratch)
    run = tandem.run(recipe(scratch, algo__kl_coef=0), settings={
        "run.dir": f"{folder}/run", "algo.aggregation": "token-mean", "train.lr": 1e-4, **settings})
    return run, run.dir / "init/hf"


def settings_of(layout="one", **more):
    return {"run.parity": True, "parallel.threads": 1, "train.lr": 1e-4, "algo.aggregation": "token-mean", "rollout.max_new_tokens": 6,
            **layout_of(layout), **more}


def check_training(program, scratch):
    """The updates of a run, from its samples: bit for bit on one rank by the built-in loss; close under each layout, and by a loss in
    Python, and where a batch comes in two parts."""
    run, start = sampled(scratch)
    ends = weights(run.dir / "checkpoint/latest/hf")
    worst = 0
    for layout in LAYOUTS:
        for kind in ("built_in", "python", "parts"):
            folder = scratch / f"{kind}_{layout}"
            with tandem.Policy(start, dir=folder, settings=settings_of(layout)) as policy:
                trainer = tandem.Trainer(policy)
                for step in range(1, STEPS + 1):
                    rows = rows_of(run, step)
                    tokens = sum(len(row.ids) for row in rows)
                    parts = [rows[:5], rows[5:]] if kind == "parts" else [rows]
                    shares = [sum(len(row.ids) for row in part) / tokens for part in parts]
                    for part, share in zip(parts, shares):
                        for row in part:
                            row.advantage *= share
                        report = trainer.forward_backward(part, None if kind == "built_in" else grpo)
                    assert report["tokens"] == sum(len(row.ids) for row in parts[-1])
                    update = trainer.step(1e-4)
                    wanted = run.metrics()["actor/grad_norm"][step - 1]
                    assert abs(update["grad_norm"] - wanted) < 2e-5 * wanted and not update["skipped"], (layout, kind, update, wanted)
                    assert update["tokens"] == tokens
                assert trainer.steps == STEPS
                trainer.save()
            apart = difference(weights(folder / "checkpoint/latest/hf"), ends)
            assert apart == 0 if (layout, kind) == ("one", "built_in") else apart < 1e-6, (layout, kind, apart)
            worst = max(worst, apart)
    assert difference(ends, weights(start)) > 1e-4
    rf.said(f"three updates by the verbs are those of a run, at most {worst:.1e} apart under {' '.join(LAYOUTS)}")


def drawn(policy):
    samples = policy.sample(["12+34=", "5+6=", "7+8="], n=4)
    for i, sample in enumerate(samples):
        sample.advantage = i % 4 - 1.5
    return samples


def with_old(samples, of):
    return [dataclasses.replace(sample, old=of(sample)) for sample in samples]


def check_versions(program, scratch):
    """Samples that the weights have left since are compared with their sampler; those of the weights as they are, with these."""
    _, start = sampled(scratch)
    for layout in LAYOUTS:
        for loss in (None, grpo):
            ends = []
            for kind in ("as_drawn", "by_hand", "as_if_fresh"):
                folder = scratch / f"versions_{layout}_{kind}_{loss is grpo}"
                with tandem.Policy(start, dir=folder, settings=settings_of(layout)) as policy:
                    trainer = tandem.Trainer(policy)
                    first = drawn(policy)
                    assert {sample.version for sample in first} == {0}
                    for sample in first[:2]:  # of one's own making: a rounding apart
                        sample.version = None if loss is grpo else sample.version
                    moved = [trainer.forward_backward(first, loss), trainer.step(1e-2)]
                    assert all(abs(report["ratio_max"] - 1) < 1e-5 for report in moved), moved
                    later = drawn(policy)
                    assert {sample.version for sample in later} == {1}
                    first = {"as_drawn": lambda: first, "by_hand": lambda: with_old(first, lambda sample: sample.logprobs),
                             "as_if_fresh": lambda: [dataclasses.replace(sample, version=1) for sample in first]}[kind]()
                    moved = trainer.forward_backward(first + later, loss)
                    trainer.step(1e-2)
                    assert (moved["ratio_max"] > 1.1) == (kind != "as_if_fresh"), (layout, kind, moved)
                    trainer.save()
                    ends.append(weights(folder / "checkpoint/latest/hf"))
                shutil.rmtree(folder)
            assert difference(ends[0], ends[1]) == 0 and difference(ends[0], ends[2]) > 1e-4, (layout, loss)
    rf.said(f"an update on older samples is the one that is told their sampler, bit for bit, under {' '.join(LAYOUTS)}")


def check_policies(program, scratch):
    """A sample keeps its version and its policy. One of another policy, or of before a load, is compared with its sampler."""
    _, start = sampled(scratch)
    folder = scratch / "policies"

    def ratio(trainer, samples):
        return trainer.forward_backward(samples)["ratio_max"]

    with tandem.Policy(start, dir=folder, settings=settings_of()) as policy, tandem.Policy(start, settings=settings_of()) as other:
        trainer, others = tandem.Trainer(policy), tandem.Trainer(other)
        for each, rate in ((trainer, 1e-2), (others, 0.0)):
            each.forward_backward(drawn(each.policy))
            each.step(rate)
        trainer.save()
        here, there = drawn(policy), drawn(other)
        for alike in (copy.copy, copy.deepcopy, lambda sample: pickle.loads(pickle.dumps(sample))):
            assert [(s.version, s.policy) for s in map(alike, here)] == [(1, here[0].policy)] * len(here)
        assert ratio(trainer, here) == 1.0 and ratio(trainer, there) > 1.1 and here[0].policy != there[0].policy
        trainer.step(1e-2)
        later = drawn(policy)
        assert later[0].version == 2 and ratio(trainer, later) == 1.0 < ratio(trainer, here)
        assert trainer.load() == 1 and ratio(trainer, drawn(policy)) == 1.0
        trainer.step(0.0)  # other weights with the number 2
        assert ratio(trainer, later) > 1.1 and ratio(trainer, [dataclasses.replace(s, policy=None) for s in later]) == 1.0
    with tandem.Policy(start, dir=folder, settings=settings_of()) as policy:
        trainer = tandem.Trainer(policy)
        assert trainer.load() == 1 and {sample.version for sample in drawn(policy)} == {1}
        assert abs(ratio(trainer, here) - 1) < 1e-5 and ratio(trainer, later) > 1.1
    rf.said("samples keep their version; those of another policy are compared with it")


def check_rewards(program, scratch):
    """Rewards that read log-probabilities read those of the policy before the update, whichever policy sampled."""
    _, teacher = sampled(scratch, **{"run.seed": 5})
    stale = {"schedule.kind": "stale", "schedule.staleness": 1}
    for name, settings in (("dtype", {"rollout.dtype": "bfloat16"}), ("stale", stale), ("clip", {**stale, "algo.correction": "none"})):
        run = tandem.run(recipe(scratch, algo__kl_coef=0), settings={
            "run.dir": f"{scratch}/rewards_{name}", "run.parity": False, "algo.name": "distillation", "model.ref_model_load_path": teacher,
            "train.lr": 1e-2, **settings})
        gap = 0
        for step in range(1, STEPS + 1):
            rows = rows_of(run, step)
            frame = run.samples(step=step).sort_values(["group_id", "sample_index"])
            trained = [tensor(blob, torch.float32) for blob in frame["train_logprobs"]]
            with tandem.Policy(teacher, settings=settings_of()) as policy:
                taught = policy.logprobs(rows)
            for row, before, wanted in zip(rows, trained, taught):
                assert abs(row.advantage - (wanted - before).mean()) < 1e-4, (name, step, row.advantage, (wanted - before).mean())
                gap = max(gap, (row.logprobs - before).mean().abs().item())
        assert gap > 5e-4, (name, gap)
    rf.said("a teacher's reward is less the policy's before the update, whichever sampled")


def check_sampling(program, scratch):
    """Log-probabilities as sampled are those of training, under every layout; the same seed draws the same."""
    _, start = sampled(scratch)
    prompts = ["12+34=", "1+1=", [3, 4, 5]]
    first = None
    for layout in LAYOUTS:
        with tandem.Policy(start, settings=settings_of(layout)) as policy:
            samples = policy.sample(prompts, n=3)
            assert [s.group for s in samples] == [0] * 3 + [1] * 3 + [2] * 3 and samples[0].prompt == "12+34="
            assert all(s.finish in ("stop", "length") and 1 <= len(s.ids) <= 6 and s.logprobs.dtype == torch.float32 for s in samples)
            for sample, scored in zip(samples, policy.logprobs(samples)):
                assert torch.allclose(sample.logprobs, scored, atol=1e-5), (layout, sample.logprobs, scored)
            again = policy.sample(prompts, n=3)
            alone = policy.sample(prompts[:1] * 9, n=1)
            assert not all(torch.equal(a.ids, b.ids) for a, b in zip(samples[:3], alone[:3]))
            assert any(not torch.equal(a.ids, b.ids) for a, b in zip(samples, again)), "a second call draws the same"
            greedy = policy.sample(prompts[:1], n=2, temperature=0, max_new_tokens=4)
            assert torch.equal(greedy[0].ids, greedy[1].ids) and len(greedy[0].ids) <= 4
            text = policy.sample(prompts[:1], n=1, temperature=0, stop=[greedy[0].text[0]])[0].text if greedy[0].text else ""
            assert text == "", text
            assert torch.equal(policy.encode("12+34="), samples[0].prompt_ids)
        first = first or samples
        assert all(torch.equal(a.ids, b.ids) for a, b in zip(first, samples)), layout
    rf.said("samples bring the log-probabilities of training, the same under every layout")


def check_resume(program, scratch):
    """Three updates in one go are two, a new process's load, and the third: bit for bit, and within rounding under another layout."""
    _, start = sampled(scratch)
    torch.manual_seed(0)

    def trained(folder, steps, layout="one", lora=False):
        settings = settings_of(layout, **({"model.lora_rank": 4} if lora else {}))
        with tandem.Policy(start, dir=folder, settings=settings) as policy:
            trainer = tandem.Trainer(policy)
            for step in range(trainer.load(), steps):
                samples = policy.sample(["12+34=", "5+6="], n=4)
                for i, sample in enumerate(samples):
                    sample.advantage = i % 4 - 1.5
                trainer.forward_backward(samples)
                assert trainer.step()["lr"] == 1e-4 and trainer.steps == step + 1
            trainer.save()
        return weights(folder / "checkpoint/latest/hf")

    for lora in (False, True):
        whole = trained(scratch / f"whole_{lora}", 3, lora=lora)
        trained(scratch / f"parts_{lora}", 2, lora=lora)
        assert difference(trained(scratch / f"parts_{lora}", 3, lora=lora), whole) == 0, lora
        trained(scratch / f"layouts_{lora}", 2, lora=lora)
        assert difference(trained(scratch / f"layouts_{lora}", 3, "dp2", lora), whole) < 1e-6, lora
    with tandem.Policy(start, dir=scratch / "whole_True", settings=settings_of()) as policy:  # of adapters
        error = refused(tandem.UserError, tandem.Trainer(policy).load)
        assert "gone" in refused(tandem.PeerError, lambda: policy.sample(["1+1="])), error
    with tandem.Policy(start, dir=scratch / "nothing", settings=settings_of()) as policy:
        trainer = tandem.Trainer(policy)
        samples = policy.sample(["12+34="], n=2)
        for sample in samples:
            sample.advantage = 1.0
        trainer.forward_backward(samples)
        assert trainer.load() == 0 and trainer.step()["tokens"] == sum(len(sample.ids) for sample in samples)
    with tandem.Policy(scratch / "whole_False/checkpoint/latest/hf") as policy:
        assert len(policy.sample(["1+1="])) == 1
    rf.said("a loop goes on from its checkpoint as if it had not ended")


def check_save(program, scratch):
    """What is in the folder stays, and a disk that is full costs nothing but the save."""
    _, start = sampled(scratch)
    folder = scratch / "saves"

    def trainer_at(**more):
        trainer = tandem.Trainer(tandem.Policy(start, dir=folder, settings=settings_of(**more)))
        samples = trainer.policy.sample(["12+34=", "5+6="], n=2)
        for i, sample in enumerate(samples):
            sample.advantage = i % 2 - 0.5
        trainer.forward_backward(samples)
        return trainer

    for layout in ("one", "dp2"):
        trainer = trainer_at(layout=layout)
        trainer.load()
        trainer.forward_backward([dataclasses.replace(s, advantage=0.5) for s in trainer.policy.sample(["1+1="], n=2)])
        trainer.step()
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, usual[1]))
        try:
            error = refused(tandem.UserError, trainer.save)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        assert "save: " in error and "the policy is as it was" in error, error
        now = weights_of(trainer, folder)
        other = trainer_at()
        assert "another run or loop" in refused(tandem.UserError, other.load)
        other.step()
        error = refused(tandem.UserError, other.save)
        assert f"holds step {trainer.steps}" in error and "load()" in error, error
        trainer.policy.close(), other.policy.close()
        assert difference(weights(folder / "checkpoint/latest/hf"), now) == 0
    rf.said("a save that fails leaves the policy, and one that would remove another loop's steps is refused")


def weights_of(trainer, folder):
    trainer.save()
    return weights(folder / "checkpoint/latest/hf")


def check_wrong(program, scratch):
    """Each has one clear error, and the policy goes on."""
    _, start = sampled(scratch)
    for layout in ("one", "dp2", "tp2"):
        with tandem.Policy(start, settings=settings_of(layout)) as policy:
            trainer = tandem.Trainer(policy)
            samples = policy.sample(["12+34=", "1+2="], n=2)
            for sample in samples:
                sample.advantage = 1.0
            one = samples[0]

            def but(**changed):
                return [dataclasses.replace(one, **changed), *samples[1:]]

            for rows, words in (([], "at least one"), (but(advantage=None), "sample 0: has no advantage"),
                                (but(advantage=torch.zeros(99)), "shape [99]"), (but(advantage=float("nan")), "value nan"),
                                (but(logprobs=one.logprobs[:0]), "sample 0, logprobs"), (but(mask=torch.ones(len(one.ids))), "torch.bool"),
                                (but(ids=torch.tensor([0.5])), "torch.float32"),
                                (but(ids=torch.full_like(one.ids, 99999)), "token id 99999"),
                                (but(prompt_ids=[]), "prompt_ids: has no token"), (but(reference=one.logprobs), "unlike that of row 0"),
                                (but(version=1), "its version is 1 (0 to 0"), (but(version="x"), "sample 0, version: is a str"),
                                (but(old="x"), "is a str")):
                error = refused(tandem.UserError, lambda rows=rows: trainer.forward_backward(rows))
                assert words in error and "\n" not in error, error
            for wrong, words in ((lambda logprobs: logprobs, "(a scalar tensor"), (lambda logprobs: logprobs.sum() / 0, "returned"),
                                 (lambda logprobs: 1 / 0, "ZeroDivisionError"), (lambda advantage: 0, "wants `advantage`")):
                error = refused(tandem.UserError, lambda wrong=wrong: trainer.forward_backward(samples, wrong))
                assert words in error and "\n" not in error, error
            assert "no gradient" in refused(tandem.UserError, trainer.step)
            assert "dir" in refused(tandem.UserError, trainer.save)
            for arguments, words in (({"n": 0}, "at least 1"), ({"temperature": -1}, "rollout.temperature"),
                                     ({"top_p": 2}, "rollout.top_p"),
                                     ({"max_new_tokens": 10**6}, "together at most")):
                error = refused(tandem.UserError, lambda arguments=arguments: policy.sample(["1+1="], **arguments))
                assert words in error, error
            for arguments, words in ((("1+1=",), "prompts: is one text"), ((["1+1="], 1, "="), "positional")):
                error = refused((tandem.UserError, TypeError), lambda arguments=arguments: policy.sample(*arguments))
                assert words in error, error
            assert "stop: is one text" in refused(tandem.UserError, lambda: policy.sample(["1+1="], stop="="))
            within = refused(tandem.UserError, lambda: trainer.forward_backward(samples, lambda logprobs: policy.logprobs(samples)))
            assert "is in another call" in within, within
            child = os.fork()
            if child == 0:
                os._exit("another process" not in refused(tandem.UserError, lambda: policy.sample(["1+1="])))
            assert os.waitpid(child, 0)[1] == 0
            assert "no chat template" in refused(tandem.UserError, lambda: policy.sample([[{"role": "user", "content": "1"}]]))
            assert "token id 99999" in refused(tandem.UserError, lambda: policy.sample([[99999]]))
            trainer.forward_backward(samples)
            assert refused(tandem.UserError, lambda: trainer.step(lr=float("nan")))
            assert trainer.step()["grad_norm"] > 0 and trainer.steps == 1
            lengths = ["1+1="] * 63 + [[3, 4, 5] * 60]  # replicas end at other times
            for call in (lambda: policy.sample(lengths, n=64, max_new_tokens=60), lambda: trainer.forward_backward(samples * 8, grpo)):
                threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                refused(KeyboardInterrupt, lambda call=call: [call() for _ in range(10000)])
                assert len(policy.sample(["1+1="], n=2)) == 2
        assert "is closed" in refused(tandem.UserError, lambda: policy.sample(["1+1="]))
    for settings, words in (({"data.train": "x"}, "data.train"), ({"algo.name": "ppo"}, "critic"), ({"train.rl": 1}, "train.lr"),
                            ({"algo.epochs": 2}, "algo.epochs"), ({"algo.advantage": "rloo"}, "algo.advantage"),
                            ({"parallel.placement": "split", "parallel.ranks": 2}, "parallel.placement"), ({"run.steps": 5}, "run.steps")):
        error = refused(tandem.UserError, lambda settings=settings: tandem.Policy(start, settings=settings))
        assert words in error, error
    assert "nowhere" in refused(tandem.UserError, lambda: tandem.Policy("nowhere"))
    for settings in ({}, {"train.lr_steps": 2, "train.min_lr_ratio": 0.0}):
        with tandem.Policy(start, settings=settings_of(**{"train.lr_schedule": "linear"}, **settings)) as policy:
            trainer = tandem.Trainer(policy)
            trainer.forward_backward(drawn(policy))
            if not settings:
                assert "train.lr_steps" in refused(tandem.UserError, trainer.step)
            assert trainer.step(None if settings else 5e-5)["lr"] == 5e-5
    with tandem.Policy(start, settings=settings_of(**{"algo.correction": "token", "algo.correction_normalize": True})) as policy:
        trainer, samples = tandem.Trainer(policy), drawn(policy)
        assert "old log-probabilities" in refused(tandem.UserError, lambda: trainer.forward_backward(samples))
        assert trainer.forward_backward(with_old(samples, lambda sample: sample.logprobs))["tokens"] > 0
    rf.said("wrong rows, losses and settings have one error each, and the policy goes on")


def check_example(program, scratch):
    """The loop of the documentation runs, ends saved and goes on."""
    _, start = sampled(scratch, **{"run.steps": 1})
    for steps in (2, 3):
        command = [sys.executable, EXAMPLE, start, scratch / "example", str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("step 3:") and tandem.Policy(scratch / "example/checkpoint/latest/hf").sample(["1+1="])
    rf.said("the example runs and goes on")


def check_notebook(program, scratch):
    """Its cells run in their order, in one namespace."""
    cells = json.loads((EXAMPLE.parent / "first_day.ipynb").read_text())["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["trainer"].policy.dir and tandem.load(names["run"].dir).steps == 5
    shutil.rmtree(names["folder"])
    rf.said("the notebook runs")


def check_typed(program, scratch):
    """What is public says its types and has a docstring."""
    for name in tandem.__all__:
        public = getattr(tandem, name)
        if isinstance(public, type) and issubclass(public, BaseException):
            continue
        methods = [getattr(public, each) for each in vars(public) if not each.startswith("_")] if isinstance(public, type) else [public]
        for one in (each for each in methods if inspect.isfunction(each)):
            assert one.__doc__ and "return" in inspect.get_annotations(one), one
            for parameter in list(inspect.signature(one).parameters.values())[isinstance(public, type):]:
                assert parameter.annotation is not parameter.empty, (one, parameter)
    stubs = ast.parse((pathlib.Path(tandem.__file__).parent / "_tandem.pyi").read_text())
    stubbed = {node.name: node for node in stubs.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    module = {name for name in dir(tandem._tandem) if not name.startswith("_")}
    assert set(stubbed) == module, set(stubbed) ^ module
    methods = {node.name for node in stubbed["Session"].body if isinstance(node, ast.FunctionDef)}
    assert methods - {"__init__"} == {name for name in dir(tandem._tandem.Session) if not name.startswith("_")}
    rf.said("all that is public has types and docstrings")


CHECKS = {"training": check_training, "versions": check_versions, "policies": check_policies, "rewards": check_rewards,
          "sampling": check_sampling, "resume": check_resume, "save": check_save, "wrong": check_wrong, "example": check_example,
          "notebook": check_notebook, "typed": check_typed}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS, lambda program, scratch: (program, pathlib.Path(scratch)))
