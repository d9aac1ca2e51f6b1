// SPDX-License-Identifier: Apache-2.0
#include "tandem/pull/weight_server.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"
#include "tandem/reshard/held_weights.h"
#include "tandem/pull/boxes.h"

namespace tandem::pull {
namespace {

constexpr double kRequestPauseS = 0.05;
constexpr double kGivingS = 60;       // for which one is taken to give a version to somebody who says nothing
constexpr double kKnownS = 120;       // for which one that has a version is sent to: later it may be gone, as may its machine
constexpr size_t kMostGivers = 4096, kMostParts = 4096, kMostDigests = 1 << 16;
constexpr size_t kVersions = 4;  // kept for readers that are at it

using Ask = WeightsRequest::Ask;

}  // namespace

WeightServer::WeightServer(const model::ParameterTable& table, at::ScalarType dtype, const std::string& address,
                           const comm::ServerKeys& keys)
    : table_(table),
      dtype_(dtype),
      endpoint_(comm::Endpoint::at(address, keys)),
      place_(endpoint_.address() + " " + keys.public_key),
      thread_([this] { serve(); }) {}

WeightServer::~WeightServer() {
  is_closing_ = true;
  thread_.join();
}

WeightServerCounts WeightServer::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

// That of a version that nobody reads any more, or a new one. A reader that died never gives its own back: such go at last.
std::shared_ptr<WeightServer::Version> WeightServer::room() {
  std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Version>& each : versions_)
    if (each != newest_ && each.use_count() == 1 && each->memory->is_free()) {
      each->number = PolicyVersion{-1};  // nobody finds it any more
      return each;
    }
  if (versions_.size() == kVersions)
    for (auto each = versions_.begin(); each != versions_.end(); ++each)
      if (*each != newest_) {
        versions_.erase(each);
        break;
      }
  const int64_t bytes = table_.num_elements * static_cast<int64_t>(c10::elementSize(dtype_));
  const auto made = std::make_shared<Version>();
  made->memory = std::make_unique<comm::SharedMemory>(kSecretBytes + bytes);
  return versions_.emplace_back(made);
}

at::Tensor WeightServer::values_of(const Version& version) const {
  return at::from_blob(version.memory->bytes().data() + kSecretBytes, {table_.num_elements}, at::TensorOptions(dtype_));
}

void WeightServer::publish(const at::Tensor& values, PolicyVersion version) {
  TANDEM_CHECK(values.numel() == table_.num_elements && values.scalar_type() == dtype_, "values that do not lie as the table says");
  const std::shared_ptr<Version> next = room();
  values_of(*next).copy_(values);
  next->secret = unseeded_number();
  std::memcpy(next->memory->bytes().data(), &next->secret, sizeof next->secret);
  std::lock_guard lock(mutex_);
  next->number = version;
  newest_ = next;
  givers_.clear();
  digests_.clear();
  counts_.bytes_copied += static_cast<int64_t>(values.nbytes());
}

void WeightServer::serve() {
  while (!is_closing_) {
    try {
      std::optional<comm::Letter> letter = endpoint_.receive(kRequestPauseS);
      if (!letter) continue;
      letter->bytes = answer(letter->bytes);
      endpoint_.send(*letter);
    } catch (const std::exception&) {  // no request, or more than there is memory for
    }
  }
}

std::vector<std::byte> WeightServer::boxes_of(const Version& version, const WeightsRequest& request) const {
  if (c10::elementSize(request.dtype) > c10::elementSize(dtype_)) throw PeerError("request of weights: wider than they are");
  const std::vector<reshard::Held> held = reshard::held_weights(table_, values_of(version), request.dtype);
  int64_t wanted = 0;
  for (const NumberedBox& each : request.boxes) {
    wanted += view_of(held, each).numel() * static_cast<int64_t>(c10::elementSize(request.dtype));
    if (wanted > kMostBytesAtOnce) throw PeerError("request of weights: more than goes into one message");
  }
  return pull::values_of(held, request.boxes, request.dtype);
}

// Readers of one layout ask for the same boxes: what was computed for one serves all.
uint64_t WeightServer::digest_of_boxes(const Version& version, const WeightsRequest& request) {
  const uint64_t key = digest_of(pull::to_bytes({.dtype = request.dtype, .boxes = request.boxes}));
  {
    std::lock_guard lock(mutex_);
    const auto known = digests_.find(key);
    if (known != digests_.end() && newest_.get() == &version) return known->second;
  }
  const uint64_t digest = digest_of(boxes_of(version, request));
  std::lock_guard lock(mutex_);
  if (newest_.get() == &version && digests_.size() < kMostDigests) digests_[key] = digest;
  return digest;
}

// Each gives to one at a time, and this one to the first alone as long as others have it: so a version costs it one copy, and the number
// of givers doubles with each round. Who was given it says so, or its giver is free again after a while. All that for each part by itself.
// Requires the mutex.
void WeightServer::say_where(const WeightsRequest& request, WeightsAnswer& answer) {
  if (request.ask != Ask::kHave && request.ask != Ask::kWhere) return;
  if (!givers_.contains(request.part) && givers_.size() >= kMostParts) return;  // from this one, then
  const double now = now_s();
  std::vector<Giver>& givers = givers_.try_emplace(request.part, 1).first->second;
  if (request.ask == Ask::kHave) {
    const auto busy = std::ranges::find_if(givers, [&](const Giver& each) { return each.busy_until_s > now; });
    if (busy != givers.end()) busy->busy_until_s = 0;  // which of them gave it does not matter
    if (!request.holder.place.empty() && givers.size() < kMostGivers) givers.push_back({request.holder, 0, now + kKnownS});
  }
  if (request.ask != Ask::kWhere) return;
  std::erase_if(givers, [&](const Giver& each) {
    return !each.holder.place.empty() && (each.holder == request.holder || each.known_until_s < now);
  });
  const bool has_others = givers.size() > 1;  // then this one has given it
  const auto free = std::ranges::find_if(givers, [&](const Giver& each) {
    return each.busy_until_s <= now && !(has_others && each.holder.place.empty());
  });
  answer.waits = free == givers.end();
  if (answer.waits) return;
  free->busy_until_s = now + kGivingS;
  if (free->holder.place.empty()) return;
  answer.elsewhere = free->holder;
  ++counts_.sent_elsewhere;
}

// Requires the mutex. Null if it is gone.
std::shared_ptr<WeightServer::Version> WeightServer::version_of(PolicyVersion number) const {
  const auto found = std::ranges::find_if(versions_, [&](const auto& each) { return each->number == number; });
  return found == versions_.end() ? nullptr : *found;
}

std::vector<std::byte> WeightServer::answer(std::span<const std::byte> bytes) {
  const WeightsRequest request = weights_request_of(bytes);
  WeightsAnswer answer{.number = request.number};
  std::shared_ptr<Version> version;
  {
    std::lock_guard lock(mutex_);
    version = newest_;
    if (version) answer.newest = version->number;
    if (request.ask == Ask::kDigest) version = version_of(request.version);  // of one before, too: it was whole before the next came
    answer.has_it = version && version->number == request.version;
    if (answer.has_it && request.ask == Ask::kMap) {
      version->memory->lend_to_another();
      answer.secret = version->secret;
      answer.lent = version->memory->handle();
      ++counts_.mapped;
    }
    if (answer.has_it) say_where(request, answer);
  }
  std::vector<std::byte> boxes;
  if (answer.has_it && request.ask == Ask::kBoxes) boxes = boxes_of(*version, request);
  if (answer.has_it && request.ask == Ask::kDigest) answer.digest = digest_of_boxes(*version, request);
  answer.boxes = boxes;
  std::lock_guard lock(mutex_);
  counts_.bytes_sent += std::ssize(boxes);
  return to_bytes(answer);
}

}  // namespace tandem::pull
