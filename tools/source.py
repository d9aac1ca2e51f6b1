# SPDX-License-Identifier: Apache-2.0
"""What the gates share: the files of the repository and C++ text without its comments and strings."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SRC = ROOT / "src/tandem"


def repository_files():
    """Tracked and new files, not ignored ones; nothing of other projects."""
    out = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
    return [ROOT / name for name in out.stdout.splitlines() if not name.startswith("third_party/") and (ROOT / name).is_file()]


def cpp_files(folder="src/tandem"):
    return [path for path in repository_files() if path.suffix in (".h", ".cpp") and path.is_relative_to(ROOT / folder)]


_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def bare(text):
    """The text with comments and literals blanked out, every line where it was. Digit separators are left alone."""
    def blank(match):
        found = match.group(0)
        if found[0] == "'" and match.start() > 0 and text[match.start() - 1].isalnum():
            return found
        edge = '"' if found[0] in '"R' else " "
        return edge + re.sub(r"[^\n]", " ", found[1:-1]) + edge
    return _SKIPPED.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def name_of(path):
    return str(path.relative_to(ROOT))


def finish(gate, faults):
    """Prints the faults and ends the gate."""
    for fault in faults:
        print(f"{gate}: {fault}")
    sys.exit(1 if faults else 0)
