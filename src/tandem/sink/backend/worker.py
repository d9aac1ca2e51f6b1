# SPDX-License-Identifier: Apache-2.0
# Hands the steps of a run to experiment trackers: a thread for each, so that one that hangs holds up no other. Each follows metrics.jsonl
# as `tail -f` does. sink/worker.h has the other side: the job comes as JSON on standard input; descriptor 3 brings the word that says how
# the run ended, and takes a line of JSON for whatever a person should hear. Standard output and error are RUN_DIR/sinks.log.
import collections
import json
import os
import re
import select
import socket
import sys
import threading
import time
import traceback
import uuid

POLL_S = 0.2           # between two looks at metrics.jsonl
PART_BYTES = 1 << 22   # of it that are read at a time
FIRST_PAUSE_S, MOST_PAUSE_S = 5, 300  # before a sink that failed is tried again
HANG_S = 60            # that a call into a package may take before a person hears of it
LOWEST_PRIORITY = 19   # training goes first


class Places:
    """RUN_DIR/sinks.json: of each sink the id of the run there, and the last step that it has for sure. A resume goes on from it."""

    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()
        try:
            with open(path, encoding="utf-8") as file:
                self.places = json.load(file)
        except FileNotFoundError:
            self.places = {}

    def of(self, sink):
        return dict(self.places.get(sink, {}))

    def set(self, sink, **values):
        with self.lock:
            self.places = {**self.places, sink: {**self.places.get(sink, {}), **values}}
            with open(self.path + ".tmp", "w", encoding="utf-8") as file:
                json.dump(self.places, file, indent=1)
            os.replace(self.path + ".tmp", self.path)


def flat(tree, between, prefix=""):
    """{"a": {"b": 1}} as {"a/b": 1}."""
    out = {}
    for name, value in tree.items():
        out.update(flat(value, between, f"{prefix}{name}{between}") if isinstance(value, dict) else {prefix + name: value})
    return out


def numbers(tree):
    """Its numbers that are finite, by name: a metric that is not is null in metrics.jsonl."""
    return {name: value for name, value in tree.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}


class Tracker:
    def __init__(self, job, place):
        self.job, self.place, self.run = job, place, None


class Wandb(Tracker):
    """https://docs.wandb.ai/ref/python/. WANDB_MODE=offline and the package's other variables work."""

    SETTLES_S = 10  # that a step may be on its way when log() has returned

    def start(self):
        import wandb

        run_id = self.place.id() or self.place.set(id=os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8])
        self.run = wandb.init(
            id=run_id, resume="allow", project=self.job["project"] or os.environ.get("WANDB_PROJECT") or "tandem",
            name=self.job["run_name"], group=self.job["group"] or None, config=self.job["recipe"],
            dir=os.environ.get("WANDB_DIR") or self.job["run_dir"], settings=wandb.Settings(console="off"))

    def log(self, step, metrics):
        self.run.log(metrics, step=step, commit=True)

    def end(self, how, step, summary):
        import wandb

        self.run.summary.update(summary)
        self.run.finish(exit_code={"finished": 0, "stopped": 255}.get(how, 1))
        wandb.teardown()


class Swanlab(Tracker):
    """https://docs.swanlab.cn/. SWANLAB_MODE=local and the package's other variables work."""

    SETTLES_S = 10

    def start(self):
        os.environ.setdefault("SWANLAB_INTERACTIVE", "false")         # there is nobody to ask
        os.environ.setdefault("SWANLAB_TERMINAL_PROXY_TYPE", "none")  # what other packages print is none of its business
        import swanlab

        run_id = self.place.id() or self.place.set(id=uuid.uuid4().hex[:21])
        self.run = swanlab.init(
            project=self.job["project"] or os.environ.get("SWANLAB_PROJ_NAME") or "tandem", experiment_name=self.job["run_name"],
            config=self.job["recipe"], logdir=os.environ.get("SWANLAB_LOG_DIR") or os.path.join(self.job["run_dir"], "swanlog"),
            id=run_id, resume="allow", **({"group": self.job["group"]} if self.job["group"] else {}))

    def log(self, step, metrics):
        import swanlab

        swanlab.log(metrics, step=step)

    def end(self, how, step, summary):
        import swanlab

        if summary:
            swanlab.log(summary, step=step)
        state = {"stopped": "aborted"}.get(how, "crashed")
        swanlab.finish(**({} if how == "finished" else {"state": state, "error": f"the run {how}"}))


class Mlflow(Tracker):
    """https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html. Its server or folder is that of the first start."""

    SETTLES_S = 0
    PARAMS_AT_ONCE, PARAM_CHARS, METRICS_AT_ONCE = 100, 6000, 1000  # that its stores take

    def start(self):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder was asked for
        from mlflow import MlflowClient
        from mlflow.entities import Param

        place = self.place.all()
        uri = place.get("tracking_uri") or self.tracking_uri()
        self.client = MlflowClient(tracking_uri=uri)
        self.run_id = place.get("id")
        if self.run_id is None:
            tags = {"group": self.job["group"]} if self.job["group"] else {}
            self.run_id = self.client.create_run(self.experiment_id(), run_name=self.job["run_name"], tags=tags).info.run_id
            self.place.set(id=self.run_id, tracking_uri=uri)
        else:
            self.client.update_run(self.run_id, status="RUNNING")
        known = self.client.get_run(self.run_id).data.params  # no store takes another value for one of these
        params = [Param(name, str(value)[:self.PARAM_CHARS]) for name, value in flat(self.job["recipe"], ".").items() if name not in known]
        for at in range(0, len(params), self.PARAMS_AT_ONCE):
            self.client.log_batch(self.run_id, params=params[at:at + self.PARAMS_AT_ONCE])

    def tracking_uri(self):
        uri = self.job["mlflow_tracking_uri"] or os.environ.get("MLFLOW_TRACKING_URI") or os.path.join(self.job["run_dir"], "mlruns")
        return uri if re.match(r"[\w+]+:|databricks$", uri) else os.path.abspath(uri)

    def experiment_id(self):
        name = self.job["project"] or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "tandem"
        found = self.client.get_experiment_by_name(name)
        return found.experiment_id if found else self.client.create_experiment(name)

    def log(self, step, metrics):
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        entries = [Metric(re.sub(r"[^\w\-. :/]", "_", name), value, now_ms, step) for name, value in metrics.items()]
        for at in range(0, len(entries), self.METRICS_AT_ONCE):
            self.client.log_batch(self.run_id, metrics=entries[at:at + self.METRICS_AT_ONCE])

    def end(self, how, step, summary):
        self.log(step, summary)
        self.client.set_terminated(self.run_id, status={"finished": "FINISHED", "stopped": "KILLED"}.get(how, "FAILED"))


KINDS = {"wandb": Wandb, "swanlab": Swanlab, "mlflow": Mlflow}


class Place:
    """What sinks.json has of one sink."""

    def __init__(self, places, sink):
        self.places, self.sink = places, sink

    def all(self):
        return self.places.of(self.sink)

    def id(self):
        return self.all().get("id")

    def step(self):
        return self.all().get("step", 0)

    def set(self, **values):
        """Returns the first of the values."""
        self.places.set(self.sink, **values)
        return next(iter(values.values()))


class RunEnd:
    """How the run ended, once it has."""

    def __init__(self):
        self.event, self.how = threading.Event(), None

    def say(self, how):
        self.how = how
        self.event.set()


def parsed(line):
    """(step, metrics) of a line; step 0 of one that is none of ours."""
    try:
        metrics = numbers(json.loads(line))
    except (ValueError, AttributeError):
        return 0, {}
    return metrics.pop("step", 0), metrics


class Follower:
    """The lines of metrics.jsonl beyond a step, each once, until the run has ended and all are read."""

    def __init__(self, path, run_end):
        self.path, self.run_end, self.at = path, run_end, 0

    def read(self):
        """Whole lines from where it stands; a line that is being written is left for the next time."""
        size = PART_BYTES
        while True:
            try:
                with open(self.path, "rb") as file:
                    file.seek(self.at)
                    part = file.read(size)
            except OSError:  # none yet, or a disk that is away
                return []
            end = part.rfind(b"\n") + 1
            if end > 0 or len(part) < size:
                break
            size *= 2
        self.at += end
        return part[:end].splitlines()

    def steps(self, after):
        while True:
            ended = self.run_end.event.is_set()  # asked first: what is written before the end is read after it
            lines = self.read()
            for line in lines:
                step, metrics = parsed(line)
                if step > after:
                    after = step
                    yield step, metrics
            if not lines:
                if ended:
                    return
                self.run_end.event.wait(POLL_S)


class Sink(threading.Thread):
    """One tracker from its start to its end. What fails is tried again: at intervals, and at the end of the run."""

    def __init__(self, name, job, places, run_end, report):
        super().__init__(name=name, daemon=True)
        self.job, self.run_end, self.report = job, run_end, report
        self.place = Place(places, name)
        self.tracker = KINDS[name](job, self.place)
        self.busy_since, self.failed = None, False
        self.last, self.unsettled = self.place.step(), collections.deque()  # last step taken; (time, step) of those on their way

    def run(self):
        pause_s, last_try = FIRST_PAUSE_S, False
        steps = Follower(os.path.join(self.job["run_dir"], "metrics.jsonl"), self.run_end).steps(self.place.step())
        for work in self.works(steps):
            while not self.done(work):
                if last_try:
                    return
                last_try = self.run_end.event.is_set()
                self.run_end.event.wait(pause_s)  # no longer, once it has ended
                pause_s = min(2 * pause_s, MOST_PAUSE_S)
        self.report("done", self.name)

    def works(self, steps):
        """What is to be done, in order; each is a call that may fail and be made again."""
        yield self.tracker.start
        for step, metrics in steps:
            yield lambda: self.take(step, metrics)
        yield self.end

    def take(self, step, metrics):
        self.tracker.log(step, metrics)
        now = time.monotonic()
        self.last = step
        self.unsettled.append((now, step))
        settled = None
        while self.unsettled and self.unsettled[0][0] <= now - self.tracker.SETTLES_S:
            settled = self.unsettled.popleft()[1]
        if settled is not None:
            self.place.set(step=settled)

    def end(self):
        self.tracker.end(self.run_end.how, self.last, self.summary())
        self.place.set(step=self.last)

    def done(self, work):
        self.busy_since = time.monotonic()
        try:
            work()
        except BaseException as error:  # a package may raise anything, SystemExit too
            traceback.print_exc()
            words = " ".join("".join(traceback.format_exception_only(type(error), error)).split())
            self.report("warning", self.name, f"{words[:500]} (sinks.log has more); it is tried again, and the run goes on")
            self.failed = True
            return False
        finally:
            self.busy_since = None
        if self.failed:
            self.report("info", self.name, "takes steps again")
            self.failed = False
        return True

    def summary(self):
        """Of a run that has finished: the numbers of summary.json."""
        if self.run_end.how != "finished":
            return {}
        with open(os.path.join(self.job["run_dir"], "summary.json"), encoding="utf-8") as file:
            return {f"summary/{name}": value for name, value in numbers(flat(json.load(file), "/")).items()}


class Reports:
    """Lines to the run, for its log."""

    def __init__(self, channel):
        self.channel, self.lock = channel, threading.Lock()

    def __call__(self, what, sink="", text=""):
        line = json.dumps({"what": what, "sink": sink, "text": text}) + "\n"
        with self.lock:
            self.channel.sendall(line.encode())


def watch(sinks, channel, run_end, report):
    """Until every sink is done, hears how the run ends, and says which package has not answered for long."""
    hung = set()
    while any(sink.is_alive() for sink in sinks):
        if run_end.how is None and select.select([channel], [], [], 1)[0]:
            word = channel.recv(64).decode().strip()
            if not word:
                os._exit(1)  # the run is gone
            run_end.say(word)
        elif run_end.how is not None:
            time.sleep(0.01)
        for sink in sinks:
            since = sink.busy_since
            if since is not None and time.monotonic() - since > HANG_S and sink.name not in hung:
                hung.add(sink.name)
                report("warning", sink.name, f"has not answered for {HANG_S} s; the run goes on, and its steps wait in metrics.jsonl")


def main():
    os.nice(LOWEST_PRIORITY)
    sys.path[:] = [path for path in sys.path if path]  # not the present folder: W&B leaves one of its name there
    job = json.load(sys.stdin)
    job["run_name"] = job["run_name"] or os.path.basename(job["run_dir"].rstrip("/"))
    channel = socket.socket(fileno=3)
    channel.set_inheritable(False)
    report, run_end = Reports(channel), RunEnd()
    places = Places(os.path.join(job["run_dir"], "sinks.json"))
    sinks = [Sink(name, job, places, run_end, report) for name in dict.fromkeys(job["sinks"])]
    for sink in sinks:
        sink.start()
    watch(sinks, channel, run_end, report)
    report("over")
    sys.stdout.flush()
    os._exit(0)  # not through exit handlers of packages: each sink was ended


if __name__ == "__main__":
    main()
