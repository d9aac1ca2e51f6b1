// SPDX-License-Identifier: Apache-2.0
// A group over a backend of c10d. The device works on its own; a call waits here until it is done, and the job watches over what was begun.
// So each has a deadline, and an error with a name.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <deque>
#include <exception>
#include <map>
#include <numeric>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/comm/backend/c10d/job.h"
#include "tandem/comm/backend/c10d/outbox.h"

namespace tandem::comm {
namespace {

struct Members {
  int rank = 0;
  std::vector<int> world_ranks;
};

class C10dGroup : public Group {
 public:
  /// key: where the members meet in the store.
  C10dGroup(C10dJob& job, std::string key, std::string name, Members members)
      : Group(std::move(name), members.rank, std::move(members.world_ranks), job.library().device),
        job_(job), key_(std::move(key)), backend_(job.connect(key_, rank(), size())) {}
  ~C10dGroup() override {
    inboxes_.clear();
    if (std::uncaught_exceptions() == 0) job_.wait_for_watched(key_);  // else this rank has failed, and its peers may never come
    job_.disconnect(backend_);
  }

  std::string death() override { return job_.death(); }

 private:
  /// A device cannot leave an operation half done: the whole job ends, not this group alone.
  void do_abort(const std::string& reason) noexcept override { job_.abort(reason); }

  void do_barrier() override {
    at::Tensor one = at::zeros({1}, at::device(device()).dtype(at::kFloat));
    run("barrier", [&] { return reduce(one, ReduceOp::kSum); });
  }

  void do_broadcast(at::Tensor& tensor, int root) override {
    if (tensor.numel() == 0) return;
    std::vector<at::Tensor> bytes = {as_bytes(tensor)};
    ::c10d::BroadcastOptions options;
    options.rootRank = root;
    run("broadcast", [&] { return backend_->broadcast(bytes, options); });
  }

  void do_all_reduce(at::Tensor& tensor, ReduceOp op) override {
    if (tensor.numel() == 0) return;
    run("all_reduce", [&] { return reduce(tensor, op); });
  }

  void do_all_gather(at::Tensor& out, const at::Tensor& in) override {
    if (in.numel() == 0) return;
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    run("all_gather", [&] { return backend_->_allgather_base(to, from); });
  }

  void do_reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    if (out.numel() == 0) return;
    run("reduce_scatter", [&] { return reduce_scattered(out, in); });
  }

  // On the device alone: an operation of the CPU is done where somebody waits for it.
  std::unique_ptr<Work> do_begin_reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    if (device().is_cpu() || out.numel() == 0) {
      do_reduce_scatter(out, in);
      return nullptr;
    }
    std::unique_ptr<Work> work;
    guarded("reduce_scatter", [&](const std::string& where) {
      meet(where);
      auto begun = reduce_scattered(out, in);
      job_.watch(key_, begun, {where, world_ranks()});
      work = std::make_unique<Begun>(*this, std::move(begun));
    });
    return work;
  }

  void do_all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                       std::span<const int64_t> receive_bytes) override {
    std::vector<int64_t> out(send_bytes.begin(), send_bytes.end()), in(receive_bytes.begin(), receive_bytes.end());
    at::Tensor from = view_of(send.data(), out), to = view_of(receive.data(), in);
    run("all_to_all_v", [&] { return backend_->alltoall_base(to, from, in, out); });
  }

  void do_send(const at::Tensor& tensor, int to, int tag) override {
    job_.throw_if_dead(place("send"));
    if (to == rank()) {
      own_[tag].push_back(tensor.clone());
    } else {
      job_.outbox(lane(rank(), to)).put(tensor, tag, join_text(place("send"), " with rank ", world_rank(to)));
    }
  }

  void do_receive(at::Tensor& tensor, int from, int tag) override {
    guarded("receive", [&](const std::string& where) {
      if (from == rank()) return take_own(tensor, tag, where);
      inbox(from).take(tensor, tag, {where, {world_rank(from)}});
    });
  }

  bool do_arrived(int from, int tag) override {
    bool is_here = false;
    guarded("receive", [&](const std::string& where) {
      is_here = from == rank() ? !own_[tag].empty() : inbox(from).arrived(tag, {where, {world_rank(from)}});
    });
    return is_here;
  }

  Inbox& inbox(int from) {
    std::unique_ptr<Inbox>& box = inboxes_[from];
    if (!box) box = std::make_unique<Inbox>(job_, lane(from, rank()));
    return *box;
  }

  std::unique_ptr<Group> do_split(int color, const std::string& name) override {
    const at::Tensor mine = at::empty({1}, at::kInt);
    *mine.mutable_data_ptr<int>() = color;
    at::Tensor all = at::empty({size()}, at::device(device()).dtype(at::kInt));
    do_all_gather(all, mine.to(device()));
    const at::Tensor colors = all.cpu();
    Members members;
    for (int r = 0; r < size(); ++r) {
      if (colors.const_data_ptr<int>()[r] != color) continue;
      if (r == rank()) members.rank = static_cast<int>(members.world_ranks.size());
      members.world_ranks.push_back(world_rank(r));
    }
    // All members have split this group as often, so they find each other under this key and nobody else does.
    const std::string key = join_text(key_, "/", num_splits_++, ".", color);
    std::unique_ptr<Group> part;
    guarded("split", [&](const std::string&) { part = std::make_unique<C10dGroup>(job_, key, name, std::move(members)); });
    return part;
  }

  c10::intrusive_ptr<::c10d::Work> reduce(at::Tensor& tensor, ReduceOp op) {
    std::vector<at::Tensor> tensors = {tensor.view({-1})};
    ::c10d::AllreduceOptions options;
    options.reduceOp = op == ReduceOp::kSum ? ::c10d::ReduceOp::SUM : ::c10d::ReduceOp::MAX;
    return backend_->allreduce(tensors, options);
  }

  template <class Start>
  void run(const char* op, Start start) {
    guarded(op, [&](const std::string& where) {
      meet(where);
      job_.finish(*start(), {where, world_ranks()});
    });
  }

  c10::intrusive_ptr<::c10d::Work> reduce_scattered(at::Tensor& out, const at::Tensor& in) {
    at::Tensor to = out.view({-1}), from = in.view({-1});
    return backend_->_reduce_scatter_base(to, from);
  }

  class Begun final : public Work {
   public:
    Begun(C10dGroup& group, c10::intrusive_ptr<::c10d::Work> work) : group_(group), work_(std::move(work)) {}
    void wait() override {
      group_.guarded("reduce_scatter", [&](const std::string&) { work_->synchronize(); });
    }

   private:
    C10dGroup& group_;
    const c10::intrusive_ptr<::c10d::Work> work_;
  };

  void meet(const std::string& where) {
    if (!std::exchange(has_met_, true)) job_.meet(key_, size(), {where, world_ranks()});
  }

  /// What a library throws becomes a PeerError that names rank, operation and group, and ends the job.
  template <class Body>
  void guarded(const char* op, Body body) {
    const std::string where = place(op);
    job_.throw_if_dead(where);
    job_.library().enter_thread();
    try {
      body(where);
    } catch (const EndedByPeer&) {
      throw;
    } catch (const PeerError& e) {
      job_.abort(e.what());
      throw;
    } catch (const InternalError&) {
      throw;
    } catch (const c10::Error& e) {
      fail(where, e.what_without_backtrace());
    } catch (const std::exception& e) {
      fail(where, e.what());
    }
  }
  [[noreturn]] void fail(const std::string& where, const std::string& what) {
    job_.throw_if_dead_by_others(where);
    const std::string reason = join_text(where, ": ", what);
    job_.abort(reason);
    throw PeerError(reason);
  }

  void take_own(at::Tensor& tensor, int tag, const std::string& where) {
    std::deque<at::Tensor>& sent = own_[tag];
    if (sent.empty()) throw PeerError(where + ": this rank has sent itself no message of the tag");
    const at::Tensor message = sent.front();
    sent.pop_front();
    if (message.nbytes() != tensor.nbytes())
      throw PeerError(join_text(where, ": the message has ", message.nbytes(), " bytes, not the ", tensor.nbytes(), " expected"));
    if (tensor.numel() > 0) as_bytes(tensor).copy_(as_bytes(message));
  }

  /// The device's bytes of all blocks of an all_to_all_v.
  at::Tensor view_of(const std::byte* data, const std::vector<int64_t>& sizes) const {
    return device_bytes(const_cast<std::byte*>(data), std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), device());
  }

  std::string lane(int from, int to) const { return join_text(key_, "/lane/", from, ">", to); }
  std::string place(const char* op) const { return join_text("rank ", world_rank(rank()), ": ", op, " in group '", name(), "'"); }

  C10dJob& job_;
  const std::string key_;
  const c10::intrusive_ptr<::c10d::Backend> backend_;
  std::map<int, std::unique_ptr<Inbox>> inboxes_;
  std::map<int, std::deque<at::Tensor>> own_;  // what this rank sent itself, by tag
  int num_splits_ = 0;
  bool has_met_ = false;
};

}  // namespace

std::unique_ptr<Group> c10d_world(C10dJob& job) {
  std::vector<int> ranks(static_cast<size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<C10dGroup>(job, "world", "world", Members{job.rank(), std::move(ranks)});
}

}  // namespace tandem::comm
