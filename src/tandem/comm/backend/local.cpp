// SPDX-License-Identifier: Apache-2.0
// Ranks as threads: every operation posts pointers, meets, works on the peers' memory, and meets again.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/reduce.h"

namespace tandem::comm {
namespace {

/// What one rank brings to an operation. Written before a meeting, read by the peers after it.
struct Post {
  const char* op = "";
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;                 // must agree between ranks, as do dtype and argument
  at::ScalarType dtype = at::kByte;
  int argument = 0;                  // root or ReduceOp
  std::vector<int64_t> send_bytes, receive_bytes;  // all_to_all_v; copies, since peers read them even while this rank unwinds
  int color = 0;                     // split
};

/// The state ranks of one group share. Shared ownership: each rank's Group holds it, and a parent watches its children.
class Meeting {
 public:
  Meeting(std::string name, int size, double deadline_s)
      : posts(static_cast<size_t>(size)), name_(std::move(name)), deadline_s_(deadline_s) {
    // Spinning only helps while every rank has a processor of its own.
    num_spins_ = size <= static_cast<int>(std::thread::hardware_concurrency()) ? 2000 : 0;
  }

  int size() const { return static_cast<int>(posts.size()); }
  double deadline_s() const { return deadline_s_; }
  const std::string& name() const { return name_; }

  /// Returns once every rank has called it. Errors: PeerError after abort, or naming the ranks that are late.
  void meet(int rank, const char* op) {
    std::unique_lock lock(mutex_);
    throw_if_dead(rank, op);
    const uint64_t round = round_.load(std::memory_order_relaxed);
    if (arrive(rank, round, lock)) return;
    const Deadline deadline = Deadline::after_s(deadline_s_);
    if (!changed_.wait_until(lock, deadline.time(), [&] { return met(round) || dead_; })) {
      const std::string reason =
          join_text("rank ", rank, ": ", op, " in group '", name_, "': no sign of rank ", missing(), " within ", deadline_s_, " s");
      lock.unlock();
      abort(reason);
      throw PeerError(reason);
    }
    if (!met(round)) throw_if_dead(rank, op);
  }

  /// The meeting that ends an operation: no rank may leave, even by an exception, while a peer reads its memory. The
  /// peers are between two meetings, where they only copy and add, so this wait is short and needs no deadline.
  void part(int rank) {
    std::unique_lock lock(mutex_);
    const uint64_t round = round_.load(std::memory_order_relaxed);
    if (!arrive(rank, round, lock)) changed_.wait(lock, [&] { return met(round); });
  }

  void abort(const std::string& reason) {
    std::vector<std::weak_ptr<Meeting>> children;
    {
      std::lock_guard lock(mutex_);
      if (dead_) return;
      dead_ = true;
      reason_ = reason;
      children = children_;
    }
    changed_.notify_all();
    for (auto& child : children)
      if (auto alive = child.lock()) alive->abort(reason);
  }

  void adopt(const std::shared_ptr<Meeting>& child) {
    std::lock_guard lock(mutex_);
    children_.push_back(child);
  }

  std::vector<Post> posts;                                // one writer each; meetings order writes and reads
  std::map<int, std::shared_ptr<Meeting>> split_result;   // by colour; written by rank 0 between two meetings

 private:
  bool met(uint64_t round) const { return round_.load(std::memory_order_acquire) != round; }

  /// True if the meeting took place; otherwise the lock is held again and the caller has to wait.
  bool arrive(int rank, uint64_t round, std::unique_lock<std::mutex>& lock) {
    arrived_.insert(rank);
    if (static_cast<int>(arrived_.size()) == size()) {
      arrived_.clear();
      round_.store(round + 1, std::memory_order_release);
      lock.unlock();
      changed_.notify_all();
      return true;
    }
    lock.unlock();
    for (int spin = 0; spin < num_spins_; ++spin)
      if (met(round)) return true;
    lock.lock();
    return false;
  }
  void throw_if_dead(int rank, const char* op) const {
    if (dead_) throw PeerError(join_text("rank ", rank, ": ", op, " in group '", name_, "' ended: ", reason_));
  }
  std::string missing() const {
    std::string ranks;
    for (int r = 0; r < size(); ++r)
      if (!arrived_.contains(r)) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    return ranks;
  }

  const std::string name_;
  const double deadline_s_;
  int num_spins_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> arrived_;
  std::atomic<uint64_t> round_{0};
  bool dead_ = false;
  std::string reason_;
  std::vector<std::weak_ptr<Meeting>> children_;
};

class LocalGroup : public Group {
 public:
  LocalGroup(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }
  const std::string& name() const override { return meeting_->name(); }

  void barrier() override { meeting_->meet(rank_, "barrier"); }

  void broadcast(at::Tensor& tensor, int root) override {
    check_movable(tensor, "broadcast");
    TANDEM_CHECK(root >= 0 && root < size(), "root ", root);
    open({.op = "broadcast", .in = tensor.const_data_ptr(), .count = tensor.numel(), .dtype = tensor.scalar_type(), .argument = root});
    if (rank_ != root) copy(tensor.mutable_data_ptr(), post(root).in, tensor.nbytes());
    meeting_->part(rank_);
  }

  void all_reduce(at::Tensor& tensor, ReduceOp op) override {
    check_movable(tensor, "all_reduce");
    const int64_t count = tensor.numel();
    open({.op = "all_reduce",
          .out = tensor.mutable_data_ptr(),
          .count = count,
          .dtype = tensor.scalar_type(),
          .argument = static_cast<int>(op)});
    if (size() > 1) {
      // Each rank owns one slice of everybody's tensor: it sums it in rank order and writes the result to all.
      const Slice slice = slice_of(count, rank_, size());
      std::vector<void*> slices;
      for (const Post& p : meeting_->posts) slices.push_back(static_cast<std::byte*>(p.out) + slice.begin * tensor.element_size());
      const std::vector<const void*> sources(slices.begin(), slices.end());
      reduce_ordered(sources, slices, slice.count(), tensor.scalar_type(), op);
    }
    meeting_->part(rank_);
  }

  void all_gather(at::Tensor& out, const at::Tensor& in) override {
    check_movable(out, "all_gather");
    check_movable(in, "all_gather");
    TANDEM_CHECK(out.numel() == size() * in.numel() && out.scalar_type() == in.scalar_type(), "all_gather of ", in.numel(), " into ",
                 out.numel());
    open({.op = "all_gather", .in = in.const_data_ptr(), .count = in.numel(), .dtype = in.scalar_type()});
    for (int r = 0; r < size(); ++r) copy(static_cast<std::byte*>(out.mutable_data_ptr()) + r * in.nbytes(), post(r).in, in.nbytes());
    meeting_->part(rank_);
  }

  void reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    check_movable(out, "reduce_scatter");
    check_movable(in, "reduce_scatter");
    TANDEM_CHECK(in.numel() == size() * out.numel() && out.scalar_type() == in.scalar_type(), "reduce_scatter of ", in.numel(), " into ",
                 out.numel());
    open({.op = "reduce_scatter", .in = in.const_data_ptr(), .count = out.numel(), .dtype = in.scalar_type()});
    std::vector<const void*> sources;
    for (const Post& p : meeting_->posts) sources.push_back(static_cast<const std::byte*>(p.in) + rank_ * out.nbytes());
    void* const result[] = {out.mutable_data_ptr()};
    reduce_ordered(sources, result, out.numel(), out.scalar_type(), ReduceOp::kSum);
    meeting_->part(rank_);
  }

  void all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                    std::span<const int64_t> receive_bytes) override {
    TANDEM_CHECK(std::ssize(send_bytes) == size() && std::ssize(receive_bytes) == size(), "all_to_all_v needs a size for each rank");
    TANDEM_CHECK(std::accumulate(send_bytes.begin(), send_bytes.end(), int64_t{0}) <= std::ssize(send), "send buffer too small");
    TANDEM_CHECK(std::accumulate(receive_bytes.begin(), receive_bytes.end(), int64_t{0}) <= std::ssize(receive),
                 "receive buffer too small");
    open({.op = "all_to_all_v", .in = send.data(), .send_bytes = {send_bytes.begin(), send_bytes.end()},
          .receive_bytes = {receive_bytes.begin(), receive_bytes.end()}});
    check_pairs();
    int64_t to = 0;
    for (int r = 0; r < size(); ++r) {
      const std::vector<int64_t>& sizes = post(r).send_bytes;
      const int64_t from = std::accumulate(sizes.begin(), sizes.begin() + rank_, int64_t{0});
      const int64_t bytes = receive_bytes[static_cast<size_t>(r)];
      copy(receive.data() + to, static_cast<const std::byte*>(post(r).in) + from, static_cast<size_t>(bytes));
      to += bytes;
    }
    meeting_->part(rank_);
  }

  std::unique_ptr<Group> split(int color, const std::string& name) override {
    open({.op = "split", .color = color});
    std::map<int, std::vector<int>> members;
    for (int r = 0; r < size(); ++r) members[post(r).color].push_back(r);
    if (rank_ == 0) {
      meeting_->split_result.clear();
      for (const auto& [each, ranks] : members) {
        auto child = std::make_shared<Meeting>(name, static_cast<int>(ranks.size()), meeting_->deadline_s());
        meeting_->adopt(child);
        meeting_->split_result[each] = std::move(child);
      }
    }
    meeting_->part(rank_);
    auto child = meeting_->split_result.at(color);
    const std::vector<int>& mine = members.at(color);
    const auto place = std::find(mine.begin(), mine.end(), rank_) - mine.begin();
    meeting_->part(rank_);  // rank 0 may clear the result only after all have read it
    return std::make_unique<LocalGroup>(std::move(child), static_cast<int>(place));
  }

  void abort(const std::string& reason) noexcept override { meeting_->abort(reason); }

 private:
  const Post& post(int rank) const { return meeting_->posts[static_cast<size_t>(rank)]; }

  /// Posts and meets. All ranks see the same posts, so if they disagree all throw, and nobody touches a peer's memory.
  void open(Post post_of_mine) {
    const Post& mine = meeting_->posts[static_cast<size_t>(rank_)] = std::move(post_of_mine);
    meeting_->meet(rank_, mine.op);
    for (int r = 0; r < size(); ++r) {
      const Post& peer = post(r);
      if (std::strcmp(peer.op, mine.op) != 0 || peer.count != mine.count || peer.dtype != mine.dtype || peer.argument != mine.argument)
        disagree(r, join_text("it called ", peer.op, " of ", peer.count, " ", c10::toString(peer.dtype), " where this rank called ",
                              mine.op, " of ", mine.count, " ", c10::toString(mine.dtype)));
    }
  }

  void check_pairs() {
    for (int a = 0; a < size(); ++a)
      for (int b = 0; b < size(); ++b) {
        const int64_t sent = post(a).send_bytes[static_cast<size_t>(b)], expected = post(b).receive_bytes[static_cast<size_t>(a)];
        if (sent != expected) disagree(a, join_text("it sends ", sent, " bytes to rank ", b, ", which expects ", expected));
      }
  }

  [[noreturn]] void disagree(int peer, const std::string& how) {
    const std::string reason =
        join_text("rank ", rank_, ": ", post(rank_).op, " in group '", name(), "' disagrees with rank ", peer, ": ", how);
    meeting_->abort(reason);
    throw PeerError(reason);
  }

  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
  }

  const std::shared_ptr<Meeting> meeting_;  // shared by the ranks of the group
  const int rank_;
};

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace

void run_local(int ranks, double deadline_s, const RankBody& body) {
  if (ranks < 1) throw UserError("ranks", join_text("is ", ranks), "at least 1");
  auto world = std::make_shared<Meeting>("world", ranks, deadline_s);
  std::mutex mutex;
  std::exception_ptr first_error;
  auto run_rank = [&](int rank) {
    try {
      LocalGroup group(world, rank);
      body(group);
    } catch (...) {
      std::exception_ptr error = std::current_exception();
      {
        std::lock_guard lock(mutex);
        if (!first_error) first_error = error;
      }
      world->abort(join_text("rank ", rank, " failed: ", what_of(error)));
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(run_rank, r);
  for (std::thread& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

std::unique_ptr<Group> single(const std::string& name) {
  constexpr double kNeverWaits_s = 1;
  return std::make_unique<LocalGroup>(std::make_shared<Meeting>(name, 1, kNeverWaits_s), 0);
}

}  // namespace tandem::comm
