// SPDX-License-Identifier: Apache-2.0
#pragma once
// The differentiable steps of the decoder. Each is one node of libtorch's graph whose backward adds weight gradients
// straight into their fp32 buffers; only activations carry graph edges. Without grad mode no node is made.
//
// T tokens, H hidden, W qkv width, F intermediate (as this rank holds them).

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tandem/comm/group.h"
#include "tandem/model/kernel/kernels.h"

namespace tandem::model::op {

using kernel::AttentionShape, kernel::Kernels;

/// Rows [first_row, first_row + N) of a matrix are adapted by scale b a, with a and b in fp32: gradients of the matrix go into theirs.
struct Adapter {
  int64_t first_row;
  at::Tensor a_rK, b_Nr, a_grad, b_grad;
  double scale;
};

/// A parameter in the compute dtype, where its gradient adds up (fp32; undefined when it is not trained), its adapters, and a
/// packed copy for decoding (undefined where there is none).
///
/// A matrix with adapters is value + b a: the value stays as it was before them, and products add the two parts in fp32, as the sum's
/// rounding to bfloat16 would lose a small change. a and b are those of all its adapters side by side, scale and all, in the compute
/// dtype (model/lora.h writes them): R = their ranks together.
struct Parameter {
  at::Tensor value;
  at::Tensor grad;
  std::vector<Adapter> adapters;
  at::Tensor a_RK, b_NR;        ///< undefined without adapters
  kernel::PackedWeight packed;  ///< of value; with adapters of [value | b]
  kernel::PackedWeight packed_a;
};

/// out[M,N] = x[M,K] w^T, rounded once.
void forward(const Kernels& k, at::Tensor& out_MN, const at::Tensor& x_MK, const Parameter& w_NK);
/// dx[M,K] = dy[M,N] w, rounded once.
void input_grad(const Kernels& k, at::Tensor& dx_MK, const at::Tensor& dy_MN, const Parameter& w_NK);
/// Adds dy^T x, the gradient of the rows of w from `first_row` on, to w's gradient and those of its adapters.
void add_weight_grad(const Kernels& k, const Parameter& w, int64_t first_row, const at::Tensor& dy_TN, const at::Tensor& x_TK);
/// Packs a matrix with its adapters for decoding, where the kernels have a use for it. Returns the bytes it takes.
int64_t pack(const Kernels& k, Parameter& w_NK);

/// x[T,H]: rows of the embedding; ids outside [first_row, first_row + rows) give zeros (another TP rank has them).
at::Tensor embed(const Kernels& k, const Parameter& table_VH, const at::Tensor& ids_T, int64_t first_row);

/// {x + delta, rms_norm(x + delta) * weight}; delta may be undefined.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const Kernels& k, const at::Tensor& x_TH, const at::Tensor& delta_TH,
                                               const Parameter& weight_H, double eps);

/// Computes a tensor again in the backward pass, the same bits, so that it need not be kept. Empty: it is kept.
using Again = std::function<at::Tensor()>;

/// x w^T; x_again gives x.
at::Tensor linear(const Kernels& k, const at::Tensor& x_TK, const Parameter& weight_NK, const Again& x_again = {});

/// The second output of add_rms_norm from the first. No gradient.
at::Tensor rms_norm(const Kernels& k, const at::Tensor& x_TH, const Parameter& weight_H, double eps);

/// RMSNorm of each query head by the first D of `norms` and of each key head by the others; values pass.
at::Tensor head_norm(const Kernels& k, const at::Tensor& qkv_TW, const Parameter& norms_2D, double eps, const AttentionShape& shape);

/// Adds the bias (may be undefined) and rotates the query and key heads by their positions.
at::Tensor rope(const Kernels& k, const at::Tensor& qkv_TW, const Parameter& bias_W, const kernel::Rotation& rotation);

/// The rows of x that `rows` lists, each once, in rising order.
at::Tensor select_rows(const Kernels& k, const at::Tensor& x_TH, const at::Tensor& rows_R);

/// Causal attention inside each packed tree of the plan, which has all tokens.
at::Tensor attention(const Kernels& k, const at::Tensor& qkv_TW, std::shared_ptr<const kernel::PackedPlan> plan,
                     const AttentionShape& shape);

/// silu(gate) * up, of rows [gate | up].
at::Tensor swiglu(const Kernels& k, const at::Tensor& gate_up_T2F);

/// Two activations in, two out: what one decoder layer is.
using LayerFunction = std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&)>;
/// Runs `layer` and keeps its inputs alone; the backward runs it again.
std::pair<at::Tensor, at::Tensor> recompute(LayerFunction layer, const at::Tensor& a, const at::Tensor& b);

struct HeadInput {
  at::Tensor hidden_RH;
  at::Tensor targets_R;      ///< int64, global token ids
  int64_t first_row = 0;     ///< of the vocabulary this rank holds
  double temperature = 1.0;
  comm::Group* tp = nullptr;
};
/// Fp32; both carry the gradient.
struct HeadOutput {
  at::Tensor logprobs_R;     ///< log_softmax(logits / T)[target]
  at::Tensor entropy_R;      ///< of softmax(logits / T)
};
/// Rows whose fp32 logits exist at a time, of a vocabulary or a TP rank's part of it: as many as the processor's cache holds, or as many as
/// keep a device busy.
int64_t head_chunk_rows(int64_t vocabulary, at::Device device = at::kCPU);
/// Logits exist for one chunk of rows at a time, forward and backward.
HeadOutput head_logprobs(const Kernels& k, const HeadInput& in, const Parameter& weight_VH);

/// hidden w^T in fp32, [R,L]: the scores of L labels. A row does not depend on its company.
at::Tensor head_scores(const Kernels& k, const at::Tensor& hidden_RH, const Parameter& weight_LH);

}  // namespace tandem::model::op
