# SPDX-License-Identifier: Apache-2.0
"""Starts the built program and reads what a run leaves in its folder: what the tests of tests/run and tests/ranks share."""
import argparse
import array
import contextlib
import json
import os
import pathlib
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
KERNELS = os.environ.get("TANDEM_TEST_KERNELS")  # what every run and command of a test computes by, in place of our own kernels
DEVICE = os.environ.get("TANDEM_TEST_DEVICE")    # where, in place of the processor
CLOCKED = ("time/", "throughput/", "memory/", "switch/", "idle/")  # metrics that runs share only with the same clock, memory and ranks

# The quickstart's shape, shrunk: a random model, a reward that gives a random model signal.
TINY = {
    "model.init_hidden": 32, "model.init_layers": 2, "model.init_heads": 2, "model.init_kv_heads": 1, "model.init_intermediate": 64,
    "data.train": "synthetic", "data.eval": "synthetic", "data.digits": 2, "data.synthetic_eval_rows": 20,
    "reward.rule": "regex", "reward.pattern": "[0-4]", "schedule.groups_per_step": 4, "schedule.group_size": 4,
    "rollout.max_new_tokens": 6, "eval.max_new_tokens": 6, "eval.every_steps": 4, "checkpoint.every_steps": 2, "run.steps": 12,
    "run.parity": "true", "train.lr": 1e-3, "algo.kl_coef": 0.001, "parallel.threads": 1,
}


def said(text, begin=time.monotonic()):
    """What holds, and the seconds since the test began."""
    print(f"ok  {time.monotonic() - begin:6.1f} s  {text}", flush=True)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def built_program(fake=False):
    """The program of --build, for a test with no other argument of its own than flags. fake: the one with fake devices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    return Program(parser.parse_known_args()[0].build, fake)


def mpi(ranks):
    """What stands before the program to run it on that many processes."""
    return [str(ROOT / "scripts/mpi"), "-n", str(ranks)]


def sets(settings):
    """Options of a recipe as arguments."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def tiny_recipe(path, **changed):
    """Writes the recipe; keys of `changed` have __ for the dot."""
    options = dict(TINY, **{name.replace("__", "."): value for name, value in changed.items()})
    lines, sections = [], {}
    for name, value in options.items():
        section, key = name.split(".", 1)
        sections.setdefault(section, []).append(f"  {key}: {json.dumps(value) if value != 'true' else 'true'}")
    for section, entries in sections.items():
        lines += [f"{section}:"] + entries
    pathlib.Path(path).write_text("\n".join(lines) + "\n")
    return str(path)


def with_kernels(arguments):
    """The arguments, by the kernels and on the device that TANDEM_TEST_KERNELS and TANDEM_TEST_DEVICE name."""
    words = [str(a) for a in arguments]
    if words and words[0] == "run":
        return [*words, *sets({name: value for name, value in (("run.kernels", KERNELS), ("run.device", DEVICE)) if value})]
    if words and words[0] in ("generate", "logprobs", "talk", "eval"):
        return [*words, *(("--kernels", KERNELS) if KERNELS else ()), *(("--device", DEVICE) if DEVICE else ())]
    return words


class Program:
    """The built program, or that with fake devices. `launcher` stands before it, such as scripts/mpi -n 2."""

    def __init__(self, build, fake=False):
        self.tandem = str(pathlib.Path(build) / ("tandem-fake" if fake or DEVICE == "fake" else "tandem"))
        self.oracle = str(pathlib.Path(build) / "tandem-oracle")

    def start(self, arguments, launcher=(), **options):
        command = [*launcher, self.tandem, *with_kernels(arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, encoding="utf-8",
                                **options)

    def run(self, arguments, stdin="", launcher=(), timeout=120, **options):
        command = [*launcher, self.tandem, *with_kernels(arguments)]
        return subprocess.run(command, input=stdin, capture_output=True, encoding="utf-8", timeout=timeout, **options)

    def done(self, arguments, **options):
        """Runs to exit code 0."""
        out = self.run(arguments, **options)
        assert out.returncode == 0, f"{arguments}: exit code {out.returncode}\n{out.stderr[-3000:]}"
        return out

    def quickstart(self, folder, settings, flags=(), launcher=()):
        """Runs configs/quickstart.yaml with these options to its end. Returns the seconds it took."""
        begin = time.monotonic()
        recipe = ROOT / "configs/quickstart.yaml"
        self.done(["run", recipe, "--run-dir", folder, *flags, *sets(settings)], launcher=launcher, timeout=300)
        return time.monotonic() - begin

    def refused(self, arguments, code, *parts, **options):
        """Runs to that exit code; the one error line has every part in this order. Returns that line."""
        out = self.run(arguments, **options)
        lines = [line for line in out.stderr.splitlines() if line.startswith("tandem: error: ")]
        assert out.returncode == code, f"exit code {out.returncode}, not {code}:\n{out.stderr[-3000:]}"
        assert len(lines) == 1, f"{len(lines)} error lines:\n{out.stderr[-3000:]}"
        at = 0
        for part in parts:
            at = lines[0].find(part, at)
            assert at >= 0, f"no `{part}` in: {lines[0]}"
        return lines[0]


def end(process, number=signal.SIGKILL):
    """Signals a process that this test started, unless it has ended. Returns (exit code, stderr)."""
    if process.poll() is None:
        os.kill(process.pid, number)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def children_of(pid):
    """Process ids of those that a process has started and that live."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == pid and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
    return found


def environment_of(pid):
    """The bytes of what it was started with; none if it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def wait_until(condition, seconds, what):
    """Polls until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def wait_for(condition, process, seconds=60):
    """Polls until `condition` holds or the process ends. False if it ended first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)
    return True


def whole_lines(path):
    """The JSON lines of a file that somebody may be writing: a last one without its end is not there yet, nor is a file that is none."""
    path = pathlib.Path(path)
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")] if path.exists() else []


def all_metrics(folder):
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]


def metrics(folder):
    """The lines of metrics.jsonl, without what depends on the clock."""
    return [{k: v for k, v in line.items() if not k.startswith(CLOCKED)} for line in all_metrics(folder)]


def rows(folder, query):
    with contextlib.closing(sqlite3.connect(f"file:{folder}/samples.sqlite?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()


def samples(folder, columns="*"):
    return rows(folder, f"SELECT {columns} FROM samples ORDER BY step, group_id, sample_index")


def token_versions(runs):
    """Of each token, from a column `versions` of samples."""
    pairs = memoryview(runs).cast("q")
    return [version for version, count in zip(pairs[::2], pairs[1::2]) for _ in range(count)]


def evals(folder):
    return rows(folder, "SELECT step, row, prompt, answer, response, score FROM evals ORDER BY step, row, rowid")


def committed_steps(folder):
    return sorted(int(p.name[5:]) for p in pathlib.Path(folder, "checkpoint").glob("step_*")
                  if p.name[5:].isdigit() and (p / "manifest.json").exists())


def _crc32c_table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


_TABLE = _crc32c_table()


def _masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(data, at):
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _step_of_event(event):
    """Field 2 of an Event; 0 if absent."""
    at, step = 0, 0
    while at < len(event):
        key, at = _varint(event, at)
        if key & 7 == 0:
            value, at = _varint(event, at)
            step = value if key >> 3 == 2 else step
        elif key & 7 == 1:
            at += 8
        elif key & 7 == 5:
            at += 4
        else:
            length, at = _varint(event, at)
            at += length
    return step


def tensorboard_steps(folder):
    """Steps of the records of the event files, in order; both checksums of each record are verified."""
    files = sorted(pathlib.Path(folder, "tensorboard").glob("events.*"))
    assert len(files) == 1, files
    data, at, steps = files[0].read_bytes(), 0, []
    while at < len(data):
        head = data[at:at + 8]
        length = struct.unpack("<Q", head)[0]
        assert struct.unpack("<I", data[at + 8:at + 12])[0] == _masked_crc(head), "checksum of a length"
        event = data[at + 12:at + 12 + length]
        assert len(event) == length and struct.unpack("<I", data[at + 12 + length:at + 16 + length])[0] == _masked_crc(event), "a record"
        steps.append(_step_of_event(event))
        at += 16 + length
    return [s for s in steps if s > 0]


def trace_steps(folder):
    trace = json.loads(pathlib.Path(folder, "trace.json").read_text())
    return [int(e["name"][5:]) for e in trace["traceEvents"] if e.get("ph") == "i" and e["name"].startswith("step ")]


def summary(folder):
    whole = json.loads(pathlib.Path(folder, "summary.json").read_text())
    return {k: v for k, v in whole.items() if k != "seconds"}


def check_whole(folder, steps):
    """What any finished run must be, however often it was interrupted: each step once, in order, in every file."""
    wanted = list(range(1, steps + 1))
    assert [line["step"] for line in metrics(folder)] == wanted, [line["step"] for line in metrics(folder)]
    assert [s for (s,) in rows(folder, "SELECT DISTINCT step FROM samples ORDER BY step")] == wanted
    assert tensorboard_steps(folder) == wanted, tensorboard_steps(folder)
    assert trace_steps(folder) == wanted, trace_steps(folder)
    twice = rows(folder, "SELECT sample_id FROM samples GROUP BY sample_id HAVING count(*) > 1")
    assert not twice, f"trained twice: {twice[:5]}"
    assert os.readlink(f"{folder}/checkpoint/latest") == f"step_{steps}"


def weights(folder):
    """Of the last checkpoint, by role: the bytes."""
    roles = {"actor": "checkpoint/latest/hf/model.safetensors", "critic": "checkpoint/latest/critic/hf/model.safetensors"}
    return {role: (pathlib.Path(folder) / path).read_bytes() for role, path in roles.items() if (pathlib.Path(folder) / path).exists()}


def check_equal(folder, other, what, but=()):
    """Bit for bit the same history; of the metrics, all `but` some."""
    for left, right in zip(metrics(folder), metrics(other), strict=True):
        different = {k: (left.get(k), right.get(k)) for k in left.keys() | right.keys()
                     if left.get(k) != right.get(k) and k not in but}
        assert not different, f"{what}: metrics of step {left['step']}: {different}"
    assert samples(folder) == samples(other), f"{what}: samples"
    assert evals(folder) == evals(other), f"{what}: answers of evaluations"
    assert summary(folder) == summary(other), f"{what}: {summary(folder)} {summary(other)}"
    left, right = weights(folder), weights(other)
    assert left.keys() == right.keys(), f"{what}: weights of {left.keys()}, {right.keys()}"
    assert left == right, f"{what}: the weights"


def check_journal(folder):
    """Of a run with workers: in the history that survived, controller.jsonl and samples.sqlite agree about what each step trained."""
    steps, taken = {}, set()
    for line in (pathlib.Path(folder) / "controller.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "opened" in entry:
            steps = {step: groups for step, groups in steps.items() if step <= entry["version"]}
            taken = set()
        if "taken" in entry:
            taken.add(entry["taken"])
        if "given_back" in entry:
            taken = set()
        if "committed" in entry:
            steps[entry["committed"]], taken = taken, set()
    trained = {}
    for step, group in samples(folder, "step, group_id"):
        trained.setdefault(step, set()).add(group)
    assert steps == trained, f"the journal says {steps}, and trained were {trained}"
    assert sum(map(len, steps.values())) == len(set().union(*steps.values())), "a group was trained twice"


def floats(blob):
    """A column of fp32 numbers."""
    values = array.array("f")
    values.frombytes(blob)
    return values


class Checks:
    """For tests that go on after a failed check: counts them. A test without a check fails, too."""

    def __init__(self):
        self.failed, self.passed = [], 0

    def check(self, ok, what):
        if ok:
            self.passed += 1
        else:
            self.failed.append(what)
            print("FAILED:", what, flush=True)

    def exit(self):
        print(f"{self.passed} checks passed, {len(self.failed)} failed")
        sys.exit(1 if self.failed or not self.passed else 0)


def run_checks(purpose, checks, made=lambda program, scratch: (program, scratch)):
    """The main function of a test that is a few named checks: --only NAME runs one. Each gets what `made` returns for the program and a
    folder that is gone afterwards."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--only", choices=checks)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=f"tandem_{pathlib.Path(sys.argv[0]).stem}_") as scratch:
        shared = made(Program(options.build), scratch)
        for name, check in checks.items():
            if options.only in (None, name):
                check(*shared)
