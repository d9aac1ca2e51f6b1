// SPDX-License-Identifier: Apache-2.0
// The queue in a checkpoint: columns of numbers about groups, then one packed table per finished group.
#include "tandem/base/check.h"
#include "tandem/base/error.h"
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

}  // namespace

std::vector<std::byte> SampleQueue::state(const Rewrite& rewritten) const {
  std::lock_guard lock(mutex_);
  TANDEM_CHECK(!formed_, "the state of a queue is saved between a commit and the next take");
  data::Fields saved;
  std::vector<int64_t> running, finished, starts;
  for (const auto& [id, entry] : groups_) {
    if (!entry.finished) {
      running.push_back(value(id));
      continue;
    }
    finished.push_back(value(id));
    starts.push_back(value(entry.start));
    data::Fields table;
    for (const Row& row : entry.rows)
      for (const auto& [name, column] : row.fields) data::append(table[name], column);
    // A field that only some rows have is made again by the stage that was about to complete it.
    std::erase_if(table, [&](const auto& field) { return field.second.num_rows() < options_.group_size; });
    saved[group_column(value(id))] = text(data::pack(rewritten ? rewritten(std::move(table)) : table));
  }
  saved["running"] = numbers(running);
  saved["finished"] = numbers(finished);
  saved["starts"] = numbers(starts);
  saved["rule"] = numbers(identity(options_));
  saved["run"] = numbers({value(version_), value(newest_), held_back_, counters_.started, counters_.trained, counters_.dropped,
                          counters_.waited, counters_.late_rows});
  return data::pack(saved);
}

std::vector<GroupId> SampleQueue::restore(std::span<const std::byte> bytes, const Rewrite& kept) {
  const data::Fields saved = data::unpack(bytes);
  const auto &run = values_of<int64_t>(saved, "run"), &running = values_of<int64_t>(saved, "running");
  const auto &finished = values_of<int64_t>(saved, "finished"), &starts = values_of<int64_t>(saved, "starts");
  if (run.size() != 8 || finished.size() != starts.size()) throw PeerError("queue state: columns of the wrong length");
  if (values_of<int64_t>(saved, "rule") != identity(options_))
    throw UserError("queue", "groups_per_step, group_size, staleness or lag_policy differs from that of the checkpoint",
                    "resume with those of the run");

  std::lock_guard lock(mutex_);
  TANDEM_CHECK(groups_.empty() && counters_.started == 0, "restore into a queue in use");
  for (size_t g = 0; g < finished.size(); ++g) {
    const auto& chars = values_of<char>(saved, group_column(finished[g]));
    data::Fields table = data::unpack(std::as_bytes(std::span(chars)));
    if (kept) table = kept(std::move(table));
    Entry entry{PolicyVersion{starts[g]}, std::vector<Row>(static_cast<size_t>(options_.group_size))};
    for (const auto& [name, column] : table) {
      if (column.num_rows() != options_.group_size) throw PeerError("queue state: field " + name + " has the wrong number of rows");
      for (int64_t i = 0; i < options_.group_size; ++i) entry.rows[static_cast<size_t>(i)].fields[name] = data::rows(column, i, i + 1);
    }
    entry.finished = true;
    if (!ready(entry, needs_.batch)) throw PeerError("queue state: a finished group lacks fields");
    groups_.emplace(GroupId{finished[g]}, std::move(entry));
  }
  num_finished_ = std::ssize(finished);
  version_ = PolicyVersion{run[0]};
  newest_ = GroupId{run[1]};
  held_back_ = run[2] != 0;
  counters_ = {run[3], run[4], run[5], run[6], run[7]};
  counters_.started -= std::ssize(running);  // they start again
  std::vector<GroupId> again;
  for (int64_t id : running) again.push_back(GroupId{id});
  return again;
}

}  // namespace tandem::queue
