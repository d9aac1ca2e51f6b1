#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include between modules that the table in docs/architecture.md does not allow."""
import re

from source import ROOT, SRC, cpp_files, finish, name_of


def read_table():
    """Module -> what it may include. An entry is a module, the beginning of a path, such as reshard/plan, or `anything`."""
    text = (ROOT / "docs/architecture.md").read_text()
    table = text.split("<!-- layers begin -->")[1].split("<!-- layers end -->")[0]
    allowed = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 2 or cells[0] in ("module", "") or set(cells[0]) <= set("-: "):
            continue
        allowed[cells[0]] = [entry.strip() for entry in cells[1].split(",") if entry.strip() not in ("-", "")]
    return allowed


def permits(entry, include):
    if entry == "anything":
        return True
    rest = include[len(entry):]
    return include.startswith(entry) and (rest == "" or rest[0] in "/._")


def main():
    allowed = read_table()
    faults = []
    for module in sorted(path.name for path in SRC.iterdir() if path.is_dir()):
        if module not in allowed:
            faults.append(f"src/tandem/{module}: no row in the table of docs/architecture.md")
    for path in cpp_files():
        parts = path.relative_to(SRC).parts
        module = parts[0]
        row = "/".join(parts[:2]) if "/".join(parts[:2]) in allowed else module  # a folder may have a row of its own
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            if not match[1].startswith("tandem/"):
                faults.append(f'{name_of(path)}:{number}: "{match[1]}" is not a path from src, such as "tandem/base/ids.h"')
                continue
            include = match[1].removeprefix("tandem/")
            other = include.split("/")[0]
            if other in (module, "base") or module not in allowed:
                continue
            if not any(permits(entry, include) for entry in allowed[row]):
                faults.append(f"{name_of(path)}:{number}: {row} may not include {include} (allowed: base, {', '.join(allowed[row])})")
    finish("layers", faults)


if __name__ == "__main__":
    main()
