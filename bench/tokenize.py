#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding speed in one thread beside the `tokenizers` package, in one sitting, with Qwen2.5's vocabulary: English text (GSM8K),
mixed text (several scripts, code, mathematics), and texts made to be slow. Prints a table; fails if any id differs. Needs
`scripts/build release tokenize_bench`, ../shared/data and a Python with `tokenizers` (0.23.3 was compared with)."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/fixtures"))
os.environ["TOKENIZERS_PARALLELISM"] = "false"
MEGABYTE = 1_000_000


def peer_tokenizer(folder):
    from make_tokenizer_cases import QWEN2
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for _, entry in sorted(config["added_tokens_decoder"].items(), key=lambda item: int(item[0])):
        token = AddedToken(entry["content"], normalized=False)
        (tokenizer.add_special_tokens if entry["special"] else tokenizer.add_tokens)([token])
    return tokenizer


def texts(data):
    """(name, text, whether the peer encodes it too)"""
    from make_tokenizer_cases import texts as hostile
    problems = [json.loads(line) for line in open(data / "gsm8k/train.jsonl")]
    english = "\n".join(row["question"] + "\n" + row["answer"] for row in problems)
    mathematics = [row["problem"] for row in json.load(open(data / "math/math_train.json"))]
    code = [path.read_text() for path in sorted((ROOT / "src").rglob("*.cpp"))[:60]]
    mixed = "\n".join([*mathematics, *code, *hostile(6000, "mixed"), english])[:5_500_000]
    yield "English", english, True
    yield "mixed", mixed, True
    for name, unit in (("one letter", "l"), ("spaces", " "), ("marks", "\u0301"), ("merges", "abcabdabe"), ("`=`", "=")):
        yield name, unit * (MEGABYTE // len(unit.encode())), False


def peer_run(tokenizer, text):
    """Best of two, as bytes per second, and a hash of the ids."""
    lines, best = text.split("\n"), float("inf")
    for _ in range(2):
        begin = time.perf_counter()
        encoded = [tokenizer.encode(line).ids for line in lines]
        best = min(best, time.perf_counter() - begin)
    digest = 14695981039346656037
    for ids in encoded:
        for token in ids:
            digest = (digest ^ token) * 1099511628211 % 2**64
    return len(text.encode()) / best / MEGABYTE, str(digest)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    path = lambda name, default, text: parser.add_argument(name, type=pathlib.Path, default=default, help=text)  # noqa: E731
    path("--program", ROOT / "build/release/tokenize_bench", "our program")
    path("--data", ROOT.parent / "shared/data", "folder of gsm8k, math and qwen2.5-tokenizer")
    options = parser.parse_args()
    if not options.program.exists():
        parser.error(f"{options.program} is not built: scripts/build release tokenize_bench")
    model = options.data / "qwen2.5-tokenizer"
    tokenizer = peer_tokenizer(model)
    print("| text | bytes | Tandem MB/s | tokenizers MB/s | times faster | ids |\n|---|---|---|---|---|---|", flush=True)
    differ = False
    with tempfile.TemporaryDirectory() as folder:
        for name, text, with_peer in texts(options.data):
            file = pathlib.Path(folder) / "text"
            file.write_text(text, newline="")
            ours = json.loads(subprocess.run([options.program, model, file], capture_output=True, check=True).stdout)
            line = f"| {name} | {file.stat().st_size:,} | {ours['mb_per_s']:.1f} "
            if with_peer:
                speed, digest = peer_run(tokenizer, text)
                same = digest == ours["ids_hash"]
                differ = differ or not same
                line += f"| {speed:.2f} | {ours['mb_per_s'] / speed:.1f} | {'equal' if same else 'DIFFERENT'} |"
            else:
                line += "| - | - | - |"
            print(line, flush=True)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
