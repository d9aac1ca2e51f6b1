// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host data between ranks. The bodies of a run's samples travel by session/batch_rows.h.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/data/sample.h"

namespace tandem::runtime {

/// Every rank's groups, ordered by group id. `speaks` is false on ranks whose groups another rank sends, too. Collective.
std::vector<data::Group> exchange_groups(comm::Group& world, std::vector<data::Group> mine, bool speaks);

/// The text of rank 0. Collective.
std::string text_of_first(comm::Group& world, const std::string& mine);

/// Every rank's ids, in order of ranks. Collective.
std::vector<data::GroupId> exchange_ids(comm::Group& world, const std::vector<data::GroupId>& mine);

/// Runs `work` on every rank; where it is collective, it must end alike by itself. Collective.
/// Errors  what `work` throws, with one rank; with several, where it fails on some, one PeerError on all: the fault of the first of
///         them, with its rank.
void run_alike(comm::Group& world, const std::function<void()>& work);

/// Of each name the largest number of any rank. Collective.
std::map<std::string, double> largest_of_all(comm::Group& world, const std::map<std::string, double>& mine);

/// Collective.
double sum_over(comm::Group& world, double mine);

/// `rows[i]` is filled by the rank that owns row i and empty elsewhere; afterwards filled everywhere. Collective.
void exchange_rows(comm::Group& world, std::vector<std::vector<float>>& rows, bool speaks);

}  // namespace tandem::runtime
