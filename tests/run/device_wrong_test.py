#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wrong uses of devices: each ends with one line that says what would be right, and a device that is lost ends a run that goes on later."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import run_folder as rf

program = rf.built_program(fake=True)
MODEL = str(rf.ROOT / "tests/fixtures/qwen2_tied")
PROMPT = json.dumps({"prompt_ids": [5, 9, 3]}) + "\n"
HAS_CUDA = any("cuda" in str(d) for d in json.loads(program.done(["doctor", "--json"]).stdout)["devices"])
count = 0


def wrong(arguments, code, *parts, trouble="", **options):
    """One more wrong use: its exit code, and words of its one line."""
    global count
    count += 1
    environment = dict(os.environ, **({"TANDEM_FAKE_DEVICE": trouble} if trouble else {}))
    line = program.refused(arguments, code, *parts, env=environment, **options)
    assert line.endswith(")") or code == 1, f"no word of what would be right: {line}"
    return line


class Runs:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.recipe = rf.tiny_recipe(self.root / "tiny.yaml", run__steps=6, checkpoint__every_steps=2)

    def start(self, *more, folder="never", command="run", **settings):
        words = rf.sets({name.replace("__", "."): value for name, value in settings.items()})
        return [command, self.recipe, "--run-dir", str(self.root / folder), *words, *more]

    def left_nothing(self):
        assert not (self.root / "never").exists(), "a run that was refused left a folder"


def check_words(runs):
    """Names of devices and kernels that there are not."""
    wrong(runs.start(run__device="tpu"), 2, "run.device", "tpu", "auto cpu cuda")
    wrong(runs.start(run__device="cuda:1"), 2, "run.device", "cuda:1", "auto cpu cuda")
    wrong(runs.start("--device", "gpu"), 2, "run.device", "gpu", "auto cpu cuda")
    wrong(runs.start(run__kernels="fast"), 2, "run.kernels", "fast", "auto cpu cuda npu aten")
    wrong(runs.start(rollout__graphs="maybe"), 2, "rollout.graphs", "maybe", "true or false")
    for command in ("generate", "eval", "logprobs", "talk"):
        wrong([command, "--model", MODEL, "--device", "tpu"], 2, "--device", "tpu", "auto cpu cuda")
    wrong(["doctor", "--device", "tpu"], 2, "--device", "tpu", "auto cpu cuda")
    wrong(["doctor", "--kernels", "aten"], 2, "--kernels", "--device")
    wrong(["doctor", "--out", str(runs.root / "proof.json")], 2, "--out", "--device")
    wrong(["doctor", "--full"], 2, "--full", "--device")
    wrong(["doctor", "--device", "cpu", "--kernels", "fast"], 2, "--kernels", "fast", "auto cpu cuda npu aten")
    wrong(["bench", "generate", "--model", MODEL, "--device", "tpu"], 2, "--device", "tpu", "auto cpu cuda")


def check_absent(runs):
    """A device that this machine, or this build, does not have."""
    if HAS_CUDA:
        return
    wrong(runs.start(run__device="cuda"), 2, "run.device", "is cuda, and", "cpu")
    wrong(runs.start(command="sft", run__device="cuda"), 2, "run.device", "is cuda, and", "cpu")
    for command in (["generate"], ["eval", "--data", "synthetic", "--reward", "number"], ["logprobs"], ["talk"]):
        wrong([*command, "--model", MODEL, "--device", "cuda"], 2, "--device", "is cuda, and", "cpu", stdin=PROMPT)
    wrong(["doctor", "--device", "cuda"], 2, "--device", "is cuda, and", "cpu")
    wrong(["bench", "generate", "--model", MODEL, "--device", "cuda"], 2, "--device", "is cuda, and", "cpu")
    lengths = str(rf.ROOT / "bench/lengths/train-small-32x384.json")
    wrong(["bench", "train_step", "--model", MODEL, "--device", "cuda", "--lengths", lengths], 2, "--device", "is cuda, and", "cpu")
    wrong(runs.start(run__kernels="cuda"), 2, "run.kernels", "is cuda", "auto, cpu or aten")
    wrong(["generate", "--model", MODEL, "--kernels", "cuda"], 2, "--kernels", "is cuda", "auto, cpu or aten")


def check_kernels(runs):
    wrong(runs.start(run__device="fake", run__kernels="cpu"), 2, "run.kernels", "is cpu", "fake:0", "auto or aten")
    wrong(["generate", "--model", MODEL, "--device", "fake", "--kernels", "cpu"], 2, "--kernels", "is cpu", "fake:0", "auto or aten")
    wrong(["doctor", "--device", "cpu", "--kernels", "npu"], 2, "--kernels", "is npu", "cpu", "auto, cpu or aten")
    wrong(["doctor", "--device", "fake", "--kernels", "cpu"], 2, "--kernels", "is cpu", "fake:0", "auto or aten")


def check_too_many(runs):
    for ranks, there, trouble in ((17, 16, ""), (2, 1, "devices=1")):
        wrong(runs.start("--ranks", str(ranks), "--train-layout", f"dp{ranks}", run__device="fake"), 2, "run.device",
              f"{there} of them for its {ranks} ranks", "one device for each rank", trouble=trouble)
    wrong(runs.start(run__device="fake"), 2, "run.device", "is fake", "there is none", "cpu", trouble="devices=0")
    for words in ("devices=17", "lost_after=soon", "mib", "heat=9"):
        wrong(runs.start(run__device="fake"), 2, "TANDEM_FAKE_DEVICE", words.split("=")[0], trouble=words)


def check_memory(runs):
    """Less memory than the weights, the passes or an answer need."""
    fake = {"run__device": "fake", "run__kernels": "aten"}
    wrong(runs.start(folder="weights", **fake, model__init_hidden=512), 3, "memory", "need less", trouble="mib=4")
    wrong(runs.start(folder="passes", **fake, schedule__groups_per_step=64), 3, "memory", "need less", trouble="mib=9")
    wrong(["generate", "--model", MODEL, "--device", "fake"], 3, "memory", "need less", trouble="mib=1", stdin=PROMPT)
    wrong(runs.start(folder="budget", **fake, memory__device_mib=1, model__init_hidden=512), 2, "memory.device_mib")


def check_mixed(runs):
    """Ranks of one job on devices of several kinds, or told of several."""
    if not shutil.which("mpirun"):
        return
    mpi = [str(rf.ROOT / "scripts/mpi"), "-n", "1"]
    command = [program.tandem, *runs.start("--train-layout", "dp2", run__kernels="aten", folder="mixed")]
    for first, second, parts in (
            (["env", "TANDEM_FAKE_DEVICE=is_found", *command, "--set", "run.device=auto"], [*command, "--set", "run.device=auto"],
             ("run.device", "is fake on rank 0 and cpu on rank 1", "cpu, or machines that all have a device")),
            ([*command, "--set", "run.device=fake"], [*command, "--set", "run.device=cpu"], ("run.device", "fake", "cpu"))):
        global count
        count += 1
        out = subprocess.run([*mpi, *first, ":", "-n", "1", *second], capture_output=True, encoding="utf-8", timeout=120)
        lines = [line for line in out.stderr.splitlines() if line.startswith("tandem: error: ")]
        assert out.returncode == 2 and len(lines) == 1 and all(part in lines[0] for part in parts), out.stderr[-2000:]


def check_dealt(runs):
    """A launcher that lets each rank see one device: another one each is right, the same is not."""
    if not shutil.which("mpirun"):
        return
    global count
    mpi = str(rf.ROOT / "scripts/mpi")
    command = [program.tandem, *runs.start("--train-layout", "dp2", run__kernels="aten", run__device="fake", run__steps=2, folder="dealt")]

    def dealt(*firsts):
        ranks = [["-n", "1", "env", f"TANDEM_FAKE_DEVICE=devices=1,first={first}", *command] for first in firsts]
        return subprocess.run([mpi, *ranks[0], ":", *ranks[1]], capture_output=True, encoding="utf-8", timeout=120)

    out = dealt(3, 3)
    assert out.returncode == 2 and "1 of them for its 2 ranks" in out.stderr, out.stderr[-2000:]
    count += 1
    out = dealt(3, 5)
    assert out.returncode == 0, out.stderr[-2000:]
    rf.said("ranks that see one device each, of which no two are the same, take these")


def check_lost(runs):
    """A device that is lost: one line, exit code 3, and the run goes on from its checkpoint to the end of one that lost none."""
    global count
    fake = {"run__device": "fake", "run__kernels": "aten"}
    whole = runs.start(folder="whole", **fake)
    program.done(whole)
    wrong(runs.start(folder="at_once", **fake), 3, "device failed", "it is lost", "tandem doctor", trouble="lost_after=1")
    for pieces in range(16000, 100000, 6000):  # until it is lost behind the first steps
        folder = f"lost_after_{pieces}"
        lost = runs.start(folder=folder, **fake)
        line = wrong(lost, 3, "device failed", "it is lost", "--resume", trouble=f"lost_after={pieces}")
        if at := rf.committed_steps(runs.root / folder):
            break
        count -= 1  # the same use again
    assert at and at[-1] < 6, f"lost in the middle, not after {at}"
    program.done([*lost, "--resume"])
    rf.check_equal(runs.root / folder, runs.root / "whole", "lost and resumed")
    rf.said(f"a device that is lost after step {at[-1]}: `{line}`; resumed, equal bit for bit")
    two = ("--ranks", "2", "--train-layout", "dp2")
    wrong(runs.start(*two, folder="one_of_two", **fake), 3, "rank 1", "device failed", "it is lost", trouble="lost_after=9000,device=1")
    if shutil.which("mpirun"):
        wrong(runs.start("--train-layout", "dp2", folder="one_of_two_mpi", **fake), 3, "rank 1", "device failed", "it is lost",
              trouble="lost_after=9000,device=1", launcher=rf.mpi(2))
    wrong(["generate", "--model", MODEL, "--device", "fake"], 3, "device failed", "it is lost", trouble="lost_after=300", stdin=PROMPT)
    wrong(["doctor", "--device", "fake"], 3, "device failed", "it is lost", trouble="lost_after=3000")
    wrong(runs.start(run__proof="always", folder="never", **fake), 3, "device failed", "it is lost", trouble="lost_after=100")


def check_untrusted(runs):
    """A device that computes something wrong: the kernel is named, and no run begins."""
    wrong(runs.start(run__device="fake", run__proof="always"), 3, "device fake:0", "does not prove itself", "more",
          "tandem doctor --device fake", trouble="wrong=aten::exp")
    runs.left_nothing()
    wrong(["doctor", "--device", "fake", "--json"], 1, "fake: it does not prove itself", "kernel ", trouble="wrong=aten::exp")
    wrong(runs.start(run__proof="maybe"), 2, "run.proof", "maybe", "auto always never")


def check_builds(runs):
    """A build for a device with a torch that is not for it."""
    global count
    common = ["cmake", "-S", rf.ROOT, "-G", "Ninja", "-DTANDEM_TESTS=OFF", f"-DTANDEM_PYTHON={sys.executable}",
              f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}"]
    for option, words in (("TANDEM_CUDA", "CUDA"), ("TANDEM_NPU", "npu")):
        count += 1
        out = subprocess.run([*common, "-B", runs.root / option, f"-D{option}=ON"], capture_output=True, encoding="utf-8", timeout=120)
        if option == "TANDEM_CUDA" and HAS_CUDA:
            continue
        assert out.returncode != 0 and words in out.stderr, out.stderr[-2000:]


def main():
    with tempfile.TemporaryDirectory(prefix="tandem_wrong_") as root:
        runs = Runs(root)
        for check in (check_words, check_absent, check_kernels, check_too_many):
            check(runs)
            runs.left_nothing()
        for check in (check_untrusted, check_memory, check_mixed, check_dealt, check_lost, check_builds):
            check(runs)
        assert count >= 40, count
        rf.said(f"{count} wrong uses end with a line that says what would be right")


main()
