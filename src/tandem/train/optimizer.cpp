// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/error.h"

namespace tandem::train {

Optimizer::Ranks Optimizer::ranks_in(comm::Mesh& mesh, const model::ModelConfig& config) {
  using comm::Axis;
  return {&mesh.world(), &mesh.along(Axis::kData), &mesh.along(Axis::kExpertData), &mesh.along(Axis::kTp),
          config.has_tied_head() ? mesh.pipeline_ends() : nullptr};
}

Optimizer::Optimizer(const model::ParameterTable& table, at::Tensor values, at::Tensor grads, Ranks ranks, device::Arena& arena)
    : table_(table), values_(std::move(values)), grads_(std::move(grads)), ranks_(ranks) {
  size_ = table.num_elements / ranks_.data->size();
  begin_ = size_ * ranks_.data->rank();
  m_ = arena.allocate("optimizer", {size_}, at::kFloat);
  v_ = arena.allocate("optimizer", {size_}, at::kFloat);
  if (values_.scalar_type() == at::kFloat) master_ = values_.narrow(0, begin_, size_);
  else master_ = arena.allocate("master_weights", {size_}, at::kFloat);
  int64_t from = 0;
  for (const model::ParameterEntry& e : table.entries) {
    if (e.parameter.trained) continue;
    const int64_t first = std::clamp(e.offset - begin_, int64_t{0}, size_);
    if (first > from) trained_.emplace_back(from, first);
    from = std::max(from, std::clamp(e.offset + e.num_elements - begin_, int64_t{0}, size_));
  }
  if (from < size_) trained_.emplace_back(from, size_);
  // With one data-parallel rank the gradients are their own sum.
  reduced_ = ranks_.data->size() == 1 ? grads_ : arena.allocate("gradients", {size_}, at::kFloat);
}

void Optimizer::adopt_values() {
  if (values_.scalar_type() != at::kFloat) master_.copy_(values_.narrow(0, begin_, size_));
}

// What several TP ranks hold and use on different heads gets the sum of their gradients: kv heads, where there are fewer than
// ranks, by adding each rank's part to a buffer of all; norms of heads as they are.
void Optimizer::add_head_replicas() {
  for (const model::ParameterEntry& e : table_.entries) {
    at::Tensor mine = table_.view(grads_, e);
    const bool whole = e.parameter.split == model::family::Split::kPartial || e.parameter.split == model::family::Split::kNone;
    if (whole && e.parameter.trained) ranks_.tp->all_reduce(mine, comm::ReduceOp::kSum);
    if (e.parameter.split != model::family::Split::kKvRows || e.replicas == 1) continue;
    at::Tensor all = at::zeros(e.parameter.shape, at::kFloat);
    at::Tensor part = all.narrow(0, e.box.begin[0], e.box.extent(0));
    part.copy_(mine);
    ranks_.tp->all_reduce(all, comm::ReduceOp::kSum);
    mine.copy_(part);
  }
}

void Optimizer::reduce_gradients() {
  if (ranks_.tied)
    for (const model::ParameterEntry& e : table_.entries) {
      at::Tensor mine = table_.view(grads_, e);
      if (e.parameter.slot == model::family::Slot::kEmbedding) ranks_.tied->all_reduce(mine, comm::ReduceOp::kSum);
    }
  if (ranks_.tp->size() > 1) add_head_replicas();
  if (ranks_.data->size() > 1) ranks_.data->reduce_scatter(reduced_, grads_);
}

double Optimizer::gradient_norm() {
  double squares = 0;
  for (const model::ParameterEntry& e : table_.entries) {
    const int64_t from = std::max(e.offset, begin_), to = std::min(e.offset + e.num_elements, begin_ + size_);
    if (from >= to) continue;
    constexpr int64_t kSlice = 1 << 16;  // fixed, so that the number of threads does not change the sum
    const int64_t slices = (to - from + kSlice - 1) / kSlice;
    std::vector<double> sums(static_cast<size_t>(slices));
    const float* g = reduced_.data_ptr<float>() + (from - begin_);
    at::parallel_for(0, slices, 1, [&](int64_t first, int64_t last) {
      for (int64_t s = first; s < last; ++s)
        sums[static_cast<size_t>(s)] = model::kernel::rows().fp.sum_of_squares(g + s * kSlice, std::min(kSlice, to - from - s * kSlice));
    });
    double total = 0;
    for (double x : sums) total += x;
    squares += total / e.replicas / (ranks_.tied && e.parameter.slot == model::family::Slot::kEmbedding ? 2 : 1);
  }
  at::Tensor sum = at::zeros({1}, at::kDouble).fill_(squares);
  ranks_.world->all_reduce(sum, comm::ReduceOp::kSum);
  return std::sqrt(sum.data_ptr<double>()[0]);
}

double Optimizer::step(const Options& o, double lr) {
  reduce_gradients();
  const double norm = gradient_norm();
  if (!std::isfinite(norm))
    throw UserError("train", join_text("the gradient norm of update ", num_steps_ + 1, " is ", norm),
                    "a lower learning rate or smaller rewards; the last checkpoint holds the state before");
  ++num_steps_;
  const double clip = o.clip_grad_norm > 0 && norm > o.clip_grad_norm ? o.clip_grad_norm / (norm + 1e-6) : 1.0;
  const bool half = values_.scalar_type() == at::kBFloat16;
  model::kernel::AdamArgs a{};
  a.master = master_.data_ptr<float>();
  a.half = half ? static_cast<model::kernel::Half*>(values_.data_ptr()) + begin_ : nullptr;
  a.grad = reduced_.data_ptr<float>();
  a.m = m_.data_ptr<float>();
  a.v = v_.data_ptr<float>();
  a.grad_scale = static_cast<float>(clip);
  a.lr = static_cast<float>(lr);
  a.beta1 = static_cast<float>(o.beta1);
  a.beta2 = static_cast<float>(o.beta2);
  a.eps = static_cast<float>(o.eps);
  a.weight_decay = static_cast<float>(o.weight_decay);
  a.bias1 = static_cast<float>(1.0 - std::pow(o.beta1, num_steps_));
  a.bias2 = static_cast<float>(1.0 - std::pow(o.beta2, num_steps_));
  for (const auto& [from, to] : trained_)
    at::parallel_for(from, to, 1 << 15, [&](int64_t begin, int64_t end) { model::kernel::rows().fp.adamw(a, begin, end); });
  if (ranks_.data->size() > 1) {
    const at::Tensor mine = values_.narrow(0, begin_, size_).clone();
    ranks_.data->all_gather(values_, mine);
  }
  return norm;
}

std::map<std::string, at::Tensor> Optimizer::state() const {
  return {{"master", master_}, {"m", m_}, {"v", v_}, {"num_steps", at::zeros({1}, at::kLong).fill_(num_steps_)}};
}

void Optimizer::restore(const std::map<std::string, at::Tensor>& state, const std::string& where) {
  const auto copy = [&](const char* name, at::Tensor to) {
    const auto it = state.find(name);
    if (it == state.end()) throw UserError(where, std::string("no tensor ") + name, "the optimizer state of a checkpoint");
    if (it->second.numel() != to.numel())
      throw UserError(where, join_text(name, " has ", it->second.numel(), " elements"), join_text(to.numel(), ": the layout the run was saved under"));
    to.copy_(it->second);
  };
  copy("master", master_);
  copy("m", m_);
  copy("v", v_);
  num_steps_ = state.at("num_steps").data_ptr<int64_t>()[0];
  if (values_.scalar_type() != at::kFloat)
    for (const auto& [from, to] : trained_) values_.narrow(0, begin_ + from, to - from).copy_(master_.narrow(0, from, to - from));
  if (ranks_.data->size() > 1) {
    const at::Tensor mine = values_.narrow(0, begin_, size_).clone();
    ranks_.data->all_gather(values_, mine);
  }
}

}  // namespace tandem::train
