// SPDX-License-Identifier: Apache-2.0
// Fields as bytes: magic, number of columns; then per column name, type, lengths, values.
#include "tandem/base/file/bytes.h"
#include "tandem/data/columns.h"

namespace tandem::data {
namespace {

constexpr int64_t kMagic = 0x31646c6569466454;  // "TdField1"

constexpr const char* kSource = "packed samples";

template <size_t I = 0>
Values empty_values(int64_t type, const ByteReader& in) {
  if constexpr (I == std::variant_size_v<Values>)
    in.fail(join_text("unknown type ", type));
  else
    return type == I ? Values(std::in_place_index<I>) : empty_values<I + 1>(type, in);
}

}  // namespace

std::vector<std::byte> pack(const Fields& fields) {
  std::vector<std::byte> bytes;
  pack(fields, bytes);
  return bytes;
}

void pack(const Fields& fields, std::vector<std::byte>& bytes) {
  num_rows(fields);  // checks the columns
  ByteWriter out(bytes);
  out.number(kMagic);
  out.number(std::ssize(fields));
  for (const auto& [name, column] : fields) {
    out.text(name);
    out.number(static_cast<int64_t>(column.values.index()));
    out.number(column.num_rows());
    out.raw(column.lengths.data(), column.lengths.size() * sizeof(int64_t));
    std::visit([&](const auto& values) {
      out.number(std::ssize(values));
      out.raw(values.data(), values.size() * sizeof(values[0]));
    }, column.values);
  }
}

Fields unpack(std::span<const std::byte> bytes) {
  ByteReader in(bytes, kSource);
  if (in.number("magic") != kMagic) in.fail("not packed samples");
  Fields fields;
  const int64_t num_columns = in.count(1, "number of columns");
  for (int64_t c = 0; c < num_columns; ++c) {
    const std::string name = in.text("length of a name");
    Column column;
    column.values = empty_values(in.number("type"), in);
    column.lengths.resize(static_cast<size_t>(in.count(sizeof(int64_t), "number of rows")));
    in.raw(column.lengths.data(), column.lengths.size() * sizeof(int64_t), "lengths");
    std::visit([&](auto& values) {
      const int64_t count = in.count(sizeof(values[0]), "number of values");
      int64_t left = count;
      for (int64_t length : column.lengths) {
        if (length < 0 || length > left) in.fail("lengths of field " + name + " do not fit its values");
        left -= length;
      }
      if (left != 0) in.fail("lengths of field " + name + " do not fit its values");
      values.resize(static_cast<size_t>(count));
      in.raw(values.data(), values.size() * sizeof(values[0]), "values");
    }, column.values);
    if (!fields.empty() && fields.begin()->second.num_rows() != column.num_rows())
      in.fail("field " + name + " has another number of rows");
    if (!fields.emplace(name, std::move(column)).second) in.fail("field " + name + " stands twice");
  }
  if (!in.at_end()) in.fail("bytes behind the end");
  return fields;
}

void write(ByteWriter& out, const std::vector<Group>& groups) {
  out.bytes(groups.empty() ? std::vector<std::byte>() : pack(fields_of(groups)));
}

void write(ByteWriter& out, const std::vector<Sample>& samples) {
  write(out, samples.empty() ? std::vector<Group>() : std::vector{Group{{}, {}, {}, samples}});
}

void read(ByteReader& in, std::vector<Group>& groups) {
  if (const std::span<const std::byte> packed = in.bytes("groups"); !packed.empty()) groups = groups_of(unpack(packed));
}

void read(ByteReader& in, std::vector<Sample>& samples) {
  std::vector<Group> one;
  read(in, one);
  if (!one.empty()) samples = std::move(one.front().samples);
}

}  // namespace tandem::data
