// SPDX-License-Identifier: Apache-2.0
#include "tandem/generate/turns.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/rng.h"

namespace tandem::generate {
namespace {

using nlohmann::json;

constexpr double kAbandonS = 0.1;  // between two tries
constexpr int kMostGone = 16;  // times that an episode is lost with others, in one turn

// One that begins anew has another.
uint64_t seed_of(uint64_t seed, data::SampleId sample, int64_t failures) {
  return RandomStream(seed, static_cast<uint64_t>(value(sample)), static_cast<uint64_t>(failures)).next_u64() >> 1;  // signed elsewhere
}

// A stretch of a response: what the policy said in a turn, or the environment.
struct Stretch {
  bool is_environment;
  size_t begin, end;
};

std::vector<Stretch> stretches_of(const data::Sample& sample) {
  std::vector<Stretch> all;
  for (size_t t = 0; t < sample.ids.size(); ++t) {
    const bool is_environment = t < sample.trainable.size() && !sample.trainable[t];
    if (all.empty() || all.back().is_environment != is_environment) all.push_back({is_environment, t, t});
    ++all.back().end;
  }
  return all;
}

}  // namespace

std::string to_text(const std::vector<GroupTurn>& turns) {
  json all = json::array();
  for (const GroupTurn& group : turns) {
    json samples = json::array();
    for (const SampleTurn& s : group.samples)
      samples.push_back({static_cast<int>(s.kind), s.ids, s.is_full, s.reward ? json(*s.reward) : json(), s.turns, s.failures});
    all.push_back({value(group.group), std::move(samples)});
  }
  return turns.empty() ? "" : all.dump();
}

std::vector<GroupTurn> turns_of(const std::string& text) {
  std::vector<GroupTurn> turns;
  if (text.empty()) return turns;
  try {
    const json all = parse_or_discard<json>(text);
    for (const json& group : all) {
      GroupTurn& turn = turns.emplace_back(GroupTurn{data::GroupId{group.at(0).get<int64_t>()}, {}});
      for (const json& s : group.at(1)) {
        SampleTurn& one = turn.samples.emplace_back();
        one.kind = static_cast<SampleTurn::Kind>(s.at(0).get<int>()), one.ids = s.at(1).get<std::vector<int32_t>>();
        one.is_full = s.at(2), one.turns = s.at(4), one.failures = s.at(5);
        if (!s.at(3).is_null()) one.reward = s.at(3).get<double>();
      }
    }
  } catch (const json::exception& e) {
    throw PeerError(std::string("turns of another rank: ") + e.what());
  }
  return turns;
}

Turns::Turns(Setup setup) : setup_(std::move(setup)), jobs_(static_cast<size_t>(setup_.environment->options.workers)) {
  for (size_t lane = 0; lane < jobs_.size(); ++lane) threads_.emplace_back([this, lane] { work(lane); });
}

Turns::~Turns() {
  std::unique_lock lock(mutex_);
  is_closing_ = true;
  submitted_.notify_all();
  // More than once: a lane that has taken its turn may talk to the environment only after that was told.
  while (num_busy_ > 0) {
    lock.unlock();
    if (setup_.environment->abandon) setup_.environment->abandon();
    lock.lock();
    answered_.wait_for(lock, duration_of_s(kAbandonS), [&] { return num_busy_ == 0; });
  }
  lock.unlock();
  for (std::thread& thread : threads_) thread.join();
}

void Turns::submit(const data::Group& group, const std::vector<bool>& is_over) {
  const auto out = std::make_shared<Out>(Out{group, {group.id, std::vector<SampleTurn>(group.samples.size())}, 0, {}});
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < group.samples.size(); ++i) {
    std::shared_ptr<Conversation>& conversation = out->conversations.emplace_back();
    if (is_over[i]) continue;
    const data::SampleId id = group.samples[i].id;
    std::shared_ptr<Conversation>& kept = conversations_[id];
    if (!kept) kept = std::make_shared<Conversation>();
    conversation = kept;
    jobs_[static_cast<size_t>(value(id)) % jobs_.size()].push_back({out, i});
    ++out->num_open;
  }
  out_[group.id] = out;
  submitted_.notify_all();
}

std::vector<GroupTurn> Turns::collect(const Deadline& deadline) {
  std::vector<GroupTurn> turns;
  if (fault_) return turns;
  std::unique_lock lock(mutex_);
  answered_.wait_until(lock, deadline.time(), [&] { return !done_.empty() || failed_; });
  fault_ = failed_;
  if (fault_) return turns;
  for (const data::GroupId id : std::exchange(done_, {})) {
    const auto out = out_.find(id);
    if (out == out_.end()) continue;
    turns.push_back(std::move(out->second->turn));
    for (size_t i = 0; i < turns.back().samples.size(); ++i)
      if (turns.back().samples[i].kind == SampleTurn::Kind::kDone) conversations_.erase(out->second->group.samples[i].id);
    out_.erase(out);
  }
  return turns;
}

void Turns::forget(data::GroupId group) {
  std::lock_guard lock(mutex_);
  out_.erase(group);
  std::erase(done_, group);
  std::erase_if(conversations_, [&](const auto& each) { return data::group_of(each.first, setup_.group_size) == group; });
}

void Turns::work(size_t lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    submitted_.wait(lock, [&] { return is_closing_ || !jobs_[lane].empty(); });
    if (is_closing_) return;
    const Job job = std::move(jobs_[lane].front());
    jobs_[lane].pop_front();
    const auto is_wanted = [&] {
      const auto out = out_.find(job.out->group.id);
      return out != out_.end() && out->second == job.out;
    };
    if (!is_wanted()) continue;
    ++num_busy_;
    lock.unlock();
    SampleTurn turn;
    std::exception_ptr failed;
    try {
      turn = take_turn(*job.out, job.place, *job.out->conversations[job.place], lane);
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();
    --num_busy_;
    if (is_closing_) answered_.notify_all();
    if (!is_wanted()) continue;
    if (failed) failed_ = failed;
    job.out->turn.samples[job.place] = std::move(turn);
    if (--job.out->num_open == 0) done_.push_back(job.out->group.id);
    if (job.out->num_open == 0 || failed_) answered_.notify_all();
  }
}

// Errors: UserError once it has failed too often.
SampleTurn Turns::take_turn(const Out& out, size_t place, Conversation& conversation, size_t lane) const {
  const data::Sample& sample = out.group.samples[place];
  const auto fails = [&](const std::string& why) -> SampleTurn {
    const data::Prompt& prompt = out.group.prompt;
    const rollout::EpisodeOptions& options = setup_.environment->options;
    conversation = {.failures = conversation.failures + 1};
    const std::string what = join_text("episode ", place, " of group ", value(out.group.id), " (row ", prompt.row + 1, "): ", why);
    if (conversation.failures >= options.attempts)
      throw UserError("episode.environment " + options.environment, join_text(what, "; it has failed ", conversation.failures, " times"),
                      "one that does not fail; episode.attempts: how often it may begin, episode.timeout_s: how long it may take");
    setup_.environment->notices->say("episode " + why, join_text(what, "; it begins anew, ", options.attempts, " times in all at most "
                                                                 "(episode.attempts), and reward/failed_episodes counts such"));
    return {.kind = SampleTurn::Kind::kAnew};
  };
  for (int times_gone = 0;;) {
    try {
      if (!conversation.episode) begin(out.group, sample, conversation, lane);
      return say(sample, conversation);
    } catch (const EpisodeGone& e) {
      if (++times_gone == kMostGone) return fails(e.what());
      conversation = {.failures = conversation.failures};
    } catch (const InternalError&) {
      throw;
    } catch (const std::exception& e) {
      return fails(e.what());
    }
  }
}

// Within what is left of the time that a conversation has. Errors: PeerError if it takes longer.
Turn Turns::timed(Conversation& conversation, const std::function<Turn(Budget&)>& act) const {
  const double most_s = setup_.environment->options.timeout_s, begin_s = now_s();
  Budget budget{std::max(0.0, most_s - conversation.spent_s)};
  std::exception_ptr thrown;
  Turn turn;
  try {
    turn = act(budget);
  } catch (...) {
    thrown = std::current_exception();
  }
  conversation.spent_s += now_s() - begin_s - budget.excused_s;
  if (conversation.spent_s >= most_s)
    throw PeerError(join_text("its environment took over ", most_s, " s (episode.timeout_s) for set-up, turns and score"));
  if (thrown) std::rethrow_exception(thrown);
  if (turn.reward) conversation.reward += *turn.reward, conversation.has_reward = true;
  ++conversation.turns;
  return turn;
}

std::vector<int32_t> Turns::ids_of(Turn& turn) const {
  if (turn.ids.empty()) turn.ids = setup_.tokenizer.encode_part(turn.text);
  for (const int32_t id : turn.ids)
    if (id < 0 || id >= setup_.vocab_size)
      throw UserError("a turn", join_text("has token id ", id), join_text("0 to ", setup_.vocab_size - 1));
  return std::move(turn.ids);
}

// What was said before, here or elsewhere, is said again: then the environment is where it was. Elsewhere it may have failed before.
void Turns::begin(const data::Group& group, const data::Sample& sample, Conversation& conversation, size_t lane) const {
  while (!repeats(group, sample, conversation, lane)) {
    if (conversation.failures + 1 >= setup_.environment->options.attempts)
      throw PeerError("its environment does not say again what it said to the same words, so that an episode which moved cannot go on");
    conversation = {.failures = conversation.failures + 1};
  }
}

bool Turns::repeats(const data::Group& group, const data::Sample& sample, Conversation& conversation, size_t lane) const {
  (void)timed(conversation, [&](Budget& budget) {
    const EpisodeStart start{group.prompt, seed_of(setup_.seed, sample.id, conversation.failures), static_cast<int64_t>(lane)};
    conversation.episode = setup_.environment->make(start, budget);
    return Turn();
  });
  conversation.turns = 0;
  const std::vector<Stretch> stretches = stretches_of(sample);
  const std::span<const int32_t> ids(sample.ids);
  for (size_t i = 0; i + 1 < stretches.size(); i += 2) {
    const auto said = ids.subspan(stretches[i].begin, stretches[i].end - stretches[i].begin);
    const auto heard = ids.subspan(stretches[i + 1].begin, stretches[i + 1].end - stretches[i + 1].begin);
    Turn again = timed(conversation, [&](Budget& budget) {
      return conversation.episode->next({setup_.text_of(said), said, static_cast<int64_t>(i / 2), false}, budget);
    });
    if (again.is_done || !std::ranges::equal(ids_of(again), heard)) return false;
  }
  return true;
}

SampleTurn Turns::say(const data::Sample& sample, Conversation& conversation) const {
  const std::span<const int32_t> said = std::span(sample.ids).subspan(data::last_turn_begin(sample));
  const int64_t room = setup_.most_tokens(sample.id) - std::ssize(sample.ids);
  Turn turn = timed(conversation, [&](Budget& budget) {
    return conversation.episode->next({setup_.text_of(said), said, conversation.turns, room <= 0}, budget);
  });
  SampleTurn out;
  out.is_full = !turn.is_done && room <= 0;
  if (!turn.is_done && !out.is_full) {
    out.ids = ids_of(turn);
    if (out.ids.empty()) throw UserError("a turn", "is empty, and the environment is not done", "a text, ids, or done");
    out.is_full = std::ssize(out.ids) >= room;
  }
  out.kind = turn.is_done || out.is_full ? SampleTurn::Kind::kDone : SampleTurn::Kind::kGoesOn;
  if (out.kind == SampleTurn::Kind::kGoesOn) return out;
  out.ids.clear();
  if (conversation.has_reward) out.reward = conversation.reward;
  out.turns = conversation.turns, out.failures = conversation.failures;
  return out;
}

}  // namespace tandem::generate
