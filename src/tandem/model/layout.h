// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who holds which slice: a parallel layout as a value, written "dp2,tp4" or "dp2,tp2,ep4". docs/design/experts.md has the
// expert axes.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/box.h"
#include "tandem/comm/mesh.h"
#include "tandem/model/config.h"
#include "tandem/model/family/family.h"

namespace tandem::model {

/// Axes of a layout; a missing axis is 1. Ranks are numbered with tp fastest, then dp. The expert axes cut the same ranks, etp
/// fastest: ep deals whole experts, etp cuts each one's columns. Without either, tp cuts them.
struct Layout {
  int dp = 1;
  int tp = 1;
  int ep = 1;
  int etp = 0;  ///< 0: tp without ep, else 1

  int world() const { return dp * tp; }
  int tp_rank(int rank) const { return rank % tp; }
  int dp_rank(int rank) const { return rank / tp; }
  int expert_tp() const { return etp > 0 ? etp : ep > 1 ? 1 : tp; }
  int etp_rank(int rank) const { return rank % expert_tp(); }
  int ep_rank(int rank) const { return rank / expert_tp() % ep; }
  /// Whether a token's experts may be with another data-parallel replica.
  bool shares_experts() const { return ep * expert_tp() > tp; }
  bool operator==(const Layout&) const = default;
};

/// One rank of a layout and whom it computes with.
struct RankPlace {
  Layout layout;
  int rank = 0;
  comm::Group* tp = nullptr;  ///< null for one rank
  comm::Group* ep = nullptr;  ///< null unless the layout shares experts; the ranks of one etp index
};

comm::MeshSizes mesh_sizes(const Layout& layout);
/// The place of the mesh's rank, with the groups that its layout needs. The mesh must outlive it.
RankPlace place_in(const Layout& layout, comm::Mesh& mesh);

/// "" or "dp1" is one rank. Errors: UserError naming `where` and the part that is wrong; axes that Tandem knows but cannot
/// run yet (cp, pp, vpp) are named as such.
Layout parse_layout(const std::string& text, const std::string& where);
std::string to_string(const Layout& layout);
enum class Use { kTraining, kRollout };
/// Errors: UserError if the layout cannot cut this model (heads, columns, vocabulary, experts), or the use cannot have it.
void check_layout(const Layout& layout, const ModelConfig& config, Use use, const std::string& where);

/// The first expert of EP index `index`: expert e is with index floor(e * ep / num_experts).
int64_t first_expert(int64_t num_experts, int ep, int index);
/// Whether the rank holds any of `parameter`.
bool holds(const Layout& layout, int rank, const family::Parameter& parameter, const ModelConfig& config);
/// The box of `parameter` that a rank which holds it has.
Box box_of(const family::Parameter& parameter, const ModelConfig& config, const Layout& layout, int rank);
/// Every box that a rank of the layout holds, in the order of the forward pass; what is kept in fp32 as its words.
std::vector<TensorSpec> boxes_of(const ModelConfig& config, const Layout& layout, int rank);
/// kv heads that one TP rank holds, at least 1.
int64_t local_kv_heads(const ModelConfig& config, int tp);

}  // namespace tandem::model
