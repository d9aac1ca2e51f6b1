// SPDX-License-Identifier: Apache-2.0
#include "tandem/planner/activations.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "tandem/base/check.h"
#include "tandem/model/kernel/product.h"
#include "tandem/model/lora.h"

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

// Statistics of a row: sums, target, log-probability, entropy, and what the loss makes of them.
constexpr int64_t kRowBytes = 128;
// At most, of what is bfloat16 and kernels copy to fp32 for products whose results are fp32: rows, and elements of a weight.
constexpr int64_t kCopiedRows = 1024, kCopiedElements = 1 << 22;

// What a pass takes beside what is kept.
class Moving {
 public:
  Moving(const TrainingPlan& plan, const PassShape& pass) : plan_(plan), pass_(pass) {
    const model::ModelConfig& c = plan.config;
    TANDEM_CHECK(c.moe.num_experts == 0 && c.mla.kv_rank == 0 && plan.layout.pp == 1 && plan.layout.cp == 1, "no formula for a pass of ",
                 c.family, " under ", model::to_string(plan.layout));
  }

  // TP ranks have whole rows of the hidden size where they enter a layer.
  int64_t layer() const {
    const model::ModelConfig& c = plan_.config;
    const int64_t tp = plan_.layout.tp, heads = c.num_heads / tp, kv_heads = std::max<int64_t>(1, c.num_kv_heads / tp);
    const int64_t mlp = 3 * c.intermediate_size / tp;                   // gate, up and their product, or the gradients of these
    const int64_t attention = 4 * (heads + kv_heads) * c.head_dim;      // two rows of queries, keys and values, two of the heads
    return pass_.tokens * (std::max(mlp, attention) + 8 * c.hidden_size) * plan_.element_bytes;
  }
  int64_t copies() const {
    const model::ModelConfig& c = plan_.config;
    if (plan_.lora.rank > 0) return adapted();
    const int64_t up = 2 * c.intermediate_size / plan_.layout.tp;
    return plan_.on_cuda ? summed(up * c.hidden_size) : copied(pass_.tokens, up + c.hidden_size);
  }
  // A chunk of logits, and the wanted rows.
  int64_t head() const {
    const int64_t H = plan_.config.hidden_size;
    const int64_t weight = plan_.element_bytes < kFloat && !plan_.on_cuda ? std::min(shard() * H, kCopiedElements) * kFloat : 0;
    return chunk_rows() * shard() * kFloat + pass_.wanted * H * plan_.element_bytes + copied(chunk_rows(), H) + weight;
  }
  int64_t head_gradient() const {
    const bool trained = plan_.lora.rank == 0;
    const int64_t logits = chunk_rows() * shard() * plan_.element_bytes;
    if (!trained) return logits;
    // A library turns the copy around for its product, in memory of its own.
    return logits + (plan_.on_cuda ? summed(shard() * plan_.config.hidden_size) : 2 * copied(chunk_rows(), shard()));
  }
  int64_t row_statistics() const { return pass_.wanted * kRowBytes; }
  int64_t shard() const { return model::vocab_shard_rows(plan_.config, plan_.layout.tp); }

 private:
  int64_t chunk_rows() const { return std::min(model::op::head_chunk_rows(shard(), plan_.on_cuda ? at::kCUDA : at::kCPU), pass_.wanted); }
  int64_t copied(int64_t rows, int64_t width) const {
    return plan_.element_bytes < kFloat && !plan_.on_cuda ? std::min(rows, kCopiedRows) * width * kFloat : 0;
  }
  // Of the dearest matrix with adapters: it beside its adapters, and rows beside theirs (model/op/product.cpp).
  int64_t adapted() const {
    constexpr int64_t kMostRows = 4096;
    struct Size {
      int64_t rows = 0, columns = 0;
      bool is_adapted = false;
    };
    std::map<model::family::Slot, Size> slots;
    for (const model::family::Parameter& p : model::family::parameters(plan_.config)) {
      if (p.layer != 0 || p.shape.size() != 2) continue;
      Size& size = slots[p.slot];
      const int64_t tp = plan_.layout.tp;
      const bool by_columns = p.split == model::family::Split::kColumns;
      size.rows += by_columns ? p.shape[0] : p.shape[0] / tp;
      size.columns = by_columns ? p.shape[1] / tp : p.shape[1];
      size.is_adapted = size.is_adapted || model::is_adapted(p, plan_.lora);
    }
    int64_t most = 0;
    for (const auto& [slot, size] : slots)
      if (size.is_adapted)
        most = std::max(most, size.rows * size.columns + std::min(pass_.tokens, kMostRows) * std::max(size.rows, size.columns));
    return most * plan_.element_bytes;
  }
  // On CUDA no copy is made, but the gradient of a weight is fp32 before it is added.
  int64_t summed(int64_t elements) const {
    return plan_.element_bytes < kFloat ? std::min(elements, model::kernel::kDeviceSumElements) * kFloat : 0;
  }

  const TrainingPlan& plan_;
  const PassShape& pass_;
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

int64_t training_pass_bytes(const TrainingPlan& plan, const PassShape& pass, Recompute recompute) {
  const Moving moving(plan, pass);
  int64_t layer = moving.layer() + moving.copies();
  if (recompute == Recompute::kFull) {
    const Kept again = Layer(plan, pass, 0).kept();  // not the last, which computes wanted rows alone
    layer += again.always + again.cheap;
  }
  return kept_activations(plan, pass, recompute) + moving.row_statistics() + std::max(layer, moving.head() + moving.head_gradient());
}

int64_t scoring_pass_bytes(const TrainingPlan& plan, const PassShape& pass) {
  const Moving moving(plan, pass);
  return moving.row_statistics() + std::max(moving.layer(), moving.head());
}

namespace {

// On CUDA a token that attends alone has a part for each block: model/kernel/aten/flash.cpp.
int64_t parts_bytes(const TrainingPlan& plan, int64_t tokens, int64_t blocks) {
  constexpr int64_t kMostParts = 1 << 15, kCopies = 3, kSums = 2;  // the query, the mix, and it in order
  const int64_t parts = plan.on_cuda ? std::min(kMostParts, tokens * blocks) : 0;
  const int64_t of_head = kCopies * plan.config.head_dim * plan.element_bytes + kSums * kFloat;
  return parts * plan.config.num_heads / plan.layout.tp * of_head;
}

}  // namespace

int64_t generation_step_bytes(const TrainingPlan& plan, const PassShape& pass, int64_t blocks) {
  const Moving moving(plan, pass);
  const int64_t tp = plan.layout.tp, logits = pass.wanted * moving.shard() * kFloat;
  return moving.layer() + parts_bytes(plan, pass.wanted, blocks) + (tp > 1 ? 1 + tp : 1) * logits;  // this rank's, and with tp those of all
}

int64_t filtered_draw_bytes(const TrainingPlan& plan, int64_t draws) {
  // model/kernel/aten/logit.cpp:draw_some. An element: the logits twice, its mass and the sum up to it in fp64; sorted, its logit and
  // place; and what CUDA's sort takes beside.
  constexpr int64_t kRows = 256, kElement = 2 * 4 + 2 * 8 + 4 + 8, kSort = 24;
  return plan.on_cuda ? std::min(draws, kRows) * plan.config.vocab_size * (kElement + kSort) : 0;
}

GraphMemory graph_memory(const TrainingPlan& plan, int64_t running, int64_t blocks) {
  const PassShape pass{running, running};
  const Moving moving(plan, pass);
  return {running * moving.shard() * kFloat, moving.layer() + parts_bytes(plan, running, blocks)};
}

}  // namespace tandem::planner
