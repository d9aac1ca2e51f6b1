// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/mpi_transport.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"
#include "tandem/comm/launch.h"

namespace tandem::comm {
namespace {

constexpr int kNoticeTag = 1;
constexpr double kMeet_s = 10;
constexpr int64_t kMaxMessage_bytes = int64_t{1} << 30;  // MPI counts are ints

bool delivered(MpiTransport::Sent& message) {
  int done = 0;
  // An error ends the requests, too: whoever waits for the message says what became of the peer.
  const int code = MPI_Testall(static_cast<int>(message.requests.size()), message.requests.data(), &done, MPI_STATUSES_IGNORE);
  return done || code != MPI_SUCCESS;
}

/// The pieces of a message, of which the last is the only one that is not full: so its receiver sees where it ends.
template <class Take>
void each_piece(int64_t bytes, Take take) {
  for (int64_t begin = 0;; begin += kMaxMessage_bytes) {
    const int64_t count = std::min(bytes - begin, kMaxMessage_bytes);
    take(begin, static_cast<int>(count));
    if (count < kMaxMessage_bytes) return;
  }
}

class MpiRequests final : public Requests {
 public:
  explicit MpiRequests(MPI_Comm comm) : comm_(comm) {}

  void send(int peer, int tag, const void* from, int64_t bytes) override {
    each_piece(bytes, [&](int64_t begin, int count) {
      check_mpi(MPI_Isend(static_cast<const std::byte*>(from) + begin, count, MPI_BYTE, peer, tag, comm_, add(peer, kAny)), "MPI_Isend");
    });
  }
  void receive(int peer, int tag, void* to, int64_t bytes) override {
    each_piece(bytes, [&](int64_t begin, int count) {
      check_mpi(MPI_Irecv(static_cast<std::byte*>(to) + begin, count, MPI_BYTE, peer, tag, comm_, add(peer, count)), "MPI_Irecv");
    });
  }
  State test() override {
    const size_t size = requests_.size();
    done_.resize(size), statuses_.resize(size);
    int num_done = 0;
    if (MPI_Testsome(static_cast<int>(size), requests_.data(), &num_done, done_.data(), statuses_.data()) != MPI_SUCCESS)
      return State::kMisfit;
    if (num_done == MPI_UNDEFINED) return State::kDone;  // none is left
    for (size_t i = 0; i < static_cast<size_t>(num_done); ++i) {
      const int expected = counts_[static_cast<size_t>(done_[i])];
      int arrived = 0;
      if (expected != kAny) MPI_Get_count(&statuses_[i], MPI_BYTE, &arrived);
      if (expected != kAny && arrived != expected) {
        misfit_ = peers_[static_cast<size_t>(done_[i])];
        return State::kMisfit;
      }
      ++num_ended_;
    }
    return num_ended_ == size ? State::kDone : State::kUnderWay;
  }
  bool pause(int64_t round) override {
    if (round % 64 != 63) return false;
    round < 4096 ? static_cast<void>(sched_yield()) : static_cast<void>(usleep(50));
    return true;
  }
  std::vector<int> unfinished() override {
    std::vector<int> peers;
    if (misfit_ >= 0) peers.push_back(misfit_);
    for (size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL) peers.push_back(peers_[i]);
    return peers.empty() ? peers_ : peers;
  }
  /// The caller's memory may go, so no receive into it may stay open.
  void cancel() noexcept override {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }

 private:
  static constexpr int kAny = -1;
  MPI_Request* add(int peer, int count) {
    peers_.push_back(peer);
    counts_.push_back(count);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }

  const MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_, counts_, done_;  // counts: bytes that a receive expects
  std::vector<MPI_Status> statuses_;
  size_t num_ended_ = 0;
  int misfit_ = -1;
};

class MpiChannel final : public Channel {
 public:
  MpiChannel(MpiTransport& transport, MPI_Comm comm) : transport_(transport), comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~MpiChannel() override {
    if (!is_abandoned_ && !transport_.is_closed()) MPI_Comm_free(&comm_);  // MPI keeps it for sent messages
  }
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  std::unique_ptr<Requests> begin() override { return std::make_unique<MpiRequests>(comm_); }

  void send(int peer, int tag, MessageBytes bytes, const std::string& name) override {
    MpiTransport::Sent message{std::move(bytes), {}, name};
    const std::byte* from = message.bytes.data.get();
    each_piece(static_cast<int64_t>(message.bytes.size), [&](int64_t begin, int count) {
      MPI_Request* const request = &message.requests.emplace_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Isend(from + begin, count, MPI_BYTE, peer, tag, comm_, request), "MPI_Isend");
    });
    transport_.keep(std::move(message));
  }

  bool arrived(int peer, int tag) override {
    int is_here = 0;
    check_mpi(MPI_Iprobe(peer, tag, comm_, &is_here, MPI_STATUS_IGNORE), "MPI_Iprobe");
    return is_here != 0;
  }

  std::unique_ptr<Channel> split(const std::vector<int>& members, int, const std::string&) override {
    MPI_Group whole, part;
    MPI_Comm comm;
    check_mpi(MPI_Comm_group(comm_, &whole), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(whole, static_cast<int>(members.size()), members.data(), &part), "MPI_Group_incl");
    check_mpi(MPI_Comm_create_group(comm_, part, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&part);
    MPI_Group_free(&whole);
    return std::make_unique<MpiChannel>(transport_, comm);
  }

  void abandon() noexcept override { is_abandoned_ = true; }

 private:
  MpiTransport& transport_;
  MPI_Comm comm_;
  bool is_abandoned_ = false;
};

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw PeerError(join_text(call, ": ", text.data()));
}

MpiTransport::MpiTransport() {
  order_ranks();
  MPI_Comm_set_errhandler(notices_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(notices_, &rank_);
  MPI_Comm_size(notices_, &size_);
  MPI_Irecv(heard_.data(), static_cast<int>(heard_.size()), MPI_CHAR, MPI_ANY_SOURCE, kNoticeTag, notices_, &notice_);
  if (size_ == 1) return;
  if (order_.num_machines() > 1) log_machines();
  mover_ = std::thread([this] { move_messages(); });
}

MpiTransport::~MpiTransport() { stop_moving(); }

void MpiTransport::order_ranks() {
  int launched = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &launched);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm machine;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, launched, MPI_INFO_NULL, &machine), "MPI_Comm_split_type");
  int first = launched;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, machine), "MPI_Bcast");
  MPI_Comm_free(&machine);
  std::vector<int> firsts(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  order_ = order_by_machine(firsts);
  const auto place = std::ranges::find(order_.launched, launched) - order_.launched.begin();
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, static_cast<int>(place), &notices_), "MPI_Comm_split");
}

void MpiTransport::log_machines() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> mine{};
  int length = 0;
  MPI_Get_processor_name(mine.data(), &length);
  std::vector<char> all(mine.size() * static_cast<size_t>(size_));
  const int each = static_cast<int>(mine.size());
  check_mpi(MPI_Gather(mine.data(), each, MPI_CHAR, all.data(), each, MPI_CHAR, 0, notices_), "MPI_Gather");
  if (rank_ != 0) return;
  std::vector<std::string> names;
  for (size_t r = 0; r < static_cast<size_t>(size_); ++r) names.emplace_back(all.data() + r * mine.size());
  log::info(to_text(order_, names));
}

void MpiTransport::move_messages() {
  constexpr useconds_t kPause_us = 20;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (sent_.empty()) {
      changed_.wait(lock);
      continue;
    }
    sent_.remove_if(delivered);
    lock.unlock();
    usleep(kPause_us);
    lock.lock();
  }
}

void MpiTransport::stop_moving() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (mover_.joinable()) mover_.join();
}

std::unique_ptr<Channel> MpiTransport::world() {
  MPI_Comm comm;
  check_mpi(MPI_Comm_dup(notices_, &comm), "MPI_Comm_dup");
  return std::make_unique<MpiChannel>(*this, comm);
}

std::vector<Link> MpiTransport::take_links() {
  std::array<char, 4096> invitation{};
  std::optional<Listener> listener;
  if (rank_ == 0) {
    // Another machine's loopback is not this one.
    std::vector<Address> offered = chosen(own_addresses(), interface_choice(), kInterfaceVariable);
    if (order_.num_machines() > 1) std::erase_if(offered, [](const Address& address) { return address.is_loopback; });
    try {
      if (offered.empty()) throw PeerError("rank 0: heartbeat: this machine has no address that others can reach");
      listener.emplace(offered);
      listener->invitation().copy(invitation.data(), invitation.size() - 1);
    } catch (const PeerError& e) {
      log::warning(e.what(), ": a rank that dies shows at the deadline only");
    }
  }
  check_mpi(MPI_Bcast(invitation.data(), static_cast<int>(invitation.size()), MPI_CHAR, 0, notices_), "MPI_Bcast");
  if (!invitation[0]) return {};
  std::vector<Link> links(static_cast<size_t>(size_));
  if (listener) links = listener->accept_all(size_, kMeet_s);
  else links[0] = accept_invitation(invitation.data(), rank_, kMeet_s);
  if (rank_ != 0 && !links[0].is_open())
    log::warning("rank ", rank_, ": no TCP connection to rank 0: if it dies, that shows at the deadline only");
  return links;
}

void MpiTransport::tell(const std::string& reason) noexcept {
  std::lock_guard lock(mutex_);
  // Kept until the process ends: a peer may take it late.
  std::strncpy(told_.data(), reason.c_str(), told_.size() - 1);
  for (int r = 0; r < size_; ++r) {
    MPI_Request request;
    if (r != rank_ && MPI_Isend(told_.data(), static_cast<int>(told_.size()), MPI_CHAR, r, kNoticeTag, notices_, &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

std::string MpiTransport::heard() {
  std::lock_guard lock(mutex_);
  sent_.remove_if(delivered);
  int arrived = 0;
  if (notice_ != MPI_REQUEST_NULL && MPI_Test(&notice_, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived) reason_ = heard_.data();
  return reason_;
}

void MpiTransport::keep(Sent message) {
  if (delivered(message)) return;
  {
    std::lock_guard lock(mutex_);
    sent_.push_back(std::move(message));
  }
  changed_.notify_all();
}

std::vector<std::string> MpiTransport::untaken() {
  std::lock_guard lock(mutex_);
  sent_.remove_if(delivered);
  std::vector<std::string> names;
  for (const Sent& message : sent_) names.push_back(message.name);
  return names;
}

void MpiTransport::close() {
  stop_moving();
  if (notice_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&notice_);
    MPI_Wait(&notice_, MPI_STATUS_IGNORE);
  }
  is_closed_ = true;
  MPI_Finalize();
}

void MpiTransport::end_others() noexcept {
  usleep(500000);  // they leave with an exit code of their own
  MPI_Abort(MPI_COMM_WORLD, 3);
}

void MpiTransport::end_process() noexcept {
  MPI_Abort(MPI_COMM_WORLD, 3);
  std::terminate();  // where MPI comes back
}

}  // namespace tandem::comm
