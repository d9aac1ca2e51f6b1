// SPDX-License-Identifier: Apache-2.0
#include "tandem/worker/body_reader.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/data/columns.h"

namespace tandem::worker {
namespace {

constexpr size_t kMostAtOnce = 32;  // groups ahead: so that none waits long

// Whether the rows that came are those of which everyone has heard.
bool fit(const queue::TensorCache& rows, std::span<const SampleId> samples, std::span<const int64_t> measures) {
  const size_t width = rows.num_fields() + queue::kNumVersions;
  if (measures.size() != samples.size() * width) return false;
  for (size_t i = 0; i < samples.size(); ++i)
    if (!std::ranges::equal(rows.lengths(samples[i]), measures.subspan(i * width, rows.num_fields()))) return false;
  return true;
}

std::vector<GroupId> groups_of(std::span<const Wanted> wanted) {
  std::vector<GroupId> groups;
  for (const Wanted& each : wanted) groups.push_back(each.group);
  return groups;
}

}  // namespace

BodyReader::BodyReader(int64_t group_size, double deadline_s)
    : group_size_(group_size),
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
  return data::ids_of(data::bare_heads(groups, group_size_));
}

void BodyReader::fetch_ahead(std::vector<Wanted> groups) {
  {
    std::lock_guard lock(mutex_);
    for (Wanted& each : groups) ahead_.push_back(std::move(each));
  }
  changed_.notify_all();
}

// All of them, or none.
bool BodyReader::fetch(queue::wire::StoreReader& reader, std::span<const Wanted> of_store, queue::TensorCache& rows) {
  const std::vector<SampleId> samples = samples_of(groups_of(of_store));
  const int64_t before = reader.bytes_received();
  bool came = reader.read(of_store.front().store, samples, rows);
  for (const Wanted& each : of_store) came = came && fit(rows, samples_of({&each.group, 1}), each.measures);
  bytes_received_ += reader.bytes_received() - before;
  if (&reader == &ahead_reader_) bytes_ahead_ += reader.bytes_received() - before;
  return came;
}

// Requires the mutex.
void BodyReader::keep(const std::vector<GroupId>& groups, const queue::TensorCache& rows) {
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
    const bool came = fetch(ahead_reader_, of_store, rows);
    lock.lock();
    if (came) keep({on_way_.begin(), on_way_.end()}, rows);  // some may have been dropped
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
    const std::vector<GroupId> of_it = groups_of(of_store);
    const bool came = fetch(now_reader_, of_store, rows);
    std::lock_guard lock(mutex_);
    if (came) keep(of_it, rows);
    else lost.insert(lost.end(), of_it.begin(), of_it.end());
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
