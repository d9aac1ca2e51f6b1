// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of an MPI job. Every collective is made of point-to-point messages, so that a wait knows which peer
// it is waiting for, has a deadline, hears of an abort, and sums in rank order.
#include "tandem/comm/backend/mpi_group.h"

#include <ATen/ops/empty.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/comm/reduce.h"

namespace tandem::comm {
namespace {

constexpr int64_t kMaxMessage_bytes = int64_t{1} << 30;  // MPI counts are ints
constexpr int64_t kOneRound_bytes = 64 << 10;            // below it all_reduce sends everything to everyone: one latency less
constexpr double kStuck_s = 0.5;                         // who has waited so long is not to blame for what others miss
constexpr const char* kMisfit = "the message does not have the bytes expected (ranks called different operations, or a peer died)";

/// The messages of one operation that are under way, and the peer of each.
struct Flight {
  /// Where MPI puts the request of one more message.
  MPI_Request* start(int peer) {
    peers.push_back(peer);
    return &requests.emplace_back(MPI_REQUEST_NULL);
  }
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  std::vector<MPI_Status> statuses;
};

class MpiGroup : public Group {
 public:
  MpiGroup(MpiJob& job, MPI_Comm comm, std::string name, std::vector<int> world_ranks)
      : Group(std::move(name), rank_in(comm), std::move(world_ranks)), job_(job), comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~MpiGroup() override {
    if (job_.death().empty()) MPI_Comm_free(&comm_);  // MPI keeps it for sent messages; a dead group may have others under way
  }

  std::string death() override { return job_.death(); }

  using Group::set_machines;

 private:
  /// A process cannot leave a message half sent: the whole job ends, not this group alone.
  void do_abort(const std::string& reason) noexcept override { job_.abort(reason); }

  void do_barrier() override {
    Flight flight = begin("barrier");
    std::byte nothing{};
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      receive(flight, &nothing, 0, r);
      send(flight, &nothing, 0, r);
    }
    finish(flight, "barrier");
  }

  void do_broadcast(at::Tensor& tensor, int root) override {
    Flight flight = begin("broadcast");
    if (rank() == root) {
      for (int r = 0; r < size(); ++r)
        if (r != root) send(flight, tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes()), r);
    } else {
      receive(flight, tensor.mutable_data_ptr(), static_cast<int64_t>(tensor.nbytes()), root);
    }
    finish(flight, "broadcast");
  }

  void do_all_reduce(at::Tensor& tensor, ReduceOp op) override {
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
    Flight scatter = begin("all_reduce");
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      receive(scatter, theirs + r * mine.count() * width, mine.count() * width, r);
      const Slice slice = slice_of(tensor.numel(), r, size());
      send(scatter, data + slice.begin * width, slice.count() * width, r);
    }
    finish(scatter, "all_reduce");
    auto sources = blocks(theirs, mine.count() * width);
    sources[static_cast<size_t>(rank())] = data + mine.begin * width;
    void* const out[] = {data + mine.begin * width};
    reduce_ordered(sources, out, mine.count(), tensor.scalar_type(), op);
    Flight gather = begin("all_reduce");
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const Slice slice = slice_of(tensor.numel(), r, size());
      receive(gather, data + slice.begin * width, slice.count() * width, r);
      send(gather, data + mine.begin * width, mine.count() * width, r);
    }
    finish(gather, "all_reduce");
  }

  void do_all_gather(at::Tensor& out, const at::Tensor& in) override {
    const auto bytes = static_cast<int64_t>(in.nbytes());
    auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
    Flight flight = begin("all_gather");
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      receive(flight, to + r * bytes, bytes, r);
      send(flight, in.const_data_ptr(), bytes, r);
    }
    if (bytes > 0 && to + rank() * bytes != in.const_data_ptr()) std::memcpy(to + rank() * bytes, in.const_data_ptr(), in.nbytes());
    finish(flight, "all_gather");
  }

  void do_reduce_scatter(at::Tensor& out, const at::Tensor& in) override {
    const auto bytes = static_cast<int64_t>(out.nbytes());
    at::Tensor peers = at::empty({in.numel()}, in.options());
    auto* theirs = static_cast<std::byte*>(peers.mutable_data_ptr());
    const auto* from = static_cast<const std::byte*>(in.const_data_ptr());
    Flight flight = begin("reduce_scatter");
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      receive(flight, theirs + r * bytes, bytes, r);
      send(flight, from + r * bytes, bytes, r);
    }
    finish(flight, "reduce_scatter");
    auto sources = blocks(theirs, bytes);
    sources[static_cast<size_t>(rank())] = from + rank() * bytes;
    void* const result[] = {out.mutable_data_ptr()};
    reduce_ordered(sources, result, out.numel(), out.scalar_type(), ReduceOp::kSum);
  }

  void do_all_to_all_v(std::span<const std::byte> from, std::span<const int64_t> send_bytes, std::span<std::byte> to,
                       std::span<const int64_t> receive_bytes) override {
    Flight flight = begin("all_to_all_v");
    int64_t in = 0, out = 0, own_in = 0, own_out = 0;
    for (int r = 0; r < size(); ++r) {
      const int64_t sent = send_bytes[static_cast<size_t>(r)], received = receive_bytes[static_cast<size_t>(r)];
      if (r == rank()) {
        own_in = in, own_out = out;
      } else {
        // A peer that sends nothing sends no message, on either side; a disagreement shows as a truncation or a late peer.
        if (received > 0) receive(flight, to.data() + in, received, r);
        if (sent > 0) send(flight, from.data() + out, sent, r);
      }
      in += received, out += sent;
    }
    if (const int64_t own = send_bytes[static_cast<size_t>(rank())]; own > 0)
      std::memcpy(to.data() + own_in, from.data() + own_out, static_cast<size_t>(own));
    finish(flight, "all_to_all_v");
  }

  std::unique_ptr<Group> do_split(int color, const std::string& name) override {
    at::Tensor mine = at::empty({1}, at::kInt), all = at::empty({size()}, at::kInt);
    *mine.mutable_data_ptr<int>() = color;
    do_all_gather(all, mine);
    std::vector<int> members;
    for (int r = 0; r < size(); ++r)
      if (all.const_data_ptr<int>()[r] == color) members.push_back(r);
    // Everyone has just answered, so the blocking call below finds its peers at hand.
    MPI_Group whole, part;
    MPI_Comm comm;
    check_mpi(MPI_Comm_group(comm_, &whole), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(whole, static_cast<int>(members.size()), members.data(), &part), "MPI_Group_incl");
    {
      const MpiJob::Blocking blocking(job_, place("split"));
      check_mpi(MPI_Comm_create_group(comm_, part, 0, &comm), "MPI_Comm_create_group");
    }
    MPI_Group_free(&part);
    MPI_Group_free(&whole);
    std::vector<int> in_world;
    for (int r : members) in_world.push_back(world_rank(r));
    return std::make_unique<MpiGroup>(job_, comm, name, std::move(in_world));
  }
  void do_send(const at::Tensor& tensor, int to, int tag) override {
    throw_if_dead("send");
    SentMessage message{MessageBytes::of(tensor), {}, join_text(place("send"), " with ", ranks({to}))};
    const std::byte* from = message.bytes.data.get();
    each_piece(static_cast<int64_t>(tensor.nbytes()), [&](int64_t begin, int count) {
      MPI_Request* const request = &message.requests.emplace_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Isend(from + begin, count, MPI_BYTE, to, kFirstMessageTag + tag, comm_, request), "MPI_Isend");
    });
    job_.keep(std::move(message));
  }

  void do_receive(at::Tensor& tensor, int from, int tag) override {
    throw_if_dead("receive");
    auto* to = static_cast<std::byte*>(tensor.mutable_data_ptr());
    each_piece(static_cast<int64_t>(tensor.nbytes()), [&](int64_t begin, int count) {
      Flight flight;
      check_mpi(MPI_Irecv(to + begin, count, MPI_BYTE, from, kFirstMessageTag + tag, comm_, flight.start(from)), "MPI_Irecv");
      finish(flight, "receive");
      int arrived = 0;
      MPI_Get_count(flight.statuses.data(), MPI_BYTE, &arrived);
      if (arrived != count) fail(join_text(place("receive"), " with rank ", world_rank(from), ": ", kMisfit));
    });
  }
  bool do_arrived(int from, int tag) override {
    throw_if_dead("receive");
    int is_here = 0;
    check_mpi(MPI_Iprobe(from, kFirstMessageTag + tag, comm_, &is_here, MPI_STATUS_IGNORE), "MPI_Iprobe");
    return is_here != 0;
  }
  /// The pieces of a message, of which the last is the only one that is not full: so its receiver sees where it ends.
  template <class Take>
  static void each_piece(int64_t bytes, Take take) {
    for (int64_t begin = 0;; begin += kMaxMessage_bytes) {
      const int64_t count = std::min(bytes - begin, kMaxMessage_bytes);
      take(begin, static_cast<int>(count));
      if (count < kMaxMessage_bytes) return;
    }
  }

  Flight begin(const char* op) {
    throw_if_dead(op);
    // The number of the operation is the tag: ranks that lose step do not take each other's messages for their own.
    tag_ = (tag_ + 1) % kFirstMessageTag;
    return {};
  }

  void receive(Flight& flight, void* to, int64_t bytes, int peer) {
    each_message(bytes, [&](int64_t begin, int count) {
      check_mpi(MPI_Irecv(static_cast<std::byte*>(to) + begin, count, MPI_BYTE, peer, tag_, comm_, flight.start(peer)),
                "MPI_Irecv");
    });
  }
  void send(Flight& flight, const void* from, int64_t bytes, int peer) {
    each_message(bytes, [&](int64_t begin, int count) {
      check_mpi(MPI_Isend(static_cast<const std::byte*>(from) + begin, count, MPI_BYTE, peer, tag_, comm_, flight.start(peer)),
                "MPI_Isend");
    });
  }
  /// At least one message, so that an empty one still says that the peer is here.
  template <class Start>
  static void each_message(int64_t bytes, Start start) {
    for (int64_t begin = 0; begin == 0 || begin < bytes; begin += kMaxMessage_bytes)
      start(begin, static_cast<int>(std::min(bytes - begin, kMaxMessage_bytes)));
  }

  void finish(Flight& flight, const char* op) {
    const Deadline deadline = Deadline::after_s(job_.deadline_s), patience = Deadline::after_s(kStuck_s);
    bool is_stuck = false;
    flight.statuses.resize(flight.requests.size());
    for (int64_t round = 0;; ++round) {
      int done = 0;
      const int code = MPI_Testall(static_cast<int>(flight.requests.size()), flight.requests.data(), &done, flight.statuses.data());
      if (code != MPI_SUCCESS) {
        cancel(flight);
        fail(join_text(place(op), " with ", ranks(flight.peers), ": ", kMisfit));
      }
      if (done) return job_.count_stuck(is_stuck ? -1 : 0);
      if (round % 64 != 63) continue;
      if (!is_stuck && patience.passed()) is_stuck = true, job_.count_stuck(1);
      if (!job_.death().empty()) {
        cancel(flight);
        throw_if_dead(op);
      }
      if (deadline.passed()) late(flight, op);
      round < 4096 ? static_cast<void>(sched_yield()) : static_cast<void>(usleep(50));
    }
  }

  [[noreturn]] void late(Flight& flight, const char* op) {
    std::vector<int> missing;
    for (size_t i = 0; i < flight.requests.size(); ++i)
      if (flight.requests[i] != MPI_REQUEST_NULL) missing.push_back(world_rank(flight.peers[i]));
    cancel(flight);
    fail(join_text(place(op), ": ", job_.blame(missing)));
  }

  [[noreturn]] void fail(const std::string& reason) {
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
      throw PeerError(join_text(place(op), " ended: ", reason));
  }

  /// `rank 3: all_reduce in group 'tp'`, how an error of this rank begins.
  std::string place(const char* op) const { return join_text("rank ", world_rank(rank()), ": ", op, " in group '", name(), "'"); }
  /// `rank 1, rank 3`, each once.
  std::string ranks(std::vector<int> of) const {
    std::sort(of.begin(), of.end());
    of.erase(std::unique(of.begin(), of.end()), of.end());
    std::string all;
    for (int r : of) all += join_text(all.empty() ? "" : ", ", "rank ", world_rank(r));
    return all;
  }

  std::vector<const void*> blocks(const void* data, int64_t bytes) const {
    std::vector<const void*> all;
    for (int r = 0; r < size(); ++r) all.push_back(static_cast<const std::byte*>(data) + r * bytes);
    return all;
  }

  static int rank_in(MPI_Comm comm) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    return rank;
  }

  MpiJob& job_;  // outlives every group: both live inside run_mpi
  MPI_Comm comm_;
  int tag_ = 0;
};

}  // namespace

std::unique_ptr<Group> mpi_world(MpiJob& job) {
  MPI_Comm comm;
  check_mpi(MPI_Comm_dup(job.ranks(), &comm), "MPI_Comm_dup");
  std::vector<int> ranks(static_cast<size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto world = std::make_unique<MpiGroup>(job, comm, "world", std::move(ranks));
  world->set_machines(job.order().machine);
  return world;
}

}  // namespace tandem::comm
