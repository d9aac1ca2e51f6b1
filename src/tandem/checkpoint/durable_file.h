// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that are whole and on the disk once a call returns.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tandem::checkpoint {

/// A file that grows under a temporary name and takes its own by commit().
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
  /// Renames; closes first if that was not done. Once.
  void commit();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  bool partial_ = true;  ///< a file stands under the temporary name
};

/// The bytes as a whole file. Errors: as DurableFile.
void write_durable(const std::string& path, const std::string& bytes);

/// Errors: PeerError naming the path.
void sync_file(const std::string& path);
/// Makes the names in a directory durable. Errors: PeerError naming the path.
void sync_directory(const std::string& path);

/// Errors: PeerError naming the path if it cannot be read.
uint64_t file_checksum(const std::string& path);

}  // namespace tandem::checkpoint
