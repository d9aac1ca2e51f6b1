// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples as columns: the rows of a field lie end to end without padding, their lengths beside them. The form in which
// samples travel between ranks and lie in a checkpoint.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tandem/base/file/bytes.h"
#include "tandem/data/sample.h"

namespace tandem::data {

using Values = std::variant<std::vector<int32_t>, std::vector<int64_t>, std::vector<float>, std::vector<double>, std::vector<char>,
                            std::vector<int16_t>, std::vector<uint8_t>>;

struct Column {
  Values values;
  std::vector<int64_t> lengths;  ///< entries of each row; they add up to the entries of `values`

  int64_t num_rows() const { return static_cast<int64_t>(lengths.size()); }
  bool operator==(const Column&) const = default;
};

/// Columns by field name; all have the same number of rows.
using Fields = std::map<std::string, Column>;

/// Rows of `fields`; 0 if there is no column. Errors: InternalError if columns differ or lengths do not fit the values.
int64_t num_rows(const Fields& fields);

/// One row per sample of `groups`. A prompt's texts and ids stand in the row of its group's first sample alone. The columns
/// of the reward are left out unless every sample is scored. Greedy answers are columns where a group has one: text, score if it has one.
Fields fields_of(std::span<const Group> groups);
/// The ids of the samples of `groups`, in the order of their rows.
std::vector<SampleId> ids_of(std::span<const Group> groups);
/// Groups as heads that have nothing but ids.
std::vector<Group> bare_heads(std::span<const GroupId> groups, int64_t group_size);
/// Inverse of fields_of; columns that it does not know are left alone. Errors: InternalError if one it needs is missing.
std::vector<Group> groups_of(const Fields& fields);

/// The rows of `more` behind those of `fields`. Errors: PeerError if they have other columns.
void append(Fields& fields, const Fields& more);

std::vector<std::byte> pack(const Fields& fields);
/// Behind what is in `bytes`.
void pack(const Fields& fields, std::vector<std::byte>& bytes);
/// Inverse of pack. Errors: PeerError naming what is wrong; never reads outside `bytes`.
Fields unpack(std::span<const std::byte> bytes);

/// Groups, or the samples of one, in a message (base/file/bytes.h). Errors: as unpack.
void write(ByteWriter& out, const std::vector<Group>& groups);
void write(ByteWriter& out, const std::vector<Sample>& samples);
void read(ByteReader& in, std::vector<Group>& groups);
void read(ByteReader& in, std::vector<Sample>& samples);

}  // namespace tandem::data
