#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The run of configs/smollm2_word_problems.yaml on TRL's GRPOTrainer: the same model, prompts in the same order, reward, batch, lengths,
sampling, learning rate and evaluation. Prompts come from a run folder of `tandem run`; first the script grades that run's answers with
its own rule and stops if one score differs. Prints a line per step, and at the end one JSON object: seconds per step, seconds until an
evaluation reached --until, peak memory, and that without the imported libraries. The clock stands still during evaluations.

  trl_word_problems.py MODEL RUN --dtype autocast --micro 16 --steps 10
  trl_word_problems.py MODEL RUN --dtype bfloat16 --micro 16 --until 0.4 --minutes 100

--dtype autocast is TRL's default, fp32 weights under bf16 autocast; bfloat16 has bf16 weights, too, and no fp32 master copy.
Runs in a Python with torch, transformers, trl and datasets."""
import argparse
import json
import os
import re
import resource
import sqlite3
import statistics
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def score(response, gold):
    """1 if the last number equals the right one."""
    numbers = NUMBER.findall(response)
    if not numbers:
        return 0.0
    return float(float(numbers[-1].replace(",", "")) == float(gold))


def read_run(folder):
    """Prompts with answers in the order of training, those of the evaluation, and its options."""
    database = sqlite3.connect(f"file:{folder}/samples.sqlite?mode=ro", uri=True)
    graded = database.execute("SELECT response, answer, score FROM samples UNION ALL SELECT response, answer, score FROM evals").fetchall()
    wrong = [row for row in graded if score(row[0], row[1]) != row[2]]
    if wrong:
        sys.exit(f"{len(wrong)} of {len(graded)} scores differ from those of {folder}: {wrong[0]}")
    print(f"{len(graded)} answers of {folder} have the scores that it says", file=sys.stderr)
    train = database.execute("SELECT prompt, answer FROM samples GROUP BY step, group_id ORDER BY step, group_id").fetchall()
    first = database.execute("SELECT min(step) FROM evals").fetchone()[0]
    evaluation = database.execute("SELECT prompt, answer FROM evals WHERE step = ? ORDER BY row", (first,)).fetchall()
    return train, evaluation


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("run", help="a run folder of the recipe, with as many steps as this takes or more")
    parser.add_argument("--dtype", choices=["autocast", "bfloat16"], default="autocast")
    parser.add_argument("--micro", type=int, default=16, help="answers of a micro-batch")
    parser.add_argument("--steps", type=int, default=0, help="0: until --until or --minutes")
    parser.add_argument("--until", type=float, default=2.0, help="stop at this accuracy")
    parser.add_argument("--minutes", type=float, default=100, help="stop after so many minutes of training")
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    train, evaluation = read_run(options.run)

    import torch
    import transformers
    import trl
    from datasets import Dataset
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    imported_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    groups, group_size, tokens = 16, 8, 64
    batch = groups * group_size
    steps = options.steps or len(train) // groups
    if steps * groups > len(train):
        sys.exit(f"{options.run} has prompts of {len(train) // groups} steps, not of {steps}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model, padding_side="left")
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, attn_implementation="sdpa")

    def reward(completions, answer, **_):
        return [score(text, gold) for text, gold in zip(completions, answer)]

    @torch.no_grad()
    def accuracy():
        right = 0
        model.eval()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "autocast"):
            for begin in range(0, len(evaluation), 50):
                some = evaluation[begin:begin + 50]
                inputs = tokenizer([prompt for prompt, _ in some], return_tensors="pt", padding=True, add_special_tokens=False)
                out = model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
                texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
                right += sum(score(text, gold) for text, (_, gold) in zip(texts, some))
        model.train()
        return right / len(evaluation)

    clock = {"steps": [], "reached_s": None, "accuracy": []}

    class Clock(transformers.TrainerCallback):
        """Times a step from the end of the one before, so that taking its prompts, which comes before on_step_begin, is in it."""

        def on_train_begin(self, *_, **__):
            clock["accuracy"].append(accuracy())
            print(f"before: accuracy {clock['accuracy'][0]:.3f}", file=sys.stderr, flush=True)
            self.begin = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            clock["steps"].append(time.perf_counter() - self.begin)
            spent = sum(clock["steps"])
            line = f"step {state.global_step}  {clock['steps'][-1]:.1f} s  {spent:.0f} s in all"
            if state.global_step % options.eval_every == 0 or state.global_step == steps:
                clock["accuracy"].append(accuracy())
                line += f"  accuracy {clock['accuracy'][-1]:.3f}"
                if clock["accuracy"][-1] >= options.until and clock["reached_s"] is None:
                    clock["reached_s"] = spent
            print(line, file=sys.stderr, flush=True)
            control.should_training_stop |= clock["reached_s"] is not None or (not options.steps and spent > 60 * options.minutes)
            self.begin = time.perf_counter()

    config = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=options.dtype == "autocast", gradient_checkpointing=False,
        per_device_train_batch_size=options.micro, gradient_accumulation_steps=batch // options.micro, num_generations=group_size,
        max_completion_length=tokens, num_iterations=1, beta=0.0, epsilon=0.2, loss_type="grpo", scale_rewards="group",
        temperature=options.temperature, top_p=1.0, top_k=0, learning_rate=options.lr, lr_scheduler_type="constant_with_warmup",
        warmup_steps=3, weight_decay=0.0, max_grad_norm=1.0, max_steps=steps, logging_steps=10**6, report_to=[], save_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False, shuffle_dataset=False, seed=0)
    data = Dataset.from_dict({"prompt": [prompt for prompt, _ in train], "answer": [answer for _, answer in train]})
    trainer = trl.GRPOTrainer(model=model, args=config, reward_funcs=reward, train_dataset=data, processing_class=tokenizer,
                              callbacks=[Clock()])
    printed, sys.stdout = sys.stdout, sys.stderr
    try:
        trainer.train()
    finally:
        sys.stdout = printed
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    versions = {name: __import__(name).__version__ for name in ("torch", "transformers", "trl")}
    print(json.dumps({"dtype": options.dtype, "micro": options.micro, "steps": len(clock["steps"]), "threads": options.threads,
                      "step_s": round(statistics.median(clock["steps"]), 2),
                      "step_s_range": [round(f(clock["steps"]), 2) for f in (min, max)],
                      "until": options.until, "reached_s": clock["reached_s"], "trained_s": round(sum(clock["steps"]), 1),
                      "accuracy": clock["accuracy"], "peak_mib": peak_kib >> 10, "peak_less_imports_mib": (peak_kib - imported_kib) >> 10,
                      "versions": versions}))


if __name__ == "__main__":
    main()
