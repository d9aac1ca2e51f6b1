# SPDX-License-Identifier: Apache-2.0
"""Files of others that are damaged or hostile: models, tokenizers, data, recipes."""
import json
import resource
import shutil

import run_folder as rf
from kinds.runs import damage

MEMORY_BYTES = 6 << 30
SHAPES = {"deep": lambda rng: "[" * 100000, "number": lambda rng: "9" * 100000, "text": lambda rng: "\x00\xff" * 1000,
          "null": lambda rng: "null", "list": lambda rng: json.dumps([rng.random()] * 1000)}


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def model_of(place):
    def make(folder):
        recipe = rf.tiny_recipe(folder / "recipe.yaml", run__steps=1)
        place.done(["run", recipe, "--run-dir", folder / "run", "--no-eval"])
        shutil.copytree(folder / "run/init/hf", folder / "model")
    return place.once("model", make) / "model"


def models(place):
    model = place.folder / "model"
    shutil.copytree(model_of(place), model)
    path = place.rng.choice(sorted(p for p in model.iterdir() if p.is_file()))
    if place.rng.random() < 0.3 and path.suffix == ".json":
        path.write_text(place.rng.choice(list(SHAPES.values()))(place.rng))
    else:
        damage(place, path)
    for command in (["generate", "--model", model, "--max-new-tokens", "4"], ["tokenize", "--model", model]):
        place.run(command, stdin='{"prompt": "1+1=", "text": "1+1="}\n', preexec_fn=limited)


def data(place):
    rng, path = place.rng, place.folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(40)))
    damage(place, path)
    if path.is_file() and rng.random() < 0.5:
        with open(path, "a") as out:
            out.write(rng.choice(list(SHAPES.values()))(rng) + "\n")
    recipe = rf.tiny_recipe(place.folder / "recipe.yaml", data__train=str(path), data__eval="", run__steps=2)
    place.run(["run", recipe, "--run-dir", place.folder / "run"], preexec_fn=limited)


def recipes(place):
    rng = place.rng
    path = place.folder / "recipe.yaml"
    rf.tiny_recipe(path, run__steps=2, data__eval="")
    if rng.random() < 0.7:
        lines = path.read_text().splitlines()
        for _ in range(rng.choice([1, 2])):
            at = rng.randrange(len(lines))
            value = rng.choice(["-1", "1e999", "nan", "[1, 2]", "{a: b}", "99999999999999999999", "''", "true", "&a [*a]", "4000"])
            lines[at] = lines[at].split(":")[0] + ": " + value if ":" in lines[at] else value
        path.write_text("\n".join(lines) + "\n")
    else:
        damage(place, path)
    place.run(["config", "--check", path], preexec_fn=limited)


TRIALS = {"models": models, "data": data, "recipes": recipes}
