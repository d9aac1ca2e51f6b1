#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TRL GRPOTrainer on CPU with a random model, a byte tokenizer and a deterministic reward.

  trl_grpo.py MODEL_DIR [--new 64] [--beta 0.0] [--prompts 16] [--gens 8] [--prompt-len 32]
              [--micro 32] [--steps 4] [--dtype float32|bf16] [--ckpt] [--cb] [--threads 2] [--out FILE]

One step = 16 prompts x 8 generations, num_iterations=1, one optimizer step (gradient accumulation
over 128/--micro micro-batches).  EOS is forbidden (min_new_tokens = max), so lengths are exact.
The first step is warm-up and is not counted.  Times come from TRL's own profiling contexts
(transformers.generate, reward functions) plus wall clock between optimizer steps.
"""
import argparse, collections, os, statistics, sys, tempfile, time
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
import torch
from common import emit, machine, mmm, versions


def byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": 2}
    for ch in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[ch] = len(vocab)
    t = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("--new", type=int, default=64)
    ap.add_argument("--beta", type=float, default=0.0)
    ap.add_argument("--prompts", type=int, default=16)
    ap.add_argument("--gens", type=int, default=8)
    ap.add_argument("--prompt-len", type=int, default=32)
    ap.add_argument("--micro", type=int, default=32)
    ap.add_argument("--steps", type=int, default=4, help="including one warm-up step")
    ap.add_argument("--dtype", choices=["float32", "bf16"], default="float32", help="bf16 = autocast, TRL's default")
    ap.add_argument("--ckpt", action="store_true", help="gradient checkpointing (TRL's default is on)")
    ap.add_argument("--cb", action="store_true", help="use transformers continuous batching for generation")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--out")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)

    import transformers
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    import trl.extras.profiling as prof
    from trl import GRPOConfig, GRPOTrainer
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    spans = collections.defaultdict(float)
    orig_exit = prof.ProfilingContext.__exit__
    def rec(self, *x):
        if self._start_time is not None:
            spans[self.name] += time.perf_counter() - self._start_time
        return orig_exit(self, *x)
    prof.ProfilingContext.__exit__ = rec

    tok = byte_tokenizer()
    words = ["sum", "of", "two", "and", "ten", "plus", "six", "one"]
    def prompt(i):
        s = f"Q{i}: " + " ".join(words[(i * 7 + j * 3) % 8] for j in range(12))
        return s[:a.prompt_len].ljust(a.prompt_len, ".")
    data = Dataset.from_dict({"prompt": [prompt(i) for i in range(a.prompts * (a.steps + 1))]})
    assert len(tok(data[0]["prompt"])["input_ids"]) == a.prompt_len

    seen = {"tokens": 0}
    def reward_even(completions, completion_ids=None, **kw):
        if completion_ids is not None:
            seen["tokens"] += sum(len(c) for c in completion_ids)
            return [sum(1 for t in c if t % 2 == 0) / max(1, len(c)) for c in completion_ids]
        return [float(len(c) % 7) for c in completions]

    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="sdpa")
    n = a.prompts * a.gens
    out = tempfile.mkdtemp()
    kw = dict(output_dir=out, use_cpu=True, bf16=(a.dtype == "bf16"), gradient_checkpointing=a.ckpt,
              per_device_train_batch_size=min(a.micro, n), gradient_accumulation_steps=max(1, n // a.micro),
              num_generations=a.gens, max_completion_length=a.new, num_iterations=1, beta=a.beta,
              temperature=1.0, top_p=1.0, top_k=0, learning_rate=1e-6, max_steps=a.steps, logging_steps=1,
              report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
              generation_kwargs={"min_new_tokens": a.new}, seed=0)
    if a.cb:
        kw["use_transformers_continuous_batching"] = True
    cfg = GRPOConfig(**kw)

    per, logs = [], []
    class CB(TrainerCallback):
        t = None
        def on_step_begin(self, *_, **__):
            self.t = time.perf_counter(); spans.clear(); seen["tokens"] = 0
        def on_step_end(self, *_, **__):
            per.append({"step_s": time.perf_counter() - self.t, "tokens": seen["tokens"], **dict(spans)})
        def on_log(self, args, state, control, logs=None, **__):
            globals().setdefault("_l", []).append(dict(logs or {}));
    tr = GRPOTrainer(model=model, args=cfg, reward_funcs=reward_even, train_dataset=data, processing_class=tok, callbacks=[CB()])
    sys.stdout.flush()
    # the dataloader fetch of a step happens before on_step_begin; generation happens in training_step
    real, sys.stdout = sys.stdout, sys.stderr
    try:
        tr.train()
    finally:
        sys.stdout = real
    m = per[1:]
    gen = [next((p[k] for k in p if "transformers.generate" in k), 0.0) for p in m]
    tot = [p["step_s"] for p in m]
    tokens = m[-1]["tokens"]
    names = sorted({k for p in m for k in p} - {"step_s", "tokens"})
    spans_med = {k: round(statistics.median(p.get(k, 0.0) for p in m), 4) for k in names}
    last = [l for l in globals().get("_l", []) if "completions/mean_length" in l]
    emit({"what": "trl_grpo", "machine": machine(), "versions": versions("torch", "transformers", "trl", "accelerate"),
          "row": {"model": os.path.basename(os.path.normpath(a.model)), "new": a.new, "beta": a.beta, "samples_per_step": n,
                  "prompt_len": a.prompt_len, "micro": a.micro, "dtype": a.dtype, "grad_checkpointing": a.ckpt,
                  "generation": "transformers continuous batching" if a.cb else "transformers generate", "threads": a.threads,
                  "mean_length": last[-1]["completions/mean_length"] if last else None, "new_tokens_per_step": tokens,
                  "step_s": mmm(tot), "generate_s": mmm(gen), "rest_s": mmm([t - g for t, g in zip(tot, gen)]),
                  "generate_share": round(statistics.median(g / t for t, g in zip(tot, gen)), 3),
                  "samples_s": mmm([n / t for t in tot]), "new_tokens_s": mmm([n * a.new / t for t in tot]),
                  "gen_tokens_s": mmm([n * a.new / g for g in gen if g] or [0]), "trl_spans_median_s": spans_med}}, a.out)


if __name__ == "__main__":
    main()
