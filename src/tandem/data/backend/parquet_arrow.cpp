// SPDX-License-Identifier: Apache-2.0
// The whole of the library that parquet_loaded.cpp loads.
#include <arrow/api.h>
#include <arrow/io/api.h>
#include <parquet/arrow/reader.h>

#include <algorithm>

#include "tandem/base/error.h"
#include "tandem/base/input/exact_json.h"
#include "tandem/data/backend/parquet.h"

namespace tandem::data {
namespace {

using Json = nlohmann::ordered_json;
using arrow::Type;

constexpr int kMaxLevels = 100;

struct Place {
  const std::string& path;
  const std::string& column;
};

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw UserError(path, "is no readable Parquet file: " + why, "expected a .parquet file of prompts");
}

template <class T>
T value_or_fail(const std::string& path, arrow::Result<T> result) {
  if (!result.ok()) fail(path, result.status().ToString());
  return std::move(result).ValueUnsafe();
}

template <class Array>
Json number(const arrow::Array& array, int64_t row) {
  return static_cast<const Array&>(array).Value(row);
}
template <class Array>
Json text(const arrow::Array& array, int64_t row) {
  return std::string(static_cast<const Array&>(array).GetView(row));
}

Json cell(const arrow::Array& array, int64_t row, const Place& place, int levels);

template <class Array>
Json list(const arrow::Array& array, int64_t row, const Place& place, int levels) {
  const auto& lists = static_cast<const Array&>(array);
  Json out = Json::array();
  for (int64_t i = lists.value_offset(row), end = i + lists.value_length(row); i < end; ++i)
    out.push_back(cell(*lists.values(), i, place, levels + 1));
  return out;
}

Json fields(const arrow::StructArray& array, int64_t row, const Place& place, int levels) {
  Json out = Json::object();
  for (int i = 0; i < array.num_fields(); ++i)
    out[array.struct_type()->field(i)->name()] = cell(*array.field(i), row, place, levels + 1);
  return out;
}

// A decimal has more digits than a float.
template <class Array>
Json decimal(const arrow::Array& array, int64_t row) {
  return long_number(static_cast<const Array&>(array).FormatValue(row));
}

// One value; what has no form in JSON, such as a date, is refused.
Json cell(const arrow::Array& array, int64_t row, const Place& place, int levels) {
  if (levels > kMaxLevels) fail(place.path, "column `" + place.column + "` is nested too deep");
  if (array.IsNull(row)) return nullptr;
  switch (array.type_id()) {
    case Type::NA: return nullptr;
    case Type::BOOL: return number<arrow::BooleanArray>(array, row);
    case Type::INT8: return number<arrow::Int8Array>(array, row);
    case Type::INT16: return number<arrow::Int16Array>(array, row);
    case Type::INT32: return number<arrow::Int32Array>(array, row);
    case Type::INT64: return number<arrow::Int64Array>(array, row);
    case Type::UINT8: return number<arrow::UInt8Array>(array, row);
    case Type::UINT16: return number<arrow::UInt16Array>(array, row);
    case Type::UINT32: return number<arrow::UInt32Array>(array, row);
    case Type::UINT64: return number<arrow::UInt64Array>(array, row);
    case Type::FLOAT: return number<arrow::FloatArray>(array, row);
    case Type::DOUBLE: return number<arrow::DoubleArray>(array, row);
    case Type::DECIMAL128: return decimal<arrow::Decimal128Array>(array, row);
    case Type::DECIMAL256: return decimal<arrow::Decimal256Array>(array, row);
    case Type::STRING: return text<arrow::StringArray>(array, row);
    case Type::LARGE_STRING: return text<arrow::LargeStringArray>(array, row);
    case Type::STRING_VIEW: return text<arrow::StringViewArray>(array, row);
    case Type::BINARY: return text<arrow::BinaryArray>(array, row);
    case Type::LARGE_BINARY: return text<arrow::LargeBinaryArray>(array, row);
    case Type::LIST: return list<arrow::ListArray>(array, row, place, levels);
    case Type::LARGE_LIST: return list<arrow::LargeListArray>(array, row, place, levels);
    case Type::FIXED_SIZE_LIST: return list<arrow::FixedSizeListArray>(array, row, place, levels);
    case Type::STRUCT: return fields(static_cast<const arrow::StructArray&>(array), row, place, levels);
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return cell(*coded.dictionary(), coded.GetValueIndex(row), place, levels + 1);
    }
    default:
      throw UserError(place.path, "column `" + place.column + "` holds " + array.type()->ToString(),
                      "expected texts, numbers, lists or structs");
  }
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Bytes, which are images as a rule, have none.
bool has_json_form(const arrow::DataType& type) {
  if (type.id() == Type::DICTIONARY) return has_json_form(*static_cast<const arrow::DictionaryType&>(type).value_type());
  constexpr Type::type kNested[] = {Type::LIST, Type::LARGE_LIST, Type::FIXED_SIZE_LIST, Type::STRUCT};
  if (std::ranges::find(kNested, type.id()) != std::end(kNested))
    return std::ranges::all_of(type.fields(), [](const auto& field) { return has_json_form(*field->type()); });
  constexpr Type::type kPlain[] = {Type::NA, Type::BOOL, Type::STRING, Type::LARGE_STRING, Type::STRING_VIEW, Type::DOUBLE, Type::FLOAT,
                                  Type::DECIMAL128, Type::DECIMAL256};
  return arrow::is_integer(type.id()) || std::ranges::find(kPlain, type.id()) != std::end(kPlain);
}

std::vector<std::string> wanted_columns(const ParquetRequest& request, const arrow::Schema& schema) {
  std::vector<std::string> names = request.columns;
  for (const auto& field : schema.fields())
    if (request.others && has_json_form(*field->type())) names.push_back(field->name());
  return names;
}

// The leaves of the wanted columns; all leaves where none is there, so that the error can name what is.
std::vector<int> leaves_of(const parquet::SchemaDescriptor& schema, const std::vector<std::string>& columns) {
  std::vector<int> wanted, all;
  for (int i = 0; i < schema.num_columns(); ++i) {
    all.push_back(i);
    if (contains(columns, schema.GetColumnRoot(i)->name())) wanted.push_back(i);
  }
  return wanted.empty() ? all : wanted;
}

void read(const ParquetRequest& request, const UseParquetRow& use) {
  const auto file = value_or_fail(request.path, arrow::io::ReadableFile::Open(request.path));
  const auto reader = value_or_fail(request.path, parquet::arrow::OpenFile(file, arrow::default_memory_pool()));
  std::shared_ptr<arrow::Schema> schema;
  if (const auto status = reader->GetSchema(&schema); !status.ok()) fail(request.path, status.ToString());
  const auto leaves = leaves_of(*reader->parquet_reader()->metadata()->schema(), wanted_columns(request, *schema));
  std::vector<int> groups;
  for (int i = 0; i < reader->num_row_groups(); ++i) groups.push_back(i);
  const auto batches = value_or_fail(request.path, reader->GetRecordBatchReader(groups, leaves));
  int64_t row = 0;
  while (true) {
    const std::shared_ptr<arrow::RecordBatch> batch = value_or_fail(request.path, batches->Next());
    if (!batch) return;
    if (const auto status = batch->ValidateFull(); !status.ok()) fail(request.path, status.ToString());
    for (int64_t i = 0; i < batch->num_rows(); ++i, ++row) {
      Json record = Json::object();
      for (int c = 0; c < batch->num_columns(); ++c)
        record[batch->column_name(c)] = cell(*batch->column(c), i, {request.path, batch->column_name(c)}, 0);
      if (!use(record, row)) return;
    }
  }
}

}  // namespace

extern "C" void tandem_read_parquet(const ParquetRequest& request, const UseParquetRow& use) {
  try {
    read(request, use);
  } catch (const parquet::ParquetException& e) {
    fail(request.path, e.what());
  }
}

}  // namespace tandem::data
