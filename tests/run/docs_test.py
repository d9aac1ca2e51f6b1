#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every `tandem COMMAND --option` that README.md, CONTRIBUTING.md and docs/ show is one that the program has, and the example of
docs/first_run.md runs as it stands."""
import functools
import json
import os
import pathlib
import re
import string
import subprocess
import tempfile

import run_folder as rf
import small_model
from run_folder import said

# A fenced block, and the name of the file it is, if the line above says one.
BLOCK = re.compile(r"(?:^`(\S+)`:\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
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


def check_example(program, page, folder):
    """Files and commands of the page, in its order; returns the lines that each command printed."""
    example_model(folder / "MODEL")
    printed = {}
    environment = dict(os.environ, PATH=f"{pathlib.Path(program.tandem).parent}:{os.environ['PATH']}")
    for name, language, text in BLOCK.findall(page.read_text()):
        if name:
            (folder / name).write_text(text)
        elif language == "yaml":
            (folder / "part.yaml").write_text(text)
            program.done(["config", folder / "part.yaml", "--check"])
        for command in [] if name or language else text.splitlines():
            if command.startswith("tandem board"):
                continue  # serves until it is stopped
            out = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=300)
            assert out.returncode == 0, f"{command}\n{out.stderr[-2000:]}"
            printed[command] = out.stdout.splitlines()
    return printed


def first_run(program):
    page = rf.ROOT / "docs/first_run.md"
    recipe = next(text for name, _, text in BLOCK.findall(page.read_text()) if name == "story.yaml")
    assert len(recipe.splitlines()) <= 30, "the recipe is to fit 30 lines"
    with tempfile.TemporaryDirectory(prefix="tandem_docs_") as name:
        folder = pathlib.Path(name)
        printed = check_example(program, page, folder)
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
    said(f"docs/first_run.md: {len(printed)} commands")


def main():
    program = rf.built_program()
    first_run(program)

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
