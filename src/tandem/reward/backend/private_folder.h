// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder that a program may write to: how much it holds, and how it is removed, whatever was made in it.

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace tandem::reward {

constexpr int64_t kMaxFiles = 1000;       // names in a private folder
constexpr int64_t kMaxFolderDepth = 16;   // folders within folders there, where they are counted

/// A new folder under the temporary one, removed with all it holds. Errors: PeerError if none can be made.
/// Threads    one. Whoever writes to the folder must have ended before it is removed.
class PrivateFolder {
 public:
  PrivateFolder();
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Removes a folder with all it holds, however deep, without recursion and with at most three descriptors open. Symbolic links are
/// removed, not followed; what is mounted below stays. False if something is left.
bool remove_tree(const std::string& path);

/// Bytes of the files below a folder, as long as or as large on disk, whichever is more; INT64_MAX with more than kMaxFiles names or
/// folders deeper than kMaxFolderDepth. Opens at most that many descriptors.
int64_t folder_bytes(const std::string& path);
/// Bytes of the files that a process has open and that no folder names any more.
int64_t unnamed_bytes(pid_t process);

}  // namespace tandem::reward
