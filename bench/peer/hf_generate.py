#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batched sampling with transformers on CPU: generate() and continuous batching.

  hf_generate.py MODEL_DIR --mode {fixed,ragged,cb_fixed,cb_ragged}[,...] [--batch 32] [--prompts N]
                 [--prompt-len 128] [--new 128] [--dtype float32|bfloat16] [--threads 2]
                 [--repeats 3] [--out FILE]

temperature 1.0, full-vocabulary sampling, no EOS, so lengths are exact.
fixed    : one batch of --batch prompts, --new tokens each.  decode tokens/s is
           batch*(new-1) / (T(new) - T(1)); e2e tokens/s is batch*new / T(new).
ragged   : --prompts prompts (default 2*batch), each with its own target length, log-normal with a
           long tail clipped to [4, new], served in arrival order in static batches of --batch; a
           batch lasts as long as its longest row (generate() has no slot refill).
           useful tokens/s counts only wanted tokens.
cb_*     : the same work through transformers' continuous batching (paged sdpa attention),
           at most --batch requests in a step.
"""
import argparse, logging, math, os, random, time
import torch
from common import emit, machine, mmm, versions


def lengths(n, new, seed=1):
    r = random.Random(seed)
    # median new/8, sigma 1.0: mean about new/5, and some rows run to the clip
    return [max(4, min(new, int(round(math.exp(r.gauss(math.log(new / 8), 1.0)))))) for _ in range(n)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("--mode", default="fixed")
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--prompts", type=int, default=0)
    ap.add_argument("--prompt-len", type=int, default=128)
    ap.add_argument("--new", type=int, default=128)
    ap.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--repeats", type=int, default=3)
    ap.add_argument("--out")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)

    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation import StoppingCriteria, StoppingCriteriaList
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    dtype = getattr(torch, a.dtype)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype, attn_implementation="sdpa").eval()
    V = model.config.vocab_size
    base = dict(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0)
    model.generation_config = GenerationConfig(**base)       # no EOS anywhere
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    g = torch.Generator().manual_seed(0)
    n_prompts = a.prompts or 2 * a.batch
    prompts = torch.randint(3, V, (max(n_prompts, a.batch), a.prompt_len), generator=g)
    lens = lengths(n_prompts, a.new)

    class RowStop(StoppingCriteria):
        """Row i is finished once it has want[i] new tokens."""
        def __init__(self, want):
            self.want = torch.tensor(want)
        def __call__(self, input_ids, scores, **kw):
            return (input_ids.shape[1] - a.prompt_len) >= self.want

    def gen(ids, new, stop=None):
        t = time.perf_counter()
        with torch.inference_mode():
            o = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new,
                               stopping_criteria=StoppingCriteriaList([stop]) if stop else None)
        dt = time.perf_counter() - t
        return dt, o

    def cb(ids, want):
        """Returns (seconds, new tokens) for one pass; manager creation is outside the clock."""
        from transformers import ContinuousBatchingConfig
        blk = 32
        per = math.ceil((a.prompt_len + a.new) / blk) + 1
        cfg = ContinuousBatchingConfig(page_size=blk, num_blocks=per * (a.batch + 1),
                                       max_batch_tokens=max(256, a.batch * 2), max_requests_per_batch=a.batch,
                                       allow_block_sharing=False, use_cuda_graph=False, use_async_batching=False, seed=0)
        gc = GenerationConfig(**base, max_new_tokens=a.new, eos_token_id=-1)
        cm = model.continuous_batching_context_manager(generation_config=gc, continuous_batching_config=cfg,
                                                       block=True, timeout=5, warmup=False)
        with torch.inference_mode(), cm as mgr:
            t = time.perf_counter()
            for row, w in zip(ids.tolist(), want):
                mgr.add_request(input_ids=row, max_new_tokens=w, eos_token_id=-1)
            done = tok = 0
            while done < len(want):
                r = mgr.get_result(timeout=5)
                if r is None:
                    if not mgr.is_running():
                        raise RuntimeError("continuous batching thread died")
                    continue
                if r.is_finished():
                    if r.error:
                        raise RuntimeError(r.error)
                    done += 1
                    tok += len(r.generated_tokens)
            dt = time.perf_counter() - t
        return dt, tok

    res = []
    for mode in a.mode.split(","):
        row = {"mode": mode, "model": os.path.basename(os.path.normpath(a.model)), "dtype": a.dtype, "threads": a.threads,
               "batch": a.batch, "prompt_len": a.prompt_len, "new": a.new}
        try:
            if mode == "fixed":
                ids = prompts[:a.batch]
                gen(ids, 4)
                t1s, tns = [], []
                for _ in range(a.repeats):
                    t1s.append(gen(ids, 1)[0])
                    dt, o = gen(ids, a.new)
                    assert o.shape == (a.batch, a.prompt_len + a.new), o.shape
                    tns.append(dt)
                row.update(prompts=a.batch,
                           decode_tok_s=mmm([a.batch * (a.new - 1) / (tn - t1) for t1, tn in zip(t1s, tns)]),
                           e2e_tok_s=mmm([a.batch * a.new / tn for tn in tns]),
                           prefill_plus_first_token_s=mmm(t1s), total_s=mmm(tns),
                           ms_per_decode_step=mmm([1e3 * (tn - t1) / (a.new - 1) for t1, tn in zip(t1s, tns)]))
            elif mode == "ragged":
                gen(prompts[:a.batch], 4)
                ts, steps = [], 0
                for _ in range(a.repeats):
                    tot, steps = 0.0, 0
                    for i in range(0, n_prompts, a.batch):
                        w = lens[i:i + a.batch]
                        dt, o = gen(prompts[i:i + a.batch], a.new, RowStop(w))
                        assert o.shape[1] - a.prompt_len == max(w), (o.shape, max(w))
                        tot += dt
                        steps += max(w)
                    ts.append(tot)
                row.update(prompts=n_prompts, useful_tokens=sum(lens), len_median=sorted(lens)[n_prompts // 2], len_max=max(lens),
                           useful_tok_s=mmm([sum(lens) / t for t in ts]), total_s=mmm(ts),
                           slot_occupancy=round(sum(lens) / (steps * a.batch), 3))
            elif mode in ("cb_fixed", "cb_ragged"):
                n = a.batch if mode == "cb_fixed" else n_prompts
                want = [a.new] * n if mode == "cb_fixed" else lens
                logging.disable(logging.WARNING)
                cb(prompts[:2], [4, 4])
                ts = []
                for _ in range(a.repeats):
                    dt, tok = cb(prompts[:n], want)
                    assert tok == sum(want), (tok, sum(want))
                    ts.append(dt)
                key = "e2e_tok_s" if mode == "cb_fixed" else "useful_tok_s"
                row.update({"prompts": n, key: mmm([sum(want) / t for t in ts]), "total_s": mmm(ts)})
            else:
                raise SystemExit(f"unknown mode {mode}")
        except (RuntimeError, AssertionError, TypeError, ValueError, AttributeError, NotImplementedError) as e:
            row["error"] = f"{type(e).__name__}: {e}"[:500]
        res.append(row)
    emit({"what": "hf_generate", "machine": machine(), "versions": versions("torch", "transformers"), "rows": res}, a.out)


if __name__ == "__main__":
    main()
