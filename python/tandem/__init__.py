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
import importlib.metadata
import os

# A thread that waits spins for half a millisecond, as those of the program do. The library of threads reads it once, when torch loads it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import torch  # noqa: E402  first: its libraries are ours, too

from tandem import _build  # noqa: E402

for _name, _wanted, _found in (("torch", _build.TORCH, torch.__version__),
                               ("pyarrow", _build.PYARROW, _build.PYARROW and importlib.metadata.version("pyarrow"))):
    if _found != _wanted:
        raise ImportError(f"tandem was built for {_name} {_wanted}, and this is {_found}: build it for this one by scripts/wheel")

from tandem._own_loop import Policy, Sample, Trainer  # noqa: E402
from tandem._run import Run, load, run  # noqa: E402
from tandem._tandem import Interrupted, PeerError, UserError  # noqa: E402

__version__ = _build.VERSION
__all__ = ["Interrupted", "PeerError", "Policy", "Run", "Sample", "Trainer", "UserError", "load", "run"]
