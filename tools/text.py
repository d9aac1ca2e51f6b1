#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on text that is not in the house's form: licence line, width, tabs, trailing blanks, newline at the end."""
import collections

from source import ROOT, finish, name_of, repository_files

MAX_COLUMNS = 140
MEASURED = {".h", ".cpp", ".py"}
CODE = {".h", ".cpp", ".cu", ".py", ".cmake", ".js", ".css", ".html", ".sh", ".supp"}
NO_LICENCE_LINE = {".clang-format"}


def is_code(path):
    if path.suffix in CODE or path.name == "CMakeLists.txt":
        return True
    return not path.suffix and path.read_bytes()[:2] == b"#!"


def read_wide_allowed():
    """File -> how many wide lines it still has."""
    lines = (ROOT / "tools/width_allow.txt").read_text().splitlines()
    pairs = [line.rsplit(": ", 1) for line in lines if line.strip() and not line.startswith("#")]
    return {name: int(count) for name, count in pairs}


def width_faults(wide, allowed):
    """`wide` is file -> places of its wide lines. A file may have those it had and no others: the list only shrinks."""
    faults = []
    for name in sorted(wide.keys() | allowed.keys()):
        found, most = wide.get(name, []), allowed.get(name, 0)
        if len(found) > most:
            faults += found + ([f"{name}: {len(found)} wide lines, {most} in tools/width_allow.txt"] if most else [])
        elif len(found) < most:
            faults.append(f"{name}: {len(found)} wide lines, fewer than before: say so in tools/width_allow.txt, not {most}")
    return faults


def main():
    faults, wide = [], collections.defaultdict(list)
    for path in repository_files():
        if not is_code(path):
            continue
        name, text = name_of(path), path.read_text()
        lines = text.split("\n")
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:4]) and path.name not in NO_LICENCE_LINE:
            faults.append(f"{name}: no SPDX line on top")
        if text and not text.endswith("\n"):
            faults.append(f"{name}: no newline at the end")
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS and path.suffix in MEASURED:
                wide[name].append(f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}")
            if "\t" in line:
                faults.append(f"{name}:{number}: a tab")
            if line.rstrip() != line:
                faults.append(f"{name}:{number}: blanks at the end")
    finish("text", faults + width_faults(wide, read_wide_allowed()))


if __name__ == "__main__":
    main()
