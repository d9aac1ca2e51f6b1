// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whole groups between ranks, for evaluation (stage/evaluator.h), and what their grading has to say. The bodies of a run's samples travel
// by batch_rows.h.

#include <vector>

#include "tandem/comm/group.h"
#include "tandem/data/sample.h"
#include "tandem/monitor/notices.h"

namespace tandem::runtime {

/// Every rank's groups, ordered by group id. `speaks` is false on ranks whose groups another rank sends, too. Collective.
std::vector<data::Group> exchange_groups(comm::Group& world, std::vector<data::Group> mine, bool speaks);

/// Says what `waiting` of any process has of failures, on the first rank: of each kind once. Collective.
void tell_notices(comm::Group& world, monitor::Notices& ours, const std::vector<monitor::Notice>& waiting);

}  // namespace tandem::runtime
