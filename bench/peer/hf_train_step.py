#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch GRPO-style policy-gradient step on a transformers Qwen2 model, CPU.

  hf_train_step.py MODEL_DIR [--layout padded,packed] [--dtype float32|bf16-autocast]
                   [--samples 16] [--prompt-len 128] [--max-resp 384] [--micro 4] [--ckpt]
                   [--threads 2] [--repeats 3] [--out FILE]

One step = micro-batched forward over `--samples` sequences, log-probs of the response tokens,
PPO/GRPO clipped loss against stored old log-probs, backward, grad-norm clip, fused AdamW.
Response lengths are log-normal (long tail).  Logits are computed for response positions only, and
only the selected log-prob is kept (no [T, V] fp32 copy beyond one log_softmax).
padded : right-padded micro-batches of `--micro` rows, attention_mask.
packed : the same rows of a micro-batch laid end to end in one [1, T] row, position_ids restart at 0;
         transformers turns that into a block-diagonal mask for sdpa.
tokens/s counts real (non-pad) tokens.  GFLOP/s counts 6*N_mm*T + 6*(2*L*q_dim*sum_i(len_i^2)/2)
for real tokens, with N_mm = weights in matmuls, the LM head counted at response positions only.
"""
import argparse, math, os, random, time
import torch
import torch.nn.functional as F
from common import emit, machine, mmm, versions


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("--layout", default="padded,packed")
    ap.add_argument("--dtype", choices=["float32", "bf16-autocast"], default="float32")
    ap.add_argument("--samples", type=int, default=16)
    ap.add_argument("--prompt-len", type=int, default=128)
    ap.add_argument("--max-resp", type=int, default=384)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--ckpt", action="store_true")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--repeats", type=int, default=3)
    ap.add_argument("--out")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    import transformers
    from transformers import AutoModelForCausalLM
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="sdpa").train()
    if a.ckpt:
        model.gradient_checkpointing_enable()
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    V, L, qd = c.vocab_size, c.num_hidden_layers, c.num_attention_heads * head_dim
    n_body = sum(p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n and "lm_head" not in n)
    n_head = V * c.hidden_size
    opt = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)

    r = random.Random(3)
    resp = [max(8, min(a.max_resp, int(math.exp(r.gauss(math.log(a.max_resp / 4), 0.9))))) for _ in range(a.samples)]
    P = a.prompt_len
    seqs = [torch.randint(3, V, (P + n,)) for n in resp]
    adv = [r.gauss(0, 1) for _ in resp]
    old = [torch.full((n,), -math.log(V)) for n in resp]
    T, Tr = sum(len(s) for s in seqs), sum(resp)
    flop = 6 * n_body * T + 6 * n_head * Tr + 6 * L * qd * sum(len(s) ** 2 for s in seqs)
    mbs = [list(range(i, min(i + a.micro, a.samples))) for i in range(0, a.samples, a.micro)]

    def logps(hidden_sel, target):
        logits = model.lm_head(hidden_sel).float()
        return logits.gather(-1, target[:, None])[:, 0] - torch.logsumexp(logits, -1)

    def step(layout):
        opt.zero_grad(set_to_none=True)
        t0 = time.perf_counter()
        for mb in mbs:
            with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype != "float32"):
                if layout == "padded":
                    W = max(len(seqs[i]) for i in mb)
                    ids = torch.stack([F.pad(seqs[i], (0, W - len(seqs[i]))) for i in mb])
                    am = torch.stack([F.pad(torch.ones(len(seqs[i]), dtype=torch.long), (0, W - len(seqs[i]))) for i in mb])
                    h = model.model(input_ids=ids, attention_mask=am, use_cache=False).last_hidden_state
                    sel = torch.cat([h[j, P - 1:len(seqs[i]) - 1] for j, i in enumerate(mb)])
                else:
                    ids = torch.cat([seqs[i] for i in mb])[None]
                    pos = torch.cat([torch.arange(len(seqs[i])) for i in mb])[None]
                    h = model.model(input_ids=ids, position_ids=pos, use_cache=False).last_hidden_state[0]
                    off, idx = 0, []
                    for i in mb:
                        idx.append(torch.arange(off + P - 1, off + len(seqs[i]) - 1)); off += len(seqs[i])
                    sel = h[torch.cat(idx)]
                lp = logps(sel, torch.cat([seqs[i][P:] for i in mb]))
            o = torch.cat([old[i] for i in mb])
            A = torch.cat([torch.full((resp[i],), adv[i]) for i in mb])
            ratio = torch.exp((lp - o).clamp(-5, 5))
            loss = -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A).sum() / Tr
            loss.backward()
        t1 = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        t2 = time.perf_counter()
        return t1 - t0, t2 - t1, lp.detach()

    rows = []
    for layout in a.layout.split(","):
        row = {"model": os.path.basename(os.path.normpath(a.model)), "layout": layout, "dtype": a.dtype, "threads": a.threads,
               "samples": a.samples, "micro": a.micro, "prompt_len": P,
               "resp_mean": round(Tr / a.samples, 1), "resp_max": max(resp), "max_resp_arg": a.max_resp,
               "real_tokens": T, "response_tokens": Tr, "grad_checkpointing": a.ckpt,
               "padded_positions": sum(max(len(seqs[i]) for i in mb) * len(mb) for mb in mbs) if layout == "padded" else T}
        try:
            step(layout)
            xs = [step(layout)[:2] for _ in range(a.repeats)]
            tot = [x + y for x, y in xs]
            row.update(step_s=mmm(tot), fwd_bwd_s=mmm([x for x, _ in xs]), clip_adamw_s=mmm([y for _, y in xs]),
                       tokens_s=mmm([T / t for t in tot]), gflops_model=mmm([flop / x / 1e9 for x, _ in xs]))
        except (RuntimeError, TypeError, ValueError) as e:
            row["error"] = f"{type(e).__name__}: {e}"[:500]
        rows.append(row)
    # do the two layouts agree?  same weights, one forward each (fp32 only: a correctness check, not a timing)
    check = None
    if a.dtype == "float32" and len(mbs) and {"padded", "packed"} <= set(a.layout.split(",")):
        with torch.no_grad():
            mb = mbs[0]
            pos = torch.cat([torch.arange(len(seqs[i])) for i in mb])[None]
            hp = model.model(input_ids=torch.cat([seqs[i] for i in mb])[None], position_ids=pos, use_cache=False).last_hidden_state[0]
            d, off = 0.0, 0
            for i in mb:
                h1 = model.model(input_ids=seqs[i][None], use_cache=False).last_hidden_state[0]
                d = max(d, (hp[off:off + len(seqs[i])] - h1).abs().max().item()); off += len(seqs[i])
            check = {"packed_vs_single_max_abs_hidden": d}
    emit({"what": "hf_train_step", "machine": machine(), "versions": versions("torch", "transformers"),
          "check": check, "rows": rows}, a.out)


if __name__ == "__main__":
    main()
