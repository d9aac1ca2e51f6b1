#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of scripts/mpi: one that is killed ends the job with 3, --restarts goes on bit for bit; ranks that read different recipes, data or
start weights are refused."""
import os
import pathlib
import shutil
import signal
import subprocess
import time

import run_folder as rf
from failure_test import rank_processes
from run_folder import said

MPI = rf.mpi(2)


def ranks(process):
    """Process ids by rank, while they come and go."""
    try:
        return rank_processes(process)
    except OSError:
        return {}


def restarting(times):
    return [MPI[0], "--restarts", str(times), *MPI[1:]]


def check_restarts(program, scratch):
    recipe = rf.tiny_recipe(scratch / "restart.yaml", run__steps=60, data__eval="")
    program.done(["run", recipe, "--run-dir", scratch / "whole"], launcher=MPI)
    process = program.start(["run", recipe, "--run-dir", scratch / "killed"], launcher=MPI)
    rf.wait_for(lambda: len(rf.committed_steps(scratch / "killed")) > 0, process)
    os.kill(ranks(process)[1], 9)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3 and "ended by signal 9" in err, (process.returncode, err[-2000:])
    shutil.rmtree(scratch / "killed")
    process = program.start(["run", recipe, "--run-dir", scratch / "killed"], launcher=restarting(5))
    for victim, step in ((1, 4), (0, 20), (1, 21)):  # the first perhaps before a checkpoint
        saved = lambda: (rf.committed_steps(scratch / "killed") or [0])[-1]  # noqa: E731
        assert rf.wait_for(lambda: saved() >= step and len(ranks(process)) == 2, process)
        killed = ranks(process)[victim]
        os.kill(killed, 9)
        rf.wait_for(lambda: killed not in ranks(process).values(), process)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    assert err.count("it starts again") == 3, err
    rf.check_whole(scratch / "killed", 60)
    rf.check_equal(scratch / "killed", scratch / "whole", "a job that was restarted")
    weights = [(scratch / name / "checkpoint/latest/hf/model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert weights[0] == weights[1]
    said("a rank killed by SIGKILL ends the job with 3; --restarts goes on after three kills, equal bit for bit")


def check_restart_ends(program, scratch):
    """Wrong input and a person's signal are no reason to start again; and it ends after N."""
    recipe = rf.tiny_recipe(scratch / "ends.yaml", run__steps=100000, data__eval="")
    program.refused(["run", recipe, "--run-dir", scratch / "wrong", "--set", "train.lr=-1"], 2, "train.lr", launcher=restarting(3))
    process = program.start(["run", recipe, "--run-dir", scratch / "told"], launcher=restarting(3))
    rf.wait_for(lambda: len(rf.committed_steps(scratch / "told")) > 0, process)
    code, err = rf.end(process, 15)
    assert code == 130 and "starts again" not in err, (code, err[-2000:])
    out = subprocess.run([MPI[0], "--restarts", "2", "-n", "1", "sh", "-c", "echo once; kill -9 $$", "run"], capture_output=True, text=True,
                         timeout=60)
    assert out.returncode == 3 and out.stdout.count("once") == 3, out
    pausing = subprocess.Popen([MPI[0], "--restarts", "5", "-n", "1", "sh", "-c", "echo once; kill -9 $$", "run"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    for line in pausing.stderr:
        if "it starts again" in line:
            break
    pausing.send_signal(signal.SIGTERM)
    out, err = pausing.communicate(timeout=60)
    assert pausing.returncode == 3 and out.count("once") == 1 and "starts again" not in err, (pausing.returncode, out, err)
    for words, what in ((["--restarts", "x"], "is x"), (["--restarts", "2", "-n", "1", "true"], "cannot go on")):
        out = subprocess.run([MPI[0], *words], capture_output=True, text=True, timeout=60)
        assert out.returncode == 2 and what in out.stderr, out
    said("--restarts gives up after N times, and where a person or the input ended the job")


RANK_OF = '[ "$OMPI_COMM_WORLD_RANK" = 1 ]'


def check_disagreement(program, scratch):
    """Rank 1 reads something else, as on a machine with an old copy."""
    model = scratch / "model"
    recipe = rf.tiny_recipe(scratch / "one.yaml", run__steps=2, data__eval="")
    program.done(["run", recipe, "--run-dir", scratch / "made", "--steps", "1", "--no-eval"])
    shutil.copytree(scratch / "made/init/hf", model)
    data = scratch / "rows.jsonl"
    data.write_text("".join(f'{{"question": "{i}+1=", "answer": "{i + 1}"}}\n' for i in range(20)))
    (scratch / "rewards.py").write_text("def score(prompts, completions, answers):\n    return [1.0 * len(c) for c in completions]\n")

    def script(name, of_rank_1):
        path = scratch / f"{name}.sh"
        path.write_text(f"#!/bin/sh\nif {RANK_OF}; then exec {of_rank_1}; fi\nexec \"$@\"\n")
        path.chmod(0o755)
        return [*MPI, str(path)]

    base = ["run", recipe, "--model", model, "--set", f"data.train={data}"]
    python = ["--set", "reward.rule=", "--set", f"reward.python={scratch}/rewards.py:score"]
    cases = {"seed": ('"$@" --set run.seed=7', "recipe", "run.seed 7 and not 0", []),
             "pattern": ("\"$@\" --set 'reward.pattern=[5-9]'", "recipe", "reward.pattern", []),
             "steps": ('"$@" --steps 9', "recipe", "run.steps 9", []),
             "resume": ('"$@" --resume', "recipe", "", [])}
    for name, (command, which, words, more) in cases.items():
        begin = time.monotonic()
        line = program.refused([*base, "--run-dir", scratch / name, *more], 2, f"rank 1 has another {which} than rank 0", words,
                               launcher=script(name, command))
        assert not (scratch / name).exists() and time.monotonic() - begin < 30
    teacher, judge, critic = [copied(model, scratch / name) for name in ("teacher", "judge", "critic")]
    # A machine's own file under the same path: a mount namespace of rank 1.
    for name, path, change, more in (
            ("data", data, lambda p: p.write_text(p.read_text().replace("20", "21")), []),
            ("start weights", model / "model.safetensors", flip, []),
            ("data", scratch / "rewards.py", lambda p: p.write_text(p.read_text() + "# \n"), python),
            ("data", scratch / "made/samples.sqlite", flip, ["--replay", scratch / "made", "--steps", "1"]),
            ("reference", teacher / "model.safetensors", flip,
             ["--set", f"model.ref_model_load_path={teacher}", "--set", "algo.kl_coef=0.1"]),
            ("critic", critic / "model.safetensors", flip, ["--set", f"critic.path={critic}", "--set", "algo.name=ppo"]),
            ("reward model", judge / "model.safetensors", flip, ["--set", "reward.rule=", "--set", f"reward.model={judge}"])):
        other = scratch / "other"
        shutil.copy(path, other)
        change(other)
        mounted = script("mounted", f"unshare -m sh -c 'mount --bind {other} {path} && exec \"$@\"' sh \"$@\"")
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            said("(no mount namespaces here: unequal files were not tried)")
            return
        line = program.refused([*base, "--run-dir", scratch / "files", *more], 2, f"rank 1 has another {name} than rank 0",
                               launcher=mounted)
        assert not (scratch / "files").exists()
    program.done([*base, "--run-dir", scratch / "equal", *python], launcher=MPI)
    said(f"ranks with another recipe, data or start: `{line}`")


def check_folders_of_jobs(_program, scratch):
    """Jobs that run at the same time share no folder of Open MPI's, and leave none behind. A caller may name one, and a batch system's
    job, which may have other machines, takes Open MPI's."""
    (scratch / "jobs").mkdir()
    env = {**os.environ, "TMPDIR": str(scratch / "jobs")}
    jobs = [subprocess.Popen([MPI[0], "-n", "1", "sh", "-c", "echo $OMPI_MCA_orte_top_session_dir; read end"], env=env, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    folders = [pathlib.Path(job.stdout.readline().strip()) for job in jobs]
    assert len(set(folders)) == 2 and all(scratch / "jobs" in folder.parents and folder.exists() for folder in folders), folders
    for job in jobs:
        job.communicate("end\n", timeout=60)
        assert job.returncode == 0, job.returncode
    assert not list((scratch / "jobs").iterdir()), list((scratch / "jobs").iterdir())
    named, word = str(scratch / "named"), "orte_tmpdir_base"
    for options, changed in ((["--mca", word, named], {}), ([], {f"OMPI_MCA_{word}": named}), ([], {"SLURM_JOB_ID": "1"})):
        out = subprocess.run([MPI[0], *options, "-n", "1", "sh", "-c", "echo $OMPI_MCA_orte_top_session_dir"], env={**env, **changed},
                             capture_output=True, text=True, timeout=60)
        wanted = str(scratch / "jobs/ompi.") if "SLURM_JOB_ID" in changed else named
        assert out.returncode == 0 and out.stdout.startswith(wanted), (options, changed, out)
    out = subprocess.run([*MPI, "true"], env={**env, "TMPDIR": str(scratch / "none")}, capture_output=True, text=True, timeout=60)
    assert out.returncode == 2 and "holds no new folder" in out.stderr, out
    said("each job of scripts/mpi has a folder of its own, which goes with it")


def copied(folder, to):
    shutil.copytree(folder, to)
    return to


def flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


CHECKS = {"restarts": check_restarts, "ends": check_restart_ends, "disagreement": check_disagreement, "folders": check_folders_of_jobs}


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        rf.skip("no mpirun")
    rf.run_checks(__doc__, CHECKS, lambda program, scratch: (program, pathlib.Path(scratch)))
