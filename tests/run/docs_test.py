#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every `tandem COMMAND --option` that README.md, CONTRIBUTING.md and docs/ show is one that the program has."""
import functools
import re

import run_folder as rf
from run_folder import said

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


def main():
    program = rf.built_program()

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
