# SPDX-License-Identifier: Apache-2.0
"""Tandem: reinforcement-learning post-training of language models.

    import tandem

    def brevity(completions):
        return [-len(text) for text in completions]

    run = tandem.run("configs/quickstart.yaml", reward=brevity, settings={"run.steps": 20})
    print(run.after, run.metrics()["reward/mean"])

`run` trains as `tandem run` does, in this process. A function of yours may stand for the reward, the advantages or the loss. `Policy`
and `Trainer` are for a loop of your own.
"""
import os
import sys

# A thread that waits spins for half a millisecond, as those of the program do. The library of threads reads it once, when torch loads it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import torch  # noqa: E402  first: its libraries are ours, too

from tandem import _build, _start  # noqa: E402

if _misfit := _start.misfit(_build, torch.__version__):
    raise ImportError(_misfit)
if _build.IS_WHEEL:
    os.environ.setdefault("TANDEM_WHEEL_PYTHON", sys.executable)

from tandem._own_loop import Policy, Sample, Trainer  # noqa: E402
from tandem._run import Run, load, run  # noqa: E402
from tandem._tandem import Interrupted, PeerError, UserError  # noqa: E402

__version__ = _build.VERSION
__all__ = ["Interrupted", "PeerError", "Policy", "Run", "Sample", "Trainer", "UserError", "load", "run"]
