// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/homes.h"

#include <vector>

namespace tandem::planner {

void Turns::open(double now_s) {
  opened_s_ = now_s;
  if (closed_s_ > 0) stood_s_ = now_s - closed_s_;
}

void Turns::close(double now_s, int64_t drawn) {
  closed_s_ = now_s;
  if (drawn > 0) token_s_ = (now_s - opened_s_) / static_cast<double>(drawn);
}

int64_t Homes::least_busy(bool beside_training) const {
  std::vector<int64_t> load(static_cast<size_t>(rollout_.dp)), may(load.size(), 0);
  for (const auto& [group, home] : homes_) load[static_cast<size_t>(home.replica)] += home.is_unfinished;
  for (int rank = 0; rank < rollout_.world(); ++rank)
    if (!beside_training || !placement_.train.has(placement_.rollout.first + rank)) may[static_cast<size_t>(rollout_.dp_rank(rank))] = 1;
  int64_t best = -1;
  for (int64_t replica = 0; replica < rollout_.dp; ++replica) {
    const auto r = static_cast<size_t>(replica);
    if (may[r] && (best < 0 || load[r] < load[static_cast<size_t>(best)])) best = replica;
  }
  return best;
}

int64_t Homes::of(GroupId group) const {
  const auto found = homes_.find(group);
  return found == homes_.end() ? round(group) : found->second.replica;
}

bool Homes::is_unfinished(GroupId group) const {
  const auto found = homes_.find(group);
  return found != homes_.end() && found->second.is_unfinished;
}

void Homes::finish(GroupId group) {
  const auto found = homes_.find(group);
  if (found != homes_.end()) found->second.is_unfinished = false;
}

}  // namespace tandem::planner
