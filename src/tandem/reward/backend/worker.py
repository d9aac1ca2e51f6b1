# SPDX-License-Identifier: Apache-2.0
# A persistent worker: loads one function, then scores batches until its channel, descriptor 3, closes; or an environment, and has its
# conversations.
# A message is its length in 8 bytes (little endian) and JSON. reward/backend/python_workers.h has the other side.
#
# Two processes: the worker, and above it its keeper, which is started first and loads nothing. The kernel makes the keeper the parent of
# what the worker's processes leave behind, however they detach themselves. So it can end all of them, and does, before it ends itself.
import asyncio
import difflib
import importlib.util
import inspect
import json
import math
import numbers
import operator
import os
import random
import resource
import signal
import socket
import struct
import sys
import time
import traceback
import types


def receive(channel):
    size = struct.unpack("<Q", exactly(channel, 8))[0]
    return json.loads(exactly(channel, size))


def exactly(channel, size):
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            os._exit(0)  # the run has ended
        parts += part
    return bytes(parts)


def send(channel, value):
    data = json.dumps(value).encode()
    channel.sendall(struct.pack("<Q", len(data)) + data)


def load(wanted):
    """The function a recipe names, from a file or from source of Tandem's own."""
    if wanted["source"]:
        module = types.ModuleType(wanted["name"])
        exec(compile(wanted["source"], wanted["name"] + ".py", "exec"), module.__dict__)
    else:
        path = os.path.abspath(wanted["file"])
        name = os.path.splitext(os.path.basename(path))[0]
        sys.path.insert(0, os.path.dirname(path))
        sys.argv[:] = [path]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None:
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    function = getattr(module, wanted["function"], None)
    is_class = wanted.get("is_environment", False)  # a host of the wheel asks for functions alone
    is_kind, kind, kinds = (inspect.isclass, "class", "classes") if is_class else (callable, "function", "functions")
    if not is_kind(function):
        is_listed = inspect.isclass if is_class else inspect.isfunction
        names = [name for name, value in vars(module).items() if is_listed(value) and value.__module__ == module.__name__]
        there = ", ".join(f"`{name}`" for name in names) or "none"
        raise AttributeError(f"there is no {kind} `{wanted['function']}`; the file's {kinds}: {there}")
    return function


def chosen(function, given):
    """Of the arguments there are, those the function takes by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return given
    for p in parameters:
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in given:
            near = difflib.get_close_matches(p.name, given, 1)
            meant = f"; did you mean `{near[0]}`?" if near else ""
            raise TypeError(f"the function wants `{p.name}`, which is neither an argument nor a column{meant}")
        if p.kind is p.POSITIONAL_ONLY:
            raise TypeError(f"`{p.name}` is positional-only; arguments are given by name")
    names = {p.name for p in parameters}
    return {name: value for name, value in given.items() if name in names}


def call(function, arguments):
    result = function(**arguments)
    return asyncio.run(result) if inspect.isawaitable(result) else result


BATCH_ARGUMENTS = ("prompts", "completions", "answers", "data_sources", "response_tokens", "truncated")
ANSWER_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info", "prompt")


def shown(text):
    """The beginning and the end of an answer: in the latter most of them say what counts."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN // 2]} ... {text[-SHOWN // 2:]}")


SHOWN = 120  # characters


class Failed(Exception):
    """Of some answers of a batch; its cause is what the first of them raised. `which` says which failed, in words."""

    def __init__(self, which):
        super().__init__(which)
        self.which = which

    @classmethod
    def alone(cls, places, batch):
        texts = batch["completions"]
        return cls(f"for {len(places)} of {len(texts)} answers, {'first ' if len(places) > 1 else ''}{shown(texts[places[0]])}")


def each(function, items, kinds, batch):
    """function(item) for each item of a batch. Errors: Failed, for those that raise one of the kinds."""
    results, errors = [], {}
    for i, item in enumerate(items):
        try:
            results.append(function(item))
        except kinds as error:
            errors[i] = error
    if errors:
        raise Failed.alone(list(errors), batch) from next(iter(errors.values()))
    return results


def one_by_one(function, batch):
    """verl's form: compute_score(data_source, solution_str, ground_truth, extra_info)."""
    def one(i):
        row = batch["columns"][i]
        given = {**row, "data_source": batch["data_sources"][i], "solution_str": batch["completions"][i],
                 "ground_truth": batch["answers"][i], "extra_info": row.get("extra_info", row), "prompt": batch["prompts"][i]}
        return call(function, chosen(function, given))
    return each(one, range(len(batch["completions"])), (Exception, SystemExit), batch)


def all_at_once(function, batch):
    """TRL's form: score(prompts, completions, answers, **columns). One call: what it raises is of the group."""
    begin = time.monotonic()
    try:
        return group_scores(function, batch)
    except (Exception, SystemExit) as error:
        of = len(batch["completions"])
        if of == 1:
            raise Failed.alone([0], batch) from error
        which = failing_alone(function, batch) if time.monotonic() - begin < ASKED_ALONE_S else ""
        raise Failed(f"in the call for a group of {of} answers{which}") from error


ASKED_ALONE_S = 0.1  # a call for a group that takes longer is not made again: the batch has one deadline


def failing_alone(function, batch):
    """In words, for how many answers the function fails alone, too."""
    places = []
    for i in range(len(batch["completions"])):
        try:
            seed(batch)
            group_scores(function, {name: value if name == "seed" else value[i:i + 1] for name, value in batch.items()})
        except (Exception, SystemExit):
            places.append(i)
    if not places:
        return "; called with one answer at a time it does not fail"
    return f"; called with one answer at a time it fails {Failed.alone(places, batch).which}"


def group_scores(function, batch):
    names = {name: None for row in batch["columns"] for name in row}
    given = {name: [row.get(name) for row in batch["columns"]] for name in names}
    given.update({name: batch[name] for name in BATCH_ARGUMENTS})
    results = call(function, chosen(function, given))
    results = results.tolist() if hasattr(results, "tolist") else results
    if isinstance(results, (str, bytes, dict)) or not hasattr(results, "__iter__"):
        wanted = len(batch["completions"])
        raise TypeError(f"the function returned {results!r:.60}, expected a list with a score for each of the {wanted} completions")
    results = list(results)
    if len(results) != len(batch["completions"]):
        raise ValueError(f"the function returned {len(results)} scores for {len(batch['completions'])} completions")
    return results


def number(value, what):
    if not isinstance(value, (numbers.Real, bool)) and not hasattr(value, "__float__"):
        raise TypeError(f"{what} is {value!r}, which is no number")
    if not math.isfinite(float(value)):
        raise ValueError(f"{what} is {value!r}, which is not finite")
    return float(value)


LEFT_OUT = set()  # names of parts that this process said to be no numbers


def scored(value):
    """A result as [score or null, parts, extracted answer]."""
    if value is None:
        return [None, {}, ""]
    if not isinstance(value, dict):
        return [number(value, "the score"), {}, ""]
    parts = {}
    for name, part in value.items():
        if isinstance(part, (numbers.Real, bool)) or hasattr(part, "__float__"):
            parts[str(name)] = number(part, f"part `{name}`")
        elif name == "score":
            number(part, "the score")
        elif name not in ("extracted", "pred") and name not in LEFT_OUT:
            LEFT_OUT.add(name)
            print(f"part `{name}` of a score is no number, and is left out: {shown(repr(part))}")
    if not parts:
        raise TypeError(f"the score is {shown(repr(value))}, which holds no number")
    score = parts.pop("score") if "score" in parts else sum(parts.values())
    extracted = value.get("extracted", value.get("pred"))
    return [score, parts, extracted if isinstance(extracted, str) else ""]


def seed(batch):
    """The same group, the same numbers, whichever worker and however often."""
    random.seed(batch["seed"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(batch["seed"] % 2**32)


def answer(function, batch):
    seed(batch)
    form = one_by_one if takes_one(function) else all_at_once
    return {"scores": each(scored, form(function, batch), (TypeError, ValueError), batch)}


class Episodes:
    """The conversations of one class of the user, by the number that the run gives them."""

    def __init__(self, environment):
        for name in ("reset", "step"):
            if not callable(getattr(environment, name, None)):
                raise AttributeError(f"`{environment.__name__}` has no `{name}`")
        self.environment, self.open = environment, {}

    def answer(self, message):
        for number in message["over"]:
            self.end(number)
        number = message["episode"]
        if number < 0:
            return {}
        if "reset" in message:
            episode = self.environment()
            said = call(episode.reset, chosen(episode.reset, {**message["columns"], **message["reset"]}))
            if said is not None:
                raise TypeError(f"`reset` returned {said!r:.60}: the first words are those of the prompt, in the data")
            self.open[number] = episode
            return {}
        if number not in self.open:
            return {"unknown": True}
        step = self.open[number].step
        reply = turn(call(step, chosen(step, message["step"])))
        if reply["done"]:
            self.end(number)
        return reply

    def end(self, number):
        """What fails here fails nobody else."""
        close = getattr(self.open.pop(number, None), "close", None)
        try:
            if callable(close):
                call(close, {})
        except (Exception, SystemExit):
            traceback.print_exc()


MOST_CHARS = 1 << 20  # of what an environment says in a turn


def turn(value):
    """What `step` returns: (text or ids, reward or None, done), or a dict with text, ids, reward, done."""
    if isinstance(value, (tuple, list)) and len(value) == 3:
        said, reward, done = value
        value = {"text" if said is None or isinstance(said, str) else "ids": said, "reward": reward, "done": done}
    if not isinstance(value, dict) or set(value) - {"text", "ids", "reward", "done"}:
        raise TypeError(f"`step` returned {value!r:.60}, expected (text or ids, reward or None, done), or a dict of them by name")
    text, ids, reward = value.get("text") or "", value.get("ids"), value.get("reward")
    if not isinstance(text, str):
        raise TypeError(f"`text` is {text!r:.60}, which is no text")
    text.encode("utf-8")  # else it could not be sent
    ids = [] if ids is None else [operator.index(each) for each in ids]
    if text and ids:
        raise ValueError("`step` gave text and ids: one of the two")
    if max(len(text), len(ids)) > MOST_CHARS:
        raise ValueError(f"`step` said {max(len(text), len(ids))} characters or ids in one turn, of at most {MOST_CHARS}")
    return {"text": text, "ids": ids, "reward": None if reward is None else number(reward, "the reward"), "done": bool(value.get("done"))}


def takes_one(function):
    return "solution_str" in inspect.signature(function).parameters


def place_of(error, frames, function, file):
    """The line of the user's own file that failed: the innermost there, however deep in a library it ended. Without one, the function."""
    if isinstance(error, SyntaxError) and os.path.isfile(error.filename or ""):  # perhaps what the user's file imports
        return f" at {error.filename}:{error.lineno}"
    own = [f for f in frames if file and f.filename == os.path.abspath(file)] or frames
    if own:
        return f" at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}"
    code = getattr(inspect.unwrap(function), "__code__", None) if function else None
    return f" at {code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code else ""


def failure(error, function=None, file="", is_worker=True):
    """What went wrong: one line for the error, and the traceback without frames of this file. A worker has options of its own."""
    here = globals().get("__file__", "<string>")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != here and "importlib" not in f.filename]
    last = traceback.format_exception_only(type(error), error)
    place = place_of(error, frames, function, file)
    lines = (["Traceback (most recent call last):\n"] + traceback.format_list(frames) if frames else []) + last
    hint = ""
    if isinstance(error, MemoryError) and is_worker:
        hint = " (reward.python_memory_mib is what a worker may have)"
    if isinstance(error, ModuleNotFoundError):
        hint = f" (this Python is {sys.executable}{'; reward.python_executable names another' if is_worker else ''})"
    return {"error": " ".join(last[-1].split()) + place + hint, "kind": type(error).__name__ + place, "traceback": "".join(lines)}


def failure_of_batch(error, function, wanted, batch):
    """The same, for which answers of the batch, and what the function could have asked for."""
    which = ""
    if isinstance(error, Failed):
        error, which = error.__cause__, error.which
    reply = failure(error, function, wanted["file"])
    arguments = ANSWER_ARGUMENTS if takes_one(function) else BATCH_ARGUMENTS
    columns = sorted({str(name) for row in batch["columns"] for name in row} - set(arguments))
    return {**reply, "which": which, "arguments": arguments, "columns": columns}


KEEPER_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
KEEPER_PATIENCE_S = 5  # for processes that no signal ends


def reaped():
    """The status of each process below that has ended since."""
    statuses = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses, False
        if pid == 0:
            return statuses, True
        statuses[pid] = status


def children():
    own = os.getpid()
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended
        if parent == own:
            yield int(entry)


def end_children():
    """As each ends, the kernel gives us what stood below it; so none is left once we have none."""
    deadline = time.monotonic() + KEEPER_PATIENCE_S
    while reaped()[1] and time.monotonic() < deadline:
        for pid in children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.002)


def keep(worker):
    """Until the worker ends, or SIGTERM says to end it. Then ends the rest, and itself as the worker did."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2, 3):
        os.dup2(null, fd)
    status = None
    while status is None:
        if signal.sigwait(KEEPER_SIGNALS) == signal.SIGTERM:
            os.kill(worker, signal.SIGKILL)
        status = reaped()[0].get(worker)
    end_children()
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def start_worker():
    """Returns in the worker alone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, KEEPER_SIGNALS)
    worker = os.fork()
    if worker:
        keep(worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, KEEPER_SIGNALS)


def bound_memory(most):
    """Of data: what is only reserved, as libraries for devices do by the terabyte, is free."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if most and (hard == resource.RLIM_INFINITY or most < hard):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main():
    start_worker()
    channel = socket.socket(fileno=3)
    channel.set_inheritable(False)
    function, wanted, episodes = None, None, None
    while True:
        message = receive(channel)
        try:
            if function is None:
                wanted = message
                bound_memory(message["memory_bytes"])
                loaded = load(message)
                episodes = Episodes(loaded) if message["is_environment"] else None
                function = loaded
                reply = {"ready": True}
            elif episodes:
                reply = episodes.answer(message)
            else:
                reply = answer(function, message)
        except (Exception, SystemExit) as error:
            if function is None:
                reply = failure(error, None, wanted["file"])
            elif episodes:
                reply = failure(error, function.step, wanted["file"])
            else:
                reply = failure_of_batch(error, function, wanted, message)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:
            pass
        send(channel, reply)


if __name__ == "__main__":
    main()
