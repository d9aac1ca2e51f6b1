// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/backend/exchange.h"

#include <algorithm>

#include "tandem/comm/agree.h"
#include "tandem/data/columns.h"

namespace tandem::queue {

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

}  // namespace tandem::queue
