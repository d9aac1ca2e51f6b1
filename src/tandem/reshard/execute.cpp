// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/execute.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/reshard/staging.h"

namespace tandem::reshard {
namespace {

/// The tensors of one side, and the views of them that a plan names.
class Side {
 public:
  explicit Side(std::span<const Held> held) : held_(held) {
    for (const Held& h : held)
      TANDEM_CHECK(h.tensor.sizes() == at::IntArrayRef(h.box.shape()), "tensor ", h.number, " has another shape than its box");
    TANDEM_CHECK(std::ranges::is_sorted(held, {}, &Held::number), "tensors in another order than their numbers");
  }

  at::Tensor view(int32_t number, const Box& box) const {
    for (auto h = std::ranges::lower_bound(held_, number, {}, &Held::number); h != held_.end() && h->number == number; ++h)
      if (intersect(h->box, box) == box) {
        at::Tensor part = h->tensor;
        for (size_t d = 0; d < box.begin.size(); ++d)
          part = part.narrow(static_cast<int64_t>(d), box.begin[d] - h->box.begin[d], box.extent(d));
        return part;
      }
    TANDEM_CHECK(false, "the plan names a part of tensor ", number, " that this rank does not have");
    return {};
  }

 private:
  std::span<const Held> held_;
};

/// One rank's way through its buckets.
class Switch {
 public:
  Switch(const RankPlan& plan, comm::Group& group, std::pair<Side, Side> sides, const ExecuteOptions& options)
      : plan_(plan), group_(group), source_(sides.first), target_(sides.second), options_(options),
        // Checksums are the host's work.
        format_{group.size(), options.dtype, plan.checksums ? group.device() : group.nearest_device(), plan.checksums} {}

  ~Switch() {
    if (options_.arena) options_.arena->count("staging", -counted_bytes_);
  }

  Moved run() {
    if (plan_.overlap && plan_.num_calls > 1) overlapped();
    else one_by_one();
    for (size_t b = plan_.num_calls; b < plan_.buckets.size(); ++b) finish(b);
    return moved_;
  }

  /// Why the transfer under way has failed, if it has.
  std::exception_ptr transfer_error() {
    if (!transfer_.valid() || transfer_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return nullptr;
    try {
      transfer_.get();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

 private:
  void one_by_one() {
    for (size_t b = 0; b < plan_.num_calls; ++b) {
      pack(b, send_);
      open(receive_, plan_.buckets[b].receives);
      carry();
      send_.reset();
      (void)staged();
      arrived_ = std::exchange(receive_, {});
      finish(b);
    }
  }

  /// While bucket b travels, b-1 is unpacked and then b+1 is packed.
  void overlapped() {
    pack(0, send_);
    for (size_t b = 0; b < plan_.num_calls; ++b) {
      open(receive_, plan_.buckets[b].receives);
      transfer_ = std::async(std::launch::async, [this] { carry(); });
      if (b > 0) finish(b - 1);
      if (b + 1 < plan_.num_calls) pack(b + 1, next_);
      transfer_.get();
      send_ = std::exchange(next_, {});
      arrived_ = std::exchange(receive_, {});
    }
    finish(plan_.num_calls - 1);
  }

  void open(std::optional<Staging>& staging, std::span<const RankPlan::Move> moves) {
    staging.emplace(moves, format_);
    moved_.staging_peak_bytes = std::max(moved_.staging_peak_bytes, staged());
  }

  /// Bytes of all staging, as the arena knows from here.
  int64_t staged() {
    int64_t bytes = 0;
    for (const auto* each : {&send_, &receive_, &next_, &arrived_})
      if (*each) bytes += (*each)->memory().numel();
    if (options_.arena) options_.arena->count("staging", bytes - std::exchange(counted_bytes_, bytes));
    return bytes;
  }

  void pack(size_t bucket, std::optional<Staging>& staging) {
    open(staging, plan_.buckets[bucket].sends);
    staging->each_slot([&](const at::Tensor& slot, const RankPlan::Move& m, const Box& box) {
      slot.copy_((m.from_target ? target_ : source_).view(m.number, box));
    });
    if (plan_.checksums) staging->seal();
    moved_.sent_bytes += staging->element_bytes();
  }

  void carry() {
    at::Tensor arriving = receive_->memory();
    group_.all_to_all_v(send_->memory(), send_->bytes_by_rank(), arriving, receive_->bytes_by_rank());
  }

  void finish(size_t bucket) {
    if (options_.before_bucket) options_.before_bucket(bucket);
    for (const RankPlan::Copy& copy : plan_.buckets[bucket].copies)
      target_.view(copy.number, copy.box).copy_(source_.view(copy.number, copy.box));
    if (arrived_) {
      if (plan_.checksums) check(*arrived_, bucket);
      arrived_->each_slot(
          [&](const at::Tensor& slot, const RankPlan::Move& m, const Box& box) { target_.view(m.number, box).copy_(slot); });
      arrived_.reset();
      (void)staged();
    }
    if (options_.after_bucket) options_.after_bucket(bucket);
  }

  void check(const Staging& arrived, size_t bucket) const {
    const std::span<const RankPlan::Move> broken = arrived.broken();
    if (broken.empty()) return;
    const auto [first, last] = std::ranges::minmax(broken, {}, &RankPlan::Move::number);
    const int from = group_.world_rank(broken.front().peer), to = group_.world_rank(group_.rank());
    throw PeerError(join_text("rank ", to, ": switch: bucket ", bucket, " from rank ", from, " to rank ", to, " with tensors ",
                              first.number, " to ", last.number, " is not what was sent: its checksum differs"));
  }

  const RankPlan& plan_;
  comm::Group& group_;
  const Side source_, target_;
  const ExecuteOptions& options_;
  const Staging::Format format_;
  Moved moved_;
  int64_t counted_bytes_ = 0;
  std::optional<Staging> send_, receive_;  // of the bucket that travels
  std::optional<Staging> next_, arrived_;  // of the one behind, which is packed, and the one before, which is unpacked
  std::future<void> transfer_;             // last: where it goes it waits for a transfer, which uses the others
};

}  // namespace

Moved execute(const RankPlan& plan, comm::Group& group, std::span<const Held> source, std::span<const Held> target,
              const ExecuteOptions& options) {
  c10::AutoGradMode no_grad(false);
  Switch one(plan, group, {Side(source), Side(target)}, options);
  try {
    return one.run();
  } catch (const std::exception& error) {
    const std::exception_ptr first = one.transfer_error();
    group.abort(join_text("rank ", group.world_rank(group.rank()), " failed in a switch: ", error.what()));
    if (first) std::rethrow_exception(first);
    throw;
  }
}

}  // namespace tandem::reshard
