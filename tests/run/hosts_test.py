#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run on two machines ends as the same run on one: metrics, samples and weights, bit for bit. The machines are network namespaces.
--full runs the quickstart recipe as it stands on both and compares how its accuracy grows."""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import run_folder as rf
from run_folder import said
from two_hosts import SUBNET, TwoHosts

RANKS = 4
MPI = rf.mpi(RANKS)
# The quickstart recipe, shortened, with a reward that gives so young a model signal.
SHORT = {
    "run.steps": 4, "supervised.steps": 6, "supervised.batch_size": 32,
    "schedule.groups_per_step": 8, "schedule.group_size": 4, "rollout.max_running": 32, "data.synthetic_eval_rows": 20,
    "eval.every_steps": 2, "checkpoint.every_steps": 2, "reward.rule": "regex", "reward.pattern": "[0-4]",
}
# The last two move weights between machines at a switch. Parity needs one tp.
LAYOUTS = [("dp2,tp2", "dp2,tp2", True), ("tp2,pp2", "dp2,tp2", True), ("dp2,tp2", "dp4", False)]


def flags(train, rollout):
    return ["--threads", "1", "--train-layout", train, "--rollout-layout", rollout]


def weights(folder):
    return (folder / "checkpoint/latest/hf/model.safetensors").read_bytes()


def check_equal(folder, other, what):
    """Which rank sends weights to whom depends on where they are, what arrives does not."""
    gains = [line["actor/grad_norm"] for line in rf.metrics(folder)]
    assert len(gains) == SHORT["run.steps"] and sum(gain > 0 for gain in gains) >= 2, f"equal runs without a signal prove little: {gains}"
    different = {k: (a.get(k), b.get(k)) for a, b in zip(rf.metrics(folder), rf.metrics(other), strict=True)
                 for k in a.keys() | b.keys() if a.get(k) != b.get(k) and not k.startswith("switch/")}
    assert not different, f"{what}: {different}"
    assert rf.samples(folder) == rf.samples(other), f"{what}: samples"
    assert rf.evals(folder) == rf.evals(other), f"{what}: answers of evaluations"
    assert weights(folder) == weights(other), f"{what}: weights"


def check_arguments(scratch):
    """What scripts/mpi refuses, each in one line that says what would be right."""
    hosts = {name: scratch / name for name in ("colon", "empty")}
    hosts["colon"].write_text("node1:4\n")
    hosts["empty"].write_text("# nobody\n\n")
    cases = [
        (["--interface", "eth99"], "--interface eth99: this machine has no such interface or subnet (it has "),
        (["--interface", "203.0.113.0/24"], "--interface 203.0.113.0/24: this machine has no such interface or subnet (it has "),
        (["--interface="], "--interface: names nothing (an interface or subnet of: "),
        (["--hostfile", "/no/hosts"], "--hostfile /no/hosts: cannot be read (a file with a line such as 'node1 slots=4' for each machine)"),
        (["--hostfile", hosts["colon"]], f"--hostfile {hosts['colon']}: has the line 'node1:4' ('node1 slots=4')"),
        (["--hostfile", hosts["empty"]], f"--hostfile {hosts['empty']}: names no machine (a line such as 'node1 slots=4' for each)"),
    ]
    for arguments, wanted in cases:
        out = subprocess.run([MPI[0], *arguments, "-n", "1", "true"], capture_output=True, text=True, timeout=60)
        assert out.returncode == 2 and out.stderr.startswith(f"scripts/mpi: error: {wanted}"), (arguments, out.returncode, out.stderr)
        assert out.stderr.count("\n") == 1, out.stderr
    out = subprocess.run([MPI[0], "-n", "2"], capture_output=True, text=True, timeout=60)
    assert out.returncode == 2 and "names no program" in out.stderr, out.stderr
    assert "--hostfile FILE" in subprocess.run([MPI[0], "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    said(f"scripts/mpi refuses {len(cases)} wrong arguments by name")


def check_where_ranks_are(hosts):
    command = hosts.mpi(MPI, "--map-by", "node") + ["sh", "-c", 'echo "$OMPI_COMM_WORLD_RANK $(hostname) $(readlink /proc/self/ns/net)"']
    out = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    told = [line.split() for line in sorted(out.stdout.split("\n")) if line]
    assert [name for _, name, _ in told] == 2 * hosts.names and len({where for _, _, where in told}) == 2, told
    assert f"ranks meet over {SUBNET}" in out.stderr, out.stderr
    said(f"{RANKS} ranks dealt to two machines in turn; without a word they meet over {SUBNET}")


def check_older_processor(program, scratch):
    """One rank's oneDNN sees an older processor: the ranks take products that both have."""
    recipe = rf.tiny_recipe(scratch / "older.yaml", run__parity=False, model__dtype="bfloat16")
    older = [*rf.mpi(2), "sh", "-c", '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || export ONEDNN_MAX_CPU_ISA=AVX512_CORE; exec "$@"', "rank"]
    chosen = []
    for name, launcher in (("alike", rf.mpi(2)), ("mixed", older)):
        err = program.done(["run", recipe, "--run-dir", scratch / name, "--threads", "1"], launcher=launcher).stderr
        chosen.append(re.search('to repeat: model.products="(.*)"', err)[1])
        assert len(rf.metrics(scratch / name)) == rf.TINY["run.steps"]
    assert "brgemm" not in chosen[1], chosen
    said(f"ranks on one kind of processor multiply by `{chosen[0]}`, with an older one among them by `{chosen[1]}`")


def check_refused(hosts, program):
    """An interface that is not there, to scripts/mpi and to the program."""
    out = subprocess.run(hosts.mpi(MPI, "--interface", "eth9") + ["true"], capture_output=True, text=True, timeout=60)
    assert out.returncode == 2 and f"has no such interface or subnet (it has link-a {SUBNET})" in out.stderr, (out.returncode, out.stderr)
    with tempfile.TemporaryDirectory(prefix="tandem_hosts_") as folder:
        recipe = rf.tiny_recipe(f"{folder}/recipe.yaml")
        launcher = hosts.mpi(MPI) + ["env", "TANDEM_INTERFACE=eth9"]
        line = program.refused(["run", recipe, "--run-dir", f"{folder}/run"], 2, "TANDEM_INTERFACE", "eth9", "link-a 10.77.0.1/24",
                               launcher=launcher)
    said(f"an interface that is not there: `{line}`")


def check_conformance(hosts, program):
    """The suite of all backends, with equally many ranks on both machines and not."""
    suite = pathlib.Path(program.tandem).parent / "tests/conformance/comm_processes_test"
    for first, second, options in ((2, 2, ["--map-by", "node"]), (3, 1, [])):
        hosts.hold(first, second)
        out = subprocess.run([*hosts.mpi(MPI, *options), suite, "mpi", "conform"], capture_output=True, text=True, timeout=120)
        assert out.returncode == 0, out.stderr[-3000:]
    hosts.hold(2, 2)
    said("the conformance suite of collectives between two machines")


class Runs:
    """Runs of one pair of layouts."""

    def __init__(self, program, folder, train, rollout, parity):
        self.program, self.folder, self.parity = program, folder, parity
        self.arguments = [*flags(train, rollout), *rf.sets({**SHORT, "run.parity": str(parity).lower()})]

    def run(self, name, launcher):
        """Returns (folder, standard error)."""
        folder = self.folder / name
        out = self.program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, *self.arguments], launcher=launcher,
                                timeout=300)
        return folder, out.stderr

    def one_machine(self):
        """A run on one machine. Without parity it measures which kernels are fastest, and those that follow take them."""
        folder, err = self.run("one", MPI)
        if not self.parity:
            self.arguments += rf.sets({"model.products": re.search('to repeat: model.products="(.*)"', err)[1]})
        return folder


# How ranks come to the two machines: in order, in turn, or unequally many; and what the log says of it.
DEALT = {
    "two": ((2, 2), [], "ranks 0-1 on {}, ranks 2-3 on {}"),
    "in turn": ((2, 2), ["--map-by", "node", "--interface", SUBNET],
                "ranks 0-1 on {} (the launcher's 0, 2), ranks 2-3 on {} (the launcher's 1, 3)"),
    "uneven": ((3, 1), [], "ranks 0-2 on {}, rank 3 on {}"),
}


def check_runs(hosts, program, scratch):
    for number, (train, rollout, parity) in enumerate(LAYOUTS):
        runs, crossed = Runs(program, scratch / f"runs{number}", train, rollout, parity), {}
        one = runs.one_machine()
        for name, (slots, options, told) in DEALT.items():
            hosts.hold(*slots)
            before = hosts.crossed_bytes()
            folder, err = runs.run(name, hosts.mpi(MPI, *options))
            crossed[name] = hosts.crossed_bytes() - before
            assert told.format(*hosts.names) + "\n" in err and "no TCP connection" not in err, err
            check_equal(folder, one, f"{train} -> {rollout}, {name}")
        hosts.hold(2, 2)
        assert min(crossed.values()) > 1 << 20, f"{crossed} bytes crossed the link: the machines did not talk over it"
        assert 0.9 < crossed["in turn"] / crossed["two"] < 1.1, f"{crossed} bytes crossed: ranks dealt in turn are not neighbours"
        said(f"train {train}, rollout {rollout}: two machines end as one, bit for bit; KiB over the link: "
             + ", ".join(f"{each >> 10} ({name})" for name, each in crossed.items()))


def check_death(hosts, program, scratch):
    """A rank of the other machine dies: the heartbeat, which has only the link, tells every survivor."""
    folder = scratch / "death"
    recipe = rf.tiny_recipe(scratch / "death.yaml", run__steps=100000, run__parity=False, parallel__deadline_s=60)
    keep = hosts.mpi(MPI, "--enable-recovery")
    process = program.start(["run", recipe, "--run-dir", folder, *flags("dp2,tp2", "dp4")], launcher=keep)
    assert rf.wait_for(lambda: len(rf.committed_steps(folder)) > 0, process), process.communicate()[1]
    victim = processes_of(hosts, 3)
    assert len(victim) == 1, victim
    begin = time.monotonic()
    os.kill(victim[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    seconds = time.monotonic() - begin
    for rank in range(3):
        assert f"rank {rank}: rank 3 is gone: its process died" in err, err[-3000:]
    assert seconds < 20, seconds
    said(f"rank 3 on the second machine killed: named by ranks 0, 1 and 2; ended after {seconds:.1f} s")


def check_cut_off(hosts, program, scratch):
    """The link breaks for a while: both sides say so, and go on once it is back. Then the run is told to end."""
    folder, log = scratch / "cut_off", scratch / "cut_off.log"
    recipe = rf.tiny_recipe(scratch / "cut_off.yaml", run__steps=100000, parallel__deadline_s=60)
    with open(log, "w") as out:
        command = [*hosts.mpi(MPI), program.tandem, "run", recipe, "--run-dir", str(folder), *flags("tp2,pp2", "dp2,tp2")]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out)
    try:
        assert rf.wait_for(lambda: len(rf.committed_steps(folder)) > 0, process), log.read_text()
        silent = [f"rank {each}: rank {other} sends no heartbeat" for each, other in ((0, 2), (0, 3), (1, 2), (1, 3))]
        hosts.set_link("down")
        begin = time.monotonic()
        rf.wait_until(lambda: all(line in log.read_text() for line in silent), 3, "a side does not say that the other is cut off")
        seconds = time.monotonic() - begin
        time.sleep(2)  # as long again: the second machine cannot be heard to say so before the link is back
        hosts.set_link("up")
        late = ["rank 2: rank 0 sends no heartbeat", "rank 3: rank 0 sends no heartbeat", "rank 0: rank 3 sends heartbeats again"]
        rf.wait_until(lambda: all(line in log.read_text() for line in late), 20, "the link is back, and nobody hears of it")
        before = rf.committed_steps(folder)[-1]
        rf.wait_until(lambda: rf.committed_steps(folder)[-1] > before + 2, 30, "the run does not go on")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == 130, log.read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
    assert "; --resume continues" in log.read_text()
    assert seconds < 2, seconds
    said(f"a broken link: both sides knew after {seconds:.1f} s and went on when it was back; SIGTERM saved and ended all with 130")


def processes_of(hosts, rank):
    """Processes of our program on the second machine that are this rank."""
    pids = subprocess.run(["ip", "netns", "pids", hosts.names[1]], check=True, capture_output=True, text=True).stdout.split()
    wanted = f"\0OMPI_COMM_WORLD_RANK={rank}\0".encode()
    return [int(pid) for pid in pids if wanted in pathlib.Path(f"/proc/{pid}/environ").read_bytes()]


def accuracy(folder):
    return {line["step"]: round(line["eval/accuracy"], 3) for line in rf.all_metrics(folder) if "eval/accuracy" in line}


def run_full(hosts, program, scratch):
    """The whole recipe, on one machine and on two."""
    curves = []
    for name, launcher in (("one", MPI), ("two", hosts.mpi(MPI))):
        begin = time.monotonic()
        arguments = ["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", scratch / name, *flags("dp2,tp2", "dp2,tp2")]
        program.done(arguments + ["--set", "run.parity=true"], launcher=launcher, timeout=3600)
        curves.append(accuracy(scratch / name))
        said(f"{name}: {time.monotonic() - begin:.0f} s, accuracy by step {curves[-1]}")
    assert curves[0] == curves[1] and weights(scratch / "one") == weights(scratch / "two")
    said("the whole recipe: accuracies and weights are equal bit for bit")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    if not shutil.which("mpirun"):
        rf.skip("no mpirun")
    program = rf.Program(options.build)
    with tempfile.TemporaryDirectory(prefix="tandem_hosts_") as scratch:
        check_arguments(pathlib.Path(scratch))
        check_older_processor(program, pathlib.Path(scratch))
        try:
            with TwoHosts(scratch) as hosts:
                hosts.hold(2, 2)
                if options.full:
                    run_full(hosts, program, pathlib.Path(scratch))
                    return
                check_where_ranks_are(hosts)
                check_refused(hosts, program)
                check_conformance(hosts, program)
                check_runs(hosts, program, pathlib.Path(scratch))
                check_death(hosts, program, pathlib.Path(scratch))
                check_cut_off(hosts, program, pathlib.Path(scratch))
        except TwoHosts.Unavailable as reason:
            rf.skip(str(reason))


if __name__ == "__main__":
    main()
