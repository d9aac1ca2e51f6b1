// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of an MPI job. Every collective is made of point-to-point messages, so that a wait knows which peer
// it is waiting for, has a deadline, hears of an abort, and sums in rank order.
#include <mpi.h>

#include <ATen/ops/empty.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/launch.h"
#include "tandem/comm/reduce.h"

namespace tandem::comm {
namespace {

constexpr int64_t kMaxMessage_bytes = int64_t{1} << 30;  // MPI counts are ints
constexpr int64_t kOneRound_bytes = 64 << 10;            // below it all_reduce sends everything to everyone: one latency less
constexpr double kGrace_s = 5;                           // what peers get to end by themselves after an abort

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw PeerError(join_text(call, ": ", text.data()));
}

/// What all groups of this process share: the channel on which a failing rank tells the others why.
class Job {
 public:
  explicit Job(double deadline_s) : deadline_s(deadline_s) {
    MPI_Comm_dup(MPI_COMM_WORLD, &notices_);
    MPI_Comm_set_errhandler(notices_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(notices_, &rank_);
    MPI_Comm_size(notices_, &size_);
    MPI_Irecv(heard_.data(), static_cast<int>(heard_.size()), MPI_CHAR, MPI_ANY_SOURCE, kNoticeTag, notices_, &notice_);
  }

  /// Tells every rank; the first reason stays. Never throws.
  void abort(const std::string& reason) noexcept {
    std::lock_guard lock(mutex_);
    if (dead_) return;
    die(reason);
    // Kept until the process ends: a peer may take it late.
    std::strncpy(told_.data(), reason.c_str(), told_.size() - 1);
    for (int r = 0; r < size_; ++r) {
      MPI_Request request;
      if (r != rank_ && MPI_Isend(told_.data(), static_cast<int>(told_.size()), MPI_CHAR, r, kNoticeTag, notices_, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
    }
  }

  /// The reason the job is dead, "" while it lives. Looks for notices of others.
  std::string death() {
    std::lock_guard lock(mutex_);
    if (!dead_ && notice_ != MPI_REQUEST_NULL) {
      int arrived = 0;
      if (MPI_Test(&notice_, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived) {
        die(heard_.data());
        killed_by_peer_ = true;
      }
    }
    return reason_;
  }

  /// Waits until all ranks have ended their body. False if some have not within `seconds` (after a death: within the grace).
  bool all_ended(double seconds) {
    MPI_Request request;
    if (MPI_Ibarrier(notices_, &request) != MPI_SUCCESS) return false;
    Deadline deadline = Deadline::after_s(seconds);
    bool hurry = false;
    for (int done = 0; !done;) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      if (!hurry && !death().empty()) {
        hurry = true;
        deadline = Deadline::after_s(kGrace_s);
      }
      if (!done && deadline.passed()) return false;
      if (!done) usleep(500);
    }
    return true;
  }

  /// What every rank brings, by rank; only after all_ended.
  std::vector<int> gather(int mine) {
    std::vector<int> all(static_cast<size_t>(size_));
    check_mpi(MPI_Allgather(&mine, 1, MPI_INT, all.data(), 1, MPI_INT, notices_), "MPI_Allgather");
    return all;
  }

  /// Ends the channel; only after all_ended.
  void close() {
    if (notice_ != MPI_REQUEST_NULL) {
      MPI_Cancel(&notice_);
      MPI_Wait(&notice_, MPI_STATUS_IGNORE);
    }
  }

  /// Whether the first reason came from another rank. After death().
  bool killed_by_peer() const { return killed_by_peer_; }

  int rank() const { return rank_; }
  const double deadline_s;

 private:
  static constexpr int kNoticeTag = 1;
  void die(const std::string& reason) {
    dead_ = true;
    reason_ = reason;
  }
  std::mutex mutex_;
  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Request notice_ = MPI_REQUEST_NULL;
  std::array<char, 1024> heard_{}, told_{};
  int rank_ = 0, size_ = 1;
  bool dead_ = false, killed_by_peer_ = false;
  std::string reason_;
};

/// The messages of one operation that are under way, and the peer of each.
struct Flight {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
};

class MpiGroup : public Group {
 public:
  MpiGroup(Job& job, MPI_Comm comm, std::string name) : job_(job), comm_(comm), name_(std::move(name)) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiGroup() override {
    if (job_.death().empty()) MPI_Comm_free(&comm_);  // a dead group may have messages under way
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }

  void barrier() override {
    Flight flight = begin("barrier");
    std::byte nothing{};
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      receive(flight, &nothing, 0, r);
      send(flight, &nothing, 0, r);
    }
    finish(flight, "barrier");
  }

  void broadcast(at::Tensor& tensor, int root) override {
    check_movable(tensor, "broadcast");
    TANDEM_CHECK(root >= 0 && root < size_, "root ", root);
    Flight flight = begin("broadcast");
    if (rank_ == root) {
      for (int r = 0; r < size_; ++r)
        if (r != root) send(flight, tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes()), r);
    } else {
      receive(flight, tensor.mutable_data_ptr(), static_cast<int64_t>(tensor.nbytes()), root);
    }
    finish(flight, "broadcast");
  }

  void all_reduce(at::Tensor& tensor, ReduceOp op) override {
    check_movable(tensor, "all_reduce");
    if (size_ == 1) return;
    if (static_cast<int64_t>(tensor.nbytes()) * size_ <= kOneRound_bytes) {
      at::Tensor all = at::empty({size_ * tensor.numel()}, tensor.options());
      all_gather(all, tensor);
      void* const out[] = {tensor.mutable_data_ptr()};
      reduce_ordered(blocks(all.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())), out, tensor.numel(), tensor.scalar_type(), op);
      return;
    }
    const int64_t width = tensor.element_size();
    const Slice mine = slice_of(tensor.numel(), rank_, size_);
    auto* data = static_cast<std::byte*>(tensor.mutable_data_ptr());
    at::Tensor peers = at::empty({size_ * mine.count()}, tensor.options());
    auto* theirs = static_cast<std::byte*>(peers.mutable_data_ptr());
    Flight scatter = begin("all_reduce");
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      receive(scatter, theirs + r * mine.count() * width, mine.count() * width, r);
      const Slice slice = slice_of(tensor.numel(), r, size_);
      send(scatter, data + slice.begin * width, slice.count() * width, r);
    }
    finish(scatter, "all_reduce");
    auto sources = blocks(theirs, mine.count() * width);
    sources[static_cast<size_t>(rank_)] = data + mine.begin * width;
    void* const out[] = {data + mine.begin * width};
    reduce_ordered(sources, out, mine.count(), tensor.scalar_type(), op);
    Flight gather = begin("all_reduce");
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const Slice slice = slice_of(tensor.numel(), r, size_);
      receive(gather, data + slice.begin * width, slice.count() * width, r);
      send(gather, data + mine.begin * width, mine.count() * width, r);
    }
    finish(gather, "all_reduce");
  }

  void all_gather(at::Tensor& out, const at::Tensor& in) override {
    check_movable(out, "all_gather");
    check_movable(in, "all_gather");
    TANDEM_CHECK(out.numel() == size_ * in.numel() && out.scalar_type() == in.scalar_type(), "all_gather of ", in.numel(), " into ",
                 out.numel());
    const auto bytes = static_cast<int64_t>(in.nbytes());
    auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
    Flight flight = begin("all_gather");
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      receive(flight, to + r * bytes, bytes, r);
      send(flight, in.const_data_ptr(), bytes, r);
    }
    if (bytes > 0 && to + rank_ * bytes != in.const_data_ptr()) std::memcpy(to + rank_ * bytes, in.const_data_ptr(), in.nbytes());
    finish(flight, "all_gather");
  }

  void reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    check_movable(out, "reduce_scatter");
    check_movable(in, "reduce_scatter");
    TANDEM_CHECK(in.numel() == size_ * out.numel() && out.scalar_type() == in.scalar_type(), "reduce_scatter of ", in.numel(), " into ",
                 out.numel());
    const auto bytes = static_cast<int64_t>(out.nbytes());
    at::Tensor peers = at::empty({in.numel()}, in.options());
    auto* theirs = static_cast<std::byte*>(peers.mutable_data_ptr());
    const auto* from = static_cast<const std::byte*>(in.const_data_ptr());
    Flight flight = begin("reduce_scatter");
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      receive(flight, theirs + r * bytes, bytes, r);
      send(flight, from + r * bytes, bytes, r);
    }
    finish(flight, "reduce_scatter");
    auto sources = blocks(theirs, bytes);
    sources[static_cast<size_t>(rank_)] = from + rank_ * bytes;
    void* const result[] = {out.mutable_data_ptr()};
    reduce_ordered(sources, result, out.numel(), out.scalar_type(), ReduceOp::kSum);
  }

  void all_to_all_v(std::span<const std::byte> from, std::span<const int64_t> send_bytes, std::span<std::byte> to,
                    std::span<const int64_t> receive_bytes) override {
    TANDEM_CHECK(std::ssize(send_bytes) == size_ && std::ssize(receive_bytes) == size_, "all_to_all_v needs a size for each rank");
    Flight flight = begin("all_to_all_v");
    int64_t in = 0, out = 0, own_in = 0, own_out = 0;
    for (int r = 0; r < size_; ++r) {
      const int64_t sent = send_bytes[static_cast<size_t>(r)], received = receive_bytes[static_cast<size_t>(r)];
      TANDEM_CHECK(out + sent <= std::ssize(from) && in + received <= std::ssize(to), "buffers too small");
      if (r == rank_) {
        own_in = in, own_out = out;
      } else {
        // A peer that sends nothing sends no message, on either side; a disagreement shows as a truncation or a late peer.
        if (received > 0) receive(flight, to.data() + in, received, r);
        if (sent > 0) send(flight, from.data() + out, sent, r);
      }
      in += received, out += sent;
    }
    if (const int64_t own = send_bytes[static_cast<size_t>(rank_)]; own > 0)
      std::memcpy(to.data() + own_in, from.data() + own_out, static_cast<size_t>(own));
    finish(flight, "all_to_all_v");
  }

  std::unique_ptr<Group> split(int color, const std::string& name) override {
    at::Tensor mine = at::empty({1}, at::kInt), all = at::empty({size_}, at::kInt);
    *mine.mutable_data_ptr<int>() = color;
    all_gather(all, mine);
    std::vector<int> members;
    for (int r = 0; r < size_; ++r)
      if (all.const_data_ptr<int>()[r] == color) members.push_back(r);
    // Everyone has just answered, so the blocking call below finds its peers at hand.
    MPI_Group whole, part;
    MPI_Comm comm;
    check_mpi(MPI_Comm_group(comm_, &whole), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(whole, static_cast<int>(members.size()), members.data(), &part), "MPI_Group_incl");
    check_mpi(MPI_Comm_create_group(comm_, part, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&part);
    MPI_Group_free(&whole);
    return std::make_unique<MpiGroup>(job_, comm, name);
  }

  /// A process cannot leave a message half sent: the whole job ends, not this group alone.
  void abort(const std::string& reason) noexcept override { job_.abort(reason); }

 private:
  Flight begin(const char* op) {
    throw_if_dead(op);
    // The number of the operation is the tag: ranks that lose step do not take each other's messages for their own.
    tag_ = (tag_ + 1) % 32768;
    return {};
  }

  void receive(Flight& flight, void* to, int64_t bytes, int peer) {
    each_message(bytes, [&](int64_t begin, int count) {
      MPI_Request request;
      check_mpi(MPI_Irecv(static_cast<std::byte*>(to) + begin, count, MPI_BYTE, peer, tag_, comm_, &request), "MPI_Irecv");
      flight.requests.push_back(request);
      flight.peers.push_back(peer);
    });
  }
  void send(Flight& flight, const void* from, int64_t bytes, int peer) {
    each_message(bytes, [&](int64_t begin, int count) {
      MPI_Request request;
      check_mpi(MPI_Isend(static_cast<const std::byte*>(from) + begin, count, MPI_BYTE, peer, tag_, comm_, &request), "MPI_Isend");
      flight.requests.push_back(request);
      flight.peers.push_back(peer);
    });
  }
  /// At least one message, so that an empty one still says that the peer is here.
  template <class Start>
  static void each_message(int64_t bytes, Start start) {
    for (int64_t begin = 0; begin == 0 || begin < bytes; begin += kMaxMessage_bytes)
      start(begin, static_cast<int>(std::min(bytes - begin, kMaxMessage_bytes)));
  }

  void finish(Flight& flight, const char* op) {
    const Deadline deadline = Deadline::after_s(job_.deadline_s);
    for (int64_t round = 0;; ++round) {
      int done = 0;
      const int code = MPI_Testall(static_cast<int>(flight.requests.size()), flight.requests.data(), &done, MPI_STATUSES_IGNORE);
      if (code != MPI_SUCCESS) fail(flight, op, "the message does not fit (ranks called different operations, or a peer died)");
      if (done) return;
      if (round % 64 != 63) continue;
      if (!job_.death().empty()) {
        cancel(flight);
        throw_if_dead(op);
      }
      if (deadline.passed()) fail(flight, op, join_text("no sign of it within ", job_.deadline_s, " s"));
      round < 4096 ? static_cast<void>(sched_yield()) : static_cast<void>(usleep(50));
    }
  }

  [[noreturn]] void fail(Flight& flight, const char* op, const std::string& how) {
    std::vector<int> late;
    for (size_t i = 0; i < flight.requests.size(); ++i)
      if (flight.requests[i] != MPI_REQUEST_NULL) late.push_back(flight.peers[i]);
    std::sort(late.begin(), late.end());
    late.erase(std::unique(late.begin(), late.end()), late.end());
    std::string ranks;
    for (int r : late) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    cancel(flight);
    const std::string reason = join_text("rank ", rank_, ": ", op, " in group '", name_, "' with rank ", ranks, ": ", how);
    job_.abort(reason);
    throw PeerError(reason);
  }

  /// The caller's memory may go once we throw, so no receive into it may stay open.
  static void cancel(Flight& flight) {
    for (MPI_Request& request : flight.requests) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }

  void throw_if_dead(const char* op) {
    if (const std::string reason = job_.death(); !reason.empty())
      throw PeerError(join_text("rank ", rank_, ": ", op, " in group '", name_, "' ended: ", reason));
  }

  std::vector<const void*> blocks(const void* data, int64_t bytes) const {
    std::vector<const void*> all;
    for (int r = 0; r < size_; ++r) all.push_back(static_cast<const std::byte*>(data) + r * bytes);
    return all;
  }

  Job& job_;  // outlives every group: both live inside run_mpi
  MPI_Comm comm_;
  const std::string name_;
  int rank_ = 0, size_ = 1, tag_ = 0;
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

namespace {

/// The exit code if this rank's error is a cause, 0 if it has none or only heard of another's.
int cause_of(const std::exception_ptr& error, bool heard_of_another) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& e) {
    return heard_of_another ? 0 : exit_code_of(e);
  } catch (const std::exception& e) {
    return exit_code_of(e);
  } catch (...) {
    return 1;
  }
}

}  // namespace

bool mpi_available() { return true; }

void run_mpi(double deadline_s, const RankBody& body) {
  int level = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  if (level < MPI_THREAD_MULTIPLE)
    throw UserError("MPI", "this library does not support MPI_THREAD_MULTIPLE", "use an MPI that was built with thread support");
  Job job(deadline_s);
  std::exception_ptr error;
  int cause = 0;
  try {
    MPI_Comm comm;
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    MpiGroup world(job, comm, "world");
    body(world);
  } catch (...) {
    error = std::current_exception();
    (void)job.death();  // takes what peers have said
    cause = cause_of(error, job.killed_by_peer());
    job.abort(join_text("rank ", job.rank(), " failed: ", what_of(error)));
  }
  if (!job.all_ended(deadline_s)) {
    const std::string reason = error ? what_of(error) : join_text("rank ", job.rank(), ": a peer did not end: ", job.death());
    log::write("error", reason);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  const std::string death = job.death();
  const std::vector<int> causes = job.gather(cause);
  job.close();
  MPI_Finalize();
  const auto first = std::find_if(causes.begin(), causes.end(), [](int code) { return code != 0; });
  if (first != causes.end() && first - causes.begin() != job.rank())
    throw ReportedElsewhere(*first, error ? what_of(error) : join_text("rank ", job.rank(), " ended, but: ", death));
  if (error) std::rethrow_exception(error);
  if (!death.empty()) throw PeerError(join_text("rank ", job.rank(), " ended, but: ", death));
}

}  // namespace tandem::comm
