# SPDX-License-Identifier: Apache-2.0
"""algo.correction auto: what it comes to by what is known of rollout and training, where that is written, and that a resume and a run of
config.yaml choose the same. Prints a row for each pair: what was known, what was chosen, the measured gap."""
import json
import pathlib
import tempfile

import run_folder as rf
import small_model

checks = rf.Checks()
program = rf.built_program()
STEPS = 4


def options_of(folder):
    """Section algo of config.yaml, as text by option."""
    lines = pathlib.Path(folder, "config.yaml").read_text().splitlines()
    begin = lines.index("algo:") + 1
    end = next((i for i in range(begin, len(lines)) if lines[i] and not lines[i].startswith(" ")), len(lines))
    pairs = (line.split("#")[0].split(":", 1) for line in lines[begin:end] if ":" in line)
    return {name.strip(): value.strip().strip('"') for name, value in pairs}


def run(root, name, settings, flags=(), steps=STEPS):
    folder = f"{root}/{name}"
    base = {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.parity": "false", "eval.every_steps": 0, "run.steps": steps}
    program.quickstart(folder, {**base, **settings}, ["--no-eval", *flags])
    return folder


def reason_of(folder):
    said = [line for line in pathlib.Path(folder, "log.txt").read_text().splitlines() if "algo.correction: auto is " in line]
    return said[-1].split("algo.correction: auto is ")[1] if said else ""


def chosen(folder):
    state = json.loads(pathlib.Path(folder, "checkpoint/latest/state.json").read_text())["correction"]
    checks.check(state == options_of(folder)["correction"], f"{folder}: the checkpoint says {state}")
    return state


def pairs(root, moe):
    half = {"rollout.dtype": "bfloat16"}
    stale = {"schedule.kind": "stale", "schedule.staleness": 2}
    sparse = {"model.path": moe}
    for name, settings, flags, want, clause in (
            ("float32", {}, [], "none", "the same policy"),
            ("two_epochs", {"algo.epochs": 2}, [], "token", "several updates"),
            ("mini_batches_ppo", {"algo.name": "ppo", "algo.mini_batches": 2}, [], "token", "several updates"),
            ("bfloat16", {"model.dtype": "bfloat16"}, [], "token", "rounds differently"),
            ("rollout_bfloat16", half, [], "token", "rollout computes in bfloat16"),
            ("lora_float32", {"model.lora_rank": 2}, [], "none", "the same policy"),
            ("lora_bfloat16", {"model.lora_rank": 2, "model.dtype": "bfloat16"}, [], "token", "rounds differently"),
            ("experts", sparse, [], "token", "other experts"),
            ("experts_replayed", {**sparse, "schedule.routing_replay": "true"}, [], "none", "the same policy"),
            ("stale", stale, [], "token", "older weights"),
            ("worker_float32", {}, ["--rollout-workers", "1"], "none", "the same policy"),
            ("worker_bfloat16", half, ["--rollout-workers", "1"], "token", "rollout computes in bfloat16"),
            ("parity", {"run.parity": "true", "model.dtype": "bfloat16"}, [], "none", "the same policy"),
            ("said", {**half, "algo.correction": "none"}, [], "none", "")):
        folder = run(root, name, settings, flags)
        got, why = chosen(folder), reason_of(folder)
        checks.check(got == want, f"{name}: auto is {got}, expected {want}")
        checks.check(clause in why, f"{name}: the log says {why!r}")
        checks.check((options_of(folder)["off_policy_delta"] == "0.1") == (name == "stale"), f"{name}: a mask for older samples alone")
        weighs = ["correction/weight_mean" in line for line in rf.all_metrics(folder)]
        checks.check(all(weighs) if want == "token" else not any(weighs), f"{name}: weights in the metrics: {weighs}")
        first = rf.all_metrics(folder)[0]
        measured = [first[metric] for metric in ("gap/mean", "gap/p99", "gap/max", "actor/kl_rollout_train")]
        print(" | ".join(["", name, *(f"{value:.2g}" for value in measured), got, why, ""]), flush=True)


def choosing_again(root):
    """A resume and a run of config.yaml choose the same; a resume whose recipe adds a difference corrects from there on."""
    for name in ("float32", "bfloat16"):
        folder, settings = f"{root}/{name}", {} if name == "float32" else {"model.dtype": "bfloat16"}
        before = chosen(folder)
        run(root, name, settings, ["--resume"], STEPS + 2)
        checks.check(chosen(folder) == before, f"{name}: a resume chooses {chosen(folder)}")
        again = f"{root}/{name}_again"
        program.done(["run", f"{folder}/config.yaml", "--run-dir", again, "--steps", STEPS, "--no-eval"])
        checks.check(chosen(again) == before, f"{name}: config.yaml chooses {chosen(again)}")
        same = "step, sample_id, response_ids, score"
        checks.check([row for row in rf.samples(folder, same) if row[0] <= STEPS] == rf.samples(again, same), f"{name}: the same samples")
    run(root, "float32", {"rollout.dtype": "bfloat16"}, ["--resume"], STEPS + 4)
    checks.check(chosen(f"{root}/float32") == "token", "a known difference is corrected from the resume on")
    run(root, "float32", {}, ["--resume"], STEPS + 6)
    checks.check(chosen(f"{root}/float32") == "token", "a run that corrects goes on to do so")
    checks.check("as the checkpoint has it" in reason_of(f"{root}/float32"), reason_of(f"{root}/float32"))


def main():
    with tempfile.TemporaryDirectory() as root:
        like = run(root, "like", {}, steps=1) + "/init/hf"
        pairs(root, small_model.write_moe(pathlib.Path(root, "moe_model"), like))
        choosing_again(root)
    checks.exit()


if __name__ == "__main__":
    main()
