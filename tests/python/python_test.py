#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`import tandem`: a run from Python is the program's; a loss of five lines is GRPO under every layout; functions that are wrong end a run
with one clear error and nothing lost. PYTHONPATH leads to the package: build/release/python."""
import functools
import inspect
import io
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import sys
import threading
import time

import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import run_folder as rf  # noqa: E402

import tandem  # noqa: E402

STEPS = 3
LAYOUTS = {"one": 1, "tp2": 2, "pp2": 2, "cp2": 2, "dp2": 2, "dp2,pp2": 4}


def layout_of(name):
    return {} if name == "one" else {"parallel.ranks": LAYOUTS[name], "parallel.train_layout": name}


def grpo(logprobs, old, advantages, mask, global_tokens):
    ratio = torch.exp(logprobs - old)
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -(gain * mask).sum() / global_tokens


def by_length(scores, lengths):
    return scores - lengths / 10


def recipe(scratch, **changed):
    return rf.tiny_recipe(scratch / "recipe.yaml", **{"run__steps": STEPS, "data__eval": "", **changed})


def weights(folder):
    """The float32 tensors of a checkpoint, by name."""
    data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {name: torch.frombuffer(bytearray(data[8 + size:][slice(*one["data_offsets"])]), dtype=torch.float32)
            for name, one in header.items() if name != "__metadata__"}


def difference(left, right):
    return max((left[name].double() - right[name].double()).abs().max().item() for name in left)


def check_same(program, scratch):
    """Without a function of the user's the run is that of `tandem run`, bit for bit."""
    path = recipe(scratch)
    program.done(["run", path, "--run-dir", scratch / "program"])
    ended = tandem.run(path, settings={"run.dir": str(scratch / "module")})
    assert ended.steps == STEPS and ended.after is None
    rf.check_equal(ended.dir, scratch / "program", "a run from Python")
    assert len(ended.metrics()) == STEPS and ended.metrics()["step"].tolist() == list(range(1, STEPS + 1))
    assert "--overwrite" in refused(tandem.UserError, lambda: tandem.run(path, settings={"run.dir": scratch / "module"}))
    of_step = ended.samples(step=2)
    assert set(of_step["step"]) == {2} and 3 * len(of_step) == len(tandem.load(ended.dir).samples())
    inline = {}
    for name, value in {**rf.TINY, "run.dir": scratch / "module", "run.steps": 1, "model.path": None,
                        "data.eval": {"one": "synthetic", "two": "synthetic"}, "eval.before": True}.items():
        section, option = name.split(".")
        inline.setdefault(section, {})[option] = True if value == "true" else value
    again = tandem.run(inline, overwrite=True)
    assert again.before and again.after and tandem.load(again.dir) == again, (tandem.load(again.dir), again)
    assert again.steps == 1 and set(again.before["sets"]) == {"one", "two"} and (scratch / "module/aside_1/config.yaml").exists()
    assert "run.seed was" in refused(tandem.UserError, lambda: tandem.run(inline, resume=True, settings={"run.seed": 99}))
    assert tandem.run(inline, resume=True, settings={"run.steps": 2, "data.eval": {"one": "synthetic", "two": "synthetic"}}).steps == 2
    rf.said("a run from Python is that of the program, bit for bit")


def check_loss(program, scratch):
    """On the same samples. With several updates a batch, the ratios of the later ones are not 1. Adam divides by a gradient's size, so
    where that is all rounding, weights differ by a share of the learning rate; it is small here."""
    source = tandem.run(recipe(scratch), settings={"run.dir": str(scratch / "sampled")}).dir
    start = weights(source / "init/hf")
    worst = 0
    for name in LAYOUTS:
        for updates in ({}, {"algo.epochs": 2, "algo.mini_batches": 2, "algo.correction": "none"}):
            runs = {}
            for kind, loss in (("built_in", None), ("python", grpo)):
                options = {"run.dir": str(scratch / f"{kind}_{name}_{len(updates)}"), "train.micro_batch_tokens": 64, **layout_of(name),
                           "train.lr": 1e-4, **updates}
                runs[kind] = tandem.run(recipe(scratch), settings=options, replay=source, loss=loss)
            frames = [ended.metrics() for ended in runs.values()]
            for metric in ("actor/loss", "actor/grad_norm", "actor/entropy", "actor/ratio_max"):
                left, right = (frame[metric][0] for frame in frames)  # later updates start from weights that differ by rounding
                assert updates or abs(left - right) <= 1e-6 * (1 + abs(left)), (name, metric, left, right)
            ends = [weights(ended.dir / "checkpoint/latest/hf") for ended in runs.values()]
            assert difference(*ends) < 1e-6 < difference(ends[0], start), (name, updates, difference(*ends))
            worst = max(worst, difference(*ends))
    rf.said(f"a loss of five lines is GRPO under {' '.join(LAYOUTS)}: weights differ by {worst:.1e}")


def check_entropy(program, scratch):
    """The entropies are leaves, too."""
    def with_bonus(logprobs, entropy, advantages, mask, global_tokens):
        return -((torch.exp(logprobs - logprobs.detach()) * advantages + 0.1 * entropy) * mask).sum() / global_tokens

    for name in ("one", "tp2", "pp2"):
        ends = []
        for kind, options, loss in (("built_in", {"algo.entropy_coef": 0.1}, None), ("python", {}, with_bonus)):
            settings = {"run.dir": str(scratch / f"entropy_{kind}_{name}"), "run.seed": 3, **layout_of(name), **options}
            ends.append(weights(tandem.run(recipe(scratch, run__steps=1), settings=settings, loss=loss).dir / "checkpoint/latest/hf"))
        assert difference(*ends) < 1e-6, difference(*ends)
    rf.said("a bonus for entropy reaches the model")


def check_functions(program, scratch):
    """A reward and advantages of the user's. Advantages are those by rank within a group."""
    seen = []

    def digits(prompts, completions, answers):
        seen.append((prompts[0], len(completions)))
        return [sum(map(str.isdigit, text)) for text in completions]

    def by_rank(scores, groups):
        alike = groups[:, None] == groups
        above, below = scores[:, None] > scores, scores[:, None] < scores
        return ((above.double() - below.double()) * alike).sum(1) / 2

    for name in ("one", "dp2", "tp2"):
        seen.clear()
        ended = tandem.run(recipe(scratch), settings={"run.dir": str(scratch / f"functions_{name}"), **layout_of(name)}, reward=digits,
                           advantage=by_rank)
        rows = ended.samples()
        assert seen and (rows["score"] == [sum(map(str.isdigit, text)) for text in rows["response"]]).all()
        for _, group in rows.groupby(["step", "group_id"]):
            wanted = group["score"].rank() - (len(group) + 1) / 2  # of ties the mean
            assert (group["advantage"] == wanted).all(), group["advantage"].tolist()
    rf.said("a reward and advantages of the user's are what the run trains on")


def check_reward_thread(program, scratch):
    """A reward of the user's is never called by two threads, whatever reward.workers and the ranks; its generators are left alone."""
    states = {"random": random.getstate, "numpy": lambda: str(numpy.random.get_state())}
    threads, inside, together, drawn, base = set(), [], [], [], []

    def entered():
        threads.add(threading.get_ident())
        inside.append(1)
        together.append(len(inside))
        if not base:
            base.append(sqlite3.connect(":memory:"))  # belongs to the thread that makes it
        base[0].execute("select 1").fetchone()
        time.sleep(0.01)
        drawn.append((random.random(), float(numpy.random.rand())))
        inside.pop()

    def groups(completions):
        entered()
        return [float(i % 2) for i in range(len(completions))]

    def single(solution_str, ground_truth):
        entered()
        return float(len(solution_str) % 2)

    async def waits(completions):
        entered()
        return [1.0] * len(completions)

    def broken(completions):
        entered()
        raise ValueError("as it should")

    for name, function, layout in (("groups", groups, "one"), ("again", groups, "one"), ("ranks", groups, "dp2"), ("single", single, "one"),
                                   ("async", waits, "one"), ("broken", broken, "one")):
        for each in (threads, inside, together, drawn, base):
            each.clear()
        random.seed(5)
        numpy.random.seed(6)
        before = {generator: state() for generator, state in states.items()}
        arguments = {"settings": {"run.dir": str(scratch / f"thread_{name}"), "reward.workers": 4, **layout_of(layout)}, "reward": function}
        if function is broken:
            error = refused(tandem.UserError, lambda: tandem.run(recipe(scratch), **arguments))
            assert "as it should" in error and "concurrent" not in error and error.count(__file__) == 1, error
        else:
            tandem.run(recipe(scratch), **arguments)
        assert len(threads) == 1 and threads != {threading.get_ident()} and max(together) == 1, (name, threads, together)
        assert {generator: state() for generator, state in states.items()} == before, name
        if name == "groups":
            first = sorted(drawn)
            assert len(set(first)) > 1, "each group has draws of its own"
        if name == "again":
            assert sorted(drawn) == first, "draws are seeded by the group"
    rf.said("a reward runs on one thread and leaves the generators of its caller alone")


def raises(logprobs):
    return logprobs.nonsense


def kept(logprobs, seen=[]):
    """Keeps tensors of the run beyond the call."""
    seen.append((logprobs.detach(), logprobs.detach().clone()))
    return logprobs.sum()


def late(wrong):
    """Wrong from its second call on: the first is the trial before a run."""
    calls = []

    @functools.wraps(wrong)
    def function(*arguments, **columns):
        calls.append(columns)
        return wrong(*arguments, **columns) if len(calls) > 1 else columns["logprobs"].sum()

    return function


SCALAR = "a scalar tensor that depends on logprobs or entropy"
WRONG = {
    "raises": (raises, "`raises` raised AttributeError", f"{__file__}:{raises.__code__.co_firstlineno + 1}", "it was given logprobs ["),
    "shape": (lambda logprobs: logprobs * 2, "returned a tensor of shape [", SCALAR, __file__),
    "float": (lambda logprobs: logprobs.sum().item(), "returned a float", SCALAR, __file__),
    "nan": (lambda logprobs: logprobs.sum() * float("nan"), "returned nan, at ", "a finite loss; ", "it was given logprobs [", " from -",
            __file__),
    "gradient": (lambda logprobs: (logprobs - logprobs.detach()).sqrt().sum(), "has the gradient", "by logprobs["),
    "detached": (lambda logprobs: logprobs.detach().sum(), "without a gradient", __file__),
    "other": (lambda logprobs: torch.ones(3, requires_grad=True).sum(), "does not depend", __file__),
    "too_long": (lambda logprobs, mask: (logprobs * torch.ones(len(mask) + 1)).sum(), "raised RuntimeError", "must match", "] bool"),
}


def check_wrong(program, scratch):
    """Each ends the run with one error that names the function; the steps before it are saved, and a right function goes on."""
    for name, (wrong, *words) in WRONG.items():
        for layout in ("one", "dp2", "tp2") if name in ("raises", "nan") else ("one",):
            folder = scratch / f"wrong_{name}_{layout}"
            settings = {"run.dir": str(folder), **layout_of(layout)}
            tandem.run(recipe(scratch, run__steps=1), settings=settings, loss=grpo)
            tried = "tried before the run" if name not in ("nan", "gradient") else "after step 1, which is saved"  # of the latter a warning
            for function, where in ((wrong, tried), (late(wrong), "after step 1, which is saved")):
                error = refused(tandem.UserError, lambda: tandem.run(recipe(scratch), settings=settings, loss=function, resume=True))
                assert all(word in error for word in words) and where in error and "\n" not in error, error
                assert error.count("loss: ") == 1 and ") (" not in error, f"one name, one remedy: {error}"
            fresh = {**settings, "run.dir": str(scratch / "never_made")}
            refused(tandem.UserError, lambda: tandem.run(recipe(scratch), settings=fresh, loss=wrong, overwrite=True))
            assert (scratch / "never_made").exists() == (tried != "tried before the run"), "tried before a folder is made"
            shutil.rmtree(scratch / "never_made", ignore_errors=True)
            assert tandem.run(recipe(scratch), settings=settings, loss=grpo, resume=True).steps == STEPS
            rf.check_whole(folder, STEPS)
    for name, arguments, words in (
            ("advantage", {"advantage": lambda scores: scores[1:]}, "a number for each response"),
            ("advantage_none", {"advantage": lambda scores: None}, f", at {__file__}:"),
            ("advantage_raises", {"advantage": lambda scores: scores.nonsense}, "it was given scores ["),
            ("advantage_nan", {"advantage": lambda scores: scores * float("nan")}, "returned nan for response 0"),
            ("reward", {"reward": lambda completions: 1 / 0}, "ZeroDivisionError"),
            ("reward_single", {"reward": lambda solution_str, ground_truth: 1 / 0}, "raised ZeroDivisionError"),
            ("reward_few", {"reward": lambda completions: [1.0]}, "1 scores for")):
        error = refused(tandem.UserError, lambda: tandem.run(recipe(scratch), settings={"run.dir": str(scratch / name)}, **arguments))
        assert words in error and "\n" not in error, error
        assert (scratch / name).exists() == (name.startswith("reward") or name == "advantage_nan"), f"{name}: tried before a folder"
    settings = {"run.dir": str(scratch / "positive"), "run.steps": 1}
    assert tandem.run(recipe(scratch), settings=settings, reward=lambda completions: [1 + i % 2 for i in range(len(completions))],
                      advantage=lambda scores: scores.log()).steps == 1, "scores that only the trial has are no reason to end"
    error = refused(tandem.UserError, lambda: tandem.run(recipe(scratch), settings={"run.dir": str(scratch / "gae"), "algo.name": "ppo"},
                                                         advantage=lambda scores: scores))
    assert "algo.advantage is gae" in error, error
    for arguments, words in (({"loss": lambda logprobs, rewards: logprobs.sum()}, "wants `rewards`, and there are logprobs"),
                             ({"advantage": lambda score: score}, "wants `score`, and there are scores")):
        error = refused(tandem.UserError, lambda: tandem.run(recipe(scratch), settings={"run.dir": str(scratch / "names")}, **arguments))
        assert words in error and not (scratch / "names").exists(), error
    with_workers = {"run.dir": str(scratch / "workers"), "workers.local": 1}
    error = refused(tandem.UserError, lambda: tandem.run(recipe(scratch), settings=with_workers,
                                                         reward=lambda completions: [1.0] * len(completions)))
    assert "workers score" in error and "reward.python" in error and not (scratch / "workers").exists(), error
    error = refused(tandem.UserError, lambda: tandem.run(recipe(scratch), settings={"train.rl": 1}))
    assert "train.lr" in error, error
    tandem.run(recipe(scratch), settings={"run.dir": str(scratch / "kept")}, loss=kept)
    seen = kept.__defaults__[0]
    assert len(seen) == 1 + STEPS and all(torch.equal(*pair) for pair in seen)
    rf.said(f"{len(WRONG)} wrong losses end a run with one error, and nothing is lost")


def check_names(program, scratch):
    """A run keeps what its functions are called, and a resume without them says so; a failing one shows its traceback once."""
    folder = scratch / "named"
    settings = {"run.dir": str(folder), **layout_of("dp2")}
    tandem.run(recipe(scratch, run__steps=1), settings=settings, loss=grpo)
    assert f"function loss `grpo` of {__file__}" in (folder / "inputs.txt").read_text()
    stderr = sys.stderr
    sys.stderr = caught = io.StringIO()
    try:
        refused(tandem.UserError, lambda: tandem.run(recipe(scratch), settings=settings, loss=late(raises), resume=True))
    finally:
        sys.stderr = stderr
    assert caught.getvalue().count("Traceback") == 1 and "logprobs.nonsense" in caught.getvalue(), caught.getvalue()
    tandem.run(recipe(scratch), settings=settings, resume=True)
    log = (folder / "log.txt").read_text()
    assert "the loss was the function `grpo` of" in log and "is now the function `raises`" in log, log
    assert "the loss was the function `raises` of" in log and "is now that of the recipe" in log, log
    rf.said("a resume tells which functions are others")


def check_loading(program, scratch):
    """A file that cannot be imported: the line that is to blame, also of what it imports, and the traceback."""
    for name, source, where, word in (("syntax", "def loss(logprobs)\n    return 0\n", "syntax.py:1", "SyntaxError"),
                                      ("module", "\nSCALE = 1 / 0\n", "module.py:2", "ZeroDivisionError"),
                                      ("absent", "import nummpy\n", "absent.py:1", "No module named 'nummpy'"),
                                      ("above", "import helper_below\n", "helper_below.py:2", "SyntaxError")):
        (scratch / f"{name}.py").write_text(source)
        (scratch / "helper_below.py").write_text("x = 1\ny = [\n")
        loss = f"algo.loss={scratch}/{name}.py:loss"
        command = ["run", recipe(scratch), "--run-dir", scratch / "unloaded", "--set", loss]
        out = program.refused(command, 2, f"{name}.py:loss cannot be loaded: ")
        assert where in out and word in out and not (scratch / "unloaded").exists(), out
    rf.said("a file that cannot be imported names its line")


def check_recipe(program, scratch):
    """A recipe names the functions; the program runs them as tandem.run does, bit for bit, on threads and on processes."""
    (scratch / "losses.py").write_text("import torch\n" + inspect.getsource(grpo) + inspect.getsource(by_length)
                                       + "def wrong(rewards):\n    return 0\n")
    named = {"algo.loss": f"{scratch}/losses.py:grpo", "algo.advantage": f"{scratch}/losses.py:by_length"}
    flags = rf.sets(named)
    path = recipe(scratch)
    for layout in ("one", "dp2"):
        folders = [scratch / f"recipe_{how}_{layout}" for how in ("given", "named", "program")]
        options = layout_of(layout)
        tandem.run(path, settings={"run.dir": str(folders[0]), **options}, loss=grpo, advantage=by_length)
        tandem.run(path, settings={"run.dir": str(folders[1]), **options, **named})
        more = rf.sets(options)
        program.done(["run", path, "--run-dir", folders[2], "--steps", 2, *flags, *more])
        program.done(["run", path, "--run-dir", folders[2], "--resume", *flags, *more])
        for folder in folders[1:]:
            rf.check_equal(folder, folders[0], f"functions of a recipe, {folder.name}")
        assert all(metrics["time/loss_s"] > 0 for metrics in rf.all_metrics(folders[2]))
    folder = scratch / "recipe_mpi"
    program.done(["run", path, "--run-dir", folder, "--train-layout", "dp2", *flags], launcher=rf.mpi(2))
    rf.check_equal(folder, scratch / "recipe_given_dp2", "functions of a recipe under mpirun")
    there = "the file's functions: `grpo`, `by_length`, `wrong`"
    for value, words in ((f"{scratch}/losses.py:nothing", f"there is no function `nothing`; {there}"),
                         (f"{scratch}/losses.py:wrong", "`wrong` cannot be called: the function wants `rewards`"),
                         (f"{scratch}/none.py:f", "No such file"), ("clipp", "one of clip")):
        program.refused(["run", path, "--run-dir", scratch / "refused", "--set", f"algo.loss={value}"], 2, "algo.loss", words)
    assert not (scratch / "refused").exists()
    rf.said("a recipe's own functions train as those of tandem.run")


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def check_interrupt(program, scratch):
    """Ctrl-C ends a run saved, and is Python's again afterwards."""
    folder = scratch / "interrupted"
    before = signal.getsignal(signal.SIGINT)

    def interrupt():
        rf.wait_until(lambda: (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size > 0, 60, "no step")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    refused(tandem.Interrupted, lambda: tandem.run(recipe(scratch), settings={"run.dir": str(folder), "run.steps": 100000}, loss=grpo))
    assert signal.getsignal(signal.SIGINT) is before
    assert " info " in (folder / "log.txt").read_text().splitlines()[-1], "the log's last word"
    done = len(tandem.load(folder).metrics())
    settings = {"run.dir": str(folder), "run.steps": done + 2}
    assert done > 0 and tandem.run(recipe(scratch), settings=settings, loss=grpo, resume=True).steps == done + 2
    refused(KeyboardInterrupt, lambda: (os.kill(os.getpid(), signal.SIGINT), threading.Event().wait(10)))
    rf.said("an interrupted run goes on")


CHECKS = {"same": check_same, "loss": check_loss, "entropy": check_entropy, "functions": check_functions,
    "reward_thread": check_reward_thread, "names": check_names,
          "recipe": check_recipe, "loading": check_loading,
          "wrong": check_wrong, "interrupt": check_interrupt}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS, lambda program, scratch: (program, pathlib.Path(scratch)))
