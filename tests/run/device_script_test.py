#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/device: what its archive holds, which program it takes from it, and that what a machine lacks ends it with one line that says
what would be right. Nothing of Tandem is built: the script stands in a folder of its own."""
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

PLAIN = "bash dirname sed cut cat mkdir rm ln ls tr find xargs flock cksum tar gzip uname getconf sort head tail nproc".split()
MOST_ARCHIVE, MOST_TRAVELS = 48 << 20, 60 << 20
PROGRAM = """#include <cstdio>
__asm__(".section .rodata\\n.incbin \\"{blob}\\"\\n.text");
int main() {{ std::puts("tandem 9.9.9, libtorch 2.99.0"); return {code}; }}
"""


class Copy:
    """The script alone, as on another machine, with the programs that are named and no others."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.root, self.bin, self.python = folder / "copy", folder / "bin", folder / "python"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("device", "quietly"):
            shutil.copy2(rf.ROOT / "scripts" / name, self.root / "scripts")
        for name in ("cmake", "src", "third_party"):
            (self.root / name).mkdir()
            (self.root / name / "text").write_text(name)
        (self.root / "CMakeLists.txt").write_text("# empty\n")
        self.bin.mkdir()
        self.have(*PLAIN)
        self.has_torch("2.99.0")

    def has_torch(self, version):
        (self.python.parent / "torch").mkdir(exist_ok=True)
        self.python.write_text("#!/bin/sh\ncat >/dev/null\nprintf '%s\\n' " + f"{self.python} {self.python.parent}/torch {version}\n")
        self.python.chmod(0o755)

    def have(self, *names):
        for name in names:
            (self.bin / name).symlink_to(shutil.which(name))

    def have_a(self, name, script):
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def run(self, *arguments, path=""):
        environment, script = {"PATH": str(self.bin) + path, "HOME": str(self.root)}, self.root / "scripts/device"
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
    copy.refuses("one FILE at most", "pack", "a", "b")
    copy.refuses("--program", "pack", "--program")
    copy.refuses("takes --python alone", "program", "--json")
    assert "usage: scripts/device pack" in copy.run("--help").stdout and "pack [--program TORCH]" in copy.run("pack", "--help").stdout
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


def packed_with_program(folder, code=0, blob=b""):
    """An archive with a program for torch 2.99.0, of a stand-in for CMake that copies one. Returns the process and the file."""
    copy, file = Copy(folder), folder / "carried.tar.gz"
    (copy.root / ".venv").mkdir()  # as behind scripts/setup
    (folder / "blob").write_bytes(blob)
    (folder / "program.cpp").write_text(PROGRAM.format(blob=folder / "blob", code=code))
    subprocess.run(["g++", "-g", "-o", folder / "program", folder / "program.cpp"], check=True, timeout=120)
    copy.have_a("cmake", f'case $1 in --version) echo cmake version 3.25.0 ;; --build) cp {folder}/program "$2/tandem-bench" ;; '
                         '*) for word; do case $word in build/pack/*) mkdir -p "$word" ;; esac; done ;; esac')
    copy.have_a("ninja", "exit 0")
    return copy.run("pack", "--program", str(copy.python), str(file), path=":" + os.environ["PATH"]), file


def check_programs(scratch):
    out, file = packed_with_program(scratch / "packs")
    assert out.returncode == 0 and "the program for torch 2.99.0: " in out.stderr, out.stderr
    with tarfile.open(file) as archive:
        program = archive.extractfile("./program/2.99.0/tandem").read()
    assert b"debug_info" not in program and program[:4] == b"\x7fELF", "it is stripped"
    there = Copy(scratch / "there")
    (there.root / "build").mkdir()
    shutil.copy(file, there.root / "build/tandem-carried.tar.gz")
    asks = ("program", "--python", str(there.python))
    brought = there.run(*asks)
    assert brought.returncode == 0 and "the program is that of build/tandem-carried.tar.gz: tandem 9.9.9" in brought.stderr, brought.stderr
    assert subprocess.run([brought.stdout.strip()], capture_output=True, check=True).stdout.startswith(b"tandem 9.9.9")
    said("scripts/device takes the program that the archive has for the machine's torch, and needs no compiler for it")

    def builds(why):
        done = there.run(*asks)
        assert done.returncode == 2 and f"device: builds here: {why}" in done.stderr and "a C++ compiler" in done.stderr, done.stderr

    there.has_torch("2.98.0")
    builds("the archive has no program for torch 2.98.0, but for 2.99.0")
    there.has_torch("2.99.0")
    (there.root / "src/text").write_text("another")
    builds("the sources in this folder are not those of the carried program")
    (there.root / "src/text").write_text("src")
    assert there.run(*asks).returncode == 0
    out, file = packed_with_program(scratch / "broken", code=1)
    assert out.returncode == 0, out.stderr
    shutil.copy(file, there.root / "build/tandem-carried.tar.gz")
    builds("the carried program does not start")
    said("of other sources, for another torch, or where the program does not start, it builds")


def check_size(scratch):
    out, file = packed_with_program(scratch / "large", blob=os.urandom(MOST_ARCHIVE))
    assert out.returncode == 2 and f"more than {MOST_ARCHIVE}" in out.stderr and not file.exists(), out.stderr
    if not (rf.ROOT / ".git").exists():
        return said("an archive above 48 MiB is refused")
    names = subprocess.run(["git", "-C", rf.ROOT, "ls-files", "-z"], capture_output=True, encoding="utf-8", check=True).stdout.split("\0")
    tracked = sum((rf.ROOT / name).lstat().st_size for name in names if name and os.path.lexists(rf.ROOT / name))
    assert tracked + MOST_ARCHIVE < MOST_TRAVELS, f"{tracked} bytes are tracked"
    return said(f"an archive above 48 MiB is refused; the largest and {tracked / 1e6:.1f} MB of tracked files stay under 60 MiB")


def main():
    if not shutil.which("dpkg-query") or not shutil.which("objdump"):
        rf.skip("scripts/device pack reads the packages of Debian or Ubuntu")
    with tempfile.TemporaryDirectory(prefix="tandem_device_") as name:
        folder = pathlib.Path(name)
        copy = Copy(folder)
        check_words(copy)
        check_tools(copy)
        check_carried(copy, folder, check_archive(folder))
        check_programs(folder)
        check_size(folder)


if __name__ == "__main__":
    main()
