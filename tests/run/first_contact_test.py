#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/first_contact on fake devices: one page on which all is right; of a program that gets things wrong, a page that names each."""
import json
import pathlib
import subprocess
import sys
import tempfile

import run_folder as rf
from run_folder import said

SCRIPT = rf.ROOT / "scripts/first_contact"
CHECKS = [{"name": "kernel row.rope", "passed": True, "detail": "0.1"},
          {"name": "group: sums", "passed": False, "detail": "the sum is not it"},
          {"name": "group: copies", "passed": True, "detail": "2 devices"}]
# Has two devices, of which one adds wrongly, and whose runs end with exit code 3.
WRONG = f"""#!{sys.executable}
import json, sys
if sys.argv[1:] == ["--version"]:
    print("tandem 0.0.0")
elif sys.argv[1] == "doctor":
    proof = {{"checks": {CHECKS!r}}}
    print(json.dumps(proof if "--device" in sys.argv else {{"cpu": "x", "cores": 2, "devices": [], "c10d": ""}}))
    sys.exit("--device" in sys.argv)
else:
    print("tandem: error: rank 1: the device failed: it is lost", file=sys.stderr)
    sys.exit(3)
"""


def contact(*words, code):
    done = subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, encoding="utf-8", timeout=400, check=False)
    assert done.returncode == code, (words, done.returncode, done.stdout[-3000:], done.stderr[-2000:])
    return done


def check_page(program, scratch):
    out = scratch / "page.md"
    contact("--device", "fake", "--ranks", 2, "--tandem", program.tandem, "--out", out, code=0)
    page = out.read_text()
    for words in ("First contact: 2 devices, fake", "- group: sums: 2 devices", "- copy, device 0 to 1: ", "All is as it should be"):
        assert words in page, f"no `{words}` in:\n{page}"
    rows = [line for line in page.splitlines() if line.endswith("| right |")]
    layouts = [tuple(row.strip("| ").split(" | ")[:2]) for row in rows]
    assert layouts == [("dense", "dp2"), ("dense", "tp2"), ("experts", "dp2,ep2"), ("experts", "tp2,ep2")], layouts
    for private in (str(scratch), str(rf.ROOT), pathlib.Path.home().name + "@"):
        assert private not in page, f"`{private}` is nobody else's business:\n{page}"
    said("a page of two fake devices: they exchange what they should, and four layouts train as one device does")


def check_faults(scratch):
    program, out = scratch / "wrong", scratch / "faults.md"
    program.write_text(WRONG)
    program.chmod(0o755)
    contact("--device", "fake", "--tandem", program, "--python", "false", "--out", out, code=1)
    page = out.read_text()
    for words in ("**not right**: group: sums: the sum is not it", "- 2 of 3 checks are right", "not measured: false has no torch",
                  "**not right**: training: exit code 3: tandem: error: rank 1: the device failed: it is lost", "2 things are not right"):
        assert words in page, f"no `{words}` in:\n{page}"
    said("what is not right is named, and the rest of the page is there")


def check_refusals(program, scratch):
    for words, told in ((("--ranks", 1), "2 to 8"), (("--ranks", 9), "2 to 8"), (("--ranks", 3), "2, 4 or 8"),
                        (("--tandem", scratch / "nothing"), "scripts/device program")):
        assert told in contact("--device", "fake", "--tandem", program.tandem, *words, code=2).stderr
    if not json.loads(program.done(["doctor", "--json"]).stdout)["devices"]:
        assert "--device fake" in contact("--tandem", program.tandem, code=2).stderr
    said("too few devices, and numbers that do not divide the models, are refused")


def main():
    program = rf.built_program(fake=True)
    with tempfile.TemporaryDirectory(prefix="tandem_first_contact_") as name:
        scratch = pathlib.Path(name)
        check_refusals(program, scratch)
        check_faults(scratch)
        check_page(program, scratch)


if __name__ == "__main__":
    main()
