# SPDX-License-Identifier: Apache-2.0
"""A run from Python, and what it leaves."""
import contextlib
import dataclasses
import json
import os
import pathlib
import sqlite3
import tempfile
import typing
from collections.abc import Callable

from tandem import _hooks, _tandem


if typing.TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has ended, or a run folder.

    `before` and `after` are evaluations, {"accuracy", "mean_score", "pass_at_k", "sets": the same by name}, or None where there was
    none."""
    dir: pathlib.Path
    steps: int
    seconds: float
    tokens: int
    before: dict | None = None
    after: dict | None = None

    def metrics(self) -> "pandas.DataFrame":
        """The metrics as a pandas.DataFrame: a row for each step, a column for each name, NaN where a step has none."""
        pandas = _pandas()
        with open(self.dir / "metrics.jsonl", encoding="utf-8") as lines:
            return pandas.DataFrame([json.loads(line) for line in lines])

    def samples(self, step: int | None = None) -> "pandas.DataFrame":
        """The samples as a pandas.DataFrame, those of one step or of all; the columns are those of the table in samples.sqlite."""
        pandas = _pandas()
        where, values = ("", ()) if step is None else (" where step = ?", (step,))
        with contextlib.closing(sqlite3.connect(f"file:{self.dir}/samples.sqlite?mode=ro", uri=True)) as database:
            return pandas.read_sql_query(f"select * from samples{where}", database, params=values)


def _pandas():
    try:
        import pandas
    except ModuleNotFoundError:
        raise ModuleNotFoundError("data frames want pandas: scripts/setup pandas, or pip install pandas") from None
    return pandas


def load(run_dir: str | os.PathLike) -> Run:
    """The run of a run folder, whether it goes on or has ended. Raises FileNotFoundError where there is none."""
    folder = pathlib.Path(run_dir)
    summary = folder / "summary.json"
    if not (folder / "config.yaml").exists():
        raise FileNotFoundError(f"{folder} is no run folder: it has no config.yaml")
    found = json.loads(summary.read_text()) if summary.exists() else {}
    return Run(folder, found.get("steps", 0), found.get("seconds", 0.0), found.get("tokens", 0), _evaluation(found.get("eval_before")),
               _evaluation(found.get("eval_after")))


def _evaluation(found):
    """As `Run` has it, of that in summary.json."""
    if found is None:
        return None
    numbers = {name: found[name] for name in ("accuracy", "mean_score", "pass_at_k")}
    return {**numbers, "sets": {name: {key: one[key] for key in numbers} for name, one in found.get("sets", {}).items()}}


def run(recipe: str | os.PathLike | dict | None = None, *, settings: dict | None = None, resume: bool = False, overwrite: bool = False,
        replay: str | os.PathLike | None = None, replay_decisions: str | os.PathLike | None = None, reward: Callable | None = None,
        advantage: Callable | None = None, loss: Callable | None = None) -> Run:
    """Trains a model by reinforcement learning, as `tandem run` does. Returns the `Run` that it made.

    recipe     a YAML file, or a dict such as {"data": {"train": "rows.jsonl"}}; None: what `settings` say
    settings   options over those of the recipe, such as {"run.steps": 20, "train.lr": 1e-5}; docs/config.md has all
    resume     go on from the newest checkpoint of the run folder
    overwrite  begin anew where the run folder holds a run; that goes to a folder aside_N
    replay     train on the samples of this run folder instead of generating
    replay_decisions  repeat the free run of this folder, as docs/design/free_mode.md says
    reward     f(prompts, completions, answers, **columns) -> a score for each completion; it takes what it names (docs/rewards.md)
    advantage  g(scores, groups, lengths) -> a number for each response of the batch. Tensors [responses], float64, int64, int64.
               Called once a step, on rank 0; what it gives is the advantage of each token of the response
    loss       h(...) -> a scalar tensor, this replica's share of the loss of one update. It takes what it names, tensors [R] of the R
               response tokens of whole rows, which share memory with the run:
                 logprobs, entropy            float32, leaves that require a gradient: of the weights before the update
                 old, reference, behavior     float32 log-probabilities: before the step's first update, of the reference, as sampled
                 advantages, correction       float32; correction is the weight of samples of another policy, 1 where there is none
                 mask                         bool: the tokens that are trained on
                 offsets                      int64 [rows]: where each row begins in R
                 global_tokens, global_sequences   numbers: of trained tokens, and of rows with one, over all replicas

    A function that raises, or returns what is no such thing, ends the run with the last step saved. Raises UserError for wrong input and
    wrong functions, PeerError where another rank or the disk failed, Interrupted (a KeyboardInterrupt) once a signal is obeyed; after
    each, `resume=True` goes on."""
    hooks = (_hooks.of_reward(reward), _hooks.of_advantage(advantage), _hooks.of_loss(loss), _hooks.of_recipe)
    how = (resume, overwrite, os.fspath(replay) if replay else "", os.fspath(replay_decisions) if replay_decisions else "")
    with tempfile.TemporaryDirectory(prefix="tandem_recipe_") as scratch:
        if isinstance(recipe, dict):  # JSON is YAML
            path = pathlib.Path(scratch) / "recipe.yaml"
            path.write_text(json.dumps(recipe, default=os.fspath))
        else:
            path = "" if recipe is None else recipe
        ended = _tandem.run(recipe=os.fspath(path), settings=texts_of(settings or {}), how=how, hooks=hooks)
    return Run(**{**ended, "dir": pathlib.Path(ended["dir"])})


def texts_of(settings):
    """Names and values as `--set` takes them."""
    return [(name, _text(value)) for name, value in settings.items()]


def _text(value):
    if value is None:
        return ""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, dict):  # such as the sets of data.eval by name
        value = [f"{name}={one}" for name, one in value.items()]
    return json.dumps(value, default=os.fspath)
