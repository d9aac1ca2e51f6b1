// SPDX-License-Identifier: Apache-2.0
#pragma once
// The file under each sink: grows by whole appends, is cut back on resume, and survives a full disk.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tandem/base/file/descriptor.h"

namespace tandem::monitor {

/// Where a sink starts: absent = an empty file; a number = keep that many bytes, drop what came after the checkpoint.
using ResumeAt = std::optional<int64_t>;

/// How many of the first `bytes` of an open file are whole: it may have been cut short, or changed, since the checkpoint.
using WholeBytes = int64_t (*)(int file, int64_t bytes);
/// Lines, each with its end.
int64_t whole_lines(int file, int64_t bytes);
/// `size` bytes from `at` on, or fewer at the end. Errors: none; what cannot be read is empty.
std::string bytes_at(int file, int64_t at, int64_t size);

/// A file that is appended to. `tail` is kept at its end and overwritten by the next append, so that a format with a
/// closing bracket is whole after every append.
///
/// Ownership  owns the file descriptor.
/// Threads    one at a time.
/// Blocking   flush waits for the disk.
/// Errors     UserError if the file cannot be opened. Afterwards none: a failed append leaves the file as it was before
///            and warns once; later appends are tried again, since space may come back.
class AppendFile {
 public:
  /// What is left of a part at the place to resume at, by `whole`, is cut off.
  AppendFile(std::string path, ResumeAt resume_at_bytes, WholeBytes whole, std::string tail = "");

  /// All of `bytes` or nothing.
  void append(std::string_view bytes) noexcept;
  /// Makes the file durable; returns size_bytes().
  int64_t flush() noexcept;
  /// Bytes without the tail: what to resume at.
  int64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }

 private:
  bool write_at_end(std::string_view bytes) noexcept;
  void warn_once(const char* doing) noexcept;

  std::string path_, tail_;
  Descriptor file_;
  int64_t size_bytes_ = 0;
  bool warned_ = false;
};

}  // namespace tandem::monitor
