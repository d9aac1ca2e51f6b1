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

std::vector<GroupId> groups_of(std::span<const Wanted> wanted) {
  std::vector<GroupId> groups;
  for (const Wanted& each : wanted) groups.push_back(each.group);
  return groups;
}

}  // namespace

BodyReader::BodyReader(const queue::GroupLimits& limits, double deadline_s)
    : limits_(limits),
      deadline_s_(deadline_s),
      here_(queue::body_fields()),
      now_reader_(deadline_s, limits.row_bytes()),
      ahead_reader_(deadline_s, limits.row_bytes()),
      thread_([this] { work(); }) {}

BodyReader::~BodyReader() {
  locked(mutex_, [&] { is_closing_ = true; });
  changed_.notify_all();
  thread_.join();
}

std::vector<SampleId> BodyReader::samples_of(std::span<const GroupId> groups) const {
  return data::ids_of(data::bare_heads(groups, limits_.group_size));
}

void BodyReader::fetch_ahead(std::vector<Wanted> groups) {
  locked(mutex_, [&] { std::ranges::move(groups, std::back_inserter(ahead_)); });
  changed_.notify_all();
}

// Of rows that came: "" if they are those of which everyone has heard, and have nothing that this run cannot have. Then the group has them.
std::string BodyReader::take_body(const Wanted& wanted, const queue::TensorCache& rows, data::Group& group) const {
  const std::span<const int64_t> measures = wanted.measures;
  const size_t width = rows.num_fields() + queue::kNumFacts;
  TANDEM_CHECK(measures.size() == group.samples.size() * width, measures.size(), " measures of ", group.samples.size(), " samples");
  for (size_t i = 0; i < group.samples.size(); ++i)
    if (!std::ranges::equal(rows.lengths(group.samples[i].id), measures.subspan(i * width, rows.num_fields())))
      return "has a body that is not what was said of it";
  queue::add_body(group, rows);
  if (!wanted.prompt) return "";
  for (size_t i = 0; i < group.samples.size(); ++i) {
    const auto facts = queue::TokenFacts::from(measures.subspan(i * width + rows.num_fields(), queue::kNumFacts));
    if (facts.num_trainable != queue::facts_of(group.samples[i]).num_trainable) return "has other trainable tokens than were said of it";
    const std::string fault = queue::fault_of_tokens(group.samples[i], std::ssize(group.prompt.ids), PolicyVersion{facts.oldest},
                                                     PolicyVersion{facts.newest}, limits_);
    if (!fault.empty()) return fault;
  }
  if (group.prompt.ids != wanted.prompt->ids) return "answers another prompt than its own";
  group.prompt = *wanted.prompt;
  return "";
}

// Of one store.
BodyReader::Came BodyReader::fetch(queue::wire::StoreReader& reader, std::span<const Wanted> of_store) {
  const int64_t before = reader.bytes_received();
  Came came;
  const auto read = [&](std::span<const Wanted> some) {
    queue::TensorCache rows(queue::body_fields());
    const bool is_here = reader.read(some.front().store, samples_of(groups_of(some)), rows);
    if (!is_here) {
      const std::string& fault = reader.fault();
      if (some.size() == 1 && !fault.empty()) came.faults[some.front().group] = "has a body that nobody can read: " + fault;
      return false;
    }
    for (const Wanted& each : some) {
      data::Group group = data::bare_heads(std::span(&each.group, 1), limits_.group_size).front();
      std::string fault = take_body(each, rows, group);
      if (fault.empty()) came.groups.push_back(std::move(group));
      else came.faults[each.group] = std::move(fault);
    }
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
void BodyReader::keep(std::span<const data::Group> groups) {
  if (groups.empty()) return;
  here_.put(data::ids_of(groups), data::fields_of(groups));
  for (const data::Group& group : groups) arrived_.insert(group.id);
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
    std::vector<data::Group> came = fetch(ahead_reader_, of_store).groups;
    lock.lock();
    std::erase_if(came, [&](const data::Group& group) { return !on_way_.contains(group.id); });  // it was dropped
    keep(came);
    on_way_.clear();
    changed_.notify_all();
  }
}

std::vector<Lost> BodyReader::fetch_now(std::vector<Wanted> groups) {
  std::map<std::string, std::vector<Wanted>> by_store;
  {
    std::unique_lock lock(mutex_);
    for (Wanted& wanted : groups) {
      std::erase_if(ahead_, [&](const Wanted& each) { return each.group == wanted.group; });
      changed_.wait(lock, [&] { return !on_way_.contains(wanted.group); });
      if (!arrived_.contains(wanted.group)) by_store[wanted.store].push_back(std::move(wanted));
    }
  }
  std::vector<Lost> lost;
  for (const auto& [store, of_store] : by_store) {
    Came came = fetch(now_reader_, of_store);
    for (const Wanted& each : of_store)
      if (std::ranges::find(came.groups, each.group, &data::Group::id) == came.groups.end())
        lost.push_back({each.group, std::move(came.faults[each.group])});
    std::lock_guard lock(mutex_);
    keep(came.groups);
  }
  return lost;
}

std::vector<GroupId> BodyReader::take(queue::TensorCache& into) {
  const std::set<GroupId> now = locked(mutex_, [&] { return std::exchange(arrived_, {}); });
  const std::vector<GroupId> arrived(now.begin(), now.end());
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
