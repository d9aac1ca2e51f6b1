// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of a Parquet file as JSON objects. Arrow C++ is seen by parquet_arrow.cpp alone, which is a library of its own.

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

using UseParquetRow = std::function<bool(const nlohmann::ordered_json&, int64_t row)>;

/// Calls `use` with each row, until it returns false. A row holds the wanted columns, or all where the file has none of them.
/// Errors: UserError naming the file, and the column if its type has no form in JSON. A build that reads no Parquet names the CMake
/// option, one whose Arrow is gone says so.
void read_parquet(const ParquetRequest& request, const UseParquetRow& use);

/// The same, by the library's own name.
extern "C" void tandem_read_parquet(const ParquetRequest& request, const UseParquetRow& use);

}  // namespace tandem::data
