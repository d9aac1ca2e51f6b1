#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every `tandem COMMAND --option` that README.md, CONTRIBUTING.md and docs/ show is one that the program has. The commands of docs/guide
run, but for those marked in the page with what they need; the pictures are those of their scripts; the site builds, where mkdocs is."""
import ast
import functools
import json
import os
import pathlib
import re
import string
import subprocess
import tempfile
import time
import xml.etree.ElementTree

import run_folder as rf
import small_model
import webdriver
from run_folder import said

# A fenced block, with what it needs and the name of the file it is, if the lines above say so.
BLOCK = re.compile(r"(?:^<!-- needs: ([^\n]+) -->\n)?(?:^`(\S+)`:\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
# A command in backticks or at the start of a line of a block, with the lines it goes on over.
SHOWN = re.compile(r"(?:^|`|build/release/)tandem ((?:[^`\n\\]|\\\n)+)", re.M)


def commands_of(text):
    """(words before the first option, options) of each command."""
    for match in SHOWN.finditer(text):
        words = match[1].replace("\\\n", " ").split()
        if not re.fullmatch(r"[a-z]+", words[0]):
            continue
        name = words[:2] if words[0] == "bench" and len(words) > 1 else words[:1]
        yield tuple(name), [word.split("=")[0].rstrip(",;)") for word in words if word.startswith("--")]


def example_model(folder):
    """Knows each printable character as a token."""
    alphabet = string.ascii_letters + string.digits + string.punctuation + " \n"
    small_model.write_model(folder, small_model.tiny_config(vocab_size=len(alphabet) + 1, eos=len(alphabet)))
    small_model.write_whole_text_tokenizer(folder, alphabet, [])


# `tandem` in the folder of a page: a run of the quickstart is cut to a few steps.
SHORT = """#!/bin/sh
case "$1 $2" in
  "run configs/quickstart.yaml")
    case " $* " in *" --resume "*) steps=3 ;; *) steps=2 ;; esac
    exec {program} "$@" --steps $steps --set supervised.steps=3 --set data.synthetic_eval_rows=50 ;;
esac
exec {program} "$@"
"""


def check_page(program, page, folder):
    """Files and commands of the page, in its order; returns the lines that each command printed."""
    example_model(folder / "MODEL")
    for name in ("bench", "configs", "scripts"):
        (folder / name).symlink_to(rf.ROOT / name)
    (folder / "bin").mkdir()
    (folder / "bin/tandem").write_text(SHORT.format(program=pathlib.Path(program.tandem).resolve()))
    (folder / "bin/tandem").chmod(0o755)
    printed = {}
    environment = dict(os.environ, PATH=f"{folder / 'bin'}:{os.environ['PATH']}")
    blocks = BLOCK.findall(page.read_text())
    assert 2 * len(blocks) == len(re.findall("^```", page.read_text(), re.M)), f"{page.name}: a block is not closed, or within another"
    for needs, name, language, text in blocks:
        if name:
            (folder / name).write_text(text)
        elif language == "python":
            ast.parse(text)
        elif language == "yaml" and not needs:
            (folder / "part.yaml").write_text(text)
            program.done(["config", folder / "part.yaml", "--check"])
        if name or needs or language not in ("", "bash"):
            continue
        for command in text.replace("\\\n", " ").splitlines():
            out = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=300)
            assert out.returncode == 0, f"{page.name}: {command}\n{out.stderr[-2000:]}"
            printed[command] = out.stdout.splitlines()
    return printed


def first_run(program):
    page = rf.ROOT / "docs/guide/first_run.md"
    recipe = next(text for _, name, _, text in BLOCK.findall(page.read_text()) if name == "story.yaml")
    assert len(recipe.splitlines()) <= 30, "the recipe is to fit 30 lines"
    with tempfile.TemporaryDirectory(prefix="tandem_docs_") as name:
        folder = pathlib.Path(name)
        printed = check_page(program, page, folder)
        rf.check_whole(folder / "runs/try", 2)
        rf.check_whole(folder / "runs/story", 20)
        assert "4 problems of data.eval, rows.jsonl not held out but trained on; right" in (folder / "runs/story/log.txt").read_text()
        chat, generate, evaluation = (next(lines for command, lines in printed.items() if f"tandem {word} " in command)
                                      for word in ("chat", "generate", "eval"))
        assert json.loads(chat[0])["text"] == "user: Hi\nstory: ", chat
        assert json.loads(evaluation[-1])["num_problems"] == 4, evaluation[-1]
        prompts = {prompt for (prompt,) in rf.rows(folder / "runs/story", "SELECT DISTINCT prompt FROM samples")}
        assert "user: Write about a red ball.\nstory: " in prompts and len(prompts) == 4, prompts
        assert json.loads(generate[0])["prompt_ids"], "the exported model renders messages with the template of the run"
        scores = {score for (score,) in rf.rows(folder / "runs/story", "SELECT DISTINCT score FROM samples")}
        assert len(scores) > 1, f"every answer scored {scores}"
    said(f"docs/guide/first_run.md: {len(printed)} commands")


def guides(program):
    """The other pages of docs/guide."""
    for page in sorted(rf.ROOT.glob("docs/guide/*.md")):
        if page.name == "first_run.md":
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tandem_docs_") as name:
            printed = check_page(program, page, pathlib.Path(name))
        said(f"docs/guide/{page.name}: {len(printed)} commands, {time.monotonic() - begin:.1f} s")


def option_names():
    """Options that the guides name are in docs/config.md."""
    known = set(re.findall(r"^\| `([a-z]+\.\w+)` \|", (rf.ROOT / "docs/config.md").read_text(), re.M))
    sections = "|".join(sorted({name.split(".")[0] for name in known}))
    wrong = []
    for page in sorted(rf.ROOT.glob("docs/guide/*.md")):
        text = page.read_text()
        if page.name in ("from_trl.md", "from_verl.md"):  # the first column has the other's names
            text = re.sub(r"^\|[^|]*\|", "|", BLOCK.sub("", text), flags=re.M)
        wrong += [f"{page.name}: no option {name}" for name in re.findall(rf"(?<![\w./])((?:{sections})\.[a-z_0-9]+)", text)
                  if name not in known and not re.search(r"\.(?:md|py|yaml|jsonl?|sqlite|svg|txt|safetensors)$", name)]
    assert not wrong, "\n".join(wrong)


def from_trl(program):
    """Both sides of docs/guide/from_trl.md are the recipe that the page names."""
    blocks = BLOCK.findall((rf.ROOT / "docs/guide/from_trl.md").read_text())

    def shown(recipe):
        out = program.done(["config", recipe, "--run-dir", "runs/words"]).stdout
        return [line.split("  # default")[0] for line in out.splitlines()]

    with tempfile.TemporaryDirectory(prefix="tandem_docs_") as name:
        ours = pathlib.Path(name) / "words.yaml"
        ours.write_text(next(text for _, file, _, text in blocks if file == "words.yaml"))
        page, lines = shown(ours), shown(rf.ROOT / "configs/smollm2_word_problems.yaml")
    assert page == lines, [(a, b) for a, b in zip(page, lines) if a != b]
    options, section = {}, ""
    for line in lines:
        key, _, value = line.strip().partition(": ")
        section = line.rstrip(":") if not line.startswith(" ") else section
        options[f"{section}.{key}"] = value.strip('"')
    code = next(ast.parse(text) for _, _, language, text in blocks if language == "python")
    call = next(node for node in ast.walk(code) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "GRPOConfig")
    theirs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    answers = theirs.pop("per_device_train_batch_size") * theirs.pop("gradient_accumulation_steps")
    assert answers == int(options["schedule.groups_per_step"]) * int(options["schedule.group_size"]), answers
    assert (theirs.pop("eval_strategy"), theirs.pop("bf16"), options["model.dtype"]) == ("steps", True, "bfloat16")
    assert theirs.pop("lr_scheduler_type") == options["train.lr_schedule"] + "_warmup_with_min_lr"
    assert theirs.pop("lr_scheduler_kwargs") == {"min_lr_rate": float(options["train.min_lr_ratio"])}
    same = {"output_dir": "run.dir", "max_steps": "run.steps", "num_generations": "schedule.group_size", "learning_rate": "train.lr",
            "max_completion_length": "rollout.max_new_tokens", "temperature": "rollout.temperature", "warmup_steps": "train.warmup_steps",
            "beta": "algo.kl_coef", "eval_steps": "eval.every_steps", "save_steps": "checkpoint.every_steps"}
    for word, value in theirs.items():
        mine = options[same[word]]
        assert mine == value if isinstance(value, str) else float(mine) == value, f"{word}={value}, {same[word]}: {mine}"
    said(f"docs/guide/from_trl.md: {len(theirs)} values of both sides are those of the recipe")


def pictures():
    """The drawing, and the curves of the kept runs, are what their script writes; curves of runs are XML with a line for each run."""
    with tempfile.TemporaryDirectory(prefix="tandem_docs_") as name:
        folder = pathlib.Path(name)

        def curves(*words):
            return subprocess.run([rf.ROOT / "scripts/curves", *words], cwd=folder, capture_output=True, encoding="utf-8")

        for name in ("architecture", "loops"):
            assert curves(f"--{name}", "drawn.svg").returncode == 0
            assert (folder / "drawn.svg").read_text() == (rf.ROOT / f"docs/pictures/{name}.svg").read_text(), (
                f"docs/pictures/{name}.svg is another: scripts/curves --{name} docs/pictures/{name}.svg")
        kept, title = rf.ROOT / "bench/results/word_problems", "SmolLM2-135M-Instruct, held-out word problems, one CPU core"
        seeds = ",".join(str(kept / f"grpo_{seed}") for seed in (1, 2, 3))
        rows = [f"{name}={kept / folder}_1" for name, folder in (("GRPO", "grpo"), ("stale", "stale"), ("DAPO", "dapo"), ("PPO", "ppo"),
                                                                ("LoRA", "lora"))]
        for name, words in (("learning.svg", [f"GRPO={seeds}", "--title", title]), ("rows.svg", [*rows, "--title", f"{title}, seed 1"])):
            assert curves("--out", name, "--of", "eval/accuracy", *words).returncode == 0
            assert (folder / name).read_text() == (rf.ROOT / "docs/pictures" / name).read_text(), f"docs/pictures/{name} is another"
        for run, gain in (("a", 0.02), ("b", 0.03)):
            (folder / run).mkdir()
            (folder / run / "metrics.jsonl").write_text("".join(
                json.dumps({"step": step, "time/step_s": 6, "reward/mean": gain * step,
                            **({"eval/accuracy": gain * step} if step in (1, 5, 10, 15, 20) else {})}) + "\n" for step in range(1, 21)))
        out = curves("--out", "c.svg", "--table", "one=a,b", "two<=b")
        assert out.returncode == 0, out.stderr
        tree = xml.etree.ElementTree.parse(folder / "c.svg")
        assert len(tree.findall(".//{http://www.w3.org/2000/svg}polyline")) == 6, "two panels of three runs"
        assert "| one | 2.0 % | 40.0 % | 40.0 % | 20 | 2.0 |" in out.stdout, out.stdout
        gone = curves("--out", "d.svg", "gone")
        assert gone.returncode == 2 and gone.stderr.startswith("curves: gone: holds no metrics.jsonl"), gone.stderr
    said("docs/pictures: drawn by scripts/curves")


def site():
    """scripts/site builds and checks it: without the network, so where its packages are."""
    if not (rf.ROOT / "build/site_venv/whole").exists():
        said("site: not built here, mkdocs is not installed (scripts/site)")
        return
    begin = time.monotonic()
    out = subprocess.run([rf.ROOT / "scripts/site"], capture_output=True, encoding="utf-8", timeout=300)
    assert out.returncode == 0, out.stdout[-3000:] + out.stderr[-3000:]
    said(f"site: {out.stdout.strip()}, {time.monotonic() - begin:.1f} s")
    if not webdriver.installed():
        said("site: its search was not tried, chromium and chromedriver are not installed")
        return
    with webdriver.Browser() as browser:
        browser.open((rf.ROOT / "build/site/guide/runs.html").as_uri())
        browser.wait("document.querySelector('[data-md-component=search-query]') && !!window.component$", "the page's scripts run")
        browser.click(".md-search__input")
        browser.type(".md-search__input", "staleness")
        browser.wait("document.querySelectorAll('.md-search-result__item').length", "the search finds pages, opened from a folder")
        assert not browser.console_errors(), browser.console_errors()
    said("site: the search works without a server")


def main():
    program = rf.built_program()
    option_names()
    from_trl(program)
    pictures()
    site()
    first_run(program)
    guides(program)

    @functools.cache
    def help_of(name):
        out = program.run([*name, "--help"])
        return out.stdout if out.returncode == 0 else None

    wrong, count = [], 0
    pages = [rf.ROOT / "README.md", rf.ROOT / "CONTRIBUTING.md", *sorted(rf.ROOT.glob("docs/**/*.md"))]
    for page in pages:
        for name, options in commands_of(page.read_text()):
            count += 1
            text = help_of(name)
            wrong += [f"{page.name}: no command {' '.join(name)}"] if text is None else [
                f"{page.name}: {' '.join(name)} has no {option}" for option in options
                if option != "--help" and not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)]
    assert not wrong, "\n".join(wrong)
    assert count > 15, f"only {count} commands were found"
    said(f"{count} commands of {len(pages)} pages exist with their options")


if __name__ == "__main__":
    main()
