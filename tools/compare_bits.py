#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Line 1 of issue 50: five steps of the quickstart under --parity by two programs, compared bit for bit."""
import hashlib, json, pathlib, shutil, sqlite3, subprocess, sys, os
A, B = (pathlib.Path(p) for p in sys.argv[1:3])  # trees
only = sys.argv[3].split(";") if len(sys.argv) > 3 else None
OUT = pathlib.Path("/work/scratch/parity"); OUT.mkdir(exist_ok=True)
TMP = ["--steps", "5", "--threads", "1", "--parity", "--set", "eval.every_steps=5", "--set", "supervised.steps=5"]
def sets(**o):
    r = []
    for k, v in o.items(): r += ["--set", f"{k.replace('__', '.')}={v}"]
    return r
STALE = ["--schedule", "stale", "--staleness", "2"]
SPLIT = ["--ranks", "2", "--set", "parallel.placement=split"]
RUNS = {
 "one rank": [],
 "dp2": ["--ranks", "2", "--train-layout", "dp2"],
 "tp2": ["--ranks", "2", "--train-layout", "tp2"],
 "split": SPLIT,
 "split-stale S=2": [*SPLIT, *STALE],
 "fully colocated, reference, reward model": ["--ranks", "2", "--set", "parallel.placement=fully_colocated", *sets(algo__kl_coef=0.1, reward__rule="model", reward__model="REWARD")],
 "PPO": sets(algo__name="ppo", critic__lr=1e-3),
 "LoRA": sets(model__lora_rank=8, train__lr=1e-3),
 "1 worker, S=0": ["--rollout-workers", "1"],
 "3 workers, S=0": ["--rollout-workers", "3"],
}
def run(tree, folder, args):
    shutil.rmtree(folder, ignore_errors=True) if "--resume" not in args else None
    p = subprocess.run([tree/"build/release/tandem", "run", "configs/quickstart.yaml", "--run-dir", folder, *TMP, *args], cwd=tree, capture_output=True, text=True, timeout=900)
    if p.returncode: print(p.stderr[-600:], flush=True)
    return folder
SKIP = ("time/", "throughput/", "memory/", "switch/", "idle/", "workers/", "kernels", "queue/", "gap/weights")
def facts(folder, clocked=()):
    m = [{k: v for k, v in json.loads(l).items() if not k.startswith(SKIP) and k not in clocked} for l in open(folder/"metrics.jsonl")]
    w = [hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted((folder/"checkpoint/latest/").rglob("*.safetensors"))]
    s = sqlite3.connect(folder/"samples.sqlite").execute("select step, sample_id, response_ids, logprobs, versions, score, advantage, train_logprobs from samples order by 1, 2").fetchall()
    return m, w, s
def compare(name, a, b, clocked=()):
    (ma, wa, sa), (mb, wb, sb) = facts(a, clocked), facts(b, clocked)
    differs = sorted({k for x, y in zip(ma, mb) for k in {*x, *y} if x.get(k) != y.get(k)})
    print(json.dumps({"run": name, "steps": len(mb), "samples": len(sb), "files": len(wb), "same metrics": ma == mb, "same weights": wa == wb and len(wa) > 0, "same samples": sa == sb and len(sa) > 0, "differs": differs[:6]}), flush=True)
reward = OUT/"reward_model"
def reward_model_of(language_model, folder):
    import struct
    shutil.copytree(language_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(architectures=[config["architectures"][0].removesuffix("ForCausalLM") + "ForSequenceClassification"], id2label={"0": "score"}, pad_token_id=0)
    (folder / "config.json").write_text(json.dumps(config))
    weights = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", weights[:8])[0]
    header, data = json.loads(weights[8:8 + length]), weights[8 + length:]
    hidden = config["hidden_size"]
    head = b"".join(struct.pack("<f", ((i * 37) % 19 - 9) / 19) for i in range(hidden))
    header["score.weight"] = {"dtype": "F32", "shape": [1, hidden], "data_offsets": [len(data), len(data) + len(head)]}
    header.pop("lm_head.weight", None)
    text = json.dumps(header).encode(); text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data + head)
if not reward.exists():
    run(A, OUT/"start", ["--steps", "1"])
    reward_model_of(OUT/"start/init/hf", reward)
for name, args in RUNS.items():
    if only and name not in only: continue
    if "reward__model=REWARD" in args or any("REWARD" in x for x in args):
        if not reward.exists(): print(json.dumps({"run": name, "error": "no reward model"})); continue
        args = [x.replace("REWARD", str(reward)) for x in args]
    key = name.replace(" ", "_").replace(",", "").replace("=", "")
    compare(name, run(A, OUT/f"{key}.a", args), run(B, OUT/f"{key}.b", args))
if not only or "resume" in only:
    run(A, OUT/"resume.a", ["--steps", "3", "--set", "checkpoint.every_steps=3"])
    shutil.rmtree(OUT/"resume.b", ignore_errors=True); shutil.copytree(OUT/"resume.a", OUT/"resume.b", symlinks=True)
    compare("resumed folder of the parent", run(A, OUT/"resume.a", ["--resume"]), run(B, OUT/"resume.b", ["--resume"]))
if not only or "mixed" in only:
    mixed = ["--ranks", "2", "--set", "parallel.placement=mixed", "--train-layout", "dp1", *STALE, "--set", "schedule.mode=free"]
    run(A, OUT/"mixed", mixed)
    again = [*mixed, "--replay-decisions", str(OUT/"mixed")]
    a, b = run(A, OUT/"mixed.a", again), run(B, OUT/"mixed.b", again)
    compare("mixed, replayed decisions", a, b, CLOCKED := ("data/groups_ahead", "data/groups_early", "data/groups_filtered", "data/epoch", "staleness/waited", "gap/tokens", "gap/mean", "gap/p99", "gap/max"))
if not only or "generate" in only:
    same = {}
    prompts = OUT/"prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in ([5, 9, 2, 11], [7], list(range(3, 40)))))
    for model in ("llama", "qwen2_tied", "qwen2_untied", "qwen3", "qwen3_moe", "qwen3_sharded_bf16", "deepseek_v3"):
        said = []
        for tree in (A, B):
            p = subprocess.run([tree/"build/release/tandem", "generate", "--model", f"/work/shared/oracles/models/{model}", "--input", prompts, "--n", "3", "--max-new-tokens", "24", "--logprobs", "--seed", "3", "--threads", "1"], capture_output=True, text=True)
            said.append(p.stdout if p.returncode == 0 else p.stderr)
        same[model] = said[0] == said[1] and len(said[0].splitlines()) == 3
    print(json.dumps({"generate": same}), flush=True)
