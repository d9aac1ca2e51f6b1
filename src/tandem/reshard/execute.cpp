// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/execute.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::reshard {
namespace {

/// The tensors of one side, all of one dtype, and the views of them that a plan names.
class Side {
 public:
  Side(std::span<const Held> held, at::ScalarType dtype) : held_(held) {
    for (const Held& h : held) {
      TANDEM_CHECK(h.tensor.sizes() == at::IntArrayRef(h.box.shape()), "tensor ", h.number, " has another shape than its box");
      TANDEM_CHECK(h.tensor.scalar_type() == dtype, "tensor ", h.number, " has another dtype than the others");
    }
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

/// The messages of one bucket that a rank sends, or receives: bytes by peer, one after the other.
struct Staging {
  Staging(std::span<const RankPlan::Move> moves, int num_ranks, at::ScalarType dtype) : bytes(static_cast<size_t>(num_ranks)) {
    int64_t elements = 0;
    for (const RankPlan::Move& m : moves)
      for (const Box& box : m.boxes) {
        elements += box.num_elements();
        bytes[static_cast<size_t>(m.peer)] += box.num_elements() * static_cast<int64_t>(c10::elementSize(dtype));
      }
    memory = at::empty({elements}, dtype);
  }

  /// Calls `move(slot, move, box)` with the staging memory of each box, in its shape.
  template <class Visit>
  void each_slot(std::span<const RankPlan::Move> moves, Visit visit) const {
    int64_t begin = 0;
    for (const RankPlan::Move& m : moves)
      for (const Box& box : m.boxes) {
        visit(memory.narrow(0, begin, box.num_elements()).view(box.shape()), m, box);
        begin += box.num_elements();
      }
  }

  std::span<std::byte> as_bytes() const { return {static_cast<std::byte*>(memory.data_ptr()), memory.nbytes()}; }

  std::vector<int64_t> bytes;
  at::Tensor memory;
};

at::ScalarType dtype_of(std::span<const Held> source, std::span<const Held> target) {
  if (!source.empty()) return source.front().tensor.scalar_type();
  return target.empty() ? at::kByte : target.front().tensor.scalar_type();  // with neither, a rank takes part with no bytes
}

}  // namespace

Moved execute(const RankPlan& plan, comm::Group& group, std::span<const Held> source, std::span<const Held> target) {
  c10::AutoGradMode no_grad(false);
  const at::ScalarType dtype = dtype_of(source, target);
  const Side from(source, dtype), to(target, dtype);
  Moved moved;
  for (const RankPlan::Copy& copy : plan.copies) {
    const at::Tensor part = to.view(copy.number, copy.box);
    part.copy_(from.view(copy.number, copy.box));
    moved.copied_bytes += static_cast<int64_t>(part.nbytes());
  }
  for (const RankPlan::Bucket& bucket : plan.buckets) {
    const Staging send(bucket.sends, group.size(), dtype), receive(bucket.receives, group.size(), dtype);
    send.each_slot(bucket.sends, [&](const at::Tensor& slot, const RankPlan::Move& m, const Box& box) {
      slot.copy_((m.from_target ? to : from).view(m.number, box));
    });
    group.all_to_all_v(send.as_bytes(), send.bytes, receive.as_bytes(), receive.bytes);
    receive.each_slot(bucket.receives,
                      [&](const at::Tensor& slot, const RankPlan::Move& m, const Box& box) { to.view(m.number, box).copy_(slot); });
    const auto sent = static_cast<int64_t>(send.memory.nbytes()), received = static_cast<int64_t>(receive.memory.nbytes());
    moved.sent_bytes += sent, moved.received_bytes += received;
    moved.staging_peak_bytes = std::max(moved.staging_peak_bytes, sent + received);
  }
  return moved;
}

}  // namespace tandem::reshard
