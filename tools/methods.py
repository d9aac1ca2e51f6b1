#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a class of MODULES with more than LIMIT methods: one that knows everything. Exceptions stand in tools/size_allow.txt."""
import re

from sizes import close_of, read_allowed
from source import ROOT, bare, cpp_files, finish, line_of, name_of

LIMIT = 20
MODULES = ("runtime", "policy", "config", "train", "rollout")
_CLASS = re.compile(r"(?<!enum )\b(?:class|struct)\s+(\w+)(?:\s+final)?\s*(?::[^:;{}][^;{}]*)?\{")
_NO_METHOD = re.compile(r"\b(?:class|struct|union|enum|friend|using|typedef|static_assert)\b")
_NOISE = re.compile(r"\b(?:public|private|protected)\s*:(?!:)|\b(?:alignas|decltype|noexcept|requires|explicit)\s*\([^()]*\)|\[\[.*?\]\]")


def declarations(body):
    """The declarations of a class body, without the bodies of its functions and nested classes."""
    text, parens, at = "", 0, 0
    while at < len(body):
        char = body[at]
        parens += (char == "(") - (char == ")")
        if char == "{":
            at = close_of(body, at)
            # Within parentheses a default argument; before a comma or another brace a member that a constructor initialises.
            if parens == 0 and not re.match(r"\s*[,{;]", body[at + 1:]):
                yield text
                text = ""
        elif char == ";" and parens == 0:
            yield text
            text = ""
        else:
            text += char
        at += 1


def method_of(declaration, class_name):
    """The name of the member function that is declared; None for another member, a constructor, the destructor and an operator."""
    text = _NOISE.sub(" ", declaration)
    if re.search(r"\boperator\b", text):
        return None
    while text != (text := re.sub(r"<[^<>]*>", " ", text)):
        pass
    if _NO_METHOD.search(text.split("(")[0]):
        return None
    first = re.search(r"=|(~?\w+)\s*\((?!\s*[*&])", text)
    if not first or not first[1] or first[1].startswith("~") or first[1] == class_name:
        return None
    return first[1]


def classes(text):
    """(name, line, methods) of each class; overloads count each, those of nested classes count for these."""
    text = bare(text)
    for match in _CLASS.finditer(text):
        body = text[match.end():close_of(text, match.end() - 1)]
        methods = [name for declaration in declarations(body) if (name := method_of(declaration, match[1]))]
        yield match[1], line_of(text, match.start()), methods


def main():
    allowed = read_allowed()
    faults = []
    for path in cpp_files():
        if path.relative_to(ROOT / "src/tandem").parts[0] not in MODULES:
            continue
        for name, line, methods in classes(path.read_text()):
            if len(methods) > max(LIMIT, allowed.get(f"methods {name_of(path)}:{name}", 0)):
                faults.append(f"{name_of(path)}:{line}: {name} has {len(methods)} methods, at most {LIMIT}")
    finish("methods", faults)


if __name__ == "__main__":
    main()
