// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who holds which slice: a parallel layout as a value, written "dp2,tp4" or "dp2,tp2,pp2,ep4". docs/design/layouts.md
// has what each axis cuts.

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/base/box.h"
#include "tandem/comm/mesh.h"
#include "tandem/model/config.h"
#include "tandem/model/family/family.h"

namespace tandem::model {

/// Axes of a layout; a missing axis is 1. Ranks are numbered with tp fastest, then cp, dp, and pp slowest. The expert axes cut the
/// ranks of one pipeline stage, etp fastest: ep deals whole experts, etp cuts each one's columns. Without either, tp cuts them.
struct Layout {
  int dp = 1;
  int tp = 1;
  int ep = 1;
  int etp = 0;  ///< 0: tp without ep, else 1
  int cp = 1;
  int pp = 1;
  int vpp = 1;  ///< chunks of layers that a pipeline stage has, dealt in turns

  int stage_ranks() const { return dp * cp * tp; }
  int world() const { return stage_ranks() * pp; }
  int tp_rank(int rank) const { return rank % tp; }
  int cp_rank(int rank) const { return rank / tp % cp; }
  int dp_rank(int rank) const { return rank / (tp * cp) % dp; }
  /// The same, or -1 for a rank that this layout does not have.
  int dp_rank_or_none(int rank) const { return 0 <= rank && rank < world() ? dp_rank(rank) : -1; }
  int pp_rank(int rank) const { return rank / stage_ranks(); }
  int expert_tp() const { return etp > 0 ? etp : ep > 1 ? 1 : tp; }
  int etp_rank(int rank) const { return rank % expert_tp(); }
  int ep_rank(int rank) const { return rank / expert_tp() % ep; }
  /// Of the ranks that train the same sequences, the one that has the last stage's results and tells them.
  bool speaks(int rank) const { return tp_rank(rank) == 0 && cp_rank(rank) == 0 && pp_rank(rank) == pp - 1; }
  /// Ranks that hold the same of what is no routed expert, and of a routed expert: along comm::Axis::kData, kExpertData.
  int data_ranks() const { return dp * cp; }
  int expert_data_ranks() const { return stage_ranks() / (ep * expert_tp()); }
  /// Whether a token's experts may be with ranks that have other sequences.
  bool shares_experts() const { return ep > 1 && ep * expert_tp() > tp; }
  bool operator==(const Layout&) const = default;
};

/// Layers [begin, end).
struct LayerRange {
  int64_t begin, end;
  bool operator==(const LayerRange&) const = default;
};
/// The layers of each chunk of a pipeline rank. The pp*vpp chunks of all ranks, taken in turns, split the layers ceil-first.
std::vector<LayerRange> layers_of(const Layout& layout, int64_t num_layers, int pp_rank);

int64_t num_layers_of(const Layout& layout, int64_t num_layers, int pp_rank);

/// One rank of a layout and whom it computes with; a group is null where its axis has size 1.
struct RankPlace {
  Layout layout;
  int rank = 0;
  comm::Group* tp = nullptr;
  comm::Group* ep = nullptr;
  comm::Group* etp = nullptr;
  comm::Group* cp = nullptr;
  comm::Group* pp = nullptr;
};

comm::MeshSizes mesh_sizes(const Layout& layout);
/// The place of the mesh's rank, with the groups that its layout needs. The mesh must outlive it.
RankPlace place_in(const Layout& layout, comm::Mesh& mesh);

/// "" or "dp1" is one rank. Errors: UserError naming `where` and the part that is wrong.
Layout parse_layout(const std::string& text, const std::string& where);
std::string to_string(const Layout& layout);

/// Equal layouts side by side, the ranks of one after those of the other: "2x(dp64,tp2,ep128)"; one of them is written as a layout.
struct Replicas {
  int count = 1;
  Layout layout;

  int world() const { return count * layout.world(); }
  bool operator==(const Replicas&) const = default;
};
/// Errors: UserError naming `where` and the part that is wrong.
Replicas parse_replicas(const std::string& text, const std::string& where);
std::string to_string(const Replicas& replicas);

enum class Use { kTraining, kRollout };
/// Errors: UserError if the layout cannot cut this model (heads, columns, vocabulary, experts, layers), or the use cannot have it.
void check_layout(const Layout& layout, const ModelConfig& config, Use use, const std::string& where);

/// The first expert of EP index `index`: expert e is with index floor(e * ep / num_experts).
int64_t first_expert(int64_t num_experts, int ep, int index);
/// Whether the rank holds any of `parameter`. A tied embedding is on the first pipeline stage and, as the head, on the last.
bool holds(const Layout& layout, int rank, const family::Parameter& parameter, const ModelConfig& config);
/// The box of `parameter` that a rank which holds it has.
Box box_of(const family::Parameter& parameter, const ModelConfig& config, const Layout& layout, int rank);
/// The order in which ranks keep parameters: routed experts last, else as given.
std::vector<family::Parameter> flat_order(std::vector<family::Parameter> parameters);
/// Every box that a rank of the layout holds, in that order; what is kept in fp32 as its words.
std::vector<TensorSpec> boxes_of(const ModelConfig& config, const Layout& layout, int rank);
/// Rows of the vocabulary that a TP rank holds. The last rank has what is left: at least one row, and fewer where tp does not divide them.
int64_t vocab_shard_rows(const ModelConfig& config, int tp);
/// kv heads that one TP rank holds, at least 1.
int64_t local_kv_heads(const ModelConfig& config, int tp);

}  // namespace tandem::model
