// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/mesh.h"

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {

const char* axis_name(Axis axis) {
  constexpr const char* kNames[kNumAxes] = {"tp", "cp", "dp", "pp", "etp", "ep", "data", "expert_data"};
  return kNames[static_cast<size_t>(axis)];
}

Mesh::Mesh(Group& world, const MeshSizes& s) : world_(world) {
  for (int size : {s.dp, s.cp, s.tp, s.pp, s.ep, s.etp})
    if (size < 1) throw UserError("layout", join_text("an axis has size ", size), "every axis is at least 1");
  const int stage_ranks = s.dp * s.cp * s.tp;
  if (stage_ranks * s.pp != world.size())
    throw UserError("layout", join_text("dp*cp*tp*pp is ", stage_ranks * s.pp, " on ", world.size(), " ranks"),
                    "the product equals the number of ranks");
  if (stage_ranks % (s.ep * s.etp) != 0)
    throw UserError("layout", join_text("ep*etp is ", s.ep * s.etp, " with dp*cp*tp = ", stage_ranks), "ep*etp divides dp*cp*tp");

  auto place = [&](Axis axis, int size, int stride) { places_[static_cast<size_t>(axis)] = {size, stride}; };
  place(Axis::kTp, s.tp, 1);
  place(Axis::kCp, s.cp, s.tp);
  place(Axis::kDp, s.dp, s.tp * s.cp);
  place(Axis::kPp, s.pp, stage_ranks);
  place(Axis::kEtp, s.etp, 1);
  place(Axis::kEp, s.ep, s.etp);
  place(Axis::kData, s.cp * s.dp, s.tp);
  place(Axis::kExpertData, stage_ranks / (s.ep * s.etp), s.ep * s.etp);

  for (int a = 0; a < kNumAxes; ++a) {
    const Place& p = places_[static_cast<size_t>(a)];
    const Axis axis = static_cast<Axis>(a);
    // A group's colour is its first rank: this rank moved to coordinate 0.
    const int first = world.rank() - index(axis) * p.stride;
    groups_[static_cast<size_t>(a)] = p.size == 1 ? single(axis_name(axis)) : world.split(first, axis_name(axis));
    if (axis == Axis::kTp || axis == Axis::kCp || axis == Axis::kEtp) groups_[static_cast<size_t>(a)]->works_as_one();
  }
  if (s.pp == 1) return;
  const int stage = index(Axis::kPp), is_end = stage == 0 || stage == s.pp - 1;
  ends_ = along(Axis::kPp).split(is_end ? 0 : stage, "pipeline_ends");
  if (!is_end) ends_.reset();
}

}  // namespace tandem::comm
