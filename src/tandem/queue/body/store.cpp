// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/body/store.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/strings.h"

namespace tandem::queue {
namespace {

bool is_whole(const TensorCache& rows, SampleId id) {
  if (!rows.knows(id)) return false;
  for (int32_t part = 0; part < rows.num_parts(); ++part)
    if (!rows.holds({id, part})) return false;
  return true;
}

}  // namespace

void add_body(data::Group& head, const TensorCache& bodies) {
  const auto fill = [&](auto& owner, data::SampleId id) {
    data::each_list(owner, [&]<class Column>(const Column& column, auto& list) {
      const auto from = bodies.read<typename Column::Value>(id, bodies.field(column.name));
      list.assign(from.begin(), from.end());
    });
  };
  fill(head.prompt, head.samples.front().id);
  for (data::Sample& s : head.samples) fill(s, s.id);
}

void Store::put(std::span<const SampleId> samples, data::Fields columns) {
  std::lock_guard lock(mutex_);
  rows_.drop(samples);
  rows_.put(samples, std::move(columns));
}

void Store::drop(std::span<const SampleId> samples) {
  std::lock_guard lock(mutex_);
  rows_.drop(samples);
}

int64_t Store::num_held() const {
  std::lock_guard lock(mutex_);
  return rows_.num_held();
}

int64_t Store::read(std::span<const SampleId> samples, int64_t most_bytes, const Room& room) const {
  std::lock_guard lock(mutex_);
  RowsHead head;
  for (int64_t bytes = 0; head.num_rows < std::ssize(samples); ++head.num_rows) {
    const SampleId id = samples[static_cast<size_t>(head.num_rows)];
    if (!is_whole(rows_, id)) return 0;
    for (int32_t part = 0; part < rows_.num_parts(); ++part) bytes += rows_.num_bytes({id, part});
    if (bytes > most_bytes && head.num_rows > 0) break;
    const auto lengths = rows_.lengths(id);
    head.lengths.insert(head.lengths.end(), lengths.begin(), lengths.end());
  }
  samples = samples.first(static_cast<size_t>(head.num_rows));
  head.num_bytes = rows_.packed_bytes(samples);
  rows_.pack(samples, room(head));
  return head.num_rows;
}

bool Store::copy(std::span<const SampleId> samples, TensorCache& to) const {
  std::vector<int64_t> lengths;
  auto bytes = std::make_shared<std::vector<std::byte>>();
  const int64_t rows = read(samples, std::numeric_limits<int64_t>::max(), [&](const RowsHead& head) {
    lengths = head.lengths;
    bytes->resize(static_cast<size_t>(head.num_bytes));
    return std::span(*bytes);
  });
  if (rows < std::ssize(samples)) return false;
  const std::span<const std::byte> packed(*bytes);
  return to.adopt(samples, lengths, packed, std::move(bytes));
}

}  // namespace tandem::queue
