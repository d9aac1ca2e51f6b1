// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an action says when it fails.

#include <functional>
#include <string>

#include "tandem/base/error.h"

namespace tandem::test {

/// The text of the error; "" if there is none. Errors of another kind pass through.
template <class Error = UserError>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace tandem::test
