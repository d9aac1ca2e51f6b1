# SPDX-License-Identifier: Apache-2.0
"""Every layout computes the same: the samples of one run, trained for five steps under each, by threads and by processes, give one
rank's gradient norms, log-probabilities and losses within 1e-5; each rollout layout gives one rank's greedy answers. Dense, sparse,
and sparse with latent attention.

With --mpi by processes, too, for one of the three; with --full for all."""
import sys
import tempfile

from comparison import compare, rf
import small_model

STEPS = 5
TINY = {
    "model.dtype": "float32", "schedule.groups_per_step": 8, "schedule.group_size": 4, "eval.every_steps": 0, "run.steps": STEPS,
    "data.synthetic_eval_rows": 60, "data.synthetic_rows": 2000, "rollout.max_running": 32, "checkpoint.every_steps": 0,
    "reward.rule": "regex", "reward.pattern": "^[02468]", "supervised.steps": 0, "rollout.max_new_tokens": 16, "eval.max_new_tokens": 16,
    "train.micro_batch_tokens": 200, "schedule.routing_replay": "false",
}
SHAPE = {"num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS = {"dense": (small_model.tiny_config, {}), "sparse": (small_model.moe_config, {"num_experts": 8}),
          "latent": (small_model.mla_config, {"num_key_value_heads": 4})}
DENSE = ["dp4", "tp4", "pp4", "tp2,pp2", "cp2,tp2", "dp2,tp2", "dp2,pp2,vpp2"]
SPARSE = ["dp4,ep4", "dp2,tp2,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2", "dp2,tp2,pp2,ep4"]
ROLLOUT_SPARSE = ["tp4", "dp4", "pp4", "dp4,ep4", "dp2,tp2,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2"]
ROLLOUT = {"dense": ["tp4", "dp4", "pp4", "tp2,pp2"], "sparse": ROLLOUT_SPARSE, "latent": ROLLOUT_SPARSE}
checks = rf.Checks()
program = rf.built_program()


def num_ranks(layout):
    axes = {part.rstrip("0123456789"): int(part.lstrip("abcdefghijklmnopqrstuvwxyz")) for part in layout.split(",")}
    return axes.get("dp", 1) * axes.get("tp", 1) * axes.get("pp", 1) * axes.get("cp", 1)


def answers(folder):
    return rf.rows(folder, "SELECT row, response FROM evals WHERE step = 0 ORDER BY row")


def check_model(name, root):
    make, changed = MODELS[name]
    small_model.write_moe(root + "/model", root + "/init/init/hf", make, **{**SHAPE, **changed})
    start = ["--model", root + "/model"]
    program.quickstart(root + "/base", TINY, [*start, "--threads", "1"])
    want = answers(root + "/base")
    checks.check(len(set(r[1] for r in want)) >= 3, name + ": the base run answers in many ways")
    replay = [*start, "--replay", root + "/base", "--no-eval"]
    one = root + "/one"
    program.quickstart(one, TINY, [*replay, "--threads", "1"])
    print(name, flush=True)
    for layout in DENSE + (SPARSE if name != "dense" else []):
        ranks, folder = num_ranks(layout), root + "/" + layout
        program.quickstart(folder, TINY, [*replay, "--threads", "1", "--ranks", str(ranks), "--train-layout", layout])
        compare(checks, layout + ", threads", folder, one, STEPS)
        if "--mpi" in sys.argv and ranks == 4 and (name == "latent" or "--full" in sys.argv):
            program.quickstart(folder + "-mpi", TINY, [*replay, "--threads", "1", "--train-layout", layout], rf.mpi(ranks))
            compare(checks, layout + ", processes", folder + "-mpi", one, STEPS)
    for layout in ROLLOUT[name]:
        ranks, folder = num_ranks(layout), root + "/rollout-" + layout
        program.quickstart(folder, {**TINY, "run.steps": 1, "eval.after": "false"},
                           [*start, "--threads", "1", "--ranks", str(ranks), "--train-layout", f"dp{ranks}", "--rollout-layout", layout])
        worst = max(abs(m["actor/kl_rollout_train"]) for m in rf.metrics(folder))
        checks.check(worst < 1e-9, "%s: rollout and training disagree by %.2g" % (layout, worst))
        checks.check(answers(folder) == want, layout + ": greedy answers differ from one rank's")
        print("rollout %-18s kl_rollout_train %.2g, greedy answers equal: %s" % (layout, worst, answers(folder) == want), flush=True)


for model in MODELS:
    with tempfile.TemporaryDirectory(prefix="tandem_layouts_") as folder:
        program.quickstart(folder + "/init", {**TINY, "run.steps": 1}, ["--no-eval"])
        check_model(model, folder)
checks.exit()
