#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that fail: each names what failed, ends with the right exit code, leaves its checkpoints whole, and goes on with
--resume to the same end as a run that never failed."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time

import run_folder as rf
from run_folder import said

MPI = rf.mpi(2)


def write_additions(path, count, wrong=None, answer="none"):
    """Problems in their order; the answer of problem `wrong` is no number."""
    with open(path, "w") as out:
        for i in range(count):
            gold = answer if i == wrong else str(i % 7 + i % 5)
            out.write(json.dumps({"question": f"{i % 7}+{i % 5}=", "answer": gold}) + "\n")


class Failures:
    def __init__(self, program, scratch):
        self.program, self.scratch = program, pathlib.Path(scratch)

    def run(self, recipe, folder, *more):
        return ["run", recipe, "--run-dir", str(self.scratch / folder), *more]

    def start_model(self):
        """The model directory that a finished run made."""
        source = self.scratch / "model"
        if not source.exists():
            recipe = rf.tiny_recipe(self.scratch / "model.yaml", run__steps=1)
            self.program.done(self.run(recipe, "model_run", "--no-eval"))
            shutil.copytree(self.scratch / "model_run/init/hf", source)
        return source

    def resumes_like(self, recipe, folder, whole, *more):
        """--resume after the cause is gone ends as the run that never failed."""
        self.program.done(self.run(recipe, folder, "--resume", *more))
        rf.check_equal(self.scratch / folder, self.scratch / whole, folder)


def check_reward(f):
    bad = rf.tiny_recipe(f.scratch / "pattern.yaml", reward__pattern="[0-")
    f.program.refused(f.run(bad, "pattern"), 2, "reward.pattern")
    data = f.scratch / "additions.jsonl"
    recipe = rf.tiny_recipe(f.scratch / "reward.yaml", reward__rule="number", data__train=str(data), data__eval="", data__shuffle=False,
                            run__steps=8)
    write_additions(data, 32)
    f.program.done(f.run(recipe, "reward_whole"))
    write_additions(data, 32, wrong=21)  # step 6 grades it; a checkpoint is due after step 4
    line = f.program.refused(f.run(recipe, "reward"), 2, "step 5, which is saved", "reward rule number, group 21", "`none` holds no number")
    assert rf.committed_steps(f.scratch / "reward")[-1] == 5
    f.program.refused(f.run(recipe, "reward", "--resume"), 2, "reward rule number, group 21")
    write_additions(data, 32)
    f.resumes_like(recipe, "reward", "reward_whole")
    said(f"a reward that throws in mid-run: `{line}`; resumed after the repair, equal bit for bit")
    if shutil.which("mpirun"):
        write_additions(data, 32, wrong=21)  # an odd group: rank 1 grades it
        f.program.refused(f.run(recipe, "reward_mpi"), 2, "reward rule number, group 21", launcher=MPI)
        said("the same on rank 1 of an MPI job: one line, exit code 2")


PYTHON_REWARD = """
import os, random, time
HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "pid"), "w") as out:
    out.write(str(os.getpid()))
def there(name):
    return os.path.exists(os.path.join(HERE, name))
def score(prompts, completions, answers, seen_by):
    if there("raise") and "0+3=" in prompts[0]:
        raise ValueError("not today")
    if there("die") and "0+3=" in prompts[0]:
        os.remove(os.path.join(HERE, "die"))
        os._exit(5)
    while there("hang"):
        time.sleep(0.01)
    return [sum(map(c.count, "01234")) + random.random() + (seen_by[0] == "row") for c in completions]
"""


def check_python_reward(f):
    folder = f.scratch / "python_reward"
    folder.mkdir()
    (folder / "rewards.py").write_text(PYTHON_REWARD)
    data = folder / "rows.jsonl"
    with open(data, "w") as out:
        for i in range(32):
            out.write(json.dumps({"question": f"{i // 8}+{i % 8}=", "answer": "1", "seen_by": "row"}) + "\n")
    recipe = rf.tiny_recipe(f.scratch / "python.yaml", reward__rule="", reward__python=f"{folder}/rewards.py:score", reward__timeout_s=5,
                            data__train=str(data), data__eval="", data__shuffle=False, run__steps=8)
    f.program.done(f.run(recipe, "python_whole"))
    (folder / "die").touch()
    f.program.done(f.run(recipe, "python_died"))
    rf.check_equal(f.scratch / "python_died", f.scratch / "python_whole", "python_died")
    said("a Python worker that dies is replaced, and the run ends equal bit for bit")
    (folder / "raise").touch()
    line = f.program.refused(f.run(recipe, "python"), 2, "reward rule python/score, group 3", "ValueError: not today at", "rewards.py:")
    assert "Traceback (most recent call last)" in (f.scratch / "python/log.txt").read_text()
    (folder / "raise").unlink()
    f.resumes_like(recipe, "python", "python_whole")
    said(f"a Python reward that raises: `{line}`; resumed after the repair, equal bit for bit")
    (folder / "hang").touch()
    (folder / "pid").unlink()
    run = f.program.start(f.run(recipe, "python_killed", "--set", "reward.timeout_s=100"))
    rf.wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), 60, "no worker")
    worker = int((folder / "pid").read_text())
    rf.end(run)
    rf.wait_until(lambda: not os.path.exists(f"/proc/{worker}"), 10, "the worker outlives a run that was killed")
    (folder / "hang").unlink()
    said("a run that is killed takes its Python workers with it")


FICKLE_REWARD = """
import os
RIGHT = 0.0
for process in ("trial", "first"):  # the trial of the reward has a process of its own, before those of the run
    try:
        os.close(os.open(os.path.join(os.path.dirname(os.path.abspath(__file__)), process), os.O_CREAT | os.O_EXCL))
        RIGHT = float(process == "first")
        break
    except FileExistsError:
        pass
def score(prompts, completions, answers):
    return [RIGHT] * len(completions)
"""


def check_fickle_reward(f):
    """Only the first worker process calls answers right: ranks that judged by themselves would part."""
    folder = f.scratch / "fickle_reward"
    folder.mkdir()
    (folder / "rewards.py").write_text(FICKLE_REWARD)
    recipe = rf.tiny_recipe(f.scratch / "fickle.yaml", reward__rule="", reward__python=f"{folder}/rewards.py:score", supervised__steps=8,
                            supervised__batch_size=8, supervised__stop_at_accuracy=0.01, supervised__accuracy_every_steps=2,
                            supervised__accuracy_problems=8, parallel__deadline_s=10, data__eval="")
    f.program.done(["sft", recipe, "--run-dir", str(f.scratch / "fickle"), "--ranks", "2"])
    assert rf.committed_steps(f.scratch / "fickle") == [2], rf.committed_steps(f.scratch / "fickle")
    said("two ranks whose rewards disagree stop the supervised steps together")


def check_not_finite(f):
    recipe = rf.tiny_recipe(f.scratch / "nan.yaml", run__steps=8)
    f.program.done(f.run(recipe, "nan_whole"))
    f.program.done(f.run(recipe, "nan", "--steps", "4"))
    latest = (f.scratch / "nan/checkpoint/step_4/hf/model.safetensors").read_bytes()
    line = f.program.refused(f.run(recipe, "nan", "--resume", "--set", "train.lr=1e30"), 2, "train.lr")
    assert rf.committed_steps(f.scratch / "nan") == [2, 4]
    assert (f.scratch / "nan/checkpoint/step_4/hf/model.safetensors").read_bytes() == latest
    f.resumes_like(recipe, "nan", "nan_whole")
    said(f"training that diverges: `{line}`; the checkpoint before is whole and resumes, equal bit for bit")

    model = f.scratch / "nan_model"
    shutil.copytree(f.start_model(), model)
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    header_bytes, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + header_bytes])
    begin, _ = header["model.norm.weight"]["data_offsets"]
    data[8 + header_bytes + begin:8 + header_bytes + begin + 4] = struct.pack("<f", float("nan"))
    path.write_bytes(data)
    line = f.program.refused(f.run(recipe, "nan_start", "--model", model), 2, "model: ", "not finite")
    for temperature in ("0", "1"):
        f.program.refused(["generate", "--model", model, "--temperature", temperature, "--max-new-tokens", "4"], 2, "not finite",
                          stdin='{"prompt": "1+1="}\n')
    if shutil.which("mpirun"):
        f.program.refused(f.run(recipe, "nan_mpi", "--model", model), 2, "not finite", launcher=MPI)
    said(f"a model file with a NaN: `{line}`; one line under mpirun, too")


@contextlib.contextmanager
def small_disk(folder, mib):
    """A file system of its own; None where mounting is not permitted."""
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)],
                                                   capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk, name, free):
    """Leaves so many bytes of a disk free."""
    room = os.statvfs(disk)
    (disk / name).write_bytes(bytes(room.f_bavail * room.f_frsize - free))


def check_full_disk(f):
    recipe = rf.tiny_recipe(f.scratch / "full.yaml", model__init_hidden=128, model__init_layers=4, model__init_intermediate=352,
                            run__steps=8)
    f.program.done(f.run(recipe, "full_whole"))
    with small_disk(f.scratch / "disk", 64) as disk:
        if disk:
            folder = "disk/full"
            f.program.done(f.run(recipe, folder, "--steps", "4"))
            fill(disk, "ballast", 3 << 20)  # the weights fit, the optimizer does not
            f.program.done(f.run(recipe, folder, "--resume", "--steps", "6", "--set", "eval.after=false"))
            assert rf.committed_steps(f.scratch / folder) == [4, 6], "of two, one goes before the next is written"
            said("a disk with room for two checkpoints is enough for checkpoint.keep_last=2")
            shutil.rmtree(f.scratch / folder / "checkpoint/step_4")
            fill(disk, "more", 3 << 20)
            only_one = ["--set", "checkpoint.keep_last=1"]  # which must stay until the next is whole
            line = f.program.refused(f.run(recipe, folder, "--resume", *only_one), 3, "checkpoint/step_8.tmp/", "No space left on device",
                                    "that of step 6 is there")
            assert rf.committed_steps(f.scratch / folder) == [6], rf.committed_steps(f.scratch / folder)
            for name in ("ballast", "more"):
                (disk / name).unlink()
            how = "a full disk"
        else:  # a limit on the size of a file does the same to the largest file of a checkpoint
            folder = "limited"
            f.program.done(f.run(recipe, folder, "--steps", "4"))
            limit = lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_FSIZE, (3 << 20, 3 << 20))  # noqa: E731
            line = f.program.refused(f.run(recipe, folder, "--resume"), 3, "checkpoint/step_6.tmp/", "File too large",
                                    "that of step 4 is there", preexec_fn=limit)
            how = "a file larger than allowed"
            assert rf.committed_steps(f.scratch / folder) == [2, 4], rf.committed_steps(f.scratch / folder)
        assert not list((f.scratch / folder / "checkpoint").glob("*.tmp")), "the failed attempt is left"
        f.resumes_like(recipe, folder, "full_whole")
        said(f"{how} while saving: `{line}`; resumed after room was made, equal bit for bit")
    limit = lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_FSIZE, (1 << 20, 1 << 20))  # noqa: E731
    room = lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_FSIZE, (4 << 20, 4 << 20))  # noqa: E731
    f.program.refused(f.run(recipe, "none"), 3, "checkpoint/step_2.tmp/", "File too large", "no earlier one is there", preexec_fn=room)
    f.program.done(f.run(recipe, "two", "--ranks", "2", "--steps", "4"))
    again = f.run(recipe, "two", "--ranks", "2", "--resume")
    line = f.program.refused(again, 3, "rank ", "checkpoint/step_6.tmp/", "File too large", preexec_fn=limit)
    assert rf.committed_steps(f.scratch / "two") == [2, 4], rf.committed_steps(f.scratch / "two")
    said(f"with two ranks: `{line}`")


def check_refusals(f):
    recipe = rf.tiny_recipe(f.scratch / "plain.yaml", run__steps=2)
    f.program.refused(f.run(recipe, "/proc/no_such_place/run"), 2, "/proc/no_such_place/run", "cannot be made", "--run-dir")
    f.program.done(f.run(recipe, "taken"))
    f.program.refused(f.run(recipe, "taken"), 2, "taken", "exists", "--resume")
    (f.scratch / "empty.jsonl").write_text("")
    f.program.refused(f.run(recipe, "empty", "--set", f"data.train={f.scratch / 'empty.jsonl'}"), 2, "empty.jsonl", "no rows")
    short = rf.tiny_recipe(f.scratch / "short.yaml", model__init_max_positions=16, run__steps=2, data__train=str(f.scratch / "long.jsonl"))
    (f.scratch / "long.jsonl").write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in ("1+1=", "1" * 40 + "=")))
    f.program.refused(f.run(short, "short"), 2, "long.jsonl:2", "41 tokens", "context of 16")
    said("unwritable and taken folders, an empty data set, a prompt beyond the context: refused by name")
    if not shutil.which("mpirun"):
        return
    f.program.refused(f.run(recipe, "taken"), 2, "taken", "exists", launcher=MPI)
    f.program.refused(f.run(recipe, "b", "--set", "train.lrr=1"), 2, "train.lrr", "train.lr", launcher=MPI)
    f.program.refused(f.run(recipe, "c", "--ranks", "3"), 2, "--ranks", launcher=MPI)
    said("under mpirun a user's error is one line")


def check_limits(f):
    """Numbers that no machine has are wrong input; memory and threads that this one has not are no bug."""
    recipe = rf.tiny_recipe(f.scratch / "limits.yaml", run__steps=2, data__eval="")
    for arguments, name in ((["--threads", "1000000000"], "parallel.threads"), (["--ranks", "1000000000"], "parallel.ranks"),
                            (["--set", "reward.workers=1000000000"], "reward.workers")):
        f.program.refused(f.run(recipe, "limits", *arguments), 2, name)
        assert not (f.scratch / "limits").exists()
    f.program.refused(["generate", "--model", f.start_model(), "--threads", "1000000000"], 2, "--threads", stdin='{"prompt": "1+1="}\n')
    for gib in (2, 3, 4):
        limit = lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_AS, (gib << 30, gib << 30))  # noqa: E731, B023
        line = f.program.refused(f.run(recipe, f"ranks_{gib}", "--ranks", "2000"), 3, preexec_fn=limit)
    said(f"2000 ranks under a memory limit: `{line}`")


def rank_processes(process):
    """Process ids of the ranks of a job that scripts/mpi started, by rank."""
    ranks = {}
    for mpirun in rf.children_of(process.pid):
        for child in rf.children_of(mpirun):
            found = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)\0", pathlib.Path(f"/proc/{child}/environ").read_bytes())
            if found:
                ranks[int(found[1])] = child
    return ranks


def start_job(f, name, launcher, **changed):
    """A long job of two processes that has saved its first checkpoint."""
    recipe = rf.tiny_recipe(f.scratch / f"{name}.yaml", run__steps=100000, **changed)
    process = f.program.start(f.run(recipe, name), launcher=launcher)
    rf.wait_for(lambda: len(rf.committed_steps(f.scratch / name)) > 0, process)
    return recipe, process


def check_job_resumes(f, recipe, name):
    steps = rf.committed_steps(f.scratch / name)
    f.program.done(f.run(recipe, name, "--resume", "--steps", str(steps[-1] + 2)), launcher=MPI)
    rf.check_whole(f.scratch / name, steps[-1] + 2)


def check_dead_rank(f):
    if not shutil.which("mpirun"):
        return
    recipe, process = start_job(f, "dead", MPI, parallel__deadline_s=60)
    begin = time.monotonic()
    os.kill(rank_processes(process)[1], 9)
    _, err = process.communicate(timeout=60)
    seconds = time.monotonic() - begin
    assert process.returncode != 0 and seconds < 10, (process.returncode, seconds, err[-3000:])
    check_job_resumes(f, recipe, "dead")
    said(f"rank 1 of 2 killed: mpirun ended the job after {seconds:.1f} s with exit code {process.returncode}; resumed")
    # mpirun may end the survivor before it can say a word. Where it may live, it does not wait for the deadline.
    recipe, process = start_job(f, "survivor", [MPI[0], "--enable-recovery", *MPI[1:]], parallel__deadline_s=60)
    begin = time.monotonic()
    os.kill(rank_processes(process)[1], 9)
    _, err = process.communicate(timeout=60)
    seconds = time.monotonic() - begin
    ours = [line for line in err.splitlines() if line.startswith("tandem: error: ")]
    assert len(ours) == 1 and re.search(r"rank 0: \w+ in group '[\w ]+' ended: rank 1 died", ours[0]), err[-3000:]
    assert seconds < 20, seconds
    check_job_resumes(f, recipe, "survivor")
    said(f"left to itself the survivor says `{ours[0]}` and ends after {seconds:.1f} s; resumed")


SLOW_TO_END = """#!/bin/sh
trap 'sleep 3; echo saved >"$0.$OMPI_COMM_WORLD_RANK"; exit 130' TERM INT
echo ready >"$0.ready.$OMPI_COMM_WORLD_RANK"
for i in $(seq 300); do sleep 0.1; done
"""


def check_stopped_job(f):
    """mpirun kills ranks a second after it is told to end; scripts/mpi lets them save first."""
    if not shutil.which("mpirun"):
        return
    slow = f.scratch / "slow"
    slow.write_text(SLOW_TO_END)
    slow.chmod(0o755)
    begin = time.monotonic()
    process = subprocess.Popen([*MPI, str(slow)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert rf.wait_for(lambda: all((f.scratch / f"slow.ready.{rank}").exists() for rank in (0, 1)), process)
    code, err = rf.end(process, signal.SIGTERM)
    seconds = time.monotonic() - begin
    assert code == 130 and seconds < 20, (code, seconds, err[-2000:])
    assert all((f.scratch / f"slow.{rank}").exists() for rank in (0, 1)), "a rank was killed while it saved"
    for number in (signal.SIGTERM, signal.SIGINT):
        name = f"stopped_{number.name}"
        recipe, process = start_job(f, name, MPI)
        code, err = rf.end(process, number)
        assert code == 130 and "tandem: error" not in err, (code, err[-3000:])
        stopped = int(re.search(r"stopped after step (\d+).*; --resume continues", err).group(1))
        assert rf.committed_steps(f.scratch / name)[-1] == stopped, (stopped, rf.committed_steps(f.scratch / name))
        check_job_resumes(f, recipe, name)
    process = start_job(f, "orphan", MPI)[1]
    ranks = rank_processes(process).values()
    assert len(ranks) == 2
    rf.end(process)
    rf.wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks), 20, "ranks outlive scripts/mpi")
    said("a job of two processes that is told to end saves and exits with 130; killed, it leaves no rank behind")


CHECKS = {"reward": check_reward, "python": check_python_reward, "fickle": check_fickle_reward,
          "nan": check_not_finite, "disk": check_full_disk, "refusals": check_refusals, "limits": check_limits, "dead": check_dead_rank,
          "stopped": check_stopped_job}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS, lambda program, scratch: [Failures(program, scratch)])
