// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/store.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tandem::queue {
namespace {

bool is_whole(const TensorCache& rows, SampleId id) {
  if (!rows.knows(id)) return false;
  for (int32_t part = 0; part < rows.num_parts(); ++part)
    if (!rows.holds({id, part})) return false;
  return true;
}

}  // namespace

void Store::put(std::span<const SampleId> samples, data::Fields columns) {
  std::lock_guard lock(mutex_);
  rows_.drop(samples);
  rows_.put(samples, std::move(columns));
}

void Store::drop(std::span<const SampleId> samples) {
  std::lock_guard lock(mutex_);
  rows_.drop(samples);
}

bool Store::fits(const data::Fields& columns, int64_t rows) const {
  std::lock_guard lock(mutex_);
  return columns.size() == rows_.num_fields() && std::ranges::all_of(rows_.fields(), [&](const CacheField& field) {
    const auto found = columns.find(field.name);
    return found != columns.end() && found->second.num_rows() == rows && found->second.values.index() == field.type.index();
  });
}

int64_t Store::num_held() const {
  std::lock_guard lock(mutex_);
  return rows_.num_held();
}

std::optional<data::Fields> Store::read(std::span<const SampleId> samples, int64_t most_bytes) const {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (int64_t bytes = 0; count < samples.size(); ++count) {
    if (!is_whole(rows_, samples[count])) return std::nullopt;
    for (int32_t part = 0; part < rows_.num_parts(); ++part) bytes += rows_.num_bytes({samples[count], part});
    if (bytes > most_bytes && count > 0) break;
  }
  samples = samples.first(count);
  data::Fields columns;
  for (size_t f = 0; f < rows_.num_fields(); ++f) {
    data::Column& column = columns[rows_.fields()[f].name];
    for (const SampleId id : samples) column.lengths.push_back(rows_.lengths(id)[f]);
    column.values = rows_.fields()[f].type;
    std::visit([&]<class T>(std::vector<T>& values) {
      values.reserve(static_cast<size_t>(std::accumulate(column.lengths.begin(), column.lengths.end(), int64_t{0})));
      for (const SampleId id : samples) {
        const std::span<const T> row = rows_.read<T>(id, f);
        values.insert(values.end(), row.begin(), row.end());
      }
    }, column.values);
  }
  return columns;
}

}  // namespace tandem::queue
