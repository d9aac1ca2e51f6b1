// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that are whole and on the disk once a call returns.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tandem/base/file/checksum.h"
#include "tandem/base/file/descriptor.h"

namespace tandem {

/// A file that grows under a temporary name and takes its own by commit(). Its bytes go to the disk past the page cache where the file
/// system lets them: that costs little of the processor's time, and neither evicts nor delays what others read and write.
///
/// Ownership  owns the partial file: without commit() it is removed, and what stood at `path` is untouched.
/// Errors     PeerError naming the path (disk full, unwritable).
class DurableFile {
 public:
  explicit DurableFile(const std::string& path);
  ~DurableFile();
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;

  void append(std::span<const std::byte> bytes);
  /// Makes the bytes durable. Nothing may be appended afterwards.
  void close();
  /// Renames; closes first if that was not done. Once. Returns the checksum of the bytes.
  std::string commit();
  const std::string& path() const { return path_; }

 private:
  void write_block();
  struct Free {
    void operator()(std::byte* block) const;
  };

  std::string path_;
  Descriptor file_;
  std::unique_ptr<std::byte, Free> block_;  ///< what is not written yet
  size_t held_ = 0;                         ///< bytes of it
  Checksum sum_;
  bool partial_ = true;  ///< a file stands under the temporary name
};

/// The bytes as a whole file. Returns their checksum. Errors: as DurableFile.
std::string write_durable(const std::string& path, const std::string& bytes);

/// Errors: PeerError naming the path.
void sync_file(const std::string& path);
/// Makes the names in a directory durable. Errors: PeerError naming the path.
void sync_directory(const std::string& path);

/// Errors: PeerError naming the path if it cannot be read.
std::string file_checksum(const std::string& path);

}  // namespace tandem
