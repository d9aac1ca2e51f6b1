#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of true size with random weights: Qwen2.5-0.5B, Qwen3-0.6B, and a DeepSeek-V3 slice (true hidden size, heads, ranks of
the latents and vocabulary; one dense layer and one of 32 experts). Each is written as bf16, loaded and generates; those of Qwen take
an AdamW step in bf16 and fp32, the slice a step of LoRA. Prints a row per run: seconds, peak resident memory, what the process read
(rchar) against the bytes of the files, and what the program says of loading. Fails if a run fails, takes 20 GiB or more, or reads
more than 1.1x.

One process runs at a time, but the largest takes more than half of a machine of 24 GiB, and a training step writes 7 GB and
removes them. Needs `scripts/build release tandem`, numpy, and ../shared/data."""
import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import numpy

from make_model import shapes_of as qwen2_shapes

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared/data"
FILE_BYTES = 2_000_000_000
PEAK_BOUND_BYTES = 20 << 30
READ_BOUND = 1.1
BLOCK = 4_194_301  # a prime, so that no row of a matrix repeats another


def qwen_shapes(c):
    c = {"head_dim": c["hidden_size"] // c["num_attention_heads"], **c}
    shapes = qwen2_shapes(c)
    if c["model_type"] == "qwen2":
        return shapes
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith("proj.bias")}
    for i in range(c["num_hidden_layers"]):
        for name in ("q_norm", "k_norm"):
            shapes[f"model.layers.{i}.self_attn.{name}.weight"] = [c["head_dim"]]
    return shapes


def mlp_shapes(prefix, hidden, inner):
    return {f"{prefix}{name}_proj.weight": [hidden, inner] if name == "down" else [inner, hidden] for name in ("gate", "up", "down")}


def deepseek_shapes(c):
    hidden, heads, q_rank, kv_rank = (c[name] for name in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank"))
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes = {"model.embed_tokens.weight": [c["vocab_size"], hidden]}
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        attention = {"q_a_proj": [q_rank, hidden], "q_a_layernorm": [q_rank], "q_b_proj": [heads * (nope + rope), q_rank],
                     "kv_a_proj_with_mqa": [kv_rank + rope, hidden], "kv_a_layernorm": [kv_rank],
                     "kv_b_proj": [heads * (nope + value), kv_rank], "o_proj": [hidden, heads * value]}
        shapes.update({f"{layer}self_attn.{name}.weight": shape for name, shape in attention.items()})
        if i < c["first_k_dense_replace"]:
            shapes.update(mlp_shapes(f"{layer}mlp.", hidden, c["intermediate_size"]))
        else:
            shapes[f"{layer}mlp.gate.weight"] = [c["n_routed_experts"], hidden]
            shapes[f"{layer}mlp.gate.e_score_correction_bias"] = [c["n_routed_experts"]]
            experts = [f"experts.{e}." for e in range(c["n_routed_experts"])]
            for name in [*experts, "shared_experts."]:
                shapes.update(mlp_shapes(f"{layer}mlp.{name}", hidden, c["moe_intermediate_size"]))
        shapes.update({f"{layer}{name}_layernorm.weight": [hidden] for name in ("input", "post_attention")})
    return {**shapes, "model.norm.weight": [hidden], "lm_head.weight": [c["vocab_size"], hidden]}


SLICE = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 32, "max_position_embeddings": 4096}
MODELS = {"qwen2.5-0.5b": (qwen_shapes, {}), "qwen3-0.6b": (qwen_shapes, {}), "deepseek-v3": (deepseek_shapes, SLICE)}


def num_elements(shape):
    return int(numpy.prod(shape, dtype=numpy.int64))


def files_of(shapes):
    """Lists of names, each of at most FILE_BYTES unless one tensor is larger."""
    files, held = [[]], 0
    for name, shape in shapes.items():
        size = 2 * num_elements(shape)
        if files[-1] and held + size > FILE_BYTES:
            files.append([])
            held = 0
        files[-1].append(name)
        held += size
    return files


def values_of(name, count, block, at):
    """bf16 values as 16-bit words, a piece of at most a block at a time."""
    if len(name.split(".")) > 1 and "norm" in name.split(".")[-2]:
        yield numpy.full(count, 0x3F80, dtype="<u2")
        return
    if name.endswith("bias"):
        yield numpy.zeros(count, dtype="<u2")
        return
    while count > 0:
        piece = block[at % BLOCK:][:count]
        yield piece
        at, count = at + len(piece), count - len(piece)


def write_file(path, names, shapes, block):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        size = 2 * num_elements(shapes[name])
        header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            for piece in values_of(name, num_elements(shapes[name]), block, header[name]["data_offsets"][0] // 2):
                out.write(piece.data)
        out.flush()
        os.fsync(out.fileno())


def write_model(name, folder, data):
    """Leaves a folder alone that was written before: config.json comes last."""
    if (folder / "config.json").exists():
        return
    shapes_of, changes = MODELS[name]
    config = {**json.loads((data / f"configs/{name}.json").read_text()), **changes}
    shapes = shapes_of(config)
    folder.mkdir(parents=True, exist_ok=True)
    normal = numpy.random.default_rng(0).standard_normal(BLOCK, dtype=numpy.float32) * numpy.float32(0.02)
    block = (normal.view("<u4") >> 16).astype("<u2")
    files = files_of(shapes)
    index = {"metadata": {"total_size": 2 * sum(map(num_elements, shapes.values()))}, "weight_map": {}}
    for i, names in enumerate(files):
        file = "model.safetensors" if len(files) == 1 else f"model-{i + 1:05}-of-{len(files):05}.safetensors"
        write_file(folder / file, names, shapes, block)
        index["weight_map"].update(dict.fromkeys(names, file))
    if len(files) > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    tokenizer = "qwen2.5-tokenizer" if name.startswith("qwen") else "stories260k/hf"  # any whose ids the model has
    for path in (data / tokenizer).iterdir():
        if path.name in ("vocab.json", "merges.txt") or path.name.startswith("tokenizer"):
            shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def measured(command, stdin):
    """Exit status, seconds, peak resident bytes and bytes read of one child, and its standard error."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as asked:
        asked.write(stdin.encode())
        asked.seek(0)
        begin = time.perf_counter()
        child = subprocess.Popen([str(part) for part in command], stdin=asked, stdout=subprocess.PIPE, stderr=errors)
        output = child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its counts can be read until it is waited for
        counts = dict(line.split(": ") for line in pathlib.Path(f"/proc/{child.pid}/io").read_text().splitlines())
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return {"rc": child.returncode, "seconds": time.perf_counter() - begin, "peak_bytes": usage.ru_maxrss * 1024,
                "read_bytes": int(counts["rchar"]), "errors": errors.read().decode(errors="replace"), "output": output.decode()}


def commands(name, model, options, runs):
    """(what, command, standard input)"""
    program, data = options.program, options.data
    prompt = {"prompt": "Natalia sold clips to 48 of her friends."} if name.startswith("qwen") else {"prompt_ids": list(range(100, 132))}
    for dtype in ("bfloat16", "float32") if name.startswith("qwen") else ("bfloat16",):
        yield (f"generate {dtype}", [program, "generate", "--model", model, "--dtype", dtype, "--max-new-tokens", 16, "--ignore-eos"],
               json.dumps(prompt) + "\n")
        if name.startswith("qwen"):
            rows = ["data.prompt_column=question", "data.answer_column=answer", f"data.train={data}/gsm8k/train.jsonl",
                    f"data.eval={data}/gsm8k/test.jsonl", "data.eval_max_rows=1", "supervised.batch_size=8", "eval.before=false",
                    "eval.after=false"]
            yield (f"sft step {dtype}", [program, "sft", ROOT / "configs/gsm8k_grpo.yaml", "--model", model, "--steps", 1, "--dtype", dtype,
                                         "--run-dir", runs / dtype, *(part for row in rows for part in ("--set", row))], "")
        else:
            rows = ["data.train=synthetic", "data.eval=", "supervised.batch_size=8", "supervised.stop_at_accuracy=0", "model.lora_rank=16"]
            yield ("LoRA step", [program, "sft", ROOT / "configs/quickstart.yaml", "--model", model, "--steps", 1, "--dtype", dtype,
                                 "--run-dir", runs / "lora", *(part for row in rows for part in ("--set", row))], "")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    path = lambda name, default, text: parser.add_argument(name, type=pathlib.Path, default=default, help=text)  # noqa: E731
    path("--program", ROOT / "build/release/tandem", "the program")
    path("--data", SHARED, "folder of configs, gsm8k and qwen2.5-tokenizer")
    path("--folder", ROOT.parent / "models", "where the models go: 11 GB")
    parser.add_argument("--models", default=",".join(MODELS), help="which of them")
    parser.add_argument("--only", default="", help="runs whose name holds this text")
    parser.add_argument("--cold", action="store_true", help="empty the page cache before each run (needs root)")
    options = parser.parse_args()
    failed = False
    print("| model | run | seconds | peak GiB | read / files | loading |\n|---|---|---|---|---|---|", flush=True)
    for name in options.models.split(","):
        model = options.folder / f"{name}-random"
        write_model(name, model, options.data)
        weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        with tempfile.TemporaryDirectory(dir=options.folder) as runs:
            for what, command, stdin in commands(name, model, options, pathlib.Path(runs)):
                if options.only not in what:
                    continue
                if options.cold:
                    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
                run = measured(command, stdin)
                loaded = [line for line in run["errors"].splitlines() if line.startswith("loaded ")]
                # A training run reads its checkpoint again for the manifest; loading is what the program counts.
                ratio = run["read_bytes"] / weights
                print(f"| {name} | {what} | {run['seconds']:.1f} | {run['peak_bytes'] / 2**30:.2f} | {ratio:.3f} | "
                      f"{'; '.join(loaded)} |", flush=True)
                wrong = run["rc"] != 0 or run["peak_bytes"] >= PEAK_BOUND_BYTES or ("generate" in what and ratio > READ_BOUND)
                if wrong:
                    print(run["errors"][-2000:], file=sys.stderr)
                failed = failed or wrong
                shutil.rmtree(runs, ignore_errors=True)
                os.makedirs(runs, exist_ok=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
