#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that was saved under one layout goes on under any other, of as many ranks or not: the next step on the same samples has the
gradient norm of the run that kept its layout. In bfloat16, where sums over other passes round otherwise, the weights stay the same bits
over a resumed step that changes none. --full tries every ordered pair."""
import argparse
import itertools
import math
import pathlib
import re
import shutil
import tempfile

import run_folder as rf
import small_model

SAVED, STEPS = 3, 4
BOUND = 1e-5
RUN = {"run.parity": False, "run.steps": STEPS, "checkpoint.every_steps": SAVED, "checkpoint.keep_last": 0, "eval.every_steps": 0,
       "algo.kl_coef": 0}
SHAPE = {"num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2}
UNEVEN = {"vocab_size": 29}  # no tp divides it; the tokenizer has 21
DENSE = ("dp1", "dp4", "tp4", "pp4", "cp2,tp2", "dp2,tp2", "dp2,pp2,vpp2")
SPARSE = ("dp1", "dp4,ep4", "dp2,pp2,ep2", "dp2,tp2,ep2,etp2", "tp2,pp2", "cp2,tp2", "dp2,tp2,ep4")
# The model, the options, and the layouts that are left and entered.
CASES = {
    "dense": (small_model.tiny_config, {}, {}, DENSE),
    "sparse": (small_model.moe_config, {"num_experts": 8}, {}, SPARSE),
    "latent": (small_model.mla_config, {"num_key_value_heads": 4, **UNEVEN}, {"train.router_bias_rate": 0.001}, SPARSE),
    "bfloat16": (small_model.moe_config, {"num_experts": 8, **UNEVEN}, {"model.dtype": "bfloat16"}, SPARSE[:4]),
    "adapters": (small_model.tiny_config, {}, {"model.lora_rank": 4}, DENSE[:5]),
    "swapped": (small_model.tiny_config, {}, {"train.swap_optimizer": True}, DENSE[:2]),
}
FULL_ONLY = ("sparse",)  # "latent" has experts, too


def num_ranks(layout):
    return math.prod(int(n) for axis, n in re.findall(r"([a-z]+)(\d+)", layout) if axis in ("dp", "cp", "tp", "pp"))


class Case:
    def __init__(self, program, scratch, name):
        self.program, self.name, self.scratch = program, name, pathlib.Path(scratch) / name
        self.failed = self.passed = 0
        self.scratch.mkdir()
        make, changed, settings, self.layouts = CASES[name]
        like = self.scratch / "like"
        self.recipe = rf.tiny_recipe(self.scratch / "recipe.yaml", **RUN, **settings)
        plain = rf.tiny_recipe(self.scratch / "like.yaml", run__steps=1)
        program.done(["run", plain, "--run-dir", like, "--no-eval"])
        model = small_model.write_moe(self.scratch / "model", like / "init/hf", make, **{**SHAPE, **changed})
        self.start = ["--model", str(model), "--no-eval"]
        self.base = self.scratch / "base"
        program.done(["run", self.recipe, "--run-dir", self.base, *self.start])

    def check(self, ok, what):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        if not ok:
            print(f"FAILED: {self.name}, {what}", flush=True)

    def train(self, folder, layout, *more):
        """Steps on the samples of the base run. Returns the gradient norms."""
        self.program.done(["run", self.recipe, "--run-dir", folder, "--replay", self.base, *self.start, "--ranks", num_ranks(layout),
                           "--train-layout", layout, *more])
        return [line["actor/grad_norm"] for line in rf.metrics(folder)]

    def saved_by(self, layout):
        """A copy of the run under that layout, as it was before its last step."""
        folder = self.scratch / "resumed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.scratch / layout, folder, symlinks=True, ignore=shutil.ignore_patterns(f"step_{STEPS}", "latest"))
        assert rf.committed_steps(folder) == [SAVED], rf.committed_steps(folder)
        return folder

    def keep_bits(self, a, b):
        folder = self.saved_by(a)
        self.train(folder, b, "--resume", "--set", "train.lr=0")
        before, after = ((folder / f"checkpoint/step_{step}/hf/model.safetensors").read_bytes() for step in (SAVED, STEPS))
        self.check(before == after, f"saved under {a}, resumed under {b}: other weights")
        return f"weights equal bit for bit: {before == after}"

    def go_on(self, a, b, whole):
        norms = self.train(self.saved_by(a), b, "--resume")
        want = whole[STEPS - 1]
        self.check(want > 0 and norms[:SAVED] == whole[:SAVED] and len(norms) == STEPS, f"{a}: the history")
        worst = abs(norms[STEPS - 1] / want - 1)
        self.check(worst <= BOUND, f"saved under {a}, resumed under {b}: {worst:.2g}")
        return f"gradient norm {want:.6f}, {worst:.2g}"

    def run(self, pairs):
        whole = {layout: self.train(self.scratch / layout, layout) for layout in sorted({a for a, _ in pairs})}
        for a, b in pairs:
            told = self.keep_bits(a, b) if self.name == "bfloat16" else self.go_on(a, b, whole[a])
            print(f"{self.name:9} {a:16} -> {b:16} {told}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--full", action="store_true", help="all models, every ordered pair of layouts")
    parser.add_argument("--only", default="", help="one of " + ", ".join(CASES))
    options = parser.parse_args()
    failed = passed = 0
    with tempfile.TemporaryDirectory(prefix="tandem_layout_resume_") as scratch:
        program = rf.Program(options.build)
        for name, (_, _, _, layouts) in CASES.items():
            if options.only not in ("", name):
                continue
            if name in FULL_ONLY and not (options.full or options.only):
                continue
            # Each is left once and entered once.
            pairs = list(zip(layouts, layouts[1:] + layouts[:1]))
            if options.full:
                pairs = list(itertools.product(layouts, layouts))
            case = Case(program, scratch, name)
            case.run(pairs)
            failed, passed = failed + case.failed, passed + case.passed
            shutil.rmtree(case.scratch)
    print(f"{passed} checks passed, {failed} failed")
    raise SystemExit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
