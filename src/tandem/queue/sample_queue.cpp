// SPDX-License-Identifier: Apache-2.0
#include "tandem/queue/sample_queue.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"

namespace tandem::queue {
namespace {

Options checked(Options options) {
  OptionList list;
  describe(list, options);
  for (const OptionEntry& entry : list.entries) check_option(entry, "queue");
  return options;
}

}  // namespace

SampleQueue::SampleQueue(const Options& options, Takes takes, const data::Shaping& shaping)
    : options_(checked(options)), rule_(options_.staleness_rule()), takes_(takes), shaping_(shaping) {}

int64_t SampleQueue::num_may_start(std::optional<PolicyVersion> start) const {
  const int64_t from = value(start.value_or(version_));
  const int64_t may = num_may_start_beside(rule_, value(version_), from, starts_);  // taken ones, too
  if (!formed_ || may == 0) return may;
  // A taken batch was chosen for what then remained: a start behind the version must fit into the updates after it, too.
  Starts left = starts_;
  for (const auto& [at, count] : formed_->starts) left[at] -= count;
  return std::min(may, num_may_start_beside(rule_, value(version_) + 1, from, left));
}

void SampleQueue::add(GroupId id, Entry entry) {
  ++starts_[value(entry.start)];
  num_waiting_ += entry.waits();
  const bool is_new = groups_.emplace(id, std::move(entry)).second;
  TANDEM_CHECK(is_new, "group ", value(id), " started twice");
}

void SampleQueue::remove(GroupId id) {
  const auto entry = groups_.find(id);
  count_start(entry->second.start, -1);
  num_waiting_ -= entry->second.waits();
  groups_.erase(entry);
}

void SampleQueue::count_start(PolicyVersion start, int64_t more) {
  const auto at = starts_.emplace(value(start), 0).first;
  if ((at->second += more) == 0) starts_.erase(at);
}

void SampleQueue::start(GroupId id, PolicyVersion version) {
  TANDEM_CHECK(num_may_start(version) > 0, "group ", value(id), " may not start at version ", value(version));
  adopt(id, version);
  waits_to_start_.erase(id);
}

void SampleQueue::adopt(GroupId id, PolicyVersion version) {
  TANDEM_CHECK(version <= version_, "group ", value(id), " starts at version ", value(version), " before there is one");
  add(id, Entry{version});
  newest_ = std::max(newest_, id);
  ++counters_.started;
}

void SampleQueue::follow(PolicyVersion version, std::span<const data::Waiting> waiting) {
  TANDEM_CHECK(version >= version_, "version ", value(version), " comes after ", value(version_));
  version_ = version;
  delay_starts(waiting);
}

bool SampleQueue::evict(GroupId id) {
  TANDEM_CHECK(!formed_, "group ", value(id), " is evicted while a batch is taken");
  if (!groups_.contains(id)) return false;
  remove(id);
  return true;
}

// To the versions that they wait for, as far as there are these.
void SampleQueue::delay_starts(std::span<const data::Waiting> waiting) {
  for (const data::Waiting& each : waiting)
    if (const auto found = groups_.find(each.id); found != groups_.end()) {
      count_start(found->second.start, -1);
      found->second.start = std::clamp(each.version, found->second.start, version_);
      count_start(found->second.start, 1);
    }
}

bool SampleQueue::fits(const data::Group& group, bool finished) const {
  const bool wants_scores = finished && takes_ != Takes::kUnscored;
  if (std::ssize(group.samples) != options_.group_size) return false;
  for (int64_t i = 0; i < options_.group_size; ++i) {
    const data::Sample& sample = group.samples[static_cast<size_t>(i)];
    if (sample.id != data::sample_id(group.id, options_.group_size, i) || (wants_scores && !sample.scored)) return false;
  }
  return true;
}

bool SampleQueue::put(data::Group group) {
  const GroupId id = group.id;
  TANDEM_CHECK(fits(group), "group ", value(id), " is put with samples missing, out of order or without scores");
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    TANDEM_CHECK(id <= newest_, "group ", value(id), " is put and never started");
    counters_.late_rows += options_.group_size;
    return true;
  }
  TANDEM_CHECK(!found->second.group, "group ", value(id), " is put twice");
  if (takes_ == Takes::kScoredWithSpread && data::compares_alike(group, shaping_)) return leave_as_filtered(id), false;
  found->second.group = std::move(group);
  ++num_waiting_;
  return true;
}

void SampleQueue::leave_as_filtered(GroupId id) {
  remove(id);
  filtered_.push_back(id);
  ++num_filtered_;
  ++counters_.filtered;
}

std::vector<Outstanding> SampleQueue::outstanding() const {
  std::vector<Outstanding> groups;
  for (const auto& [id, entry] : groups_)
    if (!entry.taken) groups.push_back({id, value(entry.start), entry.group.has_value()});
  return groups;
}

Choice SampleQueue::choose() const {
  if (formed_ || num_finished() < rule_.groups_per_step) return {};
  return choose_batch(rule_, value(version_), outstanding());
}

bool SampleQueue::batch_ready() {
  const Choice choice = choose();
  held_back_ = held_back_ || !choice.wait_for.empty();
  return !choice.batch.empty();
}

std::vector<GroupId> SampleQueue::must_wait_for() const { return choose().wait_for; }

std::vector<GroupId> Left::all() const {
  std::vector<GroupId> ids = dropped;
  ids.insert(ids.end(), filtered.begin(), filtered.end());
  return ids;
}

data::Batch SampleQueue::take(StepId step) { return take(step, choose().batch); }

data::Batch SampleQueue::take(StepId step, std::span<const GroupId> groups) {
  TANDEM_CHECK(!formed_, "step ", value(step), " taken before step ", value(formed_->step), " is committed");
  TANDEM_CHECK(std::ssize(groups) == rule_.groups_per_step, "step ", value(step), " taken before its batch is ready");
  const bool held_back = std::exchange(held_back_, false);
  counters_.waited += held_back;
  if (takes_ != Takes::kUnscored) num_filtered_ = 0;
  data::Batch batch{step, version_, {}};
  Formed formed{step, {groups.begin(), groups.end()}, {}, held_back};
  for (GroupId id : groups) {
    Entry& entry = groups_.at(id);
    TANDEM_CHECK(entry.waits(), "group ", value(id), " is taken, and is not finished");
    entry.taken = true;
    --num_waiting_;
    ++formed.starts[value(entry.start)];
    batch.groups.push_back(*entry.group);
  }
  formed_ = std::move(formed);
  return batch;
}

bool SampleQueue::give_back() {
  if (!formed_) return false;
  for (const GroupId id : formed_->groups) groups_.at(id).taken = false;
  num_waiting_ += std::ssize(formed_->groups);
  held_back_ = formed_->held_back;
  counters_.waited -= held_back_;
  formed_.reset();
  return true;
}

bool SampleQueue::unfinish(GroupId id) {
  const auto found = groups_.find(id);
  if (found == groups_.end() || !found->second.group) return false;
  if (found->second.taken) give_back();
  found->second.group.reset();
  --num_waiting_;
  return true;
}

std::vector<GroupId> SampleQueue::filter(StepId step, std::vector<data::Group> scored) {
  TANDEM_CHECK(takes_ == Takes::kUnscored, "groups are filtered where they are put");
  TANDEM_CHECK(formed_ && formed_->step == step, "filter of step ", value(step), ", which was not taken");
  std::vector<GroupId> alike;
  for (const data::Group& group : scored)
    if (data::compares_alike(group, shaping_)) alike.push_back(group.id);
  if (alike.empty()) {
    num_filtered_ = 0;
    return alike;
  }
  formed_.reset();
  for (data::Group& group : scored) {
    Entry& entry = groups_.at(group.id);
    entry.taken = false;
    entry.group = std::move(group);
    ++num_waiting_;
  }
  for (const GroupId id : alike) leave_as_filtered(id);
  return alike;
}

Left SampleQueue::commit(StepId step, PolicyVersion after, std::span<const data::Waiting> waiting) {
  TANDEM_CHECK(formed_ && formed_->step == step, "commit of step ", value(step), ", which was not taken");
  TANDEM_CHECK(value(after) == value(version_) + 1, "an update leads from version ", value(version_), " to ", value(after));
  for (GroupId id : formed_->groups) {
    const int64_t lag = value(version_) - value(groups_.at(id).start);
    TANDEM_CHECK(lag <= rule_.staleness, "group ", value(id), " was trained with lag ", lag, ", staleness is ", rule_.staleness);
    remove(id);
  }
  counters_.trained += std::ssize(formed_->groups);
  formed_.reset();
  version_ = after;
  delay_starts(waiting);
  Left left{too_stale(rule_, value(version_), outstanding()), std::exchange(filtered_, {})};
  for (GroupId id : left.dropped) remove(id);
  counters_.dropped += std::ssize(left.dropped);
  return left;
}

std::vector<GroupId> SampleQueue::next_in_line() const {
  std::vector<std::pair<PolicyVersion, GroupId>> waiting;  // as choose_batch orders them
  for (const auto& [id, entry] : groups_)
    if (entry.waits()) waiting.emplace_back(entry.start, id);
  std::ranges::sort(waiting);
  std::vector<GroupId> ids;
  for (const auto& [start, id] : waiting)
    if (std::ssize(ids) < rule_.groups_per_step) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

std::vector<GroupId> SampleQueue::finished() const {
  std::vector<GroupId> ids;
  for (const auto& [id, entry] : groups_)
    if (entry.waits()) ids.push_back(id);
  return ids;
}

}  // namespace tandem::queue
