// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/optimizer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/scalar.h"

namespace tandem::train {
namespace {

Share share_of(comm::Group* group) { return {group->rank(), group->size()}; }

// Ranks of one stage may hold different numbers of experts; they must cut their layers alike.
std::vector<int64_t> elements_of_largest(const model::ParameterTable& table, comm::Group& world) {
  std::vector<int64_t> most(static_cast<size_t>(table.config.num_layers + 1));
  const auto of_layer = [&](const model::LayerRanges& l) -> int64_t& { return most[static_cast<size_t>(l.layer + 1)]; };
  for (const model::LayerRanges& l : table.layers) of_layer(l) = l.dense.size() + l.experts.size();
  comm::max_over(world, most);
  std::vector<int64_t> elements;
  for (const model::LayerRanges& l : table.layers) elements.push_back(of_layer(l));
  return elements;
}

device::Owner gradients_owner(const OptimizerSetup& setup) { return setup.state.owner_prefix + "gradients"; }

}  // namespace

Optimizer::Optimizer(const OptimizerSetup& s)
    : setup_(s),
      buckets_(buckets_of(s.state.table, elements_of_largest(s.state.table, *s.ranks.world),
                          s.bucket_bytes / static_cast<int64_t>(sizeof(float)))),
      slices_(slices_of(buckets_, share_of(s.ranks.data), share_of(s.ranks.expert_data))),
      sum_(gradient_buckets(), s.ranks, {s.state.arena, gradients_owner(s), nullptr, device::Keep::kNothing}, s.recorder),
      state_(s.state, slices_) {
  find_stretches();
}

// With one rank the gradients are their own sum.
GradientBuckets Optimizer::gradient_buckets() {
  GradientBuckets work{setup_.state.table, setup_.grads, buckets_, std::vector<GradientBuckets::Sums>(buckets_.size())};
  const Ranks& ranks = setup_.ranks;
  int64_t room = 0, at = 0;
  const auto is_summed = [&](const Slice& s) { return (s.experts ? ranks.expert_data : ranks.data)->size() > 1; };
  for (const Slice& s : slices_) room += is_summed(s) ? s.size : 0;
  at::Tensor sums;
  if (room > 0) {
    sums_ = std::make_unique<device::Swappable>(device::Home{setup_.state.arena, gradients_owner(setup_), nullptr, device::Keep::kNothing},
                                                room, at::kFloat);
    sums = sums_->tensor();
  }
  for (const Slice& s : slices_) {
    const bool apart = is_summed(s);
    summed_.push_back(apart ? sums.narrow(0, at, s.size) : setup_.grads.narrow(0, s.begin, s.size));
    at += apart ? s.size : 0;
    GradientBuckets::Sums& of_bucket = work.sums[static_cast<size_t>(s.bucket)];
    (s.experts ? of_bucket.experts : of_bucket.dense) = summed_.back();
  }
  return work;
}

// Neighbours of one kind go together.
void Optimizer::find_stretches() {
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Slice& s = slices_[i];
    bool joins = false;
    for (const model::ParameterEntry& e : setup_.state.table.entries) {
      const int64_t begin = std::max(e.offset, s.begin), end = std::min(e.offset + e.num_elements, s.begin + s.size);
      if (begin >= end) continue;
      const bool matrix = e.parameter.shape.size() > 1;
      joins = joins && e.parameter.trained && stretches_.back().matrix == matrix;
      if (joins) stretches_.back().size = end - stretches_.back().begin;
      else if (e.parameter.trained)
        stretches_.push_back(
            {begin, end - begin, s.at + begin - s.begin, summed_[i].narrow(0, begin - s.begin, s.begin + s.size - begin), matrix});
      joins = e.parameter.trained;
    }
  }
}

double Optimizer::gradient_norm() {
  at::Tensor squares = at::zeros({1}, setup_.grads.options().dtype(at::kDouble));
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Slice& slice = slices_[i];
    for (const model::ParameterEntry& e : setup_.state.table.entries) {
      const int64_t from = std::max(e.offset, slice.begin), to = std::min(e.offset + e.num_elements, slice.begin + slice.size);
      if (from < to) setup_.state.kernels.add_squares(summed_[i].narrow(0, from - slice.begin, to - from), e.replicas, squares, 0);
    }
  }
  return std::sqrt(comm::sum_over(*setup_.ranks.world, squares.item<double>()));
}

double Optimizer::step(const Options& o, double lr) {
  sum_.finish();
  const double norm = gradient_norm();
  if (!std::isfinite(norm)) return norm;
  ++num_steps_;
  const double clip = o.clip_grad_norm > 0 && norm > o.clip_grad_norm ? o.clip_grad_norm / (norm + 1e-6) : 1.0;
  model::kernel::AdamStep step{clip, lr, o.beta1, o.beta2, o.eps, 0, num_steps_};
  for (const Stretch& stretch : stretches_) {
    step.weight_decay = stretch.matrix || o.decay_norms ? o.weight_decay : 0.0;
    state_.update(stretch, step);
  }
  share_values();
  return norm;
}

void Optimizer::share_values() {
  for (const Slice& s : slices_) {
    comm::Group& group = s.experts ? *setup_.ranks.expert_data : *setup_.ranks.data;
    if (group.size() == 1) continue;
    const Bucket& bucket = buckets_[static_cast<size_t>(s.bucket)];
    const model::FlatRange range = s.experts ? bucket.experts : bucket.dense;
    at::Tensor all = setup_.state.values.narrow(0, range.begin, range.size());
    group.all_gather(all, setup_.state.values.narrow(0, s.begin, s.size).clone());
  }
}

void Optimizer::restore(int64_t num_steps, const ReadPiece& read) {
  state_.restore(read);
  num_steps_ = num_steps;
}

}  // namespace tandem::train
