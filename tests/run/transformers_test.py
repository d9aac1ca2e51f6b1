#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line against other programs: golden values of small models through tokenize, logprobs and generate, and a
trained checkpoint read by transformers."""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import run_folder as rf
import small_model
from run_folder import said

SHARED = rf.ROOT.parent / "shared"
BOUND = 1e-4
SCORE_BOUND = 1e-5

# Runs under a Python that has transformers: logprobs and greedy continuations of the model of a checkpoint.
REFERENCE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
job = json.load(sys.stdin)
model, info = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
model.eval()
assert not info["missing_keys"] and not info["unexpected_keys"], info
tokenizer = AutoTokenizer.from_pretrained(job["model"])
out = {"texts": [tokenizer(t)["input_ids"] for t in job["texts"]], "logprobs": [], "greedy": [], "gap": []}
with torch.no_grad():
    for ids in job["ids"]:
        x = torch.tensor([ids])
        p = torch.log_softmax(model(x).logits[0].float(), -1)
        out["logprobs"].append(p[:-1].gather(1, x[0, 1:, None])[:, 0].tolist())
    for ids in job["prompts"]:
        x, gap = torch.tensor([ids]), []
        for _ in range(job["new"]):
            logits = model(x).logits[0, -1, :len(tokenizer)]  # ids behind are padding and never drawn
            top = logits.topk(2).values
            gap.append(float(top[0] - top[1]))
            x = torch.cat([x, logits.argmax()[None, None]], 1)
        out["greedy"].append(x[0, len(ids):].tolist()), out["gap"].append(min(gap))
model.save_pretrained(job["again"], max_shard_size=job["shard"])
json.dump(out, sys.stdout)
"""

SHARD = "40KB"


def read_safetensors(path):
    """The values of each tensor, flat."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        code = {"F32": "f", "I64": "q", "I32": "i"}[entry["dtype"]]
        tensors[name] = list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
    return tensors


def weights_of(folder):
    """The values of each tensor of a model directory, of one file or several."""
    return {name: values for path in sorted(pathlib.Path(folder).glob("*.safetensors")) for name, values in read_safetensors(path).items()}


def lines(objects):
    return "".join(json.dumps(o) + "\n" for o in objects)


def answers(output):
    return [json.loads(line) for line in output.stdout.split("\n") if line]  # texts may hold U+2028


def worst(got, wanted):
    assert len(got) == len(wanted), (len(got), len(wanted))
    return max(abs(a - b) for a, b in zip(got, wanted))


FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3")  # the others of the full set are skipped, by name


def check_models(program, models):
    """Those of the repository, and the whole set where it is."""
    done, skipped = [], []
    for folder in sorted(path.parent for path in models.glob("*/golden.safetensors")):
        config = json.loads((folder / "config.json").read_text())
        if "ForSequenceClassification" in config["architectures"][0]:
            continue  # a reward model, which check_score_models has
        if config["model_type"] not in FAMILIES:
            skipped.append(folder.name)
            continue
        golden = read_safetensors(folder / "golden.safetensors")
        sequences = [golden[f"seq{i}.input_ids"] for i in range(3)]
        asked = lines({"ids": ids} for ids in sequences)
        ask = lambda *more: program.done(["logprobs", "--model", folder, *more], stdin=asked)  # noqa: E731
        error = 0
        for name, output in (("t1.0", ask()), ("t0.7", ask("--temperature", "0.7"))):
            for i, row in enumerate(answers(output)):
                error = max(error, worst(row["logprobs"], golden[f"seq{i}.logprobs_{name}"]))
        assert error <= BOUND, (folder.name, error)
        output = program.done(["generate", "--model", folder, "--temperature", "0", "--max-new-tokens", "32", "--ignore-eos", "--logprobs"],
                              stdin=lines([{"prompt_ids": golden["greedy.prompt_ids"]}]))
        completion = answers(output)[0]["completions"][0]
        assert completion["ids"] == golden["greedy.new_ids"], folder.name
        error = max(error, worst(completion["logprobs"], golden["greedy.logprobs_t1.0"]))
        assert error <= BOUND, (folder.name, error)
        done.append(f"{folder.name} {error:.1e}")
    assert done, f"{models}: no model"
    said(f"golden models, logprobs and greedy tokens: {', '.join(done)}; {len(skipped)} skipped, of families that are not tested here: "
         f"{', '.join(skipped) or 'none'}")


def check_tokenizers(program, folder, cases):
    """Text to ids for each case, and ids to text."""
    with tempfile.TemporaryDirectory() as scratch:
        config = pathlib.Path(scratch)  # tokenizer files alone are a model directory for this command
        for path in folder.iterdir():
            (config / path.name).symlink_to(path)
        output = answers(program.done(["tokenize", "--model", config], stdin=lines({"text": c["text"]} for c in cases)))
        wrong = [c["text"] for c, o in zip(cases, output, strict=True) if o["ids"] != c["ids"]]
        assert not wrong, f"{len(wrong)} of {len(cases)}: {wrong[:3]}"
        output = answers(program.done(["detokenize", "--model", config], stdin=lines({"ids": c["ids"]} for c in cases)))
        wrong = [c["text"] for c, o in zip(cases, output, strict=True) if o["text"] != c["decoded"]]
        assert not wrong, f"{len(wrong)} of {len(cases)} decoded: {wrong[:3]}"


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def check_oracles(program):
    check_models(program, SHARED / "oracles/models")
    cases = read_jsonl(SHARED / "oracles/tokenizer/qwen2.jsonl")
    check_tokenizers(program, SHARED / "data/qwen2.5-tokenizer", cases)
    stories = SHARED / "data/stories260k/hf"
    said(f"Qwen2.5's tokenizer: {len(cases)} texts")
    golden = json.loads((SHARED / "oracles/stories260k/golden.json").read_text())
    for case in golden["cases"]:
        output = program.done(["generate", "--model", stories, "--temperature", "0", "--max-new-tokens", len(case["new_ids"]),
                               "--ignore-eos"], stdin=lines([{"prompt_ids": case["prompt_ids"]}]))
        assert answers(output)[0]["completions"][0]["ids"] == case["new_ids"], case["name"]


def python_with_transformers():
    """An interpreter that has transformers, or None."""
    for python in (os.environ.get("TANDEM_PEERS_PYTHON"), str(rf.ROOT.parent / "peers-venv/bin/python"), sys.executable):
        if python and pathlib.Path(python).exists():
            if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True).returncode == 0:
                return python
    return None


def check_checkpoint(program, python, sparse):
    """A checkpoint that a run wrote is a model for transformers, and says the same there."""
    with tempfile.TemporaryDirectory(prefix="tandem_transformers_") as scratch:
        recipe = rf.tiny_recipe(f"{scratch}/run.yaml", run__steps=6, train__lr=1e-2)
        arguments, start = ["--max-shard-size", SHARD], f"{scratch}/run/init/hf"
        if sparse:
            program.done(["run", recipe, "--run-dir", f"{scratch}/dense", "--no-eval", "--steps", "1"])
            start = small_model.write_moe(f"{scratch}/start", f"{scratch}/dense/init/hf")
            arguments += ["--model", start, "--ranks", "2", "--train-layout", "tp2,ep2"]
        program.done(["run", recipe, "--run-dir", f"{scratch}/run", "--no-eval", *arguments])
        model = f"{scratch}/run/checkpoint/latest/hf"
        before, after = weights_of(start), weights_of(model)
        assert before.keys() == after.keys() and before != after, "the run did not train"
        texts = ["12+34=", "9*9-1 = 80, 7/7?", "0"]
        prompts = [row["ids"] for row in answers(program.done(["tokenize", "--model", model], stdin=lines({"text": t} for t in texts)))]
        generated = program.done(["generate", "--model", model, "--temperature", "0", "--max-new-tokens", "24", "--ignore-eos",
                                  "--logprobs"], stdin=lines({"prompt_ids": p} for p in prompts))
        completions = [row["completions"][0] for row in answers(generated)]
        ids = [p + c["ids"] for p, c in zip(prompts, completions)]
        logprobs = [row["logprobs"] for row in answers(program.done(["logprobs", "--model", model], stdin=lines({"ids": i} for i in ids)))]
        job = {"model": model, "ids": ids, "prompts": prompts, "texts": texts, "new": 24, "again": f"{scratch}/again", "shard": SHARD}
        reference = subprocess.run([python, "-c", REFERENCE], input=json.dumps(job), capture_output=True, text=True, timeout=300)
        assert reference.returncode == 0, reference.stderr[-3000:]
        told = json.loads(reference.stdout)
        ours, theirs = (json.loads(pathlib.Path(p, "model.safetensors.index.json").read_text()) for p in (model, f"{scratch}/again"))
        if sparse:  # transformers keeps experts as one tensor and cuts by those
            assert ours["weight_map"].keys() == theirs["weight_map"].keys(), (ours, theirs)
        else:
            assert ours["weight_map"] == theirs["weight_map"], (ours, theirs)
        assert ours["metadata"]["total_size"] == theirs["metadata"]["total_size"], (ours["metadata"], theirs["metadata"])
        files = len(set(ours["weight_map"].values()))
        assert told["texts"] == prompts, (told["texts"], prompts)
        error = max(worst(mine, theirs) for mine, theirs in zip(logprobs, told["logprobs"]))
        assert error <= BOUND, error
        for i, (c, theirs) in enumerate(zip(completions, told["greedy"])):
            assert c["ids"] == theirs, (texts[i], c["ids"], theirs, told["gap"][i])
            error = max(error, worst(c["logprobs"], told["logprobs"][i][len(prompts[i]) - 1:]))
        assert error <= BOUND, error
        what = f"sparse checkpoint of {files} files" if sparse else f"checkpoint of {files} files, cut as there,"
        said(f"a trained {what} in transformers: no missing tensor, "
             f"tokens equal, logprobs within {error:.1e}, greedy tokens equal "
             f"(smallest top-2 gap {min(told['gap']):.4f})")


# Runs under a Python that has peft: the start with the run's adapter on it, against the merged model of the same checkpoint.
PEFT = """
import json, sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
job = json.load(sys.stdin)
load = lambda path: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
start, merged = load(job["start"]), load(job["merged"])
x = torch.tensor([job["ids"]])
with torch.no_grad():
    before, wanted = start(x).logits, merged(x).logits
    adapted = PeftModel.from_pretrained(start, job["adapter"]).eval()
    got = adapted(x).logits
unused = [n for n, p in adapted.named_parameters() if "lora_B" in n and not p.abs().max() > 0]
json.dump({"moved": float((wanted - before).abs().max()), "error": float((got - wanted).abs().max()), "unused": unused,
           "adapters": sum("lora_B" in n for n, _ in adapted.named_parameters())}, sys.stdout)
"""


def check_adapter(program, python):
    """PEFT reads the adapter of a run with LoRA and gets the merged model."""
    if subprocess.run([python, "-c", "import peft"], capture_output=True).returncode != 0:
        print("not done: the Python with transformers has no peft")
        return
    with tempfile.TemporaryDirectory(prefix="tandem_peft_") as scratch:
        recipe = rf.tiny_recipe(f"{scratch}/run.yaml", run__steps=6, train__lr=1e-2, model__lora_rank=4)
        program.done(["run", recipe, "--run-dir", f"{scratch}/run", "--no-eval"])
        latest = f"{scratch}/run/checkpoint/latest"
        job = {"start": f"{scratch}/run/init/hf", "merged": f"{latest}/hf", "adapter": f"{latest}/adapter", "ids": [3, 5, 2, 9, 14, 4, 7]}
        reference = subprocess.run([python, "-c", PEFT], input=json.dumps(job), capture_output=True, text=True, timeout=300)
        assert reference.returncode == 0, reference.stderr[-3000:]
        told = json.loads(reference.stdout)
        assert told["moved"] > 100 * BOUND and told["error"] <= BOUND and not told["unused"] and told["adapters"] == 14, told
        said(f"an adapter in peft: {told['adapters']} matrices, logits of the merged model within {told['error']:.1e} (they moved by "
             f"{told['moved']:.2g})")


def check_score_models(program, python):
    """Reward models of every family, made there: scores, gradients and rewards of answers."""
    families = ("qwen2", "llama", "qwen3", "qwen3_moe", "deepseek_v3")
    with tempfile.TemporaryDirectory(prefix="tandem_score_models_") as scratch:
        made = subprocess.run([python, rf.ROOT / "tests/fixtures/make_score_models.py", scratch, "--families", ",".join(families), "--seed",
                               "11"], capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stderr[-3000:]
        folders = [pathlib.Path(scratch, f"{family}_score1") for family in families]
        checked = subprocess.run([program.oracle, "model", *folders], capture_output=True, text=True, timeout=300)
        assert checked.returncode == 0 and ", 0 failed" in checked.stdout, checked.stdout + checked.stderr[-3000:]
        error = 0
        for folder in folders:
            rows = read_jsonl(folder / "answers.jsonl")
            output = answers(program.done(["grade", "--rule", f"model(model={folder})"], stdin=lines(rows)))
            error = max(error, worst([o["score"] for o in output], [row["score"] for row in rows]))
        assert error <= SCORE_BOUND, error
        said(f"reward models of {', '.join(families)}: {checked.stdout.split()[-4]} values of scores and gradients; answers within "
             f"{error:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    options = parser.parse_args()
    program = rf.Program(options.build)
    shared, python = (SHARED / "oracles").is_dir(), python_with_transformers()
    check_models(program, rf.ROOT / "tests/fixtures")
    if shared:
        check_oracles(program)
    else:
        print("not done: the whole sets, for there is no ../shared/oracles")
    if python:
        check_checkpoint(program, python, sparse=False)
        check_checkpoint(program, python, sparse=True)
        check_adapter(program, python)
        check_score_models(program, python)
    else:
        print("not done: no Python with transformers (TANDEM_PEERS_PYTHON names one)")


if __name__ == "__main__":
    main()
