// SPDX-License-Identifier: Apache-2.0
#pragma once
// Warnings that several ranks have, said once: of each kind the first.

#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tandem::monitor {

struct Notice {
  std::string kind, text;
};

/// As bytes, whatever the texts hold, and back. Errors: InternalError for bytes that to_bytes did not make.
std::string to_bytes(const std::vector<Notice>& notices);
std::vector<Notice> notices_of(const std::string& bytes);

/// Ownership  the ranks of a process share one.
/// Threads    any.
/// Blocking   none.
/// Errors     none.
class Notices {
 public:
  /// Logs what waits.
  ~Notices();

  /// From now on what is said waits for take(): another process logs it.
  void defer();
  /// Logs a warning, or lets it wait, unless one of its kind was said. After kMostKinds nothing is said.
  void say(const std::string& kind, const std::string& text);
  /// What waits, which is then the caller's to say.
  std::vector<Notice> take();

  static constexpr size_t kMostKinds = 20;

 private:
  std::mutex mutex_;
  bool defers_ = false;
  std::set<std::string> said_;
  std::vector<Notice> waiting_;
};

}  // namespace tandem::monitor
