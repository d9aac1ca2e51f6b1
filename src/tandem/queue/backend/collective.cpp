// SPDX-License-Identifier: Apache-2.0
// An exchange: what each rank asks goes to all; each carries out the calls; where somebody reads, who has the rows sends them.
#include "tandem/queue/backend/collective.h"

#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "tandem/data/bytes.h"
#include "tandem/base/clock.h"

namespace tandem::queue {

struct CollectiveTransport::Ask {
  double now_s = 0;
  bool over = false;
  std::optional<Call> call = {};
  std::string store = {};                ///< to read from; "": nothing
  int64_t schema = 0;
  std::vector<SampleId> samples = {};
};

namespace {

std::string store_name(int rank) { return join_text("rank ", rank); }

// What all ranks that train ask alike is carried out once.
bool is_for_all(const Call& call) {
  return std::holds_alternative<call::Take>(call.verb) || std::holds_alternative<call::Commit>(call.verb) ||
         std::holds_alternative<call::Lose>(call.verb);
}

std::vector<std::byte> verb_of(const Call& call) { return to_bytes(Call{call.incarnation, {}, 0, call.verb}); }

}  // namespace

CollectiveTransport::CollectiveTransport(comm::Group& group, CollectiveQueue& queue, const Store& own)
    : group_(group), queue_(queue), own_(&own), own_store_(store_name(group.rank())) {}

// Every rank's, in their order. The calls are carried out.
std::vector<CollectiveTransport::Ask> CollectiveTransport::exchange(const Ask& mine) {
  std::vector<std::byte> bytes;
  data::ByteWriter out(bytes);
  out.raw(&mine.now_s, sizeof mine.now_s);
  out.number(mine.over);
  out.bytes(mine.call ? to_bytes(*mine.call) : std::vector<std::byte>());
  out.text(mine.store);
  out.number(mine.schema);
  out.bytes(std::as_bytes(std::span(mine.samples)));
  std::vector<Ask> all;
  for (const std::vector<std::byte>& each : comm::all_gather_bytes(group_, bytes)) {
    data::ByteReader in(each, "what a rank asks the queue");
    Ask& ask = all.emplace_back();
    in.raw(&ask.now_s, sizeof ask.now_s, "a time");
    ask.over = in.number("whether it is over") != 0;
    if (const auto call = in.bytes("a call"); !call.empty()) ask.call = call_of(call);
    ask.store = in.text("a store");
    ask.schema = in.number("a schema");
    const auto samples = in.bytes("samples");
    ask.samples.resize(samples.size() / sizeof(SampleId));
    if (!samples.empty()) std::memcpy(ask.samples.data(), samples.data(), samples.size());
  }
  std::vector<std::pair<std::vector<std::byte>, Answer>> answered;  // of what is carried out once
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].call) continue;
    const Call& call = *all[rank].call;
    std::optional<Answer> answer;
    const std::vector<std::byte> verb = is_for_all(call) ? verb_of(call) : std::vector<std::byte>();
    for (const auto& [of, given] : answered)
      if (of == verb) answer = given;
    if (answer) answer->number = call.number;
    else answer = queue_.desk.answer(call, all.front().now_s);
    if (answer && !verb.empty()) answered.emplace_back(verb, *answer);
    if (static_cast<int>(rank) == group_.rank()) answer_ = answer;
  }
  queue_.desk.expire(all.front().now_s);
  return all;
}

// Nothing if another has them, or they are not here.
std::vector<std::byte> CollectiveTransport::rows_for(const Ask& ask) const {
  std::vector<std::byte> bytes;
  if (ask.store != own_store_ || !own_ || own_->schema() != ask.schema) return bytes;
  std::vector<std::byte> rows;
  std::vector<int64_t> lengths;
  const int64_t found = own_->read(ask.samples, std::numeric_limits<int64_t>::max(), [&](const RowsHead& head) {
    lengths = head.lengths;
    rows.resize(static_cast<size_t>(head.num_bytes));
    return std::span(rows);
  });
  if (found < std::ssize(ask.samples)) return bytes;
  data::ByteWriter out(bytes);
  out.bytes(std::as_bytes(std::span(lengths)));
  out.raw(rows.data(), rows.size());
  return bytes;
}

void CollectiveTransport::send(const Call& call) {
  const std::vector<Ask> all = exchange({.now_s = now_s(), .call = call});
  for (const Ask& ask : all)
    if (!ask.store.empty()) (void)comm::all_gather_bytes(group_, rows_for(ask));
}

bool CollectiveTransport::attend(bool over) {
  bool is_over = false;
  for (const Ask& ask : exchange({.now_s = now_s(), .over = over})) {
    is_over |= ask.over;
    if (!ask.store.empty()) (void)comm::all_gather_bytes(group_, rows_for(ask));
  }
  return !is_over;
}

bool CollectiveTransport::read(const std::string& store, std::span<const SampleId> samples, TensorCache& into) {
  const std::vector<Ask> all =
      exchange({.now_s = now_s(), .store = store, .schema = into.schema(), .samples = {samples.begin(), samples.end()}});
  bool came = false;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].store.empty()) continue;
    for (std::vector<std::byte>& part : comm::all_gather_bytes(group_, rows_for(all[rank]))) {
      if (part.empty() || static_cast<int>(rank) != group_.rank()) continue;
      const auto kept = std::make_shared<std::vector<std::byte>>(std::move(part));
      data::ByteReader in(*kept, "rows of another rank");
      const auto packed = in.bytes("lengths");
      std::vector<int64_t> lengths(packed.size() / sizeof(int64_t));
      if (!packed.empty()) std::memcpy(lengths.data(), packed.data(), packed.size());
      came = into.adopt(samples, lengths, in.rest(), kept);
    }
  }
  return came;
}

}  // namespace tandem::queue
