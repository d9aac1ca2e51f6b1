// SPDX-License-Identifier: Apache-2.0
#include "tandem/train/gradient_sum.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/device/process.h"

namespace tandem::train {
namespace {

std::unique_ptr<comm::Group> own(comm::Group* group, const char* name) {
  return group && group->size() > 1 ? group->split(0, name) : nullptr;
}

bool within(const model::FlatRange& range, const model::ParameterEntry& entry) {
  return entry.offset >= range.begin && entry.offset < range.end;
}

std::string name_of(const Bucket& bucket) {
  if (bucket.last_layer < 0) return "sum the embedding";
  if (bucket.first_layer == bucket.last_layer) return join_text("sum layer ", bucket.last_layer);
  return join_text("sum layers ", bucket.first_layer, " to ", bucket.last_layer);
}

}  // namespace

Ranks Ranks::in(comm::Mesh& mesh, const model::ModelConfig& config) {
  using comm::Axis;
  return {&mesh.world(), &mesh.along(Axis::kData), &mesh.along(Axis::kExpertData), &mesh.along(Axis::kTp),
          config.has_tied_head() ? mesh.pipeline_ends() : nullptr};
}

GradientSum::GradientSum(GradientBuckets work, const Ranks& ranks, const device::Home& staging, monitor::Recorder* recorder)
    : work_(std::move(work)),
      recorder_(recorder),
      groups_{own(ranks.data, "data gradients"), own(ranks.expert_data, "expert gradients"), own(ranks.tp, "tp gradients"),
              own(ranks.tied, "tied gradients")},
      pending_(work_.buckets.size()),
      next_(work_.buckets.size()) {
  if (groups_.tp) find_partials(staging);
  if (groups_.data || groups_.expert_data || groups_.tp || groups_.tied) thread_ = std::thread([this] { run(); });
}

// What several TP ranks hold they use on different heads, columns or tokens: it gets the sum of their gradients.
void GradientSum::find_partials(const device::Home& staging) {
  int64_t most = 0;
  for (const model::LayerRanges& layer : work_.table.layers) {
    std::vector<Partial>& partials = partials_.emplace_back();
    int64_t at = 0;
    for (const model::ParameterEntry& e : work_.table.entries) {
      if (!within(layer.dense, e) || !work_.table.adds_over_tp(e)) continue;
      const bool by_heads = e.parameter.split == model::family::Split::kKvRows;
      partials.push_back({&e, at, by_heads ? Box::whole(e.parameter.shape).num_elements() : e.num_elements, by_heads});
      at += partials.back().size;
    }
    most = std::max(most, at);
  }
  if (most == 0) return;
  staging_ = std::make_unique<device::Swappable>(staging, most, at::kFloat);
}

GradientSum::~GradientSum() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
    // A sum under way ends as its peers come to it. If they never do, this rank is the one that failed, or they wait for it elsewhere.
    constexpr std::chrono::seconds kGrace(2);
    if (!changed_.wait_for(lock, kGrace, [&] { return !working_; }))
      for (comm::Group* group : {groups_.data.get(), groups_.expert_data.get(), groups_.tp.get(), groups_.tied.get()})
        if (group) group->abort(join_text("rank ", group->rank(), " of '", group->name(), "' gave up the step"));
  }
  thread_.join();
}

void GradientSum::begin_step() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  // A step that was given up may have left sums under way.
  changed_.wait(lock, [&] { return error_ || (!working_ && (next_ == pending_.size() || pending_[next_] > 0)); });
  for (const std::unique_ptr<comm::Work>& each : std::exchange(begun_, {})) each->wait();  // of a step that was given up
  for (size_t b = 0; b < pending_.size(); ++b) pending_[b] = work_.buckets[b].num_layers;
  next_ = 0;
}

void GradientSum::layer_ready(int64_t layer) {
  if (!thread_.joinable()) return;
  const auto held = std::ranges::find(work_.table.layers, layer, &model::LayerRanges::layer);
  if (held == work_.table.layers.end()) return;  // nothing of it is trained
  const auto bucket = std::ranges::find_if(work_.buckets, [&](const Bucket& b) { return layer >= b.first_layer && layer <= b.last_layer; });
  std::lock_guard lock(mutex_);
  int64_t& pending = pending_[static_cast<size_t>(bucket - work_.buckets.begin())];
  TANDEM_CHECK(pending > 0, "layer ", layer, " is ready twice, or before begin_step");
  if (--pending == 0) changed_.notify_all();
}

void GradientSum::finish() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  std::ranges::fill(pending_, 0);
  changed_.notify_all();
  changed_.wait(lock, [&] { return error_ || next_ == pending_.size(); });
  if (error_) std::rethrow_exception(error_);
  for (const std::unique_ptr<comm::Work>& each : std::exchange(begun_, {})) each->wait();
}

void GradientSum::run() {
  const device::ThreadLimit one(1);  // the backward pass has the others
  std::unique_lock lock(mutex_);
  while (!error_) {
    changed_.wait(lock, [&] { return stop_ || (next_ < pending_.size() && pending_[next_] == 0); });
    if (stop_) return;
    working_ = true;
    const size_t bucket = next_;
    lock.unlock();
    std::exception_ptr error;
    try {
      sum(bucket);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    working_ = false;
    error_ = error;
    ++next_;
    changed_.notify_all();
  }
}

void GradientSum::sum(size_t b) {
  const double begin = now_s();
  const Bucket& bucket = work_.buckets[b];
  GradientBuckets::Sums& sums = work_.sums[b];
  for (size_t i = 0; i < partials_.size(); ++i) {
    const int64_t layer = work_.table.layers[i].layer;
    if (layer >= bucket.first_layer && layer <= bucket.last_layer) sum_over_tp(partials_[i]);
  }
  if (groups_.tied && bucket.last_layer < 0) sum_tied(bucket);
  const auto over = [&](comm::Group* group, const model::FlatRange& range, at::Tensor& out) {
    if (!group || range.size() == 0) return;
    if (auto begun = group->begin_reduce_scatter(out, work_.grads.narrow(0, range.begin, range.size()))) begun_.push_back(std::move(begun));
  };
  over(groups_.data.get(), bucket.dense, sums.dense);
  over(groups_.expert_data.get(), bucket.experts, sums.experts);
  if (recorder_) recorder_->span(name_of(bucket), "gradients", begin, now_s());
}

void GradientSum::sum_over_tp(const std::vector<Partial>& partials) {
  if (partials.empty()) return;
  const auto staged = [&](const Partial& p) {
    at::Tensor place = staging_->tensor().narrow(0, p.at, p.size);
    if (!p.by_heads) return place;
    return place.view(p.entry->parameter.shape).narrow(0, p.entry->box.begin[0], p.entry->box.extent(0));
  };
  const auto mine = [&](const Partial& p) {
    at::Tensor grad = work_.table.view(work_.grads, *p.entry);
    return p.by_heads ? grad : grad.view(-1);
  };
  for (const Partial& p : partials) {
    if (p.by_heads) staging_->tensor().narrow(0, p.at, p.size).zero_();
    staged(p).copy_(mine(p));
  }
  at::Tensor all = staging_->tensor().narrow(0, 0, partials.back().at + partials.back().size);
  groups_.tp->all_reduce(all, comm::ReduceOp::kSum);
  for (const Partial& p : partials) mine(p).copy_(staged(p));
}

void GradientSum::sum_tied(const Bucket& bucket) {
  for (const model::ParameterEntry& e : work_.table.entries) {
    if (!within(bucket.dense, e)) continue;
    at::Tensor mine = work_.table.view(work_.grads, e);
    groups_.tied->all_reduce(mine, comm::ReduceOp::kSum);
  }
}

}  // namespace tandem::train
