// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/plan_table.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "tandem/base/check.h"

namespace tandem::reshard {
namespace {

struct Sharers {
  Box box;
  std::vector<int> ranks;
};

/// Each different box once, with the ranks that have it.
std::vector<Sharers> distinct(const Holding& holding) {
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, size_t> places;
  std::vector<Sharers> all;
  for (const Piece& piece : holding) {
    if (piece.box.num_elements() == 0) continue;
    const auto [place, is_new] = places.emplace(std::pair(piece.box.begin, piece.box.end), all.size());
    if (is_new) all.push_back({piece.box, {}});
    all[place->second].ranks.push_back(piece.rank);
  }
  for (Sharers& s : all) std::ranges::sort(s.ranks);
  return all;
}

}  // namespace

std::vector<Fragment> fragments_of(const Holding& source, const Holding& target) {
  const std::vector<Sharers> held = distinct(source);
  std::vector<Fragment> fragments;
  for (const Sharers& wanted : distinct(target)) {
    std::vector<Box> boxes = {wanted.box};
    for (const Sharers& h : held) boxes = cut(boxes, h.box);
    for (const Box& box : boxes) {
      Fragment f{box, {}, {}, {}};
      for (const Sharers& h : held)
        if (intersect(box, h.box)) f.holders.insert(f.holders.end(), h.ranks.begin(), h.ranks.end());
      TANDEM_CHECK(!f.holders.empty(), "nobody holds a part of a wanted tensor");
      std::ranges::sort(f.holders);
      std::ranges::set_difference(wanted.ranks, f.holders, std::back_inserter(f.receivers));
      std::ranges::set_intersection(wanted.ranks, f.holders, std::back_inserter(f.keepers));
      fragments.push_back(std::move(f));
    }
  }
  return fragments;
}

}  // namespace tandem::reshard
