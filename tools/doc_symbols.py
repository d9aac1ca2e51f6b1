#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when docs name a file, or a `file:symbol`, that is not there. Files are paths from the root, from src/tandem, or below the
README of a module. Places that a reader fills in (NAME, <file>), what a run makes, and the files that a page itself gives (a line
`NAME`: above a block) are left alone."""
import re

from source import ROOT, SRC, finish, line_of, name_of, repository_files

_NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:h|cpp|py|js|cmake)):([A-Za-z_~][\w:~]*)(?:\(\))?`")
_FILE = re.compile(r"(?<![\w/.-])((?:[\w.-]+/)*[\w.-]+\.(?:h|cpp|py|js|cmake|yaml|md|sh|inc|supp))(?![\w/*])")
_NOT_HERE = re.compile(r"(?:^|/)[A-Z]+(?:[/.]|$)|^runs/|^config\.yaml$|^\.\./")  # to fill in, left by a run, beside the clone


def files_named(text):
    """(path, offset) of each file that stands in backticks or in a block of commands."""
    for span in re.finditer(r"```.*?```|`[^`\n]+`", text, re.S):
        for match in _FILE.finditer(span[0]):
            if not _NOT_HERE.search(match[1]) and not span[0][:match.start()].endswith(">"):
                yield match[1], span.start() + match.start()


def missing_files(page, text):
    given = set(re.findall(r"^`([\w.]+)`:$", text, re.M))
    for path, offset in files_named(text):
        below = page.is_relative_to(SRC) and any(page.parent.rglob(path))
        if not (path in given or below or (ROOT / path).is_file() or (SRC / path).is_file()):
            yield f"{name_of(page)}:{line_of(text, offset)}: no file {path}"


def main():
    faults = []
    for page in sorted(path for path in repository_files() if path.suffix == ".md"):
        text = page.read_text()
        faults += missing_files(page, text)
        for match in _NAMED.finditer(text):
            file = next((base / match[1] for base in (ROOT, SRC) if (base / match[1]).is_file()), None)
            where = f"{name_of(page)}:{line_of(text, match.start())}"
            if not file:
                faults.append(f"{where}: no file {match[1]}")
            elif not re.search(rf"(?<!\w){re.escape(match[2].split('::')[-1])}(?!\w)", file.read_text()):
                faults.append(f"{where}: no {match[2]} in {match[1]}")
    finish("doc_symbols", faults)


if __name__ == "__main__":
    main()
