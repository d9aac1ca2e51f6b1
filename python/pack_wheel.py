# SPDX-License-Identifier: Apache-2.0
"""Packs a wheel of what `scripts/build release tandem_wheel` made: `pack_wheel.py --build DIR --out DIR --module FILE`. Prints its path.

The C++ libraries that the program needs are carried in it, under names of their own, by auditwheel: a process may have two OpenSSLs then.
Those of torch and pyarrow are found where their wheels install them. As a PEP 517 backend (pyproject.toml), for `pip install .`, it runs
scripts/wheel."""
import argparse
import fnmatch
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of wheels that are installed beside this one, by the package that brings them.
OTHERS = ("libtorch*", "libc10*", "libgomp*", "libarrow*", "libparquet*", "libcudart*", "libcublas*", "libnccl*", "libcuda*", "libnvrtc*")
SYSTEM = re.compile(r"(libc|libm|libz|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|libgomp|ld-linux.*)\.so")
TORCH_AT, ARROW_AT = "torch/lib", "pyarrow"
LOADED = ("libnvrtc.so.*",)  # named by no link: a program for CUDA opens it


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """As PEP 517 has it."""
    environment = {**os.environ, "TANDEM_PYTHON": sys.executable, "TANDEM_DIST": os.path.abspath(wheel_directory)}
    done = subprocess.run([ROOT / "scripts/wheel"], env=environment, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        sys.exit(f"wheel: error: scripts/wheel ended with {done.returncode}")
    tag = "-cp%d%d-" % sys.version_info[:2]
    wheel = next((pathlib.Path(path).name for path in done.stdout.split() if tag in path), None)
    if not wheel:
        here = f"no wheel for {sys.executable}: "
        why = next((line.partition(here)[2] for line in done.stderr.splitlines() if here in line), "it is no CPython 3.11 or newer")
        sys.exit(f"wheel: error: {here}{why} (then pip install --no-build-isolation .)")
    return wheel


def metadata(build):
    """The text of METADATA, from pyproject.toml and what the program was built for."""
    import pyproject_metadata  # of build/wheel_tools

    sys.path.insert(0, str(ROOT / "tools"))
    import links

    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = table["project"]
    public, _, label = build["TORCH"].partition("+")
    kind = "the processor" if label in ("", "cpu") else f"CUDA {label.removeprefix('cu')}" if label.startswith("cu") else label
    project["dependencies"] = [f"torch=={public}", "numpy"]  # torch warns without numpy
    if build["PYARROW"]:
        project["dependencies"].append(f"pyarrow=={'.'.join(build['PYARROW'].split('.')[:2])}.*")
    project["version"] += f"+{label}" if label else ""
    text = links.index_text((ROOT / project["readme"]).read_text(), project.get("urls", {}).get("Repository", ""))
    project["readme"] = {"text": text, "content-type": "text/markdown"}
    project["description"] += f" (for torch {public}, {kind})"
    return pyproject_metadata.StandardMetadata.from_pyproject(table, ROOT, metadata_version="2.4")


def run(*words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"wheel: error: {' '.join(map(str, words))}\n{done.stdout}")
    return done.stdout


def put(source, target, search=()):
    """A copy; of a program or library one without debug information, which searches these folders beside the package."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    if search:
        run("strip", "--strip-unneeded", target)
        up = "/".join([".."] * len(target.parent.parts[target.parent.parts.index("tandem"):]))
        run("patchelf", "--set-rpath", ":".join(f"$ORIGIN/{up}/{folder}" for folder in search), target)


def carried_licenses(libraries, folder):
    """The notices of the Debian packages that these files are of."""
    wanted = {}
    for library in libraries:
        package = run("dpkg-query", "-S", f"*{library.removeprefix('/usr')}").split(":")[0].split(",")[0]  # its list may lack /usr
        notice = pathlib.Path("/usr/share/doc", package, "copyright").read_text(errors="replace")
        wanted[package] = notice
        for name in re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", notice):
            path = pathlib.Path("/usr/share/common-licenses", name)
            if path.exists():
                wanted[name] = path.read_text()
    folder.mkdir(parents=True)
    for name, text in wanted.items():
        (folder / name).write_text(text)


def needed(path):
    """The libraries that a file asks for, and their files here, with all that those need."""
    found = {}
    for line in run("ldd", path).splitlines():
        name, _, file = line.strip().partition(" => ")
        if file.startswith("/"):
            found[name] = os.path.realpath(file.split(" (")[0])
    return found


def search_of(files, own):
    """The folders `own`, and those of other wheels that hold what a program for a device needs. `files` are all libraries that it needs."""
    site = pathlib.Path(files["libtorch.so"]).parents[2]
    beside = [file for name, file in files.items() if any(fnmatch.fnmatch(name, other + ".so*") for other in OTHERS)]
    beside += [os.path.realpath(file) for name in LOADED for file in site.glob(f"nvidia/*/lib/{name}")]
    found = {os.path.dirname(os.path.relpath(file, site)) for file in beside if pathlib.Path(file).is_relative_to(site)}
    return (*own, *sorted(found.difference(own)))


def pack(build_folder, out, module):
    package = build_folder / "python/tandem"
    build = runpy.run_path(str(package / "_build.py"))
    data = metadata(build)
    python = re.search(r"cpython-(\d+)", module.name)[1]
    name = f"tandem-{data.version}"
    with tempfile.TemporaryDirectory(prefix="tandem_wheel_") as scratch:
        tree = pathlib.Path(scratch) / name
        for file in package.iterdir():
            if file.suffix in (".py", ".pyi", ".typed") or file.name == "py.typed":
                put(file, tree / "tandem" / file.name)
        (tree / "tandem/_build.py").write_text((package / "_build.py").read_text().replace("IS_WHEEL = False", "IS_WHEEL = True"))
        put(ROOT / "python/tandem_command.py", tree / "tandem_command.py")
        for file, target in ((module, module.name), (build_folder / "wheel/bin/tandem", "bin/tandem")):
            put(file, tree / "tandem" / target, search_of(needed(file), (TORCH_AT, "tandem")))
        if build["PYARROW"]:
            put(build_folder / "libtandem_parquet.so", tree / "tandem/libtandem_parquet.so", (ARROW_AT,))
        info = tree / f"{name}.dist-info"
        info.mkdir()
        (info / "METADATA").write_bytes(bytes(data.as_rfc822()))
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: tandem python/pack_wheel.py\nRoot-Is-Purelib: false\n"
                                    f"Tag: cp{python}-cp{python}-linux_{os.uname().machine}\n")
        (info / "entry_points.txt").write_text("[console_scripts]\ntandem = tandem_command:main\n")
        put(ROOT / "LICENSE", info / "licenses/LICENSE")
        for notice in sorted(ROOT.glob("third_party/*/LICENSE*")):
            put(notice, info / "licenses" / notice.relative_to(ROOT))
        theirs = {**needed(build_folder / "wheel/bin/tandem"), **needed(module)}
        ours = [file for file in theirs.values() if file.startswith(("/usr/lib/", "/lib/"))
                and not SYSTEM.match(os.path.basename(file))]
        carried_licenses(ours, info / "licenses/carried")
        plain = pathlib.Path(scratch) / "plain"
        plain.mkdir()
        run(sys.executable, "-m", "wheel", "pack", tree, "--dest-dir", plain)
        mended = pathlib.Path(scratch) / "mended"
        folders = ":".join(sorted({os.path.dirname(file) for file in theirs.values()}))
        os.environ["LD_LIBRARY_PATH"] = folders
        run(sys.executable, "-m", "auditwheel", "repair", "-w", mended, *(f"--exclude={o}.so*" for o in OTHERS), *plain.iterdir())
        wheel, = mended.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, out)
        print(out / wheel.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where to put the wheel")
    parser.add_argument("--module", type=pathlib.Path, required=True, help="_tandem.cpython-*.so")
    arguments = parser.parse_args()
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    pack(arguments.build, arguments.out, arguments.module)


if __name__ == "__main__":
    main()
