#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes for GSM8K and MATH on the real data with Qwen2.5's real vocabulary and a small random model: a few steps each;
and the memory of a training step, which never holds logits of all its tokens. Exit code 77: ../shared is absent."""
import argparse
import json
import os
import pathlib
import shutil
import tempfile

import run_folder as rf
import small_model
from run_folder import said

DATA = rf.ROOT.parent / "shared/data"
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, INNER = 151936, 64, 2, 4, 2, 128


def write_model(folder):
    """A Qwen2 model with the shape of the real vocabulary, and its tokenizer."""
    config = json.loads((DATA / "qwen2.5-tokenizer/config.json").read_text())
    config.update(hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=HEADS, num_hidden_layers=LAYERS,
                  num_key_value_heads=KV_HEADS, max_window_layers=LAYERS, vocab_size=VOCAB, max_position_embeddings=4096)
    small_model.write_model(folder, config)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(DATA / "qwen2.5-tokenizer" / name, folder / name)
    return folder


def peak_of(program, arguments):
    """Runs to the end; (standard output, its own peak of resident memory in bytes)."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        pid = os.posix_spawn(program.tandem, [program.tandem, *[str(a) for a in arguments]], os.environ,
                             file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, err.fileno(), 2)])
        _, status, usage = os.wait4(pid, 0)
        out.seek(0), err.seek(0)
        assert os.waitstatus_to_exitcode(status) == 0, err.read()[-3000:]
        return out.read(), usage.ru_maxrss * 1024


def check_recipe(program, model, scratch, recipe, settings, steps):
    folder = scratch / recipe
    small = {"schedule.groups_per_step": 2, "schedule.group_size": 2, "rollout.max_new_tokens": 16, "eval.max_new_tokens": 16, "eval.n": 1,
             "data.eval_max_rows": 4, "rollout.kv_cache_mib": 64, "eval.every_steps": 0, "checkpoint.every_steps": 2, "parallel.threads": 2}
    _, peak = peak_of(program, ["run", rf.ROOT / f"configs/{recipe}.yaml", "--model", model, "--run-dir", folder, "--steps", steps,
                               *rf.sets({**small, **settings})])
    rf.check_whole(folder, steps)
    last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["memory/peak_bytes"] > VOCAB * HIDDEN * 2 and last["data/response_tokens_max"] <= 16
    assert rf.summary(folder)["eval_after"]["num_problems"] == 4
    prompt, answer = rf.rows(folder, "SELECT prompt, answer FROM samples LIMIT 1")[0]
    assert "<|im_start|>assistant" in prompt and answer and "####" not in answer, (prompt, answer)
    exported = json.loads((folder / "checkpoint/latest/hf/config.json").read_text())
    assert exported["vocab_size"] == VOCAB
    said(f"{recipe}: {steps} steps, prompts of {last['data/prompt_tokens_mean']:.0f} tokens, memory/peak_bytes "
         f"{last['memory/peak_bytes'] / 2**20:.0f} MiB, resident {peak / 2**20:.0f} MiB, KL rollout/train "
         f"{last['actor/kl_rollout_train']:.1e}")


def check_memory(program, model, scratch):
    """Four times the tokens may cost activations of the layers, not logits: [tokens, vocabulary] is never whole."""
    figures = {}
    for num in (4, 16):
        lengths = scratch / f"lengths_{num}.json"
        lengths.write_text(json.dumps([256] * num))
        out, peak = peak_of(program, ["bench", "train_step", "--model", model, "--prompt-len", 32, "--lengths", lengths,
                                      "--dtype", "float32", "--threads", 2, "--repeats", 1])
        figures[256 * num] = (peak, json.loads(out))
    (small, (low, _)), (large, (high, report)) = figures.items()
    logits = large * VOCAB * 4
    arena, told = (report["rows"][name]["max"] for name in ("peak_bytes", "peak_rss_bytes"))
    said(f"a training step of {large} response tokens: {arena / 2**20:.0f} MiB in the arena, resident {high / 2**20:.0f} MiB, "
         f"{(high - low) / 2**20:.0f} MiB more than with {small}; fp32 logits alone would be {logits / 2**20:.0f} MiB")
    assert abs(told - high) < 0.05 * high, f"peak_rss_bytes says {told}, the system {high}"
    assert high < logits / 2, "close to the size of the logits"
    assert high - low < (large - small) * VOCAB * 4 / 8, "memory grows with tokens x vocabulary"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    options = parser.parse_args()
    if not DATA.is_dir():
        rf.skip("no ../shared/data")
    program = rf.Program(options.build)
    with tempfile.TemporaryDirectory(prefix="tandem_real_input_") as name:
        scratch = pathlib.Path(name)
        model = write_model(scratch / "model")
        gsm8k, math = DATA / "gsm8k", DATA / "math"
        check_recipe(program, model, scratch, "gsm8k_grpo", {"data.train": gsm8k / "train.jsonl", "data.eval": gsm8k / "test.jsonl"}, 3)
        math_files = {"data.train": math / "math_train.json", "data.eval": math / "math500.json"}
        check_recipe(program, model, scratch, "qwen2.5_1.5b_math_grpo", math_files, 2)
        check_memory(program, model, scratch)


if __name__ == "__main__":
    main()
