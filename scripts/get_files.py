#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/get does once it has its packages: fetches, brings data sets into the columns of the recipes, says how to use them."""
import collections
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src/tandem/hub"))
import fetch  # noqa: E402
import smollm2  # noqa: E402

# One file of a data set. `source` is what the repository has, `row` makes a record of the recipe from one of its rows.
Part = collections.namedtuple("Part", "target kind repository source row option")
Set = collections.namedtuple("Set", "recipe model parts")


def last_boxed(text):
    r"""What the last \boxed{...} holds, braces matched; None without one."""
    at = text.rfind("\\boxed{")
    depth = 0
    for i in range(at + 6, len(text) if at >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[at + 7:i]
    return None


def as_gsm8k(row):
    return {"question": row["question"], "answer": row["answer"]}


def as_math(row):
    answer = row.get("answer") or last_boxed(row["solution"])
    return answer and {"problem": row["problem"], "answer": answer}


SETS = {
    "gsm8k": Set("configs/gsm8k_grpo.yaml", "Qwen/Qwen2.5-0.5B-Instruct", [
        Part("data/gsm8k/train.jsonl", "train", "openai/gsm8k", "main/train-00000-of-00001.parquet", as_gsm8k, "data.train"),
        Part("data/gsm8k/test.jsonl", "held_out", "openai/gsm8k", "main/test-00000-of-00001.parquet", as_gsm8k, "data.eval")]),
    "math": Set("configs/qwen2.5_1.5b_math_grpo.yaml", "Qwen/Qwen2.5-1.5B", [
        Part("data/math/math_train.json", "train", "DigitalLearningGmbH/MATH-lighteval", "data/train-00000-of-00001.parquet", as_math,
             "data.train"),
        Part("data/math/math500.json", "held_out", "HuggingFaceH4/MATH-500", "test.jsonl", as_math, "data.eval")]),
}


def here(path):
    """A path of the repository as a command has it: data and models go where tandem is started."""
    return path if pathlib.Path.cwd() == ROOT else str(ROOT / path)


def rows_of(path):
    if str(path).endswith(".parquet"):
        import pyarrow.parquet
        return pyarrow.parquet.read_table(path).to_pylist()
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def write_rows(path, rows):
    """JSON Lines, or an array; the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) if path.suffix == ".jsonl" else json.dumps(
        rows, ensure_ascii=False, indent=1) + "\n"
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def placed_by_hand(part, target):
    """The repository's file, if somebody put it beside the target."""
    path = target.parent / os.path.basename(part.source)
    return path if path != target and path.exists() else None


def make(part):
    """Makes one file, unless it is there. Errors: fetch.Refused."""
    target = pathlib.Path(part.target)
    if target.exists():
        print(f"{part.target}: is here already")
        return
    source, origin = placed_by_hand(part, target), part.source
    if source is None:
        source, commit = fetch.fetched(part.kind, fetch.HUGGING_FACE, part.repository, part.source)
        origin = f"{part.repository}@{commit}"
    rows = [row for row in map(part.row, rows_of(source)) if row]
    if not rows:
        raise fetch.Refused(f"{source} holds no rows", "the file as the repository has it")
    write_rows(target, rows)
    print(f"{part.target}: {len(rows)} rows of {origin}")


def by_hand(part):
    return (f"  {fetch.SITES[fetch.HUGGING_FACE]}/datasets/{part.repository}/resolve/main/{part.source}\n"
            f"    to {os.path.dirname(part.target)}/{os.path.basename(part.source)}")


def get_set(name):
    chosen, failed = SETS[name], []
    for part in chosen.parts:
        try:
            make(part)
        except fetch.Refused as e:
            failed.append(part)
            print(f"get: {part.target}: {part.repository} {e.what}", file=sys.stderr)
    if failed:
        print("By hand: from a machine with a network bring\n" + "\n".join(map(by_hand, failed)) +
              f"\nand say `scripts/get {name}` again, which makes {', '.join(p.target for p in failed)} of it.", file=sys.stderr)
        return 2
    settings = " ".join(f"--set {part.option}={part.target}" for part in chosen.parts)
    print(f"\nTrain on it:\n  {here('build/release/tandem')} run {here(chosen.recipe)} --model {chosen.model} {settings}")
    return 0


def get_model(text, folder):
    host, _, plain = text.rpartition(":")
    repository, _, revision = plain.partition("@")
    if host not in ("", fetch.HUGGING_FACE, fetch.MODELSCOPE) or repository.count("/") != 1 or not all(repository.split("/")):
        print(f"get: {text}: is no name that it knows ({', '.join(NAMES)}), and names no model ([modelscope:]OWNER/NAME[@REVISION])",
              file=sys.stderr)
        return 2
    place = folder or "models/" + repository.split("/")[1]
    try:
        _, commit = fetch.fetched("model", host or fetch.HUGGING_FACE, repository, "", revision, place)
        print(f"{place}: {repository}@{commit}")
    except fetch.Refused as e:
        if not fetch.has(place, "model", ""):
            print(f"get: {repository} {e.what}\nBy hand: {e.right}", file=sys.stderr)
            return 2
        print(f"{place}: a model is here already; {repository} {e.what}")
    return say_use(place)


def get_smollm2():
    try:
        print(f"{smollm2.PLACE}: {smollm2.made()}")
    except fetch.Refused as e:
        print(f"get: smollm2: {e.what}. By hand: {e.right}", file=sys.stderr)
        return 2
    return say_use(smollm2.PLACE)


def say_use(place):
    print(f"\nUse it:\n  {here('build/release/tandem')} run RECIPE --model {place}\n  {here('build/release/tandem')} talk --model {place}")
    return 0


NAMES = {**{name: lambda name=name: get_set(name) for name in SETS}, "smollm2": get_smollm2}


def main():
    arguments = sys.argv[1:]
    if len(arguments) not in (1, 2) or arguments[0].startswith("-") or (arguments[0] in NAMES and len(arguments) == 2):
        print(f"usage: scripts/get {' | '.join(NAMES)} | [modelscope:]OWNER/NAME[@REVISION] [FOLDER]", file=sys.stderr)
        return 2
    name = arguments[0]
    return NAMES[name]() if name in NAMES else get_model(name, arguments[1] if len(arguments) == 2 else "")


if __name__ == "__main__":
    sys.exit(main())
