// SPDX-License-Identifier: Apache-2.0
#pragma once
// One process at a time writes into a folder.

#include <string>

#include "tandem/base/file/descriptor.h"

namespace tandem::checkpoint {

/// Ownership  holds the lock while it lives; an empty one holds none. The file stays.
/// Blocking   at most half a second, while a page looks whether the lock is held (board/run_folder.cpp:is_held).
/// Errors     UserError naming the path: another process, or another part of this one, holds it, or it cannot be opened.
class LockFile {
 public:
  LockFile() = default;
  explicit LockFile(const std::string& path);
  bool holds() const { return file_.is_open(); }
  /// Whether `path` still names the file that is locked.
  bool is_at(const std::string& path) const;

 private:
  Descriptor file_;
};

}  // namespace tandem::checkpoint
