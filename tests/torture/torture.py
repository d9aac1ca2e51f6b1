#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A campaign of faults against the built program: kinds of trials in turn until the minutes are over, each with a seed of its own. It
prints a table of what was tried, survived and failed, and each failure with the command that repeats it.

A kind is a function in a file of kinds/, listed in its TRIALS by name: trial(place) gets a Place, and raises AssertionError where the
program does not do what docs/reliability.md promises."""
import argparse
import collections
import contextlib
import ctypes
import importlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "run"), str(HERE)]
import run_folder as rf  # noqa: E402

MARK = "TANDEM_TORTURE"  # in the environment of every process of a trial
ENDS = (0, 2, 3, 130)    # exit codes that are no bug


class Place:
    """What one trial works with: the program, a folder that is gone afterwards, and its random numbers."""

    def __init__(self, program, shared, folder, rng):
        self.program, self.shared, self.folder, self.rng = program, shared, folder, rng
        self.env = {**os.environ, MARK: str(folder)}

    def run(self, arguments, *, plan=None, launcher=(), timeout=60, stdin="", **options):
        """Runs to its end, which must be one of ENDS. `plan` is a fault of the disk (faults.c)."""
        env = dict(self.env)
        if plan:
            env.update(LD_PRELOAD=str(self.library()), TANDEM_FAULT=plan)
        out = self.program.run(arguments, launcher=launcher, timeout=timeout, env=env, stdin=stdin, errors="replace", **options)
        said = f"{[str(a) for a in arguments]}{' under ' + plan if plan else ''}: exit code {out.returncode}\n{out.stderr[-2500:]}"
        assert out.returncode in ENDS, said
        assert "this is a bug of Tandem" not in out.stderr and "terminate called" not in out.stderr, said
        return out

    def done(self, arguments, **options):
        """Runs to exit code 0."""
        out = self.run(arguments, **options)
        assert out.returncode == 0, f"{[str(a) for a in arguments]}: exit code {out.returncode}\n{out.stderr[-2500:]}"
        return out

    def start(self, arguments, **options):
        return self.program.start(arguments, env=self.env, **options)

    def library(self):
        path = self.shared / "faults.so"
        if not path.exists():
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, HERE / "faults.c", "-ldl"], check=True)
        return path

    def once(self, name, make):
        """A folder that trials share: `make` fills it at the first call."""
        path = self.shared / name
        if not path.exists():
            half = self.shared / (name + ".half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            make(half)
            half.rename(path)
        return path


def adopt_orphans():
    """A process whose parent has ended becomes a child of this one, whatever its environment says."""
    PR_SET_CHILD_SUBREAPER = 36
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def processes_of(folder):
    """Processes that a trial left behind: orphans, and who bears its mark. Reaps those that have ended."""
    mark, found = f"{MARK}={folder}".encode(), []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if state == "Z" and int(parent) == os.getpid():
                os.waitpid(int(entry.name), os.WNOHANG)
            elif state != "Z" and (int(parent) == os.getpid() or mark in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def mounts():
    return pathlib.Path("/proc/self/mounts").read_text()


class Campaign:
    def __init__(self, program, scratch, kinds):
        self.program, self.scratch, self.kinds = program, scratch, kinds
        self.tried, self.failed = collections.Counter(), collections.Counter()
        self.seconds = collections.Counter()
        (scratch / "shared").mkdir()

    def attempt(self, name, seed):
        folder = self.scratch / f"{name}_{seed}"
        folder.mkdir()
        before, begin = mounts(), time.monotonic()
        self.tried[name] += 1
        try:
            self.kinds[name](Place(self.program, self.scratch / "shared", folder, random.Random(seed)))
            deadline = time.monotonic() + 10  # who was killed may take a moment to be gone
            while processes_of(folder) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not processes_of(folder), f"processes left: {processes_of(folder)}"
            assert mounts() == before, "a mount is left"
        except Exception as fault:  # also of the trial itself: it must not end the campaign
            self.failed[name] += 1
            place = traceback.extract_tb(fault.__traceback__)[-1]
            print(f"FAILED  {name}, at {place.name}:{place.lineno}: {type(fault).__name__}: {fault}", flush=True)
            print(f"  again: {sys.argv[0]} --only {name} --trial-seed {seed}", flush=True)
            for left in processes_of(folder):
                with contextlib.suppress(OSError):
                    os.kill(left, 9)
        finally:
            self.seconds[name] += time.monotonic() - begin
            shutil.rmtree(folder, ignore_errors=True)

    def table(self):
        print(f"{'kind':<20}{'tried':>8}{'survived':>10}{'failed':>8}{'seconds':>9}")
        for name in self.kinds:
            print(f"{name:<20}{self.tried[name]:>8}{self.tried[name] - self.failed[name]:>10}{self.failed[name]:>8}"
                  f"{self.seconds[name]:>9.0f}")
        print(f"{'all':<20}{self.tried.total():>8}{self.tried.total() - self.failed.total():>10}{self.failed.total():>8}"
              f"{sum(self.seconds.values()):>9.0f}")


def all_kinds():
    found = {}
    for path in sorted((HERE / "kinds").glob("*.py")):
        found.update(importlib.import_module(f"kinds.{path.stem}").TRIALS)
    return found


def main():
    kinds = all_kinds()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--minutes", type=float, default=0.6, help="no trial begins later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=sorted(kinds), help="of these kinds alone")
    parser.add_argument("--trial-seed", type=int, help="one trial of each kind, with this seed")
    options = parser.parse_args()
    adopt_orphans()
    kinds = {name: trial for name, trial in kinds.items() if not options.only or name in options.only}
    print(f"seed {options.seed}: repeat with --seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="tandem_torture_") as scratch:
        campaign = Campaign(rf.Program(options.build), pathlib.Path(scratch), kinds)
        end = time.monotonic() + 60 * options.minutes
        while options.trial_seed is None and time.monotonic() < end:
            for name in rng.sample(sorted(kinds), len(kinds)):
                if time.monotonic() < end:
                    campaign.attempt(name, rng.randrange(1 << 40))
        for name in kinds if options.trial_seed is not None else ():
            campaign.attempt(name, options.trial_seed)
        campaign.table()
    sys.exit(1 if campaign.failed or not campaign.tried else 0)


if __name__ == "__main__":
    main()
