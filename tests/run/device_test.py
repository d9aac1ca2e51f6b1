#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""On a fake device, which does everything late, whole runs have the bits of the processor with the same kernels."""
import json
import os
import pathlib
import signal
import tempfile

import run_folder as rf

OFFLOAD = {f"memory.offload_train_{what}": "true" for what in ("param", "grad", "optimizer")}
program = rf.built_program(fake=True)


def run(root, name, settings, flags, device):
    folder = f"{root}/{name}-{device}"
    recipe = rf.tiny_recipe(f"{root}/{name}.yaml", run__steps=4, eval__every_steps=2)
    alike = {"run.kernels": "aten", "rollout.packed_weights": "false"}  # a packed copy is the processor's alone, with other bits
    program.done(["run", recipe, "--run-dir", folder, *flags, *rf.sets({**settings, **alike, "run.device": device})])
    return folder


def has_the_bits_of_the_processor(root, name, settings, flags=()):
    there, here = run(root, name, settings, flags, "fake"), run(root, name, settings, flags, "cpu")
    rf.check_equal(there, here, name)
    assert any(m["actor/grad_norm"] > 0 for m in rf.metrics(here)), "without a signal equal runs prove little"
    rf.said(f"{name}: the bits of the processor")
    return there


def check_runs(root):
    plain = has_the_bits_of_the_processor(root, "graphs", {})
    has_the_bits_of_the_processor(root, "half", {"model.dtype": "bfloat16", "run.parity": "false", "rollout.graphs": "false"})
    has_the_bits_of_the_processor(root, "threads", {"parallel.threads": 2, "model.init_hidden": 128})
    lean = has_the_bits_of_the_processor(root, "offloaded", OFFLOAD)
    captured = [line for line in pathlib.Path(lean, "log.txt").read_text().splitlines() if " graphs of up to " in line]
    assert len(captured) == 1, f"a cache that leaves for training and comes back to graphs that are there: {captured}"
    rf.check_equal(lean, plain, "what leaves the device comes back")
    assert all(m["memory/offload_copied_bytes"] > 0 for m in rf.all_metrics(lean)), "something left"
    has_the_bits_of_the_processor(root, "adapters", {"model.lora_rank": 4, "run.parity": "false", "rollout.graphs": "false"})
    has_the_bits_of_the_processor(root, "switch", {"run.parity": "false", "rollout.graphs": "false"},
                                  ["--ranks", "2", "--train-layout", "tp2", "--rollout-layout", "dp2"])
    layouts = ["--ranks", "4", "--train-layout", "dp2,tp2", "--rollout-layout", "dp4"]
    has_the_bits_of_the_processor(root, "four", {"run.parity": "false", "rollout.graphs": "false"}, layouts)
    has_the_bits_of_the_processor(root, "split", {"parallel.placement": "split"}, ["--ranks", "2"])
    return plain


def check_started_ranks(root):
    """Two ranks of a device each, processes that the first has started: one that is interrupted goes on, and so one that is killed."""
    flags = ["--ranks", "2", "--train-layout", "tp2", "--rollout-layout", "dp2"]
    alike = {"run.kernels": "aten", "rollout.packed_weights": "false", "run.parity": "false", "rollout.graphs": "false"}
    recipe, whole = rf.tiny_recipe(f"{root}/started.yaml", run__steps=16), f"{root}/started-cpu"
    program.done(["run", recipe, "--run-dir", whole, *flags, *rf.sets({**alike, "run.device": "cpu"})])
    for name, number, code in (("interrupted", signal.SIGINT, 130), ("killed", signal.SIGKILL, -signal.SIGKILL)):
        folder = pathlib.Path(root, name)
        again = ["run", recipe, "--run-dir", str(folder), *flags, *rf.sets({**alike, "run.device": "fake"})]
        process = program.start(again, start_new_session=True)
        assert rf.wait_for(lambda: rf.committed_steps(folder), process), process.communicate()[1][-3000:]
        others = [pid for pid in rf.children_of(process.pid) if b"TANDEM_STARTED_RANK=1 " in rf.environment_of(pid)]
        assert len(others) == 1, others
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # its own session: what Ctrl-C reaches
        else:
            os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code and ("tandem: error" in err) == (code != 130), (process.returncode, err[-3000:])
        rf.wait_until(lambda: not pathlib.Path(f"/proc/{others[0]}").exists(), 10, "a rank outlives the first")
        program.done([*again, "--resume"])
        rf.check_equal(folder, whole, name)
    rf.said("two processes that the first has started: interrupted or killed, and resumed, equal bit for bit")


def check_resume(root):
    """Of a run that stopped on one device, the rest on the other."""
    whole = f"{root}/graphs-cpu"
    folder = f"{root}/goes-on"
    again = ["run", f"{root}/graphs.yaml", "--run-dir", folder, "--set", "run.kernels=aten"]
    program.done([*again, "--steps", "2", "--set", "run.device=fake"])
    program.done([*again, "--steps", "4", "--resume", "--set", "run.device=cpu"])
    assert rf.metrics(folder)[2:] == rf.metrics(whole)[2:], "a run that goes on elsewhere"
    rf.said("a run that stopped on the fake device goes on on the processor, bit for bit")


def check_commands(model):
    prompts = "".join(json.dumps({"prompt_ids": [5, 9, n]}) + "\n" for n in range(3, 9))
    answers = []
    for device in ("cpu", "fake"):
        out = program.done(["generate", "--model", model, "--device", device, "--kernels", "aten", "--parity", "--max-new-tokens", "7",
                            "--temperature", "0", "--logprobs", "--ignore-eos"], stdin=prompts)
        answers.append(out.stdout)
    assert answers[0] == answers[1], answers
    rf.said("generate: the same answers and log-probabilities")


def check_refusals(root, model):
    recipe = rf.tiny_recipe(f"{root}/refused.yaml")
    start = ["run", recipe, "--run-dir", f"{root}/refused"]
    program.refused([*start, *rf.sets({"run.device": "fake", "run.kernels": "cpu"})], 2, "run.kernels", "is cpu", "fake:0", "auto or aten")
    program.refused([*start, "--set", "run.device=tpu"], 2, "run.device", "tpu", "cuda")
    program.refused(["generate", "--model", model, "--kernels", "cuda"], 2, "--kernels", "is cuda", "cpu", "auto, cpu or aten")
    if not json.loads(program.done(["doctor", "--json"]).stdout)["devices"]:
        program.refused([*start, "--set", "run.device=cuda"], 2, "run.device", "is cuda", "cpu")
        program.refused(["generate", "--model", model, "--device", "npu"], 2, "--device", "npu", "cpu")
    rf.said("what is not there, and kernels that do not serve a device, are refused before anything starts")


def main():
    with tempfile.TemporaryDirectory(prefix="tandem_device_") as root:
        plain = check_runs(root)
        check_resume(root)
        check_started_ranks(root)
        model = str(pathlib.Path(plain, "checkpoint/latest/hf"))
        check_commands(model)
        check_refusals(root, model)


main()
