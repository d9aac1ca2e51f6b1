// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/sample_queue.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"

namespace tandem::queue {
namespace {

Options checked(Options options) {
  OptionList list;
  describe(list, options);
  for (const OptionEntry& entry : list.entries) check_option(entry, "queue");
  return options;
}

}  // namespace

SampleQueue::SampleQueue(const Options& options, Needs needs)
    : options_(checked(options)), rule_(options_.staleness_rule()), needs_(std::move(needs)) {}

int64_t SampleQueue::num_may_start(std::optional<PolicyVersion> start) const {
  std::lock_guard lock(mutex_);
  std::vector<Outstanding> groups;
  for (const auto& [id, entry] : groups_) groups.push_back({id, value(entry.start), entry.finished});  // the taken ones count, too
  return queue::num_may_start(rule_, value(version_), value(start.value_or(version_)), groups);
}

void SampleQueue::start(GroupId id, PolicyVersion version) {
  TANDEM_CHECK(num_may_start(version) > 0, "group ", value(id), " may not start at version ", value(version));
  std::lock_guard lock(mutex_);
  TANDEM_CHECK(version <= version_, "group ", value(id), " starts at version ", value(version), " before there is one");
  const bool is_new = groups_.emplace(id, Entry{version, std::vector<Row>(static_cast<size_t>(options_.group_size))}).second;
  TANDEM_CHECK(is_new, "group ", value(id), " started twice");
  newest_ = std::max(newest_, id);
  ++counters_.started;
}

bool SampleQueue::put(std::span<const SampleId> ids, const data::Fields& fields) {
  TANDEM_CHECK(fields.empty() || data::num_rows(fields) == std::ssize(ids), data::num_rows(fields), " rows for ", ids.size(), " samples");
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    for (size_t i = 0; i < ids.size(); ++i) {
      const GroupId group = data::group_of(ids[i], options_.group_size);
      const auto found = groups_.find(group);
      if (found == groups_.end()) {
        TANDEM_CHECK(group <= newest_, "rows of group ", value(group), ", which never started");
        ++counters_.late_rows;
        continue;
      }
      Row& row = found->second.rows[static_cast<size_t>(value(ids[i]) % options_.group_size)];
      for (const auto& [name, column] : fields) row.fields[name] = data::rows(column, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
    }
    for (SampleId id : ids) {
      const auto found = groups_.find(data::group_of(id, options_.group_size));
      if (found == groups_.end() || found->second.finished || !ready(found->second, needs_.batch)) continue;
      found->second.finished = true;
      ++num_finished_;
    }
  }
  changed_.notify_all();
  return true;
}

bool SampleQueue::put(const data::Group& group) {
  const std::span<const data::Group> one(&group, 1);
  return put(data::ids_of(one), data::fields_of(one));
}

bool SampleQueue::ready(const Entry& entry, const std::vector<std::string>& names) const {
  return std::all_of(entry.rows.begin(), entry.rows.end(), [&](const Row& row) {
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) { return row.fields.contains(name); });
  });
}

std::vector<Outstanding> SampleQueue::outstanding() const {
  std::vector<Outstanding> groups;
  for (const auto& [id, entry] : groups_)
    if (!entry.taken) groups.push_back({id, value(entry.start), entry.finished});
  return groups;
}

bool SampleQueue::batch_ready() {
  std::lock_guard lock(mutex_);
  if (formed_ || num_finished_ < rule_.groups_per_step) return false;
  const Choice choice = choose_batch(rule_, value(version_), outstanding());
  held_back_ = held_back_ || !choice.wait_for.empty();
  return !choice.batch.empty();
}

std::vector<GroupId> SampleQueue::must_wait_for() const {
  std::lock_guard lock(mutex_);
  if (formed_ || num_finished_ < rule_.groups_per_step) return {};
  return choose_batch(rule_, value(version_), outstanding()).wait_for;
}

bool SampleQueue::try_form(StepId step) {
  if (formed_) {
    TANDEM_CHECK(formed_->step == step, "step ", value(step), " taken before step ", value(formed_->step), " is committed");
    return true;
  }
  if (num_finished_ < rule_.groups_per_step) return false;
  const Choice choice = choose_batch(rule_, value(version_), outstanding());
  held_back_ = held_back_ || !choice.wait_for.empty();
  if (choice.batch.empty()) return false;
  for (GroupId id : choice.batch) groups_.at(id).taken = true;
  num_finished_ -= std::ssize(choice.batch);
  counters_.waited += held_back_;
  held_back_ = false;
  formed_ = Formed{step, choice.batch, {}};
  return true;
}

std::optional<data::Batch> SampleQueue::take(data::Stage stage, ReplicaId replica, StepId step) {
  std::unique_lock lock(mutex_);
  const auto needed = needs_.stage.find(stage);
  auto complete = [&] {
    if (closed_) return true;
    if (!try_form(step)) return false;
    return needed == needs_.stage.end() ||
           std::all_of(formed_->groups.begin(), formed_->groups.end(), [&](GroupId id) { return ready(groups_.at(id), needed->second); });
  };
  if (!changed_.wait_until(lock, Deadline::after_s(options_.take_timeout_s).time(), complete))
    throw PeerError(join_text("queue: stage ", data::stage_name(stage), " of replica ", value(replica), " waited ",
                              options_.take_timeout_s, " s for step ", value(step), ": ", num_finished_, " of ", rule_.groups_per_step,
                              " groups finished, ", groups_.size(), " outstanding"));
  if (closed_) return std::nullopt;
  const bool first = formed_->consumed.emplace(stage, replica).second;
  TANDEM_CHECK(first, "stage ", data::stage_name(stage), " took step ", value(step), " twice");
  return batch_of(*formed_);
}

data::Batch SampleQueue::batch_of(const Formed& formed) const {
  data::Fields all;
  for (GroupId id : formed.groups)
    for (const Row& row : groups_.at(id).rows)
      for (const auto& [name, column] : row.fields) data::append(all[name], column);
  // A field that only some rows have yet belongs to a later stage.
  std::erase_if(all, [&](const auto& field) { return field.second.num_rows() < std::ssize(formed.groups) * options_.group_size; });
  return {formed.step, version_, data::groups_of(all)};
}

data::Fields SampleQueue::read(std::span<const SampleId> ids, std::span<const std::string> names) const {
  std::lock_guard lock(mutex_);
  data::Fields fields;
  for (SampleId id : ids) {
    const auto found = groups_.find(data::group_of(id, options_.group_size));
    TANDEM_CHECK(found != groups_.end(), "sample ", value(id), " is not in the queue");
    const Row& row = found->second.rows[static_cast<size_t>(value(id) % options_.group_size)];
    for (const std::string& name : names) {
      const auto column = row.fields.find(name);
      TANDEM_CHECK(column != row.fields.end(), "sample ", value(id), " has no field ", name);
      data::append(fields[name], column->second);
    }
  }
  return fields;
}

void SampleQueue::check_lags(const Formed& formed) const {
  for (GroupId id : formed.groups) {
    const int64_t lag = value(version_) - value(groups_.at(id).start);
    TANDEM_CHECK(lag <= rule_.staleness, "group ", value(id), " was trained with lag ", lag, ", staleness is ", rule_.staleness);
  }
}

std::vector<GroupId> SampleQueue::commit(StepId step, PolicyVersion after, std::span<const GroupId> without_token) {
  std::vector<GroupId> evicted;
  {
    std::lock_guard lock(mutex_);
    TANDEM_CHECK(formed_ && formed_->step == step, "commit of step ", value(step), ", which was not taken");
    TANDEM_CHECK(value(after) == value(version_) + 1, "an update leads from version ", value(version_), " to ", value(after));
    check_lags(*formed_);
    for (GroupId id : formed_->groups) groups_.erase(id);
    counters_.trained += std::ssize(formed_->groups);
    formed_.reset();
    version_ = after;
    for (GroupId id : without_token)
      if (const auto found = groups_.find(id); found != groups_.end() && !found->second.finished) found->second.start = after;
    evicted = too_stale(rule_, value(version_), outstanding());
    for (GroupId id : evicted) {
      num_finished_ -= groups_.at(id).finished;
      groups_.erase(id);
    }
    counters_.dropped += std::ssize(evicted);
  }
  changed_.notify_all();
  return evicted;
}

void SampleQueue::close() noexcept {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

std::vector<GroupId> SampleQueue::finished() const {
  std::lock_guard lock(mutex_);
  std::vector<GroupId> ids;
  for (const auto& [id, entry] : groups_)
    if (entry.finished && !entry.taken) ids.push_back(id);
  return ids;
}

PolicyVersion SampleQueue::version() const {
  std::lock_guard lock(mutex_);
  return version_;
}
int64_t SampleQueue::num_outstanding() const {
  std::lock_guard lock(mutex_);
  return std::ssize(groups_);
}
int64_t SampleQueue::num_finished() const {
  std::lock_guard lock(mutex_);
  return num_finished_;
}
Counters SampleQueue::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace tandem::queue
