// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/backend/wire/store_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/file/bytes.h"
#include "tandem/base/rng.h"
#include "tandem/queue/backend/wire/rows_message.h"

namespace tandem::queue::wire {
namespace {

constexpr double kReadPauseS = 0.05, kReadAgainS = 5, kFarS = 60, kProbeS = 0.25;
constexpr int64_t kLentBytes = 64 << 20, kSentBytes = 8 << 20;  // at most in one answer, in shared memory or not
constexpr int64_t kMostBreaks = 3;    // in one answer
constexpr size_t kLanes = 16;
constexpr int64_t kSecretBytes = 64;  // in front of the rows of a lane, so that they are aligned

}  // namespace

StoreServer::StoreServer(const Store& store, const std::string& address, const comm::ServerKeys& keys)
    : store_(store),
      endpoint_(comm::Endpoint::at(address, keys)),
      place_(endpoint_.address() + " " + keys.public_key),
      lanes_(kLanes),
      thread_([this] { serve(); }) {}

StoreServer::~StoreServer() {
  is_closing_ = true;
  thread_.join();
}

void StoreServer::serve() {
  while (!is_closing_) {
    try {
      std::optional<comm::Letter> letter = endpoint_.receive(kReadPauseS);
      if (!letter) continue;
      letter->bytes = answer(letter->bytes);
      bytes_sent_ += std::ssize(letter->bytes);
      endpoint_.send(*letter);
    } catch (const std::exception&) {  // no request, or more than there is memory for
    }
  }
}

std::vector<std::byte> StoreServer::answer(std::span<const std::byte> bytes) {
  const RowsRequest request = request_of(bytes);
  std::vector<std::byte> answer;
  ByteWriter out(answer);
  out.number(request.number);
  comm::SharedMemory* lane = nullptr;
  int64_t lent_bytes = 0;
  const auto room = [&](const RowsHead& head) {
    out.number(head.num_rows);
    out.number(std::ssize(head.lengths));
    out.raw(head.lengths.data(), head.lengths.size() * sizeof(int64_t));
    out.number(head.num_bytes);
    const auto num_bytes = static_cast<size_t>(head.num_bytes);
    if (request.secret != 0 && head.num_bytes >= kLeastLentBytes) {
      lent_bytes = head.num_bytes;
      lane = &lanes_.free_lane(kSecretBytes + lent_bytes);
      std::memcpy(lane->bytes().data(), &request.secret, sizeof request.secret);
      return lane->bytes().subspan(kSecretBytes, num_bytes);
    }
    answer.resize(answer.size() + num_bytes);
    return std::span(answer).last(num_bytes);
  };
  const bool fits = request.schema == store_.schema() && std::ssize(request.samples) <= store_.num_held();
  if (!fits || store_.read(request.samples, request.secret != 0 ? kLentBytes : kSentBytes, room) == 0) {
    out.number(0);
    return answer;
  }
  if (!lane) return answer;
  lane->lend(1);
  const comm::SharedHandle handle = lane->handle();
  bytes_lent_ += lent_bytes;
  out.raw(&handle, sizeof handle);
  return answer;
}

StoreReader::StoreReader(double deadline_s, int64_t most_row_bytes)
    : deadline_s_(deadline_s), most_bytes_(std::min(comm::kMaxMessageBytes, 2 * kSentBytes + most_row_bytes)) {}

// What a store lent, if it can be mapped here: the secret of the request is in it.
std::shared_ptr<comm::BorrowedMemory> StoreReader::Known::lane(const comm::SharedHandle& handle, int64_t least_bytes, int64_t secret) {
  const auto is_it = [&](const auto& memory) {
    return memory && std::ssize(memory->bytes()) >= least_bytes && std::memcmp(memory->bytes().data(), &secret, sizeof secret) == 0;
  };
  for (const auto& [serial, memory] : lanes)
    if (serial == handle.serial && is_it(memory)) return memory;
  std::erase_if(lanes, [](const auto& each) { return each.second.use_count() == 1; });  // most likely gone there, too
  std::shared_ptr<comm::BorrowedMemory> mapped = comm::BorrowedMemory::map(handle);
  if (!is_it(mapped)) return nullptr;
  return lanes.emplace_back(handle.serial, std::move(mapped)).second;
}

// From the answer to a request with this secret. Returns how many rows came: 0 if one is not there, -1 if it is to be asked again, without
// shared memory. Errors: PeerError for what is no answer.
int64_t StoreReader::take_rows(Known& store, comm::Letter letter, int64_t secret, std::span<const SampleId> samples, TensorCache& into) {
  const auto kept = std::make_shared<std::vector<std::byte>>(std::move(letter.bytes));
  const RowsAnswer answer = rows_answer_of(*kept, std::ssize(samples), secret != 0);
  if (answer.num_rows == 0) return 0;
  samples = samples.first(static_cast<size_t>(answer.num_rows));
  std::span<const std::byte> rows = answer.rows;
  std::shared_ptr<const void> memory = kept;
  if (answer.lent) {
    const std::shared_ptr<comm::BorrowedMemory> lane = store.lane(*answer.lent, kSecretBytes + answer.num_bytes, secret);
    if (!lane) {
      store.shares = false;
      return -1;
    }
    rows = lane->bytes().subspan(kSecretBytes, static_cast<size_t>(answer.num_bytes));
    memory = comm::until_given_back(lane);
  }
  if (!into.adopt(samples, answer.lengths, rows, std::move(memory)))
    throw PeerError("answer of a store: the rows do not fit their lengths");
  return answer.num_rows;
}

// The first of these samples. Returns how many; 0 for none, also at the deadline, and if the store is gone. Errors: PeerError for what
// is no answer.
int64_t StoreReader::read_some(const std::string& place, Known& store, std::span<const SampleId> samples, TensorCache& into,
                               const Deadline& deadline) {
  RowsRequest request{0, into.schema(), 0, {samples.begin(), samples.end()}};
  int64_t num_breaks = 0;
  while (!deadline.passed()) {
    if (request.number == 0 || (request.secret != 0 && !store.shares)) {
      request.number = ++num_requests_;
      request.secret = store.shares ? unseeded_number() | 1 : 0;
    }
    store.endpoint.send({{}, to_bytes(request)});
    Deadline probe = Deadline::after_s(kProbeS);
    for (const Deadline again = Deadline::after_s(store.shares ? kReadAgainS : kFarS); !again.passed() && !deadline.passed();) {
      std::optional<comm::Letter> letter = store.endpoint.receive(kReadPauseS);
      if (!letter) {
        if (store.endpoint.num_breaks() > 0) {  // with the connection an answer is gone
          if (++num_breaks == kMostBreaks)
            throw PeerError(join_text("the store breaks off its answers, or gives more than the ", most_bytes_, " bytes of one"));
          store.endpoint = endpoint_to(place);
          break;
        }
        if (!probe.passed()) continue;
        if (comm::is_refused(store.endpoint.address())) return 0;
        probe = Deadline::after_s(kReadAgainS);
        continue;
      }
      if (number_of_answer(letter->bytes) != request.number) continue;  // of a request before
      bytes_received_ += std::ssize(letter->bytes);
      const int64_t rows = take_rows(store, std::move(*letter), request.secret, samples, into);
      if (rows >= 0) return rows;
      break;
    }
  }
  return 0;
}

comm::Endpoint StoreReader::endpoint_to(const std::string& place) const {
  const size_t space = place.find(' ');
  return comm::Endpoint::to(place.substr(0, space), space == std::string::npos ? "" : place.substr(space + 1), most_bytes_);
}

bool StoreReader::read(const std::string& place, std::span<const SampleId> samples, TensorCache& into) {
  std::erase_if(stores_, [&](const auto& each) { return each.second.last_read < num_reads_ - kKeptReads; });
  ++num_reads_;
  fault_.clear();
  try {
    auto store = stores_.find(place);
    if (store == stores_.end()) {
      store = stores_.emplace(place, Known{endpoint_to(place), comm::stays_on_this_machine(place), 0, {}}).first;
    }
    store->second.last_read = num_reads_;
    const Deadline deadline = Deadline::after_s(store->second.shares ? deadline_s_ : std::max(deadline_s_, kFarS));  // for all of them
    while (!samples.empty()) {
      const int64_t rows = read_some(place, store->second, samples, into, deadline);
      if (rows == 0) {
        if (deadline.passed() || comm::is_refused(store->second.endpoint.address())) stores_.erase(store);
        return false;
      }
      samples = samples.subspan(static_cast<size_t>(rows));
    }
    return true;
  } catch (const PeerError& e) {
    fault_ = e.what();
  } catch (const UserError& e) {  // no place
    fault_ = e.what();
  }
  stores_.erase(place);
  return false;
}

}  // namespace tandem::queue::wire
