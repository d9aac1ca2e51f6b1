// SPDX-License-Identifier: Apache-2.0
#include "training_traffic.h"

#include <algorithm>

#include "tandem/model/parameters.h"

namespace tandem::test {
namespace {

constexpr int64_t kSumBytes = 4, kIdBytes = 8;

class Step {
 public:
  Step(const planner::TrainingPlan& plan, int rank) : c_(plan.config), layout_(plan.layout), b_(plan.element_bytes), rank_(rank) {}

  void pass(const PassTraffic& p) {
    const int64_t row = c_.hidden_size * b_;
    const std::vector<model::LayerRange> chunks = model::layers_of(layout_, c_.num_layers, layout_.pp_rank(rank_));
    for (const auto& [begin, end] : chunks) {
      if (begin == 0) tp_twice(p.tokens, row);  // the embedding
      else bytes_["pp"] += carried(p.tokens) * row;  // gradients to the stage before
      for (int64_t i = begin; i < end; ++i) layer(p, i);
      if (end != c_.num_layers) bytes_["pp"] += carried(p.tokens) * row;
      else head(p);
    }
  }

  void routed(const RoutedRows& rows) {
    const int64_t row = c_.hidden_size * b_;
    // There and back: rows and weights forward; output gradients, rows again, their gradients and those of weights backward.
    bytes_["ep"] += rows.out * (3 * row + kSumBytes) + rows.in * (2 * row + kSumBytes);
  }

  // What every rank of an axis brings to the sums of gradients, and gets of the new values.
  void update(const model::ParameterTable& table) {
    const int64_t data = layout_.data_ranks(), expert_data = layout_.expert_data_ranks();
    for (const model::LayerRanges& l : table.layers) {
      bytes_["data"] += l.dense.size() / data * (data - 1) * (kSumBytes + b_);
      bytes_["expert_data"] += l.experts.size() / expert_data * (expert_data - 1) * (kSumBytes + b_);
      int64_t partial = 0;
      for (const model::ParameterEntry& e : table.entries) {
        if (e.offset < l.dense.begin || e.offset >= l.dense.end) continue;
        const bool by_heads = e.parameter.split == model::family::Split::kKvRows;
        if (table.adds_over_tp(e)) partial += by_heads ? Box::whole(e.parameter.shape).num_elements() : e.num_elements;
        const bool on_both_ends = e.parameter.slot == model::family::Slot::kEmbedding && layout_.pp > 1 && c_.has_tied_head();
        if (on_both_ends) bytes_["tied"] += e.num_elements * kSumBytes;
      }
      bytes_["tp"] += 2 * partial * kSumBytes * (layout_.tp - 1) / layout_.tp;
    }
  }

  std::map<std::string, int64_t> bytes() const { return bytes_; }

 private:
  int64_t carried(int64_t rows) const {
    const int64_t r = layout_.tp_rank(rank_);
    return rows * (r + 1) / layout_.tp - rows * r / layout_.tp;
  }

  // Forward one way and backward the other: a gather and a reduce-scatter, of shares padded to the largest.
  void tp_twice(int64_t rows, int64_t row_bytes) {
    bytes_["tp"] += 2 * ((rows + layout_.tp - 1) / layout_.tp) * (layout_.tp - 1) * row_bytes;
  }

  void layer(const PassTraffic& p, int64_t index) {
    const int64_t row = c_.hidden_size * b_, behind = index + 1 == c_.num_layers ? p.wanted : p.tokens;
    const model::MlaConfig& m = c_.mla;
    const int64_t latent = (m.q_rank > 0 ? m.q_rank : c_.hidden_size) + m.kv_rank + m.rope_dim;
    tp_twice(p.tokens, m.kv_rank > 0 ? latent * b_ : row);
    if (index + 1 == c_.num_layers) tp_twice(p.tokens, row);  // the residual, of which the wanted rows go on
    tp_twice(behind, row);
    if (c_.is_sparse(index)) experts(behind);
    if (!c_.is_sparse(index) || c_.moe.num_shared_experts > 0) tp_twice(behind, row), tp_twice(behind, row);
    if (layout_.cp == 1) return;
    const int64_t heads = c_.num_heads / layout_.tp, D = m.kv_rank > 0 ? std::max(m.nope_dim + m.rope_dim, m.v_dim) : c_.head_dim;
    const int64_t kv_heads = m.kv_rank > 0 ? heads : model::local_kv_heads(c_, layout_.tp);
    bytes_["cp"] += 2 * p.most_tokens * 2 * kv_heads * D * b_ * (layout_.cp - 1);
  }

  void experts(int64_t rows) {
    const int64_t held = model::first_expert(c_.moe.num_experts, layout_.ep, layout_.ep_rank(rank_) + 1) -
                         model::first_expert(c_.moe.num_experts, layout_.ep, layout_.ep_rank(rank_));
    bytes_["ep"] += (c_.moe.num_experts - held) * kIdBytes;  // how many rows for each
    const int64_t etp = layout_.expert_tp(), first = layout_.tp_rank(rank_) / etp * etp, k = c_.moe.experts_per_token;
    if (etp == 1) return;
    int64_t widest = 0;
    for (int64_t r = first; r < first + etp; ++r) widest = std::max(widest, rows * (r + 1) / layout_.tp - rows * r / layout_.tp);
    bytes_["etp"] += widest * (etp - 1) * (k * kIdBytes + 2 * k * kSumBytes + 4 * c_.hidden_size * b_);
  }

  void head(const PassTraffic& p) {
    tp_twice(p.wanted, c_.hidden_size * b_);
    bytes_["tp"] += p.wanted * 4 * kSumBytes * (layout_.tp - 1);                // statistics of the logits
    bytes_["cp"] += 3 * p.most_wanted * kSumBytes * (layout_.cp - 1);           // log-probabilities, their gradient, entropies
  }

  const model::ModelConfig& c_;
  const model::Layout& layout_;
  int64_t b_;
  int rank_;
  std::map<std::string, int64_t> bytes_;
};

}  // namespace

std::map<std::string, int64_t> training_traffic(const planner::TrainingPlan& plan, int rank, const std::vector<PassTraffic>& passes,
                                                const RoutedRows& routed) {
  Step step(plan, rank);
  for (const PassTraffic& p : passes) step.pass(p);
  step.routed(routed);
  step.update(model::parameter_table(plan.config, plan.layout, rank));
  std::map<std::string, int64_t> bytes;
  for (const auto& [axis, count] : step.bytes())
    if (count > 0) bytes[axis] = count;
  return bytes;
}

}  // namespace tandem::test
