// SPDX-License-Identifier: Apache-2.0
#include "tandem/comm/backend/process/message_streams.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tandem/base/clock.h"
#include "tandem/comm/backend/process/transport.h"

namespace tandem::comm {
namespace {

constexpr int64_t kSmall_bytes = 64 << 10;
constexpr int64_t kTurn_bytes = 1 << 20;  // what is read or written of one peer before another's turn
constexpr int kSocketBuffer_bytes = 1 << 20;
constexpr int kRound_ms = 1000;

void mark_done(MessageStreams::Transfer& transfer) {
  transfer.is_done = true;
  MessageStreams::Operation* const operation = transfer.operation;
  if (operation && --operation->num_left == 0) operation->changed.notify_all();
}

void mark_misfit(MessageStreams::Transfer& transfer) {
  transfer.is_misfit = true;
  if (!transfer.operation) return;
  transfer.operation->is_misfit = true;
  transfer.operation->changed.notify_all();
}

}  // namespace

MessageStreams::MessageStreams(int rank, std::vector<int> sockets)
    : rank_(rank), peers_(sockets.size()) {
  for (size_t r = 0; r < sockets.size(); ++r) {
    peers_[r].rank = static_cast<int>(r);
    peers_[r].socket = sockets[r];
    if (sockets[r] >= 0) setsockopt(sockets[r], SOL_SOCKET, SO_SNDBUF, &kSocketBuffer_bytes, sizeof kSocketBuffer_bytes);
  }
  thread_ = std::thread([this] { loop(); });
}

MessageStreams::~MessageStreams() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_up_.call();
  thread_.join();
  for (Peer& p : peers_) close(p);
}

void MessageStreams::loop() {
  for (;;) {
    std::vector<pollfd> watched{{wake_up_.descriptor(), POLLIN, 0}};
    std::vector<int> ranks{rank_};
    {
      std::lock_guard lock(mutex_);
      if (ends_) return;
      for (const Peer& p : peers_) {
        if (p.socket < 0) continue;
        watched.push_back({p.socket, static_cast<short>(p.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
        ranks.push_back(p.rank);
      }
    }
    if (poll(watched.data(), watched.size(), kRound_ms) <= 0) continue;
    if (watched[0].revents != 0) wake_up_.heard();
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      std::lock_guard lock(mutex_);
      Peer& p = peer(ranks[i]);
      if ((watched[i].revents & POLLOUT) != 0 && p.socket >= 0) p.is_full = false, flush(p);
      if ((watched[i].revents & ~POLLOUT) != 0 && p.socket >= 0) read(p);
    }
  }
}

void MessageStreams::close(Peer& p) {
  if (p.socket >= 0) ::close(std::exchange(p.socket, -1));
  p.out.clear();
}

void MessageStreams::read(Peer& p) {
  std::array<std::byte, 4096> unwanted;
  for (int64_t turn = kTurn_bytes; turn > 0 && p.socket >= 0;) {
    const bool in_header = p.header_bytes < sizeof(Header);
    std::byte* to = p.to ? p.to : unwanted.data();
    int64_t room = p.to ? p.left : std::min<int64_t>(p.left, std::ssize(unwanted));
    if (in_header) {
      to = reinterpret_cast<std::byte*>(&p.header) + p.header_bytes;
      room = static_cast<int64_t>(sizeof(Header) - p.header_bytes);
    }
    const ssize_t got = ::recv(p.socket, to, static_cast<size_t>(std::min(room, kTurn_bytes)), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return close(p);
    turn -= got;
    if (in_header) {
      p.header_bytes += static_cast<size_t>(got);
      if (p.header_bytes < sizeof(Header)) continue;
      begin_frame(p);
    } else {
      p.left -= got;
      if (p.to) p.to += got;
    }
    if (p.left == 0) end_frame(p);
  }
}

void MessageStreams::begin_frame(Peer& p) {
  const Header& h = p.header;
  const bool has_bytes = h.kind == Kind::kSmall || h.kind == Kind::kData || h.kind == Kind::kNotice;
  p.left = has_bytes ? h.bytes : 0;
  if (h.kind == Kind::kSmall) p.receiving = take_asked({h.channel, p.rank, h.tag});
  if (h.kind == Kind::kData) {
    const auto found = accepted_.find({p.rank, h.id});
    if (found == accepted_.end()) return;  // given up
    p.receiving = std::move(found->second);
    accepted_.erase(found);
  }
  if (p.receiving) {
    p.to = p.receiving->to;
    if (p.receiving->bytes == h.bytes) return;
    mark_misfit(*p.receiving);
    p.receiving = nullptr, p.to = nullptr;
  } else if (has_bytes) {
    p.buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(h.bytes));
    p.to = p.buffer.get();
  }
}

void MessageStreams::end_frame(Peer& p) {
  const Header h = p.header;
  const std::shared_ptr<Transfer> received = std::exchange(p.receiving, nullptr);
  std::unique_ptr<std::byte[]> buffer = std::move(p.buffer);
  p.header_bytes = 0, p.to = nullptr;
  if (received) return mark_done(*received);
  if (h.kind == Kind::kOffer) return deliver({h.channel, p.rank, h.tag}, {nullptr, h.bytes, h.id});
  if (h.kind == Kind::kAccept) {
    const auto found = offered_.find(h.id);
    if (found == offered_.end()) return;
    const std::shared_ptr<Transfer> transfer = std::move(found->second);
    offered_.erase(found);
    return enqueue(p.rank, {Kind::kData, 0, 0, transfer->bytes, h.id}, transfer);
  }
  if (!buffer) return;
  if (h.kind == Kind::kSmall) return deliver({h.channel, p.rank, h.tag}, {std::move(buffer), h.bytes, 0});
  if (h.kind == Kind::kNotice && notice_.empty()) notice_.assign(reinterpret_cast<const char*>(buffer.get()), static_cast<size_t>(h.bytes));
}

void MessageStreams::deliver(const Lane& lane, Arrived arrived) {
  if (const std::shared_ptr<Transfer> asked = take_asked(lane)) return match(std::move(arrived), asked);
  queues_[lane].arrived.push_back(std::move(arrived));
}

std::shared_ptr<MessageStreams::Transfer> MessageStreams::take_asked(const Lane& lane) {
  const auto found = queues_.find(lane);
  if (found == queues_.end() || found->second.asked.empty()) return nullptr;
  std::shared_ptr<Transfer> first = std::move(found->second.asked.front());
  found->second.asked.pop_front();
  if (found->second.asked.empty()) queues_.erase(found);  // where one is asked for, none has arrived
  return first;
}

void MessageStreams::match(Arrived arrived, const std::shared_ptr<Transfer>& transfer) {
  if (arrived.bytes != transfer->bytes) return mark_misfit(*transfer);
  if (!arrived.data) {
    accepted_[{transfer->lane.peer, arrived.offer}] = transfer;
    return enqueue(transfer->lane.peer, {Kind::kAccept, 0, 0, 0, arrived.offer}, nullptr);
  }
  if (arrived.bytes > 0) std::memcpy(transfer->to, arrived.data.get(), static_cast<size_t>(arrived.bytes));
  mark_done(*transfer);
}

void MessageStreams::enqueue(int rank, const Header& header, std::shared_ptr<Transfer> transfer) {
  Peer& p = peer(rank);
  if (p.socket < 0) return;
  p.out.push_back({header, std::move(transfer)});
  if (!p.is_full) flush(p);
}

void MessageStreams::flush(Peer& p) {
  for (int64_t turn = kTurn_bytes; !p.out.empty();) {
    Outgoing& o = p.out.front();
    constexpr auto kHeader = static_cast<int64_t>(sizeof(Header));
    const int64_t bytes = o.transfer ? o.transfer->bytes : 0;
    std::array<iovec, 2> parts{};
    size_t count = 0;
    if (o.num_written < kHeader)
      parts[count++] = {reinterpret_cast<std::byte*>(&o.header) + o.num_written, static_cast<size_t>(kHeader - o.num_written)};
    const int64_t sent = std::max<int64_t>(0, o.num_written - kHeader);
    if (bytes > sent)
      parts[count++] = {const_cast<std::byte*>(o.transfer->from) + sent, static_cast<size_t>(std::min(bytes - sent, kTurn_bytes))};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t written = turn > 0 ? ::sendmsg(p.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
    if (written < 0 && turn > 0 && errno == EINTR) continue;
    if (written < 0) {
      if (turn > 0 && errno != EAGAIN) return close(p);
      p.is_full = true;
      return wake_up_.call();
    }
    turn -= written;
    o.num_written += written;
    if (o.num_written < kHeader + bytes) continue;
    if (o.transfer) mark_done(*o.transfer);
    p.out.pop_front();
  }
}

void MessageStreams::start(std::shared_ptr<Transfer> transfer) {
  const Lane& lane = transfer->lane;
  if (lane.peer == rank_) {
    Arrived arrived{std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(transfer->bytes)), transfer->bytes, 0};
    if (transfer->bytes > 0) std::memcpy(arrived.data.get(), transfer->from, static_cast<size_t>(transfer->bytes));
    deliver(lane, std::move(arrived));
    return mark_done(*transfer);
  }
  Header header{Kind::kSmall, lane.tag, lane.channel, transfer->bytes, ++last_id_};
  if (transfer->bytes <= kSmall_bytes) return enqueue(lane.peer, header, std::move(transfer));
  header.kind = Kind::kOffer;
  const int to = lane.peer;
  offered_[header.id] = std::move(transfer);
  enqueue(to, header, nullptr);
}

void MessageStreams::send(Operation& operation, const Lane& lane, const void* from, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto transfer = std::make_shared<Transfer>(Transfer{lane, static_cast<const std::byte*>(from), nullptr, bytes, &operation});
  operation.transfers.push_back(transfer);
  ++operation.num_left;
  start(transfer);
}

void MessageStreams::send_buffered(const Lane& lane, MessageBytes bytes, std::string name) {
  std::lock_guard lock(mutex_);
  const auto transfer = std::make_shared<Transfer>(Transfer{lane, bytes.data.get(), nullptr, static_cast<int64_t>(bytes.size)});
  transfer->kept = std::move(bytes);
  transfer->name = std::move(name);
  start(transfer);
}

void MessageStreams::receive(Operation& operation, const Lane& lane, void* to, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto transfer = std::make_shared<Transfer>(Transfer{lane, nullptr, static_cast<std::byte*>(to), bytes, &operation});
  operation.transfers.push_back(transfer);
  ++operation.num_left;
  const auto found = queues_.find(lane);
  if (found == queues_.end() || found->second.arrived.empty()) {
    queues_[lane].asked.push_back(transfer);
    return;
  }
  Arrived first = std::move(found->second.arrived.front());
  found->second.arrived.pop_front();
  if (found->second.arrived.empty()) queues_.erase(found);  // where one has arrived, none is asked for
  match(std::move(first), transfer);
}

bool MessageStreams::arrived(const Lane& lane) {
  std::lock_guard lock(mutex_);
  const auto found = queues_.find(lane);
  return found != queues_.end() && !found->second.arrived.empty();
}

void MessageStreams::wait(Operation& operation, double seconds) {
  std::unique_lock lock(mutex_);
  operation.changed.wait_for(lock, duration_of_s(seconds), [&] { return operation.num_left == 0 || operation.is_misfit; });
}

int MessageStreams::num_left(Operation& operation) {
  std::lock_guard lock(mutex_);
  return operation.is_misfit ? -1 : operation.num_left;
}

std::vector<int> MessageStreams::peers_left(Operation& operation) {
  std::lock_guard lock(mutex_);
  std::vector<int> peers;
  for (const auto& transfer : operation.transfers)
    if (operation.is_misfit ? transfer->is_misfit : !transfer->is_done) peers.push_back(transfer->lane.peer);
  return peers;
}

void MessageStreams::cancel(Operation& operation) noexcept {
  std::lock_guard lock(mutex_);
  for (const auto& transfer : operation.transfers) {
    transfer->operation = nullptr;
    if (!transfer->is_done) forget(*transfer);
  }
  operation.transfers.clear();
  operation.num_left = 0;
}

/// Nothing points to its memory any more; where a part of it is sent, the rest is sent from a copy, as the peer counts on it.
void MessageStreams::forget(Transfer& transfer) {
  const auto is_it = [&](const std::shared_ptr<Transfer>& other) { return other.get() == &transfer; };
  if (const auto found = queues_.find(transfer.lane); found != queues_.end()) {
    std::erase_if(found->second.asked, is_it);
    if (found->second.asked.empty() && found->second.arrived.empty()) queues_.erase(found);
  }
  std::erase_if(offered_, [&](const auto& entry) { return is_it(entry.second); });
  std::erase_if(accepted_, [&](const auto& entry) { return is_it(entry.second); });
  if (transfer.lane.peer == rank_) return;
  Peer& p = peer(transfer.lane.peer);
  if (is_it(p.receiving)) p.receiving = nullptr, p.to = nullptr;
  std::erase_if(p.out, [&](const Outgoing& o) { return is_it(o.transfer) && o.num_written == 0; });
  for (const Outgoing& o : p.out) {
    if (!is_it(o.transfer) || transfer.bytes == 0) continue;
    transfer.kept = {std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(transfer.bytes)), static_cast<size_t>(transfer.bytes)};
    std::memcpy(transfer.kept.data.get(), transfer.from, transfer.kept.size);
    transfer.from = transfer.kept.data.get();
  }
}

void MessageStreams::tell(const std::string& text) {
  std::lock_guard lock(mutex_);
  for (const Peer& p : peers_) {
    if (p.socket < 0) continue;
    const auto transfer = std::make_shared<Transfer>(Transfer{{0, p.rank, 0}, nullptr, nullptr, std::ssize(text)});
    transfer->kept = {std::make_unique_for_overwrite<std::byte[]>(text.size()), text.size()};
    std::memcpy(transfer->kept.data.get(), text.data(), text.size());
    transfer->from = transfer->kept.data.get();
    enqueue(p.rank, {Kind::kNotice, 0, 0, transfer->bytes, 0}, transfer);
  }
}

std::string MessageStreams::notice() {
  std::lock_guard lock(mutex_);
  return notice_;
}

std::vector<std::string> MessageStreams::unaccepted() {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [id, transfer] : offered_)
    if (!transfer->name.empty()) names.push_back(transfer->name);
  return names;
}

std::vector<MessageStreams::Lane> MessageStreams::unasked() {
  std::lock_guard lock(mutex_);
  std::vector<Lane> lanes;
  for (const auto& [lane, queue] : queues_)
    if (lane.tag >= kFirstMessageTag && std::ranges::any_of(queue.arrived, [](const Arrived& a) { return a.data != nullptr; }))
      lanes.push_back(lane);
  return lanes;
}

}  // namespace tandem::comm
