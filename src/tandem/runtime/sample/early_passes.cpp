// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/sample/early_passes.h"

#include <algorithm>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/agree.h"
#include "tandem/runtime/folder/step_failed.h"

namespace tandem::runtime {

EarlyPasses::EarlyPasses(const policy::Ranks& ranks, BatchRows& bodies, int64_t group_size, EarlyStages early)
    : ranks_(ranks), bodies_(bodies), group_size_(group_size), early_(std::move(early)),
      num_tokens_(static_cast<size_t>(ranks.train_layout.dp)) {}

int64_t EarlyPasses::num_tokens(data::GroupId group) const {
  const data::Group head = data::bare_heads({&group, 1}, group_size_).front();
  int64_t tokens = bodies_.num_prompt_tokens(head);  // its samples share it
  for (const data::Sample& s : head.samples) tokens += bodies_.num_tokens(s.id);
  return tokens;
}

data::EarlyGroups EarlyPasses::plan(std::span<const data::GroupId> finished) const {
  data::EarlyGroups groups(num_tokens_.size());
  std::vector<int64_t> all = num_tokens_, now(num_tokens_.size());
  for (const data::GroupId id : finished) {
    if (done_.contains(id)) continue;
    const auto dp = static_cast<size_t>(std::ranges::min_element(all) - all.begin());
    const int64_t tokens = num_tokens(id);
    if (now[dp] > 0 && now[dp] + tokens > early_.budget_tokens) break;
    now[dp] += tokens, all[dp] += tokens;
    groups[dp].push_back(id);
  }
  const bool none = std::ranges::all_of(groups, [](const auto& each) { return each.empty(); });
  return none ? data::EarlyGroups() : groups;
}

void EarlyPasses::lend(const data::EarlyGroups& groups) {
  TANDEM_CHECK(groups.size() == num_tokens_.size(), "early passes of ", groups.size(), " replicas, and there are ", num_tokens_.size());
  std::vector<data::GroupId> ids;
  std::vector<int> borrowers;
  for (size_t dp = 0; dp < groups.size(); ++dp)
    for (const data::GroupId id : groups[dp]) {
      ids.push_back(id);
      borrowers.push_back(static_cast<int>(dp));
      num_tokens_[dp] += num_tokens(id);
      done_.insert(id);
    }
  bodies_.lend(data::bare_heads(ids, group_size_), borrowers);
}

void EarlyPasses::make(const data::EarlyGroups& groups) {
  const double begin = now_s();
  const std::vector<data::Group> mine = data::bare_heads(groups.at(static_cast<size_t>(ranks_.train_dp_rank())), group_size_);
  const std::vector<data::SampleId> ids = data::ids_of(mine);
  std::vector<train::Row> rows;
  fail_alike(ranks_.side(), [&] { rows = early_.rows(mine); });
  for (const planner::StageKind stage : early_.stages) {
    TokenValues values = early_.pass(stage, rows);
    TANDEM_CHECK(values.size() == ids.size(), values.size(), " rows of values for ", ids.size());
    for (size_t row = 0; row < ids.size(); ++row) values_[stage][ids[row]] = std::move(values[row]);
  }
  seconds_ += now_s() - begin;
}

std::vector<std::optional<std::vector<float>>> EarlyPasses::take(planner::StageKind stage, std::span<const data::Group> heads) {
  const std::vector<data::SampleId> ids = data::ids_of(heads);
  std::vector<std::optional<std::vector<float>>> out(ids.size());
  if (num_done(heads) == 0 || std::ranges::find(early_.stages, stage) == early_.stages.end()) return out;
  std::map<data::SampleId, std::vector<float>>& here = values_[stage];
  TokenValues rows(ids.size());
  for (size_t row = 0; row < ids.size(); ++row)
    if (const auto values = here.find(ids[row]); values != here.end()) rows[row] = std::move(values->second), here.erase(values);
  // Who trains a row is decided when the batch is complete.
  if (ranks_.train_layout.dp > 1) comm::exchange_rows(ranks_.side(), rows, ranks_.speaks_for_train());
  const bool is_last_stage = ranks_.train_layout.pp_rank(ranks_.train_rank()) == ranks_.train_layout.pp - 1;
  size_t row = 0;
  for (const data::Group& head : heads)
    for (size_t i = 0; i < head.samples.size(); ++i, ++row)
      if (done_.contains(head.id)) out[row] = is_last_stage ? std::move(rows[row]) : std::vector<float>();
  return out;
}

int64_t EarlyPasses::num_done(std::span<const data::Group> heads) const {
  return std::ranges::count_if(heads, [&](const data::Group& head) { return done_.contains(head.id); });
}

void EarlyPasses::forget() {
  done_.clear();
  values_.clear();
  std::ranges::fill(num_tokens_, 0);
}

}  // namespace tandem::runtime
