#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One of four processes is killed, at a random moment of a stage or of a switch. Every survivor says who died, within 2 s, and ends;
nothing that half-new weights generated is kept; --resume ends as a run that was never killed, bit for bit. --kills N: how many.
--started: on fake devices, where rank 0 starts the others; else mpirun does."""
import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import run_folder as rf
import small_model
from run_folder import said

RANKS, STEPS = 4, rf.TINY["run.steps"]
TOLD_S, END_S = 2, 25
KILLS_OF_A_HISTORY = 4
# Large for so few tokens, so that a switch takes a while, and moves its weights in many buckets.
SHAPE = {"model.init_hidden": 256, "model.init_layers": 4, "model.init_heads": 4, "model.init_kv_heads": 2, "model.init_intermediate": 704,
         "parallel.reshard_bucket_mib": 1, "parallel.deadline_s": 60}
SPARSE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32, "num_hidden_layers": 4, "num_experts": 16,
          "moe_intermediate_size": 96}
# Train, rollout, and whether the model has experts. All move weights at each switch; parity, without which a run that starts over may
# measure other kernels as the fastest, needs one tp.
LAYOUTS = {"pp,tp": ("tp2,pp2", "dp2,tp2", False), "dp,pp": ("dp2,pp2", "dp4", False), "dp,tp": ("dp2,tp2,ep2", "dp2,tp2,ep4", True)}
OFFLOADED = "pp,tp"  # so a death also finds weights half on the device, half on the host
# mpirun would end the survivors before they can say a word. It does not tell their exit codes.
LAUNCHER = [rf.mpi(RANKS)[0], "--enable-recovery", *rf.mpi(RANKS)[1:]]
KEEP_CODE = ["sh", "-c", '"$@"; echo $? >"$0/code.$OMPI_COMM_WORLD_RANK"']


def stage_of(pid):
    """What the rank does, as its process is called; "" before its first stage and after its end."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip().partition(":")[2]
    except OSError:
        return ""


def descendants(pid):
    try:
        children = [int(c) for task in os.listdir(f"/proc/{pid}/task")
                    for c in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return []
    return children + [each for child in children for each in descendants(child)]


class Job:
    """A launch of the program, and its lines on standard error with their times."""

    def __init__(self, program, arguments, codes, started):
        self.program, self.codes, self.started, self.lines = program, pathlib.Path(codes), started, []
        shutil.rmtree(codes, ignore_errors=True)
        self.codes.mkdir()
        command = [*([] if started else [*LAUNCHER, *KEEP_CODE, codes]), program.tandem, *[str(a) for a in arguments]]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    @property
    def text(self):
        return "\n".join(line for _, line in self.lines)

    def ranks(self):
        """Process ids by rank, once all of them are in a stage; nothing if the job ends first."""
        found = {}
        deadline = time.monotonic() + 120
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-3000:]
            for pid in [self.process.pid] * self.started + descendants(self.process.pid):
                if stage_of(pid):
                    variable = rb"TANDEM_STARTED_RANK" if self.started else rb"OMPI_COMM_WORLD_RANK"
                    rank = re.search(rb"\0" + variable + rb"=(\d+)[\0 ]", b"\0" + rf.environment_of(pid))
                    found[int(rank[1]) if rank else 0] = pid
            if len(found) == RANKS:
                return found
            time.sleep(0.005)
        return {}

    def end(self, seconds):
        """The exit code of the job."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the job did not end within {seconds} s:\n{self.text[-4000:]}") from None
        finally:
            self.reader.join()
        return self.process.returncode

    def time_of(self, text):
        return next((when for when, line in self.lines if text in line), None)


class Strike:
    """Kills a rank at a random moment of a stage, the first of its kind or a later one."""

    def __init__(self, rng, seconds, in_switch):
        self.rng, self.seconds = rng, seconds
        self.victim, self.visit = rng.randrange(RANKS), rng.randint(1, 4)
        self.stage = "switch" if in_switch else rng.choice([stage for stage in seconds if stage != "switch"])
        self.time = None

    def run(self, job):
        """False if the job ended before it came to that moment."""
        pid, last, visits, most = job.ranks().get(self.victim), "", 0, self.seconds[self.stage]
        while pid and (now := stage_of(pid)):
            visits += now == self.stage and now != last
            last = now
            if now != self.stage or visits < self.visit:
                continue
            time.sleep(self.rng.uniform(0, most))
            try:
                os.kill(pid, signal.SIGSTOP)  # so that it is where we read
                if stage_of(pid) == self.stage:
                    self.time = time.monotonic()
                    os.kill(pid, signal.SIGKILL)
                    return True
                os.kill(pid, signal.SIGCONT)  # too late; sooner in the next of its kind
                last, most = "", most / 2
            except ProcessLookupError:
                break
        return False

    def check(self, job):
        """What the survivors say of it. Returns the seconds until the last of them knew."""
        code = job.end(END_S)
        if job.started:
            assert code == (-signal.SIGKILL if self.victim == 0 else 3), f"{self}: exit code {code}\n{job.text[-3000:]}"
        codes = {int(path.suffix[1:]): path.read_text().strip() for path in job.codes.glob("code.*")}
        slowest = 0
        for rank in set(range(RANKS)) - {self.victim}:
            told = job.time_of(f"rank {rank}: rank {self.victim} is gone: its process died")
            assert told and told - self.time < TOLD_S, f"{self}: rank {rank} knew after {told and told - self.time} s\n{job.text[-3000:]}"
            slowest = max(slowest, told - self.time)
            ends = rf"tandem: error: .*\brank {rank}: .*rank {self.victim} died"
            assert re.search(ends, job.text), f"{self}: rank {rank} does not end with it\n{job.text[-3000:]}"
            assert job.started or codes.get(rank) == "3", f"{self}: exit codes {codes}\n{job.text[-3000:]}"
        return slowest

    def __str__(self):
        return f"rank {self.victim} in {self.stage}"


def prefix_of(folder, whole, scratch):
    """Everything that a killed run has kept is what the whole run has. Returns the number of its samples."""
    copy = scratch / "killed.sqlite"
    for suffix in ("", "-wal", "-shm", "-journal"):
        left = pathlib.Path(f"{folder}/samples.sqlite{suffix}")
        pathlib.Path(f"{copy}{suffix}").unlink(missing_ok=True)
        if left.exists():
            shutil.copy(left, f"{copy}{suffix}")
    if not copy.exists():
        return 0
    with rf.contextlib.closing(rf.sqlite3.connect(copy)) as database:
        kept = database.execute("SELECT * FROM samples ORDER BY step, group_id, sample_index").fetchall()
    assert kept == rf.samples(whole)[:len(kept)], "a killed run has kept a sample that the whole run has not"
    return len(kept)


class Histories:
    def __init__(self, program, scratch, rng, name, started):
        self.program, self.scratch, self.rng, self.name, self.started = program, scratch, rng, name, started
        self.launcher = [] if started else rf.mpi(RANKS)
        train, rollout, sparse = LAYOUTS[name]
        self.recipe = rf.tiny_recipe(scratch / f"{name}.yaml", **{key.replace(".", "__"): value for key, value in SHAPE.items()})
        self.flags = ["--train-layout", train, "--rollout-layout", rollout]
        if started:
            self.flags += ["--ranks", str(RANKS), *rf.sets({"run.device": "fake"})]
        if name == OFFLOADED:
            self.flags += rf.sets({f"memory.offload_train_{what}": "true" for what in ("param", "grad", "optimizer")})
        if sparse:
            program.done(["run", self.recipe, "--run-dir", scratch / "dense", "--steps", "1", "--no-eval"])
            self.flags += ["--model", small_model.write_moe(scratch / "experts", scratch / "dense/init/hf", **SPARSE)]
        self.stages, self.slowest, self.num_histories = collections.Counter(), 0, 0

    def arguments(self, folder, *more):
        return ["run", self.recipe, "--run-dir", folder, *self.flags, *more]

    def run_whole(self):
        self.whole = self.scratch / f"{self.name}_whole"
        self.program.done(self.arguments(self.whole), launcher=self.launcher)
        rf.check_whole(self.whole, STEPS)
        lines = rf.all_metrics(self.whole)
        assert sum(line["actor/grad_norm"] > 0 for line in lines) > STEPS / 2, "the reward gives no signal"
        assert all(line["switch/sent_bytes"] > 1 << 18 for line in lines), "the switches move nothing"
        spans = [e for e in rf.json.loads((self.whole / "trace.json").read_text())["traceEvents"] if e.get("ph") == "X"]
        stages = ("rollout", "train", "switch")
        lasting = {stage: statistics.median(e["dur"] / 1e6 for e in spans if e["name"] == stage) for stage in stages}
        self.seconds = {**lasting, "record": 0.05}
        told = ", ".join(f"{1000 * each:.0f} ms ({stage})" for stage, each in lasting.items())
        print(f"{self.name}: stages take {told}", flush=True)

    def killed(self, num_kills):
        """One history with that many kills at most. Returns how many there were."""
        folder, happened = self.scratch / f"{self.name}_killed", []
        shutil.rmtree(folder, ignore_errors=True)
        for _ in range(num_kills):
            arguments = self.arguments(folder, *(["--resume"] if folder.exists() else []))
            job = Job(self.program, arguments, self.scratch / "codes", self.started)
            strike = Strike(self.rng, self.seconds, in_switch=self.stages.total() % 2 == 0)
            if not strike.run(job):
                assert job.end(120) == 0, job.text[-3000:]
                break
            self.slowest = max(self.slowest, strike.check(job))
            self.stages[strike.stage] += 1
            happened.append(f"{strike} with {prefix_of(folder, self.whole, self.scratch)} samples kept")
        self.program.done(self.arguments(folder, "--resume"), launcher=self.launcher)
        rf.check_whole(folder, STEPS)
        rf.check_equal(folder, self.whole, self.name)
        weights = [(each / "checkpoint/latest/hf/model.safetensors").read_bytes() for each in (folder, self.whole)]
        assert weights[0] == weights[1], self.name
        self.num_histories += 1
        print(f"{self.name}: {'; '.join(happened)}: equal bit for bit", flush=True)
        return len(happened)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--started", action="store_true")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=LAYOUTS, default="")
    options = parser.parse_args()
    if not options.started and not shutil.which("mpirun"):
        rf.skip("no mpirun")
    print(f"seed {options.seed}: repeat with --seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="tandem_kill_") as scratch:
        program = rf.Program(options.build, options.started)
        all_histories = [Histories(program, pathlib.Path(scratch), rng, name, options.started) for name in LAYOUTS
                         if options.only in ("", name)]
        for histories in all_histories:
            histories.run_whole()
        each, left = min(KILLS_OF_A_HISTORY, -(-options.kills // len(all_histories))), options.kills
        for round_number in range(2 * options.kills):  # a history may end before the moment of its kill
            if left > 0:
                left -= all_histories[round_number % len(all_histories)].killed(min(left, each))
        assert left == 0, f"{left} kills came too late"
        stages = sum((h.stages for h in all_histories), collections.Counter())
        assert stages["switch"] > 0, stages
        said(f"{stages.total()} kills, {dict(stages)}: every survivor knew who died within {max(h.slowest for h in all_histories):.2f} s; "
             f"{sum(h.num_histories for h in all_histories)} histories ended as one that was never killed, bit for bit")


if __name__ == "__main__":
    main()
