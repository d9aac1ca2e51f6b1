// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values as bytes and back: what travels between processes, and lies in files that only Tandem reads. Numbers are 64 bit, little endian
// like every machine Tandem runs on.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
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

/// A struct that names its fields in the order in which they travel: T::each(value, field) calls field(value.x), field(value.y) ...
template <class T>
concept NamesFields = requires(T& value) { T::each(value, [](auto&) {}); };
/// What has a form of its own: write(out, value) and read(in, value) stand beside it.
template <class T>
concept HasOwnForm = requires(ByteWriter& out, ByteReader& in, const T& from, T& to) { write(out, from), read(in, to); };

/// Of an integer, a truth value or a word of an enumeration.
template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
constexpr int64_t whole(T value) {
  return static_cast<int64_t>(value);
}

/// A value as bytes. A number is a number; a struct its fields; a list its length and its elements; a variant the number of what it holds,
/// and that.
struct Pack {
  ByteWriter& out;

  template <class T>
  void operator()(const T& value) const {
    if constexpr (HasOwnForm<T>) write(out, value);
    else if constexpr (NamesFields<T>) T::each(value, *this);
    else out.number(whole(value));
  }
  void operator()(const std::string& text) const { out.text(text); }
  template <class T>
    requires(!HasOwnForm<std::vector<T>>)
  void operator()(const std::vector<T>& list) const {
    out.number(std::ssize(list));
    for (const T& each : list) (*this)(each);
  }
  void operator()(const std::map<std::string, std::string>& texts) const {
    out.number(std::ssize(texts));
    for (const auto& [name, text] : texts) out.text(name), out.text(text);
  }
  template <class... T>
  void operator()(const std::variant<T...>& one) const {
    out.number(static_cast<int64_t>(one.index()));
    std::visit(*this, one);
  }
};

/// Inverse of Pack, into a value as it is made. Errors: as ByteReader.
struct Unpack {
  ByteReader& in;

  template <class T>
  void operator()(T& value) const {
    if constexpr (HasOwnForm<T>) read(in, value);
    else if constexpr (NamesFields<T>) T::each(value, *this);
    else value = static_cast<T>(in.number("a number"));
  }
  void operator()(std::string& text) const { text = in.text("a text"); }
  template <class T>
    requires(!HasOwnForm<std::vector<T>>)
  void operator()(std::vector<T>& list) const {
    const int64_t count = in.count(sizeof(int64_t), "the length of a list");  // no element has fewer bytes
    for (int64_t i = 0; i < count; ++i) {
      T each{};
      (*this)(each);
      list.push_back(std::move(each));
    }
  }
  void operator()(std::map<std::string, std::string>& texts) const {
    for (int64_t left = in.count(2 * sizeof(int64_t), "the number of texts"); left > 0; --left) {
      std::string name = in.text("the name of a text");
      texts[std::move(name)] = in.text("a text");
    }
  }
  template <class... T>
  void operator()(std::variant<T...>& one) const {
    const int64_t index = in.number("a kind of message");
    if (index < 0 || index >= static_cast<int64_t>(sizeof...(T))) in.fail("it is of no known kind");
    int64_t next = 0;
    ((next++ == index ? (*this)(one.template emplace<T>()) : void()), ...);
  }
};

/// The value behind a magic number of its kind.
std::vector<std::byte> packed(int64_t magic, const auto& value) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.number(magic);
  Pack{out}(value);
  return bytes;
}

/// Inverse of packed. Errors: PeerError that begins with `source` for bytes that are none of it; it never reads outside them.
template <class T>
T unpacked(std::span<const std::byte> bytes, const char* source, int64_t magic) {
  ByteReader in(bytes, source);
  if (in.number("magic") != magic) in.fail("another version of Tandem wrote it, or none");
  T value;
  Unpack{in}(value);
  if (!in.at_end()) in.fail("bytes behind the end");
  return value;
}

}  // namespace tandem
