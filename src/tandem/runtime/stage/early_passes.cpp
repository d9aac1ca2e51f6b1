// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/stage/early_passes.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/comm/agree.h"

namespace tandem::runtime {

int64_t EarlyPasses::num_tokens(const data::Group& head) const {
  int64_t tokens = bodies_.num_prompt_tokens(head);  // its samples share it
  for (const data::Sample& s : head.samples) tokens += bodies_.num_tokens(s.id);
  return tokens;
}

bool EarlyPasses::is_done(data::GroupId group) const {
  const auto known = known_.find(group);
  return known != known_.end() && known->second;
}

void EarlyPasses::work(std::span<const data::Group> finished, const TokenPass& pass) {
  for (const data::Group& head : finished) {
    if (!known_.try_emplace(head.id, false).second) continue;
    Share& share = *std::ranges::min_element(shares_, {}, &Share::num_tokens);
    share.waiting.push_back(head);
    share.num_tokens += num_tokens(head);
  }
  std::vector<data::Group> heads, mine;  // of all replicas; of this one's
  std::vector<int> borrowers;            // of each
  for (int dp = 0; dp < ranks_.train_layout.dp; ++dp) {
    std::deque<data::Group>& waiting = shares_[static_cast<size_t>(dp)].waiting;
    for (int64_t tokens = 0; !waiting.empty(); waiting.pop_front()) {
      const int64_t more = num_tokens(waiting.front());
      if (tokens > 0 && tokens + more > budget_tokens_) break;
      tokens += more;
      known_[waiting.front().id] = true;
      heads.push_back(waiting.front());
      borrowers.push_back(dp);
      if (dp == ranks_.train_dp_rank()) mine.push_back(waiting.front());
    }
  }
  if (heads.empty()) return;
  bodies_.lend(heads, borrowers);
  if (!ranks_.trains()) return;
  const double begin = now_s();
  for (const planner::StageKind stage : stages_) {
    TokenValues values = pass(stage, mine);
    size_t row = 0;
    for (const data::Group& head : mine)
      for (const data::Sample& s : head.samples) values_[stage][s.id] = std::move(values.at(row++));
  }
  seconds_ += now_s() - begin;
}

std::vector<std::optional<std::vector<float>>> EarlyPasses::take(planner::StageKind stage, std::span<const data::Group> heads) {
  std::vector<std::optional<std::vector<float>>> out(data::ids_of(heads).size());
  if (num_done(heads) == 0 || std::ranges::find(stages_, stage) == stages_.end()) return out;
  std::map<data::SampleId, std::vector<float>>& here = values_[stage];
  TokenValues rows(out.size());
  std::vector<bool> done(out.size());
  size_t row = 0;
  for (const data::Group& head : heads)
    for (const data::Sample& s : head.samples) {
      done[row] = is_done(head.id);
      if (const auto values = here.find(s.id); values != here.end()) rows[row] = std::move(values->second), here.erase(values);
      ++row;
    }
  // Who owns a row is decided when the batch is complete. Pipeline stages that have no values keep none.
  if (ranks_.train_layout.dp > 1) comm::exchange_rows(ranks_.side(), rows, ranks_.speaks_for_train());
  for (size_t i = 0; i < rows.size(); ++i)
    if (done[i]) out[i] = std::move(rows[i]);
  return out;
}

int64_t EarlyPasses::num_done(std::span<const data::Group> heads) const {
  return std::ranges::count_if(heads, [&](const data::Group& head) { return is_done(head.id); });
}

void EarlyPasses::forget() {
  known_.clear();
  values_.clear();
  std::ranges::fill(shares_, Share());
}

}  // namespace tandem::runtime
