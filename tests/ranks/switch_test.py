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
        gaps = [(m["gap/mean"], m["gap/p99"], m["gap/max"]) for m in rf.metrics(folder)]
        checks.check(all(1e-4 < mean < p99 <= most < 1 for mean, p99, most in gaps), "the gap %s" % gaps)
        print("rollout in bfloat16 %s: kl_rollout_train %.2g, in float32 %.2g" % (" ".join(flags), max(prices), plain), flush=True)
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--parity", "--set", "rollout.dtype=bfloat16", "--set",
                     "model.dtype=float32", "--run-dir", root + "/refused"], 2, "rollout.dtype", "parity")


def check_checksum(root):
    """Of the weights that generate: it is the same under every layout, and changes with the weights."""
    base = {**RUN, "model.dtype": "float32", "run.steps": 2}
    for name, settings in (("plain", {}), ("bfloat16", {"rollout.dtype": "bfloat16"}), ("adapters", {"model.lora_rank": 4})):
        still = set()
        for rollout in ("", "dp2", "tp2", "pp2"):
            folder = "%s/checksum-%s-%s" % (root, name, rollout)
            flags = ["--ranks", "2", "--train-layout", "dp2", "--rollout-layout", rollout] if rollout else []
            program.quickstart(folder, {**base, **settings, "train.lr": 0}, ["--threads", "2", "--no-eval", *flags])
            still |= {m["gap/weights_checksum"] for m in rf.metrics(folder)}
        checks.check(len(still) == 1, "equal weights, checksums %s" % still)
        program.quickstart(folder + "-moved", {**base, **settings}, ["--threads", "2", "--no-eval"])
        moved = [m["gap/weights_checksum"] for m in rf.metrics(folder + "-moved")]
        checks.check(len({*still, *moved}) == 3, "each update changes the checksum: %s" % moved)
    print("checksum of the weights that generate: the same in four layouts, another after each update", flush=True)


def check_warning(root):
    """Once a run, where nothing corrects for a large gap."""
    large = {**RUN, "model.dtype": "float32", "rollout.dtype": "bfloat16", "model.init_deviation": 0.5, "run.steps": 2}
    told = lambda out: [line for line in out.stderr.splitlines() if "gap/max" in line and "warning" in line]  # noqa: E731
    run = lambda folder, settings, *flags: program.done(  # noqa: E731
        ["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", root + folder, "--no-eval", "--threads", "2", *flags,
         *rf.sets({**large, **settings})])
    lines = told(run("/warned", {"algo.correction": "none", "checkpoint.every_steps": 1}))
    measured = [m["gap/max"] for m in rf.metrics(root + "/warned")]
    checks.check(len(lines) == 1 and "--set algo.correction=token" in lines[0], "one warning that names the option: %s" % lines)
    checks.check(len(measured) == 2 and min(measured) > 0.5, "both steps are worth one: %s" % measured)
    checks.check(not told(run("/warned", {"algo.correction": "none", "run.steps": 3}, "--resume")), "none after a resume")
    checks.check(not told(run("/corrected", {"algo.correction": "token"})), "none where a correction is on")


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
    check_checksum(root)
    check_warning(root)
checks.exit()
