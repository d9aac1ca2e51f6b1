#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles each header alone. Those that passed before, with the same text below them, are not compiled again."""
import concurrent.futures
import hashlib
import json
import re
import shlex
import subprocess

from source import ROOT, SRC, cpp_files, finish, name_of

DONE = ROOT / "build/headers_ok.json"


def flags():
    """Those of the first compile command that sees libtorch, or of any."""
    commands = json.loads((ROOT / "build/release/compile_commands.json").read_text())
    chosen = next((it for it in commands if "torch/include" in it["command"]), commands[0])
    words = shlex.split(chosen["command"])
    kept = [word for word in words if word.startswith(("-I", "-std", "-D"))]
    for at, word in enumerate(words):
        if word == "-isystem":
            kept += ["-isystem", words[at + 1]]
    pkg = subprocess.run(["pkg-config", "--cflags", "cpp-httplib", "libpcre2-8", "libutf8proc", "libzmq"], capture_output=True, text=True)
    mpi = subprocess.run(["mpicxx", "--showme:compile"], capture_output=True, text=True) if "mpi" in str(commands) else None
    return kept + pkg.stdout.split() + (mpi.stdout.split() if mpi else [])


def digest(path, seen=None):
    """Of a header and of all our headers it includes."""
    seen = seen if seen is not None else set()
    if path in seen or not path.is_file():
        return ""
    seen.add(path)
    text = path.read_text()
    below = [digest(ROOT / "src" / name, seen) for name in re.findall(r'#include "(tandem/[^"]+)"', text)]
    return hashlib.sha256((text + "".join(below)).encode()).hexdigest()


def compile_alone(path, options):
    command = ["g++", "-x", "c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wno-pragma-once-outside-header", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True)


def main():
    if not (ROOT / "build/release/compile_commands.json").exists():
        finish("headers", ["build/release has no compile_commands.json (run scripts/build first)"])
    options = flags()
    key = hashlib.sha256(" ".join(options).encode()).hexdigest()
    done = json.loads(DONE.read_text()) if DONE.exists() else {}
    headers = {path: key + digest(path) for path in cpp_files() if path.suffix == ".h" and path.is_relative_to(SRC)}
    todo = [path for path, mark in headers.items() if done.get(name_of(path)) != mark]
    faults = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for path, result in zip(todo, pool.map(lambda path: compile_alone(path, options), todo)):
            if result.returncode == 0:
                done[name_of(path)] = headers[path]
            else:
                faults.append(f"{name_of(path)} does not compile alone:\n{result.stderr[:1500]}")
    DONE.write_text(json.dumps(done))
    finish("headers", faults)


if __name__ == "__main__":
    main()
