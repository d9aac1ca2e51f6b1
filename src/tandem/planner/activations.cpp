// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/activations.h"

#include <algorithm>

namespace tandem::planner {
namespace {

using model::Recompute;

constexpr int64_t kFloat = 4, kLong = 8;

// Bytes that one layer keeps, by what recompute does about it.
struct Kept {
  int64_t always = 0;       // unless the whole layer runs again
  int64_t cheap = 0;        // inputs of linears that selective recompute has again
};

class Layer {
 public:
  Layer(const TrainingPlan& plan, const PassShape& pass, int64_t index)
      : c_(plan.config), b_(plan.element_bytes), tp_(plan.layout.tp), index_(index), tokens_(pass.tokens),
        behind_(index + 1 == plan.config.num_layers ? pass.wanted : pass.tokens), etp_(plan.layout.expert_tp()) {}

  Kept kept() {
    norm(tokens_, c_.hidden_size);  // input norm
    c_.mla.kv_rank > 0 ? latent() : plain();
    norm(behind_, c_.hidden_size);  // post norm
    c_.is_sparse(index_) ? experts() : mlp(c_.intermediate_size);
    return kept_;
  }

 private:
  // The sum, and what it was divided by. TP ranks deal the rows.
  void norm(int64_t rows, int64_t width) { kept_.always += rows * (width * b_ + kFloat) / tp_; }

  void plain() {
    const int64_t heads = c_.num_heads / tp_, kv_heads = std::max<int64_t>(1, c_.num_kv_heads / tp_), D = c_.head_dim;
    const int64_t width = (heads + 2 * kv_heads) * D;
    kept_.cheap += tokens_ * c_.hidden_size * b_;
    if (c_.head_norm) kept_.always += tokens_ * (width * b_ + (heads + kv_heads) * kFloat);
    attention(width, heads * D, heads);
    if (behind_ != tokens_) kept_.always += behind_ * heads * D * b_;  // the rows that go on
  }

  void attention(int64_t width, int64_t out, int64_t heads) { kept_.always += tokens_ * ((width + out) * b_ + heads * kFloat); }

  void latent() {
    const model::MlaConfig& m = c_.mla;
    const int64_t heads = c_.num_heads / tp_, D = std::max(m.nope_dim + m.rope_dim, m.v_dim);
    kept_.cheap += tokens_ * c_.hidden_size * b_ / tp_;  // the down-projections' input
    if (m.q_rank > 0) norm(tokens_, m.q_rank);
    norm(tokens_, m.kv_rank);
    const int64_t q_in = m.q_rank > 0 ? m.q_rank : tp_ > 1 ? c_.hidden_size : 0;  // without a latent it is the input itself
    kept_.always += tokens_ * (q_in + m.kv_rank) * b_;
    attention(3 * heads * D, heads * D, heads);
    kept_.always += behind_ * heads * m.v_dim * b_;
  }

  void mlp(int64_t intermediate) {
    const int64_t F = intermediate / tp_;
    kept_.cheap += behind_ * (c_.hidden_size + F) * b_;
    kept_.always += behind_ * 2 * F * b_;
  }

  void experts() {
    const model::MoeConfig& m = c_.moe;
    const int64_t H = c_.hidden_size, F = m.intermediate_size / etp_, k = m.experts_per_token;
    const int64_t mine = behind_ / tp_, here = mine * etp_;  // rows of this rank, and of those that cut the same experts
    kept_.always += mine * (H * b_ + m.num_experts * kFloat + k * (kLong + kFloat));
    kept_.always += here * k * (2 * F * b_ + kFloat + 3 * kLong);  // with where each row lies by expert, and whence it came
    if (etp_ > 1) kept_.always += here * (H * b_ + k * (kLong + kFloat));
    if (m.num_shared_experts == 0) return;
    const int64_t shared = m.num_shared_experts * m.intermediate_size / tp_;
    kept_.cheap += behind_ * shared * b_;
    kept_.always += behind_ * (2 * shared + (tp_ > 1 ? H : 0)) * b_;
  }

  const model::ModelConfig& c_;
  int64_t b_, tp_, index_, tokens_, behind_, etp_;
  Kept kept_;
};

}  // namespace

int64_t kept_activations(const TrainingPlan& plan, const PassShape& pass, Recompute recompute) {
  const int64_t row = plan.config.hidden_size * plan.element_bytes;
  int64_t bytes = 0;
  for (const auto& [begin, end] : model::layers_of(plan.layout, plan.config.num_layers, 0))
    for (int64_t i = begin; i < end; ++i) {
      const Kept kept = Layer(plan, pass, i).kept();
      if (recompute == Recompute::kFull) bytes += (i == 0 ? 1 : 2) * pass.tokens * row / plan.layout.tp;
      else bytes += kept.always + (recompute == Recompute::kNone ? kept.cheap : 0);
    }
  if (plan.layout.pp == 1) bytes += pass.wanted * (row + kFloat) / plan.layout.tp + pass.wanted * row;  // final norm, head
  return bytes;
}

int64_t saved_activations(const TrainingPlan& plan, const PassShape& pass, Recompute recompute) {
  const int64_t saved = kept_activations(plan, pass, Recompute::kNone) - kept_activations(plan, pass, recompute);
  if (recompute != Recompute::kFull) return saved;
  const Kept again = Layer(plan, pass, plan.config.num_layers - 1).kept();
  return saved - again.always - again.cheap;
}

}  // namespace tandem::planner
