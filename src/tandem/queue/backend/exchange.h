// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whole groups between ranks. The bodies of a run's samples travel by tensor_cache.h.

#include <vector>

#include "tandem/comm/group.h"
#include "tandem/data/sample.h"

namespace tandem::queue {

/// Every rank's groups, ordered by group id. `speaks` is false on ranks whose groups another rank sends, too. Collective.
std::vector<data::Group> exchange_groups(comm::Group& world, std::vector<data::Group> mine, bool speaks);

}  // namespace tandem::queue
