#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that was saved under one layout goes on under any other, of as many ranks or not: the next step on the same samples has the
gradient norm of the run that kept its layout. In bfloat16, where sums over other passes round otherwise, the weights stay the same bits
over a resumed step that changes none. --full tries every ordered pair."""
import argparse
import itertools
import pathlib
import shutil
import tempfile

import run_folder as rf
import small_model

SAVED, STEPS = 3, 4
BOUND = 1e-5
# Heads, layers and columns enough for every layout below.
SHAPE = {"model.init_heads": 4, "model.init_kv_heads": 2, "model.init_layers": 4, "run.parity": False, "run.steps": STEPS,
         "checkpoint.every_steps": SAVED, "checkpoint.keep_last": 0, "eval.every_steps": 0, "algo.kl_coef": 0}
# What is trained, and under which layouts.
CASES = {
    "dense": ({}, ("dp1", "dp2", "tp2", "dp4", "tp4", "dp2,tp2")),
    "bfloat16": ({"model.dtype": "bfloat16"}, ("dp1", "tp2", "dp4", "dp2,tp2")),
    "adapters": ({"model.lora_rank": 4}, ("dp1", "dp2", "tp2", "dp2,tp2")),
    "experts": ({}, ("dp1", "dp2", "tp2", "tp2,ep2")),
}
RANKS = {"dp1": 1, "dp2": 2, "tp2": 2, "tp2,ep2": 2, "dp4": 4, "tp4": 4, "dp2,tp2": 4}


class Case:
    def __init__(self, program, scratch, name, model):
        self.program, self.name, self.checks = program, name, rf.Checks()
        self.settings, self.layouts = CASES[name]
        self.scratch = pathlib.Path(scratch)
        self.recipe = rf.tiny_recipe(self.scratch / f"{name}.yaml", **SHAPE, **self.settings)
        self.model = ["--model", str(model)] if model else []
        self.base = self.scratch / name / "base"
        program.done(["run", self.recipe, "--run-dir", self.base, "--no-eval", *self.model])
        if not model:
            self.model = ["--model", str(self.base / "init/hf")]

    def train(self, folder, layout, *more):
        """Steps on the samples of the base run. Returns the gradient norms."""
        self.program.done(["run", self.recipe, "--run-dir", folder, "--replay", self.base, "--no-eval", *self.model,
                           "--ranks", RANKS[layout], "--train-layout", layout, *more])
        return [line["actor/grad_norm"] for line in rf.metrics(folder)]

    def saved_by(self, layout, name):
        """A copy of the run under that layout, as it was before its last step."""
        folder = self.scratch / self.name / name
        shutil.copytree(self.scratch / self.name / layout, folder, symlinks=True, ignore=shutil.ignore_patterns(f"step_{STEPS}", "latest"))
        assert rf.committed_steps(folder) == [SAVED], rf.committed_steps(folder)
        return folder

    def keep_bits(self, pairs):
        for layout in sorted({a for a, _ in pairs}):
            self.train(self.scratch / self.name / layout, layout)
        for a, b in pairs:
            folder = self.saved_by(a, f"{a}-{b}")
            self.train(folder, b, "--resume", "--set", "train.lr=0")
            before, after = ((folder / f"checkpoint/step_{step}/hf/model.safetensors").read_bytes() for step in (SAVED, STEPS))
            self.checks.check(before == after, f"{self.name}, saved under {a}, resumed under {b}: other weights")
            print(f"{self.name:10} {a:8} -> {b:8} weights equal bit for bit: {before == after}", flush=True)
            shutil.rmtree(folder)

    def run(self, pairs):
        if self.name == "bfloat16":
            return self.keep_bits(pairs)
        whole = {layout: self.train(self.scratch / self.name / layout, layout) for layout in sorted({a for a, _ in pairs})}
        for a, b in pairs:
            folder = self.saved_by(a, f"{a}-{b}")
            norms = self.train(folder, b, "--resume")
            want = whole[a][STEPS - 1]
            self.checks.check(want > 0 and norms[:SAVED] == whole[a][:SAVED] and len(norms) == STEPS, f"{self.name}, {a}: the history")
            worst = abs(norms[STEPS - 1] / want - 1)
            self.checks.check(worst <= BOUND, f"{self.name}, saved under {a}, resumed under {b}: {worst:.2g}")
            if a == b:
                self.checks.check(norms == whole[a], f"{self.name}, {a}: the same layout gives the same bits")
            print(f"{self.name:10} {a:8} -> {b:8} gradient norm {want:.6f}, {worst:.2g}", flush=True)
            shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--full", action="store_true", help="every ordered pair of layouts")
    parser.add_argument("--only", default="", help="one of " + ", ".join(CASES))
    options = parser.parse_args()
    failed = passed = 0
    with tempfile.TemporaryDirectory(prefix="tandem_layout_resume_") as scratch:
        program, moe = rf.Program(options.build), None
        for name, (_, layouts) in CASES.items():
            if options.only not in ("", name):
                continue
            if name == "experts":
                like = pathlib.Path(scratch) / "like"
                recipe = rf.tiny_recipe(pathlib.Path(scratch) / "like.yaml", **{"run.steps": 1})
                program.done(["run", recipe, "--run-dir", like, "--no-eval"])
                moe = small_model.write_moe(pathlib.Path(scratch) / "moe", like / "init/hf")
            # Each layout is left once and entered once; the largest goes on as it was.
            pairs = [*zip(layouts, layouts[1:] + layouts[:1]), (layouts[-1], layouts[-1])]
            if options.full:
                pairs = list(itertools.product(layouts, layouts))
            case = Case(program, scratch, name, moe if name == "experts" else None)
            case.run(pairs)
            failed, passed = failed + len(case.checks.failed), passed + case.checks.passed
    print(f"{passed} checks passed, {failed} failed")
    raise SystemExit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
