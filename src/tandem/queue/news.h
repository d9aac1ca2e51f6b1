// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens of unfinished samples travel once: a client cuts off what its desk has, and the desk adds the rest to that.

#include <cstdint>
#include <vector>

#include "tandem/queue/controller.h"

namespace tandem::queue {

/// How much of an unfinished sample a desk has.
struct Known {
  int64_t tokens = 0, routes = 0;

  static void each(auto& m, auto&& field) { field(m.tokens), field(m.routes); }
};

/// What was told of a group under a lease, one entry per sample. The sums are of the tokens that were told: a sample may begin anew.
struct Told {
  LeaseNumber lease = kNoLease;
  std::vector<Known> known = {};
  std::vector<size_t> sums = {};
};

/// Of all that `group` has now.
Told told_of(const data::Group& group, LeaseNumber lease);
/// Leaves the group what is new since `before` (null: all). Gives where each of its samples goes on.
std::vector<Known> cut(data::Group& group, const Told* before);
/// Adds to the tokens of `whole` those of `news`, which goes on behind `from`. False, and whole is as before, where it has less than that.
bool append(data::Sample& whole, data::Sample news, const Known& from);

}  // namespace tandem::queue
