// SPDX-License-Identifier: Apache-2.0
// Ranks as threads: every operation posts pointers, meets, works on the peers' memory, and meets again.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/backend/meeting.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/reduce.h"

namespace tandem::comm {
namespace {

class LocalGroup : public Group {
 public:
  LocalGroup(std::shared_ptr<Meeting> meeting, int rank)
      : Group(meeting->name(), rank, meeting->world_ranks()), meeting_(std::move(meeting)) {}

  std::string death() override { return meeting_->death(); }

 private:
  void do_abort(const std::string& reason) noexcept override { meeting_->abort(reason); }

  void do_barrier() override {
    const Parting parting = open({.op = "barrier"});
  }

  void do_broadcast(at::Tensor& tensor, int root) override {
    const Parting parting = open({.op = "broadcast", .in = tensor.const_data_ptr(), .count = tensor.numel(),
                                  .dtype = tensor.scalar_type(), .argument = root});
    if (rank() != root) copy(tensor.mutable_data_ptr(), post(root).in, tensor.nbytes());
  }

  void do_all_reduce(at::Tensor& tensor, ReduceOp op) override {
    const int64_t count = tensor.numel();
    const Parting parting = open({.op = "all_reduce", .out = tensor.mutable_data_ptr(), .count = count,
                                  .dtype = tensor.scalar_type(), .argument = static_cast<int>(op)});
    if (size() == 1) return;
    // Each rank owns one slice of everybody's tensor: it sums it in rank order and writes the result to all.
    const Slice slice = slice_of(count, rank(), size());
    std::vector<void*> slices;
    for (const Post& p : meeting_->posts) slices.push_back(static_cast<std::byte*>(p.out) + slice.begin * tensor.element_size());
    const std::vector<const void*> sources(slices.begin(), slices.end());
    reduce_ordered(sources, slices, slice.count(), tensor.scalar_type(), op);
  }

  void do_all_gather(at::Tensor& out, const at::Tensor& in) override {
    const Parting parting = open({.op = "all_gather", .in = in.const_data_ptr(), .count = in.numel(), .dtype = in.scalar_type()});
    for (int r = 0; r < size(); ++r) copy(static_cast<std::byte*>(out.mutable_data_ptr()) + r * in.nbytes(), post(r).in, in.nbytes());
  }

  void do_reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    const Parting parting = open({.op = "reduce_scatter", .in = in.const_data_ptr(), .count = out.numel(), .dtype = in.scalar_type()});
    std::vector<const void*> sources;
    for (const Post& p : meeting_->posts) sources.push_back(static_cast<const std::byte*>(p.in) + rank() * out.nbytes());
    void* const result[] = {out.mutable_data_ptr()};
    reduce_ordered(sources, result, out.numel(), out.scalar_type(), ReduceOp::kSum);
  }

  void do_all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                       std::span<const int64_t> receive_bytes) override {
    const Parting parting = open({.op = "all_to_all_v", .in = send.data(), .send_bytes = {send_bytes.begin(), send_bytes.end()},
                                  .receive_bytes = {receive_bytes.begin(), receive_bytes.end()}});
    check_pairs();
    int64_t to = 0;
    for (int r = 0; r < size(); ++r) {
      const std::vector<int64_t>& sizes = post(r).send_bytes;
      const int64_t from = std::accumulate(sizes.begin(), sizes.begin() + rank(), int64_t{0});
      const int64_t bytes = receive_bytes[static_cast<size_t>(r)];
      copy(receive.data() + to, static_cast<const std::byte*>(post(r).in) + from, static_cast<size_t>(bytes));
      to += bytes;
    }
  }

  std::unique_ptr<Group> do_split(int color, const std::string& name) override {
    Parting made = open({.op = "split", .color = color}), read(*meeting_, rank());  // rank 0 may clear the result only after all read it
    std::exception_ptr fault;
    if (rank() == 0) {
      try {
        make_children(name);
      } catch (...) {
        fault = std::current_exception();
        meeting_->split_result.clear();
      }
    }
    made.now();
    const auto found = meeting_->split_result.find(color);
    const std::shared_ptr<Meeting> child = found == meeting_->split_result.end() ? nullptr : found->second;
    read.now();
    if (fault) std::rethrow_exception(fault);
    if (!child) throw EndedByPeer(place("split") + " ended: rank 0 could not make the groups");
    const std::vector<int>& ranks = child->world_ranks();
    return std::make_unique<LocalGroup>(child, static_cast<int>(std::ranges::find(ranks, world_rank(rank())) - ranks.begin()));
  }

  void make_children(const std::string& name) {
    std::map<int, std::vector<int>> members;
    for (int r = 0; r < size(); ++r) members[post(r).color].push_back(world_rank(r));
    meeting_->split_result.clear();
    for (const auto& [color, ranks] : members) {
      auto child = std::make_shared<Meeting>(meeting_->world(), name, ranks);
      meeting_->adopt(child);
      meeting_->split_result[color] = std::move(child);
    }
  }

  void do_send(const at::Tensor& tensor, int to, int tag) override {
    meeting_->leave(rank(), to, tag, MessageBytes::of(tensor));
  }

  void do_receive(at::Tensor& tensor, int from, int tag) override {
    const MessageBytes kept = meeting_->take(rank(), from, tag);
    if (kept.size != tensor.nbytes())
      fail(join_text(place("receive"), " with rank ", world_rank(from), ": it sent ", kept.size,
                     " bytes where this rank expects ", tensor.nbytes()));
    copy(tensor.mutable_data_ptr(), kept.data.get(), tensor.nbytes());
  }

  bool do_arrived(int from, int tag) override { return meeting_->has(rank(), from, tag); }

  const Post& post(int rank) const { return meeting_->posts[static_cast<size_t>(rank)]; }

  /// Posts and meets; the operation ends as the result goes. All ranks see the same posts, so if they disagree all throw, and nobody
  /// touches a peer's memory.
  [[nodiscard]] Parting open(Post post_of_mine) {
    meeting_->check_alive(rank(), post_of_mine.op);  // else a peer that still compares the posts of before could see this one
    const Post& mine = meeting_->posts[static_cast<size_t>(rank())] = std::move(post_of_mine);
    meeting_->meet(rank(), mine.op);
    for (int r = 0; r < size(); ++r) {
      const Post& peer = post(r);
      if (std::strcmp(peer.op, mine.op) != 0 || peer.count != mine.count || peer.dtype != mine.dtype || peer.argument != mine.argument)
        disagree(r, join_text("it called ", peer.op, " of ", peer.count, " ", c10::toString(peer.dtype), " where this rank called ",
                              mine.op, " of ", mine.count, " ", c10::toString(mine.dtype)));
    }
    return Parting(*meeting_, rank());
  }

  void check_pairs() {
    for (int a = 0; a < size(); ++a)
      for (int b = 0; b < size(); ++b) {
        const int64_t sent = post(a).send_bytes[static_cast<size_t>(b)], expected = post(b).receive_bytes[static_cast<size_t>(a)];
        if (sent != expected) disagree(a, join_text("it sends ", sent, " bytes to rank ", world_rank(b), ", which expects ", expected));
      }
  }

  [[noreturn]] void disagree(int peer, const std::string& how) {
    fail(join_text(place(post(rank()).op), " disagrees with rank ", world_rank(peer), ": ", how));
  }

  [[noreturn]] void fail(const std::string& reason) {
    meeting_->abort(reason);
    throw PeerError(reason);
  }

  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
  }

  const std::shared_ptr<Meeting> meeting_;  // shared by the ranks of the group
};

std::shared_ptr<Meeting> new_world(const std::string& name, int ranks, double deadline_s, WaitClock& clock) {
  std::vector<int> world_ranks(static_cast<size_t>(ranks));
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  return std::make_shared<Meeting>(std::make_shared<World>(ranks, deadline_s, clock), name, std::move(world_ranks));
}

}  // namespace

void run_local(int ranks, double deadline_s, const RankBody& body, WaitClock& clock) {
  if (ranks < 1) throw UserError("ranks", join_text("is ", ranks), "at least 1");
  auto world = new_world("world", ranks, deadline_s, clock);
  std::mutex mutex;
  std::exception_ptr first_error, first_echo;
  auto run_rank = [&](int rank) {
    const auto failed = [&](std::exception_ptr& first) {
      const std::exception_ptr error = std::current_exception();
      {
        std::lock_guard lock(mutex);
        if (!first) first = error;
      }
      world->abort(join_text("rank ", rank, " failed: ", what_of(error)));
    };
    try {
      LocalGroup group(world, rank);
      body(group);
    } catch (const EndedByPeer&) {
      failed(first_echo);
    } catch (...) {
      failed(first_error);
    }
    clock.thread_ends();
  };
  std::vector<std::thread> threads;
  clock.threads_start(ranks);
  bool all_start = true;
  for (int r = 0; r < ranks && all_start; ++r) {
    try {
      threads.emplace_back(run_rank, r);
    } catch (const std::exception& e) {  // those that run must hear of it, and be joined
      all_start = false;
      const std::string reason = join_text("rank ", r, " of ", ranks, " finds no thread or memory: ", e.what());
      std::lock_guard lock(mutex);
      first_error = std::make_exception_ptr(PeerError(reason));
      world->abort(reason);
      for (int late = r; late < ranks; ++late) clock.thread_ends();
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (!first_error) first_error = first_echo;
  if (first_error) std::rethrow_exception(first_error);
}

std::unique_ptr<Group> single(const std::string& name) {
  constexpr double kNeverWaits_s = 1;
  return std::make_unique<LocalGroup>(new_world(name, 1, kNeverWaits_s, real_clock()), 0);
}

}  // namespace tandem::comm
