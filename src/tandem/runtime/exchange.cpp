// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/exchange.h"

#include <algorithm>
#include <cstring>

#include "tandem/base/check.h"
#include "tandem/data/columns.h"

namespace tandem::runtime {

std::vector<data::Group> exchange_groups(comm::Group& world, std::vector<data::Group> mine, bool speaks) {
  if (world.size() == 1) return mine;
  std::vector<std::byte> packed;
  if (speaks && !mine.empty()) packed = data::pack(data::fields_of(mine));
  std::vector<data::Group> all;
  for (const std::vector<std::byte>& part : comm::all_gather_bytes(world, packed)) {
    if (part.empty()) continue;
    for (data::Group& group : data::groups_of(data::unpack(part))) all.push_back(std::move(group));
  }
  std::sort(all.begin(), all.end(), [](const data::Group& a, const data::Group& b) { return a.id < b.id; });
  return all;
}

void exchange_rows(comm::Group& world, std::vector<std::vector<float>>& rows, bool speaks) {
  if (world.size() == 1) return;
  // [index, length, values...] for each row this rank owns; indices and lengths as raw 64-bit words.
  std::vector<std::byte> packed;
  const auto put = [&](const void* from, size_t bytes) {
    const auto* p = static_cast<const std::byte*>(from);
    packed.insert(packed.end(), p, p + bytes);
  };
  for (size_t i = 0; speaks && i < rows.size(); ++i) {
    if (rows[i].empty()) continue;
    const uint64_t head[2] = {i, rows[i].size()};
    put(head, sizeof head);
    put(rows[i].data(), rows[i].size() * sizeof(float));
  }
  for (const std::vector<std::byte>& part : comm::all_gather_bytes(world, packed)) {
    for (size_t at = 0; at < part.size();) {
      uint64_t head[2];
      std::memcpy(head, part.data() + at, sizeof head);
      at += sizeof head;
      TANDEM_CHECK(head[0] < rows.size() && at + head[1] * sizeof(float) <= part.size(), "rows from a peer");
      rows[head[0]].resize(head[1]);
      std::memcpy(rows[head[0]].data(), part.data() + at, head[1] * sizeof(float));
      at += head[1] * sizeof(float);
    }
  }
}

}  // namespace tandem::runtime
