# SPDX-License-Identifier: Apache-2.0
"""Functions of the user's, in the form in which the run calls them. What goes wrong in one becomes a HookError of one line."""
import concurrent.futures
import contextlib
import functools
import inspect
import json
import os
import random
import sys
import traceback

import torch

from tandem import _tandem, _worker


class HookError(Exception):
    """Says what was wrong in a user's function, and where; and what would be right, "" where `what` says it."""

    def __init__(self, what, remedy="docs/python.md", is_not_finite=False):
        super().__init__(what)
        self.remedy, self.is_not_finite = remedy, is_not_finite


def _chosen(function, given, absent=()):
    try:
        return _worker.chosen(function, given)
    except TypeError as error:
        for name in absent:
            if f"wants `{name}`" in str(error):
                why = ": algo.kl_coef is 0" if name == "reference" else ""
                raise HookError(f"cannot be called: the function wants `{name}`, and this run has none{why}") from None
        raise HookError(f"cannot be called: {error}; there are {', '.join(given)}") from None


def of_recipe(kind, name):
    """The function FILE.py:FUNCTION of a recipe, adapted; `kind` is loss or advantage."""
    file, function = name.rsplit(":", 1)
    try:
        loaded = _worker.load({"source": "", "file": file, "name": name, "function": function})
    except (Exception, SystemExit) as error:
        said = _worker.failure(error.with_traceback(error.__traceback__.tb_next), file=file, is_worker=False)
        is_long = said["traceback"].startswith("Traceback")
        print(said["traceback"] if is_long else "", end="", file=sys.stderr, flush=True)
        raise HookError(f"{name} cannot be loaded: {said['error']}", "the traceback stands above" if is_long else "") from None
    try:
        return {"loss": of_loss, "advantage": of_advantage}[kind](loaded)
    except _tandem.UserError as error:
        raise HookError(str(error).removeprefix(f"{kind}: "), "") from None


@contextlib.contextmanager
def _generators_kept():
    """The caller's generators go on after the block as if it had not been; those that _worker.seed() seeds."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)


def of_reward(function):
    """The function runs on a thread of its own, however many threads ask: it may hold a database or a model that belongs to one."""
    if function is None:
        return None
    _check_callable("reward", function)
    thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="tandem-reward")

    def scores(batch):
        with _generators_kept():
            return json.dumps(_worker.answer(function, json.loads(batch))["scores"])

    return _told(function, lambda batch: thread.submit(scores, batch).result())


def of_advantage(function):
    if function is None:
        return None
    _check_names("advantage", function, ("scores", "groups", "lengths"))

    def advantage(scores, groups, lengths):
        given = _chosen(function, {"scores": scores, "groups": groups, "lengths": lengths})
        result = torch.as_tensor(function(**given), dtype=torch.float64).detach().cpu()
        if result.shape != scores.shape:
            raise HookError(f"returned a shape of {list(result.shape)}", f"{list(scores.shape)}: a number for each response")
        if (place := _not_finite(result)) is not None:
            raise HookError(f"returned {result[place].item()} for response {place}", "a finite number for each response",
                            is_not_finite=True)
        return result.tolist()

    return _told(function, advantage, lambda *columns: _shapes(function, dict(zip(("scores", "groups", "lengths"), columns))))


def _check_callable(option, function):
    if not callable(function):
        raise _tandem.UserError(f"{option}: is {function!r}, which cannot be called (a function; docs/python.md)")


def _check_names(option, function, names):
    """Before a run. Raises UserError where the function wants what there never is."""
    _check_callable(option, function)
    try:
        _worker.chosen(function, dict.fromkeys(names))
    except TypeError as error:
        words = str(error).replace("which is neither an argument nor a column", f"and there are {', '.join(names)}")
        name = getattr(function, "__name__", type(function).__name__)
        raise _tandem.UserError(f"{option}: `{name}` cannot be called: {words} (docs/python.md)") from None


RIGHT_LOSS = "a scalar tensor that depends on logprobs or entropy"
LEAVES = ("logprobs", "entropy")
COLUMNS = (*LEAVES, "old", "behavior", "reference", "advantages", "correction", "mask", "offsets", "global_tokens", "global_sequences")


def of_loss(function):
    if function is None:
        return None
    _check_names("loss", function, COLUMNS)

    def loss(columns):
        absent = [name for name in COLUMNS if columns.get(name) is None]
        given = _chosen(function, {name: value for name, value in columns.items() if value is not None}, absent)
        leaves = {name: given[name].requires_grad_() for name in LEAVES if name in given}
        with torch.enable_grad():
            result = function(**given)
        _check_scalar(result)
        if not result.requires_grad:
            raise HookError("returned a tensor without a gradient", f"{RIGHT_LOSS}, and not on what .detach() gave")
        gradients = dict(zip(leaves, torch.autograd.grad(result, list(leaves.values()), allow_unused=True)))
        for name, gradient in gradients.items():
            if gradient is not None and (token := _not_finite(gradient)) is not None:
                raise HookError(f"has the gradient {gradient[token].item()} by {name}[{token}]; the loss is {result.item()}",
                                "a finite gradient by each token", is_not_finite=True)
        if all(gradient is None for gradient in gradients.values()):
            raise HookError(f"returned a tensor that does not depend on {' or '.join(leaves) or 'logprobs or entropy'}", RIGHT_LOSS)
        by_logprobs = gradients.get("logprobs")
        if by_logprobs is None:
            by_logprobs = torch.zeros_like(columns["logprobs"])
        by_entropy = gradients.get("entropy")
        return result.item(), by_logprobs.contiguous(), None if by_entropy is None else by_entropy.contiguous()

    return _told(function, loss, lambda columns: _shapes(function, columns))


def _not_finite(values):
    """The first place in `values` [n] where one is not; None if all are."""
    places = (~torch.isfinite(values)).nonzero()
    return int(places[0]) if len(places) else None


def _check_scalar(result):
    if not isinstance(result, torch.Tensor):
        raise HookError(f"returned a {type(result).__name__}", RIGHT_LOSS)
    if result.numel() != 1:
        raise HookError(f"returned a tensor of shape {list(result.shape)}", f"{RIGHT_LOSS}: sum it")
    if not torch.isfinite(result):
        raise HookError(f"returned {result.item()}", "a finite loss; train.nonfinite does not skip that of a function", is_not_finite=True)


def _shapes(function, columns):
    """Of what the function takes by name, with the range of its values."""
    def one(value):
        if not isinstance(value, torch.Tensor):
            return f"{value:g}"
        of = value.detach()
        span = f" from {of.min().item():.4g} to {of.max().item():.4g}" if of.is_floating_point() and of.numel() else ""
        return f"{list(of.shape)} {str(of.dtype).removeprefix('torch.')}{span}"

    taken = _worker.chosen(function, {name: value for name, value in columns.items() if value is not None})
    return ", ".join(f"{name} {one(value)}" for name, value in taken.items())


def _told(function, adapted, given=None):
    """`adapted`, with what it raises as one line that names `function` and the line of it that failed. `given` says, of the arguments of
    `adapted`, what the function is called with."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None

    own_place = f", at {code.co_filename}:{code.co_firstlineno}" if code else ""
    told = set()  # the same fault on several replicas is shown once

    @functools.wraps(adapted)
    def called(*arguments):
        try:
            return adapted(*arguments)
        except HookError as error:
            remedy = f"{error.remedy}; it was given {given(*arguments)}" if given and error.is_not_finite else error.remedy
            raise HookError(f"`{name}` {error}{own_place}", remedy, error.is_not_finite) from None
        except (Exception, SystemExit) as error:
            which = ""
            if isinstance(error, _worker.Failed):  # some answers of a batch; the cause is what the first of them raised
                error, which = error.__cause__, f", {error.which}"
            frames = [f for f in traceback.extract_tb(error.__traceback__)
                      if f.filename not in (__file__, _worker.__file__) and os.path.dirname(f.filename) not in concurrent.futures.__path__]
            place = f", at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else own_place
            words = " ".join(traceback.format_exception_only(type(error), error)[-1].split())
            if frames and (words, place) not in told:
                told.add((words, place))
                lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames),
                         *traceback.format_exception_only(type(error), error)]
                print("".join(lines), end="", file=sys.stderr, flush=True)
            remedies = ["the traceback stands above"] if frames else []
            remedies += [f"it was given {given(*arguments)}"] if given else []
            raise HookError(f"`{name}` raised {words}{place}{which}", "; ".join(remedies) or "docs/rewards.md") from None

    called.origin = (name, os.path.abspath(code.co_filename) if code and os.path.isfile(code.co_filename) else "")
    return called
