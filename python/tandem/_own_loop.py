# SPDX-License-Identifier: Apache-2.0
"""A loop of your own: a model that samples and scores, and what trains it."""
import dataclasses
import json
import operator
import os
import secrets
from collections.abc import Callable, Iterable, Sequence

import torch

from tandem import _hooks, _tandem
from tandem._run import texts_of


@dataclasses.dataclass(eq=False)
class Sample:
    """A response of T tokens. `advantage` to `reference` are yours to set before training: `advantage` must be."""
    prompt: str | list[dict] | torch.Tensor  # as it was asked
    prompt_ids: torch.Tensor  # int64 [prompt tokens]
    ids: torch.Tensor         # int64 [T]
    logprobs: torch.Tensor    # float32 [T]: as sampled
    text: str                 # "" where the model has no tokenizer
    finish: str               # "stop" or "length"
    group: int                # place of its prompt in the call
    advantage: float | torch.Tensor | None = None  # of the response, or [T]
    mask: torch.Tensor | None = None               # bool [T]: the tokens to train on; None: all
    old: torch.Tensor | None = None                # float32 [T]: before the first update on it; None: by the weights as they are where
                                                   # these sampled it, else `logprobs`
    reference: torch.Tensor | None = None          # float32 [T]: by a reference model
    version: int | None = None                     # updates of the policy before it sampled this; None: a policy that is not trained did
    policy: str | None = None                      # which `Policy` sampled it, from one load to the next


class Policy:
    """A model, opened for a loop of your own.

    model     a Hugging Face directory, or a name on a hub such as OWNER/NAME, which is fetched once
    dir       where `Trainer.save` writes and `Trainer.load` reads; None: nowhere
    settings  options of docs/config.md, in the sections run, model, rollout, algo, train, checkpoint and parallel, such as
              {"train.lr": 1e-5, "rollout.temperature": 0.7, "parallel.ranks": 2, "parallel.train_layout": "tp2"}

    Its ranks are threads that live until `close`, or the end of a `with` block. One thread calls, in the process that opened it. Raises
    UserError for what cannot be opened."""

    def __init__(self, model: str | os.PathLike, *, dir: str | os.PathLike | None = None, settings: dict | None = None):
        self.model = os.fspath(model)
        self.dir = None if dir is None else os.fspath(dir)
        given = {**(settings or {}), "model.path": self.model}
        if self.dir is not None:
            given["run.dir"] = self.dir
        self._open = _tandem.Session(texts_of(given))
        self._name = secrets.token_hex(8)

    @property
    def _session(self):
        if self._open is None:
            raise _tandem.UserError("the policy: is closed (a new tandem.Policy)")
        return self._open

    def encode(self, prompt: str | list[dict]) -> torch.Tensor:
        """The tokens of a text, or of messages {"role", "content"} by the model's chat template: int64 [tokens]."""
        if isinstance(prompt, str):
            return self._session.encode_text(prompt)
        return self._session.encode_messages(json.dumps({"messages": list(prompt)}))

    def sample(self, prompts: Sequence, n: int = 1, *, stop: Sequence[str] = (), temperature: float | None = None,
               top_p: float | None = None, top_k: int | None = None, max_new_tokens: int | None = None) -> list[Sample]:
        """Answers each prompt n times, with the weights as they are. The samples of a prompt stand together, in the order of the prompts.

        prompts   texts, lists of messages, or tokens: int64 tensors or lists of numbers
        stop      texts that end a response; they are cut off its text
        the rest  as the options rollout.*, whose values count where they are None; temperature 0 is greedy"""
        if isinstance(prompts, str) or isinstance(stop, str):
            raise _wrong("prompts" if isinstance(prompts, str) else "stop", "is one text", "expected a list of texts")
        prompts = list(prompts)
        ids = [_tokens(self, prompt, f"prompt {place}") for place, prompt in enumerate(prompts)]
        how = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "max_new_tokens": max_new_tokens}
        settings = texts_of({f"rollout.{name}": value for name, value in how.items() if value is not None})
        return [Sample(prompts[place], ids[place], *answer, group=place, version=version, policy=self._name)
                for place, answers in enumerate(self._session.sample(ids, n, list(stop), settings)) for *answer, version in answers]

    def logprobs(self, samples: Iterable, *, temperature: float | None = None) -> list[torch.Tensor]:
        """The log-probability of each response token under the weights as they are, float32 [T] for each sample. Logits are divided by
        `temperature`: None takes rollout.temperature. A sample is anything with `prompt_ids` and `ids`."""
        rows = [(_ids(sample.prompt_ids, f"sample {i}, prompt_ids"), _ids(sample.ids, f"sample {i}, ids"), *[None] * 6)
                for i, sample in enumerate(samples)]
        return self._session.logprobs(rows, _temperature(temperature))

    def close(self) -> None:
        """Ends its ranks and frees its memory."""
        self._open = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class Trainer:
    """What trains a policy, which has one set of gradients, one optimizer and one line of checkpoints."""

    def __init__(self, policy: Policy):
        self.policy = policy

    @property
    def steps(self) -> int:
        """Updates so far."""
        return self.policy._session.num_steps()

    def forward_backward(self, samples: Iterable, loss: Callable | None = None, *, temperature: float | None = None) -> dict[str, float]:
        """Adds the gradient of a loss to those since the last `step`. Returns what was measured: loss, entropy, kl_ref, kl_old,
        clip_fraction, ratio_max, tokens.

        samples  with an `advantage` each. One that has no `old` is compared with its `logprobs` once the weights have moved since it was
                 sampled, or where another policy sampled it
        loss     h(...) -> a scalar tensor, as tandem.run has it, of these samples; its global numbers count this call alone.
                 None: that of algo.* in the settings"""
        rows = [_row(sample, f"sample {i}", self.policy._name) for i, sample in enumerate(samples)]
        return self.policy._session.forward_backward(rows, _hooks.of_loss(loss), _temperature(temperature))

    def step(self, lr: float | None = None) -> dict[str, float]:
        """One update by the gradients that are there. Returns the sum of the losses since the last, means of the others over all tokens,
        grad_norm, lr, and whether it was skipped. `lr` None: that of train.* in the settings, where a schedule wants train.lr_steps."""
        return self.policy._session.step(lr)

    def save(self) -> None:
        """A checkpoint in the policy's dir, as a run has it: whole or absent. Its hf/ is a Hugging Face directory. A dir with checkpoints
        that this policy did not load is refused. Where the disk is full, the policy stays as it is."""
        self._with_dir().save()

    def load(self) -> int:
        """Goes on from the newest checkpoint in the policy's dir. Returns its updates; 0, and nothing changes, where there is none."""
        steps = self._with_dir().load()
        if steps > 0:  # weights of the same number may be others than before
            self.policy._name = secrets.token_hex(8)
        return steps

    def _with_dir(self):
        if self.policy.dir is None:
            raise _tandem.UserError("dir: is None, so there is no place for checkpoints (tandem.Policy(model, dir=...))")
        return self.policy._session


def _temperature(value):
    return [] if value is None else texts_of({"rollout.temperature": value})


def _tokens(policy, prompt, where):
    if isinstance(prompt, str) or (isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict)):
        return policy.encode(prompt)
    return _ids(prompt, where)


def _wrong(where, what, right):
    return _tandem.UserError(f"{where}: {what} ({right})")


def _ids(values, where):
    try:
        ids = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise _wrong(where, f"is a {type(values).__name__}", "expected tokens: an int64 tensor, or a list of numbers") from None
    if ids.ndim == 1 and len(ids) == 0:
        raise _wrong(where, "has no token", "at least one")
    if ids.ndim != 1 or ids.dtype not in (torch.int64, torch.int32):
        raise _wrong(where, f"has the shape {list(ids.shape)} and the dtype {ids.dtype}", "expected tokens: int64 [tokens]")
    ids = ids.to(device="cpu", dtype=torch.int64).contiguous()
    wrong = ids[(ids < 0) | (ids >= 2**31)]
    if len(wrong):
        raise _wrong(where, f"has the token id {wrong[0].item()}", "expected ids of the model's vocabulary")
    return ids


def _row(sample, where, policy):
    prompt, ids = _ids(sample.prompt_ids, f"{where}, prompt_ids"), _ids(sample.ids, f"{where}, ids")

    def column(name, value, dtype=torch.float32):
        if value is None:
            return None
        if not isinstance(value, torch.Tensor) and name != "advantage":
            raise _wrong(f"{where}, {name}", f"is a {type(value).__name__}", f"expected a tensor [{len(ids)}]")
        try:
            values = torch.as_tensor(value).detach().to(device="cpu")
        except (TypeError, ValueError, RuntimeError):
            raise _wrong(f"{where}, {name}", f"is a {type(value).__name__}", f"expected a number, or a tensor [{len(ids)}]") from None
        if (values.dtype == torch.bool) != (dtype == torch.bool):
            raise _wrong(f"{where}, {name}", f"has the dtype {values.dtype}", f"expected {dtype}")
        if values.ndim == 0 and name == "advantage":
            values = values.expand(len(ids))
        if values.shape != ids.shape:
            raise _wrong(f"{where}, {name}", f"has the shape {list(values.shape)}", f"expected a value for each of its {len(ids)} tokens")
        if dtype != torch.bool and not torch.isfinite(values).all():
            raise _wrong(f"{where}, {name}", f"has the value {values[~torch.isfinite(values)][0].item()}", "expected finite numbers")
        return values.to(dtype).contiguous()

    if getattr(sample, "advantage", None) is None:
        raise _wrong(where, "has no advantage", "expected a number, or one for each token")
    columns = [column(name, getattr(sample, name, None)) for name in ("logprobs", "advantage", "old", "reference")]
    return prompt, ids, *columns, column("mask", getattr(sample, "mask", None), torch.bool), _version(sample, where, policy)


def _version(sample, where, policy):
    """None where another policy sampled it."""
    version = getattr(sample, "version", None)
    if version is None or getattr(sample, "policy", None) not in (None, policy):
        return None
    try:
        return operator.index(version)
    except TypeError:
        raise _wrong(f"{where}, version", f"is a {type(version).__name__}", "expected a number of updates, or None") from None
