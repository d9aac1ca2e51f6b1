# SPDX-License-Identifier: Apache-2.0
"""Workers: processes that generate for a run and are no ranks of it. They come, leave, hang and die; the run goes on, and its history has
each sample once. Under --parity the same bits come out, however many there are."""
import json
import os
import pathlib
import random
import re
import signal
import socket
import time

import run_folder as rf
from kept_files_test import faulty

RUN = {"supervised.steps": 0, "run.steps": 6, "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_new_tokens": 40,
       "eval.max_new_tokens": 8, "eval.every_steps": 3, "data.synthetic_eval_rows": 8, "checkpoint.every_steps": 2, "parallel.threads": 1,
       "reward.rule": "regex", "reward.pattern": "[0-4]", "train.lr": 1e-3, "train.lr_schedule": "constant", "model.init_hidden": 64,
       "model.init_layers": 2, "model.init_intermediate": 96, "model.init_deviation": 0.15, "run.parity": "true", "workers.lease_s": 3}
# What the clock of workers says.
CLOCKED = ("queue/depth", "queue/outstanding", "queue/waiting", "queue/running", "queue/scoring", "workers/connected",
           "workers/bytes_prefetched", "workers/leases_ended", "workers/groups_late", "workers/groups_lost", "workers/bytes_read",
           "workers/weight_bytes_sent", "workers/weight_bytes_copied", "workers/calls_refused", "workers/leases_undone",
           "workers/groups_undone", "data/groups_early", "time/early_s", "workers/padding_bytes_saved", "workers/weights_compared")


def run(program, folder, settings=None, flags=()):
    program.quickstart(folder, {**RUN, **(settings or {})}, flags)
    return folder


def start_of(folder, settings=None, flags=()):
    return ["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, *rf.sets({**RUN, **(settings or {})}), *flags]


def address(folder):
    """Where the run in the folder answers; "" while it does not yet."""
    path = pathlib.Path(folder) / "workers.json"
    try:
        return json.loads(path.read_text()).get("address", "").removeprefix("tcp://")
    except (OSError, ValueError):
        return ""


def joining(folder, *flags, threads=1):
    """What joins the run in the folder."""
    return ["rollout", "--join", address(folder), "--token", f"{folder}/token", "--threads", threads, *flags]


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def check_bound(folder, staleness):
    for step, group, trained_version, versions in rf.samples(folder, "step, group_id, trained_version, versions"):
        oldest = min(rf.token_versions(versions), default=trained_version)
        assert trained_version - oldest <= staleness, f"group {group} of step {step} lags {trained_version - oldest}"


def gaps_of(folder):
    """Between rollout and training, of each step."""
    gaps = [line["actor/kl_rollout_train"] for line in rf.all_metrics(folder) if "actor/loss" in line]
    assert gaps, "no step was made"
    return gaps


def same_bits(program, root):
    ranks = run(program, f"{root}/ranks")
    for count in (1, 2, 3):
        workers = run(program, f"{root}/workers{count}", flags=["--rollout-workers", str(count)])
        rf.check_whole(workers, 6)
        rf.check_equal(ranks, workers, f"{count} workers", but=CLOCKED)
    columns = "step, sample_id, response_ids, logprobs, versions, score"
    two = ["--ranks", "2", "--train-layout", "dp2"]
    ranks = run(program, f"{root}/ranks_dp2", flags=two)
    workers = run(program, f"{root}/workers_dp2", flags=[*two, "--rollout-workers", "2"])
    assert rf.samples(ranks, columns) == rf.samples(workers, columns), "two ranks with workers draw other samples"
    assert rf.weights(ranks) == rf.weights(workers), "two ranks with workers come to other weights"
    rf.said("without staleness, under --parity, one, two and three workers give the bits of a run without")


def mechanisms(program, root):
    """Samples come to ranks that train in replicas of several; early passes are made of those that came ahead."""
    columns = "step, sample_id, response_ids, logprobs, versions, score"
    settings = {"algo.kl_coef": 0.05, "run.steps": 4, "eval.every_steps": 0, "parallel.ranks": 4, "parallel.train_layout": "dp2,pp2",
                "parallel.rollout_layout": "dp4"}
    ranks = run(program, f"{root}/mechanisms", settings)
    folder = run(program, f"{root}/workers", settings, ["--rollout-workers", "2"])
    assert rf.samples(ranks, columns) == rf.samples(folder, columns), "workers draw other samples"
    assert rf.weights(ranks) == rf.weights(folder), "samples of workers lead to other weights"
    last = rf.all_metrics(folder)[-1]
    assert "data/groups_early" in last, "no pass was made early"
    assert last["workers/padding_bytes_saved"] > 0, "rows of unequal lengths, and no padding is saved"
    rf.said("samples come to replicas of two ranks ahead of their batch, and with the bits of a run without workers")


def stale(program, root):
    folder = run(program, f"{root}/stale", {"run.steps": 10, "run.parity": "false"}, ["--rollout-workers", "2", "--staleness", "2"])
    rf.check_whole(folder, 10)
    check_bound(folder, 2)
    rf.check_journal(folder)
    rf.said("with staleness no sample is older than the bound")


def check_adapters_alone(folder):
    """The model is published once, and then the adapters of each version."""
    model = len(rf.weights(folder)["actor"])
    copied = [line["workers/weight_bytes_copied"] for line in rf.all_metrics(folder)]
    of_version = max(after - before for before, after in zip(copied, copied[1:]))
    assert copied[0] > model > 10 * of_version > 0, f"of a model of {model} bytes {copied} bytes are copied by the end of each step"


def kinds(program, root):
    """Adapters, another dtype, a replica of several ranks, filtered groups, greedy answers, a recipe's own reward."""
    rule = pathlib.Path(root) / "rule.py"
    rule.write_text("def score(prompts, completions):\n    return [float(any(c in '01234' for c in text)) for text in completions]\n")
    for name, settings in (("lora", {"model.lora_rank": 2}), ("lora_loose", {"model.lora_rank": 2, "run.parity": "false"}),
                           ("bfloat16", {"model.dtype": "bfloat16"}),
                           ("python", {"reward.rule": "python", "reward.python": f"{rule}:score"}),
                           ("filtered", {"algo.filter_groups": "true", "algo.max_filter_rounds": 20}),
                           ("remax", {"algo.name": "remax"}), ("ppo", {"algo.name": "ppo", "critic.lr": 1e-3})):
        settings = {**settings, "run.steps": 3, "eval.every_steps": 0}
        ranks = run(program, f"{root}/{name}_ranks", settings)
        workers = run(program, f"{root}/{name}_workers", settings, ["--rollout-workers", "1"])
        rf.check_whole(workers, 3)
        gaps = gaps_of(workers)
        if "lora" in name:
            check_adapters_alone(workers)
        if settings.get("run.parity") == "false":
            assert max(map(abs, gaps)) < 1e-4, f"{name}: rollout and training differ by {gaps}"
            continue
        assert not any(gaps), f"{name}: rollout and training differ by {gaps}"
        columns = "step, sample_id, response_ids, logprobs, versions, score"
        assert rf.samples(ranks, columns) == rf.samples(workers, columns), f"{name}: other samples"
        assert rf.weights(ranks) == rf.weights(workers), f"{name}: other weights"
    rf.said("so with adapters, in bfloat16, with a reward in Python, filtered groups, greedy answers and a critic")


def early(program, root):
    """Ranks that wait for a batch make passes of what came ahead: with the same bits."""
    settings = {"algo.kl_coef": 0.05, "run.steps": 4, "eval.every_steps": 0}
    ranks = run(program, f"{root}/early_ranks", settings)
    folder = f"{root}/early"
    process = program.start(start_of(folder, {**settings, "workers.listen": "127.0.0.1:0"}))
    rf.wait_until(lambda: address(folder), 60, "the address of the run")
    workers = [program.start(joining(folder, "--tokens-per-s", rate)) for rate in ("400", "4000")]
    assert process.wait(120) == 0, process.stderr.read()[-3000:]
    for worker in workers:
        assert worker.wait(30) == 0, worker.stderr.read()[-3000:]
    columns = "step, sample_id, response_ids, logprobs, versions, score"
    assert rf.samples(ranks, columns) == rf.samples(folder, columns), "other samples"
    assert rf.weights(ranks) == rf.weights(folder), "other weights"
    assert sum(line["data/groups_early"] for line in rf.all_metrics(folder)) > 0, "no pass was made before its batch was complete"
    rf.said("passes of groups that came ahead are made while the batch is not complete, with the same bits")


def layouts(program, root):
    """A worker in a layout and dtype of its own."""
    lora, corrected = {"model.lora_rank": 2}, {"algo.correction": "token"}
    for name, flags, settings in (("tp2", ["--layout", "tp2"], {}), ("pp2", ["--layout", "pp2"], {}),
                                  ("bfloat16", ["--dtype", "bfloat16"], corrected), ("lora_tp2", ["--layout", "tp2"], lora),
                                  ("lora_bfloat16", ["--dtype", "bfloat16"], {**lora, **corrected})):
        folder = pathlib.Path(root) / f"layout_{name}"
        process = program.start(start_of(folder, {"run.parity": "false", "workers.listen": "127.0.0.1:0", "run.steps": 4, **settings}))
        rf.wait_until(lambda folder=folder: address(folder), 60, "the address of the run")
        worker = program.start(joining(folder, *flags, threads=2))
        assert process.wait(120) == 0, process.stderr.read()[-3000:]
        assert worker.wait(30) == 0, worker.stderr.read()[-3000:]
        rf.check_whole(folder, 4)
        gaps = [abs(gap) for gap in gaps_of(folder)]
        assert max(gaps) < (0.01 if "bfloat16" in name else 1e-4), f"{name}: rollout and training differ by {gaps}"
    rf.said("a worker may have a layout and a dtype of its own")


def resumes(program, root):
    folder = run(program, f"{root}/resumed", {"run.steps": 4}, ["--rollout-workers", "1", "--staleness", "1"])
    program.done(["run", f"{folder}/config.yaml", "--run-dir", folder, "--resume", "--steps", "8"])
    rf.check_whole(folder, 8)
    check_bound(folder, 1)
    rf.check_journal(folder)
    folder = run(program, f"{root}/resumed_lora", {"run.steps": 3, "model.lora_rank": 2}, ["--rollout-workers", "1"])
    program.done(["run", f"{folder}/config.yaml", "--run-dir", folder, "--resume", "--steps", "6"])
    rf.check_whole(folder, 6)
    rf.check_journal(folder)
    gaps = gaps_of(folder)
    assert not any(gaps), f"with adapters that go on from a checkpoint rollout and training differ by {gaps}"
    rf.said("a run with workers resumes, with adapters, too")


def come_and_go(program, root):
    """Workers from outside: one joins, another, one is killed, one is stopped and goes on, one leaves."""
    folder = f"{root}/elastic"
    process = program.start(start_of(folder, {"run.steps": 40, "workers.listen": "127.0.0.1:0"}, ["--staleness", "1", "--no-eval"]))
    rf.wait_until(lambda: address(folder), 60, "the address of the run")
    join = joining(folder)
    steps = lambda: max(rf.committed_steps(folder), default=0)
    workers = [program.start(join)]
    assert rf.wait_for(lambda: steps() >= 3, process)
    workers += [program.start(join), program.start(join)]
    assert rf.wait_for(lambda: steps() >= 8, process)
    top = program.run(["top", folder, "--once"]).stdout  # at the end of the run they may have left
    rf.end(workers[0])
    assert rf.wait_for(lambda: steps() >= 14, process)
    workers[1].send_signal(signal.SIGSTOP)
    assert rf.wait_for(lambda: steps() >= 20, process)
    workers[1].send_signal(signal.SIGCONT)
    workers[2].send_signal(signal.SIGTERM)
    assert workers[2].wait(30) == 0, "a worker that was asked to leave failed"
    assert process.wait(120) == 0, "the run failed"
    assert workers[1].wait(30) == 0, "the last worker did not end with the run"
    rf.check_whole(folder, 40)
    check_bound(folder, 1)
    rf.check_journal(folder)
    log = process.stderr.read()
    joined, gone = (" ".join(line for line in log.splitlines() if what in line) for what in ("joined: ", "gone: "))
    named = lambda lines: len(set(re.findall(r"worker (\d+) \(127\.0\.0\.1:", lines)))
    assert named(joined) >= 2 and named(gone) >= 1, f"who came and went is not told: {log}"
    assert re.search(r"worker \d .* finished, \d+ tokens/s, weights of version \d+", top), top
    rf.said("workers join, die, hang and leave, the run goes on, and its log and `tandem top` tell of them")


def trainer_dies(program, root):
    """The run is killed at random moments; its workers wait for it, and the history has no gap and no double."""
    folder, rng = f"{root}/killed", random.Random(5)
    steps = 60  # more than it makes between the deaths: a worker that comes after the last step waits for the next run
    start = start_of(folder, {"run.steps": steps, "run.samples_steps": 0, "checkpoint.every_steps": 1, "workers.listen": "127.0.0.1:0"},
                     ["--staleness", "1", "--no-eval"])
    worker = None
    for number in range(5):
        process = program.start([*start, *(["--resume"] if number else [])])
        if worker is None:
            rf.wait_until(lambda: address(folder), 60, "the address of the run")
            worker = program.start(joining(folder))
        rf.wait_for(lambda: max(rf.committed_steps(folder), default=0) >= 2 * number + 2, process)
        time.sleep(rng.random() * 0.3)
        rf.end(process)
    program.done([*start, "--resume"])
    assert worker.wait(30) == 0, "the worker did not outlive the run's deaths"
    rf.check_whole(folder, steps)
    check_bound(folder, 1)
    rf.check_journal(folder)
    rf.said("the run dies five times, and its worker goes on with it")


def relaying(folder, below):
    return ["rollout", "--join", address(folder), "--token", f"{folder}/token", "--relay", below, "--relay-token", f"{folder}/below"]


def joining_relay(folder, below):
    rf.wait_until(pathlib.Path(f"{folder}/below").exists, 60, "the token of the relay")
    return ["rollout", "--join", below, "--token", f"{folder}/below", "--threads", "1", "--tokens-per-s", "1500"]


def relay(program, root):
    """Two workers behind a relay, one of which is killed: the run knows one worker, and has the bits of ranks."""
    ranks = run(program, f"{root}/relay_ranks")
    folder, below = f"{root}/relay", free_address()
    process = program.start(start_of(folder, {"workers.listen": "127.0.0.1:0"}))
    rf.wait_until(lambda: address(folder), 60, "the address of the run")
    between = program.start(relaying(folder, below))
    workers = [program.start(joining_relay(folder, below)) for _ in range(2)]
    assert rf.wait_for(lambda: max(rf.committed_steps(folder), default=0) >= 2, process), process.stderr.read()[-3000:]
    rf.end(workers[0])
    assert process.wait(120) == 0, process.stderr.read()[-3000:]
    for other in (between, workers[1]):
        assert other.wait(30) == 0, other.stderr.read()[-3000:]
    rf.check_whole(folder, 6)
    rf.check_journal(folder)
    columns = "step, sample_id, response_ids, logprobs, versions, score"
    assert rf.samples(ranks, columns) == rf.samples(folder, columns), "a relay leads to other samples"
    assert rf.weights(ranks) == rf.weights(folder), "a relay leads to other weights"
    metrics = rf.all_metrics(folder)
    connected = [line["workers/connected"] for line in metrics if "workers/connected" in line]
    assert set(connected) == {1}, f"the run knows others than the relay: {connected}"
    assert not any(line.get("workers/leases_ended", 0) for line in metrics), "the run heard of a death behind the relay"
    rf.said("two workers behind a relay are one to the run, whoever dies, with the same bits")


def relay_dies(program, root):
    """The relay leaves, and is killed; each time another stands at its address, by a clock that is behind, and its workers go on."""
    folder, below = f"{root}/relay_dies", free_address()
    settings = {"run.steps": 30, "workers.listen": "127.0.0.1:0", "run.parity": "false"}
    process = program.start(start_of(folder, settings, ["--staleness", "1", "--no-eval"]))
    rf.wait_until(lambda: address(folder), 60, "the address of the run")
    start = relaying(folder, below)
    between = program.start(start)
    workers = [program.start(joining_relay(folder, below)) for _ in range(2)]
    for step, number, code, days in ((5, signal.SIGTERM, 0, 1), (12, signal.SIGKILL, -signal.SIGKILL, 10000)):
        assert rf.wait_for(lambda step=step: max(rf.committed_steps(folder), default=0) >= step, process), process.stderr.read()[-3000:]
        ended, err = rf.end(between, number)
        assert ended == code, err[-3000:]
        between = program.start(start, **faulty(root, f"clock:the wall:{days}:0"))
    assert process.wait(120) == 0, process.stderr.read()[-3000:]
    for other in (between, *workers):
        assert other.wait(30) == 0, other.stderr.read()[-3000:]
    rf.check_whole(folder, 30)
    check_bound(folder, 1)
    rf.check_journal(folder)
    rf.said("a relay leaves and dies, and its workers go on with the next")


def refusals(program, root):
    recipe = rf.tiny_recipe(f"{root}/tiny.yaml")
    start = ["run", recipe, "--run-dir", f"{root}/refused"]
    program.refused([*start, "--rollout-workers", "1", "--ranks", "2", "--set", "parallel.placement=split"], 2, "workers generate",
                    "colocated")
    program.refused([*start, "--rollout-workers", "-1"], 2, "workers.local")
    token = pathlib.Path(root) / "some_token"
    token.write_text("x" * 40 + "\n")
    join = lambda address, *flags: ["rollout", "--join", address, "--token", token, *flags]
    program.refused(["rollout", "--join", "127.0.0.1:9"], 2, "--token", "RUN_DIR/token")
    program.refused(join("127.0.0.1:9", "--patience", "1"), 3, "127.0.0.1:9", "no answer")
    program.refused(join("nowhere"), 2, "nowhere")
    program.refused(join("no.such.host.invalid:7070"), 2, "no.such.host.invalid", "nobody knows")
    program.refused(join("127.0.0.1:9", "--dtype", "float8"), 2, "--dtype", "bfloat16")
    for listen, words in (("here", "HOST:PORT"), ("127.0.0.1:x", "HOST:PORT"), ("0.0.0.0:7070", "every address"), ("192.0.2.7:7070", "")):
        program.refused([*start, "--set", f"workers.listen={listen}"], 2, "workers.listen", words)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        program.refused([*start, "--set", f"workers.listen=127.0.0.1:{taken.getsockname()[1]}"], 2, "workers.listen", "in use")
    assert not pathlib.Path(f"{root}/refused").exists(), "a run that never began left its folder"
    program.refused(join("127.0.0.1:9", "--relay", "127.0.0.1:0"), 2, "--relay", "--relay-token FILE")
    program.refused(join("127.0.0.1:9", "--relay", "127.0.0.1:0", "--threads", "2"), 2, "--threads", "generates nothing")
    program.refused(join("127.0.0.1:9", "--relay-token", "token"), 2, "--relay-token", "--relay HOST:PORT")
    program.refused(join("127.0.0.1:9", "--relay", "127.0.0.1:0", "--relay-token", f"{root}/below", "--patience", "1"), 3, "127.0.0.1:9",
                    "no answer")
    for threads in ("-1", "99999"):
        program.refused(join("127.0.0.1:9", "--threads", threads), 2, "--threads", "1024")
    program.refused(join("127.0.0.1:9", "--host", "0.0.0.0"), 2, "--host", "every address")
    rule = pathlib.Path(root) / "bad.py"
    rule.write_text("def score(prompts, completions):\n    raise ValueError('not today')\n")
    bad = [*start, "--rollout-workers", "1", "--no-eval", *rf.sets({"reward.rule": "python", "reward.python": f"{rule}:score"})]
    out = program.run([word.replace("/refused", "/bad") if isinstance(word, str) else word for word in bad], timeout=100)
    assert out.returncode in (2, 3) and "not today" in out.stderr, (out.returncode, out.stderr[-1500:])
    none = [*start, "--set", "workers.listen=127.0.0.1:0", "--set", "workers.wait_s=1", "--no-eval"]
    out = program.run(none, timeout=100)
    assert out.returncode == 3 and "no worker" in out.stderr and "workers.wait_s" in out.stderr, out.stderr[-1500:]
    rf.said("what cannot be is refused, and a run without a worker ends, saved")


def reward_files(program, root):
    """A worker whose reward is another than the run's is refused, and the run goes on with one whose is the same."""
    rule = pathlib.Path(root) / "graded.py"
    rule.write_text("def score(prompts, completions):\n    return [float(any(c in '01234' for c in text)) for text in completions]\n")
    folder = f"{root}/reward"
    run = program.start(start_of(folder, {"reward.rule": "python", "reward.python": f"{rule}:score", "workers.listen": "127.0.0.1:0"},
                                 ["--no-eval"]))
    rf.wait_until(lambda: address(folder), 60, "the address of the run")
    rule.write_text(rule.read_text() + "# another\n")
    join = joining(folder)
    program.refused(join, 2, "reward.python", "not that of the run")
    rule.write_text(rule.read_text().removesuffix("# another\n"))
    worker = program.start(join)
    assert run.wait(120) == 0, run.stderr.read()[-3000:]
    assert worker.wait(30) == 0, worker.stderr.read()[-3000:]
    rf.check_whole(folder, 6)
    rf.said("a worker with another reward is refused")


def restarts(program, root):
    """Workers of the run that end before any group is finished: they are started again, and in the end the run says why it ends."""
    folder = f"{root}/restarts"
    process = program.start(start_of(folder, {"workers.local": 1}, ["--no-eval"]))
    killed = set()
    def kill_workers():
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
                if parent == process.pid and b"rollout" in (path.parent / "cmdline").read_bytes():
                    killed.add(int(path.parent.name))
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except (OSError, IndexError):
                pass
        return process.poll() is not None
    rf.wait_until(kill_workers, 90, "the end of the run")
    error = process.stderr.read()
    assert process.returncode == 3 and "ended 7 times" in error and "workers/0.log" in error, (process.returncode, error[-2000:])
    assert len(killed) >= 7, killed
    rf.check_whole(program.done(start_of(folder, {"workers.local": 1}, ["--no-eval", "--resume"])) and folder, 6)
    over = run(program, folder, flags=["--rollout-workers", "1", "--no-eval", "--overwrite"])
    assert rf.all_metrics(over)[-1]["workers/leases_undone"] == 0, "a run that was overwritten counts as a start before"
    rf.said("workers that end again and again end the run, saved")


CHECKS = {"bits": same_bits, "mechanisms": mechanisms, "stale": stale, "kinds": kinds, "early": early, "layouts": layouts,
          "resumes": resumes, "elastic": come_and_go, "reward_files": reward_files, "restarts": restarts, "trainer": trainer_dies,
          "relay": relay, "relay_dies": relay_dies, "refusals": refusals}
if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS)
