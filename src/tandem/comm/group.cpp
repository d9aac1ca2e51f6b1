// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/reduce.h"

namespace tandem::comm {
namespace {

at::Tensor host_room(const at::Tensor& like) { return at::empty(like.sizes(), like.scalar_type()); }

/// By way of the CPU: what `operation` leaves in `host` goes into `tensor`.
template <class Operation>
void by_host(at::Tensor& tensor, at::Tensor host, const Operation& operation) {
  operation(host);
  tensor.copy_(host);
}

/// What all ranks bring, on the CPU as `in` is, by way of the group's device.
at::Tensor gathered(Group& group, const at::Tensor& in) {
  at::Tensor out = at::empty({group.size() * in.numel()}, in.options().device(group.device()));
  group.all_gather(out, in.to(group.device()));
  return out.cpu();
}

thread_local double waited_s = 0;

// Counts the time of a call, unless the group's ranks work as one.
struct Waiting {
  const bool counts;
  const double begin_s = now_s();
  explicit Waiting(bool is_one_worker) : counts(!is_one_worker) {}
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    if (counts) waited_s += now_s() - begin_s;
  }
};

int64_t sum(std::span<const int64_t> values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

}  // namespace

Group::Group(std::string name, int rank, std::vector<int> world_ranks, at::Device device)
    : name_(std::move(name)), rank_(rank), world_ranks_(std::move(world_ranks)), device_(device) {}

void Group::barrier() {
  const Waiting waiting(is_one_worker_);
  do_barrier();
}

void Group::broadcast(at::Tensor& tensor, int root) {
  Group* const way = way_of(tensor);
  if (!way) {
    at::Tensor host = tensor.cpu();
    broadcast(host, root);
    if (rank_ != root) tensor.copy_(host);
    return;
  }
  check_movable(tensor, way->device_, "broadcast");
  TANDEM_CHECK(root >= 0 && root < size(), "root ", root);
  const Waiting waiting(is_one_worker_);
  way->do_broadcast(tensor, root);
}

void Group::all_reduce(at::Tensor& tensor, ReduceOp op) {
  Group* const way = way_of(tensor);
  if (!way) return by_host(tensor, tensor.cpu(), [&](at::Tensor& host) { all_reduce(host, op); });
  check_movable(tensor, way->device_, "all_reduce");
  const Waiting waiting(is_one_worker_);
  way->do_all_reduce(tensor, op);
}

void Group::all_gather(at::Tensor& out, const at::Tensor& in) {
  Group* const way = way_of(in);
  if (!way) return by_host(out, host_room(out), [&](at::Tensor& host) { all_gather(host, in.cpu()); });
  way->check_blocks(out, in, "all_gather");
  const Waiting waiting(is_one_worker_);
  way->do_all_gather(out, in);
}

void Group::reduce_scatter(at::Tensor& out, const at::Tensor& in) {
  Group* const way = way_of(in);
  if (!way) return by_host(out, host_room(out), [&](at::Tensor& host) { reduce_scatter(host, in.cpu()); });
  way->check_blocks(in, out, "reduce_scatter");
  const Waiting waiting(is_one_worker_);
  way->do_reduce_scatter(out, in);
}

std::unique_ptr<Work> Group::do_begin_reduce_scatter(at::Tensor& out, const at::Tensor& in) {
  do_reduce_scatter(out, in);
  return nullptr;
}

std::unique_ptr<Work> Group::begin_reduce_scatter(at::Tensor& out, const at::Tensor& in) {
  Group* const way = way_of(in);
  if (!way) {
    reduce_scatter(out, in);
    return nullptr;
  }
  way->check_blocks(in, out, "reduce_scatter");
  const Waiting waiting(is_one_worker_);
  return way->do_begin_reduce_scatter(out, in);
}

void Group::exchange(Group& way, std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                     std::span<const int64_t> receive_bytes) {
  TANDEM_CHECK(std::ssize(send_bytes) == size() && std::ssize(receive_bytes) == size(), "all_to_all_v needs a size for each rank");
  TANDEM_CHECK(sum(send_bytes) <= std::ssize(send), "send buffer too small");
  TANDEM_CHECK(sum(receive_bytes) <= std::ssize(receive), "receive buffer too small");
  const Waiting waiting(is_one_worker_);
  way.do_all_to_all_v(send, send_bytes, receive, receive_bytes);
}

void Group::all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                         std::span<const int64_t> receive_bytes) {
  exchange(*this, send, send_bytes, receive, receive_bytes);
}

void Group::all_to_all_v(const at::Tensor& send, std::span<const int64_t> send_bytes, at::Tensor& receive,
                         std::span<const int64_t> receive_bytes) {
  Group* const way = way_of(send);
  if (!way)
    return by_host(receive, host_room(receive), [&](at::Tensor& host) { all_to_all_v(send.cpu(), send_bytes, host, receive_bytes); });
  check_movable(send, way->device_, "all_to_all_v");
  check_movable(receive, way->device_, "all_to_all_v");
  exchange(*way, {static_cast<const std::byte*>(send.const_data_ptr()), send.nbytes()}, send_bytes,
           {static_cast<std::byte*>(receive.mutable_data_ptr()), receive.nbytes()}, receive_bytes);
}

void Group::send(const at::Tensor& tensor, int to, int tag) {
  Group* const way = way_of(tensor);
  if (!way) return send(tensor.cpu(), to, tag);
  way->check_message(tensor, to, tag);
  way->do_send(tensor, to, tag);
}

void Group::receive(at::Tensor& tensor, int from, int tag) {
  Group* const way = way_of(tensor);
  if (!way) return by_host(tensor, host_room(tensor), [&](at::Tensor& host) { receive(host, from, tag); });
  way->check_message(tensor, from, tag);
  const Waiting waiting(is_one_worker_);
  way->do_receive(tensor, from, tag);
}

bool Group::arrived(int from, int tag) {
  check_peer(from, tag);
  return do_arrived(from, tag);
}

std::unique_ptr<Group> Group::split(int color, const std::string& name) {
  std::unique_ptr<Group> part = do_split(color, name);
  part->machines_ = machines_;
  if (carrier_) part->carrier_ = carrier_->do_split(color, name);
  return part;
}

void Group::abort(const std::string& reason) noexcept {
  do_abort(reason);
  if (carrier_) carrier_->abort(reason);
}

void Group::carry_by(std::unique_ptr<Group> carrier) {
  const bool fits = !carrier || (carrier->world_ranks_ == world_ranks_ && carrier->rank_ == rank_ && carrier->device_ != device_);
  TANDEM_CHECK(fits, "group ", name_, " is carried by one of other ranks, or of its own device");
  carrier_ = std::move(carrier);
}

Group* Group::way_of(const at::Tensor& tensor) {
  if (carrier_ && tensor.device() == carrier_->device_) return carrier_.get();
  return device_.is_cpu() && !tensor.is_cpu() ? nullptr : this;
}

std::string Group::place(const char* op) const {
  return join_text("rank ", world_rank(rank_), ": ", op, " in group '", name_, "'");
}

Group::Members Group::members_of(int color) {
  at::Tensor mine = at::empty({1}, at::kInt), all = at::empty({size()}, at::device(device_).dtype(at::kInt));
  *mine.mutable_data_ptr<int>() = color;
  do_all_gather(all, mine.to(device_));
  const at::Tensor colors = all.cpu();
  Members members;
  for (int r = 0; r < size(); ++r) {
    if (colors.const_data_ptr<int>()[r] != color) continue;
    if (r == rank_) members.rank = static_cast<int>(members.ranks.size());
    members.ranks.push_back(r);
    members.world_ranks.push_back(world_rank(r));
  }
  return members;
}

void Group::set_machines(std::vector<int> by_world_rank) {
  TANDEM_CHECK(std::ssize(by_world_rank) == size(), by_world_rank.size(), " machines for ", size(), " ranks");
  machines_ = std::make_shared<const std::vector<int>>(std::move(by_world_rank));
}

void Group::check_blocks(const at::Tensor& whole, const at::Tensor& part, const char* op) const {
  check_movable(whole, device_, op);
  check_movable(part, device_, op);
  TANDEM_CHECK(whole.numel() == size() * part.numel() && whole.scalar_type() == part.scalar_type(), op, ": ", whole.numel(), " and ",
               part.numel(), " elements in a group of ", size());
}

void Group::check_message(const at::Tensor& tensor, int peer, int tag) const {
  check_movable(tensor, device_, "send and receive");
  check_peer(peer, tag);
}

void Group::check_peer(int peer, int tag) const {
  TANDEM_CHECK(peer >= 0 && peer < size(), "no rank ", peer, " in group ", name_);
  TANDEM_CHECK(tag >= 0 && tag <= kMaxTag, "tag ", tag);
}

double take_waited_s() { return std::exchange(waited_s, 0); }

double waited_s_so_far() { return waited_s; }
void count_waited(double seconds) { waited_s += seconds; }

std::vector<std::vector<std::byte>> all_gather_bytes(Group& group, std::span<const std::byte> mine) {
  const int size = group.size();
  at::Tensor size_1 = at::empty({1}, at::kLong);
  *size_1.mutable_data_ptr<int64_t>() = static_cast<int64_t>(mine.size());
  const at::Tensor sizes_R = gathered(group, size_1);
  const int64_t* sizes = sizes_R.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(sizes, sizes + size);

  // Padded to the longest, so that one all_gather does; the strings of control traffic are short and alike.
  at::Tensor in = at::zeros({longest}, at::kByte);
  if (!mine.empty()) std::memcpy(in.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor out = gathered(group, in);

  std::vector<std::vector<std::byte>> all(static_cast<size_t>(size));
  const auto* bytes = static_cast<const std::byte*>(out.const_data_ptr());
  for (int r = 0; r < size; ++r) all[static_cast<size_t>(r)].assign(bytes + r * longest, bytes + r * longest + sizes[r]);
  return all;
}

int ranks_per_machine(const Group& group) {
  int common = 0;
  for (int begin = 0, end = 0; begin < group.size(); begin = end) {
    while (end < group.size() && group.machine(end) == group.machine(begin)) ++end;
    common = std::gcd(common, end - begin);
  }
  return common;
}

}  // namespace tandem::comm
