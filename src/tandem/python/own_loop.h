// SPDX-License-Identifier: Apache-2.0
#pragma once
// The class Session of the module: session/session.h as Python calls it.

#include <nanobind/nanobind.h>

namespace tandem::python {

/// Session(settings: list of (name, value)) with
///
///   encode_text(text), encode_messages(JSON) -> int64 tensor
///   sample(prompts: list of int64 tensors, n, stop, settings) -> for each prompt a list of (ids, logprobs, text, finish)
///   logprobs(rows, settings) -> list of float32 tensors
///   forward_backward(rows, loss or None, settings) -> dict of numbers       loss as in hooks.h
///   step(lr or None) -> dict of numbers
///   num_steps(), save(), load() -> updates
///
/// `settings` come over those of the session: rollout's alone are read. A row is a tuple of tensors or None: (prompt int64, response int64,
/// behavior, advantages, old, reference: float32; mask: bool). It lets go of the lock while ranks work.
/// Errors: those of session::Session.
void declare_session(nanobind::module_& module);

}  // namespace tandem::python
