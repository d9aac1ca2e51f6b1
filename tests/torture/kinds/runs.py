# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed, fail, find a bad disk or a damaged folder, and go on."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import time

import run_folder as rf

STEPS, GROUPS = 12, 4

REWARD = """
import os, pathlib
HERE = pathlib.Path(__file__).parent
def score(prompts, completions, answers):
    fault = HERE / "fault"
    if fault.exists():
        mode, question = fault.read_text().split()
        if question in prompts[0]:
            if mode == "raise":
                raise ValueError("not today")
            if mode == "exit":
                os._exit(3)
            if mode == "nan":
                return [float("nan")] * len(completions)
            if mode == "huge":
                return [1.7e308] * (len(completions) - 1) + [0.0]
            if mode == "few":
                return [1.0]
            if mode == "text":
                return ["much"] * len(completions)
    return [float(sum(map(c.count, "01234"))) for c in completions]
"""


def question(row):
    return f"{row // 10}+{row % 10}="


def write_reward(folder):
    (folder / "rewards.py").write_text(REWARD)
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"question": question(r), "answer": "1"}) + "\n" for r in range(STEPS * GROUPS)))


def recipe_of(place, every):
    """The recipe of all runs here, in the trial's folder, so that its reward fails there alone."""
    write_reward(place.folder)
    return rf.tiny_recipe(place.folder / "recipe.yaml", reward__rule="", reward__python=f"{place.folder}/rewards.py:score",
                          reward__timeout_s=20, data__train=str(place.folder / "rows.jsonl"), data__eval="", data__shuffle=False,
                          run__steps=STEPS, checkpoint__every_steps=every, run__samples_wait_s=0.5)


def whole(place, ranks):
    """The run that nothing happened to."""
    def make(folder):
        recipe = place.folder / "recipe.yaml"
        place.done(["run", recipe, "--run-dir", folder / "run", *ranks])

    return place.once("whole_" + "_".join(ranks), make) / "run"


def ranks_of(place):
    return place.rng.choice([[], [], ["--ranks", "2"], ["--ranks", "2", "--set", "parallel.placement=split"]])


def check_like(folder, other, metrics=True):
    if metrics:
        rf.check_whole(folder, STEPS)
        assert rf.metrics(folder) == rf.metrics(other), "metrics"
    assert rf.samples(folder) == rf.samples(other), "samples"
    weights = [(one / "checkpoint/latest/hf/model.safetensors").read_bytes() for one in (folder, other)]
    assert weights[0] == weights[1], "weights"


def kills(place):
    """SIGKILL or SIGTERM at random moments, up to five times."""
    recipe, ranks = recipe_of(place, place.rng.choice([0, 1, 2, 5])), ranks_of(place)
    other, folder = whole(place, ranks), place.folder / "run"
    arguments = ["run", recipe, "--run-dir", folder, *ranks]
    for _ in range(place.rng.randint(1, 5)):
        process = place.start(arguments + (["--resume"] if folder.exists() else []))
        time.sleep(place.rng.uniform(0.05, 1.2))
        code, err = rf.end(process, place.rng.choice([9, 9, 15]))
        assert code in (-9, -15, 0, 130), (code, err[-2000:])
    place.done(arguments + (["--resume"] if folder.exists() else []))
    check_like(folder, other)


def kills_free(place):
    """A free run, whose batches a clock decides: what survives has each step and each sample once, and none is too old."""
    staleness = place.rng.randint(1, 3)
    recipe, folder = recipe_of(place, place.rng.choice([0, 1, 2, 5])), place.folder / "run"
    arguments = ["run", recipe, "--run-dir", folder, "--ranks", place.rng.choice(["2", "3"]), "--schedule", "stale",
                 "--staleness", staleness,
                 *rf.sets({"parallel.placement": place.rng.choice(["split", "mixed"]), "parallel.train_layout": "dp1",
                           "schedule.mode": "free", "schedule.lag_policy": place.rng.choice(["drop", "wait"]),
                           "rollout.max_new_tokens": 40})]
    for _ in range(place.rng.randint(1, 5)):
        process = place.start(arguments + (["--resume"] if folder.exists() else []))
        time.sleep(place.rng.uniform(0.05, 2))
        code, err = rf.end(process, place.rng.choice([9, 9, 15]))
        assert code in (-9, -15, 0, 130), (code, err[-2000:])
    place.done(arguments + (["--resume"] if folder.exists() else []))
    rf.check_whole(folder, STEPS)
    for group, trained, versions in rf.samples(folder, "group_id, trained_version, versions"):
        oldest = min(rf.token_versions(versions))
        assert trained - oldest <= staleness, f"group {group} lags {trained - oldest}"


def address_of(folder):
    """Where workers join the run, once it has said so; else ""."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / "workers.json").read_text()).get("address", "").removeprefix("tcp://")
    return ""


def local_workers(run):
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            if int(parent) == run.pid and b"\0rollout\0" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def disturb(place, run, folder, joined):
    """One thing that may happen to the workers of a run."""
    what = place.rng.choice(["join", "kill", "leave", "stop", "kill_local", "nothing"])
    with contextlib.suppress(OSError):
        if what == "join" and address_of(folder) and len(joined) < 3:
            join = ["rollout", "--join", address_of(folder), "--token", f"{folder}/token"]
            joined.append(place.start([*join, "--threads", "1", "--patience", "90"]))
        elif what == "kill_local" and local_workers(run):
            os.kill(place.rng.choice(local_workers(run)), 9)
        elif what in ("kill", "leave") and joined:
            os.kill(joined.pop(place.rng.randrange(len(joined))).pid, 9 if what == "kill" else 15)
        elif what == "stop" and joined:
            stopped = place.rng.choice(joined).pid
            os.kill(stopped, 19)
            time.sleep(place.rng.uniform(0.1, 2))
            os.kill(stopped, 18)


def kills_workers(place):
    """A run whose workers join, hang, leave and die, and that is killed itself: it has each step and each sample once, none too old."""
    staleness = place.rng.randint(0, 2)
    recipe, folder = recipe_of(place, place.rng.choice([0, 1, 2, 5])), place.folder / "run"
    arguments = ["run", recipe, "--run-dir", folder, "--rollout-workers", place.rng.randint(1, 2), "--staleness", staleness,
                 *rf.sets({"schedule.lag_policy": place.rng.choice(["drop", "wait"]), "rollout.max_new_tokens": 40, "workers.lease_s": 1,
                           "parallel.threads": 1})]
    joined = []
    try:
        for _ in range(place.rng.randint(1, 5)):
            process = place.start(arguments + (["--resume"] if folder.exists() else []))
            for _ in range(place.rng.randint(0, 4)):
                time.sleep(place.rng.uniform(0.05, 1))
                disturb(place, process, folder, joined)
            code, err = rf.end(process, place.rng.choice([9, 9, 15]))
            assert code in (-9, -15, 0, 130), (code, err[-2000:])
        place.done(arguments + (["--resume"] if folder.exists() else []), timeout=120)
    finally:
        for worker in joined:
            rf.end(worker)
    rf.check_whole(folder, STEPS)
    rf.check_journal(folder)
    for group, trained, versions in rf.samples(folder, "group_id, trained_version, versions"):
        oldest = min(rf.token_versions(versions))
        assert trained - oldest <= staleness, f"group {group} lags {trained - oldest}"


def killed_ranks(place):
    """A rank of a job of processes is killed; scripts/mpi starts it again."""
    from failure_test import rank_processes
    if not shutil.which("mpirun"):
        return
    recipe = recipe_of(place, place.rng.choice([1, 2, 3]))
    def make(folder):
        place.done(["run", recipe, "--run-dir", folder / "run"], launcher=rf.mpi(2))
    other, folder = place.once("whole_processes", make) / "run", place.folder / "run"
    launcher = [rf.mpi(2)[0], "--restarts", "9", *rf.mpi(2)[1:]]
    process = place.start(["run", recipe, "--run-dir", folder], launcher=launcher)
    for _ in range(place.rng.randint(1, 2)):
        time.sleep(place.rng.uniform(0.5, 3))
        try:
            os.kill(rank_processes(process)[place.rng.randrange(2)], 9)
        except (KeyError, OSError):
            pass  # not started yet, or ended already
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err[-2500:]
    check_like(folder, other)


def rewards(place):
    """A reward fails at a random row in a random way; no concluded step is lost."""
    recipe, ranks = recipe_of(place, place.rng.choice([0, 0, 5])), ranks_of(place)
    other, folder = whole(place, ranks), place.folder / "run"
    arguments = ["run", recipe, "--run-dir", folder, *ranks]
    for number in range(place.rng.randint(1, 3)):
        row, mode = place.rng.randrange(STEPS * GROUPS), place.rng.choice(["raise", "exit", "nan", "huge", "few", "text"])
        (place.folder / "fault").write_text(f"{mode} {question(row)}")
        out = place.run(arguments + (["--resume"] if number else []))
        (place.folder / "fault").unlink()
        if out.returncode == 0 and mode == "huge":  # such scores are scores too
            return
        if out.returncode == 0:  # its step was done before
            break
        saved = re.search(r"after step (\d+), which is saved", out.stderr)
        if row == 0 and not saved:  # the trial of the reward, before the run
            assert "tried before the run" in out.stderr, out.stderr[-2500:]
            continue
        assert saved, out.stderr[-2500:]
        step = int(saved[1])
        assert rf.committed_steps(folder)[-1] == step
        assert step >= row // GROUPS, f"row {row} is of step {row // GROUPS + 1}, and step {step} is saved"
        assert [m["step"] for m in rf.metrics(folder)] == list(range(1, step + 1))
        if mode == "huge":  # the queue has these scores now
            return
    place.done([*arguments, "--resume"])
    check_like(folder, other)


def disk(place):
    """Writes fail, are short, or cannot be made durable, on some files, for a while or for ever."""
    recipe, ranks = recipe_of(place, place.rng.choice([1, 2, 5])), ranks_of(place)
    other, folder = whole(place, ranks), place.folder / "run"
    part = place.rng.choice(["samples.sqlite", "metrics.jsonl", "trace.json", "tensorboard", "checkpoint", "optimizer_rank",
                             "model.safetensors", "state.json", "queue.bin", "manifest.json", "log.txt", "run/"])
    kind = place.rng.choice(["enospc", "eio", "short", "fsync", "exchange", "nfs"])
    plan = f"{kind}:{part}:{place.rng.randrange(60)}:{place.rng.choice([0, 1, 3, 20])}"
    arguments = ["run", recipe, "--run-dir", folder, *ranks]
    place.run(arguments, plan=plan)
    place.done(arguments + (["--resume"] if folder.exists() else []))
    check_like(folder, other, metrics=False)


def damage(place, path):
    """Changes a file. Returns what it did."""
    rng, size = place.rng, path.stat().st_size
    how = rng.choice(["flip", "flip", "cut", "empty", "remove", "zeros", "longer", "folder", "link", "digits"])
    if how == "flip" and size:
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 8, 100])):
            data[rng.randrange(size)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif how == "cut":
        os.truncate(path, rng.randrange(size + 1))
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "zeros" and size:
        data = bytearray(path.read_bytes())
        at = rng.randrange(size)
        data[at:at + 4096] = bytes(len(data[at:at + 4096]))
        path.write_bytes(data)
    elif how == "longer":
        path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice([1, 100, 100000])))
    elif how == "digits":
        text, other = path.read_bytes(), [b"-1", b"99999999999999999999", b"0"]
        path.write_bytes(re.sub(rb"\d+", lambda found: rng.choice([found[0], found[0], *other]), text[:200000]) + text[200000:])
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        if how == "link":
            path.symlink_to(rng.choice(["nowhere", path.name, "/dev/full"]))
    return f"{how} of {path.name}"


def folders(place):
    """Files of a run folder are damaged; a resume goes on, or says what is wrong. Checksums of half of them are made to fit."""
    recipe = recipe_of(place, 2)
    def make(folder):
        place.done(["run", recipe, "--run-dir", folder / "run", "--steps", "6"])
    folder = place.folder / "run"
    shutil.copytree(place.once("half_way", make) / "run", folder, symlinks=True)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p.name != ".lock")
    state = [p for p in files if "checkpoint/step_6" in str(p)]
    for path in place.rng.sample(state if place.rng.random() < 0.6 else files, place.rng.choice([1, 1, 2])):
        damage(place, path)
        manifest = path.parent / "manifest.json"
        if path.parent.name.startswith("step_") and manifest.is_file() and path != manifest and place.rng.random() < 0.8:
            try:
                listed = json.loads(manifest.read_text())
                listed["files"].pop(path.name, None)  # so that its checksum does not refuse it
                manifest.write_text(json.dumps(listed))
            except (ValueError, KeyError, AttributeError):
                pass
    out = place.run(["run", recipe, "--run-dir", folder, "--resume"], timeout=60)
    if out.returncode == 0:
        assert rf.committed_steps(folder)[-1] == STEPS
        assert pathlib.Path(folder, "checkpoint/latest/hf/model.safetensors").is_file()


TRIALS = {"kills": kills, "kills_free": kills_free, "kills_workers": kills_workers, "killed_ranks": killed_ranks, "rewards": rewards,
          "disk": disk, "folders": folders}
