// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/scheduler.h"

#include <algorithm>
#include <utility>

#include "tandem/base/check.h"

namespace tandem::rollout {
namespace {

bool never_ran(const Sequence* s) { return s->order < 0; }

// `counts[i]` tokens of each running sequence; those that then have run all of theirs draw one.
void add_runs(Plan& plan, const std::vector<Sequence*>& running, const std::vector<int64_t>& counts) {
  plan.runs.reserve(running.size());
  for (size_t i = 0; i < running.size(); ++i) {
    Sequence& s = *running[i];
    if (counts[i] == 0) continue;
    plan.runs.push_back({s.id, std::ssize(plan.ids), counts[i], s.num_cached, s.blocks, std::exchange(s.starts, false)});
    plan.ids.insert(plan.ids.end(), s.tokens.begin() + s.num_cached, s.tokens.begin() + s.num_cached + counts[i]);
    if (counts[i] < s.num_pending()) continue;
    plan.draws.push_back({s.id, std::ssize(plan.rows)});
    plan.rows.push_back(std::ssize(plan.ids) - 1);
  }
}

}  // namespace

std::vector<uint64_t> Announced::marks_of(const std::vector<int32_t>& prompt, int64_t block_tokens, bool runs_all_tokens) {
  std::vector<uint64_t> marks;
  uint64_t hash = 1;
  for (size_t i = 0; i < prompt.size(); ++i) {
    hash = mixed(hash, static_cast<uint64_t>(prompt[i]));
    if ((i + 1) % static_cast<size_t>(block_tokens) == 0) marks.push_back(hash);
  }
  marks.push_back(mixed(hash, runs_all_tokens ? 3 : 2));
  return marks;
}

void Announced::announce(Sequence& s, int64_t block_tokens) {
  s.end_announced = std::ssize(s.marks) - (s.has_token() ? 1 : 0);
  s.first_announced = std::min(s.num_cached / block_tokens, s.end_announced);
  for (int64_t i = s.first_announced; i < s.end_announced; ++i) ++num_[s.marks[static_cast<size_t>(i)]];
}

void Announced::advance(Sequence& s, int64_t block_tokens) { drop_until(s, std::min(s.num_cached / block_tokens, s.end_announced)); }

void Announced::withdraw(Sequence& s) { drop_until(s, s.end_announced); }

bool Announced::blocks_of(const Sequence& s, int64_t num_full, int64_t block_tokens) const {
  if (s.runs_all_tokens) return false;
  int64_t soon = num_full;
  while (soon + 1 < std::ssize(s.marks) && num_.contains(s.marks[static_cast<size_t>(soon)])) ++soon;
  return soon > num_full && SequenceBlocks::worth_taking(soon * block_tokens, s.length());
}

void Announced::drop_until(Sequence& s, int64_t end) {
  for (; s.first_announced < end; ++s.first_announced) {
    const auto it = num_.find(s.marks[static_cast<size_t>(s.first_announced)]);
    if (--it->second == 0) num_.erase(it);
  }
}

Scheduler::Scheduler(const Options& options, bool takes_blocks_early)
    : options_(options), takes_blocks_early_(takes_blocks_early), blocks_(options.kv_block_tokens) {}

void Scheduler::open(int64_t num_blocks) { blocks_.open(num_blocks); }

void Scheduler::submit(SequenceId id, std::vector<int32_t> prompt, bool runs_all_tokens, std::span<const int32_t> response) {
  TANDEM_CHECK(!prompt.empty(), "a prompt without tokens");
  Sequence& s = sequences_[id];
  s.id = id;
  s.num_prompt = std::ssize(prompt);
  s.runs_all_tokens = runs_all_tokens;
  s.marks = Announced::marks_of(prompt, options_.kv_block_tokens, runs_all_tokens);
  s.tokens = std::move(prompt);
  if (response.empty()) return waiting_.push_back(&s);
  s.tokens.insert(s.tokens.end(), response.begin(), response.end());
  s.order = next_order_++;
  preempted_.push_back(&s);
}

void Scheduler::free_blocks(Sequence& s) {
  announced_.withdraw(s);
  blocks_.release(s);
}

void Scheduler::cancel(SequenceId id) {
  Sequence& s = sequences_.at(id);
  free_blocks(s);
  std::erase(waiting_, &s);
  std::erase(ready_, &s);
  std::erase(preempted_, &s);
  std::erase(running_, &s);
  sequences_.erase(id);
}

Plan Scheduler::plan() {
  Plan plan;
  do {
    start_ready(plan.copies);
    start_others();
  } while (running_.empty() && reclaim(plan.restarted));  // those that are ready may hold all blocks, and need one more
  const std::vector<int64_t> counts = make_room(plan);
  add_runs(plan, running_, counts);
  add_twins(plan);
  return plan;
}

// Sequences whose prompt has run come before all others, and without a reserve: they hold most of what they need.
void Scheduler::start_ready(std::vector<BlockCopy>& copies) {
  for (Sequence* s : ready_) {
    if (std::ssize(running_) >= options_.max_running) break;
    if (!blocks_.make_room(*s, s->num_cached, copies)) continue;
    s->order = next_order_++;
    s->starts = true;
    running_.push_back(s);
  }
  std::erase_if(ready_, [](const Sequence* s) { return !never_ran(s); });
}

void Scheduler::start_others() {
  auto next = waiting_.begin();
  while (std::ssize(running_) < options_.max_running) {
    const bool again = !preempted_.empty();
    if (!again && !ready_.empty()) break;  // they come first
    Sequence* s = nullptr;
    SequenceBlocks::Found found;
    if (again) {
      s = preempted_.front();
      found = blocks_.find_for(*s);
    }
    for (; !s && next != waiting_.end(); ++next) {  // a sequence waits for what another computes
      if (announced_.twin_of(**next)) continue;
      found = blocks_.find_for(**next);
      if (announced_.blocks_of(**next, found.num_full, options_.kv_block_tokens)) continue;
      s = *next;
      break;
    }
    if (!s) break;
    // One free block per running sequence stays in reserve, so that admission does not cause a preemption at once.
    if (!running_.empty() && blocks_.num_needed(*s, found) + std::ssize(running_) > blocks_.num_free()) break;
    if (again) preempted_.pop_front();
    else ++next;
    start(*s, found);
  }
  std::erase_if(waiting_, [](const Sequence* s) { return !never_ran(s); });
}

void Scheduler::start(Sequence& s, const SequenceBlocks::Found& found) {
  blocks_.take(s, found);
  if (never_ran(&s)) s.order = next_order_++;
  s.starts = true;
  running_.push_back(&s);
  announced_.announce(s, options_.kv_block_tokens);
}

// How many tokens of each running sequence run: all that are not cached, or what is left of the budget for prompts.
std::vector<int64_t> Scheduler::make_room(Plan& plan) {
  int64_t budget = options_.prefill_tokens;
  // Oldest first; when no block is left the youngest gives its blocks back and is computed again later.
  std::ranges::stable_sort(running_, {}, &Sequence::order);
  std::vector<int64_t> counts;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    int64_t n = s.num_pending();
    if (n > 1) budget -= (n = std::min(n, budget));
    while (n > 0 && !blocks_.make_room(s, s.num_cached + n, plan.copies)) {
      if (reclaim(plan.restarted)) continue;  // those that only wait for a slot go before one that runs
      TANDEM_CHECK(running_.size() > 1, "one sequence does not fit into the KV cache");
      Sequence* youngest = running_.back();
      running_.pop_back();
      free_blocks(*youngest);
      preempted_.push_front(youngest);
      ++num_preemptions_;
      if (i >= running_.size()) n = 0;
    }
    if (i >= running_.size()) break;
    counts.push_back(n);
    const bool has_spare = blocks_.num_free() > std::ssize(running_);
    if (takes_blocks_early_ && n > 0 && n == s.num_pending() && has_spare) (void)blocks_.make_room(s, s.num_cached + n + 1, plan.copies);
  }
  return counts;
}

// The youngest of those that wait with a first token, and all that share its blocks, start over; false if there is none.
bool Scheduler::reclaim(Ids& restarted) {
  if (ready_.empty()) return false;
  const std::vector<int32_t> blocks = ready_.back()->blocks;
  for (auto it = ready_.rbegin(); it != ready_.rend(); ++it) {
    Sequence* s = *it;
    if (s->blocks != blocks) continue;
    free_blocks(*s);
    s->tokens.resize(static_cast<size_t>(s->num_prompt));
    s->num_run = 0;
    waiting_.push_front(s);
    restarted.push_back(s->id);
  }
  std::erase_if(ready_, [](const Sequence* s) { return !s->has_token(); });
  return true;
}

// Those that wait with the tokens of a row draw their first token from it, too.
void Scheduler::add_twins(Plan& plan) const {
  std::unordered_map<uint64_t, Plan::Draw> first_draws;
  for (const Plan::Draw& draw : plan.draws)
    if (const Sequence& s = sequence(draw.sequence); !s.has_token()) first_draws.emplace(s.marks.back(), draw);
  if (first_draws.empty()) return;
  for (const Sequence* s : waiting_) {
    const auto it = first_draws.find(s->marks.back());
    if (it == first_draws.end()) continue;
    const Sequence& runner = sequence(it->second.sequence);
    if (runner.tokens == s->tokens && runner.runs_all_tokens == s->runs_all_tokens) plan.draws.push_back({s->id, it->second.row});
  }
  std::ranges::stable_sort(plan.draws, {}, &Plan::Draw::row);
}

void Scheduler::complete(const Plan& plan, std::span<const Outcome> outcomes) {
  TANDEM_CHECK(outcomes.size() == plan.draws.size(), outcomes.size(), " outcomes of ", plan.draws.size(), " draws");
  for (const Plan::Run& run : plan.runs) {
    Sequence& s = sequences_.at(run.sequence);
    s.num_cached += run.count;
    s.num_run = std::max(s.num_run, s.num_cached);
    blocks_.record(s, s.num_cached == s.length() && !s.has_token());  // all of a prompt is found
    announced_.advance(s, options_.kv_block_tokens);
  }
  share_prompts(plan, outcomes);
  for (const Outcome& outcome : outcomes) {
    Sequence& s = sequences_.at(outcome.sequence);
    if (!s.has_token()) announced_.withdraw(s);
    s.tokens.push_back(outcome.token);
    s.ended = outcome.ends;
    if (s.ended) free_blocks(s);
  }
  if (outcomes.size() > plan.rows.size()) std::erase_if(waiting_, [](const Sequence* s) { return s->has_token(); });
  if (std::ranges::none_of(outcomes, &Outcome::ends)) return;
  std::erase_if(running_, [](const Sequence* s) { return s->ended; });
  for (const Outcome& outcome : outcomes)
    if (outcome.ends) sequences_.erase(outcome.sequence);
}

// Those that drew from another's row hold its blocks, too, and wait for a slot.
void Scheduler::share_prompts(const Plan& plan, std::span<const Outcome> outcomes) {
  const Sequence* runner = nullptr;
  for (size_t d = 0; d < plan.draws.size(); ++d) {
    Sequence& s = sequences_.at(plan.draws[d].sequence);
    TANDEM_CHECK(outcomes[d].sequence == s.id, "outcome ", d, " is of another sequence");
    if (!never_ran(&s)) runner = &s;  // it comes first of its row
    else if (!outcomes[d].ends) {
      blocks_.take(s, {runner->blocks, runner->num_cached, 0});
      s.num_run = s.num_cached;
      ready_.push_back(&s);
    }
  }
}

std::vector<SequenceId> Scheduler::switch_version(PolicyVersion version) {
  Ids restarted;
  while (reclaim(restarted)) {}
  for (Sequence* s : running_) {
    announced_.withdraw(*s);
    if (s->has_token() && !s->starts) continue;
    blocks_.release(*s);  // what it has was found, or led to no token
    if (s->has_token()) continue;
    s->num_run = 0;
    s->starts = true;
    announced_.announce(*s, options_.kv_block_tokens);
    restarted.push_back(s->id);
  }
  blocks_.set_version(version);  // what was released until here is of the old one
  for (Sequence* s : running_) s->computed_by = s->num_cached > 0 ? std::nullopt : std::optional(version);
  for (Sequence* s : preempted_)
    if (!s->has_token()) {
      s->num_run = 0;
      restarted.push_back(s->id);
    }
  return restarted;
}

void Scheduler::forget_cache() {
  TANDEM_CHECK(empty(), "sequences are under way");
  blocks_.set_version(blocks_.version());
}

std::vector<SequenceId> Scheduler::release_all() {
  Ids restarted;
  while (reclaim(restarted)) {}
  std::ranges::stable_sort(running_, {}, &Sequence::order);
  for (; !running_.empty(); running_.pop_back()) {  // the youngest goes first, and is the last to come back
    Sequence* s = running_.back();
    free_blocks(*s);
    preempted_.push_front(s);
    if (s->has_token()) continue;
    s->num_run = 0;
    restarted.push_back(s->id);
  }
  blocks_.open(0);
  return restarted;
}

}  // namespace tandem::rollout
