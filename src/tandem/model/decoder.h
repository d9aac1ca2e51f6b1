// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one decoder. Training, prefill and decode run the same function over a flat list of tokens; they differ in the
// attention alone, which comes as an AttentionContext.
//
// T tokens of any number of sequences, laid end to end, t of them on this TP rank; H hidden size; R wanted rows.

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/model/op/context/context_attention.h"
#include "tandem/model/op/expert/experts.h"
#include "tandem/model/op/function.h"
#include "tandem/model/op/row_shares.h"
#include "tandem/model/parameters.h"

namespace tandem::model {

/// How the tokens of one forward pass see each other.
class AttentionContext {
 public:
  virtual ~AttentionContext() = default;
  /// o[T, q width] from rotated qkv[T, qkv width].
  virtual at::Tensor attend(int64_t layer, const at::Tensor& qkv_TW, const kernel::AttentionShape& shape) = 0;
  /// Whether keys outlive the pass, in a cache of Decoder::attention_shape.
  virtual bool keeps_keys() const { return false; }
};

/// Each packed tree sees itself, causally; for training and scoring. With `parallel`, the trees are those of all its ranks and
/// the pass has this rank's tokens of them, in the order of its share.
class PackedContext final : public AttentionContext {
 public:
  /// The kernels must outlive it.
  PackedContext(const kernel::Kernels& kernels, kernel::Trees trees, const op::ContextParallel& parallel = {});
  at::Tensor attend(int64_t layer, const at::Tensor& qkv_TW, const kernel::AttentionShape& shape) override;

 private:
  const kernel::Kernels& kernels_;
  std::shared_ptr<const kernel::PackedPlan> plan_;      // one of both: this rank has all tokens
  std::shared_ptr<const op::ContextPlan> shared_;
};

/// What the routers add to the backward pass, over the wanted rows; it must outlive that pass.
struct RouterLosses {
  double z = 0, balance = 0;   ///< as op::RouterLoss, for one row
  at::Tensor load_LE;          ///< fp32, by sparse layer; for balance
  double z_sum = 0, balance_sum = 0;
};

/// What goes through the model in one pass. On the host or the device, but for what is written.
struct TokenBatch {
  at::Tensor ids_T, positions_T;   ///< int64; ids lie in the vocabulary, positions below max_positions (callers check user input)
  at::Tensor rows_R;               ///< int64, rising: the tokens whose hidden state is wanted. Undefined: all
  /// int16 [T, Decoder::route_width]: the experts to take instead of the router's choice. Undefined: the router chooses.
  at::Tensor replayed_routes_TX;
  /// On the device: the same, where this rank writes the experts it took; -1 stays for tokens of other TP ranks (merge_routes), layers of
  /// other stages, and those that the last layer does not compute. May be undefined.
  at::Tensor recorded_routes_TX;
  RouterLosses* router_losses = nullptr;  ///< null: none
};

/// Tags of what pipeline stages send each other behind a chunk of layers, and before it in the backward pass; of one tag it comes in order.
constexpr int activation_tag(int chunk) { return 2 * chunk; }
constexpr int gradient_tag(int chunk) { return 2 * chunk + 1; }

/// What a training pass computes again in its backward pass instead of keeping it.
enum class Recompute {
  kNone,
  kSelective,  ///< norms and activations: the inputs of linears that are cheap to have again
  kFull,       ///< all but the inputs of layers
};

/// One pass through a chunk of this rank's layers: all it has, but for vpp.
struct PassOptions {
  int chunk = 0;
  at::Tensor carried_tH;   ///< from the chunk before (Decoder::carried_rows); undefined where tokens enter
  Recompute recompute = Recompute::kNone;  ///< batch and context must outlive the backward pass
  std::function<void(int64_t layer)> layer_done;  ///< called in the backward pass when a layer's gradients are final; may be empty
};

/// Ownership  uses the Kernels and the groups of its place, which must outlive it; holds no weights.
/// Blocking   collective over the ranks of its place's tp and cp; where ranks share experts, over them, too (serve_experts).
/// Threads    const; one thread per decoder with several ranks.
/// Read next  docs/design/layouts.md
class Decoder {
 public:
  Decoder(const ModelConfig& config, const kernel::Kernels& kernels, const RankPlace& place);

  /// Where the last layer is in the chunk: final, normed hidden states [R,H] of the wanted rows, on every TP rank; after its
  /// attention the last layer computes no other. The backward pass expects each TP rank's part of their gradient. Else: what
  /// the next chunk carries on, [t,H].
  at::Tensor forward(const ModelParameters& parameters, const TokenBatch& batch, AttentionContext& context,
                     const PassOptions& options = {}) const;
  bool begins(int chunk) const { return place_.layout.pp_rank(place_.rank) == 0 && chunk == 0; }
  bool ends(int chunk) const { return layers_[static_cast<size_t>(chunk)].end == config_.num_layers; }
  bool has_head() const { return ends(num_chunks() - 1); }
  int64_t num_layers() const { return num_layers_of(place_.layout, config_.num_layers, place_.layout.pp_rank(place_.rank)); }
  /// How many layers this rank has before one of its own.
  int64_t place_of_layer(int64_t layer) const;
  int num_chunks() const { return static_cast<int>(layers_.size()); }
  /// Rows of what is carried between chunks: TP ranks deal them in training.
  int64_t carried_rows(const TokenBatch& batch, const AttentionContext& context) const;

  /// Without gradient, through all pipeline stages: [R,H] on the last, undefined on the others. Returns when this rank has done its
  /// part, so that the stages work on the passes of a loop side by side.
  at::Tensor forward_stages(const ModelParameters& parameters, const TokenBatch& batch, AttentionContext& context) const;

  /// Takes part in a forward pass of the peers that share experts with this rank, without a token of its own.
  void serve_experts(const ModelParameters& parameters) const;
  /// Every rank of the tp and pp groups gets the routes that the others recorded. Collective over them.
  void merge_routes(const at::Tensor& recorded_TX) const;

  /// Log-probabilities of `targets`, on the host or the device, after the rows of `hidden`; temperature 0 counts as 1.
  op::HeadOutput logprobs(const ModelParameters& parameters, const at::Tensor& hidden_RH, const at::Tensor& targets_R,
                              double temperature) const;

  /// The score head's fp32 values after the rows of `hidden`, [R, labels]; the same on every TP rank. A reward model is asked for
  /// the last token of a sequence, a value model for each.
  at::Tensor scores(const ModelParameters& parameters, const at::Tensor& hidden_RH) const;

  /// fp32 logits of this rank's vocabulary rows, [R, V]: of the last TP rank's fewer, if tp does not divide them (vocab_shard_rows).
  at::Tensor local_logits(const ModelParameters& parameters, const at::Tensor& hidden_RH) const;

  /// Experts a token is sent to, over all sparse layers in order; 0 for a dense model.
  int64_t route_width() const;

  const ModelConfig& config() const { return config_; }
  const kernel::Kernels& kernels() const { return kernels_; }
  const kernel::AttentionShape& attention_shape() const { return shape_; }
  const RankPlace& place() const { return place_; }
  comm::Group* tp() const { return place_.tp; }
  /// Ranks that share experts and have other sequences; null if none.
  comm::Group* ep() const { return place_.layout.shares_experts() ? place_.ep : nullptr; }
  int tp_size() const { return place_.layout.tp; }

 private:
  struct Pass;
  bool deals_rows(const AttentionContext& context) const;
  TokenBatch moved(TokenBatch batch) const;
  op::Again entered_again(const op::Again& x_again, const op::RowShares& shares) const;
  at::Tensor enter(const at::Tensor& x, const op::RowShares& shares) const;
  std::vector<at::Tensor> enter_together(std::vector<at::Tensor> parts, const op::RowShares& shares) const;
  at::Tensor leave(const at::Tensor& x, const op::RowShares& shares) const;
  at::Tensor plain_attention(const Pass& pass, size_t index, const at::Tensor& x, const op::Again& x_again) const;
  at::Tensor latent_attention(const Pass& pass, size_t index, const at::Tensor& x, const op::Again& x_again) const;
  std::pair<at::Tensor, at::Tensor> rotate_latent(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions) const;
  struct MlpWeights {
    const op::Parameter &gate_up, &down;
  };
  at::Tensor mlp(const Pass& pass, const at::Tensor& x, const MlpWeights& weights, const op::Again& x_again) const;
  at::Tensor routed(const LayerParameters& p, const at::Tensor& x, const op::Routing& routing, const op::RowShares& shares) const;
  at::Tensor experts(const Pass& pass, size_t index, const at::Tensor& x) const;
  at::Tensor layer_routes(const at::Tensor& routes_TX, size_t index) const;
  int64_t sparse_before(size_t index) const;
  op::RouterLoss router_loss(const Pass& pass, size_t index) const;
  std::pair<at::Tensor, at::Tensor> layer(const Pass& pass, size_t index, const at::Tensor& x, const at::Tensor& delta) const;

  ModelConfig config_;
  const kernel::Kernels& kernels_;
  RankPlace place_;
  std::vector<LayerRange> layers_;  // by chunk
  op::ExpertPlace expert_place_;
  kernel::AttentionShape shape_;
  at::Tensor cos_sin_PD_;
  int64_t first_row_;
};

}  // namespace tandem::model
