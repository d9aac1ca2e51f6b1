#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on text that is not in the house's form: licence line, width, tabs, trailing blanks, newline at the end."""
from source import finish, name_of, repository_files

MAX_COLUMNS = 140
WIDE_LINES_LEFT = 200  # as many as there were, about, when this gate came; lower it as they go
CODE = {".h", ".cpp", ".cu", ".py", ".cmake", ".js", ".css", ".html", ".sh", ".supp"}
NO_LICENCE_LINE = {".clang-format"}


def is_code(path):
    if path.suffix in CODE or path.name == "CMakeLists.txt":
        return True
    return not path.suffix and path.read_bytes()[:2] == b"#!"


def main():
    faults, wide = [], []
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
            if len(line) > MAX_COLUMNS and path.suffix in (".h", ".cpp", ".py"):
                wide.append(f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}")
            if "\t" in line:
                faults.append(f"{name}:{number}: a tab")
            if line.rstrip() != line:
                faults.append(f"{name}:{number}: blanks at the end")
    finish("text", faults + (wide if len(wide) > WIDE_LINES_LEFT else []))


if __name__ == "__main__":
    main()
