// SPDX-License-Identifier: Apache-2.0
#pragma once
// From one layout of weights to another: which rank sends what to whom, in buckets of bounded size. A value, so it can be printed, costed
// and tested without a device. plan_make.h makes it; docs/design/reshard.md has the rules.

#include <cstdint>
#include <vector>

#include "tandem/reshard/plan_table.h"

namespace tandem::reshard {

/// Who sends a part to the ranks of a node that lacks it.
enum class Mode {
  kDirect,  ///< a rank that holds it sends it to each of them
  /// Each of them gets a share from another node, and the rest from the others of its own. Where the holders would send more than the
  /// mean, some nodes get the part first and then pass it on.
  kMulticast,
  kGatherFirst,  ///< the same, but ranks that get it from a holder of their own node then send it to other nodes, too
};

/// "direct", "multicast" or "gather_first".
const char* name_of(Mode mode);

/// At the end of a message.
constexpr int64_t kChecksum_bytes = 8;

/// What the time of a plan is modelled by.
struct Links {
  double near_bytes_per_s = 200e9;  ///< of a rank to others of its node
  double far_bytes_per_s = 25e9;    ///< of a rank to other nodes
  double call_s = 30e-6;            ///< of a bucket beside its bytes
};

/// Elements [begin, end) of a fragment, in row-major order, from one rank to another.
struct Transfer {
  int32_t tensor;
  int32_t fragment;  ///< of the tensor's kind
  int32_t from, to;
  int64_t begin, end;
  int32_t bucket;
  int32_t after;     ///< -1: from the sender's source; else an earlier transfer brings its elements into the sender's target
};

struct PlanOptions {
  int64_t element_bytes = 2;
  int64_t bucket_bytes = 64 << 20;  ///< most that one rank stages at a time
  int ranks_per_node = 0;           ///< 0: all ranks are of one node
  /// While a bucket travels, a rank unpacks the one before and then packs the one behind. It stages more at a time, so buckets hold
  /// less.
  bool overlap = false;
  bool may_alias = true;  ///< if not, equal layouts make a plan of copies
  bool checksums = false;  ///< each message ends with one, and a bucket has room for it
  Links links;

  int node_of(int rank) const { return ranks_per_node > 0 ? rank / ranks_per_node : 0; }
  bool is_far(const Transfer& t) const { return node_of(t.from) != node_of(t.to); }
};

struct PlanStats {
  int64_t bytes_total = 0;        ///< sent over all ranks
  int64_t lower_bound_bytes = 0;  ///< what receivers lack, each element once
  int64_t bytes_kept = 0;         ///< wanted by a rank that holds it
  int64_t bytes_across_nodes = 0;
  int64_t lower_bound_across_nodes_bytes = 0;  ///< what nodes lack, each element of a fragment once
  int64_t staging_peak_bytes = 0;              ///< most that one rank stages at a time
  double modelled_s = 0;
  std::vector<int64_t> sent_bytes, received_bytes;  ///< by rank
};

struct Plan {
  bool alias = false;  ///< the layouts are equal: the target may be the source, nothing moves
  Mode mode = Mode::kDirect;
  PlanOptions options;
  std::vector<int32_t> kind_of;                  ///< by tensor
  std::vector<std::vector<Fragment>> fragments;  ///< by kind
  std::vector<Transfer> transfers;               ///< by bucket
  int64_t num_buckets = 0;
  int64_t num_calls = 0;                         ///< buckets with transfers, which come first: calls of all_to_all_v
  PlanStats stats;

  /// Tensors of each kind.
  std::vector<int64_t> tensors_by_kind() const {
    std::vector<int64_t> counts(fragments.size());
    for (int32_t kind : kind_of) ++counts[static_cast<size_t>(kind)];
    return counts;
  }
  const Fragment& fragment(const Transfer& t) const {
    return fragments[static_cast<size_t>(kind_of[static_cast<size_t>(t.tensor)])][static_cast<size_t>(t.fragment)];
  }
};

/// What one rank does of a plan.
struct RankPlan {
  struct Copy {
    int32_t number;  ///< of the tensor in the table
    Box box;
  };
  struct Move {
    int32_t number;
    int peer;
    std::vector<Box> boxes;    ///< in the order of their elements in the message
    bool from_target = false;  ///< sent from what an earlier bucket brought
  };
  struct Bucket {
    std::vector<Copy> copies;           ///< what the rank takes from itself, in the table's order over all buckets
    std::vector<Move> sends, receives;  ///< by peer; for each peer in the same order on both sides
  };
  std::vector<Bucket> buckets;
  size_t num_calls = 0;  ///< buckets from there on travel nowhere, on any rank
  bool overlap = false, checksums = false;
};
RankPlan part_of(const Plan& plan, int rank);

}  // namespace tandem::reshard
