#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on what is too large to read: see LIMITS. Exceptions stand in tools/size_allow.txt, each with its reason."""
import collections
import re

from source import ROOT, SRC, bare, cpp_files, finish, line_of, name_of

LIMITS = {"file": 600, "header": 250, "function": 100, "parameters": 5, "pairs": 12, "virtuals": 12, "files": 40}
_NO_FUNCTION = re.compile(r"^\s*(?:namespace|class|struct|union|enum|extern)\b|\b(?:namespace|enum)\b[^()]*$")
_NOISE = re.compile(r"__attribute__\s*\(\(.*?\)\)|\b(?:alignas|decltype|noexcept|requires|explicit)\s*\([^()]*\)|"
                    r"\btemplate\s*<[^{}]*?>\s*(?=\w)", re.S)


def parse_allowed(text):
    """'kind subject: reason' -> the most that is allowed: the number that the reason begins with, without one anything."""
    allowed = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            subject, _, reason = line.partition(": ")
            assert reason.strip(), f"tools/size_allow.txt: no reason for {subject}"
            most = re.match(r"\s*(\d+)\b", reason)
            allowed[subject.strip()] = int(most[1]) if most else float("inf")
    return allowed


def read_allowed():
    return parse_allowed((ROOT / "tools/size_allow.txt").read_text())


def close_of(text, opening):
    """Where the brace at `opening` is closed."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    return len(text) - 1


def functions(text):
    """(name, parameters, first line, last line) of each function body, lambdas within belonging to it."""
    text = re.sub(r"(?m)^[ \t]*#.*(?:\\\n.*)*$", lambda m: re.sub(r"[^\n]", " ", m[0]), bare(text))
    start = at = 0
    while at < len(text):
        if text[at] == "{":
            head = text[start:at]
            # A default argument, an initialiser, or a member in the list before a constructor's body.
            if re.search(r"[=,(]\s*$", head) or re.search(r"\)[^?]*?[^:]:[^:].*[\w>]$", head, re.S):
                at = close_of(text, at)
            elif "(" in head and not _NO_FUNCTION.search(head):
                end = close_of(text, at)
                name, count = signature(head)
                lead = re.match(r"(?:\s|\b(?:public|private|protected)\s*:(?!:))*", head).end()
                yield name, count, line_of(text, start + lead), line_of(text, end)
                at, start = end, end + 1
            else:
                start = at + 1
        elif text[at] in ";}":
            start = at + 1
        at += 1


def signature(head):
    head = _NOISE.sub(" ", head).replace("operator()", "operator_call")
    match = re.search(r"([\w:~]+|operator\s*\S+?)\s*\(", head)
    if not match:
        return head.strip()[:40], 0
    depth, count, some = 0, 0, False
    for char in head[match.end():]:
        if char in "([{<":
            depth += 1
        elif char in ")]}>":
            if char == ")" and depth == 0:
                break
            depth -= 1
        elif char == "," and depth == 0:
            count += 1
        some = some or not char.isspace()
    return match[1].strip(), count + 1 if some else 0


# Folders that count as modules of their own: by rule of the house `backend`, `kernel` and `family`, and the parts that these and four
# large modules are in. In runtime nothing does: it has a limit of its own, for all its files together.
PARTS = ("backend", "kernel", "family", "queue", "body", "c10d", "process", "op", "cpu", "aten", "cuda", "product", "expert",
         "context", "generated", "math", "pipeline", "jinja", "jinja_value", "input", "file")
WHOLE = "runtime"


def unit_of(path):
    """The folder a file counts for: its module, or a part of one that counts as a module of its own."""
    parts = path.relative_to(SRC).parts[:-1]
    if parts[0] == "cli":
        return "/".join(parts[:2])
    return "/".join(parts[:1 + max((i for i, name in enumerate(parts) if name in PARTS), default=0)])


def main():
    found = []  # (kind, subject, number, where)
    pairs = collections.defaultdict(set)
    for path in cpp_files():
        text, name = path.read_text(), name_of(path)
        found.append(("header" if path.suffix == ".h" else "file", name, text.count("\n"), name))
        pairs[unit_of(path)].add(path.relative_to(SRC).with_suffix(""))
        for function, parameters, first, last in functions(text):
            found.append(("function", f"{name}:{function}", last - first + 1, f"{name}:{first}"))
            found.append(("parameters", f"{name}:{function}", parameters, f"{name}:{first}"))
        for body in re.split(r"\bclass ", bare(text))[1:]:
            found.append(("virtuals", f"{name}:{body.split()[0]}", len(re.findall(r"\bvirtual\b[^;{]*=\s*0\s*;", body)), name))
    found += [("pairs", f"src/tandem/{unit}", len(stems), f"src/tandem/{unit}") for unit, stems in pairs.items()
              if unit.split("/")[0] != WHOLE]
    found.append(("files", f"src/tandem/{WHOLE}", len(cpp_files(f"src/tandem/{WHOLE}")), f"src/tandem/{WHOLE}"))
    allowed = read_allowed()
    faults = sorted({f"{where}: {kind} {subject.partition(':')[2] or 'lines'} has {number}, at most {LIMITS[kind]}"
                     for kind, subject, number, where in found if number > max(LIMITS[kind], allowed.get(f"{kind} {subject}", 0))})
    finish("sizes", faults)


if __name__ == "__main__":
    main()
