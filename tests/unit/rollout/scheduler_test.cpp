// SPDX-License-Identifier: Apache-2.0
#include "tandem/rollout/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <set>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/rng.h"

namespace tandem::rollout {
namespace {

using Tokens = std::vector<int32_t>;

/// What one slot of the cache holds: the version that computed it, and all tokens up to its own as one hash.
struct Slot {
  int64_t version = -1;
  uint64_t chain = 0;
  bool operator==(const Slot&) const = default;
};

uint64_t chain_of(const Tokens& tokens, int64_t end) {
  uint64_t chain = 17;
  for (int64_t i = 0; i < end; ++i) chain = (chain + static_cast<uint64_t>(tokens[static_cast<size_t>(i)]) + 1) * 0x9e3779b97f4a7c15ull;
  return chain;
}

/// What goes wrong on purpose, so that the check is seen to find it.
enum class Fault { kNone, kNoCopies, kUnheardSwitch, kLostSequence };

/// Says what is wrong in the name of a trace.
struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void require(bool holds, const auto&... parts) {
  if (!holds) throw Wrong(join_text(parts...));
}

/// Runs plans as an engine would, on a cache that knows what is in each slot.
class World {
 public:
  struct Told {
    Tokens tokens;
    int64_t num_prompt = 0, wanted = 0;
    std::vector<int64_t> versions;   // of the tokens in the cache
  };

  World(const Options& options, int64_t num_blocks, Fault fault = Fault::kNone, bool runs_ahead = false)
      : options_(options), num_blocks_(num_blocks), fault_(fault), runs_ahead_(runs_ahead), scheduler_(options, runs_ahead) {
    wake(0);
  }

  SequenceId submit(const Tokens& prompt, int64_t wanted, bool runs_all = false) {
    const SequenceId id{next_++};
    scheduler_.submit(id, prompt, runs_all);
    told_[id] = {prompt, std::ssize(prompt), wanted, {}};
    return id;
  }
  void cancel(SequenceId id) {
    scheduler_.cancel(id);
    told_.erase(id);
    check_blocks();
  }
  void switch_version(int64_t version) {
    version_ = version;
    if (fault_ == Fault::kUnheardSwitch) return;
    restart(scheduler_.switch_version(PolicyVersion{version}), true);
    check_blocks();
  }
  void sleep() {
    restart(scheduler_.release_all(), true);
    for (auto& [id, told] : told_) told.versions.clear();
    cache_.clear();
    check_blocks();
  }
  void wake(int64_t version) {
    cache_.assign(static_cast<size_t>(num_blocks_), std::vector<Slot>(static_cast<size_t>(options_.kv_block_tokens)));
    scheduler_.open(num_blocks_);
    version_ = version;
    restart(scheduler_.switch_version(PolicyVersion{version}), true);
  }

  /// One step; `draw` gives the token after tokens that are drawn from. Returns the plan.
  Plan step(const std::function<int32_t(const Told&)>& draw) {
    Plan plan = scheduler_.plan();
    restart(plan.restarted, false);
    require(told_.empty() || !plan.ids.empty(), "a step without tokens, and ", told_.size(), " sequences wait");
    if (fault_ != Fault::kNoCopies)
      for (const BlockCopy& copy : plan.copies) block(copy.to) = block(copy.from);
    write(plan);
    for (const Plan::Run& run : plan.runs) read(run);
    check_draws(plan);
    check_order(plan);
    std::vector<Outcome> outcomes;
    for (const Plan::Draw& each : plan.draws) {
      Told& told = told_.at(each.sequence);
      told.tokens.push_back(draw(told));
      outcomes.push_back({each.sequence, told.tokens.back(), std::ssize(told.tokens) - told.num_prompt >= told.wanted});
    }
    if (runs_ahead_) run_ahead(plan);
    scheduler_.complete(plan, outcomes);
    for (const Outcome& outcome : outcomes)
      if (outcome.ends) {
        ended_[outcome.sequence] = std::move(told_.at(outcome.sequence).tokens);
        told_.erase(outcome.sequence);
      }
    check_blocks();
    return plan;
  }

  /// Each block is free or has as many references as sequences hold it; none has it twice.
  void check_blocks() {
    const BlockLedger& ledger = scheduler_.blocks().ledger();
    std::vector<int64_t> held(static_cast<size_t>(ledger.num_blocks()));
    size_t skipped = fault_ == Fault::kLostSequence ? 1 : 0;
    for (const auto& [id, told] : told_) {
      const std::vector<int32_t>& blocks = scheduler_.sequence(id).blocks;
      require(std::set(blocks.begin(), blocks.end()).size() == blocks.size(), "a sequence holds a block twice");
      if (!blocks.empty() && skipped > 0 && skipped--) continue;
      for (int32_t b : blocks) ++held[static_cast<size_t>(b)];
    }
    int64_t num_free = 0;
    for (int32_t b = 0; b < ledger.num_blocks(); ++b) {
      const int64_t holders = held[static_cast<size_t>(b)];
      require(ledger.references(b) == holders, "block ", b, " has ", ledger.references(b), " references and ", holders, " holders");
      num_free += holders == 0;
    }
    require(num_free == ledger.num_free(), num_free, " blocks are free, and ", ledger.num_free(), " are in the list");
    require(scheduler_.empty() == told_.empty(), "the scheduler has other sequences");
  }

  const std::map<SequenceId, Told>& told() const { return told_; }
  const std::map<SequenceId, Tokens>& ended() const { return ended_; }
  const Scheduler& scheduler() const { return scheduler_; }
  int64_t version() const { return version_; }
  int64_t num_ran_ahead() const { return num_ran_ahead_; }
  int64_t num_stayed_behind() const { return num_stayed_behind_; }
  int64_t tokens_left() const {
    int64_t left = 0;
    for (const auto& [id, told] : told_) left += told.num_prompt + told.wanted;
    return left;
  }

 private:
  std::vector<Slot>& block(int32_t b) { return cache_.at(static_cast<size_t>(b)); }
  Slot& slot(const Plan::Run& run, int64_t position) {
    const int64_t size = options_.kv_block_tokens;
    require(position / size < std::ssize(run.blocks), "a sequence has no block for token ", position);
    return block(run.blocks[static_cast<size_t>(position / size)])[static_cast<size_t>(position % size)];
  }

  void restart(const std::vector<SequenceId>& ids, bool by_switch) {
    for (SequenceId id : ids) {
      Told& told = told_.at(id);
      require(!by_switch || std::ssize(told.tokens) <= told.num_prompt + 1, "more than a first token is dropped");
      require(scheduler_.sequence(id).length() == told.num_prompt, "a sequence that starts over keeps a token");
      told.tokens.resize(static_cast<size_t>(told.num_prompt));
      told.versions.clear();
    }
  }

  void write(const Plan& plan) {
    std::map<int32_t, SequenceId> writers;
    for (const Plan::Run& run : plan.runs) {
      Told& told = told_.at(run.sequence);
      const bool anew = run.starts || run.position == 0;
      require(anew || run.position == std::ssize(told.versions), "tokens of a running sequence are lost");
      if (anew) told.versions.assign(static_cast<size_t>(run.position), version_);
      for (int64_t t = 0; t < run.count; ++t) {
        const int64_t at = run.position + t;
        require(plan.ids[static_cast<size_t>(run.begin + t)] == told.tokens.at(static_cast<size_t>(at)), "another token runs");
        const int32_t b = run.blocks[static_cast<size_t>(at / options_.kv_block_tokens)];
        const auto [writer, first] = writers.emplace(b, run.sequence);
        require(first || writer->second == run.sequence, "two sequences write into block ", b);
        slot(run, at) = {version_, chain_of(told.tokens, at + 1)};
        told.versions.push_back(version_);
      }
    }
  }

  // The token that was just drawn is written before the scheduler hears of it, whether its sequence ends with it or not.
  void run_ahead(const Plan& plan) {
    for (const Plan::Run& run : plan.runs) {
      const Tokens& tokens = told_.at(run.sequence).tokens;
      const int64_t position = run.position + run.count;
      if (position + 1 != std::ssize(tokens)) continue;  // a part of a prompt
      const bool has_block = position / options_.kv_block_tokens < std::ssize(run.blocks);
      ++(has_block ? num_ran_ahead_ : num_stayed_behind_);
      if (has_block) slot(run, position) = {version_, chain_of(tokens, position + 1)};
    }
  }

  void read(const Plan::Run& run) {
    const Told& told = told_.at(run.sequence);
    for (int64_t at = 0; at < run.position + run.count; ++at) {
      const Slot found = slot(run, at), want{told.versions[static_cast<size_t>(at)], chain_of(told.tokens, at + 1)};
      require(found.chain == want.chain, "token ", at, " of sequence ", value(run.sequence), " reads what other tokens left");
      require(found.version == want.version, "token ", at, " reads version ", found.version, " for version ", want.version);
    }
  }

  void check_draws(const Plan& plan) {
    std::set<SequenceId> seen;
    for (const Plan::Draw& draw : plan.draws) {
      const int64_t token = plan.rows.at(static_cast<size_t>(draw.row));
      const auto run = std::ranges::find_if(plan.runs, [&](const Plan::Run& r) { return token == r.begin + r.count - 1; });
      require(run != plan.runs.end(), "a row is not the last token of a run");
      require(seen.insert(draw.sequence).second, "a sequence draws twice");
      const Told& runner = told_.at(run->sequence);
      require(run->position + run->count == std::ssize(runner.tokens), "a row before the last token");
      require(told_.at(draw.sequence).tokens == runner.tokens, "a sequence draws from the row of other tokens");
    }
  }

  /// Nobody starves: no prompt starts before a sequence that was preempted comes back.
  void check_order(const Plan& plan) {
    for (const Plan::Run& run : plan.runs) {
      const Sequence& s = scheduler_.sequence(run.sequence);
      if (!run.starts || s.has_token() || s.num_run > 0) continue;
      for (const auto& [id, told] : told_) {
        const Sequence& other = scheduler_.sequence(id);
        const bool preempted = other.order >= 0 && other.order < s.order && other.blocks.empty() && !other.starts;
        require(!preempted, "sequence ", value(s.id), " starts before ", value(id), " comes back");
      }
    }
  }

  Options options_;
  int64_t num_blocks_;
  Fault fault_;
  const bool runs_ahead_;
  int64_t num_ran_ahead_ = 0, num_stayed_behind_ = 0;
  Scheduler scheduler_;
  std::vector<std::vector<Slot>> cache_;
  std::map<SequenceId, Told> told_;
  std::map<SequenceId, Tokens> ended_;
  int64_t next_ = 0, version_ = 0;
};

Options options_of(int64_t max_running, int64_t block_tokens, int64_t prefill_tokens = 64) {
  Options o;
  o.max_running = max_running;
  o.kv_block_tokens = block_tokens;
  o.prefill_tokens = prefill_tokens;
  return o;
}

/// A random life of a scheduler: tiny pools, few different tokens, so that sequences share, collide and are preempted all the time.
class Trace {
 public:
  static constexpr int64_t kMostTokens = 28;

  Trace(uint64_t seed, uint64_t number, Fault fault)
      : random_(seed, number),
        options_(options_of(1 + below(6), int64_t{1} << below(4), 1 + below(16))),
        world_(options_, (kMostTokens + options_.kv_block_tokens - 1) / options_.kv_block_tokens + below(3) * below(12), fault,
               number % 2 == 1),
        records_(below(4) == 0) {}

  void run() {
    const int64_t num_events = 10 + below(30);
    for (int64_t i = 0; i < num_events; ++i) event();
    int64_t left = 20 + 3 * world_.tokens_left();  // the oldest has its blocks; it always advances
    for (; !world_.told().empty(); --left) {
      require(left > 0, "a sequence starves");
      step();
    }
    require(world_.scheduler().blocks().num_free() == world_.scheduler().blocks().ledger().num_blocks(), "blocks are lost at the end");
  }
  const World& world() const { return world_; }

 private:
  int64_t below(int64_t bound) { return random_.below(bound); }
  int32_t token() { return static_cast<int32_t>(below(3)); }
  void step() {
    world_.step([&](const World::Told&) { return token(); });
  }

  Tokens prompt() {
    Tokens tokens;
    const int64_t kind = below(4);
    if (kind == 0 && !world_.ended().empty()) {  // a further turn
      auto it = world_.ended().begin();
      std::advance(it, below(std::ssize(world_.ended())));
      tokens = it->second;
    } else if (kind <= 2 && !last_prompt_.empty()) {  // the same as one before, or the same begin
      tokens = last_prompt_;
      if (kind == 2) tokens.resize(static_cast<size_t>(1 + below(std::ssize(tokens))));
    }
    const int64_t more = tokens.empty() || kind != 1 ? 1 + below(8) : 0;
    for (int64_t i = 0; i < more; ++i) tokens.push_back(token());
    tokens.resize(static_cast<size_t>(std::min<int64_t>(std::ssize(tokens), kMostTokens - 1)));
    return last_prompt_ = tokens;
  }

  void event() {
    const int64_t kind = below(20);
    if (kind < 7) {
      const Tokens asked = prompt();
      for (int64_t n = 1 + below(4); n > 0; --n)
        world_.submit(asked, 1 + below(std::min<int64_t>(10, kMostTokens - std::ssize(asked))), records_ && below(5) > 0);
    } else if (kind == 7 && !world_.told().empty()) {
      auto it = world_.told().begin();
      std::advance(it, below(std::ssize(world_.told())));
      world_.cancel(it->first);
    } else if (kind == 8) {
      world_.switch_version(world_.version() + 1);
    } else if (kind == 9 && below(2) == 0) {
      world_.sleep();
      if (below(2) == 0) world_.submit(prompt(), 1);
      world_.wake(world_.version() + below(2));
    }
    for (int64_t n = below(4); n > 0; --n) step();
  }

  RandomStream random_;
  Options options_;
  World world_;
  bool records_;   // some sequences run all of their tokens
  Tokens last_prompt_;
};

struct Traced {
  int64_t num_wrong = 0, num_preemptions = 0, num_found_tokens = 0, num_ran_ahead = 0, num_stayed_behind = 0;
  std::set<std::string> whats;
};

Traced run_traces(uint64_t seed, uint64_t num_traces, Fault fault = Fault::kNone) {
  Traced out;
  for (uint64_t t = 0; t < num_traces; ++t) {
    Trace trace(seed, t, fault);
    try {
      trace.run();
    } catch (const std::exception& e) {
      if (++out.num_wrong <= 3 && fault == Fault::kNone) ADD_FAILURE() << "seed " << seed << ", trace " << t << ": " << e.what();
      out.whats.insert(e.what());
    }
    out.num_preemptions += trace.world().scheduler().counts().preemptions;
    out.num_found_tokens += trace.world().scheduler().blocks().num_found_tokens();
    out.num_ran_ahead += trace.world().num_ran_ahead();
    out.num_stayed_behind += trace.world().num_stayed_behind();
  }
  return out;
}

bool any_says(const Traced& traced, const std::string& words) {
  return std::ranges::any_of(traced.whats, [&](const std::string& what) { return what.find(words) != std::string::npos; });
}

constexpr uint64_t kSeed = 20261122;

TEST(Scheduler, KeepsItsPromisesInRandomTraces) {
  const Traced traced = run_traces(kSeed, 10000);
  std::cout << "seed " << kSeed << ": 10000 traces, " << traced.num_preemptions << " preemptions, " << traced.num_found_tokens
            << " tokens found\n";
  EXPECT_EQ(traced.num_wrong, 0);
  EXPECT_GT(traced.num_preemptions, 1000);  // else the traces try nothing
  EXPECT_GT(traced.num_found_tokens, 100000);
  EXPECT_GT(traced.num_ran_ahead, 100000);
  EXPECT_GT(traced.num_stayed_behind, 1000);
}

TEST(Scheduler, TheTracesSeeACopyThatIsNotMade) {
  const Traced traced = run_traces(kSeed, 300, Fault::kNoCopies);
  EXPECT_TRUE(any_says(traced, "reads what other tokens left") || any_says(traced, "reads version")) << traced.num_wrong;
}

TEST(Scheduler, TheTracesSeeAHitOfAnotherVersion) {
  EXPECT_TRUE(any_says(run_traces(kSeed, 300, Fault::kUnheardSwitch), "reads version"));
}

TEST(Scheduler, TheTracesSeeAReferenceThatNobodyHas) {
  EXPECT_TRUE(any_says(run_traces(kSeed, 100, Fault::kLostSequence), "references and"));
}

// Each sequence draws tokens of its own, by its id and how many it has.
Plan step(World& world) {
  return world.step([n = 0](const World::Told& told) mutable { return static_cast<int32_t>(100 + 10 * std::ssize(told.tokens) + n++); });
}

std::vector<int64_t> ran(const Plan& plan) {
  std::vector<int64_t> ids;
  for (const Plan::Run& run : plan.runs) ids.push_back(value(run.sequence));
  return ids;
}
std::vector<int64_t> drew(const Plan& plan) {
  std::vector<int64_t> ids;
  for (const Plan::Draw& draw : plan.draws) ids.push_back(value(draw.sequence));
  return ids;
}
using Ids = std::vector<int64_t>;

Tokens tokens_from(int32_t first, int64_t n) {
  Tokens tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(first + static_cast<int32_t>(i));
  return tokens;
}

TEST(Scheduler, AGroupRunsItsPromptOnceAndAllItsSamplesDrawFromOneRow) {
  World world(options_of(4, 4), 64);
  for (int32_t group = 0; group < 3; ++group)
    for (int i = 0; i < 2; ++i) world.submit(tokens_from(10 * group, 6), 5);
  const Plan first = step(world);
  EXPECT_EQ(ran(first), (Ids{0, 2, 4}));
  EXPECT_EQ(drew(first), (Ids{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(std::ssize(first.rows), 3);
  EXPECT_EQ(world.scheduler().counts().ready, 3);
  const Plan second = step(world);  // one slot is left, and it is for a sample whose prompt has run
  EXPECT_EQ(ran(second), (Ids{0, 2, 4, 1}));
  EXPECT_EQ(second.ids.size(), 4u);  // one token each
  EXPECT_EQ(world.told().at(SequenceId{1}).tokens.size(), 6u + 2u);
  EXPECT_EQ(world.told().at(SequenceId{3}).tokens.size(), 6u + 1u);
}

TEST(Scheduler, WhatEndsWithItsFirstTokenTakesNoSlot) {
  World world(options_of(1, 4), 64);
  for (int i = 0; i < 5; ++i) world.submit(tokens_from(0, 6), 1);
  step(world);
  EXPECT_TRUE(world.told().empty());
}

TEST(Scheduler, NoOtherPromptStartsBeforeSamplesWhosePromptHasRun) {
  World world(options_of(1, 4), 64);
  for (int i = 0; i < 3; ++i) world.submit(tokens_from(0, 6), i == 0 ? 2 : 4);
  world.submit(tokens_from(50, 6), 2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ran(step(world)), (Ids{0}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ran(step(world)), (Ids{1}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ran(step(world)), (Ids{2}));
  EXPECT_EQ(ran(step(world)), (Ids{3}));
}

TEST(Scheduler, AFurtherTurnRunsOnlyWhatIsNew) {
  World world(options_of(4, 4), 64);
  const SequenceId first = world.submit(tokens_from(0, 6), 5);
  while (!world.told().empty()) step(world);
  Tokens turn = world.ended().at(first);  // 11 tokens, the last of which is not cached
  turn.insert(turn.end(), {7, 8, 9});
  world.submit(turn, 2);
  const Plan plan = step(world);
  EXPECT_EQ(plan.runs[0].position, 10);
  EXPECT_EQ(plan.ids.size(), 4u);
  EXPECT_EQ(world.scheduler().blocks().num_found_tokens(), 10);
}

TEST(Scheduler, AfterASwitchNothingOfTheOldVersionIsFound) {
  for (int64_t version : {0, 1}) {  // nor if the new weights have the same number
    World world(options_of(4, 4), 64);
    world.submit(tokens_from(0, 9), 5);
    for (int i = 0; i < 3; ++i) step(world);
    world.switch_version(version);
    step(world);  // lives through the switch: what it leaves is of two versions
    step(world);
    step(world);
    world.submit(tokens_from(0, 9), 2);
    EXPECT_EQ(step(world).runs.back().position, 0);
  }
}

TEST(Scheduler, ASequenceThatIsPreemptedFindsItsBlocksAgain) {
  World world(options_of(2, 4), 7);
  world.submit(tokens_from(0, 8), 12);
  world.submit(tokens_from(50, 7), 14);
  while (world.scheduler().counts().preemptions == 0) step(world);
  while (!world.told().empty()) step(world);
  EXPECT_GT(world.scheduler().blocks().num_found_tokens(), 0);
}

TEST(Scheduler, ACommonBeginIsComputedOnce) {
  World world(options_of(8, 4, 6), 64);
  Tokens system = tokens_from(0, 8);
  for (int32_t i = 0; i < 3; ++i) {
    Tokens prompt = system;
    prompt.push_back(60 + i);
    world.submit(prompt, 2);
  }
  EXPECT_EQ(ran(step(world)), (Ids{0}));  // 6 of its 9 tokens; the others wait for its second block
  EXPECT_EQ(ran(step(world)), (Ids{0}));
  const Plan third = step(world);
  EXPECT_EQ(ran(third), (Ids{0, 1, 2}));
  EXPECT_EQ(third.ids.size(), 3u);
}

TEST(Scheduler, AShortCommonBeginIsNotWorthWaitingFor) {
  World world(options_of(8, 4), 64);
  for (int32_t i = 0; i < 2; ++i) {
    Tokens prompt = tokens_from(0, 4), own = tokens_from(50 + 20 * i, 9);
    prompt.insert(prompt.end(), own.begin(), own.end());
    world.submit(prompt, 2);
  }
  const Plan plan = step(world);
  EXPECT_EQ(ran(plan), (Ids{0, 1}));
  EXPECT_EQ(plan.runs[1].position, 0);
}

TEST(Scheduler, ASwitchMakesSamplesWithoutASlotStartOver) {
  World world(options_of(1, 4), 64);
  for (int i = 0; i < 3; ++i) world.submit(tokens_from(0, 6), 4);
  world.submit(tokens_from(50, 6), 4);
  step(world);
  EXPECT_TRUE(world.scheduler().sequence(SequenceId{0}).keeps_token());
  EXPECT_FALSE(world.scheduler().sequence(SequenceId{1}).keeps_token());
  world.switch_version(1);
  EXPECT_FALSE(world.scheduler().sequence(SequenceId{1}).has_token());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ran(step(world)), (Ids{0}));
  const Plan again = step(world);
  EXPECT_EQ(ran(again), (Ids{1}));
  EXPECT_EQ(drew(again), (Ids{1, 2}));
}

TEST(Scheduler, WhatNeedsAllItsTokensFindsOnlyItsOwn) {
  World world(options_of(4, 4), 64);
  world.submit(tokens_from(0, 9), 1);
  step(world);
  world.submit(tokens_from(0, 9), 2, true);
  world.submit(tokens_from(0, 9), 2, true);
  const Plan plan = step(world);
  EXPECT_EQ(plan.runs[0].position, 0);
  EXPECT_EQ(drew(plan), (Ids{1, 2}));
}

TEST(Scheduler, OutcomesOfAnotherPlanAreABug) {
  Scheduler scheduler(options_of(1, 4));
  scheduler.open(4);
  scheduler.submit(SequenceId{0}, {1, 2});
  const Plan plan = scheduler.plan();
  EXPECT_THROW(scheduler.complete(plan, {}), InternalError);
}

// A holder with fewer tokens may be the next to write into a shared tail, so its longer content must not be found.
TEST(SequenceBlocks, ATailThatAnotherHoldsIsNotRecordedLonger) {
  SequenceBlocks blocks(16);
  blocks.open(8);
  blocks.set_version(PolicyVersion{1});
  std::vector<BlockCopy> copies;
  const auto of = [](std::vector<int32_t> tokens) {
    Sequence s;
    s.num_prompt = std::ssize(tokens);
    s.tokens = std::move(tokens);
    s.computed_by = PolicyVersion{1};
    return s;
  };
  const auto run = [&](Sequence& s, int64_t num_tokens) {
    ASSERT_TRUE(blocks.make_room(s, num_tokens, copies));
    s.num_cached = num_tokens;
  };
  Sequence first = of({1, 2, 3, 4, 5}), longer = of({1, 2, 3, 4, 5, 6, 7, 8, 9}), other = of({1, 2, 3, 4, 5, 11, 12, 13});
  run(first, 5);
  blocks.release(first);
  blocks.take(longer, blocks.find(longer.tokens, 8));
  ASSERT_EQ(longer.num_cached, 5);
  run(longer, 7);
  blocks.take(other, blocks.find(other.tokens, 7));
  ASSERT_EQ(other.blocks, longer.blocks);
  blocks.release(longer);
  run(other, 8);
  EXPECT_LE(blocks.find(longer.tokens, 8).num_tokens, 5) << "its sixth token is the other's";
  blocks.release(other);
  EXPECT_EQ(blocks.find(other.tokens, 8).num_tokens, 8);
}

}  // namespace
}  // namespace tandem::rollout
