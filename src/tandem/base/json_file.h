// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files of the user's, opened for reading: whoever opens one goes through here, for a pipe given as a file would wait for a writer for
// ever, and a device has no end. Small ones are read and written whole, with errors that name them.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tandem/base/file/descriptor.h"

namespace tandem {

constexpr int64_t kMostWholeFileBytes = int64_t{1} << 30;  ///< of a file that is read whole, where its reader names no smaller bound

/// A file that is no folder, pipe, socket or device; a link to one counts as what it leads to.
///
/// Ownership  of the descriptor.
/// Threads    const members from any thread.
/// Blocking   on the disk alone: opening never waits for a writer.
/// Errors     UserError naming the path and what stands there instead; as `remedy` says, what would be right.
class RegularFile {
 public:
  explicit RegularFile(const std::string& path, const std::string& remedy = "expected an existing, readable file");

  int fd() const { return file_.number(); }
  /// The caller closes it.
  Descriptor release() { return std::move(file_); }
  /// Now; a file may grow while it is open.
  int64_t size_bytes() const;
  /// Reads `to.size()` bytes from `from` on; returns how many there are. Errors: UserError if the disk fails.
  int64_t read(int64_t from, std::span<char> to) const;
  /// All of it. Errors: UserError if there is more than `most_bytes`, which is found before any memory is taken for it.
  std::string read_whole(int64_t most_bytes = kMostWholeFileBytes) const;

 private:
  std::string path_;
  Descriptor file_;
};

/// For a library that opens the file itself. Errors: as RegularFile.
void require_regular_file(const std::string& path, const std::string& remedy);

constexpr int64_t kMostJsonFileBytes = int64_t{1} << 27;  ///< read, it takes some ten times as much memory

/// The bytes of a regular file. Errors: UserError naming the path if it is missing, unreadable, a pipe or a device, or larger than
/// `most_bytes`.
std::string read_file(const std::string& path, int64_t most_bytes = kMostWholeFileBytes);
/// A file of others. Errors: as read_file, of at most kMostJsonFileBytes; UserError if it is not a JSON object, or nests deeper than
/// kMaxJsonDepth.
nlohmann::json read_json_object(const std::string& path);
/// Refuses a file of ours unless the number of its format is 1 to `newest`. Null stands for a file without a number: older programs
/// wrote none, and this one reads them. Errors: UserError naming the file, its number, and those that this program reads.
void check_format(const nlohmann::json& number, const std::string& path, int64_t newest);
/// Errors: PeerError naming the path if it cannot be written.
void write_file(const std::string& path, const std::string& bytes);

}  // namespace tandem
