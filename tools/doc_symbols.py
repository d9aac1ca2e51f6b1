#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when docs name a `file:symbol` that is not in the code. Files are paths from the root or from src/tandem."""
import re

from source import ROOT, SRC, finish, line_of, name_of

_NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:h|cpp|py|js|cmake)):([A-Za-z_~][\w:~]*)(?:\(\))?`")


def main():
    faults = []
    for page in sorted(ROOT.glob("docs/**/*.md")) + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        if not page.exists():
            continue
        text = page.read_text()
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
