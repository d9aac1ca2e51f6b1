#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails where a fuzz target of modules without libtorch reads a header of it: clang then finds none."""
import re

from source import ROOT, finish

SRC = ROOT / "src"


def first_torch(path, seen):
    """The way from `path` to a header of libtorch, or None."""
    if path in seen or not path.exists():
        return None
    seen.add(path)
    for kind, name in re.findall(r'^#include ([<"])([^>"]+)', path.read_text(), re.M):
        if re.match(r"(ATen|torch|c10)/", name):
            return [path, name]
        way = first_torch(SRC / name, seen) if kind == '"' else None
        if way:
            return [path] + way
    return None


def main():
    text = (ROOT / "tests/fuzz/CMakeLists.txt").read_text()
    for name, value in re.findall(r"^set\((\w+) \$\{PROJECT_SOURCE_DIR\}/([^)]+)\)", text, re.M):
        text = text.replace("${%s}" % name, value)
    text = text.replace("${PROJECT_SOURCE_DIR}/", "")
    modules = (ROOT / "src/tandem/CMakeLists.txt").read_text()
    with_torch = set(re.findall(r"tandem_module\((\S+) TORCH", modules))
    faults = []
    for call in re.findall(r"tandem_fuzz\(([^)]*)\)", text):
        sources, _, dependencies = call.partition("DEPS")
        if with_torch & set(dependencies.split()):
            continue
        for source in re.findall(r"\S+\.cpp", sources):
            path = ROOT / source if source.startswith("src/") else ROOT / "tests/fuzz" / source
            way = first_torch(path, set())
            if way:
                faults.append(" reads ".join(str(step.relative_to(ROOT)) if hasattr(step, "relative_to") else step for step in way))
    finish("fuzz_includes", faults)


if __name__ == "__main__":
    main()
