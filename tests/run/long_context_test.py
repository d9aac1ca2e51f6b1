# SPDX-License-Identifier: Apache-2.0
"""Answers as long as a long context: generated with a cache that does not hold them all, so that some are preempted and computed again;
trained under cp2; resumed. Memory grows with the tokens, not with their square. --tokens 34000 is the whole length; the tests take less."""
import argparse
import pathlib
import tempfile

import run_folder as rf

checks = rf.Checks()
MODEL = {"model.init_hidden": 64, "model.init_layers": 2, "model.init_heads": 2, "model.init_kv_heads": 1, "model.init_intermediate": 128,
         "supervised.steps": 0, "eval.every_steps": 0, "checkpoint.every_steps": 1, "schedule.groups_per_step": 1, "schedule.group_size": 3,
         "rollout.ignore_eos": "true", "rollout.graphs": "false", "parallel.threads": 1, "train.lr": 1e-3,
         "reward.rule": "python", "model.products": "blas blas blas float"}  # two runs are compared bit for bit: nothing is measured
KV_BYTES = 2 * 2 * 32 * 4  # of a token: keys and values, two layers, one head of 32, float32


def run(program, folder, tokens, steps, flags=()):
    reward = pathlib.Path(folder).parent / "by_place.py"
    # Scores of a group differ, so that the step has a gradient, and are an answer's alone, in whatever batch it comes.
    reward.write_text("import zlib\n\n\ndef score(completions, **columns):\n"
                      "    return [zlib.crc32(c.encode()) / 2**32 for c in completions]\n")
    # The cache of one rank has room for two answers and a quarter.
    cache_mib = max(1, int(2.25 * (tokens + 64) * KV_BYTES) >> 20)
    settings = {**MODEL, "reward.python": f"{reward}:score", "rollout.max_new_tokens": tokens, "model.init_max_positions": tokens + 64,
                "rollout.kv_cache_mib": cache_mib, "train.micro_batch_tokens": tokens + 64, "run.steps": steps}
    program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--no-eval", "--ranks", "2", "--train-layout", "cp2",
                  "--rollout-layout", "tp2", *rf.sets(settings), *flags], timeout=1500)
    return rf.all_metrics(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(rf.ROOT / "build/release"))
    parser.add_argument("--tokens", type=int, default=6000)
    options = parser.parse_args()
    program = rf.Program(options.build)
    with tempfile.TemporaryDirectory() as root:
        peaks = []
        for tokens in (options.tokens // 4, options.tokens):
            first = run(program, f"{root}/{tokens}", tokens, 1)[0]
            longest = first["data/response_tokens_max"]
            checks.check(longest == tokens, f"{tokens}: the longest answer has {longest}")
            checks.check(first["throughput/preemptions"] > 0, f"{tokens}: nothing was preempted")
            checks.check(first["actor/grad_norm"] > 0, f"{tokens}: it trains")
            checks.check(first["gap/max"] < 1e-3 and first["actor/kl_rollout_train"] < 1e-8,
                         f"{tokens}: rollout and training are apart by {first['gap/max']}")
            peaks.append(first["memory/activations_bytes"])
            print(f"{tokens} tokens: {first['throughput/preemptions']:.0f} preemptions, activations of training "
                  f"{peaks[-1] / 2**20:.1f} MiB, rollout {first['time/rollout_s']:.1f} s, training {first['time/train_s']:.1f} s, "
                  f"gap/max {first['gap/max']:.1e}", flush=True)
        checks.check(peaks[1] < 4.4 * peaks[0], f"four times the tokens take {peaks[1] / peaks[0]:.2f} times the memory")
        if options.tokens > 10000:
            checks.exit()
        whole = run(program, f"{root}/whole", options.tokens // 4, 3)
        again = run(program, f"{root}/{options.tokens // 4}", options.tokens // 4, 3, ["--resume"])
        metrics = ("actor/loss", "actor/grad_norm", "actor/entropy", "data/response_tokens_max")
        checks.check([[m[k] for k in metrics] for m in whole] == [[m[k] for k in metrics] for m in again], "a resumed run is the same")
        same = "step, sample_id, response_ids, logprobs"
        checks.check(rf.samples(f"{root}/whole", same) == rf.samples(f"{root}/{options.tokens // 4}", same), "and so are its samples")
    checks.exit()


if __name__ == "__main__":
    main()
