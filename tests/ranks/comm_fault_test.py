#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Of four processes one is killed, stopped, sleeps too long, is slow or throws, before any operation of the world or of a pair, or within
a split, where its peers wait in MPI itself.
Whoever lives names it, soon, in its log and in its last error; all end, with exit code 3. --faults N: how many. --started: rank 0 starts
the others, without MPI."""
import argparse
import concurrent.futures
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import run_folder as rf  # noqa: E402

RANKS = 4
OPERATIONS = ("barrier", "broadcast", "all_reduce", "all_gather", "reduce_scatter", "all_to_all_v", "send", "receive", "split")
KINDS = ("kill", "stop", "sleep", "throw", "slow", "within")
NEEDS_DEADLINE = ("stop", "sleep")
DEADLINE_S, FAR_S = 2, 60  # a death and an exception must show long before a deadline
TOLD_S, END_S = 2, 8       # after the fault: a log line of each survivor; after the deadline, where it is one: the end of all
# Keeps the exit code of a process that mpirun does not tell.
KEEP_CODE = ["sh", "-c", '"$@"; echo $? >"$0/code.$OMPI_COMM_WORLD_RANK"']


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Job:
    """One job and what it says, line by line with the time."""

    def __init__(self, program, started, kind, operation, group, culprit, seed):
        operation = "split" if kind == "within" else operation
        self.name = f"{kind} rank {culprit} before {operation} of group {group}, seed {seed}"
        self.started, self.kind, self.culprit = started, kind, culprit
        self.deadline = DEADLINE_S if kind in NEEDS_DEADLINE + ("slow",) else FAR_S
        self.survivors = [rank for rank in range(RANKS) if rank != culprit]
        self.lines = []
        with tempfile.TemporaryDirectory(prefix="tandem_fault_") as folder:
            self.folder = pathlib.Path(folder)
            launcher, keep = [] if started else rf.mpi(RANKS), []
            if kind == "kill" and not started:  # mpirun would end the survivors before they can say a word
                launcher, keep = [launcher[0], "--enable-recovery", *launcher[1:]], [*KEEP_CODE, folder]
            command = [*launcher, *keep, program, kind, operation, str(group), str(culprit), str(seed), str(self.deadline), folder,
                       str(RANKS if started else 0)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            reader = threading.Thread(target=self.read)
            reader.start()
            try:
                self.code = self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()  # this test started it
                self.process.wait()
                self.code = "none within 60 s"
            self.seconds = time.monotonic()
            reader.join()
            self.ends, self.codes = self.left("end"), self.left("code")
            self.pids = [int(text) for text in self.left("pid").values()]
            for _ in range(20):  # mpirun's children end a moment after it
                self.living = [pid for pid in self.pids if lives(pid)]
                if self.living:
                    time.sleep(0.1)

    def left(self, name):
        """By rank, what its files of that name hold."""
        return {int(path.suffix[1:]): path.read_text().strip() for path in self.folder.glob(name + ".*")}

    def read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def time_of(self, text):
        return next((when for when, line in self.lines if text in line), None)

    def faults(self):
        """What is wrong, in words."""
        begin = self.time_of("FAULT")
        if begin is None or len(self.pids) != RANKS:
            return ["the job did not come to its fault"]
        if self.kind == "slow":
            return [] if self.code == 0 and len(self.ends) == RANKS else [f"exit code {self.code}, {self.ends}"]
        found = []
        expected = -9 if self.kind == "kill" and self.culprit == 0 else 3
        if (self.started or self.kind != "kill") and self.code != expected:
            found.append(f"exit code {self.code}")
        if self.kind == "kill" and not self.started and not self.all_left_with_3():
            found.append(f"exit codes {self.codes}")
        limit = END_S + (self.deadline if self.kind in NEEDS_DEADLINE else 0)
        if self.seconds - begin > limit:
            found.append(f"ended after {self.seconds - begin:.1f} s")
        for rank in self.survivors:
            found += self.faults_of(rank, begin)
        return found + [f"process {pid} is left" for pid in self.living]

    def all_left_with_3(self):
        """Of a killed rank's survivors. One that is stuck in MPI calls MPI_Abort, upon which mpirun ends those that still wait for it:
        they leave no code, and faults_of holds them to what they logged."""
        aborted = [int(rank) for _, line in self.lines for rank in re.findall(r"MPI_ABORT was invoked on rank (\d+)", line)]
        excused = {rank for rank in self.survivors for by in aborted if by != rank}
        return all(self.codes.get(rank, "3" if rank in excused else None) == "3" for rank in self.survivors)

    def faults_of(self, rank, begin):
        found = []
        logged = [line for _, line in self.lines if line.startswith(f"tandem: error: rank {rank}: ")]
        # Who leaves no file has called MPI_Abort, or mpirun was quicker; then the log has its error.
        code, _, error = self.ends.get(rank, "3 " + (logged or [""])[-1]).partition(" ")
        if code != "3":
            found.append(f"rank {rank} has exit code {code}")
        failed = "rank {} failed: injected"
        says = {"kill": "rank {} died", "throw": failed, "within": failed}.get(self.kind, "no sign of rank {}[ ,]").format(self.culprit)
        if not re.search(rf"rank {rank}: \w+ in group '\w+'.*{says}", error):
            found.append(f"rank {rank} says `{error}`")
        warning = {"kill": "is gone", "stop": "sends no heartbeat"}.get(self.kind)
        told = self.time_of(f"rank {rank}: rank {self.culprit} {warning}")
        if warning and (told is None or told - begin > TOLD_S):
            found.append(f"rank {rank} logs the loss after {told and told - begin} s")
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--started", action="store_true")
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not options.started and not shutil.which("mpirun"):
        rf.skip("no mpirun")
    print(f"seed {options.seed}", flush=True)
    draw = random.Random(options.seed)
    first = draw.randrange(len(OPERATIONS))
    plans = [(KINDS[i % len(KINDS)], OPERATIONS[(first + i) % len(OPERATIONS)], draw.randrange(3), draw.randrange(RANKS),
              draw.randrange(1 << 30)) for i in range(options.faults)]
    program = f"{options.build}/tests/ranks/comm_fault_rank"
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for job in pool.map(lambda plan: Job(program, options.started, *plan), plans):
            faults = job.faults()
            failed += bool(faults)
            if faults:
                print(f"FAILED  {job.name}: " + "; ".join(faults) + "\n" + "\n".join(line for _, line in job.lines), flush=True)
    assert not failed, f"{failed} of {options.faults}"
    rf.said(f"{options.faults} faults among {RANKS} processes: every survivor named the culprit, all ended in time with exit code 3")


if __name__ == "__main__":
    main()
