# SPDX-License-Identifier: Apache-2.0
"""Every layout computes the same: the samples of one run, trained for five steps under each, by threads and by processes, give one
rank's gradient norms, log-probabilities and losses within 1e-5; each rollout layout gives one rank's greedy answers. Dense, sparse,
and sparse with latent attention.

A layout is in a pair with each kind of attention, with experts and without, and with --mpi with threads and with processes. --full: with
all of them at once, and with the models of ../shared/oracles. --pairs MODEL: that one alone, each layout of training with one of
generation, so that each is in a pair: with TANDEM_TEST_DEVICE=fake, where ranks are processes that the first of them starts."""
import itertools
import pathlib
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
UNEVEN = {"vocab_size": 29}  # no tp divides it; the tokenizer has 21
MODELS = {"dense": (small_model.tiny_config, UNEVEN), "sparse": (small_model.moe_config, {"num_experts": 8}),
          "latent": (small_model.mla_config, {"num_key_value_heads": 4, **UNEVEN})}
# Of 2 and 3 layers, so without the deep layouts; at the rate of a real run. Their weights are large, and at the quickstart's rate
# Adam alone, which divides by the size of a gradient, makes 1e-5 of their rounding in five steps.
ORACLES = ("qwen2_tied", "qwen3_moe", "deepseek_v3")
ORACLE_RATE = {"train.lr": 1e-5}
DENSE = ["dp4", "tp4", "pp4", "tp2,pp2", "cp2,tp2", "dp2,tp2", "dp2,pp2,vpp2"]
SPARSE = ["dp4,ep4", "dp2,tp2,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2", "dp2,tp2,pp2,ep4"]
ROLLOUT_DENSE = ["tp4", "dp4", "pp4", "tp2,pp2"]
ROLLOUT_SPARSE = ["tp4", "dp4", "pp4", "dp4,ep4", "dp2,tp2,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2"]
DEEP = ("pp4", "dp2,pp2,vpp2")
checks = rf.Checks()
program = rf.built_program()


def num_ranks(layout):
    axes = {part.rstrip("0123456789"): int(part.lstrip("abcdefghijklmnopqrstuvwxyz")) for part in layout.split(",")}
    return axes.get("dp", 1) * axes.get("tp", 1) * axes.get("pp", 1) * axes.get("cp", 1)


def answers(folder):
    return rf.rows(folder, "SELECT row, response FROM evals WHERE step = 0 ORDER BY row")


class Model:
    def __init__(self, name, root, is_deep=True, settings=TINY, full=True):
        """Of the sparse model without latent attention, unless full, the layouts that split experts: the others have both in a pair."""
        self.name, self.root, self.start, self.settings = name, root, ["--model", root + "/model"], settings
        layouts, rollouts = (DENSE, ROLLOUT_DENSE) if name in ("dense", "qwen2_tied") else (DENSE + SPARSE, ROLLOUT_SPARSE)
        split = [layout for layout in layouts if full or name != "sparse" or layout in SPARSE]
        self.layouts = [layout for layout in split if is_deep or layout not in DEEP]
        rollouts = [layout for layout in rollouts if full or name != "sparse" or layout in SPARSE]
        self.rollouts = [layout for layout in rollouts if is_deep or layout not in DEEP]

    def check_pairs(self):
        """Trained on the samples of one rank, and on their own after a switch of layouts."""
        replay, want = self.run_one()
        for train, rollout in zip(self.layouts, itertools.cycle(self.rollouts)):
            ranks, folder = num_ranks(train), self.root + "/" + train
            program.quickstart(folder, self.settings, [*replay, "--ranks", str(ranks), "--train-layout", train])
            compare(checks, train, folder, self.root + "/one", STEPS)
            self.check_rollout(rollout, want, train if num_ranks(rollout) == ranks else None)

    def run_one(self):
        """The run whose samples the others train. Returns their flags, and its answers."""
        program.quickstart(self.root + "/base", self.settings, [*self.start, "--threads", "1"])
        want = answers(self.root + "/base")
        checks.check(len(set(r[1] for r in want)) >= 3, self.name + ": the base run answers in many ways")
        replay = [*self.start, "--replay", self.root + "/base", "--no-eval", "--threads", "1"]
        program.quickstart(self.root + "/one", self.settings, replay)
        print(self.name, flush=True)
        return replay, want

    def check(self, threads, processes):
        replay, want = self.run_one()
        one = self.root + "/one"
        for layout in self.layouts:
            ranks, folder = num_ranks(layout), self.root + "/" + layout
            if threads or ranks != 4:
                program.quickstart(folder, self.settings, [*replay, "--ranks", str(ranks), "--train-layout", layout])
                compare(checks, layout + ", threads", folder, one, STEPS)
            if processes and ranks == 4:
                program.quickstart(folder + "-mpi", self.settings, [*replay, "--train-layout", layout], rf.mpi(ranks))
                compare(checks, layout + ", processes", folder + "-mpi", one, STEPS)
        for layout in self.rollouts:
            self.check_rollout(layout, want)

    def check_rollout(self, layout, want, train=None):
        ranks, folder = num_ranks(layout), f"{self.root}/rollout-{layout}-{train}"
        layouts = ["--ranks", str(ranks), "--train-layout", train or f"dp{ranks}", "--rollout-layout", layout]
        program.quickstart(folder, {**self.settings, "run.steps": 1, "eval.after": "false"}, [*self.start, "--threads", "1", *layouts])
        worst = max(abs(m["actor/kl_rollout_train"]) for m in rf.metrics(folder))
        checks.check(worst < 1e-9, "%s: rollout and training disagree by %.2g" % (layout, worst))
        checks.check(answers(folder) == want, layout + ": greedy answers differ from one rank's")
        layout += f" from {train}" if train else ""
        print("rollout %-18s kl_rollout_train %.2g, greedy answers equal: %s" % (layout, worst, answers(folder) == want), flush=True)


def main():
    full = "--full" in sys.argv
    with tempfile.TemporaryDirectory(prefix="tandem_layouts_") as folder:
        program.quickstart(folder + "/init", {**TINY, "run.steps": 1}, ["--no-eval"])
        tokenizer = folder + "/init/init/hf"
        only = sys.argv[sys.argv.index("--pairs") + 1] if "--pairs" in sys.argv else None
        for name, (make, changed) in MODELS.items():
            if only not in (None, name):
                continue
            root = pathlib.Path(folder, name)
            root.mkdir()
            small_model.write_moe(root / "model", tokenizer, make, **{**SHAPE, **changed})
            model = Model(name, str(root), full=full or bool(only))
            mpi = "--mpi" in sys.argv
            is_latent = name == "latent"
            model.check_pairs() if only else model.check(full or not mpi or not is_latent, mpi and (full or is_latent))
        oracles = rf.ROOT.parent / "shared/oracles/models"
        for name in ORACLES if full and oracles.exists() else ():
            root = pathlib.Path(folder, name)
            root.mkdir()
            small_model.with_tokenizer(root / "model", oracles / name, tokenizer)
            Model(name, str(root), is_deep=False, settings={**TINY, **ORACLE_RATE}).check(True, "--mpi" in sys.argv)


main()
checks.exit()
