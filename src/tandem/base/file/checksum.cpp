// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/file/checksum.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/json_file.h"

namespace tandem {

void Checksum::block(const std::byte* bytes) {
  for (int lane = 0; lane < 4; ++lane) {
    uint64_t word;
    std::memcpy(&word, bytes + 8 * lane, 8);
    lanes_[lane] = std::rotl((lanes_[lane] ^ word) * 0x9FB21C651E98DF25ull, 31);
  }
}

void Checksum::update(std::span<const std::byte> bytes) {
  length_bytes_ += bytes.size();
  if (num_held_ > 0) {
    const size_t taken = std::min(bytes.size(), sizeof held_ - num_held_);
    std::copy_n(bytes.begin(), taken, held_ + num_held_);
    num_held_ += taken;
    bytes = bytes.subspan(taken);
    if (num_held_ < sizeof held_) return;
    block(held_);
    num_held_ = 0;
  }
  for (; bytes.size() >= sizeof held_; bytes = bytes.subspan(sizeof held_)) block(bytes.data());
  std::copy(bytes.begin(), bytes.end(), held_);
  num_held_ = bytes.size();
}

uint64_t Checksum::value() const {
  Checksum last = *this;
  std::fill(last.held_ + last.num_held_, last.held_ + sizeof held_, std::byte{0});
  if (last.num_held_ > 0) last.block(last.held_);
  uint64_t hash = length_bytes_;
  for (uint64_t lane : last.lanes_) {
    hash = (hash ^ lane) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 32;
  }
  return hash;
}

std::string Checksum::text() const {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value()));
  return text;
}

std::string file_digest(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{1} << 30, kBlockBytes = int64_t{1} << 20;
  std::error_code absent;
  if (!std::filesystem::is_regular_file(path, absent) || ::access(path.c_str(), R_OK) != 0) return "absent " + path;
  const RegularFile file(path);
  const int64_t size = file.size_bytes();
  Checksum checksum;
  std::vector<char> block(static_cast<size_t>(kBlockBytes));
  const int64_t stride = kBlockBytes * ((size + kMostBytes - 1) / kMostBytes);
  for (int64_t at = 0; at < size; at += stride) {
    const std::span part = std::span(block).first(static_cast<size_t>(std::min(kBlockBytes, size - at)));
    const int64_t got = file.read(at, part);
    checksum.update(std::as_bytes(part.first(static_cast<size_t>(got))));
  }
  return join_text(size, " ", checksum.value(), " ", std::filesystem::path(path).filename().string());
}

}  // namespace tandem
