// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions of Python that a recipe names. The program has no Python: it starts its command line anew within one, as
// python/tandem/__main__.py, whose module is this same code.

#include <functional>
#include <string>
#include <vector>

#include "tandem/config/config.h"
#include "tandem/runtime/stage/stages.h"

namespace tandem::cli {

/// Loads what algo.loss and algo.advantage name, where they name functions. Errors: UserError naming the option.
using LoadHooks = std::function<runtime::Hooks(const config::RunConfig& config)>;

/// Of the process around this code; empty in the program. Set it before main().
LoadHooks& host_hooks();

/// Where this code is of a wheel, whose `tandem` and package say so in the environment: names its Python, and the program `tandem`.
void ask_for_wheel();

/// What the program was called with, its name first. main() sets it.
std::vector<std::string>& command_line();

/// The functions of a recipe; none where it names none. In the program it does not return if there are some: the process goes on as the
/// Python of reward.python_executable, or the one of the build.
/// Errors: UserError for a function that cannot be loaded, and where there is no Python or no module for it.
runtime::Hooks hooks_of_recipe(const config::RunConfig& config);

}  // namespace tandem::cli
