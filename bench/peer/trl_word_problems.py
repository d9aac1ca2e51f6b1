#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The run of configs/smollm2_word_problems.yaml on TRL's GRPOTrainer. The prompts of RUN come in the same order. The options come from
RUN/config.yaml: model, learning rate, warm-up, groups, group size, temperature, lengths, evaluation.

  trl_word_problems.py RUN --dtype autocast --micro 16 --steps 10
  trl_word_problems.py RUN --dtype bfloat16 --micro 16 --until 0.4 --minutes 100

Before training the script checks two things and ends where RUN differs: its own rule on RUN's answers, and the tokens of RUN's prompts.
Each step prints a line. The last line is a JSON object: seconds and mean tokens of an answer of each step, seconds until --until, peak
resident memory of the process, that memory less the imported libraries, and whether weights have an fp32 master copy. Answers become
shorter while the model learns: compare the same steps of both sides. The clock stands still during evaluations.

--dtype autocast is TRL's default: fp32 weights, products in bf16. With --dtype bfloat16 weights and AdamW's moments are bf16. No master
copy in fp32 exists then, so a weight keeps its value where an update is below half a unit of its last place.

Equal on both sides: the mean over all tokens of a step (loss_type "dapo"), one update a step, AdamW, the learning rate of each step.
Different in Tandem with bfloat16:
- A truncated importance weight, training over rollout, multiplies a token's loss (algo.correction: token).
- Weights have a master copy in fp32.
- A group whose answers all score alike runs forward alone. TRL runs backward, too.
- An advantage is divided by the deviation + 1e-6. TRL adds 1e-4.
- Random numbers differ, so sampled answers differ.
Runs in a Python with torch, transformers, trl and datasets."""
import argparse
import array
import json
import math
import os
import pathlib
import re
import resource
import sqlite3
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


# What this script does. A run with another value is refused.
DONE = {"algo.advantage": "grpo", "algo.loss": "clip", "algo.aggregation": "token-mean", "algo.kl_coef": 0, "algo.entropy_coef": 0,
        "algo.mini_batches": 1, "algo.epochs": 1, "algo.filter_groups": False, "algo.mask_truncated": False, "algo.rejection": "",
        "model.dtype": "bfloat16", "model.lora_rank": 0, "reward.rule": "number", "reward.scale": 1, "schedule.kind": "sync",
        "train.lr_schedule": "cosine", "rollout.ignore_eos": False, "rollout.stop": [], "eval.n": 1, "eval.temperature": 0,
        "eval.ignore_eos": False, "data.eval": ["word_problems"], "data.eval_max_rows": 0}


def read_options(folder):
    """RUN/config.yaml as {"train.lr": 4e-05, ...}."""
    import yaml
    sections = yaml.safe_load((folder / "config.yaml").read_text())
    found = {f"{section}.{name}": value for section, options in sections.items() for name, value in options.items()}
    for name, value in DONE.items():
        if found[name] != value:
            sys.exit(f"{folder}/config.yaml: {name} is {found[name]}; this script does {value}")
    for name in ("lr", "eps", "weight_decay", "beta1", "beta2", "clip_grad_norm", "min_lr_ratio"):
        found[f"train.{name}"] = float(found[f"train.{name}"])  # YAML 1.1 reads 4e-05, without a point, as a text
    return found


def read_run(folder, run):
    """Prompts with answers in the order of training, those of the evaluation, and prompts with their tokens."""
    database = sqlite3.connect(f"file:{folder}/samples.sqlite?mode=ro", uri=True)
    # A row of an older step has lost its tokens and its response.
    graded = database.execute("SELECT response, answer, score FROM samples WHERE length(prompt_ids) > 0 "
                              "UNION ALL SELECT response, answer, score FROM evals").fetchall()
    wrong = [row for row in graded if score(row[0], row[1]) != row[2]]
    if wrong:
        sys.exit(f"{len(wrong)} of {len(graded)} scores differ from those of {folder}: {wrong[0]}")
    print(f"{len(graded)} answers of {folder} have the scores that it says", file=sys.stderr)
    train = database.execute("SELECT prompt, answer FROM samples GROUP BY step, group_id ORDER BY step, group_id").fetchall()
    evaluation = database.execute("SELECT prompt, answer FROM evals WHERE step = (SELECT min(step) FROM evals) ORDER BY row").fetchall()
    if len(evaluation) != run["data.synthetic_eval_rows"]:
        sys.exit(f"{folder}: the first evaluation has {len(evaluation)} rows, not {run['data.synthetic_eval_rows']}")
    tokens = database.execute("SELECT DISTINCT prompt, prompt_ids FROM samples WHERE length(prompt_ids) > 0").fetchall()
    return train, evaluation, [(prompt, array.array("i", ids).tolist()) for prompt, ids in tokens]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="a run folder of the recipe, with as many steps as this takes or more")
    parser.add_argument("--model", help="without it the model of RUN")
    parser.add_argument("--dtype", choices=["autocast", "bfloat16"], default="autocast")
    parser.add_argument("--micro", type=int, default=16, help="answers of a micro-batch")
    parser.add_argument("--steps", type=int, default=0, help="0: until --until or --minutes")
    parser.add_argument("--until", type=float, help="stop at this accuracy")
    parser.add_argument("--minutes", type=float, default=100, help="without --steps: stop after so many minutes of training")
    parser.add_argument("--eval-every", type=int, help="steps; without it eval.every_steps of RUN; 0: no evaluation")
    parser.add_argument("--threads", type=int, help="without it parallel.threads of RUN")
    options = parser.parse_args()
    run = read_options(options.run)
    train, evaluation, tokenized = read_run(options.run, run)
    model_path = options.model or run["model.path"]
    if not os.path.isdir(model_path):
        sys.exit(f"{model_path}: no such folder; --model names one")
    eval_every = run["eval.every_steps"] if options.eval_every is None else options.eval_every
    threads = options.threads or run["parallel.threads"] or len(os.sched_getaffinity(0))
    groups, group_size, tokens = run["schedule.groups_per_step"], run["schedule.group_size"], run["rollout.max_new_tokens"]
    lr, least, warmup, batch = run["train.lr"], run["train.min_lr_ratio"], run["train.warmup_steps"], groups * group_size
    lr_steps = run["train.lr_steps"] or run["run.steps"]
    steps = options.steps or len(train) // groups
    if steps * groups > len(train):
        sys.exit(f"{options.run} has prompts of {len(train) // groups} steps, not of {steps}")
    if options.until is not None and not eval_every:
        sys.exit("--until needs evaluations; --eval-every is 0")
    if batch % options.micro:
        sys.exit(f"--micro {options.micro} does not divide the {batch} answers of a step")

    import torch
    import transformers
    import trl
    from datasets import Dataset
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    imported_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path, padding_side="left")
    differ = [prompt for prompt, ids in tokenized if tokenizer(prompt)["input_ids"] != ids]
    if differ:
        sys.exit(f"{len(differ)} of {len(tokenized)} prompts have other tokens than in {options.run}: {differ[0]!r}")
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype, attn_implementation="sdpa")

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
                out = model.generate(**inputs, do_sample=False, max_new_tokens=run["eval.max_new_tokens"])
                texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
                right += sum(score(text, gold) for text, (_, gold) in zip(texts, some))
        model.train()
        return right / len(evaluation)

    clock = {"steps": [], "tokens": [], "rates": [], "reached_s": None, "accuracy": []}

    class Clock(transformers.TrainerCallback):
        """Times a step from the end of the one before, so that taking its prompts, which comes before on_step_begin, is in it."""

        def on_train_begin(self, *_, **__):
            if eval_every:
                clock["accuracy"].append(accuracy())
                print(f"before training  accuracy {clock['accuracy'][0]:.3f}", file=sys.stderr, flush=True)
            self.begin = time.perf_counter()

        def on_step_begin(self, *_, optimizer, **__):
            clock["rates"].append(optimizer.param_groups[0]["lr"])

        def on_step_end(self, args, state, control, **_):
            clock["steps"].append(time.perf_counter() - self.begin)
            clock["tokens"].append(trainer._metrics["train"]["completions/mean_length"][-1])
            spent = sum(clock["steps"])
            line = f"step {state.global_step}  {clock['steps'][-1]:.1f} s  {spent:.0f} s in all  lr {clock['rates'][-1]:.3g}"
            if eval_every and (state.global_step == steps or state.global_step % eval_every == 0):
                clock["accuracy"].append(accuracy())
                line += f"  accuracy {clock['accuracy'][-1]:.3f}"
                if options.until is not None and clock["accuracy"][-1] >= options.until:
                    clock["reached_s"] = spent
            print(line, file=sys.stderr, flush=True)
            control.should_training_stop |= clock["reached_s"] is not None or (not options.steps and spent > 60 * options.minutes)
            self.begin = time.perf_counter()

    class Trainer(trl.GRPOTrainer):
        """TRL with the rates of RUN (train/trainer.cpp:learning_rate): step k of a warm-up of w has k/w of the rate, then a cosine leads
        to train.min_lr_ratio of it in RUN's last step, also where --steps is less. They are those of lr_scheduler_type
        cosine_warmup_with_min_lr."""

        def create_scheduler(self, num_training_steps, optimizer=None):
            if self.lr_scheduler is None:
                def share(before):
                    step = before + 1
                    if step <= warmup:
                        return step / warmup
                    done = min(1.0, (step - warmup) / max(1, lr_steps - warmup))
                    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done))

                self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
            return self.lr_scheduler

    config = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=options.dtype == "autocast", gradient_checkpointing=False,
        per_device_train_batch_size=options.micro, gradient_accumulation_steps=batch // options.micro, num_generations=group_size,
        max_completion_length=tokens, num_iterations=1, beta=0.0, epsilon=run["algo.clip_low"], epsilon_high=run["algo.clip_high"],
        loss_type="dapo", scale_rewards="group", temperature=run["rollout.temperature"], top_p=run["rollout.top_p"],
        top_k=run["rollout.top_k"], learning_rate=lr, weight_decay=run["train.weight_decay"], adam_beta1=run["train.beta1"],
        adam_beta2=run["train.beta2"], adam_epsilon=run["train.eps"], max_grad_norm=run["train.clip_grad_norm"], max_steps=steps,
        logging_steps=10**6, report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, shuffle_dataset=False,
        seed=run["run.seed"])
    data = Dataset.from_dict({"prompt": [prompt for prompt, _ in train], "answer": [answer for _, answer in train]})
    trainer = Trainer(model=model, args=config, reward_funcs=reward, train_dataset=data, processing_class=tokenizer, callbacks=[Clock()])
    printed, sys.stdout = sys.stdout, sys.stderr
    try:
        trainer.train()
    finally:
        sys.stdout = printed
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    versions = {name: __import__(name).__version__ for name in ("torch", "transformers", "trl")}
    print(json.dumps({"dtype": options.dtype, "fp32_master_weights": options.dtype == "autocast", "micro": options.micro,
                      "threads": threads, "steps": len(clock["steps"]), "step_s": [round(seconds, 2) for seconds in clock["steps"]],
                      "response_tokens_mean": [round(tokens, 1) for tokens in clock["tokens"]], "until": options.until,
                      "reached_s": clock["reached_s"] and round(clock["reached_s"], 1), "trained_s": round(sum(clock["steps"]), 1),
                      "eval_every": eval_every, "accuracy": clock["accuracy"], "lr": clock["rates"][:warmup + 1],
                      "peak_rss_mib": peak_kib >> 10, "peak_rss_less_imports_mib": (peak_kib - imported_kib) >> 10, "model": model_path,
                      "run": str(options.run), "versions": versions}))


if __name__ == "__main__":
    main()
