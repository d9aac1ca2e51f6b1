// SPDX-License-Identifier: Apache-2.0
// A request: magic, its number, the schema, a secret or 0, ids. The answer: its number; how many of the first rows it has, 0 if one is not
// here; their lengths; how many bytes they have; then they, or where they lie in shared memory, behind the secret. The reader asks for the
// rest.
#include "tandem/queue/backend/wire/store_server.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "tandem/data/bytes.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue::wire {
namespace {

constexpr int64_t kReadMagic = 0x3264616552516454;  // "TdQRead2"
constexpr double kReadPauseS = 0.05, kReadAgainS = 5, kProbeS = 0.25;
constexpr int64_t kPartBytes = kMaxMessageBytes / 4;
constexpr int64_t kLeastLentBytes = 64 << 10;  // fewer are as quick in a message
constexpr size_t kLanes = 16;
constexpr int64_t kSecretBytes = 64;  // in front of the rows of a lane, so that they are aligned

struct Request {
  int64_t number = 0, schema = 0;
  int64_t secret = 0;  // 0: the reader maps no memory
  std::vector<SampleId> samples;
};

std::vector<std::byte> to_bytes(const Request& request) {
  std::vector<std::byte> bytes;
  data::ByteWriter out(bytes);
  for (const int64_t each : {kReadMagic, request.number, request.schema, request.secret, std::ssize(request.samples)}) out.number(each);
  out.raw(request.samples.data(), request.samples.size() * sizeof(SampleId));
  return bytes;
}

Request request_of(std::span<const std::byte> bytes) {
  data::ByteReader in(bytes, "request of rows");
  if (in.number("magic") != kReadMagic) in.fail("another version of Tandem wrote it, or none");
  Request request;
  request.number = in.number("its number");
  request.schema = in.number("its schema");
  request.secret = in.number("its secret");
  request.samples.resize(static_cast<size_t>(in.count(sizeof(SampleId), "the number of samples")));
  in.raw(request.samples.data(), request.samples.size() * sizeof(SampleId), "samples");
  if (!in.at_end()) in.fail("bytes behind the end");
  return request;
}

int64_t random_secret() {
  std::random_device device;
  return static_cast<int64_t>((static_cast<uint64_t>(device()) << 31) ^ device() | 1);
}

}  // namespace

StoreServer::StoreServer(const Store& store, const std::string& address, const std::optional<ServerKeys>& keys)
    : store_(store),
      endpoint_(Endpoint::at(address, keys)),
      place_(keys ? endpoint_.address() + " " + keys->public_key : endpoint_.address()),
      lanes_(kLanes),
      thread_([this] { serve(); }) {}

StoreServer::~StoreServer() {
  is_closing_ = true;
  thread_.join();
}

void StoreServer::serve() {
  while (!is_closing_) {
    try {
      std::optional<Letter> letter = endpoint_.receive(kReadPauseS);
      if (!letter) continue;
      letter->bytes = answer(letter->bytes);
      bytes_sent_ += std::ssize(letter->bytes);
      endpoint_.send(*letter);
    } catch (const std::exception&) {  // no request, or more than there is memory for
    }
  }
}

std::vector<std::byte> StoreServer::answer(std::span<const std::byte> bytes) {
  const Request request = request_of(bytes);
  std::vector<std::byte> answer;
  data::ByteWriter out(answer);
  out.number(request.number);
  comm::SharedMemory* lane = nullptr;
  const auto room = [&](const RowsHead& head) {
    out.number(head.num_rows);
    out.number(std::ssize(head.lengths));
    out.raw(head.lengths.data(), head.lengths.size() * sizeof(int64_t));
    out.number(head.num_bytes);
    const auto num_bytes = static_cast<size_t>(head.num_bytes);
    if (request.secret != 0 && head.num_bytes >= kLeastLentBytes) {
      lane = &lanes_.free_lane(kSecretBytes + head.num_bytes);
      std::memcpy(lane->bytes().data(), &request.secret, sizeof request.secret);
      return lane->bytes().subspan(kSecretBytes, num_bytes);
    }
    answer.resize(answer.size() + num_bytes);
    return std::span(answer).last(num_bytes);
  };
  const bool fits = request.schema == store_.schema() && std::ssize(request.samples) <= store_.num_held();
  if (!fits || store_.read(request.samples, kPartBytes, room) == 0) {
    out.number(0);
    return answer;
  }
  if (!lane) return answer;
  lane->lend(1);
  const comm::SharedHandle handle = lane->handle();
  bytes_lent_ += handle.num_bytes;
  out.raw(&handle, sizeof handle);
  return answer;
}

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
int64_t StoreReader::take_rows(Known& store, Letter letter, int64_t secret, std::span<const SampleId> samples, TensorCache& into) {
  const auto kept = std::make_shared<std::vector<std::byte>>(std::move(letter.bytes));
  data::ByteReader in(*kept, "answer of a store");
  (void)in.number("its number");
  const int64_t rows = in.number("the number of rows");
  if (rows == 0) return 0;
  if (rows < 0 || rows > std::ssize(samples)) in.fail(join_text("it has ", rows, " rows of ", samples.size()));
  samples = samples.first(static_cast<size_t>(rows));
  std::vector<int64_t> lengths(static_cast<size_t>(in.count(sizeof(int64_t), "the number of lengths")));
  in.raw(lengths.data(), lengths.size() * sizeof(int64_t), "lengths");
  const int64_t num_bytes = in.number("the number of bytes");
  if (num_bytes < 0) in.fail(join_text("rows of ", num_bytes, " bytes"));
  bool fits = false;
  if (secret == 0 || num_bytes < kLeastLentBytes) {
    const std::span<const std::byte> packed = in.rest();
    if (std::ssize(packed) != num_bytes) in.fail(join_text(packed.size(), " bytes of ", num_bytes));
    fits = into.adopt(samples, lengths, packed, kept);
  } else {
    comm::SharedHandle handle;
    in.raw(&handle, sizeof handle, "where the rows lie");
    const std::shared_ptr<comm::BorrowedMemory> lane = store.lane(handle, kSecretBytes + num_bytes, secret);
    if (!lane) {
      store.shares = false;
      return -1;
    }
    const std::span<const std::byte> packed = lane->bytes().subspan(kSecretBytes, static_cast<size_t>(num_bytes));
    fits = into.adopt(samples, lengths, packed, comm::until_given_back(lane));
  }
  if (!fits) in.fail("the rows do not fit their lengths");
  return rows;
}

// The first of these samples. Returns how many; 0 for none, also at the deadline. Errors: PeerError for what is no answer, and if the
// store is gone.
int64_t StoreReader::read_some(Known& store, std::span<const SampleId> samples, TensorCache& into, const Deadline& deadline) {
  while (!deadline.passed()) {
    const int64_t secret = store.shares ? random_secret() : 0;
    const Request request{++num_requests_, into.schema(), secret, {samples.begin(), samples.end()}};
    store.endpoint.send({{}, to_bytes(request)});
    Deadline probe = Deadline::after_s(kProbeS);
    for (const Deadline again = Deadline::after_s(kReadAgainS); !again.passed() && !deadline.passed();) {
      std::optional<Letter> letter = store.endpoint.receive(kReadPauseS);
      if (!letter) {
        if (!probe.passed()) continue;
        if (is_refused(store.endpoint.address())) throw PeerError(store.endpoint.address() + ": nobody answers there");
        probe = Deadline::after_s(kReadAgainS);
        continue;
      }
      if (data::ByteReader(letter->bytes, "answer of a store").number("its number") != request.number) continue;  // of a request before
      bytes_received_ += std::ssize(letter->bytes);
      const int64_t rows = take_rows(store, std::move(*letter), secret, samples, into);
      if (rows >= 0) return rows;
      break;
    }
  }
  return 0;
}

bool StoreReader::read(const std::string& place, std::span<const SampleId> samples, TensorCache& into) {
  const Deadline deadline = Deadline::after_s(deadline_s_);
  std::erase_if(stores_, [&](const auto& each) { return each.second.last_read < num_reads_ - kKeptReads; });
  ++num_reads_;
  try {
    auto store = stores_.find(place);
    if (store == stores_.end()) {
      const size_t space = place.find(' ');
      const std::string address = place.substr(0, space), key = space == std::string::npos ? "" : place.substr(space + 1);
      store = stores_.emplace(place, Known{Endpoint::to(address, key), stays_on_this_machine(address), 0, {}}).first;
    }
    store->second.last_read = num_reads_;
    while (!samples.empty()) {
      const int64_t rows = read_some(store->second, samples, into, deadline);
      if (rows == 0) {
        if (deadline.passed()) stores_.erase(store);
        return false;
      }
      samples = samples.subspan(static_cast<size_t>(rows));
    }
    return true;
  } catch (const PeerError&) {
  } catch (const UserError&) {  // no place
  }
  stores_.erase(place);
  return false;
}

}  // namespace tandem::queue::wire
