// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/json_depth.h"

namespace tandem {

bool nests_too_deep(std::string_view json) {
  bool within_text = false;
  int depth = 0;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (within_text) {
      if (c == '\\') ++i;
      within_text = c != '"';
    } else if (c == '"') {
      within_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace tandem
