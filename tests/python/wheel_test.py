#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wheel of scripts/wheel, unpacked beside the torch and pyarrow of .venv as pip would put it: what it holds, what it asks of a machine,
and that its program and package run from there. --wheel FILE checks one that is there."""
import argparse
import email
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile
import types
import zipfile
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/run", "python", "tools")]
import links  # noqa: E402
import pack_wheel  # noqa: E402
import run_folder as rf  # noqa: E402
from run_folder import said  # noqa: E402

# What PEP 600 counts on, and what other wheels bring.
SYSTEM = re.compile(r"(libc|libm|libz|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|ld-linux-[\w-]+)\.so\.\d+")
BESIDE = re.compile(r"(libtorch\w*|libc10\w*|libgomp|libarrow|libparquet|libnccl|libcuda\w*|libnvrtc)\.so(\.\d+)*")
MOST_BYTES = 40 << 20


def made(out):
    """Of --wheel, or made into `out`. Where the tools of scripts/wheel are missing and no index is in reach, the test is skipped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=rf.ROOT / "build/release")
    parser.add_argument("--wheel", type=pathlib.Path)
    given = parser.parse_args()
    if given.wheel:
        return given.wheel
    if given.build.name != "release":
        rf.skip("scripts/wheel packs the release build")
    done = subprocess.run([rf.ROOT / "scripts/wheel"], env={**os.environ, "TANDEM_DIST": str(out)}, capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr:
        rf.skip("no index has the tools of scripts/wheel")
    assert done.returncode == 0, done.stderr
    return next(rf.ROOT / path for path in done.stdout.split() if f"-cp{sys.version_info[0]}{sys.version_info[1]}-" in path)


def read_elf(path):
    """(needed libraries, folders to search) of a program or library."""
    text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    folders = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text), [folder for line in folders for folder in line.split(":")]


def check_libraries(site):
    carried = {path.name for path in (site / "tandem.libs").iterdir()}
    files = [path for path in site.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    assert {"tandem", "libtandem_parquet.so"} < {path.name for path in files}, files
    for path in files:
        needed, folders = read_elf(path)
        foreign = [name for name in needed if not (SYSTEM.fullmatch(name) or BESIDE.fullmatch(name) or name in carried)]
        assert not foreign, f"{path.name} needs {foreign}"
        assert all(folder.startswith("$ORIGIN") for folder in folders), (path.name, folders)
        at = [pathlib.Path(folder.replace("$ORIGIN", str(path.parent))) for folder in folders]
        lost = [name for name in needed if not SYSTEM.fullmatch(name) and not any((folder / name).exists() for folder in at)]
        # Threads are torch's, which every process here loads first.
        assert not lost or lost == ["libgomp.so.1"], f"{path.name} does not find {lost} in {folders}"
    assert not any("mpi" in name for name in carried), carried
    # Python's ssl has an OpenSSL, too, and a process has one library of a name.
    assert all(re.search(r"-[0-9a-f]{8}\.", name) for name in carried), carried
    said(f"{len(files)} programs and libraries need the C and C++ library, torch, pyarrow and the {len(carried)} that the wheel carries")


def check_metadata(site, wheel):
    info, = site.glob("tandem-*.dist-info")
    data = email.message_from_string((info / "METADATA").read_text())
    torch = runpy.run_path(str(site / "torch/version.py"))["__version__"]  # its label is in no name of a CUDA wheel of the public index
    public, _, label = torch.partition("+")
    assert data["Name"] == "tandem" and data["License-Expression"] == "Apache-2.0", data.items()
    assert data["Version"].partition("+")[2] == label, data["Version"]
    assert data["Description-Content-Type"] == "text/markdown" and "# Tandem" in data.get_payload(), "the readme"
    near = [link for link, _ in links.links_of(data.get_payload()) if not links.is_elsewhere(link)]
    assert not near, f"links that lead nowhere on an index: {near}"
    assert f"torch=={public}" in data.get_all("Requires-Dist"), data.get_all("Requires-Dist")
    assert public in data["Summary"], data["Summary"]
    for name in data.get_all("License-File"):
        assert (info / "licenses" / name).read_text().strip(), name
    notices = {path.name for path in (info / "licenses/carried").iterdir()}
    assert {"libzmq5", "libssl3", "libsqlite3-0"} <= notices, notices
    assert re.search(r"-manylinux_2_\d+_" + os.uname().machine + r"\.whl$", wheel.name), wheel.name
    assert wheel.stat().st_size < MOST_BYTES, wheel.stat().st_size
    said(f"{wheel.name}: {wheel.stat().st_size} bytes, the licences of {len(notices)} carried packages, for torch {public}")


def check_search(folder):
    """A program for CUDA finds the toolkit's libraries in the wheels that bring them, and others find nothing there."""
    site = folder / "site"
    files = {name: site / at / name for name, at in (("libtorch.so", "torch/lib"), ("libcudart.so.13", "nvidia/cu13/lib"),
                                                     ("libnccl.so.2", "nvidia/nccl/lib"), ("libnvrtc.so.12", "nvidia/cuda_nvrtc/lib"))}
    for file in files.values():
        file.parent.mkdir(parents=True)
        file.touch()
    loaded = files.pop("libnvrtc.so.12")
    own = ("torch/lib", "tandem")
    files["libzmq.so.5"] = pathlib.Path("/usr/lib/libzmq.so.5")
    assert pack_wheel.search_of(files, own) == (*own, "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/nccl/lib")
    loaded.unlink()
    assert pack_wheel.search_of({name: files[name] for name in ("libtorch.so", "libzmq.so.5")}, own) == own
    said("a program for CUDA would look for its libraries where their wheels put them")


def check_refusals():
    """pip shows in one line why no wheel was made."""
    reason = "its torch is none, and not 2.13.0+cpu"
    for stderr, code, wanted in ((f"wheel: no wheel for {sys.executable}: {reason}\n", 0, reason), ("", 0, "no CPython 3.11 or newer"),
                                 ("setup: error: x\n", 2, "scripts/wheel ended with 2")):
        done = types.SimpleNamespace(returncode=code, stdout="dist/tandem-0.1.0+cpu-cp27-cp27m-linux.whl\n", stderr=stderr)
        with mock.patch("subprocess.run", return_value=done), mock.patch("sys.stderr"):
            try:
                pack_wheel.build_wheel("dist")
            except SystemExit as end:
                assert str(end).startswith("wheel: error: ") and wanted in str(end), end
            else:
                raise AssertionError("a wheel for this Python?")
    said("pip learns why there is no wheel for a Python")


def check_runs(site, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "LD_"))}
    environment.update(PYTHONPATH=str(site), PATH="/usr/bin:/bin")

    def called(code, *words):
        command = [sys.executable, "-c", code, *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)

    start = "import tandem_command; tandem_command.main()"
    (folder / "mine.py").write_text("import sys\ndef score(completions):\n    open('python', 'w').write(sys.executable)\n"
                                    "    return [float(len(text)) for text in completions]\n")
    ran = called(start, "run", "--no-eval", rf.tiny_recipe(folder / "tiny.yaml", run__steps=2, reward__rule="python",
                                                           reward__python="mine.py:score"))
    assert ran.returncode == 0, ran.stderr
    assert pathlib.Path((folder / "python").read_text()).samefile(sys.executable), "the reward runs in the Python of the wheel"
    named = called(start, "config", "quickstart")
    assert named.returncode == 0 and "stop_at_accuracy: 0.2" in named.stdout, named.stderr
    package = called("import tandem; print(tandem.__file__, tandem.run('tiny.yaml', overwrite=True, settings={'run.steps': 1}).steps)")
    assert package.returncode == 0 and package.stdout.split() == [str(site / "tandem/__init__.py"), "1"], package.stderr + package.stdout
    said("`tandem run` with a reward in Python, a recipe by name, and the package run from there")
    build = site / "tandem/_build.py"
    build.write_text(build.read_text().replace("TORCH = '2.", "TORCH = '1."))
    for other in (called(start, "--version"), called("import tandem")):
        line = other.stderr.strip().splitlines()[-1]
        assert other.returncode == 1, other
        assert re.search(r"was built for torch 1\.\S+, and torch 2\.\S+ is here: .* -m pip install torch==1\.", line), line
    said("another torch is named in one line, with the command that brings the right one")


def main():
    with tempfile.TemporaryDirectory() as scratch:
        check_search(pathlib.Path(scratch) / "cuda")
        check_refusals()
        wheel = made(pathlib.Path(scratch) / "dist")
        site, folder = pathlib.Path(scratch) / "site", pathlib.Path(scratch) / "work"
        folder.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        (site / "tandem/bin/tandem").chmod(0o755)  # as pip does, by the mode in the archive
        for name in ("torch", "pyarrow"):
            (site / name).symlink_to(pathlib.Path(subprocess.run(
                [sys.executable, "-c", f"import importlib.util as u; print(u.find_spec('{name}').submodule_search_locations[0])"],
                capture_output=True, text=True, check=True).stdout.strip()))
        nvidia = (site / "torch").resolve().parent / "nvidia"
        if nvidia.exists():
            (site / "nvidia").symlink_to(nvidia)
        check_libraries(site)
        check_metadata(site, wheel)
        check_runs(site, folder)


if __name__ == "__main__":
    main()
