#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_programs.py MODULE... <TARGETS: prints the test programs of each module, MODULE_test or MODULE_..._test, that stand among
the targets that ninja lists. Fails on a module that has none: a gate that tests nothing would pass for ever."""
import re
import sys


def programs_of(modules, targets):
    """(programs, faults)"""
    names = sorted(set(re.findall(r"(?m)^(\w+_test): phony$", targets)))
    found = {module: [name for name in names if re.fullmatch(rf"{module}(_\w+)?_test", name)] for module in modules}
    programs = sorted({name for some in found.values() for name in some})
    return programs, [f"no test program of module {module}" for module, some in found.items() if not some]


def main():
    programs, faults = programs_of(sys.argv[1:], sys.stdin.read())
    print("\n".join(programs))
    if faults:
        print("\n".join(faults), file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
