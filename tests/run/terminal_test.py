# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows: one live line inside a step, plain lines above it, no trace of it in logs and pipes; set-up that is quiet unless
it fails. A pseudo-terminal stands for the terminal."""
import fcntl
import importlib.util
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
import xml.etree.ElementTree

import run_folder as rf

checks = rf.Checks()
program = rf.built_program()
CLEAR = "\r\x1b[K"


def in_terminal(command, columns=100, seconds=240, **options):
    """Runs to its end with standard error on a terminal. Returns (exit code, all that it wrote)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **options.pop("env", {})}
    process = subprocess.Popen([str(word) for word in command], stderr=theirs, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                               env=environment, **options)
    os.close(theirs)
    text, deadline = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                part = os.read(ours, 1 << 16)
                if not part:
                    break
                text += part
            elif process.poll() is not None:
                break
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
        if process.poll() is None and time.monotonic() >= deadline:
            process.kill()
    return process.wait(timeout=30), text.decode().replace("\r\n", "\n")


def screen(text):
    """The lines that are left, and what stood in the live line on the way."""
    lines, live = [], []
    for line in text.split("\n"):
        parts = line.split(CLEAR)
        lines.append(parts[-1])
        live += [part for part in parts[1:-1] if part] if len(parts) > 1 else []
        if parts[0] and len(parts) > 1:
            live.append(parts[0])
    return lines, live


def run_of(root, name, more=()):
    return ["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/{name}", *more,
            *rf.sets({**rf.TINY, "supervised.steps": 0, "run.steps": 3, "algo.kl_coef": 0, "rollout.max_new_tokens": 40,
                      "schedule.groups_per_step": 32, "schedule.group_size": 16, "rollout.max_running": 24})]


# So large that generating a batch takes longer than the 0.1 s between two drawings, on any machine.
SLOW = {"model.init_hidden": 256, "model.init_layers": 8, "model.init_intermediate": 512}


def live_line(root):
    code, text = in_terminal([program.tandem, *run_of(root, "terminal", ["--no-eval"]), *rf.sets(SLOW)])
    lines, live = screen(text)
    checks.check(code == 0, text[-2000:])
    checks.check(len(live) > 3 and all(re.match(r"step \d+/3  [a-z_]+", line) for line in live), f"{live[:20]}: a live line for each stage")
    checks.check(any(re.match(r"step \d/3  rollout  \d+/512 samples.*\d+ tokens  [\d.]+ s", line) for line in live),
                 f"{live}: samples done and tokens")
    done = [int(line.split("/512 samples")[0].split()[-1]) for line in live if "/512 samples" in line]
    checks.check(any(0 < number < 512 for number in done), f"{done}: they rise while the batch is generated")
    checks.check(any("  left " in line for line in live), f"{live}: the time left, from the second step on")
    steps = [line for line in lines if line.startswith("step ")]
    checks.check([line.split()[1] for line in steps] == ["1/3", "2/3", "3/3"] and all(" tok/s" in line for line in steps),
                 f"{steps}: a plain line per step stays")
    checks.check("== training: step 1 to 3" in lines and any(line.startswith("== result: 3 steps") for line in lines), f"{lines}: headings")
    checks.check("\x1b" not in "\n".join(lines) and lines[-1] == "", f"{lines[-3:]}: nothing of the live line is left")
    log = pathlib.Path(root, "terminal/log.txt").read_text()
    checks.check("\x1b" not in log and "\r" not in log and " step 3/3" in log and "samples" not in log, "log.txt has plain lines alone")


def supervised(root):
    """`tandem sft` has the headings and the live line of a run. Problems are so many that the line's thread has time to draw."""
    command = run_of(root, "sft")
    settings = rf.sets({"supervised.steps": 60, "supervised.batch_size": 8, "eval.every_steps": 30, "supervised.stop_at_accuracy": 1,
                        "supervised.accuracy_every_steps": 20, "supervised.accuracy_problems": 800, "reward.rule": "exact",
                        "data.synthetic_eval_rows": 400})
    code, text = in_terminal([program.tandem, "sft", *command[1:], *settings])
    lines, live = screen(text)
    checks.check(code == 0, text[-2000:])
    for wanted in (r"supervised step \d+/60  [\d.]+ s", r"supervised step \d+/60  evaluation of 400 problems",
                   r"supervised step \d+/60  accuracy on 800 problems", r"supervised step \d+/60 .*  left \d+s"):
        checks.check(any(re.match(wanted, line) for line in live), f"{wanted}: {live[:40]}")
    for wanted in ("== evaluation before training: 400 problems", "== training: supervised step 1 to 60"):
        checks.check(wanted in lines, f"{wanted}: {lines}")
    checks.check(any(line.startswith("== result: 60 steps") for line in lines) and "\x1b" not in "\n".join(lines), f"{lines[-12:]}")


def narrow(root):
    """A line that reached the last column would wrap, and stay."""
    code, text = in_terminal([program.tandem, *run_of(root, "narrow", ["--no-eval"])], columns=20)
    _, live = screen(text)
    checks.check(code == 0 and live and max(map(len, live)) <= 19, f"{live}: cut to the terminal")


def plain(root):
    out = program.done(run_of(root, "pipe", ["--no-eval"]))
    checks.check("\x1b" not in out.stderr and "\r" not in out.stderr and "samples  " not in out.stderr, "a pipe has plain lines alone")
    code, text = in_terminal([program.tandem, *run_of(root, "dumb", ["--no-eval"])], env={"TERM": "dumb"})
    checks.check(code == 0 and "\x1b" not in text, "a terminal that cannot go back has them, too")


def pictures(root):
    """scripts/pictures.py draws what the terminal shows; the page needs a browser and is left to scripts/check_board."""
    run, out = pathlib.Path(root, "pipe"), pathlib.Path(root, "pictures")
    command = [sys.executable, rf.ROOT / "scripts/pictures.py", run, "--program", program.tandem, "--out", out]
    told = subprocess.run([*command[:2], f"{root}/absent"], capture_output=True, encoding="utf-8", timeout=60)
    checks.check(told.returncode == 1 and "is no run folder" in told.stderr and "scripts/quickstart" in told.stderr, told.stderr)
    if not importlib.util.find_spec("pyte"):
        print("not done: pictures, for lack of pyte (scripts/setup pyte)")
        return
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    template = pathlib.Path(root, "chat.jinja")
    template.write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    talk = ["--model", run / "init/hf", "--chat-template", template, "--ask", "1+2=", "--ask", "9 - 4 ?"]
    made = subprocess.run([*command, "--only", "top,talk", *talk], capture_output=True, encoding="utf-8", timeout=120)
    checks.check(made.returncode == 0 and made.stdout.count(" KB\n") == 2, made.stderr + made.stdout)
    for name, wanted in (("top", ("$ tandem top ", "step 3/3", "rank 0", "tokens/s")),
                         ("talk", ("$ tandem talk --model ", "&gt; 1+2=", "&gt; 9 - 4 ?"))):
        text = (out / f"{name}.svg").read_text()
        xml.etree.ElementTree.fromstring(text)
        checks.check(all(part in text for part in wanted) and len(text) < 60000, f"{name}: {text}")
    checks.check(before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}, "the run folder is as it was")


def refused(root):
    """An error in the middle of a step stands in a line of its own."""
    (pathlib.Path(root) / "fails.py").write_text("def score(prompts, completions):\n    if 'made-up' not in ''.join(completions):\n"
                                                 "        raise ValueError('not today')\n    return [0.0 for c in completions]\n")
    settings = ["--no-eval", "--set", "reward.rule=", "--set", f"reward.python={root}/fails.py:score"]
    command = [program.tandem, *run_of(root, "refused")]
    code, text = in_terminal([*command, *settings])
    lines, _ = screen(text)
    errors = [line for line in lines if line.startswith("tandem: error: ")]
    checks.check(code == 2 and len(errors) == 1 and "ValueError: not today" in errors[0], f"{lines[-5:]}")


def quietly(root):
    log = pathlib.Path(root, "logs/some.log")
    noisy = "for i in 1 2 3; do echo line $i; echo also $i >&2; sleep 0.4; done"
    command = [rf.ROOT / "scripts/quietly", "build", log]
    code, text = in_terminal([*command, "bash", "-c", noisy])
    lines, live = screen(text)
    checks.check(code == 0 and len(lines) == 2 and re.fullmatch(r"build: \d+ s", lines[0]), f"{lines}: one line is left")
    checks.check(any(re.search("also [123]", line) for line in live), f"{live}: the live line has what was printed last")
    checks.check(log.read_text().count("line") == 3 and log.read_text().count("also") == 3, "the file has all")
    out = subprocess.run([*command, "bash", "-c", noisy], capture_output=True, encoding="utf-8", timeout=60)
    checks.check(out.returncode == 0 and re.fullmatch(r"build: \d+ s\n", out.stderr) and not out.stdout, f"{out.stderr!r}: into a pipe")
    for failing, code in (("echo the cause; exit 7", 7), ("echo the cause; kill -9 $$", 137)):
        out = subprocess.run([*command, "bash", "-c", failing], capture_output=True, encoding="utf-8", timeout=60)
        checks.check(out.returncode == code and "the cause" in out.stderr and str(log) in out.stderr, f"{out.returncode}: {out.stderr}")
        status, text = in_terminal([*command, "bash", "-c", failing])
        checks.check(status == code and "the cause" in screen(text)[0], f"{status}: {text!r}")


def quickstart(root):
    """With stubs for what takes long: headings, and nothing of what they print."""
    place = pathlib.Path(root, "clone")
    (place / "scripts").mkdir(parents=True)
    (place / "build/release").mkdir(parents=True)
    for name in ("quickstart", "quietly"):
        shutil.copy(rf.ROOT / "scripts" / name, place / "scripts" / name)

    def stub(path, text):
        (place / path).write_text(f"#!/bin/sh\n{text}\n")
        (place / path).chmod(0o755)

    stub("scripts/setup", "exit 0")
    stub("scripts/build", "echo '[1/2] Building noise'; echo '-- Configuring noise' >&2")
    stub("build/release/tandem", "echo ran \"$@\" >&2")
    out = subprocess.run([place / "scripts/quickstart", "--steps", "3"], capture_output=True, encoding="utf-8", timeout=60)
    checks.check(out.returncode == 0 and "noise" not in out.stderr + out.stdout, out.stderr + out.stdout)
    told = (r"== set-up\n== build \(.*quickstart_build.log\)\nbuild: \d+ s\n== run .*\n.*real_model.md.*\n"
            r"ran run configs/quickstart.yaml --steps 3\n$")
    checks.check(re.search(told, out.stderr), out.stderr)
    (place / "runs/quickstart").mkdir(parents=True)
    for given, told in (([], "--overwrite"), (["--resume"], "--resume"), (["--steps", "3"], "--overwrite --steps 3")):
        out = subprocess.run([place / "scripts/quickstart", *given], capture_output=True, encoding="utf-8", timeout=60)
        checks.check(out.stderr.endswith(f"\nran run configs/quickstart.yaml {told}\n"), f"beside an earlier run: {out.stderr}")
    out = subprocess.run([place / "scripts/quickstart", "--help"], capture_output=True, encoding="utf-8", timeout=60)
    checks.check(out.returncode == 0 and "aside_N" in out.stdout and not out.stderr, "help builds nothing")
    stub("scripts/build", "echo 'error: no such header'; exit 1")
    out = subprocess.run([place / "scripts/quickstart"], capture_output=True, encoding="utf-8", timeout=60)
    checks.check(out.returncode == 1 and "error: no such header" in out.stderr and "ran" not in out.stderr, "a failure is shown, the end")
    stub("scripts/setup", "echo 'no network' >&2; exit 4")
    out = subprocess.run([place / "scripts/quickstart"], capture_output=True, encoding="utf-8", timeout=60)
    checks.check(out.returncode == 4 and "no network" in out.stderr and "== build" not in out.stderr, out.stderr)


with tempfile.TemporaryDirectory(prefix="tandem_terminal_") as root:
    quietly(root)
    quickstart(root)
    live_line(root)
    supervised(root)
    narrow(root)
    plain(root)
    pictures(root)
    refused(root)
checks.exit()
