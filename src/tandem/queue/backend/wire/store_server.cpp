// SPDX-License-Identifier: Apache-2.0
// A request: magic, its number, ids. The answer: the number, how many of the first rows it has, their columns as data::pack has them; 0
// if one is not here. The reader asks for the rest.
#include "tandem/queue/backend/wire/store_server.h"

#include <utility>

#include "tandem/data/bytes.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue::wire {
namespace {

constexpr int64_t kReadMagic = 0x3164616552516454;  // "TdQRead1"
constexpr double kReadPauseS = 0.05, kReadAgainS = 5;
constexpr int64_t kPartBytes = kMaxMessageBytes / 4;

struct Request {
  int64_t number = 0;
  std::vector<SampleId> samples;
};

std::vector<std::byte> to_bytes(const Request& request) {
  std::vector<std::byte> bytes;
  data::ByteWriter out(bytes);
  out.number(kReadMagic);
  out.number(request.number);
  out.number(std::ssize(request.samples));
  out.raw(request.samples.data(), request.samples.size() * sizeof(SampleId));
  return bytes;
}

Request request_of(std::span<const std::byte> bytes) {
  data::ByteReader in(bytes, "request of rows");
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
      std::optional<data::Fields> columns;
      if (std::ssize(request.samples) <= store_.num_held()) columns = store_.read(request.samples, kPartBytes);
      letter->bytes.clear();
      data::ByteWriter out(letter->bytes);
      out.number(request.number);
      out.number(columns ? data::num_rows(*columns) : 0);
      if (columns) data::pack(*columns, letter->bytes);
      bytes_sent_ += std::ssize(letter->bytes);
      endpoint_.send(*letter);
    } catch (const std::exception&) {  // no request, or more than there is memory for
    }
  }
}

// Of a request, until the deadline; nothing after it. Errors: PeerError for what is no answer.
std::optional<data::Fields> StoreReader::answer_of(Endpoint& store, std::span<const SampleId> samples, const Deadline& deadline) {
  const Request request{++num_requests_, {samples.begin(), samples.end()}};
  while (!deadline.passed()) {
    store.send({{}, to_bytes(request)});
    for (const Deadline again = Deadline::after_s(kReadAgainS); !again.passed() && !deadline.passed();) {
      const std::optional<Letter> letter = store.receive(kReadPauseS);
      if (!letter) continue;
      data::ByteReader in(letter->bytes, "answer of a store");
      if (in.number("its number") != request.number) continue;  // of a request before
      bytes_received_ += std::ssize(letter->bytes);
      const int64_t rows = in.number("the number of rows");
      if (rows == 0) return std::nullopt;
      data::Fields columns = data::unpack(std::span(letter->bytes).subspan(2 * sizeof(int64_t)));
      if (data::num_rows(columns) != rows || rows > std::ssize(samples)) in.fail(join_text("it has ", rows, " rows"));
      return columns;
    }
  }
  return std::nullopt;
}

std::optional<data::Fields> StoreReader::read(const std::string& place, std::span<const SampleId> samples) {
  const Deadline deadline = Deadline::after_s(deadline_s_);
  std::erase_if(stores_, [&](const auto& each) { return each.second.last_read < num_reads_ - kKeptReads; });
  ++num_reads_;
  try {
    auto store = stores_.find(place);
    if (store == stores_.end()) {
      const size_t space = place.find(' ');
      const std::string key = space == std::string::npos ? "" : place.substr(space + 1);
      store = stores_.emplace(place, Known{Endpoint::to(place.substr(0, space), key)}).first;
    }
    store->second.last_read = num_reads_;
    std::optional<data::Fields> all;
    for (size_t done = 0; done < samples.size();) {
      std::optional<data::Fields> part = answer_of(store->second.endpoint, samples.subspan(done), deadline);
      if (!part) {
        if (deadline.passed()) stores_.erase(store);
        return std::nullopt;
      }
      done += static_cast<size_t>(data::num_rows(*part));
      if (all) data::append(*all, *part);
      else all = std::move(part);
    }
    return all;
  } catch (const PeerError&) {
  } catch (const UserError&) {  // no place
  }
  stores_.erase(place);
  return std::nullopt;
}

}  // namespace tandem::queue::wire
