# SPDX-License-Identifier: Apache-2.0
"""One rank, four jobs: the actor trains and generates, a reference and a reward model of its size score, all in a budget that one more
resident copy of the weights would break. The numbers are those of models that stay on the device."""
import json
import pathlib
import shutil
import struct
import tempfile

import run_folder as rf

MIB = 1 << 20
# The shape of the quickstart's model; passes small enough that their activations weigh less than a copy of the weights.
RUN = {"supervised.steps": 0, "run.steps": 3, "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_new_tokens": 8,
       "eval.max_new_tokens": 8, "eval.every_steps": 2, "data.synthetic_eval_rows": 8, "checkpoint.every_steps": 2, "parallel.threads": 1,
       "train.lr": 1e-3, "algo.kl_coef": 0.01, "run.parity": "true", "train.micro_batch_tokens": 64, "train.recompute": "full",
       "train.reference_micro_batch_tokens": 64, "rollout.max_running": 16}
OFFLOAD = {f"memory.offload_train_{what}": "true" for what in ("param", "grad", "optimizer")}
FULL = {"parallel.placement": "fully_colocated", **OFFLOAD}
checks = rf.Checks()
program = rf.built_program()


def reward_model_of(language_model, folder):
    """The same layers with a score head in place of the logits."""
    shutil.copytree(language_model, folder)
    config = json.loads((folder / "config.json").read_text())
    family = config["architectures"][0].removesuffix("ForCausalLM")
    config.update(architectures=[family + "ForSequenceClassification"], id2label={"0": "score"}, pad_token_id=0)
    (folder / "config.json").write_text(json.dumps(config))
    weights = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", weights[:8])[0]
    header, data = json.loads(weights[8:8 + length]), weights[8 + length:]
    hidden = config["hidden_size"]
    head = b"".join(struct.pack("<f", ((i * 37) % 19 - 9) / 19) for i in range(hidden))
    header["score.weight"] = {"dtype": "F32", "shape": [1, hidden], "data_offsets": [len(data), len(data) + len(head)]}
    header.pop("lm_head.weight", None)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data + head)
    return folder


def run(folder, settings, flags=()):
    program.quickstart(folder, {**RUN, **settings}, flags)
    return rf.all_metrics(folder)


def scores(folder):
    return rf.samples(folder, "step, group_id, sample_index, response, score")


with tempfile.TemporaryDirectory(prefix="tandem_fully_") as root:
    run(f"{root}/start", {"run.steps": 1, "reward.rule": "regex", "reward.pattern": "1"}, ["--no-eval"])
    reward = reward_model_of(pathlib.Path(root, "start/init/hf"), pathlib.Path(root, "reward"))
    judged = {"reward.rule": "model", "reward.model": str(reward)}

    resident = run(f"{root}/resident", judged)
    full = run(f"{root}/full", {**judged, **FULL})
    again = run(f"{root}/again", {**judged, **FULL})
    rf.check_equal(f"{root}/full", f"{root}/again", "a run beside itself")
    one, other = scores(f"{root}/resident"), scores(f"{root}/full")
    first = [(a, b) for a, b in zip(one, other, strict=True) if a[0] == 1]
    checks.check(all(a[:4] == b[:4] for a, b in first), "the first step's answers are the same")
    worst = max(abs(a[4] - b[4]) for a, b in first)
    checks.check(worst <= 1e-5 and len({a[4] for a, _ in first}) > 4, f"its scores differ by {worst:.1e}")
    checks.check(abs(full[0]["actor/kl_ref"] - resident[0]["actor/kl_ref"]) <= 1e-6, "the reference says the same")
    checks.check(all(abs(a["reward/mean"] - b["reward/mean"]) < 1e-3 for a, b in zip(full, resident)), "and so does the run")
    summary = [rf.summary(f"{root}/{name}")["eval_after"]["accuracy"] for name in ("resident", "full")]
    checks.check(summary[0] == summary[1], f"evaluation: {summary}")

    stopped = f"{root}/stopped"
    run(stopped, {**judged, **FULL, "run.steps": 2})
    program.done(["run", f"{stopped}/config.yaml", "--run-dir", stopped, "--resume", "--steps", "3"])
    checks.check(rf.metrics(stopped)[-1] == rf.metrics(f"{root}/full")[-1], "a resumed run goes on as it would have")

    copy, peak, all_resident = full[-1]["memory/weights_bytes"], full[-1]["memory/peak_bytes"], resident[-1]["memory/peak_bytes"]
    budget = -int(-peak // MIB)
    print(f"a copy of the weights {copy / MIB:.2f} MiB; peak fully colocated {peak / MIB:.2f}, all resident {all_resident / MIB:.2f}; "
          f"budget {budget}", flush=True)
    checks.check(budget * MIB < peak + copy, "the budget has no room for one more copy")
    tight = run(f"{root}/tight", {**judged, **FULL, "memory.device_mib": budget})
    rf.check_equal(f"{root}/full", f"{root}/tight", "within the budget")
    checks.check(max(m["memory/peak_bytes"] for m in tight) <= budget * MIB, "and it is kept")
    for what, settings in (("the reference", {"reward.rule": "regex", "reward.pattern": "1"}),
                           ("the reward model", {**judged, "algo.kl_coef": 0})):
        chosen = rf.sets({**RUN, **OFFLOAD, **settings, "memory.device_mib": budget})
        program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/broken-{len(what)}", *chosen],
                        2, "memory.device_mib", "of %d are held" % (budget * MIB))
        rf.said(f"{what} as one more resident copy is refused")

    # The cache takes what is left of a budget; what comes for its stage must still find room, whatever else may leave.
    room = run(f"{root}/room", {**judged, "parallel.placement": "fully_colocated", "memory.device_mib": 24, "rollout.max_running": 4096})
    rf.check_equal(f"{root}/full", f"{root}/room", "without offloading of training")
    checks.check(room[-1]["memory/kv_cache_bytes"] > 2 * copy, "a cache that filled the budget")

    critic = {**judged, "algo.name": "ppo", "critic.micro_batch_tokens": 64, "critic.value_micro_batch_tokens": 64,
              "critic.recompute": "full"}
    ppo = run(f"{root}/ppo", {**critic, **FULL})
    beside = run(f"{root}/ppo-resident", critic)
    for name in ("critic/loss", "critic/explained_variance", "actor/loss"):
        far = abs(ppo[0][name] - beside[0][name])
        checks.check(far <= 1e-5, f"ppo: {name} is {far:.1e} from that of models which stay on the device")
    copy, peak = ppo[-1]["memory/weights_bytes"], ppo[-1]["memory/peak_bytes"]
    budget = -int(-peak // MIB)
    checks.check(budget * MIB < peak + copy, "actor, reference, critic and reward model: no room for one more copy")
    run(f"{root}/ppo-tight", {**critic, **FULL, "memory.device_mib": budget})
    rf.check_equal(f"{root}/ppo", f"{root}/ppo-tight", "ppo within the budget")
    chosen = rf.sets({**RUN, **OFFLOAD, **critic, "algo.kl_coef": 0, "reward.rule": "regex", "reward.pattern": "1", "reward.model": "",
                      "memory.device_mib": budget})
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/ppo-broken", *chosen], 2, "memory.device_mib",
                    "of %d are held" % (budget * MIB))
    rf.said("the critic as one more resident copy is refused")
    stopped = f"{root}/ppo-stopped"
    run(stopped, {**critic, **FULL, "memory.device_mib": budget, "run.steps": 2})
    program.done(["run", f"{stopped}/config.yaml", "--run-dir", stopped, "--resume", "--steps", "3"])
    checks.check(rf.metrics(stopped)[-1] == rf.metrics(f"{root}/ppo")[-1], "a resumed ppo run goes on as it would have")

    two = run(f"{root}/two", {**judged, **FULL, "parallel.train_layout": "tp2"}, ["--ranks", "2"])
    far = max(abs(a["reward/mean"] - b["reward/mean"]) for a, b in zip(full, two))
    checks.check(far < 2e-2, f"{far}: tp2: the reward model in the actor's layout")
    part, whole = (lines[-1]["memory/host_reward_model_bytes"] for lines in (two, full))
    checks.check(part < 0.6 * whole, "of which a rank has half")
checks.exit()
