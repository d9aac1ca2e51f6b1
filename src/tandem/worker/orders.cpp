// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/orders.h"

#include "tandem/base/file/bytes.h"
#include "tandem/data/columns.h"

namespace tandem::worker {
namespace {

constexpr int64_t kOrdersMagic = 0x31737265644f7257;  // "WrOders1"

}  // namespace

Orders orders_of_first(comm::Group& world, Orders mine) {
  if (world.size() == 1) return mine;
  std::vector<std::byte> bytes;
  if (world.rank() == 0) bytes = packed(kOrdersMagic, mine);
  bytes = comm::all_gather_bytes(world, bytes).front();
  if (world.rank() == 0) return mine;
  return unpacked<Orders>(bytes, "orders of the first rank", kOrdersMagic);
}

}  // namespace tandem::worker
