#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on conditional compilation outside */backend/ and */kernel/: platforms differ there and nowhere else."""
import re

from source import bare, cpp_files, finish, line_of, name_of


def main():
    faults = []
    for path in cpp_files():
        if {"backend", "kernel"} & set(path.parts):
            continue
        text = bare(path.read_text())
        faults += [f"{name_of(path)}:{line_of(text, match.start())}: {match[0].strip()} outside backend/ and kernel/"
                   for match in re.finditer(r"(?m)^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b.*$", text)]
    finish("platform_if", faults)


if __name__ == "__main__":
    main()
