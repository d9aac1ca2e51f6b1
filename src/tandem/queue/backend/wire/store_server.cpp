// SPDX-License-Identifier: Apache-2.0
// A request: magic, its number, ids. The answer: the number, whether all rows are here, the columns as data::pack has them.
#include "tandem/queue/backend/wire/store_server.h"

#include <utility>

#include "tandem/base/bytes.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue::wire {
namespace {

constexpr int64_t kReadMagic = 0x3164616552516454;  // "TdQRead1"
constexpr double kReadPauseS = 0.05;

struct Request {
  int64_t number = 0;
  std::vector<SampleId> samples;
};

std::vector<std::byte> to_bytes(const Request& request) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.number(kReadMagic);
  out.number(request.number);
  out.number(std::ssize(request.samples));
  out.raw(request.samples.data(), request.samples.size() * sizeof(SampleId));
  return bytes;
}

Request request_of(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "request of rows");
  if (in.number("magic") != kReadMagic) in.fail("another version of Tandem wrote it, or none");
  Request request;
  request.number = in.number("its number");
  request.samples.resize(static_cast<size_t>(in.count(sizeof(SampleId), "the number of samples")));
  in.raw(request.samples.data(), request.samples.size() * sizeof(SampleId), "samples");
  if (!in.at_end()) in.fail("bytes behind the end");
  return request;
}

}  // namespace

StoreServer::StoreServer(const Store& store, const std::string& address, const std::optional<ServerKeys>& keys)
    : store_(store),
      endpoint_(Endpoint::at(address, keys)),
      place_(keys ? endpoint_.address() + " " + keys->public_key : endpoint_.address()),
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
      const Request request = request_of(letter->bytes);
      const std::optional<data::Fields> columns = store_.read(request.samples);
      letter->bytes.clear();
      ByteWriter out(letter->bytes);
      out.number(request.number);
      out.number(columns.has_value());
      if (columns) data::pack(*columns, letter->bytes);
      bytes_sent_ += std::ssize(letter->bytes);
      endpoint_.send(*letter);
    } catch (const PeerError&) {  // no request
    }
  }
}

std::optional<data::Fields> StoreReader::read(const std::string& place, std::span<const SampleId> samples) {
  auto store = stores_.find(place);
  if (store == stores_.end()) {
    const size_t space = place.find(' ');
    const std::string key = space == std::string::npos ? "" : place.substr(space + 1);
    store = stores_.emplace(place, Endpoint::to(place.substr(0, space), key)).first;
  }
  const Request request{++num_reads_, {samples.begin(), samples.end()}};
  store->second.send({{}, to_bytes(request)});
  for (const Deadline deadline = Deadline::after_s(deadline_s_); !deadline.passed();) {
    const std::optional<Letter> letter = store->second.receive(kReadPauseS);
    if (!letter) continue;
    ByteReader in(letter->bytes, "answer of a store");
    if (in.number("its number") != request.number) continue;  // of a read that was given up
    if (in.number("whether all is here") == 0) return std::nullopt;
    bytes_received_ += std::ssize(letter->bytes);
    return data::unpack(std::span(letter->bytes).subspan(2 * sizeof(int64_t)));
  }
  stores_.erase(store);
  return std::nullopt;
}

}  // namespace tandem::queue::wire
