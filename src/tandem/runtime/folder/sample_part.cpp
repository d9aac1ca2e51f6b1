// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/sample_part.h"

#include <cstdint>
#include <filesystem>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/data/columns.h"

namespace tandem::runtime {
namespace {

constexpr const char* kTrained = "train_logprobs";  // beside the columns of data::fields_of

}  // namespace

std::string parts_dir(const std::string& run_dir) { return run_dir + "/samples.d"; }

std::string part_file(const std::string& run_dir, data::StepId step, int rank) {
  return join_text(parts_dir(run_dir), '/', value(step), '.', rank);
}

std::vector<std::byte> pack(const SamplePart& part) {
  data::Fields fields = data::fields_of(part.groups);
  std::vector<float> values;
  std::vector<int64_t> lengths;
  for (const std::vector<float>& row : part.train_logprobs) {
    values.insert(values.end(), row.begin(), row.end());
    lengths.push_back(std::ssize(row));
  }
  fields[kTrained] = {std::move(values), std::move(lengths)};
  return data::pack(fields);
}

SamplePart unpack_part(std::span<const std::byte> bytes) {
  const data::Fields fields = data::unpack(bytes);
  SamplePart part{data::groups_of(fields), {}};
  const auto found = fields.find(kTrained);
  const auto* values = found == fields.end() ? nullptr : std::get_if<std::vector<float>>(&found->second.values);
  if (!values) throw PeerError(join_text("packed samples: the field ", kTrained, " is missing, or has another type"));
  auto from = values->begin();
  for (const int64_t length : found->second.lengths) {
    part.train_logprobs.emplace_back(from, from + length);
    from += length;
  }
  return part;
}

void write_part(const std::string& path, std::span<const std::byte> bytes) {
  try {
    write_file(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  } catch (const PeerError&) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
}

SamplePart read_part(const std::string& path) {
  std::string bytes;
  try {
    bytes = read_file(path, INT64_MAX);
  } catch (const UserError& e) {
    throw PeerError(e.what());
  }
  try {
    return unpack_part(std::as_bytes(std::span(bytes)));
  } catch (const PeerError& e) {
    throw PeerError(path + ": " + e.what());
  }
}

}  // namespace tandem::runtime
