#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that is killed at any moment and resumed ends with the history of one that was not: bit for bit under synchronous
training in parity mode; under staleness every sample trained once, none lost. --full kills more often."""
import argparse
import json
import pathlib
import platform
import random
import re
import shutil
import signal
import tempfile
import time

import run_folder as rf
import small_model
from run_folder import said

STEPS = rf.TINY["run.steps"]


class Histories:
    def __init__(self, program, scratch, rng, model):
        self.program, self.scratch, self.rng, self.model = program, pathlib.Path(scratch), rng, model
        self.seconds, self.num_kills = {}, {}

    def arguments(self, recipe, name, extra):
        more = ["--model", self.model] if self.model else []
        return ["run", recipe, "--run-dir", str(self.scratch / name), *more, *extra]

    def uninterrupted(self, recipe, name, extra=()):
        begin = time.monotonic()
        self.program.done(self.arguments(recipe, name, extra))
        self.seconds[name] = time.monotonic() - begin
        rf.check_whole(self.scratch / name, STEPS)
        return self.scratch / name

    def strike_time(self, name):
        """Waits for a random moment of the run: of its whole length, or of a checkpoint's write."""
        moment = self.rng.uniform(0.3, 1.0) * self.seconds[name]
        in_checkpoint, skipped, delay = self.rng.random() < 0.5, self.rng.randrange(3), self.rng.uniform(0, 0.02)
        folder = self.scratch / (name + "_killed") / "checkpoint"

        def wait(process):
            if in_checkpoint:
                left_over = {t.name for t in folder.glob("step_*.tmp")}  # of a kill before
                seen = set()

                def reached():
                    seen.update(t.name for t in folder.glob("step_*.tmp") if t.name not in left_over)
                    return len(seen) > skipped
                rf.wait_for(reached, process)
                time.sleep(delay)
            else:
                time.sleep(moment)
        return wait, f"{delay * 1e3:.1f} ms into checkpoint {skipped + 1}" if in_checkpoint else f"at {moment:.2f} s"

    def check_resumed(self, err, committed):
        """The log names the newest committed step: nothing up to it is done again."""
        told = re.search(r"resuming after step (\d+)", err)
        if told:
            assert int(told.group(1)) == (committed[-1] if committed else -1), (told.group(0), committed)
        elif "no checkpoint yet" in err:
            assert not committed, (committed, err[-2000:])

    def killed(self, recipe, name, num_kills, extra=(), number=signal.SIGKILL):
        """A history with that many kills, then resumed to its end. Returns (folder, what happened)."""
        folder, happened = self.scratch / (name + "_killed"), []
        shutil.rmtree(folder, ignore_errors=True)
        for attempt in range(num_kills + 1):
            resume = ["--resume"] if folder.exists() and any(folder.iterdir()) else []
            committed = rf.committed_steps(folder)
            process = self.program.start(self.arguments(recipe, folder.name, [*extra, *resume]))
            if attempt < num_kills:
                wait, told = self.strike_time(name)
                wait(process)
            else:
                told = "ran to the end"
            code, err = rf.end(process, number) if attempt < num_kills else (None, None)
            if code is None:
                _, err = process.communicate(timeout=120)
                code = process.returncode
            self.check_resumed(err, committed)
            after = rf.committed_steps(folder)
            happened.append(f"{told}: {committed[-1] if committed else '-'} -> {after[-1] if after else '-'}")
            if code == 0:
                break
            assert attempt < num_kills, f"exit code {code}\n{err[-3000:]}"
            self.num_kills[number] = self.num_kills.get(number, 0) + 1
            if number == signal.SIGKILL:
                assert code == -signal.SIGKILL, (code, err[-3000:])
            elif code != -number:  # a signal before the program has its handler ends it the plain way
                assert code == 130, (code, err[-3000:])
                assert "--resume continues" in err, err[-3000:]
                stopped = int(re.search(r"stopped after step (\d+)", err).group(1))
                assert after and after[-1] == stopped, (after, err[-500:])
        rf.check_whole(folder, STEPS)
        return folder, happened


def check_sync(h, kills_of_signal, extra, name):
    recipe = rf.tiny_recipe(h.scratch / f"{name}.yaml")
    whole = h.uninterrupted(recipe, name, extra)
    signal_gain = sum(abs(m["actor/grad_norm"]) > 0 for m in rf.metrics(whole))
    assert signal_gain > STEPS / 2, "the reward gives no signal, so equal runs would prove little"
    assert all(m["actor/kl_rollout_train"] == 0 for m in rf.metrics(whole)), "parity mode: rollout and training agree bit for bit"
    for number, kills in kills_of_signal.items():
        h.num_kills.clear()
        while h.num_kills.get(number, 0) < kills:
            folder, happened = h.killed(recipe, name, min(4, kills - h.num_kills.get(number, 0)), extra, number)
            rf.check_equal(folder, whole, name)
            said(f"{name}, {number.name}: {'; '.join(happened)}: equal bit for bit")


def mix_of(scratch):
    """Two data sets of different lengths, one drawn from twice as often: a run goes round both within its steps."""
    parts = []
    for name, count, weight in (("odd", 7, 2), ("even", 5, 1)):
        rows = [{"question": f"{i}+{i + 3}=", "answer": str(2 * i + 3)} for i in range(10 + count, 10 + 2 * count)]
        path = scratch / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        parts.append(f"{path}={weight}")
    return "[" + ", ".join(parts) + "]"


def check_conserved(folder, staleness, num_groups):
    """Every group that started is trained once, reported as dropped, or still outstanding; no lag above the staleness."""
    trained = [g for (g,) in rf.rows(folder, "SELECT DISTINCT group_id FROM samples")]
    dropped = [g for (g,) in rf.rows(folder, "SELECT group_id FROM dropped")]
    assert len(trained) == STEPS * num_groups and not set(trained) & set(dropped), (len(trained), dropped)
    partial = rf.rows(folder, "SELECT group_id FROM samples GROUP BY group_id HAVING count(*) != 4 OR count(DISTINCT step) != 1")
    assert not partial, partial
    (lag,), = rf.rows(folder, "SELECT max(trained_version - group_version) FROM samples")
    assert lag <= staleness, lag
    last = rf.metrics(folder)[-1]
    state = json.loads((folder / "checkpoint/latest/state.json").read_text())
    assert last["staleness/dropped"] == len(dropped), (last["staleness/dropped"], dropped)
    outstanding = set(range(state["next_group"])) - set(trained) - set(dropped)
    assert len(outstanding) == last["queue/outstanding"], (sorted(outstanding), last["queue/outstanding"])
    return lag, len(dropped), len(outstanding)


def check_stale(h, policy, kills):
    name = f"stale_{policy}"
    # Long answers of very different lengths: stragglers exist. Rounds so long that more than a batch may be finished when a
    # checkpoint is written, and a checkpoint each step: the groups that run again must be in the next one.
    recipe = rf.tiny_recipe(h.scratch / f"{name}.yaml", schedule__lag_policy=policy, rollout__max_new_tokens=100, rollout__max_running=24,
                            parallel__exchange_steps=20, schedule__kind="stale", schedule__staleness=2, checkpoint__every_steps=1)
    whole = h.uninterrupted(recipe, name)
    first = check_conserved(whole, 2, 4)
    for num in kills:
        folder, happened = h.killed(recipe, name, num)
        lag, dropped, outstanding = check_conserved(folder, 2, 4)
        said(f"{name}: {'; '.join(happened)}: every sample once, lag at most {lag} (uninterrupted {first[0]}), {dropped} groups dropped "
             f"({first[1]}), {outstanding} outstanding at the end")


def check_start_over(h, whole, recipe):
    """Killed before the first checkpoint: the same run from the start."""
    folder = h.scratch / "early"
    process = h.program.start(h.arguments(recipe, "early", ["--set", "checkpoint.every_steps=0"]))
    lines = folder / "metrics.jsonl"
    rf.wait_for(lambda: lines.exists() and lines.read_text().count("\n") >= 3, process)
    rf.end(process)
    assert not rf.committed_steps(folder), "meant to be killed before its first checkpoint"
    out = h.program.done(h.arguments(recipe, "early", ["--resume"]))
    assert "no checkpoint yet: starting over" in out.stderr, out.stderr
    rf.check_whole(folder, STEPS)
    rf.check_equal(folder, whole, "before the first checkpoint")
    said("killed before the first checkpoint: starts over, equal bit for bit")


def check_stopped_early(h, whole, recipe, number):
    """Stopped by a signal between the first evaluation and the first step: the evaluation is neither lost nor repeated."""
    name = f"stopped_{number.name}"
    folder = h.scratch / name
    log = folder / "log.txt"
    for _ in range(5):  # on a busy machine the run may have ended before the signal reaches it
        shutil.rmtree(folder, ignore_errors=True)
        process = h.program.start(h.arguments(recipe, name, []))
        rf.wait_for(lambda: log.exists() and "before: accuracy" in log.read_text(), process)
        code, err = rf.end(process, number)
        if code != 0:
            break
    assert code == 130, (code, err[-2000:])
    stopped = rf.committed_steps(folder)[-1]
    out = h.program.done(h.arguments(recipe, name, ["--resume"]))
    assert f"resuming after step {stopped}" in out.stderr and "before: accuracy" not in out.stderr, out.stderr
    rf.check_whole(folder, STEPS)
    rf.check_equal(folder, whole, "stopped after the first evaluation")
    said(f"stopped by {number.name} after the first evaluation, at step {stopped}: equal bit for bit")


def check_damaged(h, whole, recipe):
    """A flipped byte in the newest checkpoint: the one before it is taken, with a warning."""
    for victim in ("hf/model.safetensors", "queue.bin", "optimizer_rank0.safetensors"):
        folder = h.scratch / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder, symlinks=True)
        newest, before = rf.committed_steps(folder)[-1], rf.committed_steps(folder)[-2]
        path = folder / f"checkpoint/step_{newest}" / victim
        data = bytearray(path.read_bytes())
        data[h.rng.randrange(len(data))] ^= 0x10
        path.write_bytes(data)
        (folder / "summary.json").unlink()
        out = h.program.done(h.arguments(recipe, "damaged", ["--resume"]))
        assert f"step_{newest}: passed over, {victim} does not match its checksum" in out.stderr, out.stderr
        assert f"resuming after step {before}" in out.stderr, out.stderr
        rf.check_whole(folder, STEPS)
        rf.check_equal(folder, whole, "damaged checkpoint")
    said("a flipped byte in weights, queue or optimizer: warned, went back to the checkpoint before, equal bit for bit")


def check_all_damaged(h, whole, recipe):
    """No checkpoint is whole: nothing starts over, nothing is deleted."""
    folder = h.scratch / "all_damaged"
    shutil.copytree(whole, folder, symlinks=True)
    for step in rf.committed_steps(folder):
        (folder / f"checkpoint/step_{step}/state.json").write_text("{}")
    before = sorted(str(p) for p in folder.rglob("*"))
    h.program.refused(h.arguments(recipe, "all_damaged", ["--resume"]), 2, "no checkpoint is whole", "state.json", "restored")
    assert sorted(str(p) for p in folder.rglob("*") if p.name != ".lock") == [p for p in before if not p.endswith(".lock")]
    assert rf.metrics(folder) == rf.metrics(whole)
    said("all checkpoints damaged: refused, and the history is left alone")


def check_other_recipe(h, whole, recipe):
    """What would change the prompts or samples is refused, the rest is told; another process keeps the folder."""
    folder = h.scratch / "other"
    shutil.copytree(whole, folder, symlinks=True)
    recipe_before = (folder / "config.yaml").read_text()
    for setting in ("run.seed=9", "data.digits=3", "schedule.group_size=8"):
        name, value = setting.split("=")
        h.program.refused(h.arguments(recipe, "other", ["--resume", "--set", setting]), 2, name, "is now " + value)
        assert (folder / "config.yaml").read_text() == recipe_before, setting
    out = h.program.done(h.arguments(recipe, "other", ["--resume", "--steps", str(STEPS + 2), "--set", "train.lr=0.002"]))
    assert "train.lr was 0.001 and is now 0.002" in out.stderr, out.stderr
    assert len(rf.metrics(folder)) == STEPS + 2
    assert "lr: 0.002" in (folder / "config.yaml").read_text()
    foreign = h.scratch / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    h.program.refused(h.arguments(recipe, "foreign", ["--resume"]), 2, "foreign", "no config.yaml")
    assert [p.name for p in foreign.iterdir()] == ["thesis.txt"]
    process = h.program.start(h.arguments(recipe, "busy", ["--steps", "100000"]))
    rf.wait_for((h.scratch / "busy/metrics.jsonl").exists, process)
    h.program.refused(h.arguments(recipe, "busy", ["--resume"]), 2, ".lock", "another run or loop")
    assert rf.end(process, signal.SIGTERM)[0] == 130
    said("resume refuses another seed, data or group size, a foreign folder and one in use; it tells a changed learning rate")


def check_latest(h, whole, recipe):
    """A kill between the last rename and its link: the resumed run has nothing to do, and `latest` is right."""
    folder = h.scratch / "latest"
    shutil.copytree(whole, folder, symlinks=True)
    link = folder / "checkpoint/latest"
    link.unlink()
    link.symlink_to(f"step_{STEPS - 2}")
    h.program.done(h.arguments(recipe, "latest", ["--resume"]))
    rf.check_equal(folder, whole, "latest")
    rf.check_whole(folder, STEPS)
    said("killed before the link of the last checkpoint was moved: `latest` names it after the resume")


def check_extended(h):
    """More steps on resume leave the learning rate on its course; with train.lr_steps the course is that of the longer run."""
    def run(name, steps, *flags, **changed):
        options = {"train__lr_schedule": "cosine", "train__min_lr_ratio": 0.2, "run__steps": 4, **changed}
        h.program.done(h.arguments(rf.tiny_recipe(h.scratch / f"{name}.yaml", **options), name, ["--steps", str(steps), *flags]))
        return [line["actor/lr"] for line in rf.metrics(h.scratch / name)]

    first, longer = run("course", 4), run("course", 8, "--resume")
    assert first[0] > first[1] > first[2] > first[3] and abs(first[3] - 2e-4) < 1e-12, first
    assert longer == first + first[3:] * 4, longer
    whole = run("course_8", 8)
    run("course_long", 4, train__lr_steps=8)
    assert run("course_long", 8, "--resume", train__lr_steps=8) == whole, whole
    assert run("course_long", 10, "--resume") == whole + whole[7:] * 2, "the course is kept where the option is gone"
    said(f"a run of 4 steps goes on to 8 with the learning rates {longer}")


def stop_at_random(h, recipe, name, extra):
    """A history that is stopped again and again, to its end. Returns its folder, and how many stops fell into an evaluation."""
    folder, in_evaluation, steps, longer = h.scratch / (name + "_stopped"), 0, [], 1.0
    shutil.rmtree(folder, ignore_errors=True)
    for _ in range(60):
        resume = ["--resume"] if folder.exists() else []
        process = h.program.start(h.arguments(recipe, folder.name, [*extra, *resume]))
        # A stopped evaluation begins again, so what came no further needs longer: most of the time may go into the start of the process.
        time.sleep(longer * h.rng.uniform(0.1, 0.4) * h.seconds[name])
        code, err = rf.end(process, signal.SIGTERM)
        in_evaluation += "evaluation" in err[err.find("stopped after step"):]
        if code == 0:
            return folder, in_evaluation
        assert code in (130, -signal.SIGTERM), (code, err[-2000:])
        before, steps = steps, rf.committed_steps(folder)
        longer = longer * 1.2 if steps == before else 1.0
    raise AssertionError(f"{name}: not at its end after 60 stops")


def check_stop_in_evaluation(h, name, extra, answers=40):
    """Evaluations that take most of the time: signals fall into them, in one history or the next. Nothing is lost or done again."""
    recipe = rf.tiny_recipe(h.scratch / "evals.yaml", eval__every_steps=1, eval__n=answers, eval__temperature=1.0, eval__max_new_tokens=60,
                            data__synthetic_eval_rows=30)
    whole = h.uninterrupted(recipe, name, extra)
    for _ in range(8):
        folder, in_evaluation = stop_at_random(h, recipe, name, extra)
        rf.check_whole(folder, STEPS)
        rf.check_equal(folder, whole, name)
        if in_evaluation > 0:
            break
    assert in_evaluation > 0, "no stop of eight histories fell into an evaluation"
    said(f"{name}: stopped {in_evaluation} times in an evaluation: equal bit for bit")


def check_warm_start(h):
    """Kills in the supervised warm start: the whole ends as if there had been none."""
    recipe = rf.tiny_recipe(h.scratch / "warm.yaml", supervised__steps=10, supervised__batch_size=8)
    for name, extra, times in (("warm", [], 2), ("warm_dp2", ["--ranks", "2"], 1)):
        whole = h.uninterrupted(recipe, name, extra)
        for _ in range(times):
            folder, happened = h.killed(recipe, name, 2, extra)
            rf.check_equal(folder, whole, name)
            assert (folder / "warm_start/hf/model.safetensors").read_bytes() == (whole / "warm_start/hf/model.safetensors").read_bytes()
            said(f"{name}: {'; '.join(happened)}: equal bit for bit")


def check_late_warm_start(h):
    """A run that began without supervised steps gets none at a resume; one that has no step left says so."""
    recipe = rf.tiny_recipe(h.scratch / "late.yaml", run__steps=2)
    h.program.done(h.arguments(recipe, "late", []))
    again = h.arguments(recipe, "late", ["--resume"])
    line = h.program.refused([*again, "--steps", "4", "--set", "supervised.steps=4"], 2,
                             "supervised.steps", "is 4", "began without a warm start")
    assert not (h.scratch / "late/warm_start").exists()
    assert "nothing is left to do" in h.program.done(again).stderr
    said(f"supervised steps after RL: `{line}`")


def check_other_start(h):
    """Adapters go on the weights they were trained on, wherever these lie now, and on no others."""
    recipe = rf.tiny_recipe(h.scratch / "start.yaml", model__lora_rank=4, run__steps=4, supervised__steps=4, supervised__batch_size=8)
    folder = h.scratch / "start"
    h.program.done(h.arguments(recipe, "start", []))
    again = h.arguments(recipe, "start", ["--resume", "--steps", "6"])
    line = h.program.refused([*again, "--model", str(folder / "init/hf")], 2, "checkpoint/step_4", "warm_start/hf", "init/hf has others",
                             "--model ")
    shutil.copytree(folder / "warm_start/hf", h.scratch / "start_moved")
    h.program.done([*again, "--model", str(h.scratch / "start_moved")])
    rf.check_whole(folder, 6)
    said(f"a LoRA run resumed on another start: `{line}`; on its own, moved, it goes on")


# Measuring never gives forward and input gradient to different libraries. Where libtorch takes no oneDNN for fp32, there is one choice.
NEVER_MEASURED = ("onednn blas blas float", "blas onednn onednn float")
ONE_CHOICE = ("blas blas blas float",) * 2


def products_never_measured(h, recipe):
    """Two choices that no start comes to by itself, or the only one of this processor."""
    settings = {"run.parity": "false", "model.products": NEVER_MEASURED[0]}
    arguments = h.arguments(recipe, "products_probe", ["--steps", "1", *rf.sets(settings)])
    out = h.program.run(arguments)
    shutil.rmtree(h.scratch / "products_probe", ignore_errors=True)
    if out.returncode == 0:
        return NEVER_MEASURED
    assert out.returncode == 2 and "model.products: is 'onednn" in out.stderr, out.stderr
    return ONE_CHOICE


def products_of(folder):
    kept = json.loads((folder / "checkpoint/latest/state.json").read_text())["products"]
    return {"model.products": kept["training"], "rollout.products": kept["rollout"]}


def check_products(h, recipe):
    """Without parity each start measures which kernels are the fastest; a resumed run goes on with those of its checkpoint, or of its
    warm start."""
    chosen = products_never_measured(h, recipe)
    first = h.scratch / "products"
    settings = {"run.parity": "false", "model.products": chosen[0]}
    h.program.done(h.arguments(recipe, first.name, ["--steps", "2", *rf.sets(settings)]))
    again = [shutil.copytree(first, h.scratch / f"products_{i}", symlinks=True) for i in range(3)]
    resume = ["--resume", "--set", "model.products=", "--steps"]
    for folder in again:
        h.program.done(["run", folder / "config.yaml", "--run-dir", folder, *resume, "5"])
        assert products_of(folder)["model.products"] == chosen[0], products_of(folder)
        rf.check_equal(folder, again[0], "resumed without parity")
    warm = h.scratch / "products_warm"
    settings.update({"supervised.steps": 2, "model.products": chosen[1]})
    h.program.done(h.arguments(recipe, warm.name, ["--steps", "1", *rf.sets(settings)]))
    shutil.rmtree(warm / "checkpoint")
    h.program.done(["run", warm / "config.yaml", "--run-dir", warm, *resume, "1"])
    assert products_of(warm)["model.products"] == chosen[1], products_of(warm)
    said("without parity a resumed run computes with the kernels of its checkpoint or warm start, bit for bit")


def check_repeat(h, recipe):
    """A new run with the products that another's log names is that run again, in one dtype and in two."""
    chosen = products_never_measured(h, recipe)

    def run(name, options):
        folder = h.scratch / f"repeat_{name}"
        err = h.program.done(h.arguments(recipe, folder.name, ["--steps", "3", *rf.sets({"run.parity": "false", **options})])).stderr
        kept = products_of(folder)
        assert all(kept[option] == text for option, text in options.items() if option in kept), (kept, options)
        line = [line for line in err.splitlines() if "to repeat: " in line][-1]
        return folder, dict(re.findall('([a-z.]+)="([a-z ]+)"', line))

    for dtype, names in (("float32", {"model.products"}), ("bfloat16", {"model.products", "rollout.products"})):
        first, told = run(dtype, {"rollout.dtype": dtype})
        assert told.keys() == names, told
        again, told_again = run(f"{dtype}_again", {"rollout.dtype": dtype, **told})
        assert told == told_again, (told, told_again)
        rf.check_equal(first, again, "repeated without parity")
    if platform.machine() == "x86_64":  # whose libtorch has a BLAS for bfloat16
        folders = [run(logits, {"rollout.dtype": "bfloat16", "model.products": chosen[0],
                                "rollout.products": f"onednn onednn onednn {logits}"})[0] for logits in ("half", "float")]
        half, copies = (rf.metrics(folder)[0]["actor/kl_rollout_train"] for folder in folders)
        assert copies > 0 and abs(half / copies - 1) < 0.01, f"the library decides what is rounded: {half}, {copies}"
    bad = (({"model.products": "mkl"}, ["model.products", "'mkl'", "blas blas onednn float"]),
           ({"model.products": "blas blas blas half"}, ["model.products", "for float32"]),
           ({"rollout.dtype": "bfloat16", "rollout.products": "blas blas blas half"}, ["rollout.products", "for bfloat16"]),
           ({"rollout.products": "blas blas blas float"}, ["rollout.products", "dtype of model.dtype"]),
           ({"model.products": "blas blas blas float", "run.parity": "true"}, ["model.products", "run.parity"]))
    for number, (options, words) in enumerate(bad):
        h.program.refused(h.arguments(recipe, f"refused_{number}", rf.sets({"run.parity": "false", **options})), 2, *words)
    said("a run with the products that another names is that run again, bit for bit")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--model", default="", help="start from this model instead of a random one")
    parser.add_argument("--full", action="store_true", help="20 kills and more instead of 5")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="sync, ranks, lora, mix, critic, experts, evals, stale, early, damaged or warm")
    options = parser.parse_args()
    kill, term, interrupt = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
    plan = {kill: 20, term: 4, interrupt: 4} if options.full else {kill: 5, term: 1, interrupt: 1}
    ranks_plan = {kill: 8, term: 3} if options.full else {kill: 2, term: 1}
    with tempfile.TemporaryDirectory(prefix="tandem_resume_") as scratch:
        h = Histories(rf.Program(options.build), scratch, random.Random(options.seed), options.model)
        wanted = lambda name: options.only in ("", name)  # noqa: E731
        recipe = rf.tiny_recipe(h.scratch / "one.yaml")
        if wanted("sync"):
            check_sync(h, plan, [], "sync")
        if wanted("early") or wanted("damaged"):
            whole = h.uninterrupted(recipe, "one")
            if wanted("early"):
                check_start_over(h, whole, recipe)
                check_latest(h, whole, recipe)
                for number in (term, signal.SIGHUP):
                    check_stopped_early(h, whole, recipe, number)
            if wanted("early"):
                check_extended(h)
                if rf.KERNELS is None:  # aten has one kind of products
                    check_products(h, recipe)
                    check_repeat(h, recipe)
            if wanted("damaged"):
                check_damaged(h, whole, recipe)
                check_all_damaged(h, whole, recipe)
                check_other_recipe(h, whole, recipe)
        if wanted("ranks"):
            check_sync(h, ranks_plan, ["--ranks", "2"], "dp2")
            check_sync(h, ranks_plan, ["--ranks", "2", "--train-layout", "tp2"], "tp2")
        if wanted("lora"):
            check_sync(h, ranks_plan, ["--set", "model.lora_rank=4", "--set", "model.dtype=bfloat16"], "lora")
            if not options.model:
                check_other_start(h)
        if wanted("mix"):
            check_sync(h, ranks_plan, ["--set", "data.mix=" + mix_of(h.scratch)], "mix")
        if wanted("critic"):
            settings = {"algo.name": "ppo", "algo.mini_batches": 2, "algo.kl_in_reward": "true", "algo.kl_target": 0.01,
                        "algo.kl_horizon": 50}
            check_sync(h, {kill: 10, term: 3} if options.full else {kill: 2}, rf.sets(settings), "critic")
        if wanted("experts") and not options.model:
            h.program.done(h.arguments(recipe, "dense", ["--steps", "1"]))
            moe = small_model.write_moe(h.scratch / "moe", h.scratch / "dense/init/hf")
            check_sync(h, ranks_plan, ["--model", str(moe), "--ranks", "2", "--train-layout", "tp2,ep2"], "experts")
            latent = small_model.with_tokenizer(h.scratch / "latent", rf.ROOT / "tests/fixtures/deepseek_v3", h.scratch / "dense/init/hf")
            shared = ["--model", str(latent), "--ranks", "2", "--train-layout", "dp2", "--rollout-layout", "dp2,ep2"]
            check_sync(h, ranks_plan, [*shared, *rf.sets({"model.dtype": "bfloat16", "train.router_bias_rate": 0.01})], "shared_experts")
            check_stop_in_evaluation(h, "evals_experts", shared, answers=10)  # an answer takes four times as long
        if wanted("evals"):
            check_stop_in_evaluation(h, "evals", [])
            if options.full:  # two ranks are in the check of experts, too
                check_stop_in_evaluation(h, "evals_tp2", ["--ranks", "2", "--train-layout", "tp2"])
        for policy in ("drop", "wait"):
            if wanted("stale"):
                check_stale(h, policy, [5, 5, 5, 5] if options.full else [4, 3])
        if wanted("warm"):
            check_warm_start(h)
            check_late_warm_start(h)


if __name__ == "__main__":
    main()
