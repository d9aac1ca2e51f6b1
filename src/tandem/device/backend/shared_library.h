// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions of a driver that is looked up where it is, so that a program starts on machines without it.

#include <dlfcn.h>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::device {

/// Loaded once and never unloaded. Errors: PeerError naming the library, or the function that it lacks.
template <class Function>
Function* function_of(const char* library, const char* name) {
  void* const loaded = ::dlopen(library, RTLD_NOW);
  if (!loaded) throw PeerError(join_text("the driver cannot be loaded: ", ::dlerror()));
  void* const function = ::dlsym(loaded, name);
  if (!function) throw PeerError(join_text(library, " has no ", name, " (a newer driver has it)"));
  return reinterpret_cast<Function*>(function);
}

}  // namespace tandem::device
