// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/process/process_group.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/reduce.h"

namespace tandem::comm {
namespace {

constexpr int64_t kOneRound_bytes = 64 << 10;  // below it all_reduce sends everything to everyone: one latency less
constexpr double kStuck_s = 0.5;               // who has waited so long is not to blame for what others miss
constexpr const char* kMisfit = "the message does not have the bytes expected (ranks called different operations, or a peer died)";

// Of blocks of so many bytes that lie by rank.
template <class Byte>
std::span<Byte> block(Byte* blocks, int rank, int64_t bytes) {
  return {blocks + rank * bytes, static_cast<size_t>(bytes)};
}

}  // namespace

ProcessGroup::ProcessGroup(ProcessJob& job, std::unique_ptr<Channel> channel, std::string name, int rank, std::vector<int> world_ranks)
    : Group(std::move(name), rank, std::move(world_ranks)), job_(job), channel_(std::move(channel)) {}

ProcessGroup::~ProcessGroup() {
  if (!job_.death().empty()) channel_->abandon();
}

// A message to each other rank and one from it, of the bytes that `to_send` and `to_receive` give for its number.
template <class ToSend, class ToReceive>
void ProcessGroup::exchange_with_all(const char* op, const ToSend& to_send, const ToReceive& to_receive) {
  const auto requests = begin(op);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const auto in = to_receive(r);
    const auto out = to_send(r);
    requests->receive(r, tag_, in.data(), std::ssize(in));
    requests->send(r, tag_, out.data(), std::ssize(out));
  }
  finish(*requests, op);
}

void ProcessGroup::do_barrier() {
  std::byte byte{};
  const auto nothing = [&](int) { return std::span(&byte, 0); };
  exchange_with_all("barrier", nothing, nothing);
}

void ProcessGroup::do_broadcast(at::Tensor& tensor, int root) {
  const auto requests = begin("broadcast");
  if (rank() == root) {
    for (int r = 0; r < size(); ++r)
      if (r != root) requests->send(r, tag_, tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes()));
  } else {
    requests->receive(root, tag_, tensor.mutable_data_ptr(), static_cast<int64_t>(tensor.nbytes()));
  }
  finish(*requests, "broadcast");
}

void ProcessGroup::do_all_reduce(at::Tensor& tensor, ReduceOp op) {
  if (size() == 1) return;
  if (static_cast<int64_t>(tensor.nbytes()) * size() <= kOneRound_bytes) {
    at::Tensor all = at::empty({size() * tensor.numel()}, tensor.options());
    do_all_gather(all, tensor);
    void* const out[] = {tensor.mutable_data_ptr()};
    reduce_ordered(blocks(all.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())), out, tensor.numel(), tensor.scalar_type(), op);
    return;
  }
  const int64_t width = tensor.element_size();
  const Slice mine = slice_of(tensor.numel(), rank(), size());
  auto* data = static_cast<std::byte*>(tensor.mutable_data_ptr());
  at::Tensor peers = at::empty({size() * mine.count()}, tensor.options());
  auto* theirs = static_cast<std::byte*>(peers.mutable_data_ptr());
  const auto slice = [&](int r) {
    const Slice of_rank = slice_of(tensor.numel(), r, size());
    return std::span(data + of_rank.begin * width, static_cast<size_t>(of_rank.count() * width));
  };
  exchange_with_all("all_reduce", slice, [&](int r) { return block(theirs, r, mine.count() * width); });
  auto sources = blocks(theirs, mine.count() * width);
  sources[static_cast<size_t>(rank())] = data + mine.begin * width;
  void* const out[] = {data + mine.begin * width};
  reduce_ordered(sources, out, mine.count(), tensor.scalar_type(), op);
  exchange_with_all("all_reduce", [&](int) { return slice(rank()); }, slice);
}

void ProcessGroup::do_all_gather(at::Tensor& out, const at::Tensor& in) {
  const auto bytes = static_cast<int64_t>(in.nbytes());
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  const auto* from = static_cast<const std::byte*>(in.const_data_ptr());
  if (bytes > 0 && to + rank() * bytes != from) std::memcpy(to + rank() * bytes, from, in.nbytes());
  exchange_with_all("all_gather", [&](int) { return std::span(from, in.nbytes()); }, [&](int r) { return block(to, r, bytes); });
}

void ProcessGroup::do_reduce_scatter(at::Tensor& out, const at::Tensor& in) {
  const auto bytes = static_cast<int64_t>(out.nbytes());
  at::Tensor peers = at::empty({in.numel()}, in.options());
  auto* theirs = static_cast<std::byte*>(peers.mutable_data_ptr());
  const auto* from = static_cast<const std::byte*>(in.const_data_ptr());
  exchange_with_all("reduce_scatter", [&](int r) { return block(from, r, bytes); }, [&](int r) { return block(theirs, r, bytes); });
  auto sources = blocks(theirs, bytes);
  sources[static_cast<size_t>(rank())] = from + rank() * bytes;
  void* const result[] = {out.mutable_data_ptr()};
  reduce_ordered(sources, result, out.numel(), out.scalar_type(), ReduceOp::kSum);
}

void ProcessGroup::do_all_to_all_v(std::span<const std::byte> from, std::span<const int64_t> send_bytes, std::span<std::byte> to,
                                   std::span<const int64_t> receive_bytes) {
  const auto requests = begin("all_to_all_v");
  int64_t in = 0, out = 0, own_in = 0, own_out = 0;
  for (int r = 0; r < size(); ++r) {
    const int64_t sent = send_bytes[static_cast<size_t>(r)], received = receive_bytes[static_cast<size_t>(r)];
    if (r == rank()) {
      own_in = in, own_out = out;
    } else {
      // A peer that sends nothing sends no message, on either side; a disagreement shows as a misfit or a late peer.
      if (received > 0) requests->receive(r, tag_, to.data() + in, received);
      if (sent > 0) requests->send(r, tag_, from.data() + out, sent);
    }
    in += received, out += sent;
  }
  if (const int64_t own = send_bytes[static_cast<size_t>(rank())]; own > 0)
    std::memcpy(to.data() + own_in, from.data() + own_out, static_cast<size_t>(own));
  finish(*requests, "all_to_all_v");
}

std::unique_ptr<Group> ProcessGroup::do_split(int color, const std::string& name) {
  Members members = members_of(color);
  std::unique_ptr<Channel> part;
  {
    const ProcessJob::Blocking blocking(job_, place("split"));  // everyone has just answered, so a call that waits finds its peers at hand
    part = channel_->split(members.ranks, color, name);
  }
  return std::make_unique<ProcessGroup>(job_, std::move(part), name, members.rank, std::move(members.world_ranks));
}

void ProcessGroup::do_send(const at::Tensor& tensor, int to, int tag) {
  throw_if_dead("send");
  channel_->send(to, kFirstMessageTag + tag, MessageBytes::of(tensor), join_text(place("send"), " with ", ranks({to})));
}

void ProcessGroup::do_receive(at::Tensor& tensor, int from, int tag) {
  throw_if_dead("receive");
  const auto requests = channel_->begin();
  requests->receive(from, kFirstMessageTag + tag, tensor.mutable_data_ptr(), static_cast<int64_t>(tensor.nbytes()));
  finish(*requests, "receive");
}

bool ProcessGroup::do_arrived(int from, int tag) {
  throw_if_dead("receive");
  return channel_->arrived(from, kFirstMessageTag + tag);
}

std::unique_ptr<Requests> ProcessGroup::begin(const char* op) {
  throw_if_dead(op);
  // The number of the operation is the tag: ranks that lose step do not take each other's messages for their own.
  tag_ = (tag_ + 1) % kFirstMessageTag;
  return channel_->begin();
}

void ProcessGroup::finish(Requests& requests, const char* op) {
  const Deadline deadline = Deadline::after_s(job_.deadline_s), patience = Deadline::after_s(kStuck_s);
  bool is_stuck = false;
  for (int64_t round = 0;; ++round) {
    const Requests::State state = requests.test();
    if (state == Requests::State::kDone) return job_.count_stuck(is_stuck ? -1 : 0);
    if (state == Requests::State::kMisfit) {
      const std::string peers = ranks(requests.unfinished());
      requests.cancel();
      fail(join_text(place(op), " with ", peers, ": ", kMisfit));
    }
    if (!requests.pause(round)) continue;
    if (!is_stuck && patience.passed()) is_stuck = true, job_.count_stuck(1);
    if (!job_.death().empty()) {
      requests.cancel();
      throw_if_dead(op);
    }
    if (deadline.passed()) late(requests, op);
  }
}

void ProcessGroup::late(Requests& requests, const char* op) {
  std::vector<int> missing;
  for (int r : requests.unfinished()) missing.push_back(world_rank(r));
  requests.cancel();
  fail(join_text(place(op), ": ", job_.blame(missing)));
}

void ProcessGroup::fail(const std::string& reason) {
  job_.abort(reason);
  throw PeerError(reason);
}

void ProcessGroup::throw_if_dead(const char* op) {
  if (const std::string reason = job_.death(); !reason.empty()) throw PeerError(join_text(place(op), " ended: ", reason));
}

/// `rank 1, rank 3`, each once.
std::string ProcessGroup::ranks(std::vector<int> of) const {
  std::sort(of.begin(), of.end());
  of.erase(std::unique(of.begin(), of.end()), of.end());
  std::string all;
  for (int r : of) all += join_text(all.empty() ? "" : ", ", "rank ", world_rank(r));
  return all;
}

std::vector<const void*> ProcessGroup::blocks(const void* data, int64_t bytes) const {
  std::vector<const void*> all;
  for (int r = 0; r < size(); ++r) all.push_back(static_cast<const std::byte*>(data) + r * bytes);
  return all;
}

std::unique_ptr<Group> process_world(ProcessJob& job) {
  std::vector<int> ranks(static_cast<size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto world = std::make_unique<ProcessGroup>(job, job.transport().world(), "world", job.rank(), std::move(ranks));
  world->set_machines(job.transport().machines());
  return world;
}

bool are_processes(const Group& group) { return dynamic_cast<const ProcessGroup*>(&group) != nullptr; }

}  // namespace tandem::comm
