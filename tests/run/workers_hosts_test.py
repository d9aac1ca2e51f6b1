# SPDX-License-Identifier: Apache-2.0
"""A run on one machine and its worker on another, 20 ms and 200 Mbit/s away: with the token of the run it joins, and under --parity the
bits are those of one machine. The machines are network namespaces."""
import pathlib
import subprocess

import run_folder as rf
from slow_link import SlowLink

DELAY_S, MBIT_PER_S = 0.02, 200
RUN = {"supervised.steps": 0, "run.steps": 4, "schedule.groups_per_step": 4, "schedule.group_size": 4, "rollout.max_new_tokens": 40,
       "eval.max_new_tokens": 8, "data.synthetic_eval_rows": 8, "parallel.threads": 1, "reward.rule": "regex", "reward.pattern": "[0-4]",
       "train.lr": 1e-3, "train.lr_schedule": "constant", "model.init_hidden": 64, "model.init_layers": 2,
       "model.init_intermediate": 96, "model.init_deviation": 0.15, "run.parity": "true"}


def start(command):
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8")


def far_worker(program, root):
    here = f"{root}/here"
    program.quickstart(here, RUN)
    try:
        link = SlowLink(root, DELAY_S, MBIT_PER_S)
        with link:
            far = pathlib.Path(root) / "far"
            address = f"{link.addresses[0]}:7070"
            run = start(link.on(0, [program.tandem, "run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", far,
                                    *rf.sets({**RUN, "workers.listen": address})]))
            token = far / "token"
            rf.wait_until(lambda: token.exists() or run.poll() is not None, 60, "the token of the run")
            wrong = pathlib.Path(root) / "wrong"
            wrong.write_text("x" * 40 + "\n")
            join = [program.tandem, "rollout", "--join", address, "--threads", "1"]  # --host is that of the way to the run
            stranger = start(link.on(1, [*join, "--token", wrong, "--patience", "3"]))
            worker = start(link.on(1, [*join, "--token", token]))
            assert run.wait(240) == 0, run.stderr.read()[-3000:]
            assert worker.wait(30) == 0, worker.stderr.read()[-3000:]
            assert stranger.wait(30) != 0, "a stranger joined"
            crossed = link.bytes
    except SlowLink.Unavailable as why:
        rf.skip(str(why))
    columns = "step, sample_id, response_ids, logprobs, versions, score"
    assert rf.samples(here, columns) == rf.samples(far, columns), "a far worker draws other samples"
    assert rf.weights(here) == rf.weights(far), "a far worker leads to other weights"
    assert (far / "worker_keys.json").stat().st_mode & 0o77 == 0, "others may read the run's keys"
    rf.said(f"a worker {DELAY_S * 1e3:.0f} ms and {MBIT_PER_S} Mbit/s away gives the bits of one machine; {crossed} bytes crossed")


CHECKS = {"far": far_worker}
rf.run_checks(__doc__, CHECKS)
