#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include between modules, or between folders of runtime, that the tables in docs/architecture.md do not allow."""
import re

from source import ROOT, SRC, cpp_files, finish, name_of

ORDERED = "runtime"  # the module whose folders have a table of their own


def parse_table(text, marker):
    """First cell of a row -> entries of the second, of the table between `<!-- MARKER begin -->` and `<!-- MARKER end -->`."""
    table = text.split(f"<!-- {marker} begin -->")[1].split(f"<!-- {marker} end -->")[0]
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines() if line.strip()]
    # The first row names the columns, the second is the line below them.
    return {row[0]: [entry.strip() for entry in row[1].split(",") if entry.strip() not in ("-", "")] for row in rows[2:]}


def read_table(marker="layers"):
    """Module -> what it may include. An entry is a module, the beginning of a path, such as reshard/plan, or `anything`."""
    return parse_table((ROOT / "docs/architecture.md").read_text(), marker)


def permits(entry, include):
    if entry == "anything":
        return True
    rest = include[len(entry):]
    return include.startswith(entry) and (rest == "" or rest[0] in "/._")


def folder_of(path):
    """The folder of a file of ORDERED, `.` for one directly in it."""
    return "/".join(path.split("/")[1:-1]) or "."


def folder_faults(path, includes, allowed):
    """Why a file of ORDERED may not be where it is, or include what it does. `path` begins with ORDERED; `includes`: (line, path)."""
    folder = folder_of(path)
    if "/" in folder:
        yield f"src/tandem/{path}: more than one level of folders in {ORDERED}"
    elif folder not in allowed:
        yield f"src/tandem/{path}: no row for {folder} in the table of {ORDERED}'s folders in docs/architecture.md"
    else:
        for number, include in includes:
            other = folder_of(include)
            if include.startswith(ORDERED + "/") and other not in (folder, *allowed[folder]):
                may = ", ".join(allowed[folder]) or "none"
                yield f"src/tandem/{path}:{number}: {ORDERED}'s folder {folder} may not include {include} (allowed: {may})"


def main():
    allowed, folders = read_table(), read_table(ORDERED)
    faults = []
    for module in sorted(path.name for path in SRC.iterdir() if path.is_dir()):
        if module not in allowed:
            faults.append(f"src/tandem/{module}: no row in the table of docs/architecture.md")
    for path in cpp_files():
        parts = path.relative_to(SRC).parts
        module = parts[0]
        row = "/".join(parts[:2]) if "/".join(parts[:2]) in allowed else module  # a folder may have a row of its own
        includes = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            if not match[1].startswith("tandem/"):
                faults.append(f'{name_of(path)}:{number}: "{match[1]}" is not a path from src, such as "tandem/base/ids.h"')
                continue
            include = match[1].removeprefix("tandem/")
            includes.append((number, include))
            other = include.split("/")[0]
            if other in (module, "base") or module not in allowed:
                continue
            if not any(permits(entry, include) for entry in allowed[row]):
                faults.append(f"{name_of(path)}:{number}: {row} may not include {include} (allowed: base, {', '.join(allowed[row])})")
        if module == ORDERED:
            faults += folder_faults("/".join(parts), includes, folders)
    for folder in sorted(set(folders) - {folder_of("/".join(path.relative_to(SRC).parts)) for path in cpp_files(f"src/tandem/{ORDERED}")}):
        faults.append(f"docs/architecture.md: {ORDERED} has no folder {folder}")
    finish("layers", faults)


if __name__ == "__main__":
    main()
