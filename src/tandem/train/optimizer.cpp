// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/optimizer.h"

#include <ATen/Parallel.h>

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
        stretches_.push_back({begin, end - begin, s.at + begin - s.begin, summed_[i].data_ptr<float>() + (begin - s.begin), matrix});
      joins = e.parameter.trained;
    }
  }
}

double Optimizer::gradient_norm() {
  double squares = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Slice& slice = slices_[i];
    for (const model::ParameterEntry& e : setup_.state.table.entries) {
      const int64_t from = std::max(e.offset, slice.begin), to = std::min(e.offset + e.num_elements, slice.begin + slice.size);
      if (from >= to) continue;
      constexpr int64_t kPart = 1 << 16;  // fixed, so that the number of threads does not change the sum
      const int64_t parts = (to - from + kPart - 1) / kPart;
      std::vector<double> sums(static_cast<size_t>(parts));
      const float* g = summed_[i].data_ptr<float>() + (from - slice.begin);
      at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t p = first; p < last; ++p)
          sums[static_cast<size_t>(p)] = model::kernel::rows().fp.sum_of_squares(g + p * kPart, std::min(kPart, to - from - p * kPart));
      });
      double total = 0;
      for (double x : sums) total += x;
      squares += total / e.replicas;
    }
  }
  return std::sqrt(comm::sum_over(*setup_.ranks.world, squares));
}

double Optimizer::step(const Options& o, double lr) {
  sum_.finish();
  const double norm = gradient_norm();
  if (!std::isfinite(norm)) return norm;
  ++num_steps_;
  const double clip = o.clip_grad_norm > 0 && norm > o.clip_grad_norm ? o.clip_grad_norm / (norm + 1e-6) : 1.0;
  model::kernel::AdamArgs a{};
  a.grad_scale = static_cast<float>(clip);
  a.lr = static_cast<float>(lr);
  a.beta1 = static_cast<float>(o.beta1);
  a.beta2 = static_cast<float>(o.beta2);
  a.eps = static_cast<float>(o.eps);
  a.bias1 = static_cast<float>(1.0 - std::pow(o.beta1, num_steps_));
  a.bias2 = static_cast<float>(1.0 - std::pow(o.beta2, num_steps_));
  for (const Stretch& stretch : stretches_) {
    a.weight_decay = stretch.matrix || o.decay_norms ? static_cast<float>(o.weight_decay) : 0.0f;
    state_.update(stretch, a);
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

void Optimizer::release_sums() {
  if (sums_) sums_->leave();
  sum_.release_memory();
}

void Optimizer::back_sums() {
  if (sums_) sums_->come_back();
  sum_.back_memory();
}

void Optimizer::restore(int64_t num_steps, const ReadPiece& read) {
  state_.restore(read);
  num_steps_ = num_steps;
}

}  // namespace tandem::train
