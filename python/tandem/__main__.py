# SPDX-License-Identifier: Apache-2.0
"""`python -m tandem` is the program `tandem`, in a process with Python: for recipes that name functions."""
import os
import signal
import sys

from tandem import _hooks, _tandem


def main() -> int:
    for number in (signal.SIGINT, signal.SIGPIPE):  # as they end a program that has no handler
        signal.signal(number, signal.SIG_DFL)
    called = "python -m tandem" if sys.argv[0].endswith("__main__.py") else sys.argv[0]
    return _tandem.main([os.environ.get("TANDEM_PROGRAM", called), *sys.argv[1:]], _hooks.of_recipe)


if __name__ == "__main__":
    sys.exit(main())
