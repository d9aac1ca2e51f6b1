// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/body_reader.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/endpoint.h"
#include "tandem/data/columns.h"

namespace tandem::worker {
namespace {

constexpr size_t kMostAtOnce = 32;  // groups ahead: so that none waits long

bool are_within(auto numbers, int64_t begin, int64_t end) {
  return std::ranges::all_of(numbers, [&](int64_t number) { return number >= begin && number < end; });
}

std::vector<GroupId> groups_of(std::span<const Wanted> wanted) {
  std::vector<GroupId> groups;
  for (const Wanted& each : wanted) groups.push_back(each.group);
  return groups;
}

}  // namespace

BodyReader::BodyReader(const BodyLimits& limits, double deadline_s)
    : limits_(limits),
      deadline_s_(deadline_s),
      here_(queue::body_fields()),
      now_reader_(deadline_s),
      ahead_reader_(deadline_s),
      thread_([this] { work(); }) {}

BodyReader::~BodyReader() {
  {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::vector<SampleId> BodyReader::samples_of(std::span<const GroupId> groups) const {
  return data::ids_of(data::bare_heads(groups, limits_.group_size));
}

void BodyReader::fetch_ahead(std::vector<Wanted> groups) {
  {
    std::lock_guard lock(mutex_);
    for (Wanted& each : groups) ahead_.push_back(std::move(each));
  }
  changed_.notify_all();
}

// Whether the rows that came are those of which everyone has heard, and have nothing that the model does not.
bool BodyReader::fits(const Wanted& wanted, const queue::TensorCache& rows) const {
  const std::vector<SampleId> samples = samples_of({&wanted.group, 1});
  const std::span<const int64_t> measures = wanted.measures;
  const size_t width = rows.num_fields() + queue::kNumVersions;
  if (measures.size() != samples.size() * width) return false;
  for (size_t i = 0; i < samples.size(); ++i)
    if (!std::ranges::equal(rows.lengths(samples[i]), measures.subspan(i * width, rows.num_fields())) ||
        !are_within(rows.read<int32_t>(samples[i], queue::kPromptIds), 0, limits_.vocab_size) ||
        !are_within(rows.read<int32_t>(samples[i], queue::kResponse), 0, limits_.vocab_size) ||
        !are_within(rows.read<int16_t>(samples[i], queue::kRoutes), -1, limits_.num_experts))
      return false;
  const int64_t prompt = rows.lengths(samples.front())[queue::kPromptIds];
  for (const SampleId sample : samples) {
    const auto lengths = rows.lengths(sample);
    const int64_t routes = (prompt + lengths[queue::kResponse] - 1) * limits_.route_width;
    if (lengths[queue::kRoutes] != 0 && lengths[queue::kRoutes] != routes) return false;
  }
  return true;
}

// Of one store. Returns what came.
std::vector<GroupId> BodyReader::fetch(queue::wire::StoreReader& reader, std::span<const Wanted> of_store, queue::TensorCache& rows) {
  const int64_t before = reader.bytes_received();
  std::vector<GroupId> came;
  const auto read = [&](std::span<const Wanted> some) {
    if (!reader.read(some.front().store, samples_of(groups_of(some)), rows)) return false;
    for (const Wanted& each : some)
      if (fits(each, rows)) came.push_back(each.group);
    return true;
  };
  const std::string& store = of_store.front().store;
  const auto is_there = [&] { return !comm::is_refused(store.substr(0, store.find(' '))); };
  const Deadline silent = Deadline::after_s(deadline_s_);
  if (!read(of_store) && of_store.size() > 1 && !silent.passed() && is_there())  // it lacks one
    for (const Wanted& each : of_store)
      if (!read({&each, 1}) && silent.passed()) break;
  bytes_received_ += reader.bytes_received() - before;
  if (&reader == &ahead_reader_) bytes_ahead_ += reader.bytes_received() - before;
  return came;
}

// Requires the mutex.
void BodyReader::keep(const std::vector<GroupId>& groups, const queue::TensorCache& rows) {
  if (groups.empty()) return;
  here_.copy_in(samples_of(groups), rows);
  arrived_.insert(groups.begin(), groups.end());
}

// What fails ahead of its batch is left to fetch_now().
void BodyReader::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_closing_ || !ahead_.empty(); });
    if (is_closing_) return;
    std::vector<Wanted> of_store;
    const std::string store = ahead_.front().store;
    for (auto each = ahead_.begin(); each != ahead_.end() && of_store.size() < kMostAtOnce;) {
      if (each->store != store) {
        ++each;
        continue;
      }
      on_way_.insert(each->group);
      of_store.push_back(std::move(*each));
      each = ahead_.erase(each);
    }
    lock.unlock();
    queue::TensorCache rows(queue::body_fields());
    std::vector<GroupId> came = fetch(ahead_reader_, of_store, rows);
    lock.lock();
    std::erase_if(came, [&](GroupId group) { return !on_way_.contains(group); });  // it was dropped
    keep(came, rows);
    on_way_.clear();
    changed_.notify_all();
  }
}

std::vector<GroupId> BodyReader::fetch_now(std::vector<Wanted> groups) {
  std::map<std::string, std::vector<Wanted>> by_store;
  {
    std::unique_lock lock(mutex_);
    for (Wanted& wanted : groups) {
      std::erase_if(ahead_, [&](const Wanted& each) { return each.group == wanted.group; });
      changed_.wait(lock, [&] { return !on_way_.contains(wanted.group); });
      if (!arrived_.contains(wanted.group)) by_store[wanted.store].push_back(std::move(wanted));
    }
  }
  std::vector<GroupId> lost;
  for (const auto& [store, of_store] : by_store) {
    queue::TensorCache rows(queue::body_fields());
    const std::vector<GroupId> came = fetch(now_reader_, of_store, rows);
    for (const Wanted& each : of_store)
      if (std::ranges::find(came, each.group) == came.end()) lost.push_back(each.group);
    std::lock_guard lock(mutex_);
    keep(came, rows);
  }
  return lost;
}

std::vector<GroupId> BodyReader::take(queue::TensorCache& into) {
  std::vector<GroupId> arrived;
  {
    std::lock_guard lock(mutex_);
    arrived.assign(arrived_.begin(), arrived_.end());
    arrived_.clear();
  }
  if (arrived.empty()) return arrived;
  const std::vector<SampleId> samples = samples_of(arrived);
  const bool are_here = here_.copy(samples, into);
  TANDEM_CHECK(are_here, arrived.size(), " groups came, and are not here");
  here_.drop(samples);
  return arrived;
}

void BodyReader::drop(std::span<const GroupId> groups) {
  std::lock_guard lock(mutex_);
  for (const GroupId group : groups) {
    std::erase_if(ahead_, [&](const Wanted& each) { return each.group == group; });
    on_way_.erase(group);
    if (arrived_.erase(group) > 0) here_.drop(samples_of({&group, 1}));
  }
}

}  // namespace tandem::worker
