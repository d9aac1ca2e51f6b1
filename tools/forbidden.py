#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on calls the house rules forbid, outside the folders where each has its place."""
import re

from source import SRC, bare, cpp_files, finish, line_of, name_of

# pattern, places where it is right (beginnings of paths below src/tandem), why not elsewhere
RULES = [
    (r"\bmanual_seed\b", [], "random numbers come from base/rng.h streams, one per sample"),
    (r"\bset_num_threads\b", ["device/"], "the number of threads is process-wide; device/ owns it"),
    (r"\bstd::(?:abort|exit|quick_exit|_Exit)\b|(?<![\w.>:])abort\(\s*\)|(?<![\w.>:~])_?exit\s*\(", ["cli/"],
     "throw an error of base/error.h"),
    (r"\bgetenv\b", ["cli/", "comm/backend/"], "the environment is read in cli/ and comm/backend/ alone"),
    (r"\bstd::ifstream\b|\bLoadFile\b|\bfopen\b",
     ["base/json_file", "cli/arguments", "comm/start_skew", "device/memory_limit", "doctor/machine_report"],
     "a file of the user's is opened by base/json_file.h:RegularFile, which waits for no pipe and reads no device"),
    (r"(?m)^[ \t]*#[ \t]*define\b(?! PCRE2_CODE_UNIT_WIDTH).*$", ["base/check.h"],
     "macros live in base/check.h; use a constant, a function or a template"),
    (r"\b(?:TODO|FIXME|XXX)\b", [], "finish it or leave it out"),
]
HEADER_RULES = [(r"#\s*include\s*[<\"]torch/(?:torch|all|extension)\.h", "costs 17 s a file; name the ATen headers you need")]


def main():
    faults = []
    for path in cpp_files():
        raw = path.read_text()
        text, place = bare(raw), str(path.relative_to(SRC))
        for pattern, places, why in RULES:
            if any(place.startswith(right) for right in places):
                continue
            searched = raw if "TODO" in pattern else text
            faults += [f"{name_of(path)}:{line_of(searched, match.start())}: {match[0].strip()}: {why}"
                       for match in re.finditer(pattern, searched)]
        if path.suffix == ".h":
            for pattern, why in HEADER_RULES:
                faults += [f"{name_of(path)}:{line_of(raw, match.start())}: {match[0]}: {why}"
                           for match in re.finditer(pattern, raw)]
    finish("forbidden", faults)


if __name__ == "__main__":
    main()
