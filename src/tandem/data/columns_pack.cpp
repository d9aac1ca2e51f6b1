// SPDX-License-Identifier: Apache-2.0
// Fields as bytes: magic, number of columns; then per column name, type, lengths, values. Numbers are 64 bit, little endian
// like every machine Tandem runs on.
#include <cstring>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/data/columns.h"

namespace tandem::data {
namespace {

constexpr int64_t kMagic = 0x31646c6569466454;  // "TdField1"

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}
  void number(int64_t value) { raw(&value, sizeof value); }
  void raw(const void* from, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(from);
    out_.insert(out_.end(), begin, begin + bytes);
  }

 private:
  std::vector<std::byte>& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  int64_t number(const char* what) {
    int64_t value = 0;
    raw(&value, sizeof value, what);
    return value;
  }
  /// A number of things of `width` bytes each that must still be there.
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
  bool at_end() const { return left_.empty(); }
  [[noreturn]] static void fail(const std::string& what) { throw PeerError("packed samples: " + what); }

 private:
  std::span<const std::byte> left_;
};

template <size_t I = 0>
Values empty_values(int64_t type) {
  if constexpr (I == std::variant_size_v<Values>)
    Reader::fail(join_text("unknown type ", type));
  else
    return type == I ? Values(std::in_place_index<I>) : empty_values<I + 1>(type);
}

}  // namespace

std::vector<std::byte> pack(const Fields& fields) {
  num_rows(fields);  // checks the columns
  std::vector<std::byte> bytes;
  Writer out(bytes);
  out.number(kMagic);
  out.number(std::ssize(fields));
  for (const auto& [name, column] : fields) {
    out.number(std::ssize(name));
    out.raw(name.data(), name.size());
    out.number(static_cast<int64_t>(column.values.index()));
    out.number(column.num_rows());
    out.raw(column.lengths.data(), column.lengths.size() * sizeof(int64_t));
    std::visit([&](const auto& values) {
      out.number(std::ssize(values));
      out.raw(values.data(), values.size() * sizeof(values[0]));
    }, column.values);
  }
  return bytes;
}

Fields unpack(std::span<const std::byte> bytes) {
  Reader in(bytes);
  if (in.number("magic") != kMagic) Reader::fail("not packed samples");
  Fields fields;
  const int64_t num_columns = in.count(1, "number of columns");
  for (int64_t c = 0; c < num_columns; ++c) {
    std::string name(static_cast<size_t>(in.count(1, "length of a name")), ' ');
    in.raw(name.data(), name.size(), "name");
    Column column;
    column.values = empty_values(in.number("type"));
    column.lengths.resize(static_cast<size_t>(in.count(sizeof(int64_t), "number of rows")));
    in.raw(column.lengths.data(), column.lengths.size() * sizeof(int64_t), "lengths");
    std::visit([&](auto& values) {
      const int64_t count = in.count(sizeof(values[0]), "number of values");
      int64_t left = count;
      for (int64_t length : column.lengths) {
        if (length < 0 || length > left) Reader::fail("lengths of field " + name + " do not fit its values");
        left -= length;
      }
      if (left != 0) Reader::fail("lengths of field " + name + " do not fit its values");
      values.resize(static_cast<size_t>(count));
      in.raw(values.data(), values.size() * sizeof(values[0]), "values");
    }, column.values);
    if (!fields.empty() && fields.begin()->second.num_rows() != column.num_rows())
      Reader::fail("field " + name + " has another number of rows");
    if (!fields.emplace(name, std::move(column)).second) Reader::fail("field " + name + " stands twice");
  }
  if (!in.at_end()) Reader::fail("bytes behind the end");
  return fields;
}

}  // namespace tandem::data
