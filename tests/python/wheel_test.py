#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wheel of scripts/wheel, unpacked beside the torch and pyarrow of .venv as pip would put it: what it holds, what it asks of a machine,
and that its program and package run from there. --wheel FILE checks one that is there."""
import argparse
import email
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import run_folder as rf  # noqa: E402
from run_folder import said  # noqa: E402

# What PEP 600 counts on, and what other wheels bring.
SYSTEM = re.compile(r"(libc|libm|libz|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so\.\d+")
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
    assert not any("mpi" in name for name in carried), carried
    # Python's ssl has an OpenSSL, too, and a process has one library of a name.
    assert all(re.search(r"-[0-9a-f]{8}\.", name) for name in carried), carried
    said(f"{len(files)} programs and libraries need the C and C++ library, torch, pyarrow and the {len(carried)} that the wheel carries")


def check_metadata(site, wheel):
    info, = site.glob("tandem-*.dist-info")
    data = email.message_from_string((info / "METADATA").read_text())
    torch = subprocess.run([sys.executable, "-c", "import importlib.metadata as m; print(m.version('torch'))"],
                           capture_output=True, text=True, check=True).stdout.strip()
    public, _, label = torch.partition("+")
    assert data["Name"] == "tandem" and data["License-Expression"] == "Apache-2.0", data.items()
    assert data["Version"].partition("+")[2] == label, data["Version"]
    assert data["Description-Content-Type"] == "text/markdown" and "# Tandem" in data.get_payload(), "the readme"
    assert f"torch=={public}" in data.get_all("Requires-Dist"), data.get_all("Requires-Dist")
    assert public in data["Summary"], data["Summary"]
    for name in data.get_all("License-File"):
        assert (info / "licenses" / name).read_text().strip(), name
    notices = {path.name for path in (info / "licenses/carried").iterdir()}
    assert {"libzmq5", "libssl3", "libsqlite3-0"} <= notices, notices
    assert re.search(r"-manylinux_2_\d+_x86_64\.whl$", wheel.name), wheel.name
    assert wheel.stat().st_size < MOST_BYTES, wheel.stat().st_size
    said(f"{wheel.name}: {wheel.stat().st_size} bytes, the licences of {len(notices)} carried packages, for torch {public}")


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
        check_libraries(site)
        check_metadata(site, wheel)
        check_runs(site, folder)


if __name__ == "__main__":
    main()
