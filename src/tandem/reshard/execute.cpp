// SPDX-License-Identifier: Apache-2.0
#include "tandem/reshard/execute.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "tandem/base/check.h"

namespace tandem::reshard {
namespace {

/// The part of `held` that is `box`, as a view.
at::Tensor view_of(const Held& held, const Box& box) {
  at::Tensor part = held.tensor;
  for (size_t d = 0; d < box.begin.size(); ++d) {
    const int64_t begin = box.begin[d] - held.spec.box.begin[d];
    TANDEM_CHECK(begin >= 0 && begin + box.extent(d) <= part.size(static_cast<int64_t>(d)), held.spec.name, " does not fit the plan");
    part = part.narrow(static_cast<int64_t>(d), begin, box.extent(d));
  }
  return part;
}

void check(std::span<const Held> held, int64_t element_bytes, at::ScalarType dtype) {
  for (const Held& h : held) {
    TANDEM_CHECK(h.tensor.sizes() == at::IntArrayRef(h.spec.box.shape()), h.spec.name, " has another shape than its box");
    TANDEM_CHECK(h.tensor.element_size() == element_bytes && h.tensor.scalar_type() == dtype, h.spec.name,
                 " has another dtype than the plan");
  }
}

/// One rank's side of one bucket: transfers in rank order of the peer, in the plan's order for each peer, on both sides.
struct Side {
  std::vector<const Transfer*> transfers;
  std::vector<int64_t> bytes;  // by peer
  at::Tensor staging;
};

struct Ends {
  int Transfer::*self;
  int Transfer::*peer;
};
constexpr Ends kSend = {&Transfer::from, &Transfer::to}, kReceive = {&Transfer::to, &Transfer::from};

Side side_of(std::span<const Transfer> bucket, const Ends& ends, const comm::Group& group, int64_t element_bytes) {
  Side side;
  side.bytes.resize(static_cast<size_t>(group.size()));
  int64_t total = 0;
  for (const Transfer& t : bucket) {
    if (t.*ends.self != group.rank()) continue;
    side.transfers.push_back(&t);
    const int64_t bytes = t.box.num_elements() * element_bytes;
    side.bytes[static_cast<size_t>(t.*ends.peer)] += bytes;
    total += bytes;
  }
  auto by_peer = [&](const Transfer* a, const Transfer* b) { return a->*ends.peer < b->*ends.peer; };
  std::stable_sort(side.transfers.begin(), side.transfers.end(), by_peer);
  side.staging = at::empty({total}, at::kByte);
  return side;
}

/// Calls `move(slot, transfer)` with the staging memory of each transfer, shaped as its box.
template <class Move>
void each_slot(const Side& side, at::ScalarType dtype, int64_t element_bytes, Move move) {
  int64_t begin = 0;
  for (const Transfer* t : side.transfers) {
    const int64_t bytes = t->box.num_elements() * element_bytes;
    move(side.staging.narrow(0, begin, bytes).view(dtype).view(t->box.shape()), *t);
    begin += bytes;
  }
}

}  // namespace

Moved execute(const Plan& plan, comm::Group& group, std::span<const Held> source, std::span<const Held> target) {
  Moved moved;
  if (plan.alias) return moved;
  c10::AutoGradMode no_grad(false);
  const int rank = group.rank();
  const int64_t width = plan.options.element_bytes;
  // A rank that holds and wants nothing takes part with no bytes.
  const at::ScalarType dtype = !source.empty()   ? source[0].tensor.scalar_type()
                               : !target.empty() ? target[0].tensor.scalar_type()
                                                 : at::kByte;
  check(source, width, dtype);
  check(target, width, dtype);
  auto from = [&](const Transfer& t) { return view_of(source[static_cast<size_t>(t.source_index)], t.box); };
  auto to = [&](const Transfer& t) { return view_of(target[static_cast<size_t>(t.target_index)], t.box); };

  for (const Transfer& t : plan.copies) {
    if (t.to != rank) continue;
    to(t).copy_(from(t));
    moved.copied_bytes += t.box.num_elements() * width;
  }
  auto begin = plan.transfers.begin();
  for (int64_t b = 0; b < plan.num_buckets; ++b) {
    const auto end = std::find_if(begin, plan.transfers.end(), [&](const Transfer& t) { return t.bucket != b; });
    const std::span<const Transfer> bucket(begin, end);
    begin = end;
    const Side send = side_of(bucket, kSend, group, width);
    Side receive = side_of(bucket, kReceive, group, width);
    each_slot(send, dtype, width, [&](at::Tensor slot, const Transfer& t) { slot.copy_(from(t)); });
    auto bytes_of = [](const at::Tensor& t) { return std::span(static_cast<std::byte*>(t.data_ptr()), t.nbytes()); };
    group.all_to_all_v(bytes_of(send.staging), send.bytes, bytes_of(receive.staging), receive.bytes);
    each_slot(receive, dtype, width, [&](at::Tensor slot, const Transfer& t) { to(t).copy_(slot); });
    moved.sent_bytes += send.staging.numel();
    moved.received_bytes += receive.staging.numel();
    moved.staging_peak_bytes = std::max(moved.staging_peak_bytes, send.staging.numel() + receive.staging.numel());
  }
  return moved;
}

}  // namespace tandem::reshard
