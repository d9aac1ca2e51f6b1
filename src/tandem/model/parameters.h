// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank's parameters as views of flat buffers: values in the compute dtype, gradients in fp32, in the same order. Flat,
// so that the optimizer, its shards and the exchange between ranks are ranges. First stands all that every rank of a stage
// holds, then the routed experts: ranks that hold the same of the one need not hold the same of the other.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "tandem/base/rng.h"
#include "tandem/model/op/function.h"
#include "tandem/model/layout.h"

namespace tandem::model {

/// One Hugging Face tensor's box inside the flat buffer.
struct ParameterEntry {
  family::Parameter parameter;
  Box box;
  int64_t offset;        ///< elements from the start of the flat buffer
  int64_t num_elements;  ///< that it takes there, of any dtype
  int replicas;          ///< ranks with the same box after the sums over data-parallel ranks: of tp, and of stages with one embedding
  int32_t number = 0;    ///< of the parameter, in the flat_order of all that the table is about; the same on every rank
};

/// Elements [begin, end) of a flat buffer.
struct FlatRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Where a layer lies. Final norm and head are with the last layer that the rank holds, the embedding is layer -1.
struct LayerRanges {
  int64_t layer;
  FlatRange dense;    ///< a multiple of 16 * layout.data_ranks()
  FlatRange experts;  ///< a multiple of 16 * layout.expert_data_ranks()
};

/// The order of a rank's flat buffer: layout.h:flat_order. Fused tensors (q|k|v, gate|up) lie side by side.
struct ParameterTable {
  ModelConfig config;
  Layout layout;
  int rank = 0;
  std::vector<ParameterEntry> entries;
  std::vector<LayerRanges> layers;  ///< without gaps, lowest first; the dense ranges one after the other, then those of experts
  int64_t num_elements = 0;

  /// Shaped as the box; fp32 where the parameter is kept so.
  at::Tensor view(const at::Tensor& flat, const ParameterEntry& entry) const;
  /// Whether no rank before this one holds the same box.
  bool holds_first(const ParameterEntry& entry) const;
  /// Whether TP ranks have parts of its gradient: they hold the same of it, and use it on other heads, columns or tokens.
  bool adds_over_tp(const ParameterEntry& entry) const;
  /// What travels between ranks, in the dtype of the buffer: shaped as layout.h:boxes_of has it.
  at::Tensor words(const at::Tensor& flat, const ParameterEntry& entry) const;
};

ParameterTable parameter_table(const ModelConfig& config, const Layout& layout, int rank);
/// Of these parameters alone.
ParameterTable parameter_table(const ModelConfig& config, const Layout& layout, int rank, const std::vector<family::Parameter>& which);

/// What a layer has not stays undefined.
struct LayerParameters {
  op::Parameter input_norm, qkv, qkv_bias, head_norm, output, post_norm, gate_up, down;
  op::Parameter q_down, q_down_norm, q_up, kv_down, kv_down_norm, kv_up;
  op::Parameter router, router_bias, shared_gate_up, shared_down;
  op::Parameter expert_gate_up, expert_down;  ///< of all experts: [E*2F, H], each its gate, then its up; [E*H, F]
};
struct ModelParameters {
  op::Parameter embedding, final_norm, head;  ///< head is the embedding where they are tied
  op::Parameter score;                        ///< [labels, H]; in place of the head
  std::vector<LayerParameters> layers;
  bool adapted = false;                      ///< trained by adapters alone (lora.h)

  op::Parameter& slot_of(const family::Parameter& parameter);
};

/// Views of `values`, with gradients in `grads` (fp32; undefined for a model that is not trained).
ModelParameters make_parameters(const ParameterTable& table, const at::Tensor& values, const at::Tensor& grads);

/// Where each value lies: two sets are at the same addresses, or a graph of one does not serve the other.
std::vector<const void*> addresses_of(const ModelParameters& parameters);

/// Gives every linear of the layers and the head a packed copy, where the kernels have one for it. Returns the bytes it takes; 0 where
/// packing is not available.
int64_t pack_parameters(ModelParameters& parameters, const kernel::Kernels& kernels);

/// Fills the rank's boxes: `read` copies a box of a Hugging Face tensor into the view it is given.
void load_parameters(const ParameterTable& table, at::Tensor& values, const std::function<void(const TensorSpec&, at::Tensor)>& read);

/// The random numbers of a tensor, by its name.
RandomStream stream_of(const std::string& name, uint64_t seed);
/// Fills `to` with the entry's box of a tensor whose elements are draws, in the order of the whole.
void fill_box(const ParameterEntry& entry, at::Tensor to, const std::function<double()>& draw);

/// Random values as Hugging Face initialises them: N(0, deviation) matrices, zero biases, unit norms. A tensor's values
/// depend on its name and the seed alone, not on the layout.
void initialize_parameters(const ParameterTable& table, at::Tensor& values, uint64_t seed, double deviation);

}  // namespace tandem::model
