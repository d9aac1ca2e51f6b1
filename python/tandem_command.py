# SPDX-License-Identifier: Apache-2.0
"""What a wheel's command `tandem` calls. Outside the package, since to import that imports torch, which takes seconds."""
import pathlib
import runpy


def main():
    runpy.run_path(str(pathlib.Path(__file__).with_name("tandem") / "_start.py"))["main"]()
