#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The large shape of src/tandem, and a limit for each figure of it.

  tools/graph.py           prints and checks: folders, arrows between them, floors, circles, and the calls of the walks below
  tools/graph.py --floors  each folder with its floor, what it includes and how many include it

An arrow is one folder that includes a header of another. A folder stands one floor above the highest that it includes. A circle is folders
that include each other in a loop; so are sources that do, where a source is a header with its .cpp.

A walk is a list of calls, tools/walk_NAME.txt: on each line a file and a function that the function before calls. The check fails where a
function is not defined in its file, or where the one before does not name it. A line `= WORDS` says that it waits for whoever fetches
it: the next line may be any function, and the reader sees whether it is the one that does. Each function counts."""
import argparse
import functools
import re
import sys

from source import ROOT, SRC, bare, cpp_files, finish

MOST = {"arrows": 179, "floors": 11, "circles": 0, "calls of request": 60}

INCLUDE = re.compile(r'^\s*#\s*include\s+"tandem/([^"]+)"', re.M)


def folder_of(path):
    return path.split("/")[0]


def arrows():
    """Folder -> folders that it includes headers of."""
    found = {}
    for file in cpp_files():
        path = str(file.relative_to(SRC))
        mine = found.setdefault(folder_of(path), set())
        mine.update(folder_of(include) for include in INCLUDE.findall(file.read_text()))
        mine.discard(folder_of(path))
    return found


def circles(graph):
    """Sets of names that reach each other."""
    order, reached, back = [], set(), {name: set() for name in graph}
    for name, others in graph.items():
        for other in others:
            back[other].add(name)

    def visit(start, edges, into):
        stack = [(start, iter(sorted(edges[start])))]
        reached.add(start)
        while stack:
            name, left = stack[-1]
            step = next((other for other in left if other not in reached), None)
            if step is None:
                into.append(stack.pop()[0])
            else:
                reached.add(step)
                stack.append((step, iter(sorted(edges[step]))))

    for name in sorted(graph):
        if name not in reached:
            visit(name, graph, order)
    reached.clear()
    loops = []
    for name in reversed(order):
        if name not in reached:
            loop = []
            visit(name, back, loop)
            if len(loop) > 1:
                loops.append(sorted(loop))
    return loops


def floors(graph):
    """Name -> its floor, from 1; for a graph without circles."""
    @functools.lru_cache(None)
    def floor(name):
        return 1 + max((floor(other) for other in graph[name]), default=0)

    return {name: floor(name) for name in graph}


def body_of(text, function):
    """The text of each definition of `function`, its parameters and initialisers included; "" if there is none. `text` is bare."""
    name = function.split("::")[-1]
    bodies = []
    for match in re.finditer(rf"(?<![\w.>]){re.escape(name)}\s*\(", text):
        at, depth = match.end(), 1
        while at < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        end = re.match(r"[^;{}]*?(?:\{|;|\})", text[at:])
        if not end or not end[0].endswith("{"):
            continue
        begin, at, depth = match.start(), at + end.end(), 1
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        bodies.append(text[begin:at])
    return "\n".join(bodies)


def walk_faults(path):
    """What is wrong with a walk, and its number of calls."""
    faults, before, calls = [], None, 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if words and words[0] == "=":
            before, words = None, []
        if not words:
            continue
        where = f"{path.relative_to(ROOT)}:{number}"
        file, function = words
        name = function.split("::")[-1]
        source = SRC / file
        body = body_of(bare(source.read_text()), function) if source.is_file() else ""
        if not body:
            faults.append(f"{where}: {file} does not define {function}")
        calls += 1
        if before is not None:
            if not re.search(rf"\b{re.escape(name)}\b", before):
                faults.append(f"{where}: the function before does not name {name}")
        before = body
    return faults, calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floors", action="store_true")
    options = parser.parse_args()
    folders = arrows()
    loops = circles(folders)
    faults = [f"circle: {', '.join(loop)}" for loop in loops]
    figures = {"arrows": sum(map(len, folders.values())), "circles": len(loops)}
    if not loops:
        floor = floors(folders)
        figures["floors"] = max(floor.values())
        if options.floors:
            for name in sorted(folders, key=lambda each: (floor[each], each)):
                by = sum(name in others for others in folders.values())
                print(f"{floor[name]:3} {name}: includes {', '.join(sorted(folders[name], key=lambda each: (floor[each], each))) or '-'}; "
                      f"{by} include it")
    for walk in sorted((ROOT / "tools").glob("walk_*.txt")):
        wrong, calls = walk_faults(walk)
        faults += wrong
        figures[f"calls of {walk.stem.removeprefix('walk_')}"] = calls
    print(f"{len(folders)} folders, " + ", ".join(f"{count} {name}" for name, count in figures.items()))
    faults += [f"{figures[name]} {name}, of at most {most} (tools/graph.py:MOST)"
               for name, most in MOST.items() if figures.get(name, 0) > most]
    finish("graph", faults)


if __name__ == "__main__":
    sys.setrecursionlimit(10000)
    main()
