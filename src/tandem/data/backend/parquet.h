// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of a Parquet file as JSON objects. Arrow C++ is seen by parquet_arrow.cpp alone.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::data {

struct ParquetRequest {
  std::string path;
  std::vector<std::string> columns;  ///< top-level columns wanted; those the file lacks are passed over
  bool others = false;               ///< also every other column whose type has a form in JSON
};

/// Calls `use` with each row, which holds the wanted columns (all where the file has none of them), until it returns false.
/// Errors: UserError naming the file, and the column where its type has no form in JSON; or naming the CMake option if this
/// build reads no Parquet.
void read_parquet(const ParquetRequest& request, const std::function<bool(const nlohmann::ordered_json&, int64_t row)>& use);

}  // namespace tandem::data
