// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values as bytes and back: what travels between processes, and lies in files that only Tandem reads. Numbers are 64 bit, little endian
// like every machine Tandem runs on.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem {

class ByteWriter {
 public:
  /// Appends to `out`.
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}
  void number(int64_t value) { raw(&value, sizeof value); }
  void raw(const void* from, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(from);
    out_.insert(out_.end(), begin, begin + bytes);
  }
  /// Their number, then they.
  void text(const std::string& text) {
    number(std::ssize(text));
    raw(text.data(), text.size());
  }
  void bytes(std::span<const std::byte> bytes) {
    number(std::ssize(bytes));
    raw(bytes.data(), bytes.size());
  }

 private:
  std::vector<std::byte>& out_;
};

/// Errors: PeerError that begins with `source` if bytes are missing or a count cannot be; it never reads outside `bytes`, and nobody who
/// trusts count() makes room for more than `bytes` has.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, const char* source) : left_(bytes), source_(source) {}

  int64_t number(const char* what) {
    int64_t value = 0;
    raw(&value, sizeof value, what);
    return value;
  }
  /// A number of things of `width` bytes each, at least, that must still be there.
  int64_t count(size_t width, const char* what) {
    const int64_t value = number(what);
    if (value < 0 || static_cast<uint64_t>(value) > left_.size() / width)
      fail(join_text(what, " is ", value, " with ", left_.size(), " bytes left"));
    return value;
  }
  void raw(void* to, size_t bytes, const char* what) {
    if (bytes > left_.size()) fail(join_text(what, " ends after ", left_.size(), " of ", bytes, " bytes"));
    if (bytes > 0) std::memcpy(to, left_.data(), bytes);
    left_ = left_.subspan(bytes);
  }
  std::string text(const char* what) {
    std::string text(static_cast<size_t>(count(1, what)), ' ');
    raw(text.data(), text.size(), what);
    return text;
  }
  /// In place.
  std::span<const std::byte> bytes(const char* what) {
    const std::span<const std::byte> bytes = left_.first(static_cast<size_t>(count(1, what)));
    left_ = left_.subspan(bytes.size());
    return bytes;
  }
  /// All that is left, in place.
  std::span<const std::byte> rest() { return std::exchange(left_, {}); }
  bool at_end() const { return left_.empty(); }
  [[noreturn]] void fail(const std::string& what) const { throw PeerError(std::string(source_) + ": " + what); }

 private:
  std::span<const std::byte> left_;
  const char* source_;
};

}  // namespace tandem
