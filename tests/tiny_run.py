# SPDX-License-Identifier: Apache-2.0
"""Tiny runs of the program and what they leave behind; shared by tests/ranks and tests/run."""
import array, json, os, shutil, sqlite3, subprocess, tempfile, time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TANDEM = os.environ.get("TANDEM", os.path.join(SOURCE, "build/release/tandem"))
RECIPE = os.path.join(SOURCE, "configs/quickstart.yaml")


class Folder:
    """A scratch folder that goes away, unless TANDEM_KEEP is set."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="tandem-test-")
        return self.path

    def __exit__(self, *_):
        if not os.environ.get("TANDEM_KEEP"):
            shutil.rmtree(self.path, ignore_errors=True)


def call(command, timeout_s=300):
    begin = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise SystemExit("FAILED (%d): %s\n%s" % (done.returncode, " ".join(command), done.stdout[-3000:]))
    return time.time() - begin


def run(folder, settings, flags=(), mpi_ranks=0, command="run"):
    launcher = [os.path.join(SOURCE, "scripts/mpi"), "-n", str(mpi_ranks)] if mpi_ranks else []
    sets = [part for key, value in settings.items() for part in ("--set", "%s=%s" % (key, value))]
    return call(launcher + [TANDEM, command, RECIPE, "--run-dir", folder, *flags, *sets])


def metrics(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def rows(folder, columns, table="samples", order="step, group_id, sample_index"):
    database = sqlite3.connect("file:%s/samples.sqlite?mode=ro" % folder, uri=True)
    return database.execute("SELECT %s FROM %s ORDER BY %s" % (columns, table, order)).fetchall()


def floats(blob):
    values = array.array("f")
    values.frombytes(blob)
    return values


class Checks:
    """Counts what was checked; a test without a check fails, too."""

    def __init__(self):
        self.failed, self.passed = [], 0

    def check(self, ok, what):
        if ok:
            self.passed += 1
        else:
            self.failed.append(what)
            print("FAILED:", what, flush=True)

    def exit(self):
        print("%d checks passed, %d failed" % (self.passed, len(self.failed)))
        raise SystemExit(1 if self.failed or not self.passed else 0)
