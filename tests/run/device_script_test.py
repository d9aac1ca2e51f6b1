#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/device: what its archive holds, and that what a machine lacks ends it with one line that says what would be right. Nothing
is built: the script stands in a folder of its own."""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile

import run_folder as rf
from run_folder import said

PLAIN = "bash dirname sed cut cat mkdir rm flock cksum tar gzip uname getconf sort head tail nproc".split()


class Copy:
    """The script alone, as on another machine, with the programs that are named and no others."""

    def __init__(self, folder):
        self.root, self.bin, self.python = folder / "copy", folder / "bin", folder / "python"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("device", "quietly"):
            shutil.copy2(rf.ROOT / "scripts" / name, self.root / "scripts")
        self.bin.mkdir()
        self.have(*PLAIN)
        self.python.write_text("#!/bin/sh\ncat >/dev/null\nprintf '%s\\n' " + f"{self.python} {folder}/torch 2.99.0\n")
        self.python.chmod(0o755)

    def have(self, *names):
        for name in names:
            (self.bin / name).symlink_to(shutil.which(name))

    def have_a(self, name, script):
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def run(self, *arguments):
        environment, script = {"PATH": str(self.bin), "HOME": str(self.root)}, self.root / "scripts/device"
        return subprocess.run([script, *arguments], env=environment, capture_output=True, encoding="utf-8", timeout=60)

    def refuses(self, words, *arguments):
        out = self.run(*arguments)
        errors = [line for line in out.stderr.splitlines() if line.startswith("device: error: ")]
        assert out.returncode == 2 and len(errors) == 1 and out.stderr.splitlines()[-1] == errors[0], (out.returncode, out.stderr)
        assert re.fullmatch(r"device: error: .+: .+ \(.+\)", errors[0]) and words in errors[0], f"{errors[0]}\nhas not: {words}"


def pack(file):
    out = subprocess.run([rf.ROOT / "scripts/device", "pack", file], capture_output=True, encoding="utf-8", timeout=120)
    assert out.returncode == 0, out.stderr
    return out.stderr


def check_archive(folder):
    """Holds what is compiled against, and each library that a library in it needs, but for the compiler's and the C library."""
    file, again = folder / "one.tar.gz", folder / "two.tar.gz"
    pack(file)
    with tarfile.open(file) as archive:
        names = {name.removeprefix("./") for name in archive.getnames()}
        archive.extractall(folder / "carried", filter="fully_trusted")
    for header in ("sqlite3.h", "yaml-cpp/yaml.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "pcre2.h", "utf8proc.h", "httplib.h", "zmq.h",
                   "zmq.hpp", "openssl/ssl.h", "openssl/opensslconf.h", "brotli/decode.h", "zlib.h", "gtest/gtest.h"):
        assert f"include/{header}" in names, f"no {header}"
    libraries = {pathlib.Path(name).name: folder / "carried" / name for name in names if name.startswith("lib/") and ".so" in name}
    missing = set()
    for path in libraries.values():
        assert path.exists(), f"{path}: a link to nothing"
        dynamic = subprocess.run(["objdump", "-p", path], capture_output=True, encoding="utf-8", check=True).stdout
        missing |= set(re.findall(r"NEEDED +(\S+)", dynamic)) - libraries.keys()
    everywhere = re.compile(r"(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|ld-linux[\w-]*)\.so")
    missing = {name for name in missing if not everywhere.match(name)}
    assert not missing, f"needed and not carried: {missing}"
    for page in (folder / "carried/pc").iterdir():
        assert "prefix=${pcfiledir}/..\n" in page.read_text() and "private" not in page.read_text(), page.read_text()
    assert file.stat().st_size < 15e6, file.stat().st_size
    pack(again)
    assert file.read_bytes() == again.read_bytes(), "the same packages make another archive"
    said(f"pack: {len(names)} files, {file.stat().st_size / 1e6:.1f} MB, {len(libraries)} names of libraries, the same bytes twice")
    return file


def check_words(copy):
    copy.refuses("--device gpu", "--device", "gpu")
    copy.refuses("--python", "--python")
    copy.refuses("no such command", "doctor")
    copy.refuses("has no dpkg", "pack")
    assert "usage: scripts/device pack" in copy.run("--help").stdout and "usage: scripts/device pack" in copy.run("pack", "--help").stdout
    said("scripts/device refuses words that it does not know")


def check_tools(copy):
    """Each that is missing is named, in the order in which they are looked for."""
    copy.refuses("no Python has it")
    copy.have_a("snake", "exit 1")
    copy.refuses("has no torch", "--python", "snake")
    ours = ("--python", str(copy.python))
    copy.refuses("a C++ compiler", *ours)
    copy.have_a("c++", "exit 1")
    copy.refuses("does not compile C++20", *ours)
    copy.have_a("c++", "exit 0")
    copy.refuses("CMake: none that starts", *ours)
    copy.have_a("cmake", "echo cmake version 3.22.1")
    copy.refuses("CMake 3.22.1: too old", *ours)
    copy.have_a("cmake", 'case $1 in --version) echo cmake version 3.25.0 ;; *) echo "cmake $*"; exit 1 ;; esac')
    copy.refuses("Ninja and Make", *ours)
    copy.have_a("make", "exit 0")
    copy.refuses("pkg-config", *ours)
    copy.have_a("pkg-config", "exit 0")
    out = copy.run(*ours)
    assert out.returncode == 2 and "-DTANDEM_CUDA=AUTO" in out.stderr and "-DSQLite3_LIBRARY" not in out.stderr, out.stderr
    assert "scripts/device pack on another machine" in out.stderr.splitlines()[-1], out.stderr
    said("scripts/device names each tool that is missing")


def check_carried(copy, folder, file):
    ours = ("--python", str(copy.python))
    target = copy.root / "build/tandem-carried.tar.gz"
    target.write_bytes(file.read_bytes()[:10000])
    copy.refuses("not a whole archive", *ours)
    shutil.copy(file, target)
    out = copy.run(*ours)
    assert out.returncode == 2 and f"-DSQLite3_LIBRARY={copy.root}/build/carried/lib/" in out.stderr, out.stderr
    for wrong, words in ((f"{platform.machine()} 9.99", "needs glibc 9.99"), ("riscv64 2.36", "is for riscv64")):
        kept = folder / "carried/made_for"
        kept.write_text(wrong + "\n")
        with tarfile.open(target, "w:gz", compresslevel=1) as archive:
            for path in sorted((folder / "carried").iterdir()):
                archive.add(path, path.name)
        copy.refuses(words, *ours)
    said("scripts/device takes what the archive carries, and no archive of another kind of machine")


def main():
    if not shutil.which("dpkg-query") or not shutil.which("objdump"):
        rf.skip("scripts/device pack reads the packages of Debian or Ubuntu")
    with tempfile.TemporaryDirectory(prefix="tandem_device_") as name:
        folder = pathlib.Path(name)
        copy = Copy(folder)
        check_words(copy)
        check_tools(copy)
        check_carried(copy, folder, check_archive(folder))


if __name__ == "__main__":
    main()
