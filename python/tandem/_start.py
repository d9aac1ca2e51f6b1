# SPDX-License-Identifier: Apache-2.0
"""The command `tandem` of a wheel becomes the program in it. This runs as a file: to import `tandem` imports torch, which takes seconds."""
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import runpy
import sys
import types


def misfit(build, torch):
    """Why a program of `build` does not run beside this version of torch and the pyarrow here; "" if it does. A version of pyarrow fits
    all that differ in the last number."""
    wanted, label = build.TORCH, build.TORCH.partition("+")[2]
    if torch != wanted:
        index = f" --index-url https://download.pytorch.org/whl/{label}" if label else ""
        return _words("torch", wanted, torch, f"torch=={wanted}{index}")
    if build.PYARROW:
        try:
            pyarrow = importlib.metadata.version("pyarrow")
        except importlib.metadata.PackageNotFoundError:
            pyarrow = ""
        if pyarrow.split(".")[:2] != build.PYARROW.split(".")[:2]:
            return _words("pyarrow", build.PYARROW, pyarrow, f"pyarrow=={build.PYARROW}")
    return ""


def _words(name, wanted, found, what):
    here = f"{name} {found} is here" if found else f"there is no {name} here"
    return f"this tandem was built for {name} {wanted}, and {here}: {sys.executable} -m pip install {what}"


def main():
    package = pathlib.Path(__file__).absolute().parent
    found = importlib.util.find_spec("torch")
    torch = pathlib.Path(found.submodule_search_locations[0]) if found else None
    version = re.search(r"^__version__ = ['\"](.+)['\"]", (torch / "version.py").read_text(), re.MULTILINE)[1] if torch else ""
    said = misfit(types.SimpleNamespace(**runpy.run_path(str(package / "_build.py"))), version)
    if not said and torch.absolute().parent != package.parent:
        said = f"torch is in {torch.parent}, and tandem in {package.parent}: install both into one folder, such as that of a venv"
    if said:
        sys.exit(f"tandem: error: {said}")
    os.environ["TANDEM_WHEEL_PYTHON"] = sys.executable
    os.execv(package / "bin" / "tandem", sys.argv)
