// SPDX-License-Identifier: Apache-2.0
#pragma once
// TANDEM_CHECK states an invariant; when it fails the program has a bug and says where.

#include <sstream>
#include <string>

namespace tandem {

[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& message);

template <class... Parts>
std::string join_text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace tandem

#define TANDEM_CHECK(condition, ...) \
  do {                               \
    if (!(condition)) [[unlikely]]   \
      ::tandem::fail_check(__FILE__, __LINE__, #condition, ::tandem::join_text(__VA_ARGS__)); \
  } while (false)
