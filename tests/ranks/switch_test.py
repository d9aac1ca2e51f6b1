# SPDX-License-Identifier: Apache-2.0
"""`tandem bench switch` moves the lower bound and ends with the loaded bits, by threads and by processes. A rollout in another dtype
than training generates what the converted checkpoint generates, and kl_rollout_train shows the price."""
import json
import sys
import tempfile

from comparison import rf

MODEL = rf.ROOT / "tests/fixtures/deepseek_v3"
DENSE = rf.ROOT / "tests/fixtures/qwen2_tied"
RUN = {
    "schedule.groups_per_step": 8, "schedule.group_size": 4, "eval.every_steps": 0, "run.steps": 3, "data.synthetic_rows": 2000,
    "data.synthetic_eval_rows": 40, "rollout.max_running": 32, "checkpoint.every_steps": 0, "reward.rule": "regex",
    "reward.pattern": "^[02468]", "supervised.steps": 0, "rollout.max_new_tokens": 24, "eval.max_new_tokens": 24,
}
checks = rf.Checks()
program = rf.built_program()


def check_switch(model, layouts, ranks, launcher=()):
    flags = [] if launcher else ["--ranks", ranks]
    out = program.done(["bench", "switch", "--model", model, "--from", layouts[0], "--to", layouts[1], "--repeats", 2, "--threads", 2,
                        "--dtype", "bfloat16", "--bucket-mib", 1, *flags], launcher=launcher)
    report = json.loads(out.stdout)
    name = "%s: %s to %s by %s" % (model.name, *layouts, report["conditions"]["ranks_are"])
    rows = {figure: row["median"] for figure, row in report["rows"].items()}
    checks.check(report["answer_checked"] is True, name + ": the answer")
    checks.check(rows["bytes"] == rows["lower_bound_bytes"] > 0, name + ": %(bytes)d bytes, %(lower_bound_bytes)d needed" % rows)
    checks.check(0 < rows["staging_peak_bytes"] <= 1 << 20, name + ": staging %(staging_peak_bytes)d" % rows)
    checks.check(rows["switch_s"] > 0 and report["rows"]["switch_s"]["n"] == 2, name + ": the time")
    print("%s: %d bytes in %d calls" % (name, rows["bytes"], rows["calls"]), flush=True)


def check_dtypes(root):
    """Training in float32, generation in bfloat16, with equal layouts and with others."""
    program.quickstart(root + "/float32", {**RUN, "model.dtype": "float32"}, ["--threads", "2"])
    mixed = {**RUN, "model.dtype": "float32", "rollout.dtype": "bfloat16", "parallel.reshard_checksum": "true"}
    for flags in ([], ["--ranks", "2", "--train-layout", "dp2", "--rollout-layout", "tp2"]):
        folder = root + "/mixed-%d" % len(flags)
        program.quickstart(folder, mixed, ["--threads", "2", *flags])
        prices = [m["actor/kl_rollout_train"] for m in rf.metrics(folder)]
        plain = max(abs(m["actor/kl_rollout_train"]) for m in rf.metrics(root + "/float32"))
        checks.check(plain < 1e-9 < 1e-7 < min(prices) <= max(prices) < 1e-2, "kl_rollout_train %s, alone %.2g" % (prices, plain))
        print("rollout in bfloat16 %s: kl_rollout_train %.2g, in float32 %.2g" % (" ".join(flags), max(prices), plain), flush=True)
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--parity", "--set", "rollout.dtype=bfloat16", "--set",
                     "model.dtype=float32", "--run-dir", root + "/refused"], 2, "rollout.dtype", "parity")


check_switch(DENSE, ("tp2", "dp2"), 2)
check_switch(MODEL, ("tp2,pp2", "dp4,ep4"), 4)
if "--mpi" in sys.argv:
    check_switch(DENSE, ("pp2", "tp2"), 2, rf.mpi(2))
    check_switch(MODEL, ("tp2,pp2", "dp4,ep4"), 4, rf.mpi(4))
bench = ["bench", "switch", "--model", DENSE, "--from"]
program.refused([*bench, "tp2", "--to", "dp2", "--ranks", 4], 2, "--from", "2 ranks", "--ranks 2")
program.refused([*bench, "tp2", "--to", "vpp2,pp2"], 2, "--to")
program.refused([*bench, "tp2", "--to", "dp2", "--seed", 1], 2, "--seed")
with tempfile.TemporaryDirectory(prefix="tandem_switch_") as root:
    check_dtypes(root)
checks.exit()
