#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tandem run --fit: under a limit of memory in which the defaults fail it finds sizes that run; what the user set stays; the same recipe
chooses the same."""
import pathlib
import re
import resource

import run_folder as rf
from run_folder import said

MIB = 1 << 20
OPTIONS = ("micro_batch_tokens", "logprob_micro_batch_tokens", "reference_micro_batch_tokens", "kv_cache_mib", "max_running")
SECTIONS = {"kv_cache_mib": "rollout", "max_running": "rollout"}
# Passes of 8,192 tokens, the default, take more than 1 GiB; a step has more.
WIDE = {"model.init_hidden": 128, "model.init_layers": 16, "model.init_heads": 4, "model.init_kv_heads": 4, "model.init_intermediate": 512,
        "schedule.groups_per_step": 48, "schedule.group_size": 4, "rollout.max_new_tokens": 48, "rollout.ignore_eos": "true",
        "reward.pattern": "^[0-4]", "run.steps": 1, "data.eval": "", "algo.kl_coef": 0, "run.parity": "false",
        "model.products": "blas blas blas float"}


def recipe(folder, **more):
    return rf.tiny_recipe(folder / "recipe.yaml", **{name.replace(".", "__"): value for name, value in {**WIDE, **more}.items()})


def limited(mib):
    """What a child does first: it may have so much writable memory of its own."""
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (mib * MIB, mib * MIB))


def chosen(folder):
    """Each option's value in config.yaml."""
    text, values = (folder / "config.yaml").read_text(), {}
    for name in OPTIONS:
        section = text.split(f"\n{SECTIONS.get(name, 'train')}:\n", 1)[1]
        values[name] = int(re.search(rf"^  {name}: (\d+)", section, re.M)[1])
    return values


def table(log):
    """Rows by option."""
    return {line.split()[0]: line for line in log.splitlines() if re.match(r"  (train|supervised|rollout|critic)\.\w+ ", line)}


def check_limit(program, scratch):
    """Where the defaults run out of memory, fitted sizes do not."""
    path, most = recipe(scratch), 1100
    run = ["run", path, "--threads", "1"]
    failed = program.run([*run, "--run-dir", scratch / "plain"], preexec_fn=limited(most), timeout=300)
    assert failed.returncode == 3 and "memory" in failed.stderr, (failed.returncode, failed.stderr[-2000:])
    out = program.done([*run, "--run-dir", scratch / "fitted", "--fit"], preexec_fn=limited(most), timeout=300)
    values, rows = chosen(scratch / "fitted"), table(out.stderr)
    assert rf.committed_steps(scratch / "fitted")[-1] == 1
    assert 64 <= values["micro_batch_tokens"] < 8192, values
    assert "would take" in rows["train.micro_batch_tokens"] and "tokens/s" in rows["train.micro_batch_tokens"], rows
    assert "ulimit -d" in out.stderr and "made-up rows" in out.stderr, out.stderr
    assert set(rows) == {f"{SECTIONS.get(n, 'train')}.{n}" for n in OPTIONS} | {"supervised.micro_batch_tokens"}, rows
    said("a recipe that runs out of memory with the defaults runs with --fit")
    again = program.done([*run, "--run-dir", scratch / "again", "--fit"], preexec_fn=limited(most), timeout=300)
    assert "made-up rows" in again.stderr
    same = {name: value for name, value in chosen(scratch / "again").items() if name != "max_running"}
    assert same == {name: values[name] for name in same}, (same, values)
    said("the same recipe and seed choose the same sizes")
    sets = rf.sets({f"{SECTIONS.get(n, 'train')}.{n}": v for n, v in values.items()})
    program.done([*run, "--run-dir", scratch / "by_hand", *sets], timeout=300)
    left, right = rf.metrics(scratch / "fitted")[0], rf.metrics(scratch / "by_hand")[0]
    different = [k for k in left if not k.startswith(rf.CLOCKED) and left[k] != right.get(k)]
    assert not different and rf.samples(scratch / "fitted") == rf.samples(scratch / "by_hand"), different
    said("a fitted run is the run with these sizes set by hand, bit for bit")
    out = program.done([*run, "--run-dir", scratch / "fitted", "--fit", "--resume", "--steps", "2"], preexec_fn=limited(most), timeout=300)
    assert "made-up rows" not in out.stderr and chosen(scratch / "fitted") == values, out.stderr
    said("a resume takes what was decided, and probes nothing")


def check_given(program, scratch):
    """Values from the command line and from the recipe stay, also where they are the defaults."""
    path = recipe(scratch, **{"rollout.kv_cache_mib": 3, "schedule.groups_per_step": 4, "model.init_layers": 2})
    out = program.done(["run", path, "--run-dir", scratch / "given", "--fit", "--set", "train.micro_batch_tokens=8192"], timeout=300)
    values, rows = chosen(scratch / "given"), table(out.stderr)
    assert values["micro_batch_tokens"] == 8192 and values["kv_cache_mib"] == 3, values
    assert values["logprob_micro_batch_tokens"] == 1024, "a step has 16 rows of some 54 tokens"
    assert all("set by the user" in rows[name] for name in ("train.micro_batch_tokens", "rollout.kv_cache_mib")), rows
    run = ["run", path, "--run-dir", scratch / "x", "--fit"]
    program.refused([*run, "--ranks", "2", "--set", "parallel.placement=split"], 2, "--fit", "split")
    program.refused([*run, "--set", "memory.device_mib=1"], 2, "--fit", "memory.device_mib", "model.lora_rank")
    assert not (scratch / "x").exists()
    said("a value of the user's stays")


def check_ranks(program, scratch):
    """Several ranks agree; offloading and another rollout layout are probed, too."""
    path = recipe(scratch, **{"schedule.groups_per_step": 4, "model.init_layers": 2, "rollout.max_new_tokens": 8})
    layouts = ["--train-layout", "dp2", "--rollout-layout", "tp2", "--ranks", "2", "--threads", "2"]
    offload = rf.sets({"memory.offload_train_param": "true", "memory.offload_train_optimizer": "true", "memory.device_mib": "64"})
    program.done(["run", path, "--run-dir", scratch / "ranks", "--fit", *layouts, *offload], timeout=300)
    assert rf.committed_steps(scratch / "ranks")[-1] == 1 and chosen(scratch / "ranks")["kv_cache_mib"] < 64
    out = program.done(["run", path, "--run-dir", scratch / "processes", "--fit", "--threads", "1"], launcher=rf.mpi(2), timeout=300)
    assert len([line for line in out.stderr.splitlines() if "== fit" in line]) == 1, out.stderr
    said("several ranks agree on sizes")


def check_critic(program, scratch):
    """A critic beside the actor takes memory and passes of its own; both fit, where the defaults do not."""
    path = recipe(scratch, **{"algo.name": "ppo", "run.steps": 2})
    most = 1300
    failed = program.run(["run", path, "--threads", "1", "--run-dir", scratch / "critic_plain"], preexec_fn=limited(most), timeout=300)
    assert failed.returncode == 3 and "memory" in failed.stderr, (failed.returncode, failed.stderr[-2000:])
    run = ["run", path, "--threads", "1", "--fit"]
    out = program.done([*run, "--run-dir", scratch / "critic"], preexec_fn=limited(most), timeout=300)
    rows = table(out.stderr)
    assert rf.committed_steps(scratch / "critic")[-1] == 2
    of_critic = {name: int(rows[f"critic.{name}"].split()[1]) for name in ("micro_batch_tokens", "value_micro_batch_tokens")}
    assert 64 <= of_critic["micro_batch_tokens"] < 8192, rows
    section = re.split(r"^\w", (scratch / "critic/config.yaml").read_text().split("\ncritic:\n", 1)[1], maxsplit=1, flags=re.M)[0]
    for name, value in of_critic.items():
        assert re.search(rf"^  {name}: {value}\b", section, re.M), (name, value)
    set_by_hand = program.done([*run, "--run-dir", scratch / "critic_by_hand", "--set", "critic.micro_batch_tokens=256"],
                               preexec_fn=limited(most), timeout=300)
    assert "set by the user" in table(set_by_hand.stderr)["critic.micro_batch_tokens"]
    said("a critic has sizes of its own")


def check_said(program, scratch):
    """What runs hold is what `config --memory` says of their recipes, owner by owner; what passes take is no more."""
    settings = {"supervised.steps": 0, "algo.kl_coef": 0.001, "rollout.packed_weights": "false", "data.max_prompt_tokens": 16,
                "rollout.max_new_tokens": 32, "rollout.ignore_eos": "true", "train.micro_batch_tokens": 1024, "train.recompute": "full",
                "schedule.groups_per_step": 16}
    offload = {f"memory.offload_{what}": "true" for what in ("train_param", "train_grad", "train_optimizer", "reference")}
    flags = ["--no-eval", "--steps", "2"]
    model = scratch / "said_here/checkpoint/latest/hf"
    for name, more, ranks in (("said_here", {}, []),
                              ("said_away", offload, ["--ranks", "2", "--train-layout", "tp2", "--rollout-layout", "dp2"])):
        recipe_of_run = [rf.ROOT / "configs/quickstart.yaml", *flags, *ranks, *rf.sets({**settings, **more})]
        program.done(["run", *recipe_of_run, "--run-dir", scratch / name], timeout=300)
        held = {key: value / MIB for key, value in rf.all_metrics(scratch / name)[-1].items() if key.startswith("memory/")}
        lines = program.done(["config", *recipe_of_run, "--model", model, "--memory"]).stdout.splitlines()
        stages = {line.split(":")[0]: line for line in lines}
        in_stage = {stage: {owner: int(mib) for owner, mib in re.findall(r"(\w+) (\d+)(?=,|$)", line)} for stage, line in stages.items()}
        for owner in ("kv_cache", "reference_weights", "weights", "gradients", "optimizer"):
            most = held[f"memory/{owner}_bytes"] or held.get(f"memory/host_{owner}_bytes", 0)
            reckoned = max(owners.get(owner, 0) for owners in in_stage.values())
            assert most == 0 or most - 1 < reckoned <= most, (owner, most, stages)
        for stage in ("train", "rollout"):
            peak, reckoned = held[f"memory/{stage}_peak_bytes"], int(re.search(r": (\d+) MiB", stages[stage])[1])
            assert 0.6 * reckoned < peak <= reckoned, (stage, peak, stages)
        assert 0.5 * in_stage["train"]["activations"] < held["memory/activations_bytes"] <= in_stage["train"]["activations"] + 1, stages
    assert "kv_cache" in in_stage["rollout"] and "kv_cache" not in in_stage["train"], stages
    said("runs hold what their recipes are said to hold")


CHECKS = {"said": check_said, "limit": check_limit, "critic": check_critic, "given": check_given, "ranks": check_ranks}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS, made=lambda program, scratch: (program, pathlib.Path(scratch)))
