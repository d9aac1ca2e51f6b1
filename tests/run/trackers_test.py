#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run leaves with W&B, SwanLab, MLflow and Prometheus, read back by their own packages. Each check is skipped where its package is
missing. Nothing leaves this machine: W&B has a server of ours, SwanLab is local, MLflow has a folder."""
import gzip
import http.server
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import urllib.request

import run_folder as rf
from run_folder import said

STEPS, MORE = 4, 6


class Tracked:
    """A finished run that was resumed once, and what its sinks should have of it."""

    def __init__(self, program, scratch, sink, **env):
        need(sink)
        self.folder = pathlib.Path(scratch) / sink
        arguments, environment = command_of(scratch, sink, self.folder, **env)
        for more in (["--steps", str(STEPS)], ["--resume", "--steps", str(MORE)]):
            out = program.done([*arguments, *more], env=environment, timeout=300)
            assert "warning: monitor.sinks" not in out.stderr, out.stderr[-3000:]
        self.lines = {line.pop("step"): {name: value for name, value in line.items() if value is not None}
                      for line in rf.all_metrics(self.folder)}
        assert sorted(self.lines) == list(range(1, MORE + 1)), sorted(self.lines)
        self.id = json.loads((self.folder / "sinks.json").read_text())[sink]["id"]
        self.accuracy = json.loads((self.folder / "summary.json").read_text())["eval_after"]["accuracy"]

    def same(self, found):
        """`found`: {step: {metric: value}}, each step once."""
        for step, line in self.lines.items():
            different = {name: (value, found[step].get(name)) for name, value in line.items() if found[step].get(name) != value}
            assert not different, f"step {step}: {different}"
        assert sorted(found) == sorted(self.lines), sorted(found)


def command_of(scratch, sink, folder, **env):
    """Arguments and environment of a run that has this sink."""
    recipe = rf.tiny_recipe(pathlib.Path(scratch) / f"{sink}.yaml", monitor__group="night", monitor__run_name="first",
                            monitor__project="sums", monitor__end_wait_s=120, monitor__python_executable=sys.executable)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "SWANLAB", "MLFLOW"))}
    return ["run", recipe, "--run-dir", folder, "--set", f"monitor.sinks={sink}"], {**clean, "HOME": str(scratch), **env}


def need(package):
    if importlib.util.find_spec(package) is None:
        wheel = {"mlflow": "mlflow-skinny", "swanlab": "'swanlab[dashboard]'", "swanboard": "'swanlab[dashboard]'"}.get(package, package)
        rf.skip(f"no package {package} (scripts/setup {wheel})")


class Hub(http.server.ThreadingHTTPServer):
    """What W&B's own uploader needs of a server, on this machine: takes runs, and gives back where one stands, so that it resumes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), HubRequest)
        self.runs, self.lock = {}, threading.Lock()
        self.env = {"WANDB_API_KEY": "0123456789" * 4, "WANDB_BASE_URL": f"http://127.0.0.1:{self.server_port}"}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A client that goes away is none."""

    def upsert(self, said):
        run = self.runs.setdefault(said["name"], {"rows": [], "codes": [], "configs": [], "summary": {}})
        run.update({key: said[key] for key in ("project", "displayName", "groupName") if said.get(key)})
        if said.get("config"):
            run["configs"].append({name: entry["value"] for name, entry in json.loads(said["config"]).items()})
        return {"upsertBucket": {"inserted": len(run["configs"]) < 2, "bucket": {
            "id": "id", "name": said["name"], "displayName": run.get("displayName"), "config": "{}", "historyLineCount": len(run["rows"]),
            "project": {"id": "p", "name": run.get("project"), "entity": {"id": "e", "name": "me"}}}}}

    def status(self, said):
        run = self.runs.get(said["name"])
        bucket = run and {"id": "id", "name": said["name"], "displayName": run["displayName"], "summaryMetrics": json.dumps(run["summary"]),
                          "logLineCount": 0, "historyLineCount": len(run["rows"]), "eventsLineCount": 0, "eventsTail": "[]", "config": "{}",
                          "historyTail": json.dumps([json.dumps(row) for row in run["rows"][-1:]]), "wandbConfig": "{\"t\": 1}"}
        return {"model": {"id": "m", "name": said["project"], "entity": {"id": "e", "name": "me"}, "bucket": bucket}}

    def upload(self, said):
        return {"createRunFiles": {"runID": "id", "uploadHeaders": [], "files": [
            {"name": name, "uploadUrl": self.env["WANDB_BASE_URL"] + "/file"} for name in said["files"]]}}

    def stream(self, name, said):
        run, files = self.runs[name], said.get("files", {})
        if "wandb-history.jsonl" in files:
            part = files["wandb-history.jsonl"]
            run["rows"][part["offset"]:] = [json.loads(row) for row in part["content"]]
        for summary in files.get("wandb-summary.json", {}).get("content", []):
            run["summary"].update(json.loads(summary))
        if said.get("complete"):
            run["codes"].append(said["exitcode"])

    def answer(self, path, body):
        if path.endswith("/file_stream"):
            self.stream(path.split("/")[-2], json.loads(body))
        if path != "/graphql":
            return {}
        query = json.loads(body)
        kinds = {"UpsertBucket": self.upsert, "RunResumeStatus": self.status, "CreateRunFiles": self.upload}
        known = kinds.get(query.get("operationName"))
        return {"data": known(query["variables"]) if known else {}}


class HubRequest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        with self.server.lock:
            reply = json.dumps(self.server.answer(self.path, body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_PUT = do_POST

    def log_message(self, *words):
        pass


def check_run_of_wandb(tracked, run, codes):
    found = {row["_step"]: row for row in run["rows"]}
    assert len(found) == len(run["rows"]), f"a step is there twice: {[row['_step'] for row in run['rows']]}"
    tracked.same(found)
    assert (run["project"], run["displayName"], run["groupName"]) == ("sums", "first", "night"), run
    config = run["configs"][-1]
    assert config["train"]["lr"] == 1e-3 and config["run"]["steps"] == MORE and config["monitor"]["sinks"] == ["wandb"], config
    assert run["summary"]["summary/eval_after/accuracy"] == tracked.accuracy and run["codes"] == codes, run


def check_killed(program, scratch, hub):
    """What W&B had taken and not stored when the run was killed comes again; what it had stored is there once."""
    folder = pathlib.Path(scratch) / "killed"
    arguments, environment = command_of(scratch, "wandb", folder, **hub.env)
    process = program.start([*arguments, "--steps", "100000"], env=environment)
    # In the midst of steps.
    assert rf.wait_for(lambda: sum(file.stat().st_size for file in folder.glob("wandb/run-*/*.wandb")) > 200_000, process), "it ended"
    rf.end(process)
    last = lines_of(folder)[-1]["step"] + 2
    program.done([*arguments, "--resume", "--steps", str(last)], env=environment, timeout=300)
    assert len(hub.runs) == 1, list(hub.runs)
    steps = [row["_step"] for run in hub.runs.values() for row in run["rows"]]
    assert sorted(steps) == list(range(1, last + 1)), f"{len(steps)} steps of {last}, {len(set(steps))} different"


def lines_of(folder):
    """The whole lines of metrics.jsonl by now."""
    return rf.whole_lines(folder / "metrics.jsonl")


def check_wandb(program, scratch):
    """Offline, then uploaded by `wandb sync`, which reads the records; and straight to a server."""
    need("wandb")
    hub = Hub()
    tracked = Tracked(program, scratch, "wandb", WANDB_MODE="offline")
    parts = sorted(tracked.folder.glob("wandb/offline-run-*"))
    assert len(parts) == 2 and not hub.runs, parts
    for part in parts:
        out = subprocess.run([sys.executable, "-m", "wandb", "sync", "--yes", str(part)], capture_output=True, encoding="utf-8",
                             timeout=200, cwd=scratch, env={**os.environ, "HOME": str(scratch), **hub.env})
        assert out.returncode == 0, out.stdout + out.stderr
    assert list(hub.runs) == [tracked.id], list(hub.runs)
    check_run_of_wandb(tracked, hub.runs[tracked.id], [0, 0])
    shutil.rmtree(tracked.folder)
    hub.runs.clear()
    tracked = Tracked(program, scratch, "wandb", **hub.env)
    assert list(hub.runs) == [tracked.id], list(hub.runs)
    check_run_of_wandb(tracked, hub.runs[tracked.id], [0, 0])
    hub.runs.clear()
    check_killed(program, scratch, hub)
    hub.shutdown()
    said("W&B, offline and synced, and online: one run although it was resumed, each step once, the recipe, the summary and the end")


def check_swanlab(program, scratch):
    need("swanboard")
    tracked = Tracked(program, scratch, "swanlab", SWANLAB_MODE="local")
    os.environ["SWANLAB_LOG_DIR"] = str(tracked.folder / "swanlog")
    from swanboard.controller.experiment import get_tag_data
    from swanboard.db import Experiment, Project, Tag, connect

    connect(path=os.environ["SWANLAB_LOG_DIR"], autocreate=True)
    assert [project.name for project in Project.select()] == ["sums"]
    experiments = list(Experiment.select())
    assert [experiment.name for experiment in experiments] == ["first", "first-2"]
    assert all(experiment.run_id.endswith(tracked.id) and experiment.status == 1 for experiment in experiments)
    found, summaries = {}, []
    for experiment in experiments:
        for tag in Tag.select().where(Tag.experiment_id == experiment.id):
            for point in json.loads(get_tag_data(experiment.id, tag.name).body)["data"]["list"]:
                if tag.name.startswith("summary/"):
                    summaries.append((tag.name, point["data"]))
                    continue
                step = found.setdefault(point["index"], {})
                assert tag.name not in step, f"{tag.name} of step {point['index']} is there twice"
                step[tag.name] = point["data"]
        config = (tracked.folder / "swanlog" / experiment.run_id / "files/config.yaml").read_text()
        assert "sinks" in config and "mini_batches" in config, config[:300]
    tracked.same(found)
    assert ("summary/eval_after/accuracy", tracked.accuracy) in summaries, summaries
    said("SwanLab, local: each step once, the recipe and the summary; a resumed part is an experiment beside the first")


def check_mlflow(program, scratch):
    tracked = Tracked(program, scratch, "mlflow")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=str(tracked.folder / "mlruns"))
    runs = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
    assert [run.info.run_id for run in runs] == [tracked.id], "one run, although it was resumed"
    run, found, summary = runs[0], {}, {}
    assert (run.info.status, run.data.tags["mlflow.runName"], run.data.tags["group"]) == ("FINISHED", "first", "night"), run.info
    assert run.data.params["train.lr"] == "0.001" and run.data.params["run.steps"] == str(STEPS), run.data.params
    for name in run.data.metrics:
        for point in client.get_metric_history(tracked.id, name):
            if name.startswith("summary/"):
                summary[name] = point.value
                continue
            step = found.setdefault(point.step, {})
            assert name not in step, f"{name} of step {point.step} is there twice"
            step[name] = point.value
    tracked.same(found)
    assert summary["summary/eval_after/accuracy"] == tracked.accuracy and summary["summary/steps"] == MORE, summary
    said("MLflow, in a folder: one run with each step once, the recipe, the summary and the end")


def check_prometheus(program, scratch):
    """No run needs the package: Prometheus asks the board."""
    need("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    folder = pathlib.Path(scratch) / "prometheus"
    recipe = rf.tiny_recipe(pathlib.Path(scratch) / "prometheus.yaml", run__steps=5)
    program.done(["run", recipe, "--run-dir", folder])
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step":6,"reward/a-b":0.1,"reward/a b":1e-300,"reward/\\"q\\\\":3,"actor/loss":null}\n')
    board = program.start(["board", folder, "--port", "0"])
    try:
        url = next(word for line in board.stdout for word in line.split() if word.startswith("http://"))
        with urllib.request.urlopen(url + "metrics", timeout=20) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            families = {family.name: family for family in text_string_to_metric_families(reply.read().decode())}
    finally:
        rf.end(board)
    last = [line for line in rf.all_metrics(folder) if "eval/accuracy" in line][-1]
    assert all(family.type == "gauge" for family in families.values()), families
    single = {name: family.samples[0].value for name, family in families.items() if len(family.samples) == 1}
    assert single["tandem_step"] == 6 and single["tandem_eval_accuracy"] == last["eval/accuracy"], single
    assert "tandem_actor_loss" not in families and "tandem_reward_mean" not in families, "what the newest step has not"
    told = {sample.labels["metric"]: sample.value for sample in families["tandem_reward_a_b"].samples}
    assert told == {"reward/a-b": 0.1, "reward/a b": 1e-300}, told
    assert families["tandem_reward__q_"].documentation.startswith('reward/"q\\'), families["tandem_reward__q_"]
    said("Prometheus: the newest step, the newest evaluation, and metrics whose names would be one")


CHECKS = {"wandb": check_wandb, "swanlab": check_swanlab, "mlflow": check_mlflow, "prometheus": check_prometheus}


if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS)
