// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/check.h"

#include "tandem/base/error.h"

namespace tandem {

void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(join_text(file, ":", line, ": check failed: ", condition, message.empty() ? "" : ": ", message));
}

}  // namespace tandem
