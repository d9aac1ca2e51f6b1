// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
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

}  // namespace

Optimizer::Optimizer(const OptimizerSetup& s)
    : setup_(s),
      buckets_(buckets_of(s.table, elements_of_largest(s.table, *s.ranks.world), s.bucket_bytes / static_cast<int64_t>(sizeof(float)))),
      slices_(slices_of(buckets_, share_of(s.ranks.data), share_of(s.ranks.expert_data))),
      sum_(gradient_buckets(), s.ranks, s.arena, s.recorder) {
  for (const Slice& slice : slices_) size_ += slice.size;
  TANDEM_CHECK(!s.swap || s.host, "a swapped optimizer needs the host's memory");
  const auto state = [&](const char* owner) {
    return std::make_unique<device::Swappable>(device::Home{s.swap ? *s.host : s.arena, owner, s.host}, size_, at::kFloat);
  };
  m_ = state("optimizer");
  v_ = state("optimizer");
  if (has_half()) master_ = state("master_weights");
  find_stretches();
  if (s.swap) chunk_ = s.arena.allocate("optimizer", {has_half() ? 3 : 2, std::min(size_, s.chunk_elements)}, at::kFloat);
}

// With one rank the gradients are their own sum.
GradientBuckets Optimizer::gradient_buckets() {
  GradientBuckets work{setup_.table, setup_.grads, buckets_, std::vector<GradientBuckets::Sums>(buckets_.size())};
  const Ranks& ranks = setup_.ranks;
  int64_t room = 0, at = 0;
  const auto is_summed = [&](const Slice& s) { return (s.experts ? ranks.expert_data : ranks.data)->size() > 1; };
  for (const Slice& s : slices_) room += is_summed(s) ? s.size : 0;
  at::Tensor sums;
  if (room > 0) {
    sums_ = std::make_unique<device::Swappable>(device::Home{setup_.arena, "gradients", nullptr, device::Keep::kNothing}, room, at::kFloat);
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

void Optimizer::find_stretches() {
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Slice& s = slices_[i];
    int64_t from = s.begin;
    const auto add = [&](int64_t to) {
      if (to > from) stretches_.push_back({from, to - from, s.at + from - s.begin, summed_[i].data_ptr<float>() + (from - s.begin)});
    };
    for (const model::ParameterEntry& e : setup_.table.entries) {
      if (e.parameter.trained || e.offset + e.num_elements <= from || e.offset >= s.begin + s.size) continue;
      add(e.offset);
      from = std::min(e.offset + e.num_elements, s.begin + s.size);
    }
    add(s.begin + s.size);
  }
}

void Optimizer::adopt_values() {
  if (!has_half()) return;
  for (const Slice& s : slices_) master_->tensor().narrow(0, s.at, s.size).copy_(setup_.values.narrow(0, s.begin, s.size));
}

double Optimizer::gradient_norm() {
  double squares = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Slice& slice = slices_[i];
    for (const model::ParameterEntry& e : setup_.table.entries) {
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
  if (!std::isfinite(norm))
    throw UserError("train", join_text("the gradient norm of update ", num_steps_ + 1, " is ", norm),
                    "a lower learning rate or smaller rewards; the last checkpoint holds the state before");
  ++num_steps_;
  const double clip = o.clip_grad_norm > 0 && norm > o.clip_grad_norm ? o.clip_grad_norm / (norm + 1e-6) : 1.0;
  model::kernel::AdamArgs a{};
  a.grad_scale = static_cast<float>(clip);
  a.lr = static_cast<float>(lr);
  a.beta1 = static_cast<float>(o.beta1);
  a.beta2 = static_cast<float>(o.beta2);
  a.eps = static_cast<float>(o.eps);
  a.weight_decay = static_cast<float>(o.weight_decay);
  a.bias1 = static_cast<float>(1.0 - std::pow(o.beta1, num_steps_));
  a.bias2 = static_cast<float>(1.0 - std::pow(o.beta2, num_steps_));
  for (const Stretch& stretch : stretches_) setup_.swap ? update_swapped(stretch, a) : update(stretch, a);
  share_values();
  return norm;
}

namespace {

void run_adam(const model::kernel::AdamArgs& a, int64_t size) {
  at::parallel_for(0, size, 1 << 15, [&](int64_t begin, int64_t end) { model::kernel::rows().fp.adamw(a, begin, end); });
}

}  // namespace

void Optimizer::update(const Stretch& s, const model::kernel::AdamArgs& args) {
  model::kernel::AdamArgs a = args;
  const auto values = [&](auto* base) { return base + s.begin; };
  a.grad = s.grad;
  a.m = state_data(m_) + s.at;
  a.v = state_data(v_) + s.at;
  a.master = has_half() ? state_data(master_) + s.at : values(setup_.values.data_ptr<float>());
  a.half = has_half() ? values(static_cast<model::kernel::Half*>(setup_.values.data_ptr())) : nullptr;
  run_adam(a, s.size);
}

// Chunk by chunk through memory of the device. Each element goes the way it goes without.
void Optimizer::update_swapped(const Stretch& s, model::kernel::AdamArgs a) {
  const int64_t room = chunk_.size(1);
  for (int64_t from = 0; from < s.size; from += room) {
    const int64_t n = std::min(room, s.size - from);
    std::vector<std::pair<at::Tensor, at::Tensor>> moved;  // on the device, on the host
    const auto bring = [&](const std::unique_ptr<device::Swappable>& state) {
      moved.emplace_back(chunk_[std::ssize(moved)].narrow(0, 0, n), state->tensor().narrow(0, s.at + from, n));
      return moved.back().first.copy_(moved.back().second).data_ptr<float>();
    };
    a.m = bring(m_);
    a.v = bring(v_);
    a.master = has_half() ? bring(master_) : setup_.values.data_ptr<float>() + s.begin + from;
    a.half = has_half() ? static_cast<model::kernel::Half*>(setup_.values.data_ptr()) + s.begin + from : nullptr;
    a.grad = s.grad + from;
    run_adam(a, n);
    for (const auto& [device, host] : moved) host.copy_(device);
  }
}

void Optimizer::share_values() {
  for (const Slice& s : slices_) {
    comm::Group& group = s.experts ? *setup_.ranks.expert_data : *setup_.ranks.data;
    if (group.size() == 1) continue;
    const Bucket& bucket = buckets_[static_cast<size_t>(s.bucket)];
    const model::FlatRange range = s.experts ? bucket.experts : bucket.dense;
    at::Tensor all = setup_.values.narrow(0, range.begin, range.size());
    group.all_gather(all, setup_.values.narrow(0, s.begin, s.size).clone());
  }
}

int64_t Optimizer::leave_device() {
  if (setup_.swap) return 0;  // it is there
  int64_t copied = 0;
  for (device::Swappable* state : {m_.get(), v_.get(), master_.get()}) copied += state ? state->leave() : 0;
  return copied;
}

int64_t Optimizer::come_back() {
  if (setup_.swap) return 0;
  int64_t copied = 0;
  for (device::Swappable* state : {m_.get(), v_.get(), master_.get()}) copied += state ? state->come_back() : 0;
  return copied;
}

void Optimizer::release_sums() {
  if (sums_) sums_->leave();
  sum_.release_memory();
}

void Optimizer::back_sums() {
  if (sums_) sums_->come_back();
  sum_.back_memory();
}

const std::vector<std::string>& Optimizer::state_names() {
  static const std::vector<std::string> kNames = {"m", "master", "v"};
  return kNames;
}

at::Tensor Optimizer::state(const std::string& name) const {
  if (name == "m") return m_->contents();
  if (name == "v") return v_->contents();
  TANDEM_CHECK(name == "master", "state ", name);
  if (has_half()) return master_->contents();
  const at::Tensor& values = setup_.home ? setup_.home->contents() : setup_.values;
  std::vector<at::Tensor> parts;
  for (const Slice& s : slices_) parts.push_back(values.narrow(0, s.begin, s.size));
  return parts.empty() ? at::zeros({0}, at::kFloat) : at::cat(parts);
}

std::vector<StatePiece> Optimizer::state_pieces() const {
  std::vector<StatePiece> pieces;
  for (const Slice& s : slices_)
    for (const model::ParameterEntry& e : setup_.table.entries) {
      const int64_t from = std::max(e.offset, s.begin), to = std::min(e.offset + e.num_elements, s.begin + s.size);
      if (e.parameter.trained && from < to) pieces.push_back({&e, from - e.offset, to - e.offset, s.at + from - s.begin});
    }
  return pieces;
}

void Optimizer::restore(int64_t num_steps, const ReadPiece& read) {
  for (const StatePiece& piece : state_pieces()) {
    const int64_t n = piece.end - piece.begin;
    at::Tensor values = setup_.values.narrow(0, piece.entry->offset + piece.begin, n);
    const auto part = [&](const std::unique_ptr<device::Swappable>& state) { return state->tensor().narrow(0, piece.at, n); };
    read("m", piece, part(m_));
    read("v", piece, part(v_));
    read("master", piece, has_half() ? part(master_) : values);
    if (has_half()) values.copy_(part(master_));
  }
  num_steps_ = num_steps;
}

}  // namespace tandem::train
