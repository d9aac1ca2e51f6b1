// SPDX-License-Identifier: Apache-2.0
// The queue in a checkpoint: columns of numbers about groups, then one packed table for each finished group.
#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/data/columns.h"
#include "tandem/queue/sample_queue.h"

namespace tandem::queue {
namespace {

data::Column numbers(std::vector<int64_t> values) {
  const auto count = std::ssize(values);
  return {std::move(values), {count}};
}
data::Column text(const std::vector<std::byte>& bytes) {
  std::vector<char> chars(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) chars[i] = static_cast<char>(bytes[i]);
  const auto count = std::ssize(chars);
  return {std::move(chars), {count}};
}

template <class T>
const std::vector<T>& values_of(const data::Fields& fields, const std::string& name) {
  const auto found = fields.find(name);
  const auto* values = found == fields.end() ? nullptr : std::get_if<std::vector<T>>(&found->second.values);
  if (!values) throw PeerError("queue state: no column " + name);
  return *values;
}

/// What a saved queue and the one that continues it must agree on. The bound holds for one staleness rule only.
std::vector<int64_t> identity(const Options& o) {
  return {o.groups_per_step, o.group_size, o.staleness, static_cast<int64_t>(o.staleness_rule().policy)};
}

std::string group_column(int64_t id) { return join_text("group ", id); }

/// What a saved queue says of itself beside its groups, each as a number.
struct Progress {
  int64_t version = 0, newest = 0, held_back = 0;
  Counters counters;

  /// The order in the column.
  void each(auto&& visit) {
    visit(version), visit(newest), visit(held_back);
    visit(counters.started), visit(counters.trained), visit(counters.dropped), visit(counters.waited), visit(counters.late_rows);
    visit(counters.filtered);
  }
};

std::vector<int64_t> numbers_of(Progress progress) {
  std::vector<int64_t> numbers;
  progress.each([&](int64_t number) { numbers.push_back(number); });
  return numbers;
}

Progress progress_of(const std::vector<int64_t>& numbers) {
  Progress progress;
  const size_t all = numbers_of(progress).size(), without_filter = all - 1;  // as older checkpoints have it
  if (numbers.size() != all && numbers.size() != without_filter) throw PeerError("queue state: columns of the wrong length");
  size_t next = 0;
  progress.each([&](int64_t& number) { number = next < numbers.size() ? numbers[next++] : 0; });
  if (*std::min_element(numbers.begin(), numbers.end()) < -1) throw PeerError("queue state: a count is negative");
  return progress;
}

data::Fields fields_of(const data::Group& group) { return data::fields_of({&group, 1}); }

data::Group group_of(const data::Fields& table, int64_t group_size) {
  for (const auto& [name, column] : table)
    if (column.num_rows() != group_size) throw PeerError("queue state: field " + name + " has the wrong number of rows");
  std::vector<data::Group> groups = data::groups_of(table);
  if (groups.size() != 1) throw PeerError("queue state: a table with the rows of several groups, or of none");
  return std::move(groups.front());
}

}  // namespace

std::vector<std::byte> SampleQueue::state(const Rewrite& rewritten) const {
  TANDEM_CHECK(!formed_, "the state of a queue is saved between a commit and the next take");
  data::Fields saved;
  std::vector<int64_t> running, finished, starts;
  for (const auto& [id, entry] : groups_) {
    if (!entry.group) {
      running.push_back(value(id));
      continue;
    }
    finished.push_back(value(id));
    starts.push_back(value(entry.start));
    saved[group_column(value(id))] = text(data::pack(fields_of(rewritten ? rewritten(*entry.group) : *entry.group)));
  }
  for (const GroupId id : waits_to_start_) running.push_back(value(id));  // of a queue that was restored, and did not go on yet
  std::ranges::sort(running);
  Counters counters = counters_;
  counters.started += std::ssize(waits_to_start_);
  saved["running"] = numbers(running);
  saved["finished"] = numbers(finished);
  saved["starts"] = numbers(starts);
  saved["rule"] = numbers(identity(options_));
  saved["run"] = numbers(numbers_of({value(version_), value(newest_), held_back_, counters}));
  std::vector<int64_t> filtered;
  for (const GroupId id : filtered_) filtered.push_back(value(id));
  saved["filtered"] = numbers(std::move(filtered));
  return data::pack(saved);
}

std::vector<GroupId> SampleQueue::restore(std::span<const std::byte> bytes, const Rewrite& kept) {
  const data::Fields saved = data::unpack(bytes);
  const Progress progress = progress_of(values_of<int64_t>(saved, "run"));
  const auto& running = values_of<int64_t>(saved, "running");
  const auto &finished = values_of<int64_t>(saved, "finished"), &starts = values_of<int64_t>(saved, "starts");
  if (finished.size() != starts.size()) throw PeerError("queue state: columns of the wrong length");
  if (progress.counters.started < std::ssize(running)) throw PeerError("queue state: more groups run than were started");
  if (values_of<int64_t>(saved, "rule") != identity(options_))
    throw UserError("queue", "groups_per_step, group_size, staleness or lag_policy differs from that of the checkpoint",
                    "resume with those of the run");

  TANDEM_CHECK(groups_.empty() && counters_.started == 0, "restore into a queue in use");
  for (size_t g = 0; g < finished.size(); ++g) {
    const auto& chars = values_of<char>(saved, group_column(finished[g]));
    data::Group group = group_of(data::unpack(std::as_bytes(std::span(chars))), options_.group_size);
    if (value(group.id) != finished[g] || !fits(group)) throw PeerError("queue state: a finished group lacks samples or scores");
    if (kept) group = kept(std::move(group));
    if (groups_.contains(GroupId{finished[g]})) throw PeerError("queue state: a finished group stands there twice");
    add(GroupId{finished[g]}, Entry{PolicyVersion{starts[g]}, std::move(group)});
  }
  version_ = PolicyVersion{progress.version};
  newest_ = GroupId{progress.newest};
  held_back_ = progress.held_back != 0;
  counters_ = progress.counters;
  counters_.started -= std::ssize(running);  // they start again
  if (saved.contains("filtered"))
    for (const int64_t id : values_of<int64_t>(saved, "filtered")) filtered_.push_back(GroupId{id});
  std::vector<GroupId> again;
  for (int64_t id : running) again.push_back(GroupId{id});
  waits_to_start_.insert(again.begin(), again.end());
  return again;
}

}  // namespace tandem::queue
