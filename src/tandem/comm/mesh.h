// SPDX-License-Identifier: Apache-2.0
#pragma once
// Named axes over the ranks of a world: which peers a rank meets for which kind of parallelism.

#include <array>
#include <memory>

#include "tandem/comm/group.h"

namespace tandem::comm {

/// kData is dp and cp taken together: ranks with the same dense weights and other tokens. kExpertData: ranks with the same experts.
enum class Axis { kTp, kCp, kDp, kPp, kEtp, kEp, kData, kExpertData };
inline constexpr int kNumAxes = 8;
const char* axis_name(Axis axis);

/// Ranks along each axis. world = dp*cp*tp*pp; ep*etp divides dp*cp*tp.
struct MeshSizes {
  int dp = 1, cp = 1, tp = 1, pp = 1, ep = 1, etp = 1;
};

/// Rank order: tp fastest, then cp, dp, pp slowest. The expert axes cut the dp*cp*tp ranks of one pp index, etp fastest.
///
/// Ownership  keeps a reference to the world, which must outlive it; owns the groups of the axes.
/// Blocking   the constructor is collective over the world (it splits it).
/// Errors     UserError if the sizes do not fit the world; PeerError from the splits.
/// Read next  group.h
class Mesh {
 public:
  Mesh(Group& world, const MeshSizes& sizes);

  Group& world() { return world_; }
  /// The ranks that differ from this one only along `axis`; a group of one where the axis has size 1.
  Group& along(Axis axis) { return *groups_[static_cast<size_t>(axis)]; }
  /// The first and the last pipeline stage of this rank's pp group; null in between and where pp is 1.
  Group* pipeline_ends() { return ends_.get(); }
  int size(Axis axis) const { return places_[static_cast<size_t>(axis)].size; }
  /// This rank's coordinate along `axis`.
  int index(Axis axis) const {
    const Place& p = places_[static_cast<size_t>(axis)];
    return world_.rank() / p.stride % p.size;
  }

 private:
  struct Place {
    int size = 1, stride = 1;  // coordinate = rank / stride % size
  };
  Group& world_;
  std::array<Place, kNumAxes> places_;
  std::array<std::unique_ptr<Group>, kNumAxes> groups_;
  std::unique_ptr<Group> ends_;
};

}  // namespace tandem::comm
