// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions of Python as hooks of a run. Threads of ranks call them: each call takes the interpreter's lock.

#include <nanobind/nanobind.h>

#include "tandem/runtime/stage/stages.h"

namespace tandem::python {

/// The functions of tandem/_hooks.py, or None. They take and return plain values and tensors, and raise HookError, with words for the user.
///
///   reward     (batch as JSON) -> scores as JSON: reward/batch.h:batch_json, scores_of
///   advantage  (scores, groups, lengths: tensors [responses], float64 and int64) -> list of floats
///   loss       (columns: dict of tensors [R] and numbers) -> (loss, gradient by logprobs [R], that by entropy [R] or None), float32
///
/// Errors: UserError with the words of a HookError, or of any other exception. Call it with the lock held.
runtime::Hooks hooks_of(nanobind::object reward, nanobind::object advantage, nanobind::object loss);

/// The functions that a recipe names, loaded by `load` (kind, FILE.py:FUNCTION), where `given` has none. Errors: UserError naming the
/// option. Call it with the lock held.
runtime::Hooks hooks_of_recipe(const config::RunConfig& config, const nanobind::object& load, runtime::Hooks given = {});

}  // namespace tandem::python
