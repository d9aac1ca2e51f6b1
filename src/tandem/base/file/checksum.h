// SPDX-License-Identifier: Apache-2.0
#pragma once
// A number that tells damaged bytes.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace tandem {

/// 64-bit checksum against damage, not against forgery: four lanes of 8-byte words, multiplied and rotated.
class Checksum {
 public:
  void update(std::span<const std::byte> bytes);
  uint64_t value() const;
  /// The value as a manifest has it: 16 hexadecimal digits.
  std::string text() const;

 private:
  void block(const std::byte* bytes);
  uint64_t lanes_[4] = {0x9E3779B97F4A7C15ull, 0xC2B2AE3D27D4EB4Full, 0x165667B19E3779F9ull, 0x27D4EB2F165667C5ull};
  std::byte held_[32];
  size_t num_held_ = 0;
  uint64_t length_bytes_ = 0;
};

inline uint64_t checksum_of(std::span<const std::byte> bytes) {
  Checksum checksum;
  checksum.update(bytes);
  return checksum.value();
}

/// Checksums of files, as a manifest has them, by their path in a folder.
using Sums = std::map<std::string, std::string>;

/// "BYTES CHECKSUM NAME" of a file, whose checksum is of at most 1 GiB that is spread over it; "absent PATH" where none can be read.
std::string file_digest(const std::string& path);

}  // namespace tandem
